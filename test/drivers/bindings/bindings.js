// The calls of the table of drivers in docs/drivers.md, by node-postgres. Prints
// the version, then what was sent and what came back, as JavaScript writes them.
const { inspect } = require('util');
const { Client } = require('pg');

const say = (...fields) => console.log(fields.join('\t'));

async function main() {
  const client = new Client();
  await client.connect();
  const call = async (sql, values) => (await client.query({ text: sql, values, rowMode: 'array' })).rows[0];

  say(require('pg/package.json').version);
  say('list', inspect(['a', 'b']), inspect((await call('SELECT lease_renew_several($1, $2, $3)', [['a', 'b'], '1 hour', 'o']))[0]));
  const [token] = await call('SELECT lease_token($1, $2)', ['a', 'o']);
  say('token', inspect(token), inspect((await call('SELECT lease_assert_token($1, $2)', ['a', token]))[0]));
  const wait = 'CALL lease_wait($1, $2, $3, $4)';
  say('wait', wait, inspect(await call(wait, ['w', '1 minute', 'o', '10 s']), { breakLength: Infinity }));
  for (const [item, sql, values] of [['lost', 'SELECT lease_assert($1, $2)', ['free', 'o']], ['timeout', 'SELECT lease_release($1, $2)', ['busy', 'o']]]) {
    await call(sql, values).then(() => say(item, sql, 'no error'), (error) => say(item, sql, `${error.constructor.name} ${error.code}`));
  }
  await client.end();
}

main();
