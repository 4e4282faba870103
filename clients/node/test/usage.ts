// Compiled, not run: each call and option of the package, as a program in TypeScript uses it.

import pg from 'pg'
import { Closed, Lease, LeaseError, LeaseLost, Leases, LeaseTaken, OutcomeUnknown } from 'lease-lock'
import { LeaseStore, leaseStore } from 'lease-lock/verrou'

const pool = new pg.Pool()
const leases = new Leases(pool, { schema: 'leases', hooks: { lost: (lease, error) => console.log(lease.token, error.reason) } })
new Leases('postgres://localhost', { pool })
new Leases(async () => new pg.Client().connect().then(() => new pg.Client()))
new Leases({ host: 'localhost', password: async () => 'secret' }, { connect: () => new pg.Client() })
new Leases()

const result: number = await leases.hold('r', { ttl: 1, wait: null, stopBefore: 1, renew: false, minHold: 1, payload: {} }, async () => 17)
const text: string = await leases.hold('r', (lease: Lease, signal: AbortSignal) => `${lease.token} ${signal.aborted}`)
const lease: Lease | null = await leases.tryHold('r', { mode: 'permit', permits: 3, signal: AbortSignal.timeout(1) })
await using held = await leases.hold('r', { onLost: ({ resource }) => console.log(resource) })
const token: bigint = held.token
const contended: boolean | null = held.contended
const rows = await held.transaction(async (client) => (await client.query<{ id: number }>('SELECT 1 AS id')).rows, { client: new pg.Client() })
const id: number = rows[0].id
const elected: string | undefined = await leases.elect('leader', { ttl: 1 }, async (one, signal) => one.owner)
const job: (name: string) => Promise<number | undefined> =
  leases.once('nightly', { period: 1, ttl: 1, retryFailed: true }, async (one, signal, name: string) => name.length)
const left: string[] = await leases.close({ timeout: 1 })
const { leases: kept, ending, waiting } = leases.counts

const error: unknown = null
if (error instanceof LeaseTaken) console.log(error.blockedBy, error.blockedFor, error.reason)
if (error instanceof LeaseLost && error.reason === 'expired') console.log(error.resource)
if (error instanceof OutcomeUnknown || error instanceof Closed || error instanceof LeaseError) console.log(error.message)

const store: LeaseStore = leaseStore(pool, { schema: 'leases' }).factory()

// @ts-expect-error: no such option
leases.hold('r', { tll: 1 })
// @ts-expect-error: no such reason
if (error instanceof LeaseLost && error.reason === 'gone') console.log(error)
console.log(result, text, lease, token, contended, id, elected, job, left, kept, ending, waiting, store)
