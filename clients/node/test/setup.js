// For the tests: the server, PgBouncer in front of it in transaction mode, and a proxy that can be silent.

import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
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

export async function until(condition) {
  const end = Date.now() + LONG
  while (!(await condition())) {
    if (Date.now() > end) throw new Error('it did not happen')
    await sleep(20)
  }
}

// How many times slower than a quiet machine is this one now? So much longer is a ttl that steps must not outlast.
export async function slowness() {
  const since = Date.now()
  for (let n = 0; n < 5; n++) {
    const client = new pg.Client(server)
    await client.connect()
    await client.end()
  }
  return Math.min(8, 1 + Math.floor((Date.now() - since) / 200))
}

export async function isHeld(resource) {
  const rows = await sql("SELECT count(*)::int FROM lease_status WHERE resource = $1 AND state = 'held'", [resource])
  return rows[0][0] === 1
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

export async function freePort() {
  const listener = net.createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => listener.on('listening', resolve))
  const { port } = listener.address()
  await new Promise((resolve) => listener.close(resolve))
  return port
}

let pooler = null

// Where a test runs: directly, and through PgBouncer.
export async function start() {
  await sql('CREATE EXTENSION IF NOT EXISTS lease_lock')
  const folder = mkdtempSync(path.join(os.tmpdir(), 'pgbouncer'))
  const port = await freePort()
  writeFileSync(`${folder}/users`, '"postgres" ""\n')
  writeFileSync(`${folder}/ini`, `[databases]
postgres = host=127.0.0.1 port=${server.port}
[pgbouncer]
pool_mode = transaction
default_pool_size = 10
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = trust
auth_file = ${folder}/users
`)
  const process = spawn('pgbouncer', ['-q', `${folder}/ini`], {
    stdio: 'ignore', env: { ...globalThis.process.env, PATH: `${globalThis.process.env.PATH}:/usr/sbin` },
  })
  globalThis.process.on('exit', () => process.kill())
  let missing = false
  process.on('error', () => { missing = true })
  const reachable = () => new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1', () => { socket.destroy(); resolve(true) })
    socket.on('error', () => resolve(false))
  })
  await until(async () => missing || (await reachable()))
  pooler = { process, folder }
  return missing ? { server } : { server, pgbouncer: { ...server, port } }
}

export async function stop() {
  pooler.process.kill()
  rmSync(pooler.folder, { recursive: true })
  await admin.end()
}

// Passes connections on to the server. While `silent`, it swallows what comes from either side.
export class Proxy {
  silent = false
  loseAnswerTo = null // a word of a request: its connection ends before the answer gets back
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
    for (const [from, to] of [[client, target], [target, client]]) {
      from.on('data', (data) => {
        if (this.silent) return
        to.write(data)
        if (from === client && this.loseAnswerTo && data.includes(this.loseAnswerTo)) {
          this.loseAnswerTo = null
          client.destroy()
        }
      })
      from.on('close', () => this.silent || to.end())
    }
  }

  close() {
    for (const socket of this.sockets) socket.destroy()
    this.listener.close()
  }
}
