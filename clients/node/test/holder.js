// Holds leases until standard input ends, each with its own renewals: holder.js dsn ttl resource...
// The time of a loss is told by CLOCK_BOOTTIME, which os.uptime() is on Linux.

import os from 'node:os'
import { Leases } from 'lease-lock'

const [dsn, ttl, ...resources] = process.argv.slice(2)
const options = Object.fromEntries(dsn.split(' ').map((word) => word.split('=')))
const all = []

function end() {
  process.stdin.pause()
  Promise.all(all.map((leases) => leases.close())).then(() => process.exit(0))
}

process.on('SIGTERM', end)
for (const resource of resources) {
  const leases = new Leases({ host: options.host, port: Number(options.port), user: options.user, database: options.dbname })
  all.push(leases)
  const lease = await leases.hold(resource, {
    ttl: Number(ttl) * 1000,
    wait: 60_000, // patience with a slow machine: the lease is free
    onLost: () => console.log('lost', resource, os.uptime() + 0.01),
  })
  console.log('held', resource, String(lease.token))
}
process.stdin.on('end', end).resume()
