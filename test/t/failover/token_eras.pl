# Tokens grow across an asynchronous failover that loses grants, also when it
# happens again; two servers that are promoted from one do not share tokens.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use FailoverTest;
use LeaseTest;
use List::Util qw(max min);
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs /proc of Linux' if !-e "/proc/$$/stat";

my $first = start_primary('first');
my @told = grant_tokens($first, 'first', 50);
cmp_ok(max(@told), '<', 2**53, 'tokens are whole numbers for JavaScript, too');

my $second = start_standby($first, 'second');
my $third = start_standby($first, 'third');
my $session = open_session($second);
is($session->query_safe(q{SELECT lease_token('first 1', 'o') IS NOT NULL}), 't', 'a session on the standby');

stop_senders($first);
push @told, grant_tokens($first, 'lost', 300);
my $last_of_first = max(@told);
lose($first);
$second->promote;
cmp_ok(token_of($session, 'by the session'), '>', max(@told), 'promoted: a session from before gets a higher token');
my @second_tokens = (token_of($session, 'by the session, again'));
my ($token) = grant_tokens($second, 'new session', 1);
cmp_ok($token, '>', max(@second_tokens), 'promoted: so does a new one');
$session->quit;
push @told, @second_tokens, $token;

# The other standby is promoted, too: it never heard of the first promotion.
$third->promote;
my @third_tokens = grant_tokens($third, 'third', 300);
my @common = grep { my $t = $_; grep { $_ == $t } @third_tokens } grant_tokens($second, 'beside', 300), @told;
is_deeply(\@common, [], 'both standbys promoted: no token in common');
cmp_ok(min(@third_tokens), '>', $last_of_first, 'both of them jumped');
$third->stop;

# The next standby follows the second server before that one begins its era, and
# never replays the jump.
my $fourth = start_primary('fourth');
@told = grant_tokens($fourth, 'fourth', 10);
my $fifth = start_standby($fourth, 'fifth');
my $sixth = start_standby($fourth, 'sixth');
lose($fourth);
$fifth->promote;
# Its clock is behind.
my ($faketime) = grep { -e } map { ("$_/faketime/libfaketime.so.1", "$_/libfaketime.so.1") } glob('/usr/lib/*-linux-gnu /usr/lib64 /usr/lib');
$sixth->append_conf('postgresql.conf', q{primary_conninfo = '} . $fifth->connstr . qq{ application_name=sixth'});
{
	local %ENV = (%ENV, $faketime ? (LD_PRELOAD => $faketime, FAKETIME => '-50s', FAKETIME_DONT_FAKE_MONOTONIC => 1) : ());
	$sixth->restart;
}
$fifth->wait_for_catchup($sixth);
stop_senders($fifth);
push @told, grant_tokens($fifth, 'unheard', 300);
lose($fifth);
$sixth->promote;
is($sixth->safe_psql('postgres', q{SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)}), '00000003', 'timeline 3');
is($sixth->safe_psql('postgres', q{SELECT count(*) FROM lease_status WHERE resource LIKE 'unheard%'}), 0, 'grants were lost');
cmp_ok(min(grant_tokens($sixth, 'sixth', 1)), '>', max(@told), 'timeline 3: tokens above those of timeline 2');
like(slurp_file($sixth->logfile), qr/LOG:  new era of fencing tokens in database "postgres", timeline 3.*HINT:  .*failover_wait/s,
	'the log reports the era, with a hint');

# A crash does not begin an era.
my ($before) = grant_tokens($sixth, 'before the crash', 1);
lose($sixth);
$sixth->start;
my ($after) = grant_tokens($sixth, 'after the crash', 1);
cmp_ok($after, '>', $before, 'crash: tokens go on');
cmp_ok($after, '<', $before + 1000, 'crash: without a jump');

# Grants in an extension that was just created.
my $seventh = start_standby($sixth, 'seventh');
$sixth->safe_psql('postgres', 'DROP EXTENSION lease_lock; CREATE EXTENSION lease_lock');
$sixth->wait_for_catchup($seventh);
stop_senders($sixth);
@told = grant_tokens($sixth, 'the first', 10);
lose($sixth);
$seventh->promote;
cmp_ok(min(grant_tokens($seventh, 'seventh', 1)), '>', max(@told), 'tokens go on even if all that were handed out were lost');

# By hand, for copies of a machine, which look like the original.
my ($original) = grant_tokens($seventh, 'original', 1);
$seventh->safe_psql('postgres', 'SELECT lease_new_era()');
cmp_ok(min(grant_tokens($seventh, 'copy', 1)), '>', $original + 1000, 'lease_new_era(): tokens jump');
$seventh->safe_psql('postgres', 'CREATE ROLE plain LOGIN');
sql_fails($seventh, 'SELECT lease_new_era()', '42501', 'permission denied', 'not for everybody', role => 'plain');

# A role without privileges begins an era as well.
$seventh->safe_psql('postgres', q{SELECT setval('lease_era_seq', 1)});
is($seventh->safe_psql('postgres', q{SET ROLE plain; SELECT lease_acquire('plain', '1 hour', 'o')}), "t", 'a plain role begins an era');
$seventh->stop;

done_testing();
