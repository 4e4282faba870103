# Readers and writers, and permits, take turns: a writer that waits stops the
# readers that come after it, and those readers come next, all of them, before
# the writer that came after them. Each step is seen before the next one
# is made; nothing depends on how long it takes.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('fairness', $WaitTest::NEVER);

$node->safe_psql('postgres', q{
	-- In the order of the grants: a grant and its line commit together, and
	-- one that has to wait comes after.
	CREATE TABLE log (id bigserial, resource text, owner text);

	CREATE FUNCTION acquire(kind text, r text, o text, wait interval) RETURNS boolean LANGUAGE plpgsql AS $$
	DECLARE
		granted boolean = CASE kind
			WHEN 'shared' THEN lease_acquire_shared(r, '1 hour', o, wait)
			WHEN 'exclusive' THEN lease_acquire(r, '1 hour', o, wait)
			ELSE lease_acquire_permit(r, 2, '1 hour', o, wait) END;
	BEGIN
		IF granted THEN
			INSERT INTO log (resource, owner) VALUES (r, o);
		END IF;
		RETURN granted;
	END $$;
});

my %sessions;

# Send a session to wait in its place.
sub line_up
{
	my ($resource, $place, $kind, $owner) = @_;

	$sessions{$owner} //= open_session($node);
	send_sql($sessions{$owner}, "SELECT acquire('$kind', '$resource', '$owner', NULL)");
	becomes($node, "SELECT owner FROM lease_waiters WHERE resource = '$resource' AND position = $place",
		$owner, "$resource: $owner waits in place $place");
	return;
}

# Test that exactly these waiters got the lease.
sub now_hold
{
	my ($resource, @owners) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes($node, "SELECT string_agg(owner, ' ' ORDER BY owner) FROM lease_status WHERE resource = '$resource' AND state = 'held'",
		join(' ', sort @owners), "$resource: held by @owners");
	return;
}

sub release
{
	my ($resource, @owners) = @_;

	foreach (@owners)
	{
		look($node, "SELECT lease_release('$resource', '$_')") eq 't' or die "$_ does not hold $resource";
	}
	return;
}

# A stream of readers: there is always one that holds. It does not keep the
# writer out once the readers have left that were there when it came.
{
	my $r = 'stream';

	look($node, "SELECT acquire('shared', '$r', 'reader1', '0')");
	line_up($r, 1, 'exclusive', 'writer');
	foreach my $n (2 .. 6)
	{
		is(look($node, "SELECT acquire('shared', '$r', 'try$n', '0')"), 'f', "$r: a try of reader $n is refused, although readers hold it");
		line_up($r, $n, 'shared', "reader$n");
	}
	line_up($r, 7, 'exclusive', 'writer2');
	line_up($r, 8, 'shared', 'reader7');
	now_hold($r, 'reader1');

	release($r, 'reader1');
	now_hold($r, 'writer');
	stays($node, "SELECT count(*) FROM lease_waiters WHERE resource = '$r'", 7, "$r: nobody else comes in");

	# One turn of the writer, and then all the readers that waited.
	release($r, 'writer');
	now_hold($r, map { "reader$_" } 2 .. 6);
	is(look($node, "SELECT string_agg(owner, ' ' ORDER BY position) FROM lease_waiters WHERE resource = '$r'"),
		'writer2 reader7', "$r: the writer that came later waits, and the reader behind it");

	release($r, map { "reader$_" } 2 .. 5);
	stays($node, "SELECT count(*) FROM lease_waiters WHERE resource = '$r'", 2, "$r: it waits for the last of them");
	release($r, 'reader6');
	now_hold($r, 'writer2');
	release($r, 'writer2');
	now_hold($r, 'reader7');
	release($r, 'reader7');

	is(look($node, "SELECT string_agg(left(owner, 1), '' ORDER BY id) FROM log WHERE resource = '$r'"),
		'rwrrrrrwr', "$r: the order of the grants");
	nothing_left($node, $r);
	answer($_) foreach values %sessions;
}

# A stream of writers, likewise: a reader waits for those before it only.
{
	my $r = 'writers';

	look($node, "SELECT acquire('exclusive', '$r', 'writer1', '0')");
	line_up($r, 1, 'exclusive', 'writer2');
	line_up($r, 2, 'shared', 'reader1');
	line_up($r, 3, 'exclusive', 'writer3');
	line_up($r, 4, 'shared', 'reader2');
	foreach ('writer1', 'writer2', 'reader1', 'writer3', 'reader2')
	{
		now_hold($r, $_);
		release($r, $_);
	}
	nothing_left($node, $r);
	answer($_) foreach values %sessions;
}

# Permits: two at a time, in order, also beside a writer.
{
	my $r = 'permits';

	look($node, "SELECT acquire('permit', '$r', 'a', '0'), acquire('permit', '$r', 'b', '0')");
	line_up($r, 1, 'permit', 'c');
	line_up($r, 2, 'permit', 'd');
	line_up($r, 3, 'exclusive', 'w');
	line_up($r, 4, 'permit', 'e');
	release($r, 'b');
	now_hold($r, 'a', 'c');
	release($r, 'a');
	now_hold($r, 'c', 'd');
	release($r, 'c');
	now_hold($r, 'd');
	is(look($node, "SELECT acquire('permit', '$r', 'f', '0')"), 'f', "$r: one is free, but a writer waits");
	release($r, 'd');
	now_hold($r, 'w');
	release($r, 'w');
	now_hold($r, 'e');
	release($r, 'e');
	nothing_left($node, $r);
	answer($_) foreach values %sessions;
}

# When a writer gives up or is cancelled, the readers that it kept out get the lease.
foreach my $how ('gives up', 'cancelled', 'killed')
{
	my $r = "writer $how";
	my $writer = open_session($node);
	my $pid = $writer->query_safe('SELECT pg_backend_pid()');
	# Long enough for the readers to line up on a slow machine.
	my $wait = $how eq 'gives up' ? "'10 s'" : 'NULL';

	look($node, "SELECT acquire('shared', '$r', 'reader1', '0')");
	send_sql($writer, "SELECT acquire('exclusive', '$r', 'writer', $wait)");
	becomes($node, "SELECT owner FROM lease_waiters WHERE resource = '$r' AND position = 1", 'writer', "$r: waits");
	line_up($r, 2, 'shared', 'reader2');
	line_up($r, 3, 'shared', 'reader3');
	look($node, "SELECT pg_cancel_backend($pid)") if $how eq 'cancelled';
	look($node, "SELECT pg_terminate_backend($pid)") if $how eq 'killed';
	now_hold($r, 'reader1', 'reader2', 'reader3');
	release($r, 'reader1', 'reader2', 'reader3');
	nothing_left($node, $r);
	answer($_) foreach values %sessions;
}

$node->stop;
done_testing();
