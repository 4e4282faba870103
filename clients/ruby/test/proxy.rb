# frozen_string_literal: true

require "socket"

# Stands between a client and the server. What a client sends goes through the block, with the connection of the client:
# it is sent on when the block returns.
class Proxy
  def initialize(&watch)
    @watch = watch
    @listener = TCPServer.new("127.0.0.1", 0)
    @threads = [Thread.new { loop { serve(@listener.accept) } }]
    @sockets = [@listener]
  end

  def port
    @listener.addr[1]
  end

  def dsn
    "host=127.0.0.1 port=#{port}"
  end

  def close
    @threads.each(&:kill).each(&:join)
    @sockets.each(&:close)
  end

  private

  def serve(client)
    server = connect
    @sockets << client << server
    @threads << Thread.new { forward(client, server) { |data| @watch.call(data, client) } }
    @threads << Thread.new { forward(server, client) }
  end

  def connect
    host, port = ENV.fetch("PGHOST"), ENV.fetch("PGPORT")
    host.start_with?("/") ? UNIXSocket.new("#{host}/.s.PGSQL.#{port}") : TCPSocket.new(host, port)
  end

  def forward(from, to)
    Thread.current.report_on_exception = false
    loop do
      data = from.readpartial(65_536)
      yield data if block_given?
      to.write(data)
    end
  rescue SystemCallError, IOError
    to.shutdown(Socket::SHUT_WR) rescue nil # rubocop:disable Style/RescueModifier -- it may be closed
  end
end
