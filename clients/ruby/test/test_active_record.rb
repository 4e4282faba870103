# frozen_string_literal: true

require "active_record"
require "lease_lock/active_record"

# With ActiveRecord and Rails.
class ActiveRecordTest < TestCase
  class Order < ActiveRecord::Base; end

  # Calls a block when its transaction has ended.
  class Watched < Order
    cattr_accessor :ended
    after_commit { ended.call }
    after_rollback { ended.call }
  end

  # A database for leases alone.
  class LeaseRecord < ActiveRecord::Base
    self.abstract_class = true
  end

  def setup
    super
    sql("CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, paid boolean NOT NULL DEFAULT false)")
    ActiveRecord::Base.logger = Logger.new(log, level: Logger::WARN)
    ActiveRecord::Base.establish_connection(adapter: "postgresql", pool: 3, application_name: "rails", variables: { statement_timeout: 60_000 })
    @order = Order.create!
  end

  def teardown
    super
    ActiveRecord::Base.connection_handler.clear_all_connections!
    sql("DROP TABLE orders")
  end

  def test_with_lease_holds_across_transactions_on_a_connection_of_its_own
    Order.connection_pool.release_connection
    @order.with_lease(ttl: 60) do |lease|
      assert_equal("ActiveRecordTest::Order:#{@order.id}", lease.resource)
      assert(held?(lease.resource))
      assert_raises(LeaseLock::LeaseTaken) { Order.find(@order.id).with_lease { flunk } }
      lease.transaction(Order) { @order.update!(paid: true) }
      assert_equal("t", value("SELECT paid FROM orders"))
    end
    assert(!held?(@order.lease_resource))
  end

  def test_the_record_is_loaded_again
    stale = Order.find(@order.id)
    @order.update!(paid: true)
    assert(stale.with_lease { stale.paid })
  end

  def test_with_lease_in_a_transaction_is_refused
    error = assert_raises(LeaseLock::LeaseError) { Order.transaction { @order.with_lease { flunk } } }
    assert_match(/in a transaction/, error.message)
    assert_raises(ArgumentError) { Order.new.with_lease { flunk } }
  end

  def test_a_transaction_may_write_what_the_lease_protects
    sql("SELECT lease_protect('orders', 'ActiveRecordTest::Order:{id}')")
    assert_raises(ActiveRecord::StatementInvalid) { @order.update!(paid: true) }
    @order.with_lease do |lease|
      lease.transaction(Order) { @order.update!(paid: true) }
      assert_raises(ActiveRecord::StatementInvalid) { Order.transaction { @order.update!(paid: false) } }
    end
    assert_equal("t", value("SELECT paid FROM orders"))
  end

  def test_a_transaction_is_rolled_back_by_an_error_and_by_rollback
    @order.with_lease do |lease|
      assert_raises(ZeroDivisionError) { lease.transaction(Order) { @order.update!(paid: true) && 1 / 0 } }
      assert_nil(lease.transaction(Order) { @order.update!(paid: true) && raise(ActiveRecord::Rollback) })
      assert(!@order.reload.paid)
    end
  end

  # With this version of ActiveRecord, that commits.
  def test_a_block_that_is_left_by_return_commits_as_any_other
    @order.with_lease do |lease|
      assert_raises(LeaseLock::OutcomeUnknown) { pay_and_return(lease) { |connection| sql("SELECT pg_terminate_backend($1, 60000)", connection.backend_pid) } }
      @order.reload
      assert_equal(1, pay_and_return(lease))
    end
    assert(@order.reload.paid)
  end

  def pay_and_return(lease)
    lease.transaction(Order) do |connection|
      @order.update!(paid: true)
      yield connection if block_given?
      return 1
    end
    flunk
  end

  def test_after_a_loss_there_is_no_transaction
    error = assert_raises(LeaseLock::LeaseLost) do
      @order.with_lease do |lease|
        break_lease(lease.resource)
        lease.transaction(Order) { flunk }
      end
    end
    assert_equal(:broken, error.reason)
    assert(!@order.reload.paid)
  end

  # The connection is cut off, and the thread gets another one.
  def test_a_loss_in_a_transaction_rolls_back
    error = assert_raises(LeaseLock::LeaseLost) do
      @order.with_lease(ttl: 2, renew: false) do |lease|
        lease.transaction(Order) do
          @order.update!(paid: true)
          lease.wait_lost(LONG)
          wait_until { !Order.connection.active? }
          Order.count
        end
      end
    end
    assert_equal(:expired, error.reason)
    assert(!@order.reload.paid)
  end

  def test_a_commit_without_an_answer_is_unknown
    @order.with_lease do |lease|
      assert_raises(LeaseLock::OutcomeUnknown) do
        lease.transaction(Order) do |connection|
          @order.update!(paid: true)
          sql("SELECT pg_terminate_backend($1, 60000)", connection.backend_pid)
        end
      end
    end
    assert(!@order.reload.paid)
  end

  def test_begin_has_a_limit
    connect_by(open_proxy { |data| sleep if data.include?("BEGIN") })
    error = assert_raises(LeaseLock::LeaseLost) do
      @order.with_lease(ttl: 3, renew: false) { |lease| lease.transaction(Order) { flunk } }
    end
    assert_equal(:expired, error.reason)
  end

  def test_rollback_has_a_limit
    connect_by(proxy = open_proxy { |data| sleep if data.include?("ROLLBACK") })
    @order.with_lease do |lease|
      error = assert_raises(ActiveRecord::StatementInvalid) { lease.transaction(Order) { @order.update!(paid: true) && 1 / 0 } }
      assert_kind_of(ZeroDivisionError, error.cause.cause)
      proxy.close # with it ends the transaction, at the server
    end
  end

  def test_a_connection_to_a_standby_is_not_kept
    @order.with_lease do |lease|
      Order.connection.execute("SET default_transaction_read_only = on")
      assert_raises(PG::ReadOnlySqlTransaction) { lease.transaction(Order) { flunk } }
      lease.transaction(Order) { @order.update!(paid: true) }
    end
    assert(@order.reload.paid)
  end

  def test_a_child_that_leaves_the_block_does_nothing
    parent = Process.pid
    @order.with_lease do |lease|
      lease.transaction(Order) { @order.update!(paid: true) && leave_in_child }
    ensure
      exit!(Thread.list.none? { |thread| thread.name == "lease_lock" }) if Process.pid != parent
    end
    assert(@order.reload.paid)
  end

  # As tests with transactional fixtures have it: the end of the lease is not waited for.
  def test_a_transaction_in_another_one_is_a_savepoint
    Order.connection.begin_transaction(joinable: false)
    sent = nil
    @order.with_lease do |lease|
      lease.transaction(Order) { Order.where(id: @order.id).update_all(paid: true) }
      sent = lease
    end
    assert(held?(sent.resource))
    Order.connection.rollback_transaction
    wait_until { !held?(sent.resource) }
    assert(!@order.reload.paid)
    assert_equal("", log.string.lines.grep(/OutcomeUnknown|no answer/).join)
  end

  # The lease is over then, and they may take long.
  def test_callbacks_after_the_end_of_a_transaction_are_not_part_of_it
    [nil, ActiveRecord::Rollback].each do |error|
      assert_equal([1, (:done unless error)], end_lease_in_callback(error))
      assert_equal(error.nil?, @order.reload.paid)
      @order.update!(paid: false)
    end
  end

  def test_callbacks_after_the_end_of_a_savepoint_are_not_part_of_it
    [nil, ActiveRecord::Rollback].each do |error|
      Order.connection.begin_transaction(joinable: false)
      assert_equal([1, (:done unless error)], end_lease_in_callback(error))
      Order.connection.rollback_transaction
      wait_until { !held?(@order.lease_resource) }
    end
  end

  def test_callbacks_wait_for_the_transaction_around_it
    calls = 0
    Watched.ended = -> { calls += 1 }
    LeaseLock.hold("r") do |lease|
      Order.transaction do
        lease.transaction(Order) { Watched.find(@order.id).update!(paid: true) }
        assert_equal(0, calls)
      end
      assert_equal(1, calls)
    end
  end

  def test_an_error_of_a_callback_after_the_commit_is_its_own
    Watched.ended = -> { raise PG::ConnectionBad, "in the callback" }
    LeaseLock.hold("r") do |lease|
      error = assert_raises(PG::ConnectionBad) { lease.transaction(Order) { Watched.find(@order.id).update!(paid: true) } }
      assert_equal("in the callback", error.message)
    end
    assert(@order.reload.paid)
  end

  def test_an_interrupted_transaction_leaves_the_connection_alone
    lease = LeaseLock.hold("r")
    interrupt_conclusion { lease.transaction(Order) { @order.update!(paid: true) } }
    LeaseLock.close
    assert(lease.lost?)
    assert(@order.reload.paid)
  end

  def test_leases_may_have_a_database_of_their_own
    sql("DROP DATABASE IF EXISTS leases")
    sql("CREATE DATABASE leases")
    LeaseRecord.establish_connection(adapter: "postgresql", database: "leases")
    LeaseRecord.connection.enable_extension("lease_lock")
    LeaseLock.leases = LeaseLock.leases(LeaseRecord)
    @order.with_lease { |lease| assert(!held?(lease.resource)) }
    assert(LeaseLock.leases(Order).equal?(LeaseLock.leases))
  ensure
    LeaseLock.close
    LeaseRecord.remove_connection
    sql("DROP DATABASE leases WITH (FORCE)")
  end

  def test_settings_are_those_of_database_yml
    ActiveRecord::Base.establish_connection("postgresql://somebody@127.0.0.1:#{ENV['PGPORT']}/other?application_name=url")
    assert_equal({ host: "127.0.0.1", port: ENV["PGPORT"], dbname: "other", user: "somebody", application_name: "url" },
                 LeaseLock.settings.slice(:host, :port, :dbname, :user, :application_name))
    ActiveRecord::Base.establish_connection(adapter: "postgresql", variables: { role: "pg_monitor" })
    assert_equal("-c role=pg_monitor", LeaseLock.settings[:options])
    assert_equal("pg_monitor", LeaseLock.hold("of a role") { value("SELECT role::regrole FROM lease_lock WHERE resource = 'of a role'") })
  end

  # db:schema:load of a database that has the extension.
  def test_schema_rb_does_not_have_the_tables_of_the_extension
    schema = StringIO.new
    ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, schema)
    assert_match(/create_table "orders"/, schema.string)
    assert_match(/enable_extension "lease_lock"/, schema.string)
    refute_match(/create_table "lease_/, schema.string)
    2.times { capture_io { eval(schema.string) } } # rubocop:disable Security/Eval -- as Rails loads it
    assert_equal(1, LeaseLock.hold("r") { 1 })
  end

  # With Rails' interface, since Rails itself takes long to load.
  def test_the_railtie_loads_it_with_active_record
    rails = 'module Rails; class Railtie; def self.initializer(_) = yield; end; end; require "active_support"'
    script = "#{rails}; require 'lease_lock'; print LeaseLock.respond_to?(:settings); require 'active_record'; " \
             "print ActiveRecord::Base.method_defined?(:with_lease)"
    assert_equal("falsetrue", IO.popen([RbConfig.ruby, "-I", File.join(__dir__, "../lib"), "-e", script], &:read))
  end

  private

  # What the callback and the transaction return.
  def end_lease_in_callback(error)
    lease = LeaseLock.hold(@order.lease_resource)
    count = nil
    Watched.ended = lambda do
      LeaseLock.close(timeout: 0)
      assert(lease.lost?)
      count = Order.count
    end
    result = lease.transaction(Order) do
      Watched.find(@order.id).update!(paid: true)
      raise error if error
      :done
    end
    [count, result]
  end

  # The leases do without the proxy.
  def connect_by(proxy)
    LeaseLock.leases = open_leases
    ActiveRecord::Base.establish_connection(adapter: "postgresql", host: "127.0.0.1", port: proxy.port, pool: 3)
  end

  # In a child, an Interrupt instead of a return.
  def leave_in_child
    pid = fork or raise Interrupt
    assert(Process.wait2(pid)[1].success?)
  end
end
