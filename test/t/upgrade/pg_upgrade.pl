# pg_upgrade takes leases, tokens and tombstones along to a newer server, which
# scripts/check-upgrade provides.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseCluster;
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $other = $ENV{LEASE_LOCK_OTHER_SERVER};

plan skip_all => 'needs a newer server: run scripts/check-upgrade' if !$other;

# The locale has to be one that both C libraries have.
my @locale = (extra => [ '--no-locale', '--encoding=UTF8' ]);
my $old = start_node('old', "shared_preload_libraries = 'lease_lock'", @locale);
my $new = LeaseCluster->new('new', install_path => $other);

# Transaction ids that do not fit into 32 bits, as after years.
$old->stop;
command_ok([ 'pg_resetwal', '--epoch', 5, $old->data_dir ], 'transaction ids beyond 32 bits');
$old->start;

$old->safe_psql('postgres', q{
	CREATE ROLE worker LOGIN;
	CREATE ROLE gone LOGIN;
	SELECT setval('lease_token_seq', 123456789012);
	CREATE DATABASE second;
});
$old->safe_psql('second', 'CREATE SCHEMA locks; CREATE EXTENSION lease_lock SCHEMA locks');
$old->safe_psql('second', q{SELECT locks.lease_acquire('s', '1 day', 'second')});
$old->safe_psql('postgres', $_, extra_params => [ '-U', 'worker' ])
  foreach q{SELECT lease_acquire('worker''s "1"', '1 day', 'wörker')},
  q{SELECT lease_acquire('released', '1 day', 'w'), lease_release('released', 'w')};
$old->safe_psql('postgres', q{SELECT lease_acquire('gone', '1 day', 'g')}, extra_params => [ '-U', 'gone' ]);
$old->safe_psql('postgres', q{
	DROP ROLE gone;
	SELECT lease_acquire('super ' || n, '1 day', 'o') FROM generate_series(1, 100) AS n;
	SELECT lease_release('super ' || n, 'o') FROM generate_series(1, 100, 3) AS n;
	SELECT lease_renew('super 2', '2 days', 'o');
	SELECT lease_acquire('expired', '1 ms', 'e');
});
$old->safe_psql('postgres', q{CREATE INDEX by_owner ON lease_lock (owner)});

my $everything = 'SELECT * FROM lease_lock ORDER BY resource';
my $sequence = 'SELECT last_value, is_called FROM lease_token_seq';
my $leases = $old->safe_psql('postgres', $everything);
my $last_token = $old->safe_psql('postgres', $sequence);
my $last_xid = $old->safe_psql('postgres', 'SELECT pg_current_xact_id()');

cmp_ok($last_xid, '>', 5 * 2**32, 'the old server uses transaction ids beyond 32 bits');
$old->stop;

$new->init(@locale);
chdir $PostgreSQL::Test::Utils::tmp_check or die "could not change to tmp_check: $!";
$new->command_ok(
	[
		'pg_upgrade', '--no-sync',
		'-d', $old->data_dir, '-D', $new->data_dir,
		'-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
		'-s', $new->host, '-p', $old->port, '-P', $new->port
	],
	'pg_upgrade');
$new->start;

my $psql = sub { return $new->safe_psql('postgres', @_) };

cmp_ok($psql->('SHOW server_version_num'), '>=', 170000, 'a newer server');
is($psql->($everything), $leases, 'every row is what it was, its transaction id included');
is($psql->($sequence), $last_token, 'and so is the token sequence');
is($psql->(q{SELECT count(*), bool_and(xid < pg_current_xact_id()) FROM lease_lock}), '104|t',
	'transaction ids of the grants are in the past');
is($psql->(q{SELECT DISTINCT pg_xact_status(xid) FROM lease_lock}), 'committed', 'and known to have committed');
is($psql->(q{SELECT string_agg(DISTINCT state || ' ' || role, ',' ORDER BY state || ' ' || role)
		FROM lease_status WHERE resource <> 'gone'}),
	'expired ' . $new->safe_psql('postgres', 'SELECT current_user') . ',held '
	  . $new->safe_psql('postgres', 'SELECT current_user') . ',held worker',
	'lease_status: states and roles');
like($psql->(q{SELECT role FROM lease_status WHERE resource = 'gone'}), qr/unknown \(OID=\d+\)/,
	'lease_status: a role that was dropped before');

# Held is held, for the same owners and roles.
is($psql->(q{SELECT count(*) FROM generate_series(1, 100) AS n
		WHERE n % 3 <> 1 AND NOT lease_acquire('super ' || n, '1 day', 'thief') AND lease_token('super ' || n, 'o') > 0}),
	66, 'who held a lease holds it');
is($psql->(q{SELECT lease_acquire('worker''s "1"', '1 day', 'thief')}), 'f', 'whatever its name');
sql_fails($new, q{SELECT lease_release('super 2', 'o')}, '42501', 'permission denied for lease',
	'another role cannot release it', role => 'worker');
is($psql->(q{SELECT lease_release('worker''s "1"', 'wörker')}, extra_params => [ '-U', 'worker' ]), 't',
	'its own role can');
is($psql->(q{SELECT lease_renew('super 2', '3 days', 'o'), lease_release('super 2', 'o')}), 't|t', 'renewal and release');
is($new->safe_psql('second', q{SELECT locks.lease_acquire('s', '1 day', 'thief'), locks.lease_release('s', 'second')}),
	'f|t', 'another database, another schema');

# Tokens go on above all from before, on tombstones, expired leases and new ones.
my ($highest) = split /\|/, $last_token;
foreach my $resource ('released', 'expired', 'new', 'super 1')
{
	is($psql->("SELECT lease_acquire('$resource', '1 day', 'n')"), 't', "$resource: granted");
	cmp_ok($psql->("SELECT lease_token('$resource', 'n')"), '>', $highest, "$resource: with a token above all from before");
}

# Waiting works, and so does the rest.
my $waiter = open_session($new);
send_to_wait($new, $waiter, q{SELECT lease_acquire('super 3', '1 day', 'w', '1 min')});
is(look($new, 'SELECT count(*) FROM lease_waiters'), 1, 'a waiter in the queue');
is(look($new, q{SELECT lease_release('super 3', 'o')}), 't', 'released');
is(answer($waiter), 't', 'the waiter gets it');
$waiter->quit;
is($psql->(q{SET lease_lock.purge_after = 0; SELECT lease_purge()}), 35, 'purge removes what had ended');
is($psql->(q{SELECT lease_release_all('o') + lease_release_all('n') + lease_release_all('w') + lease_release_all('g')}),
	70, 'release of all');
is($psql->(q{CREATE EXTENSION amcheck; SELECT count(bt_index_check(indexrelid, true)) FROM pg_index
		WHERE indrelid = 'lease_lock'::regclass}), 2, 'the indexes are in order: the key, and that on the owner');
$psql->('DROP EXTENSION lease_lock; CREATE EXTENSION lease_lock');
is($psql->(q{SELECT lease_acquire('r', '1 day', 'o')}), 't', 'the extension can be created anew');

$new->stop;
done_testing();
