// What each call does when nothing goes wrong, and when the lease is lost or the answer is. What happens to a holder
// when server and network fail is in ../../python/tests/test_holders.py, for all languages.

import assert from 'node:assert/strict'
import { after, afterEach, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Closed, LeaseLost, Leases, LeaseTaken } from 'lease-lock'
import { aborted, isHeld, LONG, Proxy, server, slowness, sql, start, stop, until, waiters } from './setup.js'

let places
before(async () => { places = await start() })
after(stop)
afterEach(() => sql('SELECT lease_break(resource) FROM lease_status'))

// The test runs directly, and through PgBouncer.
function everywhere(name, run) {
  test(name, async (t) => {
    for (const [place, config] of Object.entries(places)) {
      await t.test(place, async () => {
        const leases = new Leases(config)
        try {
          await run(leases)
        } finally {
          await leases.close()
          await sql('SELECT lease_break(resource) FROM lease_status')
        }
      })
    }
  })
}

async function lost(promise) {
  await assert.rejects(promise, LeaseLost)
}

everywhere('hold excludes until its function ends', async (leases) => {
  const seen = await leases.hold('door', { ttl: 600_000, payload: { why: 'paint' } }, async (lease, signal) => {
    assert.equal(typeof lease.token, 'bigint')
    assert(lease.remaining() > 0 && lease.remaining() < 600_000 && !lease.lost && !signal.aborted)
    assert.deepEqual(await sql("SELECT owner, token, payload FROM lease_status WHERE resource = 'door'"),
      [[lease.owner, String(lease.token), { why: 'paint' }]])
    assert.equal(lease.owner.split(':')[1], String(process.pid))
    assert.equal(await leases.tryHold('door'), null)
    await assert.rejects(leases.hold('door', { wait: 100 }), (error) => {
      assert(error instanceof LeaseTaken)
      assert.deepEqual([error.reason, error.blockedBy], ['held', lease.owner])
      return error.blockedFor > 400_000 && error.blockedFor <= 600_000
    })
    return lease
  })
  assert(!seen.lost && seen.remaining() === 0)
  const second = await leases.tryHold('door')
  assert(second.token > seen.token)
  assert.equal(await second.release(), true)
  assert.equal(await second.release(), false)
  await assert.rejects(leases.hold('door', () => { throw new RangeError('mine') }), RangeError)
  assert(!(await isHeld('door')))
})

everywhere('modes and options', async (leases) => {
  const shared = [await leases.hold('atlas', { mode: 'shared' }), await leases.hold('atlas', { mode: 'shared' })]
  assert.equal(await leases.tryHold('atlas'), null)
  await Promise.all(shared.map((lease) => lease.release()))
  const permit = { mode: 'permit', permits: 2 }
  await leases.hold('printer', permit)
  await leases.hold('printer', permit)
  assert.equal(await leases.tryHold('printer', permit), null)
  const outer = await leases.hold('again', { ifOwn: 'count' })
  const inner = await leases.hold('again', { ifOwn: 'count' })
  assert.equal(inner.token, outer.token)
  await inner.release()
  assert(await isHeld('again'))
  await outer.release()
  assert(!(await isHeld('again')))
  await (await leases.hold('kept', { ttl: 60_000, minHold: 60_000 })).release()
  assert.equal(await leases.tryHold('kept'), null)
  await assert.rejects(leases.hold('door', { ttl: '30000' }), TypeError)
  await assert.rejects(leases.hold('door', { mode: 'sideways' }), { code: '22023' })
})

everywhere('a wait ends with the release', async (leases) => {
  const ttl = 6000 * (await slowness())
  const first = await leases.hold('queue', { ttl: 600_000 })
  const waiting = leases.hold('queue', { ttl, wait: LONG })
  await sleep(ttl + 500) // longer than its ttl: the lease counts from the grant, not from the request
  await first.release()
  const second = await waiting
  assert(second.remaining() > 0 && second.remaining() <= ttl)
})

everywhere('renewal outlasts the ttl', async (leases) => {
  const slow = await slowness()
  await leases.hold('long', { ttl: 10_000 * slow }, async (lease) => {
    for (let n = 0; n < 13; n++) {
      await sleep(800 * slow)
      assert(!lease.lost && (await isHeld('long')))
    }
  })
})

everywhere('a broken lease is lost at the next renewal', async (leases) => {
  let told
  await lost(leases.hold('broken', { ttl: 3000, onLost: (lease) => { told = lease } }, async (lease, signal) => {
    await sql("SELECT lease_break('broken')")
    await aborted(signal)
    assert(lease.lost && signal.reason instanceof LeaseLost)
    await lost(lease.transaction(() => assert.fail('it is lost')))
  }))
  assert.equal(told.resource, 'broken')
  await lost(leases.hold('broken', { ttl: 600_000 }, () => sql("SELECT lease_break('broken')")))
})

test('transaction commits, or rolls back what was written under a lost lease', async (t) => {
  await sql('CREATE TABLE entry (id int PRIMARY KEY)')
  await sql("SELECT lease_protect('entry', 'entry')")
  const pool = new pg.Pool(server)
  const proxy = await Proxy.start()
  const renewals = { connect: () => pool.connect(), options: proxy.at }
  const leases = new Leases(renewals)
  t.after(async () => {
    proxy.close()
    await leases.close()
    await pool.end()
    await sql('DROP TABLE entry')
  })
  const add = (id) => async (client) => { await client.query('INSERT INTO entry VALUES ($1)', [id]) }

  await leases.hold('entry', async (lease) => {
    await lease.transaction(add(1))
    await assert.rejects(lease.transaction(async (client) => { await add(2)(client); throw new RangeError('mine') }), RangeError)
    await assert.rejects(lease.transaction(async (client) => {
      await add(3)(client)
      await client.query('SELECT 1 / 0').catch(() => {})
    }), /rolled back/)
  })
  await lost(leases.hold('entry', { ttl: 600_000 }, async (lease) => {
    await sql("SELECT lease_break('entry')")
    await lease.transaction(add(4))
  }))
  // Renewal hangs; the transaction itself has a good connection, so only the loss can end it.
  await lost(leases.hold('entry', { ttl: 2000 }, async (lease) => {
    await lease.transaction(async (client) => {
      proxy.silent = true
      await add(5)(client)
      await client.query('SELECT pg_sleep(5)')
    })
  }))
  assert.deepEqual(await sql('SELECT id FROM entry'), [[1]])
})

for (const word of ['lease_request', 'lease_renew', 'lease_release', 'lease_assert']) {
  test(`a lost answer to ${word} is asked for again`, async (t) => {
    const proxy = await Proxy.start()
    const leases = new Leases(proxy.at)
    t.after(async () => { await leases.close(); proxy.close() })
    proxy.loseAnswerTo = word
    await leases.hold('answer', { ttl: 9000 * (await slowness()) }, async (lease) => {
      await until(() => proxy.loseAnswerTo === null || !['lease_request', 'lease_renew'].includes(word))
      await lease.transaction((client) => client.query('SELECT 1'))
      await sleep(1000)
      assert(!lease.lost && (await isHeld('answer')))
    })
    assert.equal(proxy.loseAnswerTo, null)
    assert(!(await isHeld('answer')))
  })
}

test('one locked row does not lose other leases', async (t) => {
  const leases = new Leases(server)
  const blocker = new pg.Client(server)
  await blocker.connect()
  t.after(() => leases.close())
  const held = []
  const ttl = 12_000 * (await slowness())
  for (let n = 0; n < 50; n++) held.push(await leases.hold(`many:${n}`, { ttl }))
  await blocker.query("BEGIN; SELECT FROM lease_lock WHERE resource = 'many:7' FOR UPDATE")
  await aborted(held[7].signal)
  await blocker.end() // before leases are ended after the test
  assert.deepEqual(held.filter((lease) => lease.lost).map((lease) => lease.resource), ['many:7'])
})

test('500 leases with one connection for renewal', async (t) => {
  const config = { ...server, application_name: 'crowd', max: 1, idleTimeoutMillis: 0 }
  const leases = new Leases(config)
  t.after(() => leases.close())
  const held = []
  const slow = await slowness()
  for (let n = 0; n < 500; n++) held.push(await leases.hold(`crowd:${n}`, { ttl: 12_000 * slow }))
  const calls = async () => Number((await sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'crowd'"))[0][0])
  await sleep(8000 * slow)
  assert.equal(held.filter((lease) => lease.lost).length, 0)
  assert.equal(await calls(), 2)
})

everywhere('elect runs while leader, and stands again', async (leases) => {
  const terms = []
  const result = await leases.elect('leader', { ttl: 9000 * (await slowness()) }, async (lease, signal) => {
    terms.push(lease.token)
    if (terms.length > 1) return 'done'
    await sql("SELECT lease_break('leader')")
    await aborted(signal)
    return 'never seen'
  })
  assert.equal(result, 'done')
  assert(terms.length === 2 && terms[0] < terms[1])
})

everywhere('elect ends with an error of its function, and of its arguments', async (leases) => {
  for (const error of [new RangeError('mine'), new Error('mine'), new LeaseTaken('other', { reason: 'held', blocked_by: null, blocked_for: null }),
    new LeaseLost('other', 'mine')]) {
    await assert.rejects(leases.elect('leader', {}, () => { throw error }), (thrown) => thrown === error)
    assert(!(await isHeld('leader')))
  }
  await assert.rejects(leases.elect('leader', { ttl: -1 }, () => {}), RangeError)
})

everywhere('a transaction under a lease of 100 days', (leases) =>
  leases.hold('days', { ttl: 100 * 86_400_000 }, (lease) => lease.transaction((client) => client.query('SELECT 1'))))

test('a connection for renewal that takes long to open is used all the same', async (t) => {
  // A third of the ttl is over before the renewal, another sixth before it is connected.
  const ttl = 12_000 * (await slowness())
  class Slow extends pg.Client {
    async connect() {
      await sleep(ttl / 6 + 200)
      return super.connect()
    }
  }
  const pool = new pg.Pool(server)
  const leases = new Leases({ connect: () => pool.connect(), options: { ...server, Client: Slow } })
  t.after(async () => { await leases.close(); await pool.end() })
  await leases.hold('slow', { ttl }, async (lease) => {
    const deadline = lease.deadline
    await until(() => lease.lost || lease.deadline > deadline)
    lease.check()
  })
})

everywhere('once in a period', async (leases) => {
  const job = leases.once('nightly', { period: 3_600_000 }, async (lease, signal, what) => [what, lease.token > 0n])
  assert.deepEqual(await job('swept'), ['swept', true])
  assert.equal(await job('swept'), undefined)
})

test('close releases, and leaves no timer and no connection', async () => {
  const kinds = () => process.getActiveResourcesInfo().filter((kind) => kind !== 'CloseReq').sort()
  const mine = async () => (await sql("SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'close'"))[0][0]
  await mine()
  const before = kinds()
  const leases = new Leases({ ...server, application_name: 'close' })
  const lease = await leases.hold('close', { ttl: 600_000 })
  const waiting = leases.hold('close', { wait: null })
  await until(async () => (await waiters('close')) === 1)
  assert.notDeepEqual(kinds(), before)
  const closed = leases.close()
  await assert.rejects(waiting, Closed)
  await closed
  assert(lease.lost && (await lease.release()) === false)
  await until(async () => (await mine()) === 0)
  await until(() => String(kinds()) === String(before))
  assert(!(await isHeld('close')))
  await assert.rejects(leases.hold('close'), Closed)
})

test('a lease and the leases are disposable', async () => {
  const dispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')
  const leases = new Leases(server)
  const lease = await leases.tryHold('disposed')
  await lease[dispose]()
  assert(!(await isHeld('disposed')))
  await leases.hold('disposed')
  await leases[dispose]()
  assert(!(await isHeld('disposed')))
})
