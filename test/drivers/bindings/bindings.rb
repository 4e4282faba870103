# The calls of the table of drivers in docs/drivers.md, by ruby-pg. Prints the
# version, then what was sent and what came back, as Ruby writes them.
require 'pg'

CONNECTION = PG.connect

def call(sql, values)
  CONNECTION.exec_params(sql, values).values.first
end

def say(*fields)
  puts fields.join("\t")
end

say PG::VERSION
names = PG::TextEncoder::Array.new.encode(%w[a b])
say 'list', names.inspect, call('SELECT lease_renew_several($1, $2, $3)', [names, '1 hour', 'o'])[0].inspect
token = call('SELECT lease_token($1, $2)', %w[a o])[0]
say 'token', token.inspect, call('SELECT lease_assert_token($1, $2)', ['a', token])[0].inspect
wait = 'CALL lease_wait($1, $2, $3, $4)'
say 'wait', wait, call(wait, ['w', '1 minute', 'o', '10 s']).inspect
{ 'lost' => ['SELECT lease_assert($1, $2)', 'free'], 'timeout' => ['SELECT lease_release($1, $2)', 'busy'] }.each do |item, (sql, name)|
  call(sql, [name, 'o'])
  say item, sql, 'no error'
rescue PG::Error => e
  say item, sql, "#{e.class} #{e.result.error_field(PG::Result::PG_DIAG_SQLSTATE)}"
end
