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

	# On a busy machine, a client may warn that it tries again.
	IPC::Run::run([ @$command, $program ], '>', \my $output, '2>', \my $warnings);
	note($warnings);
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

is($node->safe_psql('postgres', 'SELECT resource FROM lease_status'), 'vault', 'nothing is left leased');

# Programs that use the packages, in a file each: with -c, Python would find the library of the extension, lease_lock.so,
# in this folder.
my $root = "$FindBin::RealBin/../../..";
my $folder = PostgreSQL::Test::Utils::tempdir();

$node->safe_psql('postgres', 'CREATE DATABASE app');
$node->safe_psql('app', q{
	CREATE EXTENSION lease_lock;
	CREATE TABLE invoice (id int PRIMARY KEY, sent boolean NOT NULL);
	GRANT SELECT, UPDATE ON invoice TO app;
});

# Whether the program prints this and writes. Where its library is, the environment says.
sub runs_as_printed
{
	my ($name, $command, $program, $expected) = @_;
	my $file = "$folder/$name";

	$node->safe_psql('app', 'TRUNCATE invoice; INSERT INTO invoice VALUES (17, false)');
	append_to_file($file, $program);
	like(printed($node, $command, $file), $expected, "$name: runs as printed");
	is($node->safe_psql('app', 'SELECT sent FROM invoice'), 't', "$name: and writes");
}

SKIP:
{
	my ($program) = slurp_file("$root/README.md") =~ /^```python\n(.*?)^```$/ms;
	my $python = can_run([ 'python3', '/usr/bin/python3' ], '-c', 'import psycopg')
	  or skip 'no Python with psycopg (Debian: python3-psycopg)', 4;
	local $ENV{PYTHONPATH} = "$root/clients/python";

	runs_as_printed('readme.py', [$python], $program, qr/^invoice 17 is ours; token \d+\n$/);
	runs_as_printed('example.py', [$python], snippet('python', 'with Leases('), qr/^work, as long as it takes\n$/);
}

SKIP:
{
	my $ruby = can_run([ 'ruby', '/usr/bin/ruby' ], '-e', 'require "pg"') or skip 'no Ruby with pg (Debian: ruby-pg)', 2;
	local $ENV{RUBYLIB} = "$root/clients/ruby/lib";

	runs_as_printed('example.rb', [$ruby], snippet('ruby', 'Leases.new'), qr/^work, as long as it takes\n$/);
}

SKIP:
{
	chomp(my $path = `$root/clients/java/test/build`);
	skip 'no Java with its driver', 3 if $path eq '';
	my $port = $node->port;

	# Its driver knows no socket of a folder.
	$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
	$node->restart;
	runs_as_printed('Example.java', [ 'java', '-XX:-UsePerfData', '-cp', $path ], snippet('java', 'new Leases(') =~ s/localhost/127.0.0.1:$port/r,
		qr/^work, as long as it takes\n$/);
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
