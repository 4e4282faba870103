# frozen_string_literal: true

require "socket"

module LeaseLock
  # Where connections come from, and where the functions are.
  class Source
    # What a connection gets unless its parameters say otherwise. A server that is gone is noticed within seconds.
    DEFAULTS = { keepalives_idle: "5", keepalives_interval: "2", keepalives_count: "3", tcp_user_timeout: "10000" }.freeze

    FIND = <<~SQL
      SET LOCAL search_path = pg_catalog, pg_temp;
      SELECT n.nspname, e.oid IS NOT NULL
      FROM pg_namespace AS n LEFT JOIN pg_extension AS e ON e.extnamespace = n.oid AND e.extname = 'lease_lock'
      WHERE e.oid IS NOT NULL OR n.nspname = %s
    SQL

    STRINGS = PG::TypeMapAllStrings.new

    def initialize(source, schema)
      raise ArgumentError, "source must be a String, a Hash or respond to call" unless
        source.is_a?(String) || source.is_a?(Hash) || source.respond_to?(:call)
      @source, @given = source, schema
      @schema = nil
    end

    def connect(until_time)
      made = @source.respond_to?(:call) ? @source.call : @source
      connection = made.is_a?(PG::Connection) ? made : connect_by(made, until_time)
      Forks.add(connection)
    end

    # Where the functions are, quoted.
    def schema(connection)
      @schema ||= choose(Source.execute(connection, format(FIND, Source.quote(connection, @given))), connection.db)
    end

    # The extension may have moved.
    def forget_schema
      @schema = nil
    end

    # Statements in a transaction of their own, in one message; rows of the last one.
    def self.execute(connection, statements)
      result = connection.async_exec(statements)
      result.type_map = STRINGS # whatever the user's function has set
      result.values
    end

    # Was the wait for a synchronous standby cancelled while the block ran? What it wrote may not survive a failover. The
    # message of the warning is translated.
    def self.wait_cancelled?(connection, told = -> {})
      cancelled = false
      before = connection.set_notice_receiver do |result|
        before&.call(result)
        next if result.error_field(PG::Result::PG_DIAG_SOURCE_FUNCTION) != "SyncRepWaitForLSN"
        cancelled = true
        told.call
      end
      yield
      cancelled
    ensure
      connection.set_notice_receiver(&before) unless connection.finished?
    end

    # A literal, or NULL.
    def self.quote(connection, value)
      case value
      when nil then "NULL"
      when Array then "ARRAY[#{value.map { |each| quote(connection, each) }.join(', ')}]"
      when Numeric then value.to_s
      else connection.escape_literal(value.to_s)
      end
    end

    def self.open?(connection)
      !connection.finished? && connection.status == PG::CONNECTION_OK
    end

    # Can the idle connection be used? The server may have closed it: a message first, then the end.
    def self.quiet?(connection)
      return false if connection.nil? || connection.finished?
      2.times { connection.consume_input }
      open?(connection) && connection.transaction_status == PG::PQTRANS_IDLE
    rescue PG::Error
      false
    end

    # The socket of a connection, which can be shut down even when another thread closes the connection.
    def self.duplicate(connection)
      copy = IO.for_fd(connection.socket, autoclose: false).dup
      BasicSocket.for_fd(copy.tap { |io| io.autoclose = false }.fileno)
    end

    def self.cut(socket)
      socket.shutdown(Socket::SHUT_RDWR)
    rescue SystemCallError, IOError
      nil # the other side was faster
    end

    private

    # ruby-pg does not go on from a host, or an address of it, that is silent.
    def connect_by(given, until_time)
      known = resolve(given)
      hosts = hosts_of(known)
      if hosts.size > 1 && known[:target_session_attrs] == "any"
        known[:target_session_attrs] = PG.library_version >= 140_000 ? "primary" : "read-write"
      end
      first_of(hosts, until_time) do |host, end_of_host|
        first_of(addresses_of(host), end_of_host) do |address, end_of_address|
          limits = [known[:connect_timeout].to_i, [(end_of_address - LeaseLock.now).to_i, 1].max]
          connect_to({ **DEFAULTS, **known, **address, connect_timeout: limits.select(&:positive?).min }, end_of_address)
        end
      end
    end

    def connect_to(address, until_time)
      PG.connect(**address)
    rescue PG::ConnectionBad => e
      raise PG::ERROR_CLASSES.fetch(refusal(address, until_time)) { raise e }, e.message
    end

    # The SQLSTATE of a server that refuses the connection, so that a wrong password is not tried again. libpq shows it if
    # it is told before it connects.
    def refusal(address, until_time)
      connection = PG::Connection.connect_start(**address)
      connection.set_error_verbosity(PG::PQERRORS_VERBOSE)
      waits = { PG::PGRES_POLLING_READING => :wait_readable, PG::PGRES_POLLING_WRITING => :wait_writable }
      status = PG::PGRES_POLLING_WRITING
      while (wait = waits[status])
        return unless connection.socket_io.public_send(wait, [until_time - LeaseLock.now, 0].max)
        status = connection.connect_poll
      end
      connection.error_message[/:  ([0-9A-Z]{5}): /, 1]
    rescue PG::Error
      nil
    ensure
      connection&.finish
    end

    # What the block returns for the first of them that does not fail, each with its share of the time.
    def first_of(list, until_time)
      failure = nil
      list.each_with_index do |one, n|
        return yield one, LeaseLock.now + (until_time - LeaseLock.now) / (list.size - n)
      rescue PG::Error => e
        failure = e
      end
      raise failure
    end

    # All parameters as libpq knows them, with those of the environment and of service files. The invalid one keeps it
    # from connecting.
    def resolve(given)
      given = PG::Connection.conninfo_parse(given).to_h { |one| [one[:keyword].to_sym, one[:val]] } if given.is_a?(String)
      given = given.transform_keys(&:to_sym).compact
      known = begin
        PG::Connection.connect_start(**given, ssl_max_protocol_version: "only resolve")
      rescue PG::ConnectionBad => e
        e.connection.conninfo_hash.compact
      end
      raise e unless known[:ssl_max_protocol_version] == "only resolve"
      highest = given[:ssl_max_protocol_version] || ENV.fetch("PGSSLMAXPROTOCOLVERSION", "")
      known.except(:service).merge(ssl_max_protocol_version: highest, fallback_application_name: "lease_lock")
    end

    def hosts_of(known)
      lists = known.slice(:host, :hostaddr, :port).transform_values { |list| list.split(",", -1) }
      count = lists.slice(:host, :hostaddr).values.map(&:size).max || 1
      Array.new(count) { |n| lists.transform_values { |values| values[n] || values[0] } }
    end

    def addresses_of(host)
      name = host[:host].to_s
      return [host] if name.empty? || name.start_with?("/", "@") || host[:hostaddr]
      Addrinfo.getaddrinfo(name, nil, nil, :STREAM).map(&:ip_address).uniq.map { |address| { **host, hostaddr: address } }
    rescue SocketError
      [host] # which fails in the same way, with libpq's message
    end

    def choose(rows, database)
      extension = rows.find { |row| row[1] == "t" }
      if extension && @given
        raise ArgumentError, "schema: #{@given.inspect} is given, but database \"#{database}\" has the extension lease_lock"
      end
      found = extension || rows.first
      unless found
        what = @given ? "schema \"#{@given}\"" : "extension lease_lock"
        raise LeaseError, "database \"#{database}\" does not have the #{what}"
      end
      PG::Connection.quote_ident(found[0])
    end
  end
end
