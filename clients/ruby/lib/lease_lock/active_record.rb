# frozen_string_literal: true

require "active_record"
require_relative "../lease_lock"

# With ActiveRecord: connections as in database.yml, record.with_lease, and transactions of ActiveRecord's own.
module LeaseLock
  # Tables of the extension. CREATE EXTENSION makes them, so schema.rb must not.
  TABLES = %w[lease_lock lease_watch].freeze

  # The parameters of libpq that the configuration of a class has; what is for ActiveRecord alone is left out.
  #
  # @api private
  # @param model [Class] ActiveRecord::Base, or a class with a database of its own
  # @return [Hash]
  def self.settings(model = ActiveRecord::Base)
    find = -> { model.connection_db_config.configuration_hash }
    given = ActiveRecord::Base.current_role == :reading ? ActiveRecord::Base.connected_to(role: :writing, &find) : find.call
    role = given.fetch(:variables, {}).transform_keys(&:to_s)["role"]
    { **given.slice(*PG::Connection.conndefaults_hash.keys), dbname: given[:database], user: given[:username],
      options: [*given[:options], *("-c role=#{role}" if role)].join(" ") }.compact.transform_values(&:to_s)
  end

  # The database is that of a class, as it is set now: a test run has another one than production.
  module LeasesOfModels
    # @param model [Class]
    # @return [Leases] those of leases=, or else of the database of the class
    def leases(model = ActiveRecord::Base)
      @leases || super(LeaseLock.settings(model), logger: ActiveRecord::Base.logger)
    end
  end
  singleton_class.prepend(LeasesOfModels)

  # What ActiveRecord::Base includes.
  module Leasable
    # Hold a lease on this record, which is loaded again then. As with_lock, but not in a transaction, and for longer.
    #
    # @param options those of Leases#hold
    # @yieldparam lease [Lease]
    # @return the block's result
    def with_lease(**options)
      raise ArgumentError, "a record that is not saved has no id" unless persisted?
      # Others would be granted the lease before the transaction commits.
      raise LeaseError.new("with_lease in a transaction", lease_resource) if self.class.connection.current_transaction.joinable?
      LeaseLock.leases(self.class).hold(lease_resource, **options) do |lease|
        reload
        yield lease
      end
    end

    # @return [String] the model's name and the id
    def lease_resource
      "#{self.class.base_class.name}:#{id}"
    end
  end

  # A transaction of ActiveRecord's under a lease. It is the first of the transaction's records, so it is told of COMMIT or
  # ROLLBACK before callbacks run: they have no limit, and their errors are their own.
  class RecordTransaction < Transaction
    def run(lease, model, &work)
      lease.check
      adapter = model.connection
      guard(adapter.raw_connection, LeaseLock.now + [PATIENCE, lease.remaining].min)
      confirmed { perform(lease, model, &work) }
    rescue ActiveRecord::ActiveRecordError, PG::Error => e
      driver = e.is_a?(PG::Error) ? e : e.cause
      @read_only = Sorting.read_only?(driver)
      meaning = driver.is_a?(PG::Error) ? meaning_of(driver) : e
      raise meaning.equal?(driver) ? e : meaning
    ensure
      conclude(adapter)
    end

    # As a record

    def committed!(**)
      @stage = :ended
      rolledback!
    end

    # Called once more with a transaction around this one.
    def rolledback!(**)
      @guard&.end unless @core.inherited?
    end

    def before_committed!; end

    def trigger_transactional_callbacks?
      false
    end

    private

    # The block may be left by +return+ or +break+.
    def confirmed
      undone = failed = result = nil
      Source.wait_cancelled?(@connection, -> { undone = true }) { result = yield }
      result
    rescue Exception # rubocop:disable Lint/RescueException -- it is only noted
      failed = true
      raise
    ensure
      raise unknown("COMMIT was not confirmed by the synchronous standby") if undone && !failed
    end

    def perform(lease, model)
      model.transaction(requires_new: true) do
        model.connection.add_transaction_record(self)
        # In a transaction around it, the assertion lasts, so the end of the lease cannot be waited for.
        @record.handed_over = true if model.connection.open_transactions > 1
        assert
        work_and_commit(lease) { yield @connection }
      ensure
        @guard.limit(LeaseLock.now + PATIENCE) unless @stage == :commits || @core.inherited?
      end
    end

    # ActiveRecord also commits if the block is left by +return+ or +break+, but not if the thread is killed.
    def work_and_commit(lease)
      yield
    rescue Exception # rubocop:disable Lint/RescueException -- it is only noted
      failed = true
      raise
    ensure
      unless failed || Thread.current.status == "aborting"
        lease.check
        commits
      end
    end

    # The pool keeps no connection that was cut off; nor one to a standby, unless a transaction around this one has it.
    def conclude(adapter)
      end_guard do |cut|
        adapter.throw_away! if cut || !Source.open?(@connection) || (@read_only && !adapter.transaction_open?)
      end
    end
  end

  ActiveRecord::Base.include(Leasable)
  ActiveRecord::SchemaDumper.ignore_tables |= TABLES
end
