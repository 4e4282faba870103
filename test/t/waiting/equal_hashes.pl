# A resource is its database and its name. A hash only finds it: leases on
# resources with equal hashes have nothing to do with each other, although
# anybody can compute names with equal hashes. In a build for races, the wait
# queue is also tested with one hash for all resources.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

# --- The server's hash, Bob Jenkins' lookup3, backwards -----------------------

my $MASK = 0xffffffff;

sub rot
{
	my ($x, $bits) = @_;

	return (($x << $bits) | ($x >> (32 - $bits))) & $MASK;
}

# The state of three words before final().
sub before_final
{
	my ($a, $b, $c) = @_;

	foreach my $step ([ \$c, \$b, 24 ], [ \$b, \$a, 14 ], [ \$a, \$c, 4 ], [ \$c, \$b, 16 ],
		[ \$b, \$a, 25 ], [ \$a, \$c, 11 ], [ \$c, \$b, 14 ])
	{
		my ($x, $y, $bits) = @$step;

		$$x = (($$x + rot($$y, $bits)) & $MASK) ^ $$y;
	}
	return ($a, $b, $c);
}

# The steps of mix(): x -= y; x ^= rot(y, bits); y += z.
sub steps
{
	my ($a, $b, $c) = @_;

	return ([ $a, $c, $b, 4 ], [ $b, $a, $c, 6 ], [ $c, $b, $a, 8 ], [ $a, $c, $b, 16 ], [ $b, $a, $c, 19 ], [ $c, $b, $a, 4 ]);
}

sub after_mix
{
	my ($a, $b, $c) = @_;

	foreach my $step (steps(\$a, \$b, \$c))
	{
		my ($x, $y, $z, $bits) = @$step;

		$$x = (($$x - $$y) & $MASK) ^ rot($$y, $bits);
		$$y = ($$y + $$z) & $MASK;
	}
	return ($a, $b, $c);
}

sub before_mix
{
	my ($a, $b, $c) = @_;

	foreach my $step (reverse steps(\$a, \$b, \$c))
	{
		my ($x, $y, $z, $bits) = @$step;

		$$y = ($$y - $$z) & $MASK;
		$$x = (($$x ^ rot($$y, $bits)) + $$y) & $MASK;
	}
	return ($a, $b, $c);
}

# A name of 12 bytes of ASCII, without those that a literal or a script treats in another way, that has this hash with
# this seed.
sub name_with_hash
{
	my ($hash, $seed) = @_;
	my @init = ((0x9e3779b9 + 12 + 3923095) & $MASK) x 3;

	if ($seed != 0)
	{
		$init[0] = ($init[0] + ($seed >> 32)) & $MASK;
		$init[1] = ($init[1] + ($seed & $MASK)) & $MASK;
		@init = after_mix(@init);
	}
	for my $a (0 .. $MASK)
	{
		my @state = before_mix(before_final($a, ($hash >> 32) & $MASK, $hash & $MASK));
		my $name = pack('L<3', map { ($state[$_] - $init[$_]) & $MASK } 0 .. 2);

		return $name if $name =~ /^[\x01-\x08\x0e-&(-\[\]-\x7f]+\z/;
	}
	die;
}

# A second name with the hash that the first one has with its seed.
sub same_hash_as
{
	my ($node, $name, $seed, $other_seed) = @_;
	my $hash = look($node, "SELECT hashtextextended('$name', $seed)");
	my $other = name_with_hash($hash & ~0, $other_seed);

	plan skip_all => 'the hash is another one on this platform'
	  if look($node, "SELECT hashtextextended('$other', $other_seed)") != $hash;
	return $other;
}

# --- The tests ----------------------------------------------------------------

sub oid_of
{
	my ($node, $database) = @_;

	return look($node, "SELECT oid FROM pg_database WHERE datname = '$database'");
}

# Nobody who may only connect to another database can keep a lease of this one
# from being granted.
sub another_database
{
	my ($node, $case) = @_;
	my $here = 'billing:nightly';
	my $there = same_hash_as($node, $here, oid_of($node, 'postgres'), oid_of($node, 'elsewhere'));
	my $waiter = open_session($node, 'elsewhere');

	$node->safe_psql('elsewhere', "SELECT lease_acquire('$there', '1 hour', 'holder')");
	send_to_wait($node, $waiter, "SELECT lease_acquire('$there', '1 hour', 'waiter', '1 hour')");
	is(look($node, "SELECT granted, reason FROM lease_request('$here', '1 hour', 'me')"), 't|', "$case: a free lease is granted, whoever waits in another database");
	is(look($node, "SELECT lease_release('$here', 'me')"), 't', "$case: and released");
	is($node->safe_psql('elsewhere', "SELECT lease_release('$there', 'holder')"), 't', "$case: the other lease is released");
	is(answer($waiter), 't', "$case: and its waiter gets it");
	$waiter->quit;
	nothing_left($node, $case);
	return;
}

# In one database: each line has its own order, obstacles and wake-ups.
sub one_database
{
	my ($node, $case) = @_;
	my $oid = oid_of($node, 'postgres');
	my $other = same_hash_as($node, 'r', $oid, $oid);
	my @waiter = map { open_session($node) } 0 .. 2;

	look($node, "SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire('$other', '1 hour', 'bob')");
	send_to_wait($node, $waiter[0], q{SELECT lease_acquire('r', '1 hour', 'first', '1 hour')});
	send_to_wait($node, $waiter[1], qq{SELECT lease_acquire('$other', '1 hour', 'second', '1 hour')});
	send_to_wait($node, $waiter[2], q{SELECT lease_acquire('r', '1 hour', 'third', '1 hour')});
	is(look($node, q{SELECT string_agg(concat_ws(' ', position, owner, 'behind', blocked_by_owner), ', ' ORDER BY owner) FROM lease_waiters}),
		'1 first behind ann, 1 second behind bob, 2 third behind ann', "$case: who waits behind whom");
	is(look($node, "SELECT lease_release('$other', 'bob')"), 't', "$case: the second lease is released");
	is(answer($waiter[1]), 't', "$case: its waiter gets it, although one for the first lease came before");
	is(look($node, q{SELECT lease_release('r', 'ann')}), 't', "$case: the first lease is released");
	is(answer($waiter[0]), 't', "$case: its first waiter gets it");
	stays($node, q{SELECT string_agg(owner, ',') FROM lease_waiters}, 'third', "$case: its second waiter waits");
	is(look($node, q{SELECT lease_release('r', 'first')}), 't', "$case: it is released again");
	is(answer($waiter[2]), 't', "$case: its second waiter gets it");
	look($node, 'SELECT lease_release_all(o) FROM unnest(ARRAY[$$second$$, $$third$$]) AS o');
	$_->quit foreach @waiter;
	nothing_left($node, $case);
	return;
}

# A change of two leases in one transaction, and an end of a waiter for several.
sub several
{
	my ($node, $case) = @_;
	my $oid = oid_of($node, 'postgres');
	my $other = same_hash_as($node, 'r', $oid, $oid);
	my @waiter = map { open_session($node) } 0 .. 2;

	look($node, "SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire('$other', '1 hour', 'ann')");
	send_to_wait($node, $waiter[0], qq{SELECT lease_acquire_any(ARRAY['r', '$other'], '1 hour', 'any', '1 hour')});
	send_to_wait($node, $waiter[1], q{SELECT lease_acquire('r', '1 hour', 'first', '1 hour')});
	send_to_wait($node, $waiter[2], qq{SELECT lease_acquire('$other', '1 hour', 'second', '1 hour')});
	look($node, q{SELECT lease_release_all('ann')});
	is(answer($waiter[0]), 'r', "$case: one for any of both gets the first one");
	is(answer($waiter[2]), 't', "$case: the next one for the other gets that");
	is(look($node, q{SELECT lease_release('r', 'any')}), 't', "$case: the first one is released");
	is(answer($waiter[1]), 't', "$case: the next one for it gets it");
	look($node, 'SELECT lease_release_all(o) FROM unnest(ARRAY[$$first$$, $$second$$]) AS o');
	$_->quit foreach @waiter;
	nothing_left($node, $case);
	return;
}

# Two owners, each of which waits for the other's lease, are found; two whose
# resources only have the same hash are not taken for a deadlock.
sub deadlock
{
	my ($node, $case) = @_;
	my $oid = oid_of($node, 'postgres');
	my $other = same_hash_as($node, 'r', $oid, $oid);
	my @waiter = map { open_session($node) } 0, 1;

	look($node, "SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire('$other', '1 hour', 'bob'), lease_acquire('s', '1 hour', 'eve')");
	$_->query_safe(q{SET deadlock_timeout = '10 ms'}) foreach @waiter;
	send_to_wait($node, $waiter[0], q{SELECT lease_acquire('s', '1 hour', 'ann', '1 hour')});
	send_to_wait($node, $waiter[1], qq{SELECT lease_acquire('$other', '1 hour', 'eve', '1 hour')});
	stays($node, q{SELECT count(*) FROM lease_waiters}, 2, "$case: bob waits for nobody, so there is none");
	is(look($node, "SELECT lease_release('$other', 'bob')"), 't', "$case: he releases");
	is(answer($waiter[1]), 't', "$case: the waiter gets the lease");
	send_sql($waiter[1], q{SELECT lease_acquire('r', '1 hour', 'eve', '1 hour')});
	like(answer($waiter[1]), qr/40P01/, "$case: a deadlock is found");
	look($node, q{SELECT lease_release('s', 'eve')});
	is(answer($waiter[0]), 't', "$case: the other one goes on");
	look($node, 'SELECT lease_release_all(o) FROM unnest(ARRAY[$$ann$$, $$eve$$]) AS o');
	$_->quit foreach @waiter;
	nothing_left($node, $case);
	return;
}

# An owner that may have one lease has one, whatever the names.
sub quota
{
	my ($node) = @_;
	my $other = same_hash_as($node, 'r', 0, 0);

	is(look($node, q{SET lease_lock.max_leases_per_owner = 1; SELECT lease_acquire('r', '1 hour', 'one')}), 't', 'quota: one lease');
	sql_fails($node, "SET lease_lock.max_leases_per_owner = 1; SELECT lease_acquire('$other', '1 hour', 'one')", '53400', 'too many leases',
		'quota: no second one, on a resource with the same hash');
	is(look($node, q{RESET lease_lock.max_leases_per_owner; SELECT lease_release('r', 'one')}), 't', 'quota: it is released');
	return;
}

# Who waits to end a lease holds up assertions of that lease only.
sub ending
{
	my ($node) = @_;
	my $other = same_hash_as($node, 'r', 0, 0);
	my ($writer, $ender) = map { open_session($node) } 0, 1;

	look($node, "SELECT lease_acquire('r', '1 hour', 'ann'), lease_acquire('$other', '1 hour', 'bob')");
	$writer->query_safe("BEGIN; SELECT lease_assert('$other', 'bob')");
	send_sql($ender, "SELECT lease_release('$other', 'bob')");
	becomes($node, q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT lease_release%' AND wait_event = 'transactionid'},
		1, 'ending: a release waits for an assertion');
	is(look($node, q{SET lock_timeout = '20 s'; SELECT lease_assert('r', 'ann') IS NOT NULL; RESET lock_timeout}), 't',
		'ending: a lease on a resource with the same hash is asserted meanwhile');
	$writer->query_safe('COMMIT');
	is(answer($ender), 't', 'ending: the release goes on');
	look($node, q{SELECT lease_release('r', 'ann')});
	$_->quit foreach $writer, $ender;
	return;
}

sub start
{
	my ($name, $conf) = @_;
	my $node = start_waiting_node($name, "${WaitTest::NEVER}$conf");

	$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
	$node->safe_psql('elsewhere', 'CREATE EXTENSION lease_lock');
	return $node;
}

my $node = start('equal_hashes', '');
my $for_races = is_for_races($node);

quota($node);
ending($node);
another_database($node, 'another database');
one_database($node, 'one database');
several($node, 'several');
deadlock($node, 'deadlock');
$node->stop;

SKIP:
{
	skip 'the library is not built for races', 1 if !$for_races;
	$node = start('one_hash', "lease_lock.hashes = 1\n");
	another_database($node, 'one hash, another database');
	one_database($node, 'one hash, one database');
	several($node, 'one hash, several');
	deadlock($node, 'one hash, deadlock');
	$node->stop;
}
done_testing();
