// Errors, and what to do after one.

export class LeaseError extends Error {
  constructor(message, resource = null, reason = null, options = undefined) {
    super(message, options)
    this.name = new.target.name
    this.resource = resource
    this.reason = reason
  }
}

export class LeaseTaken extends LeaseError {
  constructor(resource, { reason, blockedBy = null, blockedFor = null }) {
    super(`lease on "${resource}" is taken (${reason}${blockedBy === null ? '' : ` by ${blockedBy}`})`, resource, reason)
    this.blockedBy = blockedBy
    this.blockedFor = blockedFor
  }
}

const REASONS = {
  expired: 'it was not renewed in time',
  broken: 'the server says that it is not held',
  taken_over: 'another owner holds it',
  closed: 'the leases were closed',
  released: 'it was released',
}

export class LeaseLost extends LeaseError {
  constructor(resource, reason, options) {
    super(`lease on "${resource}" is lost: ${REASONS[reason]}`, resource, reason, options)
  }
}

export class OutcomeUnknown extends LeaseError {
  constructor(what, resource, options) {
    super(`outcome of ${what} under the lease on "${resource}" is unknown`, resource, 'unknown', options)
  }
}

export class Closed extends LeaseError {
  constructor() {
    super('the leases are closed', null, 'closed')
  }
}

// A statement was carried out here, but the wait for a synchronous standby was cancelled.
export class Unconfirmed extends Error {
  constructor(rows) {
    super('the wait for a synchronous standby was cancelled')
    this.rows = rows
  }
}

// ../../conformance/errors.tsv, which all clients share: by SQLSTATE, or the beginning of one. The longest counts.
export const ACTIONS = {
  '08': 'unknown', 25006: 'again', 28: 'not again', '3D': 'not again', 40: 'again', 40003: 'unknown', 42: 'not again',
  42883: 'again', '3F000': 'again', 53: 'again', 53400: 'not again', '55P03': 'again', 55000: 'not again', 57014: 'again',
  '57P': 'unknown', '57P03': 'again', '57P04': 'not again', 58: 'again',
}

// SQLSTATE of an assertion that fails; of an extension that has moved to another schema.
export const NOT_HELD = '55000'
export const MOVED = new Set(['42883', '3F000'])

// A standby, perhaps of yesterday: the address of the primary may lead elsewhere by now.
const READ_ONLY = '25006'

// Only a new connection can help.
export const needsNewConnection = (error) => error?.code === READ_ONLY || MOVED.has(error?.code)

const sent = new WeakSet()

// The error came after the request was sent.
export function markSent(error) {
  if (Object(error) === error) sent.add(error)
  return error
}

const MISTAKES = [TypeError, RangeError, ReferenceError, SyntaxError, LeaseError]

// 'again': nothing was done. 'not again': raise it. 'unknown': the request may have been carried out.
export function actionAfter(error) {
  if (error instanceof Unconfirmed) return 'again'
  if (MISTAKES.some((kind) => error instanceof kind)) return 'not again'
  if (error?.severity === undefined) return sent.has(error) ? 'unknown' : 'again'
  const state = String(error.code)
  for (let length = 5; length >= 2; length--) {
    const action = ACTIONS[state.slice(0, length)]
    if (action !== undefined) return action === 'unknown' && !sent.has(error) ? 'again' : action
  }
  return 'not again'
}
