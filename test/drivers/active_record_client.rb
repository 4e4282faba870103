# Leases from Ruby, with ActiveRecord.
#
# Connects as PGHOST, PGPORT, PGUSER and PGDATABASE say. The table, whose lock_version
# ActiveRecord keeps by itself:
#
#   CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, lock_version int NOT NULL DEFAULT 0);
#   SELECT lease_protect('items', 'item:{id}');
#   CREATE TRIGGER items_version BEFORE UPDATE ON items
#     FOR EACH ROW EXECUTE FUNCTION lease_version('lock_version');

require 'active_record'
require 'securerandom'

class Lease
  class Busy < StandardError; end

  attr_reader :resource, :owner

  # Hold the lease for the block, as an owner of its own.
  def self.with(resource, ttl: '1 minute', wait: '0')
    lease = new(resource)
    raise Busy, resource unless lease.acquire(ttl, wait)
    begin
      yield lease
    ensure
      lease.release
    end
  end

  # A call that answers. Not from the query cache: the same words have another answer later.
  def self.call(*statement)
    ActiveRecord::Base.uncached do
      ActiveRecord::Base.connection.select_value(ActiveRecord::Base.sanitize_sql(statement))
    end
  end

  def initialize(resource)
    @resource = resource
    @owner = SecureRandom.uuid
  end

  def acquire(ttl, wait = '0')
    Lease.call('SELECT lease_acquire(?, ?, ?, ?)', resource, ttl, owner, wait)
  end

  def renew(ttl)
    Lease.call('SELECT lease_renew(?, ?, ?)', resource, ttl, owner)
  end

  def release
    Lease.call('SELECT lease_release(?, ?)', resource, owner)
  end

  # A transaction that may write what the owner has leased. SET LOCAL takes no parameters;
  # set_config is the same.
  def transaction
    ActiveRecord::Base.transaction do
      Lease.call("SELECT set_config('lease_lock.owner', ?, true)", owner)
      yield
    end
  end
end

class Item < ActiveRecord::Base
end

def say(what, *result)
  puts "#{what}: #{result.join(' ')}"
end

# The class that ActiveRecord has for an error, and the SQLSTATE below it.
def mistake(name)
  ActiveRecord::Base.transaction { yield }
  say name, 'no error'
rescue ActiveRecord::StatementInvalid => e
  say name, e.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE), e.class.name
end

ActiveRecord::Base.establish_connection(adapter: 'postgresql', pool: 4)
item = Item.find(1)
late = nil

# Leases in use

Lease.with('item:1') do |lease|
  # with_lock: lock the row, read it again, write, in one transaction
  lease.transaction { item.with_lock { item.update!(name: 'chair') } }
  say 'renamed by the holder', item.name, item.lock_version
  say 'renewed', lease.renew('5 minutes')
  begin
    Lease.with('item:1') { say 'two holders' }
  rescue Lease::Busy => e
    say 'busy', e.message
  end
end

Lease.with('item:1', wait: '10 seconds') do |lease|
  lease.transaction { item.update!(name: 'table') }
  say 'and again', item.name, item.lock_version
  late = lease
end

# The lease was lost before the write, and the write is refused: begin again.
mistake('late write') { late.transaction { Item.find(1).update!(name: 'late') } }

Lease.with('item:1') do |lease|
  # Somebody who knows nothing of versions wrote since this record was read. The trigger
  # counted that, so ActiveRecord finds out.
  stale = Item.find(1)
  lease.transaction { Item.where(id: 1).update_all(name: 'stool') }
  begin
    lease.transaction { stale.update!(name: 'stale') }
    say 'stale record', 'no error'
  rescue ActiveRecord::StaleObjectError => e
    say 'stale record', e.class.name
  end

  # A write that passes by the check of ActiveRecord meets that of the trigger.
  mistake('stale version') { lease.transaction { Item.where(id: 1).update_all(name: 'stale', lock_version: 3) } }
end

# A request has its query cache on. What would be remembered there was true a moment ago.
ActiveRecord::Base.cache do
  Lease.with('item:1') do |lease|
    lease.renew('1 minute')
    lease.release
    say 'renewed after the release', lease.renew('1 minute')
  end
end

# Two transactions that each hold what the other waits for: one is told, rolls back, and
# may begin again.
met = Queue.new
told = [%w[a b], %w[b a]].map do |first, second|
  Thread.new do
    ActiveRecord::Base.transaction do
      Lease.call("SELECT lease_acquire(?, '1 minute', ?)", first, first)
      met << first
      sleep 0.01 until met.size == 2
      Lease.call("SELECT lease_acquire(?, '1 minute', ?, '30 seconds')", second, first)
      Lease.call('SELECT lease_release_all(?)', first)
    end
    nil
  rescue ActiveRecord::Deadlocked => e
    "#{e.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE)} #{e.class.name}"
  end
end.map(&:value).compact
say 'deadlock', *told

# Mistakes

mistake('write without a lease') { Item.find(1).update!(name: 'free') }
mistake('assert without a lease') { Lease.call("SELECT lease_assert('item:1', 'nobody')") }
mistake('null') { Lease.call('SELECT lease_acquire(?, ?, ?)', nil, '1 minute', 'me') }
mistake('empty') { Lease.call('SELECT lease_acquire(?, ?, ?)', '', '1 minute', 'me') }
mistake('read only') do
  ActiveRecord::Base.connection.execute('SET TRANSACTION READ ONLY')
  Lease.call('SELECT lease_acquire(?, ?, ?)', 'item:2', '1 minute', 'me')
end
mistake('the lease of another role') { Lease.call("SELECT lease_release('vault', 'boss')") }
