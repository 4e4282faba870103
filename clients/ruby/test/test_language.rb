# frozen_string_literal: true

require "minitest/mock"
require "timeout"
require "tmpdir"

# What only Ruby has: fork, the garbage collector, types, gems.
class LanguageTest < TestCase
  def test_after_a_fork_the_leases_stay_with_the_parent
    leases = open_leases("application_name=parent")
    lease = leases.hold("r", ttl: 6)
    lease.transaction { 1 }
    before = sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'parent' ORDER BY 1")
    child = in_child do
      check = begin
        lease.check
      rescue LeaseLock::LeaseLost => e
        e.reason
      end
      mine = leases.hold("child") { |other| other.owner.split(":")[1].to_i == Process.pid }
      [lease.lost?, lease.remaining, check, lease.release, leases.try_hold("r"), mine]
    end
    assert_equal([true, 0.0, :closed, false, nil, true], child)
    assert(held?("r"))
    assert(!held?("child"))
    assert_empty(before - sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'parent'"))
    assert_equal([["1"]], lease.transaction { |connection| connection.exec("SELECT 1").values })
    assert(lease.release)
  end

  # libpq has closed its socket.
  def test_a_fork_beside_a_connection_that_broke
    leases = open_leases
    lease = leases.hold("r")
    lease.transaction do |connection|
      sql("SELECT pg_terminate_backend($1, 60000)", connection.backend_pid)
      assert_raises(PG::Error) { connection.exec("SELECT 1") }
      assert_equal(1, in_child { 1 })
      raise PG::Error
    end
  rescue PG::Error
    assert(lease.release)
  end

  def test_texts_of_the_server_may_have_any_encoding
    failures = Queue.new << 1
    connect = lambda do
      raise PG::ConnectionBad, "das Datenbanksystem f\xE4hrt herunter".b unless failures.empty? || failures.pop.nil?
      PG.connect(application_name: "translated")
    end
    lease = open_leases(connect).hold("T\u00FCr", ttl: 6)
    before = expiry("T\u00FCr")
    failures << 1
    sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'translated'")
    wait_until { lease.lost? || expiry("T\u00FCr") != before }
    assert(!lease.lost?)
    assert_equal(2, log.string.scan("f\uFFFDhrt").size)
  end

  def test_a_fork_beside_a_loop_that_is_busy
    leases = open_leases
    busy = Thread.new { leases.hold("busy") { 1 } until Thread.current[:stop] }
    2.times { assert_equal(1, in_child { leases.hold("child", wait: 10) { 1 } }) }
    busy[:stop] = true
    busy.join
  end

  def test_a_child_that_exits_releases_what_it_holds
    leases = open_leases
    assert_equal(true, in_child { !leases.hold("child", ttl: 3600).nil? })
    assert(!held?("child"))
  end

  def test_close_leaves_no_thread
    before = Thread.list
    leases = open_leases
    2.times { |n| leases.hold("close:#{n}", ttl: 3600) }
    waiting = Thread.new { assert_raises(LeaseLock::Closed) { leases.hold("close:0", wait: 3600) } }
    wait_until { waiters("close:0") == 1 }
    assert_empty(leases.close)
    waiting.join
    wait_until { (Thread.list - before).empty? }
  end

  def test_a_lease_that_nobody_refers_to_is_released
    leases = open_leases
    Thread.new { leases.hold("dropped", ttl: 3600) && nil }.join
    wait_until { GC.start || !held?("dropped") }
    assert_match(/"dropped" was not released/, log.string)
  end

  def test_a_callback_that_refers_to_its_lease_does_not_keep_it
    leases = open_leases
    Thread.new { (lease = leases.hold("dropped", ttl: 3600, on_lost: ->(_) { lease.fate })) && nil }.join
    wait_until { GC.start || !held?("dropped") }
  end

  def test_on_lost_is_called_and_wait_lost_ends
    told = Queue.new
    lease = open_leases.hold("r", on_lost: ->(lost) { told << lost.fate && raise("in the callback") })
    assert_equal(false, lease.wait_lost(0))
    break_lease("r")
    assert_raises(LeaseLock::LeaseLost) { lease.transaction { flunk } }
    assert_equal(true, lease.wait_lost(LONG))
    assert_equal(:broken, told.pop)
    wait_until { log.string.include?("in the callback") }
  end

  # Both leases are renewed with one statement.
  def test_if_no_thread_can_be_started_for_on_lost_the_others_are_renewed
    leases = open_leases
    lost, other = %w[r other].map { |name| leases.hold(name, ttl: 6, on_lost: ->(_) { flunk }) }
    start, refused = Thread.method(:new), false
    refuse = lambda do |*args, &block|
      raise ThreadError, "can't create Thread" if !refused && (refused = caller.any?(/call_back/))
      start.call(*args, &block)
    end
    Thread.stub(:new, refuse) do
      break_lease("r")
      wait_until { lost.lost? }
      before = expiry("other")
      wait_until { other.lost? || expiry("other") != before }
    end
    assert(!other.lost?)
    wait_until { log.string.include?("on_lost is not called: can't create Thread") }
  end

  def test_on_lost_may_close
    closed = Queue.new
    leases = open_leases
    lease = leases.hold("r", on_lost: ->(_) { closed << leases.close(timeout: LONG) })
    break_lease("r")
    assert_raises(LeaseLock::LeaseLost) { lease.transaction { flunk } }
    assert_empty(Timeout.timeout(LONG / 2) { closed.pop })
  end

  def test_elect_goes_on_if_an_outcome_is_unknown
    leases = open_leases(delay_requests(1, Queue.new).dsn)
    assert_equal(1, leases.elect("leader", owner: "me") { 1 })
  end

  # All of them come after the release.
  def test_no_late_copy_of_a_request_leaves_a_lease
    arrives = Queue.new
    leases = open_leases(delay_requests(2, arrives).dsn)
    with_time_to_look_after(LONG) do
      leases.hold("late", ttl: 3600, wait: LONG) { 1 }
      2.times do
        before = token("late")
        arrives << true
        wait_until { token("late") != before && !held?("late") }
      end
    end
  end

  def test_a_period_is_kept_whatever_min_hold_says
    assert_equal(1, open_leases.once("job", 3600, min_hold: 1) { 1 })
    assert_equal("t", value("SELECT expires_at > clock_timestamp() + interval '30 minutes' FROM lease_lock WHERE resource = 'job'"))
  end

  def test_contended_is_nil_if_the_server_cannot_tell
    lease = open_leases.hold("r", ttl: 3600)
    record, core = %i[@record @core].map { |name| lease.instance_variable_get(name) }
    %w[t f].push(nil).zip([true, false, nil]) do |told, contended|
      answer = LeaseLock::Link::Answer.new([["1", "t", told, "f"]], nil, LeaseLock.now)
      core.instance_variable_get(:@keeper).send(:renewed, [record], answer)
      contended.nil? ? assert_nil(lease.contended) : assert_equal(contended, lease.contended)
    end
  end

  def test_wrong_arguments_are_told_at_once
    leases = open_leases
    [{ ttl: "30" }, { ttl: 0 }, { ttl: 10, stop_before: 10 }, { tll: 3 }, { wait: "1" }, { wait: -0.1 }, { ttl: Float::NAN }].each do |options|
      assert_raises(ArgumentError, options.inspect) { leases.hold("r", **options) }
    end
    assert_raises(ArgumentError) { LeaseLock::Leases.new(17) }
  end

  def test_times_may_be_durations_and_names_symbols
    require "active_support/all"
    lease = open_leases.hold("r", ttl: 10.minutes, wait: 1.second, mode: :shared, payload: { "why" => ["tested"] })
    assert_in_delta(500, lease.remaining, 60)
    assert_equal('{"why": ["tested"]}', value("SELECT payload FROM lease_status"))
    lease.release
  end

  def test_a_connection_of_the_user_may_convert_types
    typed = lambda do
      PG.connect.tap { |connection| connection.type_map_for_results = PG::BasicTypeMapForResults.new(connection) }
    end
    leases = open_leases(typed)
    assert_equal([[1]], leases.hold("r") { |lease| lease.transaction { |connection| connection.exec("SELECT 1").values } })
  end

  def test_a_transaction_on_a_connection_of_the_user
    connection = PG.connect
    open_leases.hold("r") do |lease|
      lease.transaction(connection) { assert_equal(PG::PQTRANS_INTRANS, connection.transaction_status) }
      assert_equal(PG::PQTRANS_IDLE, connection.transaction_status)
      connection.exec("BEGIN")
      assert_raises(ArgumentError) { lease.transaction(connection) { flunk } }
      assert_equal(PG::PQTRANS_INTRANS, connection.transaction_status)
    end
    connection.finish
  end

  def test_the_module_has_leases_of_its_own
    LeaseLock.leases = open_leases
    assert_equal(1, LeaseLock.hold("r") { 1 })
    assert_nil(LeaseLock.hold("r") { LeaseLock.try_hold("r") })
    assert_equal(2, LeaseLock.once("job", 3600) { 2 })
    assert_nil(LeaseLock.once("job", 3600) { 3 })
    assert_equal(4, LeaseLock.elect("leader") { 4 })
    assert_equal([], LeaseLock.close)
  end

  def test_the_table_of_errors_is_that_of_all_clients
    tables = %w[../lib/lease_lock/errors.tsv ../../conformance/errors.tsv].map { |path| File.read(File.join(__dir__, path)) }
    assert_equal(tables[1], tables[0])
  end

  # In a folder of its own, as an application would have it.
  def test_the_gem_builds_and_installs
    Dir.mktmpdir do |folder|
      source = File.join(folder, "source")
      FileUtils.cp_r(File.join(__dir__, ".."), source)
      run!("gem", "build", "--output", "#{folder}/lease_lock.gem", "lease_lock.gemspec", chdir: source)
      home = { "GEM_HOME" => "#{folder}/home", "RUBYLIB" => nil, "RUBYOPT" => nil }
      run!(home, "gem", "install", "--local", "--ignore-dependencies", "--no-document", "#{folder}/lease_lock.gem", chdir: folder)
      printed = run!(home, RbConfig.ruby, "-e", 'require "lease_lock"; LeaseLock.hold("gem") { puts $".grep(/lease_lock.rb/) }', chdir: folder)
      assert_match(%r{\A#{folder}/home/gems/lease_lock-#{LeaseLock::VERSION}/lib/lease_lock.rb}, printed)
      files = Dir.children("#{folder}/home/gems/lease_lock-#{LeaseLock::VERSION}").sort
      assert_equal(%w[LICENSE README.md lib], files)
    end
  end

  private

  def expiry(resource)
    value("SELECT expires_at FROM lease_lock WHERE resource = $1", resource)
  end

  def token(resource)
    value("SELECT token FROM lease_lock WHERE resource = $1", resource)
  end

  def with_time_to_look_after(seconds)
    usual = set_time_to_look_after(seconds)
    yield
  ensure
    set_time_to_look_after(usual)
  end

  def set_time_to_look_after(seconds)
    LeaseLock::Keeper.send(:remove_const, :LOOK_AFTER).tap { LeaseLock::Keeper.const_set(:LOOK_AFTER, seconds) }
  end

  def run!(*command, **options)
    IO.popen(command, err: %i[child out], **options, &:read).tap { |output| assert($?.success?, output) }
  end
end
