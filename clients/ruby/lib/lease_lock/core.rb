# frozen_string_literal: true

module LeaseLock
  # One hold, from the request to the lease.
  class Call
    attr_reader :request, :outcome, :give_up, :limit
    attr_accessor :record, :last, :failures, :looked_up, :link, :waits, :alarm, :pause, :undoing,
                  :unanswered, # copies of the request that may arrive
                  :doubtful_until

    # The block makes the lease for the caller.
    def initialize(core, request, &make)
      @core, @request, @make, @outcome = core, request, make, Outcome.new
      start = LeaseLock.now
      @give_up = request.wait.nil? ? Float::INFINITY : start + request.wait
      @limit = request.wait.nil? ? Float::INFINITY : start + (request.wait.zero? ? PATIENCE : request.wait)
      @last = -> { PG::ConnectionBad.new("no connection in time") }
      @failures = @unanswered = 0
    end

    # By the caller

    def take(give_back)
      @core.submit(self)
      @outcome.wait.tap { @record.take(give_back) }
    end

    # Whatever becomes of it, nobody takes its lease.
    def abandon
      @core.abandon(self)
    end

    # The caller refers to the lease, the record only weakly.
    def make_lease
      @make.call(@record).tap { |lease| @record.lease = lease }
    end
  end

  # What a Leases does for its callers. All of it runs in the loop, so there are no locks. What waits for the network is
  # in links: one of the keeper, a few for tries, and one for each resource that is waited for.
  class Core
    # Connections for tries, and for waits. A resource beyond that is tried in intervals, in seconds.
    TRIES = 4
    WAITS = 8
    INTERVAL = 0.5
    # Connections for waits that are kept for the next one.
    SPARE = 2
    # Pauses after an error, in seconds.
    PAUSES = [0.05, 0.1, 0.2, 0.5, 1.0].freeze

    attr_reader :source, :loop, :logger, :owner

    def initialize(source, logger)
      @source, @logger = source, Log.new(logger)
      @loop = Loop.new(@logger)
      @owner = Request.new_owner # of leases that are counted
      @pid = Process.pid
      @calls, @idle, @backlog, @spare, @closing, @callbacks = [], [], [], [], [], []
      @busy, @lines, @waits, @polls = {}, {}, {}, {}
      @closed = false
      @keeper = Keeper.new(self)
    end

    # What callers do, in any thread

    def closed?
      @closed
    end

    # After a fork the leases are those of the parent.
    def inherited?
      @pid != Process.pid
    end

    def submit(call)
      @loop.soon { start(call) }
    end

    def abandon(call)
      @loop.soon { abandon_now(call, nil) }
    end

    def finish(record, outcome)
      @loop.soon { @keeper.finish(record, outcome) }
    end

    def lose(record, reason)
      @loop.soon { @keeper.lose(record, reason) }
    end

    def orphan(record)
      @loop.soon { @keeper.orphan(record) }
    end

    def close(outcome, timeout)
      @closed = true
      closing = Thread.current
      @loop.soon do
        @callbacks.delete(closing) # which must not wait for itself
        close_now(outcome, timeout)
      end
    end

    def guard(record, connection)
      Guard.new(self, record, connection)
    end

    # In the loop

    # A function of the user's, in a thread of its own, so that it delays nobody.
    def call_back(record)
      lease = record.lease
      return unless lease&.on_lost
      thread = Thread.new do
        lease.on_lost.call(lease)
      rescue StandardError => e
        @logger.error("lease_lock: on_lost: #{e.full_message}")
      ensure
        @loop.soon do
          @callbacks.delete(thread)
          check_end
        end
      end
      @callbacks << thread
    rescue ThreadError => e
      # No thread can be started: the others must be renewed all the same.
      @logger.error("lease_lock: on_lost is not called: #{e.message}")
    end

    def check_end
      return unless @closed && @closing.any? && @busy.empty? && @waits.empty? && @keeper.endings.empty?
      @keeper.stop
      return if @callbacks.any?
      @closing.each { |outcome| outcome.give([]) }
      @closing = []
      @loop.stop
    end

    # A connection that nobody uses.
    def spare
      @idle.pop || @spare.pop
    end

    def counts
      { leases: @keeper.records.size, ending: @keeper.endings.size, waiting: @waits.size }
    end

    private

    def start(call)
      return call.outcome.give(error: Closed.new("leases are closed", call.request.resource)) if @closed
      @calls << call
      call.alarm = @loop.at(call.limit) { expire(call) }
      try(call)
    end

    # A try, on a connection that is never used for waits; unless the call runs: while it was in the backlog or paused, it
    # may have been the head of its line.
    def try(call)
      return if call.outcome.decided? || call.link || call.undoing
      return @backlog << call if @idle.empty? && @busy.size >= TRIES
      link = @idle.pop || Link.new(@loop, @source)
      @busy[link] = call
      call.link = link
      job = ->(schema, connection) { call.request.statement(schema, connection, 0, call.unanswered.positive?) }
      link.run([call.limit, LeaseLock.now].min + PATIENCE, job) { |answer| tried(link, call, answer) }
    end

    def tried(link, call, answer)
      @busy.delete(link)
      call.link = nil
      keep_or_close(link, @idle, TRIES)
      if refused?(call, answer)
        if LeaseLock.now < call.limit && call.request.wait != 0
          line_up(call)
        else
          fail(call, call.last.call)
        end
      end
      try(@backlog.shift) while @backlog.any? && (@idle.any? || @busy.size < TRIES)
      check_end
    end

    def keep_or_close(link, kept, most)
      if link.unusable? || @closed || kept.size >= most
        link.close
      else
        kept << link
      end
    end

    # True for a refusal, for the caller to go on with. Everything else is dealt with here.
    def refused?(call, answer)
      if answer.error
        failed(call, answer.error, !answer.sent.nil?)
        return false
      end
      granted, token, waited, reason, blocked_by, blocked_for = answer.rows[0]
      if granted != "t"
        if call.outcome.decided?
          forget(call)
          return false
        end
        asked = LeaseLock.now
        call.last = lambda do
          left = blocked_for && [0.0, blocked_for.to_i / 1000.0 - (LeaseLock.now - asked)].max
          LeaseTaken.new(call.request.resource, reason, blocked_by, left)
        end
        return true
      end
      granted(call, Record.new(call.request, token.to_i, answer.sent + waited.to_i / 1000.0), answer.unsafe)
      false
    end

    def granted(call, record, unsafe)
      @keeper.join_others(record)
      if unsafe && !call.outcome.decided?
        @logger.warn("lease on \"#{record.resource}\" was granted, but the synchronous standby did not confirm it: asking again")
        call.last = -> { PG::ConnectionBad.new("the synchronous standby did not confirm the grant") }
        call.undoing = true # whatever was asked meanwhile would be told of the grant that ends
        @keeper.finish(record, nil) do
          call.undoing = false
          again(call)
        end
      elsif call.request.own_owner && LeaseLock.now >= record.ends - record.ttl / 2 && !call.outcome.decided?
        # It took so long that the lease is nearly over: ask for it again.
        call.unanswered += 1
        call.last = -> { PG::ConnectionBad.new("answers take longer than the lease lasts") }
        again(call)
      else
        hand_over(call, record)
      end
    end

    def hand_over(call, record)
      drop(call)
      call.record = record
      record.doubtful_until, record.copies = call.doubtful_until, call.unanswered if call.request.own_owner
      lease = call.make_lease
      ObjectSpace.define_finalizer(lease, Core.finalizer(self, record))
      @keeper.add(record)
      @keeper.finish(record, nil) unless call.outcome.give(lease)
    end

    # Must not refer to the lease. A finalizer may run in any thread, in the middle of anything.
    def self.finalizer(core, record)
      proc do
        Thread.new { core.orphan(record) } unless record.fate || core.inherited?
      rescue ThreadError
        nil # the process ends
      end
    end

    def failed(call, error, sent)
      what = Sorting.sort(error, sent)
      if what == "unknown"
        call.unanswered += 1
        call.doubtful_until = LeaseLock.now + Keeper::LOOK_AFTER
      end
      return forget(call) if call.outcome.decided?
      if Sorting::MOVED.include?(Sorting.state(error))
        what = "not again" if call.looked_up
        call.looked_up = true
        @source.forget_schema
      end
      if what == "unknown" && !call.request.own_owner
        fail(call, OutcomeUnknown.new("no answer to a request for \"#{call.request.resource}\"", call.request.resource))
      elsif what == "not again"
        fail(call, error)
      else
        @logger.warn("request for \"#{call.request.resource}\" failed, trying again: #{LeaseLock.utf8(error.message)}") if call.failures.zero?
        call.last = -> { error }
        again(call)
      end
    end

    def again(call)
      return forget(call) if call.outcome.decided?
      pause = PAUSES[[call.failures, PAUSES.size - 1].min]
      call.failures += 1
      return fail(call, call.last.call) if LeaseLock.now + pause >= call.limit
      call.pause = @loop.at(LeaseLock.now + pause) do
        call.pause = nil
        try(call)
      end
    end

    # The limit is over. What the server is being asked has an end of its own; so has a try that connects.
    def expire(call)
      abandon_now(call, call.last.call) if call.link.nil? || (call.waits && call.link.connecting?)
    end

    def fail(call, error)
      call.outcome.give(error: error)
      forget(call)
    end

    def abandon_now(call, error)
      if error.nil?
        call.outcome.abandon
      elsif !call.outcome.give(error: error)
        return
      end
      @keeper.finish(call.record, nil) if call.record
      if call.link.nil?
        forget(call)
      elsif call.waits
        call.link.cut
      end
    end

    # Nobody waits for the call any longer. What it may have been granted is released.
    def forget(call)
      drop(call)
      return unless call.unanswered.positive? && call.request.own_owner
      @keeper.forget(call.request, call.unanswered)
      call.unanswered = 0
    end

    def drop(call)
      @calls.delete(call)
      call.alarm&.cancel
      call.pause&.cancel
      serve(call.request.resource) if @lines[call.request.resource]&.delete(call)
    end

    # Waits: for each resource a line, whose head waits at the server

    def line_up(call)
      line = (@lines[call.request.resource] ||= [])
      line << call unless line.include?(call)
      serve(call.request.resource)
    end

    def serve(resource)
      head = @lines[resource]&.first
      if head.nil?
        @lines.delete(resource)
        @polls.delete(resource)&.cancel
      elsif !@waits.key?(resource) && head.link.nil? && head.pause.nil? && !head.undoing
        if @waits.size < WAITS
          wait(resource, head)
        else
          @polls[resource] ||= @loop.at(LeaseLock.now + INTERVAL) do
            @polls.delete(resource)
            first = @lines[resource]&.first
            try(first) if first && first.link.nil?
          end
        end
      end
    end

    def wait(resource, call)
      link = @spare.pop || Link.new(@loop, @source)
      @waits[resource] = link
      call.link, call.waits = link, true
      job = ->(schema, connection) { call.request.statement(schema, connection, call.give_up, call.unanswered.positive?) }
      link.run(call.limit + PATIENCE, job) { |answer| waited(resource, link, call, answer) }
    end

    def waited(resource, link, call, answer)
      @waits.delete(resource)
      call.link, call.waits = nil, false
      keep_or_close(link, @spare, SPARE)
      if refused?(call, answer)
        # The wait is over; or the server ended it early, and there is time left.
        LeaseLock.now >= [call.limit, call.give_up].min ? fail(call, call.last.call) : again(call)
      end
      [resource, *@lines.keys].uniq.each { |name| serve(name) }
      check_end
    end

    # Resources of what is not released, or may still be granted.
    def unended
      (@keeper.endings.map(&:resource) + @busy.values.map { |call| call.request.resource } + @waits.keys).uniq
    end

    def close_now(outcome, timeout)
      @closing << outcome
      @calls.dup.each { |call| abandon_now(call, Closed.new("leases are closed", call.request.resource)) }
      @keeper.end_all(:closed)
      (@idle + @spare).each(&:close)
      @idle, @spare = [], []
      @loop.at(LeaseLock.now + timeout) { outcome.give(unended) }
      check_end
    end
  end
end
