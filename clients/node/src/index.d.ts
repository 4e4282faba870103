import type { ClientBase, Pool, PoolConfig } from 'pg'

/** All times are in milliseconds. */
export interface LeaseOptions {
  /** How long the lease lasts without a renewal. Default: 30000. */
  ttl?: number
  /** How long to wait if it is taken, or the server is away; null: without limit. Default: 0. */
  wait?: number | null
  /** How long before the end of the lease the holder must have stopped: then its signal aborts. Default: a sixth of the ttl. 0: at its end. */
  stopBefore?: number
  /** False: the lease has a fixed life. Default: true. */
  renew?: boolean
  mode?: 'exclusive' | 'shared' | 'permit'
  permits?: number
  /** A release before this time keeps the lease until then. It may be longer than the ttl. */
  minHold?: number
  payload?: unknown
  ifOwn?: 'refuse' | 'renew' | 'count'
  /** Default: host:pid:uuid. */
  owner?: string
  /** Called before anybody else can have the lease, but not by close(). If it throws or rejects, that is a warning. */
  onLost?: (lease: Lease) => void
  /** Ends the call, not the lease: hold() rejects with its reason, and nothing is left at the server. */
  signal?: AbortSignal
}

export interface Lease {
  readonly resource: string
  readonly owner: string
  readonly mode: string
  readonly token: bigint
  /** Aborts before anybody else can have the lease. */
  readonly signal: AbortSignal
  readonly lost: boolean
  /** Does anybody wait for it? By the last renewal; null if that is not known. */
  readonly contended: boolean | null
  /** Milliseconds until the lease is given up as lost, unless it is renewed before. */
  remaining(): number
  /** Throws LeaseLost if the lease is lost, or was released. */
  check(): void
  /** False if it was not held any longer. Rejects with OutcomeUnknown after 5 seconds; the release goes on. */
  release(): Promise<boolean>
  /** A transaction that asserts the lease. It is rolled back if the lease is lost, or the signal aborts. */
  transaction<T>(work: (client: ClientBase) => Promise<T> | T, options?: { client?: ClientBase; signal?: AbortSignal }): Promise<T>
  [Symbol.asyncDispose](): Promise<void>
}

/** Base class of the errors of this package. All others are those of pg, of the language for a wrong argument, or a plain Error: no connection in time. */
export class LeaseError extends Error {
  readonly resource: string | null
  readonly reason: string | null
}

export class LeaseTaken extends LeaseError {
  readonly resource: string
  /** As lease_request tells it: held, open, queue, own, failover. */
  readonly reason: string
  readonly blockedBy: string | null
  readonly blockedFor: number | null
}

export class LeaseLost extends LeaseError {
  readonly resource: string
  readonly reason: 'expired' | 'broken' | 'taken_over' | 'closed' | 'released'
}

/** The request was sent, and no answer came. */
export class OutcomeUnknown extends LeaseError {
  readonly resource: string
}

export class Closed extends LeaseError {}

/** A function that resolves to a client that is connected. */
export type Connect = () => Promise<ClientBase> | ClientBase

export interface LeaseInfo {
  readonly resource: string
  readonly owner: string
  readonly mode: string
  readonly token: bigint
}

/** For logging and counting. They are called with plain data. One that throws or rejects is a warning. */
export interface Hooks {
  /** Milliseconds that the request took. */
  granted?: (lease: LeaseInfo, took: number) => void
  renewed?: (lease: LeaseInfo) => void
  lost?: (lease: LeaseInfo, error: LeaseLost) => void
  /** Milliseconds of a wait at the server, whether the lease was granted then or not. */
  waited?: (request: Omit<LeaseInfo, 'token'>, took: number) => void
}

export interface LeasesOptions {
  /** Makes all connections for lease statements. */
  connect?: Connect
  /** For lease.transaction(), if the source is no pool. */
  pool?: Pool
  /** Where the functions are, if they are not those of the extension. */
  schema?: string
  hooks?: Hooks
}

type Work<T> = (lease: Lease, signal: AbortSignal) => Promise<T> | T

export class Leases {
  constructor(source?: Pool | PoolConfig | string | Connect, options?: LeasesOptions)
  hold<T>(resource: string, options: LeaseOptions, work: Work<T>): Promise<T>
  hold<T>(resource: string, work: Work<T>): Promise<T>
  hold(resource: string, options?: LeaseOptions): Promise<Lease>
  tryHold(resource: string, options?: Omit<LeaseOptions, 'wait'>): Promise<Lease | null>
  elect<T>(resource: string, options: Omit<LeaseOptions, 'wait'>, run: Work<T>): Promise<T | undefined>
  once<A extends unknown[], T>(
    name: string,
    options: Omit<LeaseOptions, 'wait' | 'minHold'> & { period: number; retryFailed?: boolean },
    job: (lease: Lease, signal: AbortSignal, ...args: A) => Promise<T> | T,
  ): (...args: A) => Promise<T | undefined>
  /** Leases that are kept, ends that the server has not answered, connections that wait. */
  readonly counts: { leases: number; ending: number; waiting: number }
  /** Resolves to the resources that could not be released within the timeout (default: 10000). */
  close(options?: { timeout?: number }): Promise<string[]>
  [Symbol.asyncDispose](): Promise<void>
}
