import type { Pool } from 'pg'
import type { LockStore } from '@verrou/core/types'

export class LeaseStore implements LockStore {
  constructor(options: { pool: Pool })
  save(key: string, owner: string, ttl: number | null | undefined): Promise<boolean>
  extend(key: string, owner: string, duration: number): Promise<void>
  delete(key: string, owner: string): Promise<void>
  forceDelete(key: string): Promise<void>
  exists(key: string): Promise<boolean>
}

export function leaseStore(options: { pool: Pool }): { factory: () => LeaseStore }
