# frozen_string_literal: true

require "pg"

module LeaseLock
  # Base class of the errors of this package. All others are those of ruby-pg, and of the language for a wrong argument.
  class LeaseError < StandardError
    # @return [String, nil] the resource of the lease
    attr_reader :resource

    def initialize(text, resource = nil)
      super(text)
      @resource = resource
    end
  end

  # Another owner has the lease.
  class LeaseTaken < LeaseError
    # @return [String] the reason of lease_request: held, open, queue, own or failover
    attr_reader :reason
    # @return [String, nil] the owner that has it, if the role may see it
    attr_reader :blocked_by
    # @return [Float, nil] seconds until it may be free
    attr_reader :blocked_for

    def initialize(resource, reason, blocked_by, blocked_for)
      by = blocked_by ? " by #{LeaseLock.utf8(blocked_by)}" : ""
      super("lease on \"#{resource}\" is taken (#{reason}#{by})", resource)
      @reason, @blocked_by, @blocked_for = reason, blocked_by, blocked_for
    end
  end

  # The lease is not held any longer.
  class LeaseLost < LeaseError
    TEXTS = {
      expired: "it was not renewed in time", broken: "the server says that it is not held",
      taken_over: "another owner has it", closed: "leases were closed", released: "it was released"
    }.freeze

    # @return [Symbol] :expired, :broken, :taken_over, :closed or :released
    attr_reader :reason

    def initialize(resource, reason)
      super("lease on \"#{resource}\" is lost: #{TEXTS.fetch(reason)}", resource)
      @reason = reason
    end
  end

  # The request was sent, and no answer came.
  class OutcomeUnknown < LeaseError; end

  # close was called before the call, or during it.
  class Closed < LeaseError; end

  # A text of the driver or the server, which may have any encoding, for one that has other names in it.
  #
  # @api private
  def self.utf8(text)
    text = text.dup.force_encoding(Encoding::UTF_8) if text.encoding == Encoding::BINARY
    text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace).scrub.strip
  end

  # What to do after an error: errors.tsv, which all clients share, sorts them.
  module Sorting
    TABLE = File.readlines(File.join(__dir__, "errors.tsv"), encoding: "UTF-8", chomp: true)
                .reject { |line| line.start_with?("#") }
                .to_h { |line| line.split("\t").first(2) }.freeze
    # SQLSTATE of an assertion that fails.
    NOT_HELD = "55000"
    READ_ONLY = "25006"
    # The functions are not where they were.
    MOVED = %w[42883 3F000].freeze

    module_function

    # @return [String, nil] the SQLSTATE of an error of the server
    def state(error)
      return unless error.is_a?(PG::Error)
      error.result ? error.result.error_field(PG::Result::PG_DIAG_SQLSTATE) : PG::ERROR_CLASSES.key(error.class)
    end

    # A standby. The name of the host may have moved on to the primary, which only a new connection reaches.
    def read_only?(error)
      state(error) == READ_ONLY
    end

    # "again", "not again" or "unknown"; sent: whether the statement was sent.
    def sort(error, sent)
      state = state(error)
      if state.nil?
        return TABLE.fetch("any other") unless error.is_a?(PG::Error) || error.is_a?(SystemCallError) || error.is_a?(IOError)
        return TABLE.fetch(sent ? "no answer" : "not connected")
      end
      what = 5.downto(2).filter_map { |n| TABLE[state[0, n]] }.first || TABLE.fetch("any other")
      what == "unknown" && !sent ? TABLE.fetch("not connected") : what
    end

    # Is it an error of the server as a whole, rather than of one lease?
    def of_server?(state)
      state.nil? || %w[08 57 25 53].include?(state[0, 2])
    end
  end
end
