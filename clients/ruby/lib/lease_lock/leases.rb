# frozen_string_literal: true

require "logger"

module LeaseLock
  # Leases that are renewed in the background, on one connection for all. Its methods may be called in any thread.
  # All times are seconds: numbers, or what has to_f, as 5.minutes of Rails has.
  class Leases
    # Idle connections that are kept for the next transaction.
    IDLE = 4

    # @param source [String, Hash, #call] a connection string of libpq, its parameters, or something that returns a
    #   PG::Connection (or one of the other two) when it is called, in any thread
    # @param schema [String, nil] where the functions are, if they are not those of the extension (portable edition)
    # @param logger [Logger] is told of trouble with the server
    def initialize(source = "", schema: nil, logger: Logger.new($stderr, level: Logger::WARN))
      @source, @logger = Source.new(source, schema), logger
      @mutex = Mutex.new
      @pid = nil
    end

    # Hold a lease while the block runs. Without a block, the lease is the caller's to release.
    #
    # @param resource [String]
    # @param ttl [Numeric] how long the lease lasts without a renewal
    # @param wait [Numeric, nil] limit for the lease and for an outage of the server; nil: without limit. By default
    #   the lease is not waited for, and the server for at most 5 seconds, plus 5 while a request is without an answer
    # @param on_lost [#call, nil] is called with the lease when it is lost, but not by close, in a thread of its own
    # @param options +mode+ ("exclusive", "shared", or "permit" with +permits+), +min_hold+, +payload+, +if_own+ and
    #   +owner+, as for lease_request; +stop_before+: how long before the end of the lease its holder must have stopped,
    #   a sixth of the ttl by default; +renew+: false for a lease that ends after its ttl
    # @yieldparam lease [Lease]
    # @return the block's result, or a Lease
    # @raise [LeaseTaken] another owner has it
    # @raise [LeaseLost] it was lost while the block ran, whose own error is then the cause
    # @raise [Closed] close was called, before or meanwhile
    # @raise [OutcomeUnknown] only with an owner that others use
    # @raise [PG::Error] one that is not tried again, or the last one when the limit is over
    def hold(resource, ttl: 30, wait: 0, on_lost: nil, **options, &block)
      run(call_for(resource, ttl, wait, on_lost, options), &block)
    end

    # The same without a wait.
    #
    # @return the block's result, or a Lease; nil if another owner has the lease
    def try_hold(resource, ttl: 30, on_lost: nil, **options, &block)
      run(call_for(resource, ttl, 0, on_lost, options), nil_if_taken: true, &block)
    end

    # Call the block whenever this is the leader, until it returns as leader. It has to return when lease.lost?; then
    # this stands for election again.
    #
    # @return the block's result, or nil after close
    def elect(resource, ttl: 10, on_lost: nil, **options)
      until core.closed?
        call = call_for(resource, ttl, ttl, on_lost, options)
        begin
          return run(call) { |lease| yield(lease).tap { lease.check } }
        rescue LeaseError, PG::Error => e
          raise unless stands_again?(call, e)
          @logger.warn("not the leader of \"#{resource}\": #{LeaseLock.utf8(e.message)}") unless e.is_a?(LeaseTaken)
          sleep 1 if e.is_a?(OutcomeUnknown) # it may come at once, again and again
        end
      end
    end

    # Call the block, unless a block was called under this name in the last +period+ seconds, on whichever host. If that
    # host crashed, the block is called when the ttl is over; if it raised, at once with +retry_failed+, else after the
    # period.
    #
    # @return the block's result, or nil if it was not called
    def once(name, period, ttl: 30, retry_failed: false, on_lost: nil, **options, &block)
      call = call_for(name, [ttl, period].min, 0, on_lost, { **options, min_hold: period })
      run(call, nil_if_taken: true, give_back: retry_failed, &block)
    end

    # Release what is held. Leaves no thread and no connection. At exit it is called by itself.
    #
    # @return [Array<String>] resources that were not released within the timeout; it goes on in the background
    def close(timeout: 10)
      outcome = Outcome.new
      core.close(outcome, timeout)
      outcome.wait.tap { @mutex.synchronize { @idle.shift(@idle.size) }.each(&:finish) }
    end

    # Numbers of leases that are kept, of releases that are not done, and of connections for waits.
    def counts
      core.counts
    end

    # @api private
    def connection(until_time)
      idle = @mutex.synchronize { @idle.pop }
      return idle if Source.quiet?(idle)
      idle&.finish
      outcome = Outcome.new
      Thread.new { open_for(outcome, until_time) }
      outcome.wait([until_time - LeaseLock.now, 0.001].max) or raise PG::ConnectionBad, "no connection in time"
    ensure
      outcome&.abandon
    end

    # @api private
    def give_back(connection, broken)
      kept = !broken && Source.quiet?(connection) && @mutex.synchronize { !@core.closed? && @idle.size < IDLE && @idle.push(connection) }
      connection.finish unless kept || connection.finished?
    end

    private

    # Of this process: after a fork, the child begins anew.
    def core
      @mutex.synchronize do
        return @core if @pid == Process.pid
        at_exit { close(timeout: PATIENCE) unless @core.nil? || @core.inherited? || @core.closed? }
        @pid, @idle, @core = Process.pid, [], Core.new(@source, @logger)
      end
      @core
    end

    def call_for(resource, ttl, wait, on_lost, options)
      owner = core
      Call.new(owner, Request.new(owner.owner, resource, ttl, wait, options)) { |record| Lease.new(self, owner, record, on_lost) }
    end

    # In one frame, so that it is known what to end, wherever Thread#raise, Thread#kill or Timeout interrupt it.
    def run(call, nil_if_taken: false, give_back: false)
      lease = call.take(give_back)
      return lease.tap { call = nil } unless block_given?
      result = yield lease
      lease.succeeded
      finished = true
      result
    rescue Exception => e # rubocop:disable Lint/RescueException -- it is only noted
      failure = e
      raise unless nil_if_taken && lease.nil? && e.is_a?(LeaseTaken)
    ensure
      Thread.handle_interrupt(Object => :on_blocking) do
        lease ? lease.end_block(finished, failure) : call.abandon
      end if call
    end

    def stands_again?(call, error)
      if call.record
        (error.is_a?(Closed) || (error.is_a?(LeaseLost) && error.reason != :released)) && error.resource == call.request.resource
      else
        [LeaseTaken, Closed, OutcomeUnknown].any? { |kind| error.is_a?(kind) } || Sorting.sort(error, true) != "not again"
      end
    end

    def open_for(outcome, until_time)
      connection = @source.connect(until_time)
      connection.finish unless outcome.give(connection)
    rescue StandardError => e
      outcome.give(error: e)
    end
  end
end
