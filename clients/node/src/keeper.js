// Keeps leases alive, and tells in time when one is lost.
//
// The holder must stop before anybody else can be granted the lease. So the end of a lease is counted here, from before
// the request was sent. One timer serves all leases: it never waits for a call. It aborts the signal of a lease while a
// sixth of the ttl is left, and starts renewals, which have a connection of their own: one statement for all leases that
// have used a third of their ttl.

import os from 'node:os'
import { ask, LeaseLost, log, lostConnection, RELEASE, RENEW } from './statements.js'

// Longest time to wait for the server where neither a wait nor the end of a lease sets a limit.
export const PATIENCE = 5000

// Parts of the ttl: when to renew, what else is renewed with it, what a try may take, and what is left to stop.
export const RENEW_AT = 1 / 3
const TOGETHER = 1 / 12
const TRY = 1 / 6
const MARGIN = 1 / 6

// Timers stop in suspend, our clock does not, where the system says how long it was: look at it at least this often.
const TICK = 1000

// process.hrtime is CLOCK_MONOTONIC, which stops in suspend. On Linux os.uptime() goes on, in steps of 10 ms, so that
// what it is ahead is the time of suspends.
let suspended = 0

export function now() {
  const running = Number(process.hrtime.bigint()) / 1e6
  if (process.platform === 'linux') suspended = Math.max(suspended, os.uptime() * 1000 - running)
  return running + suspended
}

export class Keeper {
  #connect // opens the connection of renewals, within a time
  #client = null
  #renewing = null
  #timer = null
  leases = new Set()
  closed = false

  constructor(connect) {
    this.#connect = connect
  }

  add(lease) {
    this.leases.add(lease)
    this.#look()
  }

  // The timer's work: nothing here waits.
  #look() {
    clearTimeout(this.#timer)
    this.#timer = null
    const time = now()
    for (const lease of this.leases) {
      if (lease.deadline <= time) lease.lose('it was not renewed in time')
    }
    if (this.closed || this.leases.size === 0) return
    const all = [...this.leases]
    if (this.#renewing === null && all.some((lease) => lease.renewAt <= time)) {
      const batch = all.filter((lease) => lease.renewAt - lease.ttl * TOGETHER <= time)
      this.#renewing = this.#renewBatch(batch).finally(() => {
        this.#renewing = null
        this.#look()
      })
    }
    const next = all.map((lease) => (this.#renewing ? lease.deadline : Math.min(lease.deadline, lease.renewAt)))
    this.#timer = setTimeout(() => this.#look(), Math.max(1, Math.min(TICK, Math.min(...next) - time)))
  }

  async #renewBatch(batch) {
    await this.#renew(batch.filter((lease) => !lease.alone))
    for (const lease of batch.filter((one) => one.alone)) await this.#renew([lease])
  }

  async #renew(leases) {
    const group = leases.filter((lease) => lease.held)
    if (group.length === 0 || this.closed) return
    const ttl = Math.min(...group.map((lease) => lease.ttl))
    const limit = Math.min(ttl * TRY, PATIENCE, Math.max(1, Math.min(...group.map((lease) => lease.remaining()))))
    const sent = now()
    try {
      const answers = await this.#ask(RENEW, group, limit, `SET LOCAL lock_timeout = ${Math.ceil(limit / 16)};`)
      group.forEach((lease, n) => {
        if (!answers[n]) lease.lose('the server says so')
        else if (lease.held) lease.extend(sent)
      })
    } catch (error) {
      log('could not renew %d leases, the first of them on "%s": %s', group.length, group[0].resource, error.message)
      await this.#renewalFailed(group, error)
    }
  }

  // One lease can make a renewal of many fail: somebody has locked its row. Find it; the others must not suffer.
  async #renewalFailed(group, error) {
    if (this.#client === null || lostConnection(error)) {
      this.#drop()
    } else if (group.length > 1) {
      const size = Math.floor(Math.sqrt(group.length))
      for (let start = 0; start < group.length; start += size) await this.#renew(group.slice(start, start + size))
      return
    } else {
      group[0].alone = true
    }
    for (const lease of group) lease.renewAt = now() + Math.min(lease.ttl / 30, 1000)
  }

  // One statement on the connection of renewals; the answers are in the order of the leases.
  async #ask(statement, leases, limit, settings) {
    // The limit counts twice: a connection that took long to open must not be thrown away unused.
    this.#client ??= await this.#connect(limit, (client) => client === this.#client && this.#drop())
    const list = leases.map(({ resource, owner, token, ttl }, n) => ({ n, resource, owner, token, ttl }))
    const rows = await ask(this.#client, statement, list, limit, settings)
    return rows.sort((a, b) => a.n - b.n).map((row) => row.held === 't')
  }

  #drop() {
    const client = this.#client
    this.#client = null
    client?.end().catch(() => {})
  }

  // Release what is held. Holders that are still at work must stop first.
  async close() {
    this.closed = true
    clearTimeout(this.#timer)
    const rest = [...this.leases]
    for (const lease of rest) lease.lose('leases were closed', false)
    await this.#renewing
    try {
      if (rest.length > 0) await this.#ask(RELEASE, rest, PATIENCE)
    } catch (error) {
      log('could not release %d leases: %s', rest.length, error.message)
    }
    const client = this.#client
    this.#client = null
    await client?.end().catch(() => {})
  }
}

// What all leases have in common: their time.
export class Kept {
  #controller = new AbortController()
  #why = null
  #onLost

  constructor(keeper, request, token, granted, onLost) {
    this.keeper = keeper
    this.resource = request.resource
    this.owner = request.owner
    this.mode = request.mode
    this.token = token
    this.ttl = request.ttl
    this.held = true
    this.alone = false
    this.#onLost = onLost
    this.extend(granted)
  }

  extend(sent) {
    this.deadline = sent + this.ttl * (1 - MARGIN)
    this.renewAt = sent + this.ttl * RENEW_AT
    this.alone = false
  }

  get signal() {
    return this.#controller.signal
  }

  get lost() {
    return this.signal.aborted
  }

  remaining() {
    return this.held ? Math.max(0, this.deadline - now()) : 0
  }

  check() {
    if (this.remaining() <= 0) throw this.loss()
  }

  // The reason is null as long as the lease is held, and after a release.
  get why() {
    return this.#why
  }

  loss(cause) {
    const reason = this.#why ?? (this.held ? 'its time is over' : 'it was released')
    return new LeaseLost(this.resource, reason, cause === undefined ? undefined : { cause })
  }

  // Stop renewing it. False if it is lost, or was released before.
  leave() {
    this.keeper.leases.delete(this)
    const held = this.held
    this.held = false
    return held
  }

  lose(why, callBack = true) {
    if (!this.held) return
    this.leave()
    this.#why = why
    this.#controller.abort(this.loss())
    if (callBack && this.#onLost) queueMicrotask(() => this.#onLost(this))
  }
}
