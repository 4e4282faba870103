// Connections for lease statements. One factory makes them all, so that what acquires can also renew.

import pg from 'pg'
import { within } from './calls.js'
import { now, PATIENCE } from './clock.js'
import { LeaseError, markSent, needsNewConnection, Unconfirmed } from './errors.js'
import { warn } from './log.js'
import { PLACE } from './statements.js'

// How long an idle connection stays, how long one may take to say goodbye, and when the system asks a silent peer.
const IDLE = 10_000
const GOODBYE = 1000
const KEEP_ALIVE = 10_000

const ignore = () => {}

export const isPool = (source) => typeof source?.connect === 'function' && typeof source.query === 'function'

// A client that is not waited for any more: what it was doing fails at once.
export function cutClient(client) {
  client.connection?.stream?.destroy?.()
  Promise.resolve(client.end()).catch(ignore)
}

// What a pool does with its clients, and we cannot repeat with ours.
function hookOf(pool) {
  if (pool.options === undefined) return 'no options'
  if (pool.options.onConnect) return 'onConnect'
  if (pool.options.verify) return 'verify'
  const event = ['connect', 'acquire'].find((name) => pool.listenerCount?.(name) > 0)
  return event && `a listener of '${event}'`
}

export class Factory {
  #source
  #connect // the user's function
  #schema
  #warned = false
  schema = null // where the functions were last, as an identifier

  constructor(source, { connect = undefined, schema = undefined } = {}) {
    if (typeof source === 'function') [connect, source] = [source, undefined]
    if (connect !== undefined && typeof connect !== 'function') throw new TypeError('connect must be a function')
    if (source instanceof pg.Client) throw new TypeError('a client is not a source of connections: pass its options')
    if (source?.pool !== undefined) throw new TypeError('the pool is the source itself, or an option beside it')
    this.#source = typeof source === 'string' ? { connectionString: source } : (source ?? {})
    this.#connect = connect
    this.#schema = schema
    if (!connect) this.#refuseHooks()
  }

  #refuseHooks() {
    const hook = isPool(this.#source) && hookOf(this.#source)
    if (!hook) return
    throw new TypeError(`the pool has ${hook}, so its options do not say how to connect: ` +
      'pass { connect }, a function that resolves to a connected client')
  }

  // A hook that comes later is only a warning: it may be one that watches, as OpenTelemetry adds it at the first
  // pool.connect(), and leases that are held must be renewed.
  #warnOfHooks() {
    const hook = !this.#warned && hookOf(this.#source)
    if (!hook) return
    this.#warned = true
    warn(`the pool has ${hook} now, which connections for leases do not heed: if it sets them up, pass { connect }`)
  }

  #config() {
    if (!isPool(this.#source)) return this.#source
    this.#warnOfHooks()
    // A pool hides the password from those who copy its options.
    const { options } = this.#source
    return { ...options, password: options.password, ssl: options.ssl }
  }

  // Of the user's function nothing is known but what it resolves to.
  #begin(limit) {
    if (this.#connect) {
      const connecting = Promise.resolve().then(this.#connect)
      return { connecting, giveUp: () => connecting.then(cutClient, ignore) }
    }
    const config = this.#config()
    const Client = config.Client ?? this.#source.Client ?? pg.Client
    const client = new Client({
      fallback_application_name: 'lease-lock', keepAlive: true, keepAliveInitialDelayMillis: KEEP_ALIVE, ...config,
      connectionTimeoutMillis: Math.max(1, Math.ceil(limit)),
    })
    client.on('error', ignore)
    return { connecting: Promise.resolve(client.connect()).then(() => client), giveUp: () => cutClient(client) }
  }

  // A connection within the time. One that comes later is ended.
  async open(limit, signal) {
    const until = now() + limit
    signal?.throwIfAborted()
    const { connecting, giveUp } = this.#begin(limit)
    let client
    try {
      client = await within(connecting, limit, () => new Error('no connection in time'), signal)
    } catch (error) {
      giveUp()
      throw error ?? new Error('connect() was rejected without a reason')
    }
    if (typeof client?.query !== 'function') throw new TypeError('connect() must resolve to a connected client')
    const link = new Link(client)
    try {
      await within(link.look(this.#schema, Math.max(1, until - now())), Infinity, null, signal)
      this.schema = link.place.schema
      return link
    } catch (error) {
      link.cut()
      throw error
    }
  }
}

// One connection, with one statement at a time.
export class Link {
  alive = true
  wasIdle = false
  place = null // where the functions are
  #unconfirmed = false

  constructor(client) {
    this.client = client
    const ended = () => { this.alive = false }
    client.on('error', ended)
    client.on('end', ended)
    client.on('notice', ({ routine }) => { this.#unconfirmed ||= routine === 'SyncRepWaitForLSN' })
    this.#stream()?.setKeepAlive?.(true, KEEP_ALIVE)
    // It would make a client forget a query that the server still works on.
    if (client.connectionParameters) client.connectionParameters.query_timeout = 0
    this.unref()
  }

  #stream() {
    return this.client.connection?.stream
  }

  // Only a connection in use keeps the process alive.
  ref() {
    this.#stream()?.ref?.()
  }

  unref() {
    this.#stream()?.unref?.()
  }

  async look(schema, limit) {
    const [found] = await this.#query(PLACE, limit)
    if (found.extension === null && schema === undefined) {
      throw new LeaseError('the extension lease_lock is not in this database, and no schema is named', null, 'not installed')
    }
    if (found.extension !== null && schema !== undefined) {
      const text = `the schema "${schema}" is named, but the extension lease_lock is there, in "${found.extension}"`
      throw new LeaseError(text, null, 'two schemas')
    }
    this.place = {
      schema: pg.escapeIdentifier(found.extension ?? schema),
      extension: found.extension !== null,
      version: Number(found.version),
      linux: found.linux !== '0',
    }
  }

  // A statement for a lease. If it fails after it was sent, that can be told by the error.
  async ask(text, limit) {
    if (!this.alive) throw new Error('the connection has ended')
    return this.#query(text, limit).catch((error) => { throw markSent(error) })
  }

  // Rows of the last statement, all values as text. If there is no answer in time, the connection is cut.
  async #query(text, limit) {
    this.#unconfirmed = false
    this.ref()
    let results
    try {
      const answer = Promise.resolve(this.client.query({ text, types: { getTypeParser: () => String } }))
      results = await within(answer, limit, () => {
        this.cut()
        return new Error('no answer in time')
      })
    } catch (error) {
      if (needsNewConnection(error)) this.alive = false
      throw error
    } finally {
      this.unref()
    }
    const { rows } = [results].flat().at(-1)
    if (this.#unconfirmed) throw new Unconfirmed(rows)
    return rows
  }

  // Say that nobody waits any more, but listen for the answer that may be on its way.
  hangUp() {
    this.alive = false
    if (this.#stream()?.end) this.#stream().end()
    else this.cut()
  }

  cut() {
    this.alive = false
    cutClient(this.client)
  }

  async end() {
    if (!this.alive) return this.cut()
    this.alive = false
    const ended = Promise.resolve(this.client.end()).catch(ignore)
    await within(ended, GOODBYE, () => new Error('no goodbye')).catch(() => this.cut())
  }
}

// At most so many connections, used again while they are fresh. Who finds none waits in turn.
export class Links {
  #factory
  #max
  #used = new Set()
  #idle = new Map() // to the timer that ends it
  #queue = []
  #opening = 0
  closed = false

  constructor(factory, max) {
    this.#factory = factory
    this.#max = max
  }

  get busy() {
    return this.#used.size + this.#opening
  }

  // Undefined if all are in use until `turn` is over. The limit is for all of it, the turn included.
  async take(limit, turn, signal) {
    const until = now() + limit
    if (this.busy < this.#max && this.#queue.length === 0) this.#opening++
    else if (!(await this.#turn(turn, signal))) return undefined
    try {
      const link = this.fresh() ?? (await this.#factory.open(Math.max(1, Math.min(PATIENCE, until - now())), signal))
      this.#used.add(link)
      if (this.closed) link.cut()
      return link
    } finally {
      this.#opening--
      this.#next()
    }
  }

  // Whoever is called is counted at once, so that nobody comes between.
  async #turn(limit, signal) {
    let called
    const turn = new Promise((resolve) => { called = resolve })
    this.#queue.push(called)
    try {
      await within(turn, limit, () => new Error('all connections are in use'), signal)
      return true
    } catch {
      if (this.#queue.includes(called)) {
        this.#queue = this.#queue.filter((other) => other !== called)
      } else {
        this.#opening--
        this.#next()
      }
      signal?.throwIfAborted()
      return false
    }
  }

  #next() {
    if (this.busy >= this.#max || this.#queue.length === 0) return
    this.#opening++
    this.#queue.shift()()
  }

  // An idle one that knows where the functions are; undefined if there is none.
  fresh() {
    for (const [link, timer] of [...this.#idle].reverse()) {
      clearTimeout(timer)
      this.#idle.delete(link)
      if (link.alive && link.place.schema === this.#factory.schema) return link
      link.end()
    }
    return undefined
  }

  give(link) {
    this.#used.delete(link)
    if (this.closed || !link.alive) {
      link.end()
    } else {
      const timer = setTimeout(() => { this.#idle.delete(link); link.end() }, IDLE)
      timer.unref()
      link.wasIdle = true
      this.#idle.set(link, timer)
    }
    this.#next()
  }

  // After one connection has turned out to be silent, the idle ones are not trusted either.
  async clear() {
    const links = [...this.#idle.keys()]
    for (const timer of this.#idle.values()) clearTimeout(timer)
    this.#idle.clear()
    await Promise.all(links.map((link) => link.end()))
  }

  async close() {
    this.closed = true
    for (const link of this.#used) link.cut()
    await this.clear()
  }
}
