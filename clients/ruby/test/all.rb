# frozen_string_literal: true

# All tests. The file "run" beside it says how.

begin
  %w[pg active_record minitest].each { |library| require library }
rescue LoadError => e
  puts "skipped: #{e.message} (Debian: ruby-pg, ruby-activerecord, ruby-minitest)"
  exit
end

$LOAD_PATH.unshift(File.join(__dir__, "../lib"), __dir__)
require "helper"
Dir[File.join(__dir__, "test_*.rb")].sort.each { |file| require file }

# As scripts/lib/run-tests counts.
class Totals < Minitest::StatisticsReporter
  def report
    super
    io.puts "# pass #{count - results.size}", "# fail #{failures + errors}"
  end
end

module Minitest
  def self.plugin_totals_init(options)
    reporter << Totals.new(options[:io], options)
  end
  extensions << "totals"
end

exit Minitest.run(ARGV)
