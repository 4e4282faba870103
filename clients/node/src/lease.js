// A lease that is held, as its holder sees it.

import { Call, pause, within } from './calls.js'
import { now, PATIENCE } from './clock.js'
import { actionAfter, LeaseError, LeaseLost, NOT_HELD, OutcomeUnknown } from './errors.js'
import { callHook } from './log.js'
import { Transaction } from './transaction.js'

// Node.js 18 has no Symbol.asyncDispose before 18.18; compilers use the same fallback.
export const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')

// Before a transaction begins again on another connection.
const PAUSE = 50

// A lease that nobody refers to, and nobody is told of, would be renewed for ever.
const forgotten = new FinalizationRegistry(({ core, kept }) => {
  if (!kept.held) return
  process.emitWarning(`nobody refers to the lease on "${kept.resource}" any more: it is released`, 'ResourceWarning')
  core.release(kept)
})

export class Lease {
  #core
  #kept

  constructor(core, kept, onLost) {
    this.#core = core
    this.#kept = kept
    forgotten.register(this, { core, kept }, this)
    if (onLost) this.#tell(() => callHook('onLost', () => onLost(this)))
  }

  // A lease may be lost before its caller has it.
  #tell(onLost) {
    if (this.lost) return queueMicrotask(onLost)
    this.#kept.told = this
    this.#kept.onLost = onLost
  }

  get resource() {
    return this.#kept.resource
  }

  get owner() {
    return this.#kept.owner
  }

  get mode() {
    return this.#kept.mode
  }

  get token() {
    return this.#kept.token
  }

  get lost() {
    return this.#kept.signal.aborted
  }

  get contended() {
    return this.#kept.contended
  }

  // Whoever has the signal is told of a loss, so the lease is in use.
  get signal() {
    if (this.#kept.held) this.#kept.told = this
    return this.#kept.signal
  }

  remaining() {
    return this.#kept.remaining()
  }

  check() {
    if (this.remaining() <= 0) throw this._loss()
  }

  _loss(cause) {
    return new LeaseLost(this.resource, this.#kept.reason ?? 'expired', cause === undefined ? undefined : { cause })
  }

  // False if it is not held any longer. The keeper goes on even if nobody waits for the answer.
  async release() {
    const result = await this.#release()
    if (result instanceof Error) throw result
    return result === true
  }

  async #release() {
    forgotten.unregister(this)
    const kept = this.#kept
    if (kept.deadline <= now()) kept.lose('expired') // its timer is late
    const held = kept.held
    const ending = this.#core.release(kept)
    if (!held || ending === null) return false
    const late = () => (kept.over <= now() ? 'over' : new OutcomeUnknown('the release', this.resource))
    const result = await within(ending.done, Math.min(PATIENCE, kept.over - now()), late).catch((error) => error)
    if (result === false) kept.wasLost('broken')
    if (result === 'over') kept.wasLost('expired')
    return result === 'over' ? false : result
  }

  _succeeded() {
    this.#kept.givesBack = false
  }

  // The end of a block: an error if the lease was lost, but not if it is released late.
  async _end() {
    if (this.#kept.reason === 'released') return
    const result = await this.#release()
    if (result === false) throw this._loss()
    if (result instanceof Error) this.#core.report.always(`could not release the lease on "${this.resource}" in time`, result)
  }

  async [asyncDispose]() {
    await this._end()
  }

  // Nobody else can be granted the lease before the transaction ends. It is rolled back if the lease is lost meanwhile.
  async transaction(work, { client = undefined, signal = undefined } = {}) {
    signal?.throwIfAborted()
    const user = new Call(signal) // the only listener: many transactions may have one signal
    const call = new Call(this.#kept.signal, user.signal)
    let transaction, failure
    try {
      transaction = await this.#begin(client, call.signal)
      const result = await transaction.work(work, () => this.check())
      await transaction.commit(this.resource, this.remaining(), user.signal)
      return result
    } catch (error) {
      failure = { error }
      if (error instanceof LeaseError) throw error
      if (this.lost) throw this._loss(error)
      throw call.signal.aborted ? call.signal.reason : error
    } finally {
      try {
        await transaction?.end(failure !== undefined)
      } finally {
        call.end()
        user.end()
      }
    }
  }

  // On another connection if one breaks: nothing of the user's is in the transaction yet.
  async #begin(client, signal) {
    const end = now() + PATIENCE
    for (;;) {
      this.check()
      const left = () => Math.max(1, Math.min(end - now(), this.remaining()))
      let transaction
      try {
        const taken = client ? { client, release() {} } : await this.#core.takeClient(left(), signal)
        transaction = new Transaction(taken, signal)
        await transaction.begin(this, this.#core.factory.schema, left)
        return transaction
      } catch (error) {
        await transaction?.end(true)
        if (error.code === NOT_HELD) this.#kept.lose('broken')
        const final = client || this.#core.poolIsClosed || actionAfter(error) === 'not again'
        if (final || now() + PAUSE >= end) throw error
      }
      await pause(PAUSE, signal)
    }
  }
}
