// For the tests: the server, and what they ask it.

import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

// Only so that a test that hangs ends: no test depends on speed.
export const LONG = 1000 * Number(process.env.PG_TEST_TIMEOUT_DEFAULT ?? 180)

export const server = { host: '127.0.0.1', port: Number(process.env.PGPORT), user: 'postgres', database: 'postgres' }
const admin = new pg.Pool({ ...server, max: 4 })
admin.on('error', () => {})

export async function sql(text, values) {
  return (await admin.query({ text, values, rowMode: 'array' })).rows
}

// Two test files may create it at the same time.
export const start = () => sql('CREATE EXTENSION IF NOT EXISTS lease_lock').catch(() => sql('CREATE EXTENSION IF NOT EXISTS lease_lock'))
export const stop = () => admin.end()

// How many times slower than a quiet machine is this one? So much longer is a ttl that a renewal must not miss.
export async function slow() {
  const since = Date.now()
  for (let n = 0; n < 2; n++) {
    const client = new pg.Client(server)
    await client.connect()
    await client.end()
  }
  return Math.min(8, 1 + Math.floor((Date.now() - since) / 100))
}

export async function until(condition) {
  const end = Date.now() + LONG
  while (!(await condition())) {
    if (Date.now() > end) throw new Error('it did not happen')
    await sleep(20)
  }
}

export async function isHeld(resource) {
  const rows = await sql("SELECT count(*)::int FROM lease_status WHERE resource = $1 AND state = 'held'", [resource])
  return rows[0][0] > 0
}

export async function waiters(resource) {
  return (await sql('SELECT count(*)::int FROM lease_waiters WHERE resource = $1', [resource]))[0][0]
}

export function aborted(signal) {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    signal.addEventListener('abort', resolve)
  })
}
