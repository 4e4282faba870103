# Ruby: ActiveRecord, with with_lock and lock_version on a protected table.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/..";

use ClientTest;
use Test::More;

my $ruby = can_run([ 'ruby', '/usr/bin/ruby' ], '-e', 'require "active_record"; require "pg"')
  or plan skip_all => 'no Ruby with ActiveRecord and pg (Debian: ruby-activerecord, ruby-pg)';
my $node = start_client_node('active_record', 'items');

is(run_client($node, [ $ruby, 'active_record_client.rb' ]), <<'PRINTED', 'leases, and errors by their class');
renamed by the holder: chair 1
renewed: true
busy: item:1
and again: table 2
late write: 55000 ActiveRecord::StatementInvalid
stale record: ActiveRecord::StaleObjectError
stale version: 40001 ActiveRecord::SerializationFailure
renewed after the release: false
deadlock: 40P01 ActiveRecord::Deadlocked
write without a lease: 22023 ActiveRecord::StatementInvalid
assert without a lease: 55000 ActiveRecord::StatementInvalid
null: 22004 ActiveRecord::StatementInvalid
empty: 22023 ActiveRecord::StatementInvalid
read only: 25006 ActiveRecord::StatementInvalid
the lease of another role: 42501 ActiveRecord::StatementInvalid
PRINTED
is($node->safe_psql('postgres', 'SELECT * FROM items WHERE lock_version > 0'),
	'1|stool|3', 'what was written by holders, and nothing else');
is($node->safe_psql('postgres', 'SELECT resource FROM lease_status'),
	'vault', 'nothing is left leased');

$node->stop;
done_testing();
