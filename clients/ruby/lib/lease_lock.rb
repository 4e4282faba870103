# frozen_string_literal: true

# Leases of the PostgreSQL extension lease_lock: renewed in the background, noticed in time when they are lost, and
# fenced where data is written.
#
#   LeaseLock.hold("invoice:17", ttl: 30, wait: 10) do |lease|
#     work
#     lease.transaction { |connection| connection.exec("UPDATE invoice SET sent = true WHERE id = 17") }
#   end
module LeaseLock
  # How long a call waits for the server where neither a wait nor the end of a lease sets a limit, in seconds.
  PATIENCE = 5.0

  # How long before its end a holder must have stopped, as a part of the ttl.
  MARGIN = 1.0 / 6

  # A clock that nobody can set, and that goes on in suspend where the system has such a clock.
  CLOCK = Process.const_defined?(:CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC

  @mutex = Mutex.new
  @made = {}

  class << self
    # The Leases of the module's own methods. By default they connect as the environment says (PGHOST, PGSERVICE and so
    # on), in Rails as database.yml does.
    attr_writer :leases

    # @return [Leases]
    def leases(source = "", **options)
      @mutex.synchronize { @leases || (@made[source] ||= Leases.new(source, **options.compact)) }
    end

    # @see Leases#hold
    def hold(...)
      leases.hold(...)
    end

    # @see Leases#try_hold
    def try_hold(...)
      leases.try_hold(...)
    end

    # @see Leases#elect
    def elect(...)
      leases.elect(...)
    end

    # @see Leases#once
    def once(...)
      leases.once(...)
    end

    # Later calls begin anew.
    #
    # @see Leases#close
    def close(**options)
      open = @mutex.synchronize do
        open, @leases, @made = [*@leases, *@made.values], nil, {}
        open
      end
      open.flat_map { |leases| leases.close(**options) }
    end

    # @api private
    def now
      Process.clock_gettime(CLOCK)
    end
  end
end

%w[version errors forks log loop outcome source link statements keeper core lease transaction leases].each do |file|
  require_relative "lease_lock/#{file}"
end
require_relative "lease_lock/railtie" if defined?(Rails::Railtie)
