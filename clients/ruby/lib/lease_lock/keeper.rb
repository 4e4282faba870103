# frozen_string_literal: true

require "weakref"

module LeaseLock
  # A lease that was granted, and its times. lease: what the caller has, held weakly.
  class Record
    # Parts of the ttl: when to renew, and what a try may take.
    RENEW_AT = 1.0 / 3
    TRY = 1.0 / 6

    # When all holds of one owner are over. They share it.
    Last = Struct.new(:time)

    attr_reader :request, :resource, :owner, :token, :mode, :ttl, :schema, :renew, :ends, :deadline, :limit, :fate, :guards, :lost, :own_owner
    attr_accessor :alarm, :contended, :alone, :renew_at, :handed_over,
                  :give_back,     # at its end it is not kept for its min_hold: nobody has worked, or the work has not succeeded
                  :doubtful_until, :copies # until then, so many copies of its request may arrive

    def initialize(request, token, since)
      @request, @resource, @owner, @token, @mode = request, request.resource, request.owner, token, request.mode
      @ttl, @stop_before, @renew, @schema = request.ttl, request.stop_before, request.renew, request.schema
      @own_owner = request.own_owner
      @over, @last = 0.0, Last.new(0.0)
      @guards, @lost, @give_back = [], Outcome.new, true
      extend_from(since)
    end

    def extend_from(sent)
      left = @ttl - @stop_before
      @ends = sent + @ttl
      may_last_until(@ends)
      @deadline = sent + left
      @renew_at = sent + [@ttl * RENEW_AT, left / 2].min
      @limit = [@ttl * TRY, left / 4, PATIENCE].min
    end

    # At the server, by a renewal without an answer as well.
    def may_last_until(time)
      @over = [@over, time].max
      @last.time = [@last.time, time].max
    end

    # Then it has certainly ended at the server, where a hold that is counted lasts as long as the others.
    def over
      @request.counted ? @last.time : @over
    end

    def same_lease?(other)
      [@resource, @owner, @token] == [other.resource, other.owner, other.token]
    end

    def join(other)
      @last = other.last
      may_last_until(@over)
    end

    def remaining
      @fate ? 0.0 : [0.0, @deadline - LeaseLock.now].max
    end

    def lease=(lease)
      @lease = WeakRef.new(lease)
    end

    # What the caller has; nil if nothing refers to it any longer.
    def lease
      @lease.__getobj__ if @lease&.weakref_alive?
    rescue WeakRef::RefError
      nil
    end

    # False if it was lost or released before.
    def decide(fate)
      return false if @fate
      @fate = fate
      @alarm&.cancel
      true
    end

    # By its caller, who works from now on; not after close, which has given it back.
    def take(give_back)
      @give_back = give_back
      raise Closed.new("leases are closed", @resource) if @fate == :closed
    end

    # After a release that found the lease gone.
    def correct(fate)
      @fate = fate
    end

    def loss
      LeaseLost.new(@resource, @fate || :expired)
    end

    protected

    attr_reader :last
  end

  # A lease, or what a request may have been granted, that is to be released.
  class Ending
    attr_reader :request, :resource, :owner, :token, :record, :give_back
    attr_accessor :due, :held, :unanswered, :alone, :sure_at, :copies, :outcome, :after, :warned, :repeats
    attr_writer :over

    def initialize(request, record = nil)
      @request, @resource, @owner, @record, @token = request, request.resource, request.owner, record, record&.token
      @give_back = request.keeps? && (record.nil? || record.give_back)
      @due, @pause, @held, @sure_at = LeaseLock.now, 0.05, true, 0.0
      @repeats = true # a second release ends nothing but this lease
      @copies = 1 # of the request: more releases than that do not come
    end

    # Then it is over by itself. A renewal that is under way may still move that.
    def until_time
      @record ? @record.over : @over
    end

    def later
      @due = LeaseLock.now + @pause
      @pause = [2 * @pause, 1.0].min
    end
  end

  # Keeps leases alive, ends them, and tells in time when one is lost. All of it runs in the loop.
  #
  # The holder must stop before anybody else can be granted the lease. So the end of a lease is counted here, from before
  # the request was sent, and the loop tells of a loss stop_before seconds earlier. One connection renews and ends leases:
  # renewals go first, with one statement for all leases that are nearly due. An end that meets a lock is tried again
  # until its lease is over, and not waited for.
  class Keeper
    # What else is renewed with a lease that is due, as a part of the ttl.
    TOGETHER = 1.0 / 12
    # How long an owner whose request was abandoned is looked after, in seconds.
    LOOK_AFTER = 1.5
    # How long an end waits for a lock before it is tried again, in seconds.
    LOCK_TIMEOUT = 0.1

    attr_reader :records, :endings

    def initialize(core)
      @core, @loop, @logger = core, core.loop, core.logger
      @records, @endings, @groups = [], [], []
      @stopped = false
    end

    # The connection that it was granted on, unless there is one: the first renewal must not fail for want of another.
    def add(record)
      @link ||= @core.spare
      @records << record
      watch(record)
      go_on
    end

    # At the server, all holds of one owner are one lease.
    def join_others(record)
      other = [*@records, *@endings.filter_map(&:record)].find { |one| one.same_lease?(record) }
      record.join(other) if other
    end

    # The server says that it is not held.
    def lose(record, reason, call_back: true)
      return unless record.decide(reason)
      @records.delete(record)
      tell(record, call_back)
    end

    # Nobody refers to the lease any longer.
    def orphan(record)
      return if record.fate
      @logger.warn("lease on \"#{record.resource}\" was not released")
      lose(record, :released)
      end_lease(record, nil)
    end

    def finish(record, outcome, &after)
      watch(record) if record.deadline <= LeaseLock.now # its alarm is late
      if record.decide(:released)
        @records.delete(record)
        return end_lease(record, outcome, &after)
      end
      outcome&.give(false)
      end_now(@endings.select { |ending| ending.record.equal?(record) })
      after&.call
    end

    # An owner whose request has no answer. It may be granted the lease after this client has looked.
    def forget(request, copies)
      add_ending(abandoned(request, copies))
    end

    def end_all(reason)
      @records.dup.each do |record|
        lose(record, reason, call_back: false)
        end_lease(record, nil)
      end
      end_now(@endings)
    end

    def stop
      @stopped = true
      @link&.close
    end

    private

    # The rest of its time is the holder's, to stop: it is released then, or when the holder says that it has stopped.
    def watch(record)
      return if record.fate
      if record.deadline <= LeaseLock.now
        lose(record, :expired)
        end_lease(record, nil, due: record.ends)
      else
        record.alarm = @loop.at(record.deadline) { watch(record) }
      end
    end

    def tell(record, call_back)
      record.guards.each(&:cut)
      record.lost.give
      @core.call_back(record) if call_back
    end

    def end_now(endings)
      endings.each { |ending| ending.due = [ending.due, LeaseLock.now].min }
      go_on
    end

    def end_lease(record, outcome, due: 0.0, &after)
      ending = Ending.new(record.request, record)
      ending.repeats, ending.due = record.own_owner, [ending.due, due].max
      ending.held, ending.after = record.fate == :released, after
      if outcome
        ending.outcome = outcome
        @loop.at([LeaseLock.now + PATIENCE, record.ends].min) { too_late(ending) }
      end
      add_ending(ending)
    end

    def add_ending(ending)
      @endings << ending
      go_on
    end

    def abandoned(request, copies)
      ending = Ending.new(request)
      ending.held, ending.copies = false, copies
      ending.sure_at = LeaseLock.now + LOOK_AFTER
      ending.over = LeaseLock.now + [request.ttl, LOOK_AFTER].max
      ending
    end

    def too_late(ending)
      return unless @endings.include?(ending)
      if LeaseLock.now >= ending.record.ends
        over(ending)
        ending.outcome.give(false)
      else
        ending.outcome.give(error: OutcomeUnknown.new(
          "no answer to the release of \"#{ending.resource}\": it goes on in the background", ending.resource
        ))
      end
    end

    # Start what is due, if nothing runs.
    def go_on
      return if @stopped || @link&.busy?
      @alarm&.cancel
      drop_over
      if (group = due_renewals)
        renew(group)
      elsif (endings = due_endings).any?
        release(endings)
      else
        times = @records.select(&:renew).map(&:renew_at) + @endings.map(&:due)
        @alarm = @loop.at(times.min) { go_on } if times.any?
      end
    end

    def ask(limit, job)
      @link = Link.new(@loop, @core.source) if @link.nil? || @link.unusable?
      @link.run(Float::INFINITY, job, connecting: [time_to_connect, limit].max, limit: limit) do |answer|
        yield answer
      ensure
        go_on
        @core.check_end
      end
    end

    # Half of the time that is left: a connection that took long must not be thrown away unused.
    def time_to_connect
      [PATIENCE, *@records.select(&:renew).map { |record| record.remaining / 2 }].min
    end

    # Renewals

    def due_renewals
      while (group = @groups.shift)
        group = group.reject(&:fate)
        return group if group.any?
      end
      now = LeaseLock.now
      kept = @records.select(&:renew)
      return if kept.none? { |record| record.renew_at <= now }
      alone, together = kept.select { |record| record.renew_at - record.ttl * TOGETHER <= now }.partition(&:alone)
      @groups.concat(alone.map { |record| [record] })
      together.any? ? together : @groups.shift
    end

    def renew(group)
      limit = [0.001, group.map { |record| [record.limit, record.remaining].min }.min].max
      job = lambda do |schema, connection|
        Statements.settings(connection, limit, limit / 16) +
          Statements.fill(Statements::RENEW, connection, schema, { **Statements.columns(group), ttls: group.map(&:ttl) })
      end
      ask(limit, job) { |answer| renewed(group, answer) }
    end

    def renewed(group, answer)
      return renewal_failed(group, answer) if answer.error || answer.unsafe
      answer.rows.zip(group) do |(_, held, contended, taken), record|
        if held == "t"
          record.extend_from(answer.sent)
          record.alone = false
          record.contended = contended && contended == "t"
        else
          lose(record, taken == "t" ? :taken_over : :broken)
        end
      end
    end

    # One lease can make a renewal of many fail: somebody has locked its row. Find it; the others must not suffer.
    def renewal_failed(group, answer)
      state = Sorting.state(answer.error)
      group.each { |record| record.may_last_until(LeaseLock.now + record.ttl) } if answer.sent
      names = group.size == 1 ? "" : " and #{group.size - 1} others"
      @logger.warn("could not renew lease on \"#{group[0].resource}\"#{names}: " \
                   "#{answer.error ? LeaseLock.utf8(answer.error.message) : 'the standby did not confirm it'}")
      @core.source.forget_schema if Sorting::MOVED.include?(state)
      unless Sorting.of_server?(state) || Sorting::MOVED.include?(state)
        return group.each_slice(Integer.sqrt(group.size)) { |part| @groups << part } if group.size > 1
        group[0].alone = true
      end
      group.each { |record| record.renew_at = LeaseLock.now + [record.ttl / 30, 1.0].min }
    end

    # Releases

    # Leases that are over by themselves.
    def drop_over
      now = LeaseLock.now
      @endings.select { |ending| ending.until_time <= now }.each do |ending|
        over(ending)
        done(ending, false)
      end
    end

    # The lease was over before its release was answered.
    def over(ending)
      return unless ending.record && ending.held
      ending.record.correct(:expired)
      ending.held = false
    end

    def due_endings
      due = @endings.select { |ending| ending.due <= LeaseLock.now }.sort_by(&:due)
      return due.first(1) if due.any? && (due[0].alone || due[0].give_back)
      due.reject { |ending| ending.alone || ending.give_back }.first(500)
    end

    # Nothing may hold up a renewal for longer than a part of the shortest lease.
    def release(endings)
      limit = [@records.select(&:renew).map(&:limit).min || PATIENCE, PATIENCE].min
      text, values = Statements::RELEASE, Statements.columns(endings)
      if endings[0].give_back
        request = endings[0].request
        text, values = Statements::GIVE_BACK, { **values, ttl: request.ttl, mode: request.mode, permits: request.permits }
      end
      job = lambda do |schema, connection|
        Statements.settings(connection, limit, [limit / 4, LOCK_TIMEOUT].min) + Statements.fill(text, connection, schema, values)
      end
      ask(limit, job) { |answer| released(endings, answer) }
    end

    def released(endings, answer)
      return release_failed(endings, answer.error, answer.sent) if answer.error
      answer.rows.zip(endings) do |(_, value), ending|
        released = value == "t"
        ending.copies -= 1 if released
        next ending.later if value.nil? || (ending.copies.positive? && answer.sent < ending.sure_at)
        # It may have been released by a statement whose answer was lost.
        released ||= ending.held && ending.unanswered
        if !released && ending.held && ending.record
          ending.record.correct(:broken)
          tell(ending.record, true)
        end
        done(ending, released ? true : false)
      end
    end

    def release_failed(endings, error, sent)
      what = Sorting.sort(error, !sent.nil?)
      state = Sorting.state(error)
      may_be_done = what == "unknown" && !sent.nil?
      @core.source.forget_schema if Sorting::MOVED.include?(state)
      endings.each do |ending|
        ending.unanswered ||= may_be_done
        ending.alone = !Sorting.of_server?(state)
        unless ending.warned
          @logger.warn("could not release lease on \"#{ending.resource}\": #{LeaseLock.utf8(error.message)}")
          ending.warned = true
        end
        if what == "not again" && endings.size == 1
          done(ending, error: error)
        elsif may_be_done && !ending.repeats
          # Once more, it would end a hold of somebody else.
          done(ending, error: OutcomeUnknown.new("no answer to the release of \"#{ending.resource}\"", ending.resource))
        else
          ending.later
        end
      end
    end

    # Starts nothing: what else was answered with it must not be sent again.
    def done(ending, released = nil, error: nil)
      @endings.delete(ending)
      @endings << abandoned(ending.request, ending.record.copies) if ending.record&.doubtful_until&.> LeaseLock.now
      ending.outcome&.give(released, error: error)
      @loop.soon(&ending.after) if ending.after
      @loop.soon { @core.check_end }
    end
  end
end
