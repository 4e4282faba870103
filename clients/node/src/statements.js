// What is sent to the server. Each statement goes there in one message, with its arguments as a JSON literal. So it can
// begin with a SET LOCAL, which ends with the statement, and it works behind a pooler that gives each transaction
// another connection. Names are qualified, and a role's settings are overridden: neither changes what a call means.

import pg from 'pg'
import { LONGEST } from './calls.js'

const { escapeLiteral } = pg

const plain = (_, value) => (typeof value === 'bigint' ? String(value) : value)
const json = (list) => `pg_catalog.jsonb_to_recordset(${escapeLiteral(JSON.stringify(list, plain))}::pg_catalog.jsonb)`
const seconds = (column) => `pg_catalog.make_interval(secs => ${column})`
const TEXT = 'pg_catalog.text'
const LEASE = `n pg_catalog.int4, resource ${TEXT}, owner ${TEXT}, token pg_catalog.int8, ttl pg_catalog.float8`

// Times are seconds. A synchronous wait that is cancelled must be told, whatever the role's client_min_messages.
function settings(place, { timeout, lock = 0, waits = false }) {
  const all = {
    statement_timeout: timeout === Infinity ? 0 : Math.min(Math.max(1, Math.ceil(timeout)), LONGEST),
    lock_timeout: Math.ceil(lock),
    client_min_messages: 'warning',
  }
  if (place.version >= 170000) all.transaction_timeout = 0
  // A wait for a transaction does not notice otherwise that its client has gone.
  if (waits && place.linux) all.client_connection_check_interval = 1000
  return Object.entries(all).map(([name, value]) => `SET LOCAL ${name} = ${value}; `).join('')
}

// Where the functions are, and what the server is. The extension's own schema, if it is there; never a search of names.
export const PLACE = `
  SELECT pg_catalog.current_setting('server_version_num') AS version,
    pg_catalog.strpos(pg_catalog.version(), 'linux') AS linux, e.nspname AS extension
  FROM (VALUES (1)) AS one LEFT JOIN (SELECT n.nspname FROM pg_catalog.pg_extension AS x, pg_catalog.pg_namespace AS n
    WHERE x.extname OPERATOR(pg_catalog.=) 'lease_lock' AND n.oid OPERATOR(pg_catalog.=) x.extnamespace) AS e ON true`

// Times of a request are milliseconds. With all arguments of the extension's function no other one is meant.
export function requestStatement(place, request, wait, ifOwn, timeout) {
  const argument = (time) => (time === null || time === undefined || time === Infinity ? null : time / 1000)
  const { resource, ttl, owner, mode, permits, minHold, payload } = request
  const times = { ttl: argument(ttl), wait: argument(wait), minHold: argument(minHold) }
  const list = [{ owner, resource, mode, permits, ifOwn, payload, ...times }]
  return `${settings(place, { timeout, waits: wait > 0 })}
    SELECT granted, token, extract(epoch FROM waited) AS waited, reason, blocked_by, extract(epoch FROM blocked_for) AS blocked_for
    FROM ${json(list)} AS r(resource ${TEXT}, ttl pg_catalog.float8, owner ${TEXT}, wait pg_catalog.float8, mode ${TEXT},
        permits pg_catalog.int4, "ifOwn" ${TEXT}, "minHold" pg_catalog.float8, payload pg_catalog.jsonb),
      ${place.schema}.lease_request(r.resource, ${seconds('r.ttl')}, r.owner, wait => ${seconds('r.wait')}, mode => r.mode,
        permits => r.permits, if_own => r."ifOwn", min_hold => ${seconds('r."minHold"')}, payload => r.payload
        ${place.extension ? ', session => false' : ''})`
}

// A lease of a fixed life is only looked at: its answer is the token.
export function renewStatement(place, leases, timeout, lock) {
  const list = leases.map(({ resource, owner, token, ttl, renews }, n) => ({ n, resource, owner, token, ttl: ttl / 1000, renews }))
  const { schema } = place
  return `${settings(place, { timeout, lock })}
    SELECT l.n, h.held, ${schema}.lease_contended(l.resource) AS contended,
      CASE WHEN h.held THEN false ELSE EXISTS (SELECT FROM ${schema}.lease_status AS s
        WHERE s.resource OPERATOR(pg_catalog.=) l.resource AND s.state OPERATOR(pg_catalog.=) 'held'
          AND s.token OPERATOR(pg_catalog.>) l.token) END AS taken
    FROM ${json(list)} AS l(${LEASE}, renews pg_catalog.bool),
      LATERAL (SELECT CASE WHEN l.renews THEN ${schema}.lease_renew(l.resource, ${seconds('l.ttl')}, l.owner, l.token)
        ELSE ${schema}.lease_token(l.resource, l.owner) OPERATOR(pg_catalog.=) l.token END AS held) AS h`
}

// Without a token: for a request whose answer was lost. To be given back: without what is left of its minHold; NULL if that
// cannot be said now, since an open transaction is in the way, say. If the lease ends meanwhile, the request is granted anew,
// and that is released.
export function endStatement(place, ends, timeout, lock) {
  const list = ends.map(({ resource, owner, token, lease, givesBack }, n) => (
    { n, resource, owner, token, ttl: lease.ttl / 1000, mode: lease.mode, permits: lease.permits, givesBack }))
  const { schema } = place
  return `${settings(place, { timeout, lock })}
    SELECT l.n, CASE
      WHEN l.current OPERATOR(pg_catalog.=) coalesce(l.token, l.current) THEN (
        SELECT CASE WHEN g.granted AND (g.reason IS NULL OR g.token OPERATOR(pg_catalog.=) l.current)
            THEN ${schema}.lease_release(l.resource, l.owner, g.token) AND g.token OPERATOR(pg_catalog.=) l.current
          WHEN g.reason OPERATOR(pg_catalog.=) 'open' OR g.reason OPERATOR(pg_catalog.=) 'failover' THEN NULL ELSE false END
        FROM ${schema}.lease_request(l.resource, ${seconds('l.ttl')}, l.owner, mode => l.mode, permits => l.permits,
          if_own => 'renew', min_hold => '0') AS g)
      WHEN l."givesBack" THEN false
      WHEN l.token IS NULL THEN ${schema}.lease_release(l.resource, l.owner)
      ELSE ${schema}.lease_release(l.resource, l.owner, l.token) END AS held
    FROM (SELECT *, CASE WHEN e."givesBack" THEN ${schema}.lease_token(e.resource, e.owner) END AS current
      FROM ${json(list)} AS e(${LEASE}, mode ${TEXT}, permits pg_catalog.int4, "givesBack" pg_catalog.bool) OFFSET 0) AS l`
}

// In a transaction of the user's, whose settings stay as they are, but for one that would hide the warning of a COMMIT
// whose wait for a synchronous standby is cancelled.
export function assertStatement(schema, { resource, owner }) {
  const [name, holder] = [resource, owner].map(escapeLiteral)
  return `SELECT ${schema}.lease_assert(${name}, ${holder}) AS token, pg_catalog.set_config('lease_lock.owner', ${holder}, true),
    CASE WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error'
      THEN pg_catalog.set_config('client_min_messages', 'warning', true) END`
}
