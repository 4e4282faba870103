// The clock of all deadlines: milliseconds that nobody can set, and that go on in suspend.

import os from 'node:os'

// process.hrtime is CLOCK_MONOTONIC, which stops in suspend. On Linux os.uptime() goes on, in steps of 10 ms, so that
// what it is ahead is the time of suspends.
let suspended = 0

export function now() {
  const running = Number(process.hrtime.bigint()) / 1e6
  if (process.platform === 'linux') suspended = Math.max(suspended, os.uptime() * 1000 - running)
  return running + suspended
}

// Longest time to wait for the server where neither a wait nor the end of a lease sets a limit.
export const PATIENCE = 5000
