# frozen_string_literal: true

module LeaseLock
  # A lease that is held.
  class Lease
    # @return [String]
    attr_reader :resource, :owner, :mode
    # @return [Integer] its fencing token
    attr_reader :token

    # Only the lease refers to it: it may refer to the lease, which could never be garbage then.
    #
    # @api private
    attr_reader :on_lost

    # @api private
    def initialize(leases, core, record, on_lost)
      @leases, @core, @record, @on_lost = leases, core, record, on_lost
      @resource, @owner, @token, @mode = record.resource, record.owner, record.token, record.mode
      @lost = record.lost
    end

    # Is it lost? True before anybody else can have the lease. Not true after release.
    def lost?
      @lost.decided? || @core.inherited?
    end

    # Wait until it is lost, for at most +timeout+ seconds.
    #
    # @return [Boolean] whether it is lost
    def wait_lost(timeout = nil)
      @lost.wait(timeout) unless @core.inherited?
      lost?
    end

    # Seconds until it is lost unless it is renewed before: the holder has to stop by then. 0 if it is lost or released.
    def remaining
      @core.inherited? ? 0.0 : @record.remaining
    end

    # Makes no call.
    #
    # @raise [LeaseLost] it is lost, or released
    def check
      raise LeaseLost.new(@resource, :closed) if @core.inherited?
      raise @record.loss unless remaining.positive?
    end

    # Does anybody wait for it? By the last renewal; nil if that is not known.
    def contended
      @record.contended
    end

    # Ends within 5 seconds, or with the lease.
    #
    # @return [Boolean] false if it was not held any longer
    # @raise [OutcomeUnknown] no answer came; it goes on in the background until the end of the lease
    def release
      finish
    end

    # A transaction that asserts the lease, and may write to tables that it protects. No other owner is granted the
    # lease before the transaction ends. It is rolled back if the block raises, or if the lease is lost.
    #
    # @param on [PG::Connection, Class, nil] a connection that is not in a transaction, or an ActiveRecord class, whose
    #   own transaction it is then. By default it has a connection of this package's
    # @yieldparam connection [PG::Connection]
    # @return the block's result
    # @raise [LeaseLost] the lease is lost
    # @raise [OutcomeUnknown] COMMIT had no answer
    def transaction(on = nil, &work)
      kind = on.respond_to?(:connection_pool) ? RecordTransaction : Transaction
      kind.new(@leases, @core, @record).run(self, on, &work)
    end

    # @return [Symbol, nil] the reason of the loss, as in LeaseLost, or :released; nil while it is held
    def fate
      @record.fate
    end

    # @api private
    def succeeded
      @record.give_back = false
    end

    # The end of a block: finished unless it raised the failure, threw or was killed.
    #
    # @api private
    def end_block(finished, failure)
      return if fate == :released || @core.inherited?
      released = begin
        @record.handed_over ? hand_over : finish
      rescue OutcomeUnknown, PG::Error => e
        @core.logger.warn("could not release lease on \"#{@resource}\": #{LeaseLock.utf8(e.message)}")
        true
      end
      raise @record.loss if !released && (finished || failure.is_a?(StandardError)) && !failure.is_a?(LeaseLost)
    end

    def inspect
      "#<LeaseLock::Lease #{@resource.inspect} token=#{@token} #{fate || 'held'}>"
    end

    private

    def hand_over
      remaining.positive?.tap { @core.finish(@record, nil) }
    end

    def finish
      return false if @core.inherited?
      outcome = Outcome.new
      @core.finish(@record, outcome)
      outcome.wait
    ensure
      @core.finish(@record, nil) unless outcome.nil? || outcome.decided? # interrupted
    end
  end
end
