# Another extension can be built on this one, as the guide says: it requires
# lease_lock, finds its functions in whatever schema, and is dropped first.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";
use LeaseTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($share) = run_command([ 'pg_config', '--sharedir' ]);
my $folder = "$share/extension";
my @written = ("$folder/lease_nightly.control", "$folder/lease_nightly--1.0.sql");

plan skip_all => "cannot write to $folder, where the extension would be" if !-w $folder;

# What the guide shows, for this server.
my ($version) = (run_command([ 'postgres', '--version' ]))[0] =~ /(\d+)/;
my $guide = slurp_file("$FindBin::RealBin/../../../docs/guide.md");
my ($control) = $guide =~ /^# nightly\.control\n(.*?)^```/ms or die 'no control file in the guide';
my ($new, $old) = $guide =~ /^-- nightly--1\.0\.sql, PostgreSQL 16 and later\n(.*?)^-- nightly--1\.0\.sql, PostgreSQL 15\n(.*?)^```/ms
  or die 'no script in the guide';

$control =~ s/^no_relocate.*\n//m if $version < 16;
unlink @written;
append_to_file($written[0], $control);
append_to_file($written[1], $version < 16 ? $old : $new);

END
{
	unlink @written;
}

my $node = start_node('on_top');
$node->safe_psql('postgres', 'DROP EXTENSION lease_lock; CREATE SCHEMA "the leases"; CREATE SCHEMA own; CREATE ROLE plain LOGIN; GRANT USAGE ON SCHEMA own, "the leases" TO plain');
$node->safe_psql('postgres', 'CREATE EXTENSION lease_lock SCHEMA "the leases"; CREATE EXTENSION lease_nightly SCHEMA own CASCADE');

is($node->safe_psql('postgres', q{SELECT own.begin_night('a'), own.begin_night('b')}, extra_params => [ '-U', 'plain' ]), 't|f', 'its function acquires a lease');
is($node->safe_psql('postgres', q{SELECT owner, role FROM "the leases".lease_status}), 'a|plain', 'for the role that called it');
sql_fails($node, 'DROP EXTENSION lease_lock', '2BP01', 'extension lease_nightly depends on extension lease_lock', 'lease_lock cannot be dropped under it');
sql_fails($node, 'ALTER EXTENSION lease_lock SET SCHEMA public', '0A000', 'relocat', 'or moved') if $version >= 16;

# With CASCADE it brings lease_lock along, and takes itself away.
$node->safe_psql('postgres', 'DROP EXTENSION lease_lock CASCADE');
$node->safe_psql('postgres', 'CREATE EXTENSION lease_nightly CASCADE');
is($node->safe_psql('postgres', q{SELECT begin_night('a')}), 't', 'created with lease_lock');

$node->stop;
done_testing();
