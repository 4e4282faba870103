import type { Pool, PoolClient, PoolConfig } from 'pg'

/** All times are in milliseconds. */
export interface LeaseOptions {
  /** How long the lease lasts without a renewal. Default: 30000. */
  ttl?: number
  /** How long to wait if it is taken; null: without limit. Default: 0. */
  wait?: number | null
  mode?: 'exclusive' | 'shared' | 'permit'
  permits?: number
  minHold?: number
  lockDelay?: number
  payload?: unknown
  ifOwn?: 'refuse' | 'renew' | 'count'
  /** Default: host:pid:uuid. */
  owner?: string
  onLost?: (lease: Lease) => void
}

export interface Lease {
  readonly resource: string
  readonly owner: string
  readonly mode: string
  readonly token: bigint
  /** Aborts before anybody else can have the lease. */
  readonly signal: AbortSignal
  readonly lost: boolean
  /** Milliseconds until the lease is given up as lost, unless it is renewed before. */
  remaining(): number
  /** Throws LeaseLost if the lease is lost, or was released. */
  check(): void
  release(): Promise<boolean>
  /** A transaction that asserts the lease. It is rolled back if the lease is lost meanwhile. */
  transaction<T>(work: (client: PoolClient) => Promise<T>): Promise<T>
  [Symbol.asyncDispose](): Promise<void>
}

export class LeaseTaken extends Error {
  readonly resource: string
  readonly reason: string
  readonly blockedBy: string | null
  readonly blockedFor: number | null
}

export class LeaseLost extends Error {
  readonly resource: string
  readonly reason: string
}

export class Closed extends Error {}

type Work<T> = (lease: Lease, signal: AbortSignal) => Promise<T> | T

export class Leases {
  constructor(source?: Pool | PoolConfig | string)
  hold<T>(resource: string, options: LeaseOptions, work: Work<T>): Promise<T>
  hold<T>(resource: string, work: Work<T>): Promise<T>
  hold(resource: string, options?: LeaseOptions): Promise<Lease>
  tryHold(resource: string, options?: Omit<LeaseOptions, 'wait'>): Promise<Lease | null>
  elect<T>(resource: string, options: Omit<LeaseOptions, 'wait'>, run: Work<T>): Promise<T | undefined>
  once<A extends unknown[], T>(
    name: string,
    options: Omit<LeaseOptions, 'wait' | 'ttl' | 'minHold'> & { period: number },
    job: (lease: Lease, signal: AbortSignal, ...args: A) => Promise<T> | T,
  ): (...args: A) => Promise<T | undefined>
  close(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}
