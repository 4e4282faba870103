// A transaction under a lease, on a client of the user's pool. When the signal aborts, the client is cut, so that nothing
// more is written.

import { within } from './calls.js'
import { PATIENCE } from './clock.js'
import { cutClient } from './connect.js'
import { actionAfter, markSent, needsNewConnection, NOT_HELD, OutcomeUnknown } from './errors.js'
import { assertStatement } from './statements.js'

const noAnswer = () => new Error('no answer in time')

export class Transaction {
  #client
  #release
  #signal
  #broken = false
  #useless = false // for another transaction
  #nested = false // in a transaction of the user's, which stays as it is
  #told = new Set() // by notices: SQLSTATEs, and functions of the server
  #cut = () => this.#cutNow()
  #ended = () => { this.#broken = true }
  #note = ({ routine, code }) => { this.#told.add(routine).add(code) }

  constructor({ client, release }, signal) {
    this.#client = client
    this.#release = release
    this.#signal = signal
    client.on('error', this.#ended)
    client.on('end', this.#ended)
    client.on('notice', this.#note)
    signal.addEventListener('abort', this.#cut)
  }

  #cutNow() {
    this.#broken = true
    cutClient(this.#client)
  }

  // An answer that does not come in time, or that nobody waits for any more, ends the connection.
  async #ask(text, limit, signal) {
    if (this.#broken) throw new Error('the connection has ended')
    try {
      return await within(Promise.resolve(this.#client.query(text)), limit, noAnswer, signal)
    } catch (error) {
      if (signal?.aborted || error.message === noAnswer().message) this.#cutNow()
      this.#useless ||= needsNewConnection(error)
      throw markSent(error)
    }
  }

  // Nobody else can end the lease before this transaction ends.
  async begin(lease, schema, left) {
    this.#signal.throwIfAborted()
    await this.#ask('BEGIN', left(), this.#signal)
    this.#nested = this.#told.has('25001')
    if (this.#nested) throw new TypeError('the client is in a transaction')
    const { rows } = await this.#ask(assertStatement(schema, lease), left(), this.#signal)
    if (BigInt(rows[0].token) !== lease.token) {
      throw Object.assign(new Error('the owner has a later lease'), { code: NOT_HELD, severity: 'ERROR' })
    }
  }

  async work(work, check) {
    check()
    const result = await work(this.#client)
    this.#signal.throwIfAborted()
    check()
    return result
  }

  // While the lease lasts nobody else can have it, and no longer does anybody wait for the answer. The signal is the
  // user's: a COMMIT that was sent is not cut off because the lease is lost.
  async commit(resource, limit, signal) {
    this.#signal.removeEventListener('abort', this.#cut)
    const unknown = (cause) => new OutcomeUnknown('COMMIT', resource, { cause })
    const known = this.#broken
    let command
    try {
      ({ command } = await this.#ask('COMMIT', limit, signal))
    } catch (error) {
      const interrupted = signal.aborted && error === signal.reason
      throw interrupted || (!known && actionAfter(error) === 'unknown') ? unknown(error) : error
    }
    if (command !== 'COMMIT') {
      throw Object.assign(new Error('the transaction had failed, and was rolled back'), { severity: 'ERROR' })
    }
    if (this.#told.has('25P01')) throw new TypeError('the work has ended its transaction')
    if (this.#told.has('SyncRepWaitForLSN')) throw unknown(new Error('the wait for a synchronous standby was cancelled'))
  }

  // Give the client back, without an open transaction.
  async end(failed) {
    this.#signal.removeEventListener('abort', this.#cut)
    if (failed && !this.#broken && !this.#nested) {
      await this.#ask('ROLLBACK', PATIENCE, this.#signal).catch(() => this.#cutNow())
    }
    for (const [event, listener] of [['error', this.#ended], ['end', this.#ended], ['notice', this.#note]]) {
      this.#client.removeListener(event, listener)
    }
    this.#release(this.#broken || this.#useless)
  }
}
