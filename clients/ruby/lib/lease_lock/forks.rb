# frozen_string_literal: true

module LeaseLock
  # After a fork, connections belong to the parent. What the child does to them, if only by the garbage collector, must
  # not reach the server.
  module Forks
    CONNECTIONS = ObjectSpace::WeakMap.new

    def self.add(connection)
      CONNECTIONS[connection] = true
      connection
    end

    def _fork
      super.tap { |pid| Forks.cut_off if pid.zero? }
    end

    def self.cut_off
      File.open(File::NULL, "r+") do |null|
        CONNECTIONS.keys.reject(&:finished?).each do |connection|
          IO.for_fd(connection.socket, autoclose: false).reopen(null)
        rescue PG::Error
          nil # a connection that broke has no socket
        end
      end
    end

    Process.singleton_class.prepend(self)
  end
end
