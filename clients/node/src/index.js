// Leases for Node.js: see README.md.

import { randomUUID } from 'node:crypto'
import os from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Keeper, Kept, now, PATIENCE } from './keeper.js'
import {
  ask, ASSERT, Closed, LeaseLost, LeaseTaken, log, lostConnection, NOT_HELD, RELEASE, RELEASE_UNKNOWN, REQUEST, within,
} from './statements.js'

export { Closed, LeaseLost, LeaseTaken }

// Node.js 18 has no Symbol.asyncDispose before 18.18; compilers use the same fallback.
const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')

// A connection that breaks tells it twice: the call fails, too.
const ignore = () => {}

const newOwner = () => `${os.hostname()}:${process.pid}:${randomUUID()}`

function milliseconds(time, what) {
  if (typeof time !== 'number' || Number.isNaN(time)) throw new TypeError(`${what} must be milliseconds, not ${time}`)
  return time
}

// A lease that is held.
class Lease extends Kept {
  #leases

  constructor(leases, keeper, request, token, granted) {
    super(keeper, request, token, granted, request.onLost)
    this.#leases = leases
  }

  // False if it is not held any longer. What the server cannot be told ends with its time.
  async release() {
    const held = this.leave()
    if (!held && (this.why === null || this.keeper.closed)) return false
    const answer = await this.#leases._release(this)
    if (held && !answer) {
      this.held = true
      this.lose('the server says so')
    }
    return held && answer
  }

  async [asyncDispose]() {
    if (!this.held && this.why === null) return
    if (!(await this.release())) throw this.loss()
  }

  // Nobody else can be granted the lease before the transaction ends. It is rolled back if the lease is lost meanwhile.
  async transaction(work) {
    const client = await this.#begin()
    const cut = () => client.end().catch(() => {})
    this.signal.addEventListener('abort', cut)
    let failure
    try {
      this.check()
      const result = await work(client)
      this.check()
      this.signal.removeEventListener('abort', cut)
      const { command } = await client.query('COMMIT')
      if (command !== 'COMMIT') throw new Error('the transaction had failed, and was rolled back')
      return result
    } catch (error) {
      failure = error
      throw this.lost && !(error instanceof LeaseLost) ? this.loss(error) : error
    } finally {
      this.signal.removeEventListener('abort', cut)
      await this.#leases._giveBack(client, failure, this.lost)
    }
  }

  // On another connection if one breaks: nothing of the user's is in the transaction yet.
  async #begin() {
    for (;;) {
      this.check()
      const client = await this.#leases._take()
      try {
        await within(client, this.remaining() + 1, { text: 'BEGIN' })
        const [row] = await ask(client, ASSERT, [this], this.remaining(), 'SET LOCAL statement_timeout TO DEFAULT;')
        if (BigInt(row.token) !== this.token) {
          throw Object.assign(new Error('the owner has a later lease'), { code: NOT_HELD, severity: 'ERROR' })
        }
        return client
      } catch (error) {
        await this.#leases._giveBack(client, error)
        if (error.code === NOT_HELD) {
          this.lose('the server says so')
          throw this.loss(error)
        }
        if (!lostConnection(error)) throw error
      }
      await sleep(50)
    }
  }
}

export class Leases {
  #pool
  #ownPool = false
  #keeper
  #owner = newOwner() // shared by leases that are counted
  #waiting = new Set() // clients with a request under way

  constructor(source = {}) {
    if (typeof source === 'string') source = { connectionString: source }
    this.#ownPool = typeof source.connect !== 'function'
    this.#pool = this.#ownPool ? new pg.Pool({ fallback_application_name: 'lease-lock', keepAlive: true, max: 4, connectionTimeoutMillis: PATIENCE, ...source }) : source
    if (this.#ownPool) this.#pool.on('error', ignore)
    this.#keeper = new Keeper((limit, ended) => this.#connect(limit, ended))
  }

  async hold(resource, options = {}, work = undefined) {
    if (typeof options === 'function') return this.hold(resource, {}, options)
    const lease = await this.#acquire(this.#newRequest(resource, options))
    return work === undefined ? lease : this.#workUnder(lease, work)
  }

  async #workUnder(lease, work) {
    let result, failure
    try {
      result = await work(lease, lease.signal)
    } catch (error) {
      failure = { error }
    }
    const released = !lease.held && lease.why === null
    if (!released && !(await lease.release())) {
      throw failure?.error instanceof LeaseLost ? failure.error : lease.loss(failure?.error)
    }
    if (failure) throw failure.error
    return result
  }

  async tryHold(resource, options = {}) {
    try {
      return await this.hold(resource, { ...options, wait: 0 })
    } catch (error) {
      if (error instanceof LeaseTaken) return null
      throw error
    }
  }

  // Run run(lease, signal) whenever this is the leader, until it returns while it still is. undefined after close().
  async elect(resource, options, run) {
    const ttl = options.ttl ?? 10_000
    while (!this.#keeper.closed) {
      let lease
      try {
        lease = await this.hold(resource, { ...options, ttl, wait: ttl })
      } catch (error) {
        if (error instanceof Closed) return undefined
        if (error instanceof LeaseTaken) continue
        if (!lostConnection(error)) throw error
        log('%s', error.message)
        await sleep(1000)
        continue
      }
      try {
        return await this.#workUnder(lease, async () => {
          const result = await run(lease, lease.signal)
          lease.check()
          return result
        })
      } catch (error) {
        const another = lease.why === null && error.resource !== resource
        if (!(error instanceof LeaseLost) || another) throw error
        log('%s', error.message)
      }
    }
    return undefined
  }

  // A function that runs the job once in a period, whichever host calls it; else it resolves to undefined.
  once(name, { period, ...options }, job) {
    return async (...args) => {
      const lease = await this.tryHold(name, { ...options, ttl: period, minHold: period })
      if (lease === null) return undefined
      try {
        return await job(lease, lease.signal, ...args)
      } finally {
        await lease[asyncDispose]()
      }
    }
  }

  // Release what is held. Leaves no timer and no connection.
  async close() {
    const closed = this.#keeper.close()
    for (const client of this.#waiting) client.end().catch(() => {})
    await closed
    if (this.#ownPool && !this.#pool.ending) await this.#pool.end()
  }

  async [asyncDispose]() {
    await this.close()
  }

  #newRequest(resource, options) {
    const { ttl = 30_000, wait = 0, mode = 'exclusive', permits, minHold, lockDelay, payload, ifOwn = 'refuse' } = options
    if (milliseconds(ttl, 'ttl') <= 0) throw new RangeError(`ttl must be more than zero, not ${ttl}`)
    for (const [what, time] of Object.entries({ wait: wait ?? 0, minHold: minHold ?? 0, lockDelay: lockDelay ?? 0 })) {
      milliseconds(time, what)
    }
    return {
      resource, ttl, mode, permits, minHold, lockDelay, payload, ifOwn, onLost: options.onLost,
      wait: wait === null ? Infinity : wait,
      owner: options.owner ?? (ifOwn === 'count' ? this.#owner : newOwner()),
      // Nobody else uses the owner, so the request can be repeated.
      ownOwner: options.owner === undefined && ifOwn !== 'count',
    }
  }

  // If a connection breaks after the request was sent, nobody knows whether it was granted. Then it is repeated, and a
  // lease that the same owner has already is the answer.
  async #acquire(request) {
    const giveUp = now() + request.wait
    let unanswered = false
    for (;;) {
      const repeated = unanswered
      try {
        if (this.#keeper.closed) throw new Closed()
        const client = await this._take()
        unanswered = true
        const sent = now()
        const left = Math.max(0, giveUp - sent)
        const { ttl, ownOwner } = request
        const ifOwn = repeated ? 'renew' : request.ifOwn
        const [row] = await this.#run(client, () =>
          ask(client, REQUEST, [{ ...request, ifOwn, wait: left === Infinity ? null : left }], left + PATIENCE), true)
        if (row.granted !== 't') {
          if (repeated) await this.#forget(request)
          throw new LeaseTaken(request.resource, row)
        }
        const granted = sent + Number(row.waited)
        // A grant that took so long that it is nearly over is asked for again.
        if (repeated || !ownOwner || now() < granted + ttl / 2) {
          return await this.#keep(new Lease(this, this.#keeper, request, BigInt(row.token), granted))
        }
      } catch (error) {
        if (error instanceof LeaseTaken || error instanceof Closed) throw error
        const broken = unanswered && lostConnection(error)
        if (this.#keeper.closed || !broken || !request.ownOwner || now() >= giveUp + PATIENCE) {
          if (broken && request.ownOwner) await this.#forget(request)
          throw this.#keeper.closed ? new Closed({ cause: error }) : error
        }
        await sleep(50)
      }
    }
  }

  async #keep(lease) {
    if (this.#keeper.closed) {
      await lease.release()
      throw new Closed()
    }
    this.#keeper.add(lease)
    return lease
  }

  // Twice at most: the first connection may have broken long ago, or after the release.
  async _release(lease) {
    for (const repeated of [false, true]) {
      try {
        const client = await this._take()
        const [row] = await this.#run(client, () => ask(client, RELEASE, [lease], PATIENCE))
        return row.held === 't' || repeated
      } catch (error) {
        if (repeated || !lostConnection(error)) {
          log('could not release lease on "%s": %s', lease.resource, error.message)
          return true
        }
      }
    }
  }

  // Release what a request may have been granted, whose answer nobody waits for any longer.
  async #forget({ resource, owner }) {
    try {
      const client = await this._take()
      await this.#run(client, () => ask(client, RELEASE_UNKNOWN, [{ resource, owner }], PATIENCE))
    } catch (error) {
      log('could not release lease on "%s": %s', resource, error.message)
    }
  }

  // A call on a client of the pool, which goes back afterwards. close() cuts off a request.
  async #run(client, call, request = false) {
    if (request) this.#waiting.add(client)
    let failure
    try {
      return await call()
    } catch (error) {
      failure = error
      throw error
    } finally {
      this.#waiting.delete(client)
      this.#return(client, failure !== undefined && lostConnection(failure))
    }
  }

  // A client of the pool, in time. One that comes later goes back.
  async _take() {
    const connecting = this.#pool.connect().then((client) => client.on('error', ignore))
    const timeout = new AbortController()
    const late = sleep(PATIENCE, null, { signal: timeout.signal }).then(() => { throw new Error('no connection in time') })
    try {
      return await Promise.race([connecting, late])
    } catch (error) {
      connecting.then((client) => this.#return(client), () => {})
      throw error
    } finally {
      late.catch(() => {})
      timeout.abort()
    }
  }

  async _giveBack(client, failure, broken = false) {
    let destroy = broken
    if (failure !== undefined && !destroy) {
      await within(client, PATIENCE, { text: 'ROLLBACK' }).catch(() => { destroy = true })
    }
    this.#return(client, destroy)
  }

  #return(client, destroy = false) {
    client.removeListener('error', ignore)
    client.release(destroy)
  }

  // The connection of renewals: it has the pool's options.
  async #connect(limit, ended) {
    const { options } = this.#pool
    const Client = options.Client ?? pg.Client
    const client = new Client({
      ...options, password: options.password, ssl: options.ssl, connectionTimeoutMillis: Math.max(1, Math.ceil(limit)),
      keepAlive: true,
    })
    client.on('error', () => ended(client))
    client.on('end', () => ended(client))
    await client.connect()
    return client
  }
}
