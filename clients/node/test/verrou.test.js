// The store for @verrou/core, which needs that package (from npm).

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { server } from './setup.js'

const verrou = await import('@verrou/core').catch(() => null)

test('locks of Verrou are leases', { skip: verrou ? false : 'no @verrou/core' }, async (t) => {
  const { leaseStore } = await import('lease-lock/verrou')
  const pool = new pg.Pool(server)
  t.after(() => pool.end())
  await pool.query('CREATE EXTENSION IF NOT EXISTS lease_lock').catch(() => {}) // another file may be creating it
  const factory = new verrou.Verrou({ default: 'lease', stores: { lease: { driver: leaseStore(pool) } } })

  const lock = factory.createLock('verrou', 60_000)
  const other = factory.createLock('verrou', 60_000)
  assert.equal(await lock.acquireImmediately(), true)
  assert.equal(await other.acquireImmediately(), false)
  assert.equal(await other.isLocked(), true)
  const { rows } = await pool.query("SELECT owner FROM lease_status WHERE resource = 'verrou'")
  assert.equal(rows.length, 1)
  await lock.extend(120_000)
  await assert.rejects(other.release(), verrou.E_LOCK_NOT_OWNED)
  await assert.rejects(other.extend(1000), verrou.E_LOCK_NOT_OWNED)
  setTimeout(() => lock.release(), 300)
  const [ran, result] = await other.run(async () => 'mine')
  assert.deepEqual([ran, result, await other.isLocked()], [true, 'mine', false])

  const short = factory.createLock('verrou', 300)
  await short.acquire()
  await sleep(600)
  assert.equal(await lock.acquireImmediately(), true)
  await other.forceRelease()
  assert.equal(await lock.isLocked(), false)
  const endless = factory.createLock('verrou', null)
  await endless.acquire()
  assert.equal(await other.acquireImmediately(), false)
  await endless.release()
})
