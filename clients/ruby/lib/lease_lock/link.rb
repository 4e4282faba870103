# frozen_string_literal: true

module LeaseLock
  # A connection of the package's own, and the thread that waits for it.
  #
  # The thread knows nothing but its job: connect if need be, send, report. It can be abandoned, so that whatever hangs
  # (a look-up of a name, the user's function) holds up nobody else. All public methods are called in the loop.
  class Link
    # After a connection was cut off, its thread reports. If it does not within so many seconds, it is abandoned.
    GRACE = 0.5

    # rows, error; sent: when it was sent, nil if it was not; unsafe: a synchronous wait was cancelled, so what was
    # written may not survive a failover.
    Answer = Struct.new(:rows, :error, :sent, :unsafe)

    # until_time: when it must be connected.
    Task = Struct.new(:job, :until_time, :limit, :done, :sent, :socket, :too_late)

    def initialize(core_loop, source)
      @loop, @source = core_loop, source
      @inbox = Queue.new
      @task = nil
      @ended = false
      @thread = nil
      @connection = nil # of the thread
    end

    def busy?
      !@task.nil?
    end

    # What it is to run was not sent yet.
    def connecting?
      busy? && @task.sent.nil?
    end

    # Abandoned: its thread does not come back.
    def unusable?
      @ended
    end

    # job: called with schema and connection just before the statement is sent; returns its text.
    # connecting: how long it may take to connect; limit: how long an answer, counted from when it was sent.
    def run(until_time, job, connecting: PATIENCE, limit: Float::INFINITY, &done)
      connected = [until_time, LeaseLock.now + connecting].min
      task = @task = Task.new(job, connected, limit, done)
      @alarms = [@loop.at(connected) { end_task(task) if task.sent.nil? }, @loop.at(until_time) { end_task(task) }]
      @inbox << task
      @thread ||= start
    end

    # End what is running: its answer is an error.
    def cut
      end_task(@task) if @task
    end

    def close
      cut
      @inbox << nil
      @ended = true
    end

    private

    def sent(task)
      @alarms << @loop.at(LeaseLock.now + task.limit) { end_task(task) } if task.equal?(@task)
    end

    def end_task(task)
      return unless task.equal?(@task)
      task.too_late = true
      if task.socket
        Source.cut(task.socket)
        @loop.at(LeaseLock.now + GRACE) { abandon(task) }
      else
        abandon(task)
      end
    end

    def abandon(task)
      return unless task.equal?(@task)
      @inbox << nil
      @ended = true
      finish(task, nil, PG::ConnectionBad.new(task.sent ? "no answer in time" : "no connection in time"), false)
    end

    def finish(task, rows, error, unsafe)
      task.socket&.close
      return unless task.equal?(@task) # abandoned before
      @task = nil
      @alarms.each(&:cancel)
      if task.too_late && task.sent && error.is_a?(PG::Error) && Sorting.state(error).nil?
        error = PG::ConnectionBad.new("no answer in time: the connection was cut off here")
      end
      task.done.call(Answer.new(rows, error, task.sent, unsafe))
    end

    # Its block refers to nothing but the link: what else is there lives as long as the thread.
    def start
      Thread.new { work }.tap { |thread| thread.report_on_exception = false }
    end

    # In the thread

    def work
      Thread.current.name = "lease_lock connection"
      nil while perform(@inbox.pop)
    ensure
      drop
    end

    # False after close. It keeps no reference to a task that is done, nor to the lease that came of it.
    def perform(task)
      return false if task.nil?
      rows = error = unsafe = nil
      begin
        prepare(task.until_time)
        task.socket = Source.duplicate(@connection)
        raise PG::ConnectionBad, "no connection in time" if task.too_late
        text = task.job.call(@source.schema(@connection), @connection)
        task.sent = LeaseLock.now
        @loop.soon { sent(task) }
        unsafe = Source.wait_cancelled?(@connection) { rows = Source.execute(@connection, text) }
      rescue StandardError => e
        error = e
        drop if Sorting.state(e).nil? || Sorting.read_only?(e) || task.too_late
      end
      @loop.soon { finish(task, rows, error, unsafe) }
      true
    end

    def prepare(until_time)
      drop unless Source.quiet?(@connection)
      @connection ||= @source.connect(until_time)
    end

    def drop
      connection, @connection = @connection, nil
      connection.finish if connection && !connection.finished?
    rescue PG::Error
      nil
    end
  end
end
