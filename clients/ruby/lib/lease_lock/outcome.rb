# frozen_string_literal: true

module LeaseLock
  # A result that one thread gives and another takes. It is decided once: by a value, by an error, or by being abandoned.
  class Outcome
    def initialize
      @mutex = Mutex.new
      @there = ConditionVariable.new
      @decided = false
    end

    def decided?
      @decided
    end

    # False if it is too late: what the value stands for is then the giver's to end.
    def give(value = nil, error: nil)
      @mutex.synchronize do
        return false if @decided
        @decided, @value, @error = true, value, error
        @there.broadcast
      end
      true
    end

    # Nobody waits for it any longer.
    def abandon
      give(error: Closed.new("the call was abandoned"))
    end

    # The value; nil if there is none within +timeout+ seconds.
    def wait(timeout = nil)
      until_time = timeout && LeaseLock.now + timeout
      @mutex.synchronize do
        until @decided
          left = until_time && until_time - LeaseLock.now
          return if left && left <= 0
          @there.wait(@mutex, left)
        end
      end
      raise @error if @error
      value, @value = @value, nil # nothing here keeps a lease alive
      value
    end
  end
end
