// Leases for Node.js: see README.md.

import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import os from 'node:os'
import { Call, pause, within } from './calls.js'
import { now } from './clock.js'
import { Factory, isPool, Links } from './connect.js'
import { Closed, LeaseError, LeaseLost, LeaseTaken, OutcomeUnknown } from './errors.js'
import { Ending, Keeper, MARGIN } from './keeper.js'
import { asyncDispose, Lease } from './lease.js'
import { hooksOf, reporter } from './log.js'
import { Requests } from './requests.js'

export { Closed, LeaseError, LeaseLost, LeaseTaken, OutcomeUnknown }

const MAX_TRANSACTIONS = 10
const STAND_AGAIN = 1000
const OPTIONS = new Set([
  'ttl', 'wait', 'stopBefore', 'renew', 'mode', 'permits', 'minHold', 'payload', 'ifOwn', 'owner', 'onLost', 'signal',
])

const nullIfTaken = (error) => {
  if (error instanceof LeaseTaken) return null
  throw error
}

const newOwner = () => `${os.hostname()}:${process.pid}:${randomUUID()}`

// What all leases of a Leases share. It does not refer to that, so that one that nobody closed is noticed.
class Core {
  #closing = new AbortController()
  #stopped = new AbortController()
  #pool
  #transactions = null
  used = false

  constructor(source, { connect = undefined, pool = undefined, schema = undefined, hooks = undefined }) {
    this.#pool = pool ?? (isPool(source) ? source : null)
    this.factory = new Factory(source, { connect, schema })
    this.hooks = hooksOf(hooks)
    this.report = reporter()
    const spare = () => this.requests.spare()
    this.keeper = new Keeper((limit) => this.factory.open(limit, this.#stopped.signal), spare, this.report)
    this.requests = new Requests(this)
    setMaxListeners(0, this.#closing.signal)
    if (this.#pool === null) this.#transactions = new Links(this.factory, MAX_TRANSACTIONS)
  }

  // The program closed it: no transaction will get a client again.
  get poolIsClosed() {
    return Boolean(this.#pool?.ending)
  }

  get closing() {
    return this.#closing.signal
  }

  // A client for a transaction, of the user's pool if there is one.
  async takeClient(limit, signal) {
    if (this.#pool === null) {
      const link = await this.#transactions.take(limit, limit, signal)
      if (!link) throw new Error('no connection in time')
      link.ref()
      return { client: link.client, release: (broken) => this.#giveBack(link, broken) }
    }
    const connecting = this.#pool.connect()
    try {
      const client = await within(connecting, limit, () => new Error('no connection in time'), signal)
      return { client, release: (broken) => client.release(broken) }
    } catch (error) {
      connecting.then((client) => client.release(), () => {})
      throw error
    }
  }

  #giveBack(link, broken) {
    link.unref()
    if (broken) link.cut()
    this.#transactions.give(link)
  }

  // Hands the end of a lease over to the keeper. Null if there is nothing to end.
  release(kept) {
    kept.leave()
    this.keeper.leases.delete(kept)
    const known = kept.reason === 'broken' || kept.reason === 'taken_over'
    if (kept.ending !== null) this.keeper.endNow(kept.ending)
    if (kept.ending !== null || known || kept.row.over <= now()) return null
    kept.ending = this.keeper.end(new Ending(kept, { givesBack: kept.givesBack }))
    if (kept.doubtful) kept.ending.done.then(() => this.forget(kept, { copies: Infinity }))
    return kept.ending
  }

  // Release what a request may have been granted, whose answer nobody waits for any longer.
  forget(request, abandoned) {
    const until = now() + request.ttl + Math.min(request.wait ?? 0, 3_600_000)
    this.keeper.end(new Ending(request, { until, abandoned }))
  }

  get counts() {
    return { leases: this.keeper.leases.size, ending: this.keeper.unsettled.length, waiting: this.requests.waits }
  }

  async close(timeout) {
    this.#closing.abort(new Closed())
    for (const kept of this.keeper.leases) {
      kept.lose('closed')
      this.release(kept)
    }
    for (const ending of this.keeper.ends) this.keeper.endNow(ending)
    await within(this.#settled(), timeout, () => new Error('not in time')).catch(() => {})
    const left = [...this.requests.unfinished, ...this.keeper.unsettled.map((ending) => ending.resource)]
    await Promise.all([this.requests.close(), this.#transactions?.close()])
    if (left.length === 0) {
      this.#stopped.abort(new Closed())
      await this.keeper.close()
    } else {
      // What has just been cut off may have been granted a lease: it is handed over first.
      this.requests.settled().then(() => this.keeper.goOnAlone())
    }
    return [...new Set(left)]
  }

  async #settled() {
    await this.requests.settled()
    while (this.keeper.unsettled.length > 0) await Promise.all(this.keeper.unsettled.map((ending) => ending.done))
  }
}

const abandoned = new FinalizationRegistry((core) => {
  if (core.used && !core.closing.aborted) process.emitWarning('leases were not closed', 'ResourceWarning')
})

export class Leases {
  #core
  #owner = newOwner() // shared by leases that are counted
  #closed = null

  constructor(source = {}, options = {}) {
    this.#core = new Core(source, options)
    abandoned.register(this, this.#core, this)
  }

  async hold(resource, options = {}, work = undefined) {
    if (typeof options === 'function') return this.hold(resource, {}, options)
    const lease = await this.#acquire(resource, options)
    return work === undefined ? lease : this.#workUnder(lease, () => work(lease, lease.signal))
  }

  async #acquire(resource, options, givesBack = false) {
    const request = this.#newRequest(resource, options)
    this.#core.used = true
    const kept = await this.#core.requests.acquire(request, options.signal)
    kept.take(givesBack)
    return new Lease(this.#core, kept, options.onLost)
  }

  async #workUnder(lease, work) {
    let result
    try {
      result = await work()
    } catch (error) {
      await lease._end().catch((loss) => { throw error instanceof LeaseLost ? error : lease._loss(error) })
      throw error
    }
    await lease._end()
    return result
  }

  async tryHold(resource, options = {}) {
    return this.hold(resource, { ...options, wait: 0 }).catch(nullIfTaken)
  }

  // Run run(lease, signal) whenever this is the leader, until it returns while it still is. undefined after close().
  async elect(resource, options, run) {
    for (;;) {
      let lease
      try {
        lease = await this.#stand(resource, { ttl: 10_000, ...options, wait: null })
      } catch (error) {
        if (error instanceof Closed) return undefined
        throw error
      }
      try {
        return await this.#workUnder(lease, async () => {
          const result = await run(lease, lease.signal)
          lease.check()
          return result
        })
      } catch (error) {
        if (!(error instanceof LeaseLost) || !lease.lost || error.resource !== resource) throw error
        if (error.reason === 'closed') return undefined
        this.#core.report.always('leader no more', error)
      }
    }
  }

  // Of an owner that others use, the outcome of a request can be unknown.
  async #stand(resource, options) {
    for (;;) {
      try {
        return await this.hold(resource, options)
      } catch (error) {
        if (!(error instanceof OutcomeUnknown)) throw error
        this.#core.report.always(`could not be elected on "${resource}"`, error)
      }
      const call = new Call(options.signal, this.#core.closing)
      await pause(STAND_AGAIN, call.signal).finally(() => call.end())
    }
  }

  // A function that runs the job once in a period, whichever host calls it; else it resolves to undefined.
  once(name, { period, retryFailed = false, ...options }, job) {
    const { ttl: given = 30_000 } = options
    // Of a string it would make a number, which nobody refuses.
    const ttl = typeof given === 'number' ? Math.min(period, given) : given
    return async (...args) => {
      const lease = await this.#acquire(name, { ...options, ttl, minHold: period, wait: 0 }, retryFailed).catch(nullIfTaken)
      if (lease === null) return undefined
      return this.#workUnder(lease, async () => {
        const result = await job(lease, lease.signal, ...args)
        lease._succeeded()
        return result
      })
    }
  }

  // How many leases are kept, ends are not done, and connections wait.
  get counts() {
    return this.#core.counts
  }

  // Release what is held. Leaves no timer and no connection. Resolves to the resources that could not be released in time.
  async close({ timeout = 10_000 } = {}) {
    abandoned.unregister(this)
    this.#closed ??= this.#core.close(timeout)
    return this.#closed
  }

  async [asyncDispose]() {
    await this.close()
  }

  #newRequest(resource, options) {
    for (const name of Object.keys(options)) if (!OPTIONS.has(name)) throw new TypeError(`unknown option ${name}`)
    const { ttl = 30_000, wait = 0, renew = true, mode = 'exclusive', permits, minHold, payload, ifOwn = 'refuse' } = options
    const { stopBefore = ttl * MARGIN } = options
    const times = { ttl, stopBefore, wait: wait ?? 0, minHold: minHold ?? 0 }
    for (const [what, time] of Object.entries(times)) {
      if (typeof time !== 'number' || !Number.isFinite(time)) throw new TypeError(`${what} must be milliseconds, not ${time}`)
      if (time < 0) throw new RangeError(`${what} must not be negative`)
    }
    if (typeof resource !== 'string') throw new TypeError('the resource must be a string')
    if (ttl <= 0) throw new RangeError('ttl must be more than zero')
    if (stopBefore >= ttl) throw new RangeError('stopBefore must be less than the ttl')
    return {
      resource, ttl, stopBefore, mode, permits, minHold, payload, ifOwn, renews: renew,
      wait: wait === null ? Infinity : wait,
      owner: options.owner ?? (ifOwn === 'count' ? this.#owner : newOwner()),
      // Nobody else uses the owner, so the request can be repeated.
      ownOwner: options.owner === undefined && ifOwn !== 'count',
    }
  }
}
