// For the tests: the server, and a proxy in front of it that can be silent.

import net from 'node:net'
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

// Passes connections on to the server. While `silent`, it swallows what comes from either side.
export class Proxy {
  silent = false
  swallowAfter = null // a word of a request: it is passed on, and nothing comes back any more
  sockets = new Set()

  static async start() {
    const proxy = new Proxy()
    proxy.listener = net.createServer((client) => proxy.pass(client)).listen(0, '127.0.0.1')
    await new Promise((resolve) => proxy.listener.on('listening', resolve))
    proxy.at = { ...server, port: proxy.listener.address().port }
    return proxy
  }

  pass(client) {
    this.sockets.add(client.on('error', () => {}))
    if (this.silent) return
    const target = net.connect(server.port, '127.0.0.1').on('error', () => {})
    this.sockets.add(target)
    let swallowed = false
    for (const [from, to] of [[client, target], [target, client]]) {
      from.on('data', (data) => {
        if (from === client && this.swallowAfter && data.includes(this.swallowAfter)) swallowed = true
        if (!this.silent && !(swallowed && from === target)) to.write(data)
      })
      from.on('close', () => this.silent || to.end())
    }
  }

  close() {
    for (const socket of this.sockets) socket.destroy()
    this.listener.close()
  }
}
