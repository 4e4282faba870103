// What the client tells besides its answers: hooks of the user's, and trouble.

import { debuglog } from 'node:util'

// NODE_DEBUG=lease-lock shows each failure; a warning only the first of several.
const debug = debuglog('lease-lock')

export const warn = (message) => process.emitWarning(message, 'LeaseLockWarning')

// A function of the user's that nobody waits for. If it throws or rejects, no lease may suffer.
export async function callHook(name, hook) {
  try {
    await hook()
  } catch (error) {
    warn(`${name} failed: ${error?.message ?? error}`)
  }
}

// Functions of the user's, for logging and counting.
export function hooksOf(functions = {}) {
  for (const [name, hook] of Object.entries(functions)) {
    if (typeof hook !== 'function') throw new TypeError(`hook ${name} must be a function`)
  }
  return (name, lease, ...more) => {
    const { resource, owner, mode, token } = lease
    callHook(`hook ${name}`, () => functions[name]?.({ resource, owner, mode, token }, ...more))
  }
}

// report(what, message, error) tells of trouble once, until report.over(what).
export function reporter() {
  const told = new Set()
  const textOf = (message, error) => `${message}: ${error?.message || error?.code || error}`
  const report = (what, message, error) => {
    debug('%s', textOf(message, error))
    if (told.has(what)) return
    told.add(what)
    report.always(message, error)
  }
  report.always = (message, error) => warn(textOf(message, error))
  report.over = (what) => told.delete(what)
  return report
}
