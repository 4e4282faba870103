# frozen_string_literal: true

require "json"
require "socket"
require "securerandom"

module LeaseLock
  # What is sent to the server.
  #
  # Each statement goes there in one message. So it can begin with settings that end with it, and it works behind a pooler
  # that gives each transaction another connection. The settings make it independent of those of the role: names,
  # timeouts, and whether a warning is sent. Times come back as whole milliseconds.
  module Statements
    # A wait in the portable edition, and one for a transaction, does not notice otherwise that its client has gone.
    CHECK_CLIENT = <<~SQL
      SELECT set_config('client_connection_check_interval', '1s', true) WHERE strpos(version(), 'linux') > 0;
    SQL

    REQUEST = <<~SQL
      SELECT granted, token, floor(extract(epoch FROM waited) * 1000)::int8, reason, blocked_by,
        floor(extract(epoch FROM blocked_for) * 1000)::int8
      FROM %<schema>s.lease_request(%<resource>s::text, make_interval(secs => %<ttl>s::float8), %<owner>s::text,
        wait => make_interval(secs => %<wait>s::float8), mode => %<mode>s::text, permits => %<permits>s::int4,
        if_own => %<if_own>s::text, min_hold => make_interval(secs => %<min_hold>s::float8), payload => %<payload>s::jsonb)
    SQL

    # The last column: does another owner hold it now?
    RENEW = <<~SQL
      SELECT r.n, r.held, %<schema>s.lease_contended(r.resource), CASE WHEN r.held THEN false ELSE EXISTS (
        SELECT FROM %<schema>s.lease_status AS s
        WHERE s.resource = r.resource AND s.state = 'held' AND s.token > r.token) END
      FROM (
        SELECT l.*, %<schema>s.lease_renew(l.resource, make_interval(secs => l.ttl), l.owner, l.token) AS held
        FROM unnest(%<resources>s::text[], %<owners>s::text[], %<tokens>s::int8[], %<ttls>s::float8[])
          WITH ORDINALITY AS l(resource, owner, token, ttl, n)
        OFFSET 0) AS r
      ORDER BY r.n
    SQL

    # Without a token: a request whose answer was lost.
    RELEASE = <<~SQL
      SELECT l.n, CASE WHEN l.token IS NULL THEN %<schema>s.lease_release(l.resource, l.owner)
        ELSE %<schema>s.lease_release(l.resource, l.owner, l.token) END
      FROM unnest(%<resources>s::text[], %<owners>s::text[], %<tokens>s::int8[]) WITH ORDINALITY AS l(resource, owner, token, n)
      ORDER BY l.n
    SQL

    # The lease is not kept for its min_hold. NULL: that cannot be said now, since an open transaction is in the way, say.
    # If the lease ends meanwhile, the request is granted anew, and that is released.
    GIVE_BACK = <<~SQL
      SELECT 1, CASE WHEN l.held = coalesce(l.token, l.held) THEN (
        SELECT CASE WHEN g.granted AND (g.reason IS NULL OR g.token = l.held)
          THEN %<schema>s.lease_release(l.resource, l.owner, g.token) AND g.token = l.held
          WHEN g.reason NOT IN ('open', 'failover') THEN false END
        FROM %<schema>s.lease_request(l.resource, make_interval(secs => %<ttl>s::float8), l.owner, mode => %<mode>s::text,
          permits => %<permits>s::int4, if_own => 'renew', min_hold => '0') AS g) ELSE false END
      FROM (SELECT l.*, %<schema>s.lease_token(l.resource, l.owner) AS held
        FROM unnest(%<resources>s::text[], %<owners>s::text[], %<tokens>s::int8[]) AS l(resource, owner, token) OFFSET 0) AS l
    SQL

    # In a transaction of the user's, whose settings stay as they are, but for one that would hide the warning of a
    # COMMIT whose wait for a synchronous standby is cancelled.
    ASSERT = "SELECT %<schema>s.lease_assert(%<resource>s, %<owner>s), " \
             "pg_catalog.set_config('lease_lock.owner', %<owner>s, true), " \
             "CASE WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error' " \
             "THEN pg_catalog.set_config('client_min_messages', 'warning', true) END"

    module_function

    # Limits are seconds; 0 and infinity are none.
    def settings(connection, timeout, lock_timeout = 0)
      newer = connection.server_version >= 170_000 ? "SET LOCAL transaction_timeout = 0;\n" : ""
      <<~SQL + newer
        SET LOCAL search_path = pg_catalog, pg_temp;
        SET LOCAL client_min_messages = warning;
        SET LOCAL statement_timeout = #{milliseconds(timeout)};
        SET LOCAL lock_timeout = #{milliseconds(lock_timeout)};
      SQL
    end

    def milliseconds(seconds)
      [0, Float::INFINITY].include?(seconds) ? 0 : (seconds * 1000).ceil.clamp(1, 2**31 - 1)
    end

    def fill(text, connection, schema, values)
      format(text, schema: schema, **values.transform_values { |value| Source.quote(connection, value) })
    end

    def columns(leases)
      { resources: leases.map(&:resource), owners: leases.map(&:owner), tokens: leases.map(&:token) }
    end
  end

  # One hold or try_hold.
  class Request
    KNOWN = %i[mode permits min_hold payload if_own owner stop_before renew].freeze

    attr_reader :resource, :ttl, :wait, :owner, :mode, :permits, :own_owner, :counted, :stop_before, :renew
    # Where the functions are: known when it was sent.
    attr_reader :schema

    def initialize(shared_owner, resource, ttl, wait, options)
      unknown = options.keys - KNOWN
      raise ArgumentError, "unknown option: #{unknown.first.inspect}" unless unknown.empty?
      @resource, @ttl, @wait = resource, Request.seconds(:ttl, ttl), wait && Request.seconds(:wait, wait)
      raise ArgumentError, "ttl must be more than zero, not #{ttl.inspect}" unless @ttl.positive?
      raise ArgumentError, "wait must not be negative, but #{wait.inspect} is" if @wait&.negative?
      @if_own = options.fetch(:if_own, :refuse).to_s
      @counted = @if_own == "count"
      @mode = options.fetch(:mode, :exclusive).to_s
      # Nobody else uses the owner, so the request can be repeated.
      @own_owner = options[:owner].nil? && !@counted
      @owner = options[:owner] || (@counted ? shared_owner : Request.new_owner)
      @stop_before = options[:stop_before] ? Request.seconds(:stop_before, options[:stop_before]) : @ttl * MARGIN
      raise ArgumentError, "stop_before must be less than the ttl" unless @stop_before >= 0 && @stop_before < @ttl
      @renew = options.fetch(:renew, true)
      @permits, min_hold, payload = options.values_at(:permits, :min_hold, :payload)
      @values = { permits: @permits, min_hold: min_hold && Request.seconds(:min_hold, min_hold),
                  payload: payload.nil? ? nil : JSON.generate(payload) }
    end

    # Whether its release may leave the lease kept for its min_hold. A hold of several does not.
    def keeps?
      !@values[:min_hold].nil? && !@counted
    end

    def self.seconds(name, time)
      number = time.is_a?(Numeric) || time.respond_to?(:to_f) && !time.is_a?(String) ? time.to_f : nil
      raise ArgumentError, "#{name} must be seconds, not #{time.inspect}" unless number&.finite?
      number
    end

    def self.new_owner
      "#{Socket.gethostname}:#{Process.pid}:#{SecureRandom.uuid}"
    end

    # until_time: when the wait at the server ends; 0 for a try. repeated: an earlier answer was lost.
    def statement(schema, connection, until_time, repeated)
      @schema = schema
      left = until_time == Float::INFINITY ? nil : [0.0, until_time - LeaseLock.now].max
      Statements.settings(connection, left.nil? ? Float::INFINITY : left + PATIENCE) +
        (left&.zero? ? "" : Statements::CHECK_CLIENT) + Statements.fill(Statements::REQUEST, connection, schema,
                        { resource: @resource, ttl: @ttl, owner: @owner, wait: left, mode: @mode,
                          if_own: repeated ? "renew" : @if_own, **@values })
    end
  end
end
