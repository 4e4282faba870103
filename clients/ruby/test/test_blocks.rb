# frozen_string_literal: true

require "timeout"

# However a block or a call ends, nothing is left.
class BlocksTest < TestCase
  def setup
    super
    @leases = open_leases
  end

  def test_the_result_of_the_block_is_returned
    assert_equal(:done, @leases.hold("r") { |lease| lease.check || :done })
    assert_equal(:done, @leases.try_hold("r") { :done })
    assert_nil(@leases.hold("r") { @leases.try_hold("r") { flunk } })
    assert(!held?("r"))
  end

  def test_a_block_may_be_left_by_break_throw_and_return
    assert_equal(1, @leases.hold("r") { break 1 })
    assert_equal(2, catch(:out) { @leases.hold("r") { throw :out, 2 } })
    assert_equal(3, -> { @leases.hold("r") { return 3 } }.call)
  ensure
    assert(!held?("r"))
  end

  def test_a_lease_that_was_released_stays_released
    @leases.hold("brief", ttl: 4.5) do |lease|
      assert lease.release
      sleep 4.6 # its time would be over
      assert_equal :released, assert_raises(LeaseLock::LeaseLost) { lease.check }.reason
    end
  end

  # At the server, the lease lasts as long as the other hold would have.
  def test_a_counted_hold_ends_after_one_that_was_longer
    longer = @leases.hold("again", ttl: 3600, if_own: :count)
    brief = @leases.hold("again", ttl: 2, if_own: :count, renew: false)
    assert(longer.release)
    wait_until { !held?("again") }
    assert(brief.lost?)
  end

  def test_an_error_of_the_block_is_raised_after_the_release
    error = assert_raises(ZeroDivisionError) { @leases.hold("r") { 1 / 0 } }
    assert_nil(error.cause)
    assert_raises(SystemExit) { @leases.hold("r") { exit } }
    assert(!held?("r"))
  end

  def test_after_a_loss_the_error_of_the_block_is_the_cause
    lost = assert_raises(LeaseLock::LeaseLost) do
      @leases.hold("r") do
        break_lease("r")
        1 / 0
      end
    end
    assert_equal(:broken, lost.reason)
    assert_kind_of(ZeroDivisionError, lost.cause)
  end

  def test_a_refusal_inside_the_block_of_a_try_is_an_error
    @leases.hold("inner") do
      assert_raises(LeaseLock::LeaseTaken) { @leases.try_hold("outer") { @leases.hold("inner") { flunk } } }
    end
    assert(!held?("outer"))
  end

  def test_a_killed_thread_releases
    [-> { sleep }, -> { @leases.hold("never") { sleep } }].each do |work|
      inside = Queue.new
      thread = Thread.new do
        @leases.hold("r", ttl: 3600) do
          inside << true
          work.call
        end
      end
      inside.pop
      thread.kill.join
      wait_until { !held?("r") && !held?("never") }
    end
  end

  def test_a_killed_thread_does_not_wait_any_longer
    holder = @leases.hold("r", ttl: 3600)
    thread = Thread.new { @leases.hold("r", wait: nil) { flunk } }
    wait_until { waiters("r") == 1 }
    thread.kill.join
    wait_until { waiters("r").zero? }
    assert(holder.release)
  end

  def test_timeout_ends_a_wait_and_a_block
    @leases.hold("r", ttl: 3600) do
      assert_raises(Timeout::Error) { Timeout.timeout(0.2) { @leases.hold("r", wait: nil) } }
      wait_until { waiters("r").zero? }
    end
    assert_raises(Timeout::Error) { Timeout.timeout(0.2) { @leases.hold("r", ttl: 3600, wait: nil) { sleep } } }
    wait_until { !held?("r") }
  end

  def test_a_loss_just_before_commit_has_a_known_outcome
    lease, leases = @leases.hold("r", ttl: 3600), @leases
    error = assert_raises(LeaseLock::LeaseLost) do
      lease.transaction do
        lease.define_singleton_method(:check) do
          super()
          leases.close(timeout: 0)
        end
      end
    end
    assert_equal(:closed, error.reason)
  end

  # Wherever the interruption comes: before the grant, between it and the block, in the block, or in the release.
  def test_threads_that_are_killed_at_any_moment_leave_nothing
    40.times do |n|
      thread = Thread.new { @leases.hold("kill:#{n}", ttl: 3600) { 1 } }
      sleep(rand * 0.006)
      thread.kill.join
    end
    wait_until { @leases.counts == { leases: 0, ending: 0, waiting: 0 } }
    wait_until { value("SELECT count(*) FROM lease_status WHERE resource LIKE 'kill:%' AND state = 'held'") == "0" }
  end

  def test_an_interrupted_start_leaves_one_loop
    before, done = Thread.list, Queue.new
    loop = LeaseLock::Loop.new(Logger.new(log))
    interrupt(->(event) { event.method_id == :report_on_exception= }, :c_return) { loop.soon { done << true } }
    loop.soon { done << true }
    2.times { done.pop }
    assert_equal(1, (Thread.list - before).size)
  ensure
    loop.stop
  end

  # A thread that cannot be interrupted starts the loop, whose thread must end with the process nevertheless.
  def test_a_process_ends_beside_a_loop
    script = "Thread.handle_interrupt(Object => :never) { LeaseLock::Loop.new(nil).soon { 1 } }"
    process = spawn(RbConfig.ruby, "-I", File.join(__dir__, "../lib"), "-r", "lease_lock", "-e", script)
    ended = false
    wait_until { ended = Process.wait(process, Process::WNOHANG) }
  ensure
    Process.kill("KILL", process) unless ended
  end

  def test_a_lease_is_released_at_exit_after_an_interrupted_start
    in_child do
      leases = LeaseLock::Leases.new
      interrupt(->(event) { event.method_id == :at_exit }, :c_call) { leases.hold("r", ttl: 3600) }
      leases.hold("r", ttl: 3600)
    end
    assert(!held?("r"))
  end

  def test_an_interrupted_transaction_leaves_the_connection_alone
    guarded = ->(event) { event.method_id == :guard && event.defined_class == LeaseLock::Core }
    [->(&block) { interrupt(guarded, :return, &block) }, method(:interrupt_conclusion)].each do |interrupted|
      leases, connection = open_leases, PG.connect
      lease = leases.hold("r")
      interrupted.call { lease.transaction(connection) { 1 } }
      leases.close
      assert(lease.lost?)
      assert_equal([["1"]], connection.exec("SELECT 1").values)
    end
  end

  def test_a_cancel_that_comes_before_the_statement_is_repeated
    cancelled, inside = Queue.new, Queue.new
    lease = open_leases(open_proxy { |data| cancelled.pop if data.include?("pg_sleep") }.dsn).hold("r")
    thread = Thread.new do
      lease.transaction do |connection|
        connection.define_singleton_method(:cancel) { super().tap { cancelled << true } }
        inside << connection
        connection.exec("SELECT pg_sleep(3600)")
      end
    end
    connection = inside.pop
    wait_until { connection.transaction_status == PG::PQTRANS_ACTIVE }
    thread.kill.join
    wait_until { value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "0" }
  end

  def test_a_killed_thread_rolls_back
    sql("CREATE TABLE IF NOT EXISTS entry (id int)")
    @leases.hold("r") do |lease|
      inside = Queue.new
      thread = Thread.new do
        lease.transaction do |connection|
          connection.exec("INSERT INTO entry VALUES (1)")
          inside << true
          connection.exec("SELECT pg_sleep(3600)")
        end
      end
      inside.pop
      thread.kill.join
      assert_equal("0", value("SELECT count(*) FROM entry"))
      assert_equal([["1"]], lease.transaction { |connection| connection.exec("SELECT 1").values })
    end
  end
end
