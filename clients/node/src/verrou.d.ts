import type { Pool, PoolConfig } from 'pg'
import type { LockStore } from '@verrou/core/types'
import type { Connect } from './index.js'

type Source = Pool | PoolConfig | string | Connect
type Options = { connect?: Connect; schema?: string }

export class LeaseStore implements LockStore {
  constructor(source?: Source, options?: Options)
  save(key: string, owner: string, ttl: number | null | undefined): Promise<boolean>
  extend(key: string, owner: string, duration: number): Promise<void>
  delete(key: string, owner: string): Promise<void>
  forceDelete(key: string): Promise<void>
  exists(key: string): Promise<boolean>
  disconnect(): Promise<void>
}

export function leaseStore(source?: Source, options?: Options): { factory: () => LeaseStore }
