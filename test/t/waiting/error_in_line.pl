# An error at any step ends a wait, and holds up no other waiter: here, the
# server cannot read the status of the transaction that a waiter waits for.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;
use WaitTest;

my $node = start_waiting_node('error_in_line', "fsync = off\n");
my $status = $node->data_dir . '/pg_subtrans/0000';
my $holder = open_session($node);

$holder->query_safe(q{BEGIN; SELECT lease_acquire('r', '1 hour', 'a')});

# So many transactions follow that the server does not keep the status of that one in memory.
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE many (i int);
DO $$
BEGIN
	FOR i IN 1 .. 100000 LOOP
		BEGIN
			INSERT INTO many VALUES (i);
		EXCEPTION WHEN division_by_zero THEN
		END;
	END LOOP;
END $$;
CHECKPOINT;
SQL
rename($status, "$status.away") or die "could not rename $status: $!";
sql_fails($node, q{SET statement_timeout = '60 s'; SELECT lease_acquire('r', '1 hour', 'b', '1 hour')},
	'58P01', 'ould not access (sub)?(transaction )?status of transaction', 'the wait ends with an error');
rename("$status.away", $status) or die "could not rename $status.away: $!";
$holder->query_safe('ROLLBACK');
is($node->safe_psql('postgres', q{SET statement_timeout = '60 s'; SELECT lease_acquire('r', '1 hour', 'c', '1 hour')}),
	't', 'the next one has the lease');

$holder->quit;
$node->stop;
done_testing();
