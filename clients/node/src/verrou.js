// Store for @verrou/core: new Verrou({ default: 'lease', stores: { lease: { driver: leaseStore(source) } } })
//
// Verrou renews nothing by itself: its owner calls extend(). A lock without a ttl is a lease of a hundred years.

import { E_LOCK_NOT_OWNED } from '@verrou/core'
import pg from 'pg'
import { now, PATIENCE } from './clock.js'
import { Factory, Links } from './connect.js'
import { actionAfter } from './errors.js'

const MAX = 4
const FOREVER = 100 * 365.25 * 86_400

const text = pg.escapeLiteral
const interval = (ttl) => `pg_catalog.make_interval(secs => ${ttl === null || ttl === undefined ? FOREVER : Number(ttl) / 1000})`

export function leaseStore(source, options) {
  return { factory: () => new LeaseStore(source, options) }
}

export class LeaseStore {
  #links

  constructor(source, options) {
    this.#links = new Links(new Factory(source, options), MAX)
  }

  // Each call ends within 5 seconds. It is made again as long as the server has not got it.
  async #ask(expression) {
    const end = now() + PATIENCE
    for (;;) {
      try {
        return await this.#askOnce(expression, end)
      } catch (error) {
        if (actionAfter(error) !== 'again' || now() + 100 >= end) throw error
      }
      await new Promise((resolve) => { setTimeout(resolve, 100) })
    }
  }

  async #askOnce(expression, end) {
    const limit = () => Math.max(1, end - now())
    const link = await this.#links.take(limit(), limit())
    if (!link) throw new Error('no connection in time')
    try {
      const timeout = `SET LOCAL statement_timeout = ${Math.ceil(limit())};`
      const [{ answer }] = await link.ask(`${timeout} SELECT ${expression(link.place.schema)} AS answer`, limit())
      return answer === 't'
    } finally {
      this.#links.give(link)
    }
  }

  async save(key, owner, ttl) {
    return this.#ask((schema) => `${schema}.lease_acquire(${text(key)}, ${interval(ttl)}, ${text(owner)})`)
  }

  async extend(key, owner, duration) {
    const held = await this.#ask((schema) => `${schema}.lease_renew(${text(key)}, ${interval(duration)}, ${text(owner)})`)
    if (!held) throw new E_LOCK_NOT_OWNED()
  }

  async delete(key, owner) {
    const held = await this.#ask((schema) => `${schema}.lease_release(${text(key)}, ${text(owner)})`)
    if (!held) throw new E_LOCK_NOT_OWNED()
  }

  // Needs EXECUTE on lease_break, which PUBLIC does not have.
  async forceDelete(key) {
    await this.#ask((schema) => `${schema}.lease_break(${text(key)})`)
  }

  async exists(key) {
    return this.#ask((schema) => `EXISTS (SELECT FROM ${schema}.lease_status AS s
      WHERE s.resource OPERATOR(pg_catalog.=) ${text(key)} AND s.state OPERATOR(pg_catalog.=) 'held')`)
  }

  async disconnect() {
    await this.#links.close()
  }
}
