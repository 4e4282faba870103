# frozen_string_literal: true

require "lease_lock"
require "stringio"
require "proxy"

# What the tests have in common. Nothing depends on speed: LONG is only so that a test that hangs ends.
class TestCase < Minitest::Test
  LONG = ENV.fetch("PG_TEST_TIMEOUT_DEFAULT", "180").to_i

  def setup
    @opened, @proxies = [], []
    sql("CREATE EXTENSION IF NOT EXISTS lease_lock")
  end

  def teardown
    @opened.each(&:close)
    LeaseLock.close
    @proxies.each(&:close)
    sql("SELECT lease_break(resource) FROM lease_status")
  end

  def log
    @log ||= StringIO.new
  end

  # Leases that are closed after the test.
  def open_leases(source = "", **options)
    @opened << LeaseLock::Leases.new(source, logger: Logger.new(log), **options)
    @opened.last
  end

  # Closed after the test.
  def open_proxy(&watch)
    Proxy.new(&watch).tap { |proxy| @proxies << proxy }
  end

  # Requests for leases go on at once, but for the first: their client hears nothing of them, and they reach the server
  # when the queue has something for each.
  def delay_requests(number, queue)
    open_proxy do |data, client|
      if data.include?("lease_request(") && (number -= 1) >= 0
        client.shutdown
        queue.pop
      end
    end
  end

  def sql(statement, *params)
    (@@connection ||= PG.connect(options: "-c client_min_messages=warning -c statement_timeout=#{LONG}s")).exec_params(statement, params).values
  end

  def value(statement, *params)
    sql(statement, *params).dig(0, 0)
  end

  def held?(resource)
    value("SELECT count(*) FROM lease_status WHERE resource = $1 AND state = 'held'", resource) == "1"
  end

  def waiters(resource)
    value("SELECT count(*) FROM lease_waiters WHERE resource = $1", resource).to_i
  end

  def break_lease(resource)
    sql("SELECT lease_break($1)", resource)
  end

  def wait_until(limit = LONG)
    limit = LeaseLock.now + limit
    until yield
      flunk("it did not happen") if LeaseLock.now > limit
      sleep 0.02
    end
  end

  class Interruption < RuntimeError; end

  # The thread is interrupted at the first of the events for which +here+ is true, or as soon as it can be from then on.
  def interrupt(here, *events)
    thread = Thread.current
    trace = TracePoint.new(*events) do |event|
      next unless Thread.current == thread && here.call(event)
      trace.disable
      thread.raise(Interruption)
    end
    assert_raises(Interruption) { trace.enable { yield } }
  end

  # Where the connection of a transaction is given back.
  def interrupt_conclusion(&block)
    concluding = false
    here = lambda do |event|
      concluding ||= event.method_id == :conclude
      concluding && event.event == :return && event.method_id == :inherited?
    end
    interrupt(here, :call, :return, &block)
  end

  # What the block returns in a child, which ends as programs do. An end of a connection that it inherits would reach the
  # server: this file has none meanwhile.
  def in_child
    @@connection&.finish
    @@connection = nil
    reader, writer = IO.pipe
    pid = fork do
      writer.write(Marshal.dump(yield))
    rescue StandardError => e
      writer.write(Marshal.dump(e.full_message))
    ensure
      writer.close
    end
    writer.close
    Marshal.load(reader.read).tap { Process.wait(pid) }
  end
end
