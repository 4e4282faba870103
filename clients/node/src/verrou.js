// Store for @verrou/core: new Verrou({ default: 'lease', stores: { lease: { driver: leaseStore({ pool }) } } })
//
// Verrou renews nothing by itself: its owner calls extend(). A lock without a ttl is a lease of a hundred years.

import { E_LOCK_NOT_OWNED } from '@verrou/core'

const TTL = 'make_interval(secs => coalesce($2::float8 / 1000, 100 * 365.25 * 86400))'

export function leaseStore(options) {
  return { factory: () => new LeaseStore(options) }
}

export class LeaseStore {
  #pool

  constructor({ pool }) {
    this.#pool = pool
  }

  async #ask(expression, values) {
    const { rows } = await this.#pool.query(`SELECT ${expression} AS answer`, values)
    return rows[0].answer
  }

  async save(key, owner, ttl) {
    return this.#ask(`lease_acquire($1, ${TTL}, $3)`, [key, ttl ?? null, owner])
  }

  async extend(key, owner, duration) {
    if (!(await this.#ask(`lease_renew($1, ${TTL}, $3)`, [key, duration, owner]))) throw new E_LOCK_NOT_OWNED()
  }

  async delete(key, owner) {
    if (!(await this.#ask('lease_release($1, $2)', [key, owner]))) throw new E_LOCK_NOT_OWNED()
  }

  // Needs EXECUTE on lease_break, which PUBLIC does not have.
  async forceDelete(key) {
    await this.#ask('lease_break($1)', [key])
  }

  async exists(key) {
    return this.#ask("EXISTS (SELECT FROM lease_status WHERE resource = $1 AND state = 'held')", [key])
  }
}
