// Keeps leases alive, ends them, and tells in time when one is lost.
//
// The holder must stop before anybody else can be granted the lease. So the end of a lease is counted here, from before
// the request was sent. One timer serves all leases: it never waits for a call. It aborts the signal of a lease in time,
// and starts what is to be sent to the server.
//
// All that keeps or ends a lease goes over one connection, in turn, renewals first. So nothing may wait there: a
// statement that meets a lock fails at once and is sent again, and one that gets no answer is given up after a part of
// the shortest ttl. Whoever ends a lease hands that over, and need not stay: the keeper goes on until the server has
// answered, or the lease is over.

import { setMaxListeners } from 'node:events'
import { now, PATIENCE } from './clock.js'
import { actionAfter, Closed, LeaseLost, MOVED, OutcomeUnknown, Unconfirmed } from './errors.js'
import { endStatement, renewStatement } from './statements.js'

// Parts of the time until a lease is given up: when to renew, what else is renewed with it. Part of the ttl: how long a
// statement may take. With the usual margin of a sixth of the ttl, a lease is renewed after a third of it.
const RENEW_AT = 2 / 5
const TOGETHER = 1 / 10
const TRY = 1 / 6
export const MARGIN = 1 / 6

// No statement has less time than this, so that one lease with a short ttl does not starve all others.
const LEAST = 250

// Timers stop in suspend, our clock does not, where the system says how long it was: look at it at least this often.
const TICK = 1000
const REST = 10_000

// How long an end may wait for a lock, how many ends go together, and how long the server can still work on a request
// that was abandoned: its process may not have noticed yet that the connection, perhaps that of a proxy, was closed.
const LOCK = 50
const BATCH = 100
const LINGER = 1500

// How many statements of one batch may fail because of one row: it is halved by roots.
const part = (items) => Math.max(1, Math.floor(Math.sqrt(items.length)))

export class Keeper {
  #open
  #spare
  #report
  #link = null
  #working = null
  #timer = null
  #closed = false
  #alone = false // nobody waits for what it does
  #rows = new Map() // of counted leases
  leases = new Set()
  ends = new Set()

  // `open` makes a connection within a time; `spare` finds one that nobody uses; `report` tells of trouble, once, until it
  // is told that it is over.
  constructor(open, spare, report) {
    this.#open = open
    this.#spare = spare
    this.#report = report
  }

  get unsettled() {
    return [...this.ends].filter((ending) => !ending.settled)
  }

  // It takes the connection that it was granted on, unless there is one: the first renewal must not fail for want of
  // another.
  add(lease) {
    if (this.#working === null) this.#link ??= this.#spare()
    this.leases.add(lease)
    this.#look()
  }

  // Holds of a counted lease are one row at the server, which lasts as long as any of them.
  joinRow(lease) {
    if (lease.ifOwn !== 'count') return
    for (const [key, row] of this.#rows) if (row.over <= now()) this.#rows.delete(key)
    const key = JSON.stringify([lease.resource, lease.owner, String(lease.token)])
    this.#rows.set(key, lease.join(this.#rows.get(key)))
  }

  end(ending) {
    this.ends.add(ending)
    this.#look()
    return ending
  }

  // Others of its owner may keep the lease at the server: there, the hold ends as well, at its end or with its holder.
  #expire(lease) {
    lease.lose('expired')
    if (lease.ifOwn !== 'count') return
    lease.ending = new Ending(lease)
    lease.ending.nextAt = lease.over
    this.ends.add(lease.ending)
  }

  endNow(ending) {
    ending.nextAt = Math.min(ending.nextAt, now())
    this.#look()
  }

  // The timer's work: nothing here waits.
  #look() {
    clearTimeout(this.#timer)
    this.#timer = null
    const time = now()
    for (const lease of this.leases) {
      if (lease.deadline <= time) this.#expire(lease)
      if (!lease.held) this.leases.delete(lease)
    }
    for (const ending of this.ends) {
      if (ending.until <= time) ending.settle('over')
      if (ending.settled) this.ends.delete(ending)
    }
    if (this.#closed) return
    if (this.leases.size + this.ends.size === 0) return this.#rest()
    if (this.#working === null && this.#isDue(time)) {
      this.#working = this.#work().finally(() => {
        this.#working = null
        this.#look()
      })
    }
    this.#timer = setTimeout(() => this.#look(), Math.max(1, this.#nextLook() - now()))
    if (this.#alone) this.#timer.unref()
  }

  // The connection of a keeper without leases does not stay for long.
  #rest() {
    if (this.#alone) return void this.close()
    if (this.#link === null) return
    this.#timer = setTimeout(() => {
      this.#link?.end()
      this.#link = null
    }, REST)
    this.#timer.unref()
  }

  // Nobody waits any more for what is still to be ended. It does not keep the process alive.
  goOnAlone() {
    this.#alone = true
    this.#look()
  }

  #isDue(time) {
    return [...this.leases].some((lease) => lease.renewAt <= time) || [...this.ends].some((ending) => ending.nextAt <= time)
  }

  #nextLook() {
    let next = now() + TICK
    for (const lease of this.leases) next = Math.min(next, lease.deadline, this.#working ? next : lease.renewAt)
    for (const ending of this.ends) next = Math.min(next, ending.until, this.#working ? next : ending.nextAt)
    return next
  }

  async #work() {
    for (;;) {
      await this.#renewDue()
      const due = [...this.ends].filter((ending) => !ending.settled && ending.nextAt <= now() && ending.until > now())
      if (due.length === 0 || this.#closed) return
      const batch = due.slice(0, BATCH)
      await this.#send(batch.filter((one) => !one.alone), (group) => this.#endGroup(group))
      for (const one of batch.filter((other) => other.alone)) await this.#send([one], (group) => this.#endGroup(group))
      for (const ending of batch) if (ending.settled) this.ends.delete(ending)
    }
  }

  async #renewDue() {
    const time = now()
    if (this.#closed || ![...this.leases].some((lease) => lease.renewAt <= time)) return
    const batch = [...this.leases].filter((lease) => lease.renewAt - lease.life * TOGETHER <= time)
    await this.#send(batch.filter((one) => !one.alone), (group) => this.#renewGroup(group))
    for (const one of batch.filter((other) => other.alone)) await this.#send([one], (group) => this.#renewGroup(group))
  }

  // One lease can make the statement of many fail: somebody has locked its row. Find it; the others must not suffer.
  async #send(items, send) {
    const group = items.filter((item) => item.isWanted)
    if (group.length === 0 || this.#closed) return
    try {
      await send(group)
      this.#report.over('keeper')
    } catch (error) {
      if (!this.#link?.alive || actionAfter(error) === 'unknown') this.#drop()
      if (this.#link === null || group.length === 1) {
        this.#failed(group, error)
      } else {
        for (let start = 0; start < group.length; start += part(group)) {
          await this.#send(group.slice(start, start + part(group)), send)
        }
      }
    }
  }

  #failed(group, error) {
    // A lock is nothing to complain of: somebody has asserted the lease.
    if (error.code !== '55P03') {
      const rest = group.length === 1 ? '' : ` and ${group.length - 1} others`
      this.#report('keeper', `could not renew or release the lease on "${group[0].resource}"${rest}`, error)
    }
    for (const item of group) {
      item.alone = this.#link !== null
      item.failed(error)
    }
  }

  // Longest time for a statement, so that all leases can still be renewed after it.
  #limit() {
    let limit = PATIENCE
    for (const lease of this.leases) limit = Math.min(limit, lease.ttl * TRY)
    return Math.max(limit, LEAST)
  }

  async #renewGroup(group) {
    const left = Math.min(...group.map((lease) => lease.remaining()))
    const limit = Math.max(1, Math.min(this.#limit(), left))
    let sent
    try {
      const rows = await this.#ask(limit, (place) => {
        sent = now()
        return renewStatement(place, group, limit, limit / 16)
      })
      group.forEach((lease, n) => lease.answered(rows[n], sent))
    } finally {
      for (const lease of group) if (lease.renews) lease.mayLastUntil(now() + lease.ttl)
    }
  }

  async #endGroup(group) {
    await this.#renewDue()
    const ends = group.filter((ending) => ending.isWanted)
    if (ends.length === 0) return
    let rows
    try {
      rows = await this.#ask(this.#limit(), (place) => endStatement(place, ends, this.#limit(), LOCK))
    } catch (error) {
      // It is released here. If a failover brings it back, it expires.
      if (!(error instanceof Unconfirmed)) throw error
      rows = byNumber(error.rows)
    }
    ends.forEach((ending, n) => ending.answered(rows[n].held))
  }

  // One statement; the answers are in the order of the leases. To open a connection may take half of the time that is
  // left: one that took long must not be thrown away unused.
  async #ask(limit, statement) {
    let left = 2 * PATIENCE
    for (const lease of this.leases) left = Math.min(left, lease.remaining())
    this.#link ??= await this.#open(Math.max(LEAST, left / 2))
    return byNumber(await this.#link.ask(statement(this.#link.place), limit))
  }

  #drop() {
    this.#link?.cut()
    this.#link = null
  }

  // Stop. What has no answer yet will have none.
  async close() {
    this.#closed = true
    clearTimeout(this.#timer)
    if (this.#working) this.#link?.cut()
    await this.#working
    await this.#link?.end() // it may have been opened meanwhile
    this.#link = null
  }
}

const byNumber = (rows) => [...rows].sort((a, b) => a.n - b.n)

// A lease that is held, and its time.
export class Kept {
  #controller = new AbortController()
  #hooks
  held = true
  reason = null // why it is not held
  alone = false
  contended = null
  onLost = null
  doubtful = false // a request with the same owner got no answer
  ending = null // once the keeper has been told to end it
  givesBack = true // at its end it is not kept for its minHold: nobody has worked, or the work has not succeeded
  over = 0 // when it has certainly ended at the server, but for other holds of its owner
  row = { over: 0 } // when they have, too
  told = null // the lease, if somebody is told of its loss: it is in use even if nobody refers to it

  constructor(request, token, granted, hooks) {
    this.resource = request.resource
    this.owner = request.owner
    this.mode = request.mode
    this.permits = request.permits
    this.ifOwn = request.ifOwn
    this.minHold = request.minHold
    this.token = token
    this.ttl = request.ttl
    this.renews = request.renews
    this.ownOwner = request.ownOwner
    this.life = request.ttl - request.stopBefore
    this.mayLastUntil(now() + request.ttl)
    this.#hooks = hooks
    setMaxListeners(0, this.signal) // each transaction listens
    this.#extend(granted)
  }

  #extend(sent) {
    if (this.renews || this.deadline === undefined) this.deadline = sent + this.life
    this.renewAt = sent + this.life * RENEW_AT
    this.alone = false
  }

  mayLastUntil(time) {
    this.over = Math.max(this.over, time)
    this.row.over = Math.max(this.row.over, time)
  }

  join(row = this.row) {
    this.row = row
    this.mayLastUntil(this.over)
    return row
  }

  get isWanted() {
    return this.held
  }

  get signal() {
    return this.#controller.signal
  }

  remaining() {
    return this.held ? Math.max(0, this.deadline - now()) : 0
  }

  answered({ held, contended, taken }, sent) {
    if (held !== 't') return this.lose(taken === 't' ? 'taken_over' : 'broken')
    if (!this.held) return
    this.#extend(sent)
    this.contended = contended === null ? null : contended === 't'
    this.#hooks('renewed', this)
  }

  failed() {
    this.renewAt = now() + Math.min(this.ttl / 30, 1000)
  }

  // By its caller, who works from now on; not after close(), which has given it back.
  take(givesBack) {
    this.givesBack = givesBack
    if (this.reason === 'closed') throw new Closed()
  }

  // False if it is lost, or was released before.
  leave() {
    const { held } = this
    this.held = false
    this.told = null
    if (held) this.reason = 'released'
    return held
  }

  lose(reason) {
    if (!this.held) return
    this.held = false
    this.reason = reason
    this.told = null
    const loss = new LeaseLost(this.resource, reason)
    this.#controller.abort(loss)
    if (reason !== 'closed' && this.onLost) queueMicrotask(this.onLost)
    this.#hooks('lost', this, loss)
  }

  // The server says after a release that it was not held; or it was over before the release was answered.
  wasLost(reason) {
    this.held = true
    this.lose(reason)
  }
}

// What is to be told to the server until it has answered: that a lease ends, or that nobody waits for a request.
export class Ending {
  #pause = 25
  #sure // a request that was abandoned cannot arrive any more
  #copies // requests without an answer
  #until
  #settle
  #moved = false // the functions were not where they had been
  alone = false
  repeated = false
  settled = false
  nextAt = 0

  // Of a lease that is kept, or of what a request may have been granted; that is over at a time. A hold of several is
  // never kept for its minHold.
  constructor(lease, { until = null, givesBack = true, abandoned = null } = {}) {
    this.lease = lease
    this.resource = lease.resource
    this.owner = lease.owner
    this.token = (abandoned ? null : lease.token) ?? null
    this.ownOwner = lease.ownOwner
    this.#until = until
    this.givesBack = givesBack && lease.minHold !== undefined && lease.minHold !== null && lease.ifOwn !== 'count'
    if (abandoned !== null) {
      this.#copies = abandoned.copies
      this.#sure = now() + LINGER
    }
    // True, false, 'over' if the lease has ended meanwhile, or an error.
    this.done = new Promise((resolve) => { this.#settle = resolve })
  }

  get isWanted() {
    return !this.settled
  }

  // Then it is over by itself. A renewal that is under way may still move that.
  get until() {
    return this.#until ?? this.lease.row.over
  }

  settle(result) {
    this.settled = true
    this.#settle(result)
  }

  answered(value) {
    if (value === null) return this.#later()
    const held = value === 't'
    if (this.#sure === undefined) return this.settle(held || this.repeated)
    if (held) this.#copies--
    if (this.#copies <= 0 || now() >= this.#sure) return this.settle(held)
    this.#later()
  }

  failed(error) {
    const action = actionAfter(error)
    if (action === 'not again' || (MOVED.has(error.code) && this.#moved)) return this.settle(error)
    this.#moved ||= MOVED.has(error.code)
    this.repeated ||= action === 'unknown'
    // Once more, it would end a hold of somebody else.
    if (this.repeated && !this.ownOwner) return this.settle(new OutcomeUnknown('the release', this.resource, { cause: error }))
    this.#later()
  }

  #later() {
    this.nextAt = now() + this.#pause
    this.#pause = Math.min(2 * this.#pause, 500)
  }
}
