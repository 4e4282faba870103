# frozen_string_literal: true

module LeaseLock
  # Lines for the user's logger, written by a thread of its own: a log that nobody reads must not keep the loop from
  # telling of a loss.
  class Log
    # More are not kept.
    MOST = 1000

    def initialize(logger)
      @logger = logger
      @mutex = Mutex.new
      @lines = []
      @thread = nil
    end

    def warn(text)
      add(:warn, text)
    end

    def error(text)
      add(:error, text)
    end

    private

    def add(level, text)
      @mutex.synchronize do
        @lines << [level, text] if @lines.size < MOST
        @thread = Thread.new { write }.tap { |thread| thread.report_on_exception = false } unless @thread&.alive?
      end
    rescue ThreadError
      nil # no thread can be started
    end

    def write
      while (line = @mutex.synchronize { @lines.shift || (@thread = nil) })
        @logger.public_send(*line)
      end
    end
  end
end
