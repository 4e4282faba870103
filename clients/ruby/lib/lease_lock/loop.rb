# frozen_string_literal: true

module LeaseLock
  # The thread that everything runs in that needs an order. It never touches the network, so nothing delays the alarm of
  # a deadline. It ends when nothing is left to do.
  class Loop
    # Waits do not count the time of a suspend: look at the clock at least this often, in seconds.
    TICK = 1.0

    Alarm = Struct.new(:time, :run) do
      def cancel
        self.run = nil
      end

      def set?
        !run.nil?
      end
    end

    def initialize(logger)
      @logger = logger
      @mutex = Mutex.new
      @news = ConditionVariable.new
      @inbox = []
      @alarms = []
      @stopped = false
      @thread = nil
    end

    # Run the block in the loop. Called in any thread, whose interruption must not leave a second loop.
    def soon(&run)
      Thread.handle_interrupt(Object => :never) do
        @mutex.synchronize do
          @inbox << run
          @thread = start unless @thread&.alive?
          @news.signal
        end
      end
    end

    # Run the block at a time; called in the loop only.
    def at(time, &run)
      alarm = Alarm.new(time, run)
      return alarm if time == Float::INFINITY
      @alarms.reject! { |other| !other.set? } if @alarms.size % 256 == 255
      place = @alarms.bsearch_index { |other| other.time > time } || @alarms.size
      @alarms.insert(place, alarm)
      alarm
    end

    # For good. What comes later is still run, but no alarms.
    def stop
      @mutex.synchronize { @stopped = true }
    end

    private

    # The thread would inherit that it cannot be interrupted, and so not end with the process.
    def start
      Thread.new { Thread.handle_interrupt(Object => :immediate) { work } }.tap { |thread| thread.report_on_exception = false }
    end

    def work
      Thread.current.name = "lease_lock"
      loop do
        ring
        run = take
        break if run == :stopped
        call(run) if run
      end
    end

    def ring
      while (alarm = @alarms.first) && (!alarm.set? || alarm.time <= LeaseLock.now)
        @alarms.shift
        call(alarm.run) if alarm.set?
      end
    end

    def take
      @mutex.synchronize do
        if @inbox.empty?
          if @stopped
            @thread = nil
            return :stopped
          end
          @news.wait(@mutex, @alarms.empty? ? TICK : [[@alarms.first.time - LeaseLock.now, 0.0005].max, TICK].min)
        end
        @inbox.shift
      end
    end

    def call(run)
      run.call
    rescue StandardError => e
      @logger.error("lease_lock: #{e.full_message}")
    end
  end
end
