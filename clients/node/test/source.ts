// The classes of the source are those of the declarations, which TypeScript reads in their place. The test copies the
// source without the declarations into the folder "source".

import type * as types from 'lease-lock'
import type { LeaseStore as Store } from 'lease-lock/verrou'
import * as source from './source/index.js'
import { Lease } from './source/lease.js'
import { LeaseStore } from './source/verrou.js'

// Compilers do not know which symbol the source takes.
type Plain<T> = Omit<T, typeof Symbol.asyncDispose>
type Hidden<Mine, Declared> = Exclude<keyof Mine, keyof Declared | symbol>

export const leases = (one: source.Leases): Plain<types.Leases> => one
export const lease = (one: Lease): Plain<types.Lease> => one
export const store = (one: LeaseStore): Store => one
export const hidden: Hidden<source.Leases, types.Leases> | Hidden<LeaseStore, Store> = undefined as never
export const internal: '_end' | '_loss' | '_succeeded' = undefined as unknown as Hidden<Lease, types.Lease>
export const errors = (one: source.LeaseTaken | source.OutcomeUnknown | source.Closed): types.LeaseError => one
export const lost = (one: Omit<source.LeaseLost, 'reason'>): Omit<types.LeaseLost, 'reason'> => one
