// How a lease is acquired: a try first, on a connection that is never used for waits. If it is refused, the request
// waits on a connection for waits. There is at most one for each resource; behind it, requests of this process stand in
// line. A resource that finds no connection for waits is tried again and again, one at a time.
//
// If a connection breaks after the request was sent, nobody knows whether it was granted. Then it is repeated, and a
// lease that the same owner has already is the answer. If nobody waits for the answer any more, the keeper releases what
// the owner may have been granted.

import { Call, pause, within } from './calls.js'
import { now, PATIENCE } from './clock.js'
import { Links } from './connect.js'
import { actionAfter, Closed, LeaseError, LeaseTaken, MOVED, OutcomeUnknown, Unconfirmed } from './errors.js'
import { Ending, Kept } from './keeper.js'
import { requestStatement } from './statements.js'

const MAX_TRIES = 4
const MAX_WAITS = 8
const POLL = 500

// A first try on a connection that was idle may take as long as this, since it may have gone silent. The server may say
// goodbye so late to a wait that was hung up.
const TRY = 2500
const GOODBYE = 1500

export class Requests {
  #core
  #tries
  #waits
  #lines = new Map() // of each resource: those in front come first
  #poll = Promise.resolve()
  #flows = new Set()

  constructor(core) {
    this.#core = core
    this.#tries = new Links(core.factory, MAX_TRIES)
    this.#waits = new Links(core.factory, MAX_WAITS)
  }

  get waits() {
    return this.#waits.busy
  }

  // A connection that nobody uses.
  spare() {
    return this.#tries.fresh() ?? this.#waits.fresh() ?? null
  }

  // Resources of requests that have not ended.
  get unfinished() {
    return [...this.#flows].map((flow) => flow.resource)
  }

  // A lease that is held, or an error. An interruption counts at once: what is under way then ends by itself.
  async acquire(request, signal) {
    if (this.#core.closing.aborted) throw new Closed()
    signal?.throwIfAborted()
    const call = new Call(signal, this.#core.closing)
    const flow = { resource: request.resource, ended: this.#flow(request, call).finally(() => this.#flows.delete(flow)) }
    this.#flows.add(flow)
    try {
      return await within(flow.ended, Infinity, null, call.signal)
    } catch (error) {
      if (call.signal.aborted) flow.ended.then((lease) => this.#core.release(lease), () => {})
      throw call.signal.aborted && this.#core.closing.aborted ? new Closed() : error
    } finally {
      call.end()
    }
  }

  async settled() {
    while (this.#flows.size > 0) await Promise.allSettled([...this.#flows].map((flow) => flow.ended))
  }

  async #flow(request, call) {
    const giveUp = now() + (request.wait || PATIENCE)
    const state = { copies: 0, repeat: false, moved: false, place: null, last: null, asked: null, failed: false, giveUp }
    state.end = request.wait === 0 ? giveUp : giveUp + PATIENCE // for a request that is without an answer
    try {
      const lease = await this.#insist(request, call, state)
      lease.doubtful = state.copies > 0
      this.#core.keeper.add(lease)
      return lease
    } catch (error) {
      if (error instanceof LeaseTaken && error.blockedFor !== null) error.blockedFor = Math.max(0, error.blockedFor - (now() - state.asked))
      if (state.copies > 0 && request.ownOwner) this.#core.forget(request, state)
      throw error
    } finally {
      this.#leave(request.resource, state.place)
    }
  }

  async #insist(request, call, state) {
    const { resource, wait } = request
    for (let delay = 50; ; delay = Math.min(2 * delay, 1000)) {
      let error
      try {
        const { lease, refusal } = await this.#ask(request, call, state)
        if (!state.failed) this.#core.report.over('request')
        if (lease) return lease
        error = refusal
      } catch (failure) {
        error = failure
      }
      call.signal.throwIfAborted()
      if (error === null && now() < state.end) continue
      error ??= new LeaseError(`the server answers too late to hold the lease on "${resource}"`, resource, 'late')
      state.last = error
      if (error instanceof LeaseTaken) {
        if (!state.failed) delay = 50
        state.failed = false
        if (wait === 0 || now() >= state.giveUp || !(await this.#enter(resource, call, state))) throw error
        continue
      }
      state.failed = true
      this.#decide(request, state, error)
      if (now() + delay >= state.giveUp) throw error
      this.#core.report('request', `could not ask for the lease on "${resource}", trying again`, error)
      await pause(delay * (0.5 + Math.random() / 2), call.signal)
    }
  }

  // Throws the error unless the same request may be made again.
  #decide(request, state, error) {
    const action = actionAfter(error)
    if (action === 'not again') throw error
    if (MOVED.has(error.code)) {
      if (state.moved) throw error
      state.moved = true
      // The idle ones know the old place, too.
      this.#tries.clear()
      this.#waits.clear()
    }
    if (action === 'unknown') {
      if (!request.ownOwner) throw new OutcomeUnknown('the request', request.resource, { cause: error })
      state.repeat = true
    }
  }

  async #ask(request, call, state) {
    if (state.place === null) return this.#try(request, call, state)
    if (state.failed) {
      // Perhaps there is no room for another connection: what tries has one.
      return this.#inTurn(call, state, () => this.#try(request, call, state))
    }
    const left = Math.max(1, state.giveUp - now())
    const link = await this.#waits.take(left, Math.min(POLL, left), call.signal).catch((error) => {
      throw now() >= state.giveUp ? state.last : error // the end of the wait cut off what was connecting
    })
    if (link) return this.#wait(link, request, call, state)
    return this.#inTurn(call, state, () => this.#try(request, call, state))
  }

  // However many resources find no connection for waits, they use only one of those for tries.
  async #inTurn(call, state, work) {
    const before = this.#poll
    const mine = {}
    mine.end = new Promise((resolve) => { mine.over = resolve })
    this.#poll = before.then(() => mine.end)
    try {
      await within(before, state.giveUp - now(), () => state.last, call.signal)
      return await work()
    } finally {
      mine.over()
    }
  }

  async #try(request, call, state) {
    call.signal.throwIfAborted()
    const left = () => Math.max(1, state.end - now())
    const link = await this.#tries.take(left(), Math.max(1, state.giveUp - now()), call.signal)
    if (!link) throw state.last ?? new Error('no connection in time')
    try {
      const mayBeSilent = link.wasIdle && request.ownOwner && !state.failed
      return await this.#send(link, request, state, 0, Math.min(mayBeSilent ? TRY : PATIENCE, left()))
    } finally {
      if (!link.alive) this.#tries.clear()
      this.#tries.give(link)
    }
  }

  // An interruption hangs up, and then waits for what the server has still to say: perhaps it has just granted the lease.
  async #wait(link, request, call, state) {
    const left = state.giveUp - now()
    if (left <= 0) {
      this.#waits.give(link)
      throw state.last
    }
    let timer = null
    const stop = () => {
      link.hangUp()
      timer = setTimeout(() => link.cut(), GOODBYE)
    }
    call.signal.addEventListener('abort', stop)
    if (call.signal.aborted) stop()
    const since = now()
    try {
      const answer = await this.#send(link, request, state, left, left + PATIENCE)
      this.#core.hooks('waited', request, now() - since)
      return answer
    } finally {
      clearTimeout(timer)
      call.signal.removeEventListener('abort', stop)
      this.#waits.give(link)
    }
  }

  // The count begins before the request is sent; if it waited there, at the grant.
  async #send(link, request, state, wait, limit) {
    const { ttl, ownOwner } = request
    const repeat = state.repeat
    const ifOwn = repeat ? 'renew' : request.ifOwn
    const sent = now()
    let row
    try {
      [row] = await link.ask(requestStatement(link.place, request, wait, ifOwn, limit), limit)
    } catch (error) {
      if (error instanceof Unconfirmed) await this.#undo(request, error.rows[0], state)
      else if (actionAfter(error) === 'unknown') state.copies++
      throw error
    }
    const refusal = row.granted === 't' ? null : refusalOf(request, row)
    if (refusal) {
      state.asked = now()
      return { lease: null, refusal }
    }
    const granted = sent + 1000 * Number(row.waited)
    // A grant that took so long that it is nearly over is asked for again.
    if (ownOwner && now() > granted + ttl / 2) {
      Object.assign(state, { repeat: true, copies: state.copies + 1 })
      return { lease: null, refusal: null }
    }
    const lease = this.#keptOf(request, row, granted)
    this.#core.hooks('granted', lease, now() - sent)
    return { lease, refusal: null }
  }

  #keptOf(request, { token }, granted) {
    const lease = new Kept(request, BigInt(token), granted, this.#core.hooks)
    this.#core.keeper.joinRow(lease)
    return lease
  }

  // A grant that a failover may forget is none. What was asked meanwhile would be told of the grant that ends.
  async #undo(request, row, state) {
    if (row?.granted !== 't') return
    const ending = this.#core.keeper.end(new Ending(this.#keptOf(request, row, now())))
    await within(ending.done, state.end - now(), () => new Error('no answer in time')).catch(() => {})
  }

  // False if the time is over before it is this request's turn.
  async #enter(resource, call, state) {
    if (state.place !== null) return true
    const line = this.#lines.get(resource) ?? []
    this.#lines.set(resource, line)
    state.place = {}
    state.place.turn = new Promise((resolve) => { state.place.call = resolve })
    line.push(state.place)
    if (line[0] === state.place) return true
    try {
      await within(state.place.turn, state.giveUp - now(), () => new Error('not in time'), call.signal)
      return true
    } catch {
      call.signal.throwIfAborted()
      return false
    }
  }

  #leave(resource, place) {
    if (place === null) return
    const line = this.#lines.get(resource)
    line.splice(line.indexOf(place), 1)
    if (line.length === 0) this.#lines.delete(resource)
    else line[0].call()
  }

  async close() {
    await Promise.all([this.#tries.close(), this.#waits.close()])
  }
}

function refusalOf({ resource }, { reason, blocked_by: blockedBy, blocked_for: blockedFor }) {
  return new LeaseTaken(resource, { reason, blockedBy, blockedFor: blockedFor === null ? null : 1000 * Number(blockedFor) })
}
