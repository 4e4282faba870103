// What only this language has: signals, the event loop, pools and clients of pg, garbage collection. What all clients
// promise is tested by ../../conformance.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { getEventListeners } from 'node:events'
import net from 'node:net'
import { after, afterEach, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import v8 from 'node:v8'
import vm from 'node:vm'
import pg from 'pg'
import { Closed, LeaseError, LeaseLost, Leases, LeaseTaken, OutcomeUnknown } from 'lease-lock'
import { Link, Links } from '../node_modules/lease-lock/src/connect.js'
import { Ending, Keeper } from '../node_modules/lease-lock/src/keeper.js'
import { now } from '../node_modules/lease-lock/src/clock.js'
import { aborted, isHeld, LONG, server, slow, sql, start, stop, until, waiters } from './setup.js'

before(start)
after(stop)
afterEach(() => sql('SELECT lease_break(resource) FROM lease_status'))

const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')
const connections = async (name) => (await sql('SELECT count(*)::int FROM pg_stat_activity WHERE application_name = $1', [name]))[0][0]

// Warnings of the process while the test runs.
function warningsIn(t) {
  const warnings = []
  const warned = (warning) => warnings.push(warning)
  process.on('warning', warned)
  t.after(() => process.removeListener('warning', warned))
  return warnings
}

// A function that connects, and whose queries go through one of the test's: query(config, send, client).
const connectThrough = (query) => async () => {
  const client = new pg.Client(server)
  await client.connect()
  const send = client.query.bind(client)
  client.query = (config) => query(config, send, client)
  return client
}

// Leases that end with the test.
function leasesFor(t, source = server, options = undefined) {
  const leases = new Leases(source, options)
  t.after(() => leases.close())
  return leases
}

test('hold calls its function with a lease and a signal, and releases', async (t) => {
  const leases = leasesFor(t)
  const lease = await leases.hold('door', { ttl: 600_000 }, async (one, signal) => {
    assert.equal(typeof one.token, 'bigint')
    assert.equal(signal, one.signal)
    assert.equal(one.owner.split(':')[1], String(process.pid))
    assert.equal(await leases.tryHold('door'), null)
    return one
  })
  assert(!lease.lost && lease.remaining() === 0 && !(await isHeld('door')))
  assert.throws(() => lease.check(), { name: 'LeaseLost', reason: 'released' })
  assert.equal(await leases.hold('door', () => 'result'), 'result')
  await assert.rejects(leases.hold('door', () => { throw new RangeError('mine') }), RangeError)
  assert(!(await isHeld('door')))
})

test('arguments are checked before anything is sent', async (t) => {
  const leases = leasesFor(t, { port: 1 })
  for (const [options, error] of [
    [{ ttl: '30000' }, TypeError], [{ ttl: 0 }, RangeError], [{ ttl: NaN }, TypeError], [{ wait: -1 }, RangeError],
    [{ tll: 1 }, /unknown option tll/], [{ stopBefore: 30_000 }, RangeError], [{ stopBefore: -1 }, RangeError],
  ]) {
    await assert.rejects(leases.hold('door', options), error)
  }
  await assert.rejects(leases.hold(17), TypeError)
  await assert.rejects(leases.elect('door', { ttl: -1 }, () => {}), RangeError)
  assert.throws(() => new Leases(new pg.Client(server)), /a client is not a source/)
})

test('the holder may work until the end of the lease', async (t) => {
  const left = await leasesFor(t).hold('edge', { ttl: 600_000, stopBefore: 0 }, (lease) => lease.remaining())
  assert(left > 500_000 && left <= 600_000)
})

test('all errors have one base class, and their reason is data', () => {
  for (const error of [new LeaseTaken('r', { reason: 'held' }), new LeaseLost('r', 'expired'), new OutcomeUnknown('COMMIT', 'r'), new Closed()]) {
    assert(error instanceof LeaseError && error instanceof Error)
    assert.equal(error.name, error.constructor.name)
    assert.equal(typeof error.reason, 'string')
  }
})

for (const [what, hold] of [['waits', { wait: null }], ['waits in line', { wait: 60_000 }]]) {
  test(`a signal ends a hold that ${what}, and leaves nothing`, async (t) => {
    const leases = leasesFor(t)
    const first = await leases.hold('signal', { ttl: 600_000 })
    if (what === 'waits in line') leases.hold('signal', { wait: null }).catch(() => {})
    const controller = new AbortController()
    const waiting = leases.hold('signal', { ...hold, signal: controller.signal })
    waiting.catch(() => {})
    await until(async () => (await waiters('signal')) === 1)
    const reason = new Error('mine')
    controller.abort(reason)
    await assert.rejects(waiting, (error) => error === reason)
    await leases.close()
    await until(async () => (await waiters('signal')) === 0)
    assert(first.lost && !(await isHeld('signal')))
  })
}

test('a signal that has aborted ends a hold before it begins', async (t) => {
  const leases = leasesFor(t)
  await assert.rejects(leases.hold('signal', { signal: AbortSignal.abort(new RangeError('mine')) }), RangeError)
  assert(!(await isHeld('signal')))
})

test('a pool with a hook demands connect', async (t) => {
  for (const hook of ['connect', 'acquire', 'onConnect', 'verify']) {
    const pool = new pg.Pool({ ...server, ...(hook.startsWith('on') || hook === 'verify' ? { [hook]() {} } : {}) })
    if (hook === 'connect' || hook === 'acquire') pool.on(hook, () => {})
    assert.throws(() => new Leases(pool), /pass \{ connect \}/)
    await pool.end()
  }
  assert.throws(() => new Leases({ connect() {}, query() {} }), /no options/)
})

// As instrumentations do: OpenTelemetry's adds both listeners at the first connect() of a pool.
test('a listener that a pool gets later is one warning, and leases are renewed', async (t) => {
  const warnings = warningsIn(t)
  const pool = new pg.Pool(server)
  t.after(() => pool.end())
  let renewed = 0
  const leases = leasesFor(t, pool, { hooks: { renewed: () => { renewed++ } } })
  for (const event of ['connect', 'acquire']) pool.on(event, () => {})
  await leases.hold('hook', { ttl: 2000 * (await slow()) }, async (lease) => {
    const other = await leases.hold('another hook') // on a connection of its own, if the keeper has taken the first
    await sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lease-lock'")
    await until(() => renewed > 0 || lease.lost)
    assert(!lease.lost)
    await other.release()
  })
  assert.deepEqual(warnings.map(({ message }) => /the pool has a listener of 'connect' now/.test(message)).filter(Boolean), [true])
})

test('connect makes all connections for lease statements, the pool those for transactions', async (t) => {
  await sql('CREATE ROLE lessee LOGIN; CREATE ROLE tenant; GRANT tenant TO lessee')
  t.after(() => sql('DROP ROLE tenant; DROP ROLE lessee'))
  const pool = new pg.Pool({ ...server, user: 'lessee', application_name: 'pooled', max: 1 })
  pool.on('connect', (client) => { client.query('SET ROLE tenant') })
  let made = 0
  const connect = async () => {
    made++
    const client = new pg.Client({ ...server, user: 'lessee', application_name: 'made' })
    await client.connect()
    await client.query('SET ROLE tenant')
    return client
  }
  let renewed = 0
  const leases = new Leases(pool, { connect, hooks: { renewed: () => { renewed++ } } })
  await leases.hold('connect', { ttl: 3000 * (await slow()) }, async (lease) => {
    await until(() => renewed > 0 || lease.lost)
    const { rows } = await lease.transaction((client) => client.query("SELECT current_setting('application_name') AS name, current_user AS role"))
    assert.deepEqual(rows, [{ name: 'pooled', role: 'tenant' }])
  })
  assert(renewed > 0 && made > 0)
  await leases.close()
  await pool.end()
  await until(async () => (await connections('made')) === 0)
})

test('a function that fails to connect is asked again, and its mistakes are not', async (t) => {
  let calls = 0
  const leases = leasesFor(t, async () => {
    if (calls++ === 0) throw new Error('the vault is sealed')
    const client = new pg.Client(server)
    await client.connect()
    return client
  })
  await leases.hold('vault', () => {})
  assert(calls > 1)
  for (const reason of [null, undefined]) {
    let works = false
    setTimeout(() => { works = true }, 1)
    const moody = async () => {
      if (!works) throw reason
      const client = new pg.Client(server)
      await client.connect()
      return client
    }
    await leasesFor(t, moody).hold('moody', () => {})
  }
  await assert.rejects(leasesFor(t, () => null).hold('vault'), /must resolve to a connected client/)
})

test('a client that can only read leaves the pool', async (t) => {
  const pool = new pg.Pool({ ...server, max: 1 })
  t.after(() => pool.end())
  await leasesFor(t, pool).hold('pooled', async (lease) => {
    const client = await pool.connect()
    await client.query('SET default_transaction_read_only = on')
    client.release()
    await lease.transaction((other) => assert.notEqual(other, client))
  })
})

test('a transaction on a client that is passed', async (t) => {
  const leases = leasesFor(t)
  const client = new pg.Client(server)
  await client.connect()
  await leases.hold('passed', async (lease) => {
    const { rows } = await lease.transaction((same) => {
      assert.equal(same, client)
      return same.query("SELECT current_setting('lease_lock.owner') AS owner")
    }, { client })
    assert.deepEqual(rows, [{ owner: lease.owner }])
    await assert.rejects(lease.transaction(() => { throw new RangeError('mine') }, { client }), RangeError)
    await assert.rejects(lease.transaction(async (same) => { await same.query('SELECT 1 / 0').catch(() => {}) }, { client }), /rolled back/)
    await assert.rejects(lease.transaction((same) => same.query('COMMIT'), { client }), /the work has ended its transaction/)
    await client.query('BEGIN; CREATE TEMP TABLE mine ()')
    await assert.rejects(lease.transaction(() => assert.fail('it has one'), { client }), /the client is in a transaction/)
    await client.query('TABLE mine; ROLLBACK')
  })
  assert.equal((await client.query('SELECT pg_current_xact_id_if_assigned() IS NULL AS none')).rows[0].none, true)
  await client.end()
})

test('a signal rolls a transaction back', async (t) => {
  await sql('CREATE TABLE entry (id int)')
  t.after(() => sql('DROP TABLE entry'))
  const lease = await leasesFor(t).hold('entry')
  const controller = new AbortController()
  const failed = lease.transaction(async (client) => {
    await client.query('INSERT INTO entry VALUES (1)')
    controller.abort(new RangeError('mine'))
    await client.query('SELECT pg_sleep(60)')
  }, { signal: controller.signal })
  await assert.rejects(failed, RangeError)
  assert.deepEqual(await sql('SELECT FROM entry'), [])
})

const mine = new RangeError('mine')
for (const [statement, work, isRight] of [
  ['COMMIT', () => {}, (error) => error instanceof OutcomeUnknown && error.cause === mine],
  ['ROLLBACK', () => { throw new Error('the work failed') }, (error) => error.message === 'the work failed'],
]) {
  test(`a signal ends a ${statement} that has no answer at once`, async (t) => {
    let asked
    const isAsked = new Promise((resolve) => { asked = resolve })
    const client = await connectThrough((query, send) => (query === statement ? new Promise(asked) : send(query)))()
    const lease = await leasesFor(t).hold('silent')
    const controller = new AbortController()
    let failure = null
    lease.transaction(work, { client, signal: controller.signal }).catch((error) => { failure = error })
    await isAsked
    controller.abort(mine)
    await new Promise(setImmediate)
    assert(failure !== null && isRight(failure))
    await assert.rejects(client.query('SELECT 1'))
  })
}

test('a transaction listens once to its signal', async (t) => {
  const { signal } = new AbortController()
  const listeners = () => getEventListeners(signal, 'abort').length
  let asked
  const client = await connectThrough((query, send) => (query === 'COMMIT' ? new Promise((resolve) => {
    asked = () => resolve(send(query))
  }) : send(query)))()
  t.after(() => client.end())
  const lease = await leasesFor(t).hold('listener')
  const ended = lease.transaction(() => {}, { client, signal })
  await until(() => asked)
  assert.equal(listeners(), 1)
  asked()
  await ended
  assert.equal(listeners(), 0)
})

test('a lease is lost after its time, however late its timer is', async (t) => {
  const leases = leasesFor(t)
  const lease = await leases.hold('late', { ttl: 3000 })
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3000)
  assert.equal(await lease.release(), false)
  assert.equal(lease.lost, true)
  assert.throws(() => lease.check(), { reason: 'expired' })
})

test('a lease that is lost before its caller has it is told as lost, too', async (t) => {
  const told = []
  const onLost = (lost) => told.push(lost)
  const lease = await leasesFor(t).hold('late', { ttl: 600_000, stopBefore: 599_999.9, onLost })
  await new Promise(setImmediate)
  assert(told.length === 1 && told[0] === lease)
  assert.equal(lease.signal.reason.reason, 'expired')
})

test('an onLost or a hook that fails is a warning', async (t) => {
  const warnings = warningsIn(t)
  const leases = leasesFor(t, server, { hooks: { lost: async () => { throw new Error('of a hook') } } })
  const options = { ttl: 600_000, onLost: async () => { throw new Error('later') } }
  await leases.hold('early', { ...options, stopBefore: 599_999.9 })
  const lease = await leases.hold('broken', { ...options, onLost: () => { throw new Error('at once') } })
  await sql("SELECT lease_break('broken')")
  assert.equal(await lease.release(), false)
  const texts = ['hook lost failed: of a hook', 'onLost failed: later', 'onLost failed: at once']
  await until(() => texts.every((text) => warnings.some(({ message }) => message === text)))
})

test('elect stands again after a request whose outcome is unknown', async (t) => {
  let lost = 0
  const leases = leasesFor(t, connectThrough((config, send) => {
    if (lost > 0 || !config.text.includes('lease_request')) return send(config)
    lost++
    return Promise.reject(new Error('the answer is lost'))
  }))
  assert.equal(await leases.elect('leader', { owner: 'shared' }, () => 'elected'), 'elected')
  assert.equal(lost, 1)
})

// What broke while it was looked up where the functions are has asked for nothing.
function leasesThatLook(t) {
  const state = { failures: 0, client: null }
  const leases = leasesFor(t, connectThrough((config, send, client) => {
    state.client = client
    if (state.failures === 0 || !config.text.includes('server_version_num')) return send(config)
    state.failures--
    return Promise.reject(new Error('Connection terminated unexpectedly'))
  }))
  return { leases, state }
}

for (const [whose, options] of [['a counted lease', { ifOwn: 'count' }], ['a shared owner', { owner: 'shared' }], ['its own', {}]]) {
  test(`a look for the functions that fails leaves nothing unknown: ${whose}`, async (t) => {
    const { leases, state } = leasesThatLook(t)
    state.failures = 1
    const lease = await leases.hold('look', { ttl: 600_000, wait: LONG, ...options })
    await state.client.end()
    if (whose === 'its own') await sql("SELECT lease_break('look')")
    state.failures = 1
    assert.equal(await lease.release(), whose !== 'its own')
    assert(state.failures === 0 && !(await isHeld('look')))
  })
}

test('no connection that was idle is used after the extension has moved', async (t) => {
  const there = { ...server, database: 'moving' }
  const [leases, others] = [new Leases(there), new Leases(there)]
  await sql('CREATE DATABASE moving')
  const client = new pg.Client({ ...there, options: '-c search_path=public,later' })
  t.after(async () => {
    await Promise.all([leases.close(), others.close(), client.end()])
    await sql('DROP DATABASE moving')
  })
  await client.connect()
  await client.query('CREATE EXTENSION lease_lock')
  const waitFor = async (resource, lease) => {
    const waiting = leases.hold(resource, { ttl: 600_000, wait: LONG })
    const isWaiting = async () => (await client.query('SELECT FROM lease_waiters WHERE resource = $1', [resource])).rowCount === 1
    await Promise.race([waiting, until(isWaiting)])
    await lease.release()
    await waiting
  }
  const second = await others.hold('second', { ttl: 600_000 })
  await waitFor('first', await others.hold('first', { ttl: 600_000 }))
  await leases.hold('third', () => {})
  await client.query('CREATE SCHEMA later; ALTER EXTENSION lease_lock SET SCHEMA later')
  await waitFor('second', second)
})

test('a connection that was in use while the extension moved is not used again', async (t) => {
  const open = async () => Object.assign(new Link(new pg.Client(server)), { place: { schema: factory.schema } })
  const factory = { open, schema: 'before' }
  const links = new Links(factory, 1)
  t.after(() => links.close())
  const first = await links.take(1000, 1000)
  links.give(first)
  assert.equal(await links.take(1000, 1000), first)
  factory.schema = 'later'
  links.give(first)
  assert.notEqual(await links.take(1000, 1000), first)
  assert(!first.alive)
})

test('only a first try on a connection that was idle has less time', async (t) => {
  let times = []
  let failures = 0
  const leases = leasesFor(t, connectThrough((config, send) => {
    if (!config.text.includes('lease_request')) return send(config)
    times.push(Number(/statement_timeout = (\d+)/.exec(config.text)[1]))
    if (failures-- <= 0) return send(config)
    return Promise.reject(Object.assign(new Error('canceled'), { severity: 'ERROR', code: '57014' }))
  }))
  const timesOf = async (resource, options) => {
    times = []
    await leases.hold(resource, { ttl: 600_000, wait: LONG, ...options })
    return times
  }
  assert.deepEqual(await timesOf('new'), [5000]) // the keeper has the connection from now on
  assert.deepEqual(await timesOf('another'), [5000])
  assert.deepEqual(await timesOf('idle'), [2500])
  assert.deepEqual(await timesOf('shared', { owner: 'shared' }), [5000])
  failures = 1
  assert.deepEqual(await timesOf('failed'), [2500, 5000])
})

test('elect ends with an error of its function, and by its signal', async (t) => {
  const leases = leasesFor(t)
  for (const error of [new RangeError('mine'), new LeaseTaken('other', { reason: 'held' }), new LeaseLost('other', 'expired')]) {
    await assert.rejects(leases.elect('leader', {}, () => { throw error }), (thrown) => thrown === error)
    assert(!(await isHeld('leader')))
  }
  const leader = await leases.hold('leader', { ttl: 600_000 })
  const controller = new AbortController()
  const candidate = leases.elect('leader', { signal: controller.signal }, () => assert.fail('another one leads'))
  controller.abort()
  await assert.rejects(candidate, { name: 'AbortError' })
  await leader.release()
})

test('once passes arguments and results on', async (t) => {
  const job = leasesFor(t).once('nightly', { period: 20_000 }, async (lease, signal, what) => [what, lease.token > 0n])
  assert.deepEqual(await job('swept'), ['swept', true])
  assert.equal(await job('swept'), undefined)
})

test('once has a ttl that is no longer than the period', async (t) => {
  const leases = leasesFor(t)
  const left = (lease) => lease.remaining()
  assert(await leases.once('short', { period: 20_000, ttl: 600_000 }, left)() <= 20_000)
  assert(await leases.once('long', { period: 3_600_000 }, left)() <= 30_000)
  await assert.rejects(leases.once('none', { period: 20_000, ttl: '3' }, left)(), TypeError)
  await assert.rejects(leases.once('none', {}, left)(), TypeError)
})

test('hooks count, and one that fails does no harm', async (t) => {
  const seen = []
  const count = (name) => (lease, more) => {
    seen.push([name, lease.resource, typeof more])
    if (name === 'renewed') throw new Error('mine')
  }
  const hooks = Object.fromEntries(['granted', 'renewed', 'lost', 'waited'].map((name) => [name, count(name)]))
  const warnings = warningsIn(t)
  const leases = leasesFor(t, server, { hooks })
  const first = await leases.hold('hooks', { ttl: 2000 * (await slow()) })
  await until(() => seen.some(([name]) => name === 'renewed'))
  const second = leases.hold('hooks', { ttl: 600_000, wait: LONG })
  await until(async () => (await waiters('hooks')) === 1)
  await first.release()
  await (await second).release()
  assert.deepEqual(seen.filter(([name]) => name !== 'renewed'),
    [['granted', 'hooks', 'number'], ['granted', 'hooks', 'number'], ['waited', 'hooks', 'number']])
  assert(warnings.some(({ message }) => message === 'hook renewed failed: mine'))
  assert.throws(() => new Leases(server, { hooks: { lost: 17 } }), TypeError)
})

test('a turn and the connection that comes after it have one limit', async () => {
  const limits = []
  const open = async (limit) => {
    limits.push(limit)
    return new Link(new pg.Client(server))
  }
  const links = new Links({ open }, 1)
  const first = await links.take(1000, 1000)
  const second = links.take(1000, 1000)
  const later = now() + 20
  await until(() => now() >= later)
  first.cut()
  links.give(first)
  await second
  await links.close()
  assert(limits[1] <= 980)
})

test('a connection that the keeper gets after its close is ended', async () => {
  let begun, connected
  const connecting = new Promise((resolve) => { begun = resolve })
  const connection = new Promise((resolve) => { connected = resolve })
  const open = () => {
    begun()
    return connection
  }
  const keeper = new Keeper(open, () => null, Object.assign(() => {}, { over() {} }))
  keeper.end(new Ending({ resource: 'close', owner: 'mine', token: 1n, ttl: 600_000 }, { until: now() + 600_000 }))
  await connecting
  const closed = keeper.close()
  let ended = false
  connected({ alive: true, place: { schema: 'public' }, ask: async () => [{ n: 0, held: 't' }], end() { ended = true } })
  await closed
  assert(ended)
})

test('close leaves no timer and no connection', async () => {
  const kinds = () => process.getActiveResourcesInfo().filter((kind) => kind !== 'CloseReq').sort()
  await connections('close')
  const earlier = kinds()
  const leases = new Leases({ ...server, application_name: 'close' })
  await leases.hold('close', { ttl: 600_000 })
  const waiting = leases.hold('close', { wait: null }).catch((error) => error)
  await until(async () => (await waiters('close')) === 1)
  await leases.close()
  assert((await waiting) instanceof Closed)
  await until(async () => (await connections('close')) === 0)
  await until(() => String(kinds()) === String(earlier))
  await assert.rejects(leases.hold('close'), Closed)
  assert.equal(await leases.elect('close', {}, () => assert.fail('closed')), undefined)
})

test('a process that holds nothing ends by itself', async () => {
  const child = spawn(process.execPath, ['--input-type=module', '--eval', `
    import { Leases } from 'lease-lock'
    const leases = new Leases(${JSON.stringify(server)})
    await leases.hold('child', () => {})
    await leases.hold('child', (lease) => lease.transaction((client) => client.query('SELECT 1')))
  `], { stdio: ['ignore', 'inherit', 'inherit'] })
  assert.equal(await new Promise((resolve) => { child.on('exit', resolve) }), 0)
})

test('a lease that nobody refers to is released, with a warning', async (t) => {
  v8.setFlagsFromString('--expose-gc')
  const gc = vm.runInNewContext('gc')
  const warnings = warningsIn(t)
  const leases = leasesFor(t)
  await (async () => { await leases.hold('dropped', { ttl: 600_000 }) })()
  const told = await (async () => (await leases.hold('told', { ttl: 600_000 })).signal)()
  await until(async () => {
    await sleep(10)
    gc()
    return !(await isHeld('dropped'))
  })
  assert(!told.aborted && (await isHeld('told')))
  assert(warnings.some(({ name, message }) => name === 'ResourceWarning' && message.includes('"dropped"')))
})

test('connections that wait ask whether the server is alive', async (t) => {
  const delays = []
  const { setKeepAlive } = net.Socket.prototype
  net.Socket.prototype.setKeepAlive = function keepAlive(on, delay) {
    delays.push(on && delay)
    return setKeepAlive.call(this, on, delay)
  }
  t.after(() => { net.Socket.prototype.setKeepAlive = setKeepAlive })
  const leases = leasesFor(t, async () => {
    const client = new pg.Client(server)
    await client.connect()
    return client
  })
  await leases.hold('alive', { ttl: 600_000 })
  leases.hold('alive', { wait: null }).catch(() => {})
  await until(async () => (await waiters('alive')) === 1)
  assert(delays.length >= 2 && delays.every((delay) => delay > 0 && delay <= 10_000))
})

test('a lease and the leases are disposable', async () => {
  const leases = new Leases(server)
  const lease = await leases.tryHold('disposed')
  await lease[asyncDispose]()
  assert(!(await isHeld('disposed')))
  const lost = await leases.tryHold('disposed')
  await sql("SELECT lease_break('disposed')")
  await assert.rejects(lost[asyncDispose](), LeaseLost)
  const held = await leases.hold('disposed')
  await leases[asyncDispose]()
  assert(held.lost && !(await isHeld('disposed')))
})

test('aborted is told to those who ask later', async (t) => {
  const lease = await leasesFor(t).hold('late', { ttl: 1000, renew: false })
  await aborted(lease.signal)
  assert(lease.lost && lease.signal.reason instanceof LeaseLost && lease.signal.reason.reason === 'expired')
  assert.equal(await lease.release(), false)
})
