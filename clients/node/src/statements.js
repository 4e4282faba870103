// What is sent to the server. Each statement goes there in one message, with its arguments as a JSON literal. So it can
// begin with a SET LOCAL, which ends with the statement, and it works behind a pooler that gives each transaction
// another connection.

import { debuglog } from 'node:util'

export const REQUEST = `SELECT granted, token, extract(epoch FROM waited) * 1000 AS waited, reason, blocked_by,
    extract(epoch FROM blocked_for) * 1000 AS blocked_for
  FROM jsonb_to_recordset($) AS r(resource text, ttl float8, owner text, wait float8, mode text, permits integer, "ifOwn" text,
      "minHold" float8, "lockDelay" float8, payload jsonb),
    lease_request(r.resource, make_interval(secs => r.ttl / 1000), r.owner, wait => make_interval(secs => r.wait / 1000),
      mode => r.mode, permits => r.permits, if_own => r."ifOwn", min_hold => make_interval(secs => r."minHold" / 1000),
      lock_delay => make_interval(secs => r."lockDelay" / 1000), payload => r.payload)`

const LEASES = 'jsonb_to_recordset($) AS l(n integer, resource text, owner text, token bigint, ttl float8)'
export const RENEW = `SELECT l.n, lease_renew(l.resource, make_interval(secs => l.ttl / 1000), l.owner, l.token) AS held
  FROM ${LEASES}`
export const RELEASE = `SELECT l.n, lease_release(l.resource, l.owner, l.token) AS held FROM ${LEASES}`
// For a request whose answer was lost: the token is not known.
export const RELEASE_UNKNOWN = `SELECT lease_release(l.resource, l.owner) AS held FROM ${LEASES}`
export const ASSERT = `SELECT lease_assert(l.resource, l.owner) AS token, set_config('lease_lock.owner', l.owner, true)
  FROM ${LEASES}`

// NODE_DEBUG=lease-lock shows what goes wrong with renewals and releases.
export const log = debuglog('lease-lock')

// SQLSTATE of an assertion that fails.
export const NOT_HELD = '55000'

export class LeaseTaken extends Error {
  name = 'LeaseTaken'
  constructor(resource, row) {
    super(`lease on "${resource}" is taken (${row.reason}${row.blocked_by === null ? '' : ` by ${row.blocked_by}`})`)
    this.resource = resource
    this.reason = row.reason
    this.blockedBy = row.blocked_by
    this.blockedFor = row.blocked_for === null ? null : Number(row.blocked_for)
  }
}

export class LeaseLost extends Error {
  name = 'LeaseLost'
  constructor(resource, reason, options) {
    super(`lease on "${resource}" is lost: ${reason}`, options)
    this.resource = resource
    this.reason = reason
  }
}

export class Closed extends Error {
  name = 'Closed'
  constructor(options) {
    super('leases are closed', options)
  }
}

// Run a statement in a transaction of its own; its rows, with all values as text. Fails within `limit` milliseconds.
export async function ask(client, statement, list, limit, settings = '') {
  const text = statement.replace('$', () => client.escapeLiteral(JSON.stringify(list, plain)) + '::jsonb')
  const timeout = limit === Infinity ? 0 : Math.min(Math.max(1, Math.ceil(limit)), 2 ** 31 - 1)
  const results = await within(client, timeout || Infinity, {
    text: `SET LOCAL statement_timeout = ${timeout}; ${settings} ${text}`,
    types: { getTypeParser: () => String },
  })
  return results.at(-1).rows
}

// A query that fails, and ends the connection, if there is no answer in time. Before version 8.12, pg has such a limit
// only for all queries of a client.
export async function within(client, limit, query) {
  const answer = client.query(query)
  if (limit === Infinity) return answer
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => {
      client.end().catch(() => {})
      reject(new Error('no answer in time'))
    }, Math.min(limit, 2 ** 31 - 1))
  })
  try {
    return await Promise.race([answer, late])
  } finally {
    clearTimeout(timer)
  }
}

const plain = (_, value) => (typeof value === 'bigint' ? String(value) : value)

// Whether the same call may succeed on another connection: this one broke, or its server is not the primary.
export function lostConnection(error) {
  if (error.severity === undefined) {
    return !(error instanceof TypeError || error instanceof RangeError || error instanceof LeaseLost || error instanceof Closed)
  }
  return error.code === '25006' || /^(08|57P)/.test(error.code ?? '')
}
