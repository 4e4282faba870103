// The program that ../../conformance drives; its README.md has the protocol. Times there are seconds.

import { createInterface } from 'node:readline'
import pg from 'pg'
import { LeaseError, Leases } from 'lease-lock'
import { now } from '../node_modules/lease-lock/src/clock.js'

class Failed extends Error {}
class Unsupported extends Error {}

const clients = new Map()
const leases = new Map()
const pools = new Map()
const running = new Map() // of each command: how to interrupt it, and to let it go on

const write = (line) => process.stdout.write(JSON.stringify(line, (_, value) => (typeof value === 'bigint' ? String(value) : value)) + '\n')
const milliseconds = (seconds) => (typeof seconds === 'number' ? 1000 * seconds : seconds)
const TIMES = new Set(['ttl', 'wait', 'stop_before', 'min_hold'])

function options(given = {}) {
  const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())
  return Object.fromEntries(Object.entries(given).map(([name, value]) => [camel(name), TIMES.has(name) ? milliseconds(value) : value]))
}

// A connection string of libpq, as options of pg.
function configOf(conninfo) {
  const config = {}
  for (const [, name, quoted, plain] of conninfo.matchAll(/(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S*))/g)) {
    config[name === 'dbname' ? 'database' : name] = quoted === undefined ? plain : quoted.replace(/\\(.)/g, '$1')
  }
  return config
}

async function connectTo(config, setup) {
  const client = new pg.Client(config)
  client.on('error', () => {})
  try {
    await client.connect()
    for (const statement of setup) await client.query(statement)
    return client
  } catch (error) {
    await client.end()
    throw error
  }
}

function sourceOf({ kind, conninfo, size = 4, setup = [], connect: given = true }) {
  const config = conninfo === undefined ? {} : configOf(conninfo)
  const connect = () => connectTo(config, setup)
  if (kind === 'conninfo') return [config]
  if (kind === 'environment') return ['']
  if (kind === 'callable') return [connect]
  if (kind !== 'pool' && kind !== 'pool with hook') throw new Unsupported(kind)
  const pool = new pg.Pool({ ...config, max: size }).on('error', () => {})
  if (kind === 'pool') return [pool]
  pool.on('connect', (client) => { for (const statement of setup) client.query(statement).catch(() => {}) })
  return [pool, given ? { connect } : {}]
}

function describe(error) {
  const text = String(error?.message)
  if (error instanceof Interrupted) return { name: 'Interrupted' }
  if (error instanceof LeaseError) {
    const { name, resource, reason, blockedBy, blockedFor } = error
    return { name, text, resource, reason, blocked_by: blockedBy, blocked_for: blockedFor ? blockedFor / 1000 : blockedFor }
  }
  for (const [name, kind] of Object.entries({ Failed, Unsupported, TypeError, RangeError })) if (error instanceof kind) return { name, text }
  return { name: 'Driver', text, sqlstate: error?.severity === undefined ? null : error.code }
}

class Interrupted extends Error {}

const show = ({ token, owner, remaining }, lease) => ({ token, owner, remaining: remaining.call(lease) / 1000 })

function acquire({ client, lease: name, resource, options: given }, signal, how) {
  const onLost = (lease) => write({ event: 'lost', lease: name, reason: lease.signal.reason.reason, at: now() / 1000 })
  return clients.get(client)[how](resource, { ...options(given), onLost, signal }).then((lease) => {
    if (lease === null) return null
    leases.set(name, lease)
    return show(lease, lease)
  })
}

// A call lets go of its signal when it has its lease, and before its caller has that.
function closingAtGrant(client) {
  const { signal } = new AbortController()
  signal.removeEventListener = () => { clients.get(client).close() }
  return signal
}

const aborted = (signal) => new Promise((resolve) => signal.addEventListener('abort', resolve))

const commands = {
  hello: () => ({ language: 'node', kinds: ['conninfo', 'environment', 'callable', 'pool', 'pool with hook'], clock: now() / 1000 }),

  open({ client, source, options: given }) {
    const [from, more] = sourceOf(source)
    if (from instanceof pg.Pool) pools.set(client, from)
    clients.set(client, new Leases(from, { ...more, ...given }))
    return null
  },

  hold: (args, { signal }) => acquire(args, signal, 'hold'),
  try: (args, { signal }) => acquire(args, signal, 'tryHold'),
  release: ({ lease }) => leases.get(lease).release(),
  end: ({ lease }) => leases.get(lease)[Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]().then(() => null),
  check: ({ lease }) => leases.get(lease).check() ?? null,

  state({ lease }) {
    const { lost, contended } = leases.get(lease)
    return { lost, contended, remaining: leases.get(lease).remaining() / 1000 }
  },

  drop() { throw new Unsupported('drop: a lease whose loss is told is in use') },

  transaction: ({ id, lease, statements, pause }, { signal, gate }) => leases.get(lease).transaction(async (client) => {
    let rows = null
    for (const text of statements) ({ rows } = await client.query({ text, rowMode: 'array' }))
    if (pause) {
      write({ event: 'paused', id })
      await Promise.race([gate, aborted(signal)])
    }
    return rows
  }, { signal }),

  elect: ({ id, client, resource, options: given, fail, closed }, { signal, gate }) =>
    clients.get(client).elect(resource, { ...options(given), signal: closed ? closingAtGrant(client) : signal }, async (lease, lost) => {
      write({ event: 'elected', id, token: lease.token })
      await Promise.race([gate, aborted(lost), aborted(signal)])
      if (fail && lost.aborted) throw new Failed()
    }).then(() => null),

  once: ({ id, client, resource, period, options: given, fail, lasts, closed }, { signal }) =>
    clients.get(client).once(resource, {
      period: milliseconds(period), ...options(given), signal: closed ? closingAtGrant(client) : signal,
    }, async (lease, lost) => {
      if (lasts) {
        write({ event: 'began', id })
        await aborted(lost)
      }
      if (fail) throw new Failed()
      return true
    })().then((ran) => ran ?? false),

  keeper: ({ client }) => {
    const { leases: kept, ending, waiting } = clients.get(client).counts
    return { leases: kept, ending, waits: waiting }
  },

  close: ({ client, timeout = 10 }) => clients.get(client).close({ timeout: milliseconds(timeout) }).then((left) => {
    pools.get(client)?.end().catch(() => {})
    return left
  }),

  // All connections of the pool, until the process ends.
  occupy: ({ client, number }) => Promise.all(Array.from({ length: number }, () => pools.get(client).connect())).then((taken) => {
    for (const one of taken) one.on('error', () => {})
    return null
  }),
  shut({ client }) {
    pools.get(client).end()
    return null
  },
}

// Whoever interrupts a call does not wait for it any longer.
async function run(args) {
  const controller = new AbortController()
  const { signal } = controller
  const command = { signal }
  command.gate = new Promise((resolve) => { command.go = resolve })
  command.interrupt = () => controller.abort(new Interrupted())
  running.set(args.id, command)
  const interrupted = new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
  interrupted.catch(() => {})
  try {
    const answer = commands[args.do]
    if (answer === undefined) throw new Unsupported(args.do)
    const result = (async () => answer(args, command))()
    result.catch(() => {})
    write({ id: args.id, ok: (await Promise.race([result, interrupted])) ?? null })
  } catch (error) {
    write({ id: args.id, error: describe(error) })
  }
}

async function end() {
  await Promise.all([...clients.values()].map((one) => one.close()))
  process.exit(0)
}

process.on('SIGTERM', end)
createInterface({ input: process.stdin }).on('close', end).on('line', (line) => {
  const args = JSON.parse(line)
  if (args.do !== 'interrupt' && args.do !== 'go') return void run(args)
  running.get(args.of)[args.do]()
  write({ id: args.id, ok: null })
})
