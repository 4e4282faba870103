// Leases from Node.js, with node-postgres.
//
// Connects as PGHOST, PGPORT, PGUSER and PGDATABASE say. The table:
//
//   CREATE TABLE item (id int PRIMARY KEY, name text NOT NULL, lock_version int NOT NULL DEFAULT 0);
//   SELECT lease_protect('item', 'item:{id}');
//   CREATE TRIGGER item_version BEFORE UPDATE ON item
//     FOR EACH ROW EXECUTE FUNCTION lease_version('lock_version');

'use strict';

const { randomUUID } = require('crypto');
const { Pool } = require('pg');

const pool = new Pool({ max: 4 });

// One call in one transaction, on whatever connection is free.
async function call(statement, args = []) {
  const { rows } = await pool.query({ text: statement, values: args, rowMode: 'array' });
  return rows[0][0];
}

// A transaction of its own; with an owner, one that may write what the owner has leased.
async function transaction(owner, work) {
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    if (owner) {
      // SET LOCAL takes no parameters; this is the same
      await client.query("SELECT set_config('lease_lock.owner', $1, true)", [owner]);
    }
    const result = await work(client);
    await client.query('COMMIT');
    return result;
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  } finally {
    client.release();
  }
}

class Busy extends Error {}

// Runs the work under the lease, as an owner of its own.
async function withLease(resource, work, { ttl = '1 minute', wait = '0' } = {}) {
  const owner = randomUUID();
  if (!await call('SELECT lease_acquire($1, $2, $3, $4)', [resource, ttl, owner, wait])) {
    throw new Busy(resource);
  }
  try {
    return await work(owner);
  } finally {
    await call('SELECT lease_release($1, $2)', [resource, owner]);
  }
}

function rename(owner, name) {
  return transaction(owner, async (client) => {
    const { rows } = await client.query('UPDATE item SET name = $1 WHERE id = 1 RETURNING name, lock_version', [name]);
    return [rows[0].name, rows[0].lock_version];
  });
}

function say(what, ...result) {
  console.log(`${what}:`, ...result);
}

async function leasesInUse() {
  let late;

  await withLease('item:1', async (owner) => {
    say('renamed by the holder', ...await rename(owner, 'chair'));
    say('renewed', await call("SELECT lease_renew('item:1', '5 minutes', $1)", [owner]));
    await withLease('item:1', () => say('two holders')).catch((error) => {
      if (!(error instanceof Busy)) throw error;
      say('busy', error.message);
    });
  });

  await withLease('item:1', async (owner) => {
    say('and again', ...await rename(owner, 'table'));
    late = owner;
  }, { wait: '10 seconds' });

  // The lease was lost before the write, and the write is refused: begin again.
  await rename(late, 'late').catch((error) => say('late write', error.code));

  // The version was read, and somebody wrote meanwhile: read again.
  await withLease('item:1', (owner) => transaction(owner, (client) =>
    client.query('UPDATE item SET name = $1, lock_version = $2 WHERE id = 1', ['stale', 1 + 1])))
    .catch((error) => say('stale version', error.code));
}

// Two transactions that each hold what the other waits for: one is told, rolls back, and may begin again.
async function deadlock() {
  let bothHold;
  let holding = 0;
  const met = new Promise((resolve) => { bothHold = resolve; });
  const cross = (first, second) => transaction(null, async (client) => {
    await client.query("SELECT lease_acquire($1, '1 minute', $2)", [first, first]);
    holding += 1;
    if (holding === 2) bothHold();
    await met;
    await client.query("SELECT lease_acquire($1, '1 minute', $2, '30 seconds')", [second, first]);
    await client.query('SELECT lease_release_all($1)', [first]);
  });
  const ended = await Promise.allSettled([cross('a', 'b'), cross('b', 'a')]);
  say('deadlock', ...ended.filter((one) => one.status === 'rejected').map((one) => one.reason.code));
}

async function mistake(name, statement, before = 'SELECT') {
  await transaction(null, async (client) => {
    await client.query(before);
    await client.query(statement);
    say(name, 'no error');
  }).catch((error) => say(name, error.code));
}

async function mistakes() {
  await mistake('write without a lease', "UPDATE item SET name = 'free'");
  await mistake('assert without a lease', "SELECT lease_assert('item:1', 'nobody')");
  await mistake('null', "SELECT lease_acquire(NULL, '1 minute', 'me')");
  await mistake('empty', "SELECT lease_acquire('', '1 minute', 'me')");
  await mistake('read only', "SELECT lease_acquire('item:2', '1 minute', 'me')", 'SET TRANSACTION READ ONLY');
  await mistake('the lease of another role', "SELECT lease_release('vault', 'boss')");
}

leasesInUse().then(deadlock).then(mistakes).finally(() => pool.end());
