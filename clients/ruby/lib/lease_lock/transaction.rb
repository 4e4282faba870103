# frozen_string_literal: true

module LeaseLock
  # One transaction under a lease.
  class Transaction
    # Seconds.
    CANCEL_AGAIN = 0.2

    def initialize(leases, core, record)
      @leases, @core, @record = leases, core, record
      @stage = :begins
    end

    def run(lease, given)
      lease.check
      begin_on(lease, given)
      result = yield @connection
      lease.check
      raise PG::Error, "the transaction had failed, or the block has ended it" unless
        @connection.transaction_status == PG::PQTRANS_INTRANS
      commits
      undone = Source.wait_cancelled?(@connection) { @connection.async_exec("COMMIT") }
      @stage = :ended
      raise unknown("COMMIT was not confirmed by the synchronous standby") if undone
      result
    rescue PG::Error, IOError => e
      @read_only = Sorting.read_only?(e)
      raise meaning_of(e)
    ensure
      conclude(given)
    end

    private

    # On another connection if one breaks: nothing of the user's is in the transaction yet.
    def begin_on(lease, given)
      raise ArgumentError, "the connection is in a transaction" if given && given.transaction_status != PG::PQTRANS_IDLE
      until_time = LeaseLock.now + [PATIENCE, lease.remaining].min
      pause, told = 0.05, nil
      begin
        guard(given || @leases.connection(until_time), until_time)
        @connection.async_exec("BEGIN")
        assert
      rescue PG::Error => e
        raise if given || Sorting.sort(e, true) == "not again"
        told = e if told.nil? || Sorting.state(e) # by the server: it says more than that the time was over
        raise told if LeaseLock.now + pause >= until_time
        @read_only = Sorting.read_only?(e)
        @core.logger.warn("transaction under \"#{@record.resource}\" did not begin, trying again: #{LeaseLock.utf8(e.message)}") if pause == 0.05
        conclude(given)
        sleep pause
        pause = [2 * pause, 0.5].min
        lease.check
        retry
      end
    end

    def guard(connection, until_time)
      @connection, @read_only = connection, false
      Thread.handle_interrupt(Object => :never) { @guard = @core.guard(@record, connection) }
      @guard.limit(until_time)
    end

    def assert
      values = { resource: @record.resource, owner: @record.owner }
      token = begin
        Source.execute(@connection, Statements.fill(Statements::ASSERT, @connection, @record.schema, values))[0][0]
      rescue PG::ObjectNotInPrerequisiteState
        nil
      end
      return @guard.limit(Float::INFINITY) if token.to_i == @record.token
      @core.lose(@record, :broken)
      raise LeaseLost.new(@record.resource, :broken)
    end

    def commits
      raise PG::ConnectionBad, "the connection was cut off before COMMIT" if @guard.cut?
      @stage = :commits
      @guard.limit(@record.deadline)
    end

    def meaning_of(error)
      if @stage == :begins && @record.fate
        @record.loss
      elsif @stage == :commits && Sorting.sort(error, true) == "unknown"
        unknown("no answer to COMMIT")
      else
        error
      end
    end

    def unknown(what)
      OutcomeUnknown.new("#{what} under the lease on \"#{@record.resource}\"", @record.resource)
    end

    # Roll back what was not committed, and give the connection back.
    def conclude(given)
      roll_back unless @guard.nil? || @core.inherited? || @stage == :ended
    ensure
      end_guard { |cut| @leases.give_back(@connection, cut || @read_only) unless given }
    end

    # The block is told whether it has cut the connection off. An interruption must not leave it: it would do so later.
    def end_guard
      Thread.handle_interrupt(Object => :on_blocking) do
        guard, @guard = @guard, nil
        next if guard.nil?
        next guard.close if @core.inherited?
        begin
          cut = guard.end
        ensure
          yield cut
        end
      end
    end

    def roll_back
      return if @connection.finished? || @connection.transaction_status == PG::PQTRANS_IDLE
      @guard.limit(LeaseLock.now + PATIENCE)
      end_statement if @connection.transaction_status == PG::PQTRANS_ACTIVE
      @connection.async_exec("ROLLBACK")
    rescue PG::Error, IOError
      nil # the server ends it with the connection
    end

    # A cancel that comes before the statement is without effect.
    def end_statement
      loop do
        cancel
        break if @connection.block(CANCEL_AGAIN)
      end
    end

    # The driver knows no limit for it: it waits until the server has closed another connection.
    def cancel
      connection = @connection
      thread = Thread.new { connection.cancel }
      thread.join(PATIENCE)
    ensure
      thread&.kill
    end
  end

  # Cuts a connection off when its lease is lost, or at a time that is set.
  class Guard
    def initialize(core, record, connection)
      @loop, @record, @socket = core.loop, record, Source.duplicate(connection)
      @cut = false
      @loop.soon { record.fate ? cut : record.guards << self }
    end

    def limit(until_time)
      @loop.soon do
        @alarm&.cancel
        @alarm = @loop.at(until_time) { cut }
      end
    end

    def cut?
      @cut
    end

    # From now on it is not cut off. Returns whether it was. May be called again.
    def end
      ended = Outcome.new
      @loop.soon do
        @alarm&.cancel
        @record.guards.delete(self)
        @socket.close
        ended.give(@cut)
      end
      ended.wait
    end

    # In a forked child: nothing here is its own.
    def close
      @socket.close
    end

    # In the loop.
    def cut
      @cut = true
      Source.cut(@socket)
    end
  end
end
