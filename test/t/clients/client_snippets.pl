# The program in the README runs as it is printed. The programs in docs/clients.md do what the document says; each gets
# what it leaves out: a connection before it, and a line at its end that prints what it did.
use strict;
use warnings;

use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/..";

use ClientTest;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $document = slurp_file("$FindBin::RealBin/../../../docs/clients.md");

# The block in this language that contains the text.
sub snippet
{
	my ($language, $text) = @_;
	my ($found) = grep { /\Q$text\E/ } $document =~ /^```$language\n(.*?)^```$/msg;

	ok(defined $found, "docs/clients.md: $language with $text");
	return $found // '';
}

# What the program prints, connected to the node as role app.
sub printed
{
	my ($node, $command, $program) = @_;
	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, 'app', 'postgres');

	IPC::Run::run([ @$command, $program ], '>&', \my $output);
	return $output;
}

my $node = start_client_node('snippets', 'item');

foreach my $driver (qw(psycopg psycopg2))
{
  SKIP:
	{
		my $python = can_run([ 'python3', '/usr/bin/python3' ], '-c', "import $driver")
		  or skip "no Python with $driver (Debian: python3-$driver)", 1;
		is(printed($node, [ $python, '-c' ], <<"PROGRAM"), "chair\n", "$driver: write under a lease");
import uuid, $driver
connection = $driver.connect("")
cursor = connection.cursor()
${\ snippet('python', 'cursor.execute("SELECT lease_acquire') }
cursor.execute("SELECT name FROM item WHERE id = 1")
print(cursor.fetchone()[0])
PROGRAM
		$node->safe_psql('postgres', q{
			ALTER TABLE item DISABLE TRIGGER USER;
			UPDATE item SET name = 'wood' WHERE id = 1;
			ALTER TABLE item ENABLE TRIGGER USER;
		});
	}
}

SKIP:
{
	my $node_js = can_run([ 'node', '/usr/bin/node' ], '-e', 'require("pg")')
	  or skip 'no Node.js with pg (Debian: node-pg)', 1;
	is(printed($node, [ $node_js, '-e' ], <<"PROGRAM"), "chair\n", 'node-postgres: write under a lease');
const crypto = require('crypto');
const { Pool } = require('pg');
const pool = new Pool();
(async () => {
${\ snippet('js', 'pool.connect') }
console.log((await pool.query('SELECT name FROM item WHERE id = 2')).rows[0].name);
await pool.end();
})();
PROGRAM
}

SKIP:
{
	my $ruby = can_run([ 'ruby', '/usr/bin/ruby' ], '-e', 'require "active_record"; require "pg"')
	  or skip 'no Ruby with ActiveRecord and pg (Debian: ruby-activerecord, ruby-pg)', 1;
	is(printed($node, [ $ruby, '-e' ], <<"PROGRAM"), "chair\n", 'ActiveRecord: write under a lease');
require 'active_record'
require 'securerandom'
ActiveRecord::Base.establish_connection(adapter: 'postgresql')
class Item < ActiveRecord::Base
  self.table_name = 'item'
end
item = Item.find(3)
${\ snippet('ruby', 'with_lock') }
puts Item.find(3).name
PROGRAM
}

is($node->safe_psql('postgres', 'SELECT resource FROM lease_status'), 'vault', 'nothing is left leased');

SKIP:
{
	my $root = "$FindBin::RealBin/../../..";
	my ($program) = slurp_file("$root/README.md") =~ /^```python\n(.*?)^```$/ms;
	my $python = can_run([ 'python3', '/usr/bin/python3' ], '-c', 'import psycopg')
	  or skip 'no Python with psycopg (Debian: python3-psycopg)', 2;
	local $ENV{PYTHONPATH} = "$root/clients/python";

	$node->safe_psql('postgres', 'CREATE DATABASE app');
	$node->safe_psql('app', q{
		CREATE EXTENSION lease_lock;
		CREATE TABLE invoice (id int PRIMARY KEY, sent boolean NOT NULL);
		INSERT INTO invoice VALUES (17, false);
		GRANT SELECT, UPDATE ON invoice TO app;
	});
	# In a file: with -c, Python would find the library of the extension, lease_lock.so, in this folder.
	my $file = PostgreSQL::Test::Utils::tempdir() . '/readme.py';
	append_to_file($file, $program);
	like(printed($node, [$python], $file), qr/^invoice 17 is ours; token \d+\n$/, 'README: runs as printed');
	is($node->safe_psql('app', 'SELECT sent FROM invoice'), 't', 'README: and writes');
}

# The extension in another schema: with the option that the document names, and not without it.
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
$node->safe_psql('elsewhere', q{
	CREATE SCHEMA leases;
	GRANT USAGE ON SCHEMA leases TO PUBLIC;
	CREATE EXTENSION lease_lock SCHEMA leases;
});

my ($table) = $document =~ /^## The extension in another schema\n(.*?)(?=^## |\z)/msg;
my %option = $table =~ /^\| ([^|]*) \| `([^`|]*)`[^|`]*\|$/mg;

# The option of the client whose row begins so.
sub option
{
	my ($client) = @_;
	my ($row) = grep { /^\Q$client\E/ } keys %option;

	ok(defined $row, "docs/clients.md: option of $client");
	return $option{ $row // '' } // '';
}

my $call = q{SELECT lease_acquire('far', '1 minute', 'me', '1 s'), lease_release('far', 'me')};
my $libpq = option('libpq') =~ s/'/\\'/gr;
my $python = q{
connection = %s
cursor = connection.cursor()
cursor.execute("""%s""")
print(*cursor.fetchone())
};
my %client = (
	psql => [ [ 'psql', '--version' ], [ 'psql', '-XAtF', ' ', '-c', $call, '-d' ], option('libpq') . ' dbname=elsewhere' ],
	'psql, URL' => [ [ 'psql', '--version' ], [ 'psql', '-XAtF', ' ', '-c', $call, '-d' ], 'postgresql:///elsewhere' . option('URLs of libpq') ],
	psycopg => [ [ '/usr/bin/python3', '-c', 'import psycopg' ], [ '/usr/bin/python3', '-c' ],
		"import psycopg\n" . sprintf($python, "psycopg.connect('$libpq dbname=elsewhere')", $call) ],
	psycopg2 => [ [ '/usr/bin/python3', '-c', 'import psycopg2' ], [ '/usr/bin/python3', '-c' ],
		"import psycopg2\n" . sprintf($python, "psycopg2.connect('$libpq dbname=elsewhere')", $call) ],
	asyncpg => [ [ '/usr/bin/python3', '-c', 'import asyncpg' ], [ '/usr/bin/python3', '-c' ], <<"PROGRAM" ],
import asyncio, asyncpg
async def main():
    connection = await asyncpg.connect(database="elsewhere", ${\ option('asyncpg') })
    print(*await connection.fetchrow("""$call"""))
asyncio.run(main())
PROGRAM
	'ruby-pg' => [ [ 'ruby', '-e', 'require "pg"' ], [ 'ruby', '-e' ],
		"require 'pg'\nputs PG.connect('$libpq dbname=elsewhere').exec(%q($call)).values.first.join(' ')\n" ],
	'node-postgres' => [ [ 'node', '-e', 'require("pg")' ], [ 'node', '-e' ], <<"PROGRAM" ]);
const { Client } = require('pg');
(async () => {
  const client = new Client({ database: 'elsewhere', ...(${\ option('pg,') }) });
  await client.connect();
  console.log(...Object.values((await client.query(`$call`)).rows[0]));
  await client.end();
})();
PROGRAM

foreach my $name (sort keys %client)
{
	my ($needs, $command, $program) = @{ $client{$name} };

  SKIP:
	{
		skip "no $name", 1 if !can_run([ $needs->[0] ], @{$needs}[ 1 .. $#$needs ]);
		like(printed($node, $command, $program), qr/^(t t|True True|true true)$/, "$name: in another schema");
	}
}
is($node->psql('elsewhere', $call), 3, 'without the option');
$node->stop;

done_testing();
