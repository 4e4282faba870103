# What leases take: bytes of WAL for a call, of the table for a lease, of shared memory for a connection.
#
# It has a server of its own: without page images in the WAL, whose number depends on the last checkpoint, and without autovacuum.

size_calls=500
size_owner=0b6f3c1e-8a5d-4c57-9e21-7d40c2f8a913 # 36 bytes; resources have 20

size_init()
{
	local folder=$work/sizes

	mkdir "$folder"
	[ "$(id -u)" != 0 ] || chown postgres "$folder"
	as_server "$bin/initdb" -D "$folder/data" -U postgres -A trust -E UTF8 --no-locale -N >"$work/sizes.log" 2>&1
	printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$folder'" 'port = 5432' 'autovacuum = off' 'full_page_writes = off' \
		"shared_preload_libraries = 'lease_lock'" 'lease_lock.purge_interval = 0' 'max_prepared_transactions = 1' >>"$folder/data/postgresql.conf"
}

size_start()	# max_connections, lease_lock.stats_databases
{
	as_server "$bin/pg_ctl" -D "$work/sizes/data" -l "$work/sizes/log" -o "-c max_connections=$1 -c lease_lock.stats_databases=$2" -w start >/dev/null
	samples["sizes memory $1 $2"]=$(size_sql -c "SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'lease%'")
}

size_stop()
{
	as_server "$bin/pg_ctl" -D "$work/sizes/data" -m fast stop >/dev/null
}

size_sql()	# command ...
{
	PGHOST=$work/sizes PGPORT=5432 PGUSER=postgres sql postgres "$@"
}

# Run what comes on standard input so many times.
size_repeat()	# times, session options
{
	cat >"$work/sizes.sql"
	PGHOST=$work/sizes PGPORT=5432 PGUSER=postgres PGOPTIONS=$2 "$bin/pgbench" -n -M prepared -t "$1" -D number=0 -f "$work/sizes.sql" postgres \
		>"$work/pgbench.out" 2>"$work/pgbench.err" || die "sizes: $(cat "$work/pgbench.err")"
}

# The WAL of what comes on standard input, on average.
size_wal()	# name
{
	local before

	before=$(size_sql -c 'SELECT pg_current_wal_insert_lsn()')
	size_repeat "$size_calls" "$durable"
	samples["sizes $1"]=$(size_sql -c "SELECT round((pg_current_wal_insert_lsn() - '$before') / $size_calls)")
}

size_new_table()
{
	size_sql -c 'SET client_min_messages = error' -c 'DROP EXTENSION IF EXISTS lease_lock' -c 'CREATE EXTENSION lease_lock'
}

size_of()	# relation
{
	size_sql -c "SELECT pg_relation_size('$1')"
}

# A lease each, in one transaction.
size_space()	# name, leases, resource, owner
{
	size_new_table
	size_sql -c "SELECT count(lease_acquire($3, '1 hour', $4)) FROM generate_series(1, $2) AS n" >/dev/null
	samples["sizes table, $1"]=$(($(size_of lease_lock) / $2))
	samples["sizes index, $1"]=$(($(size_of lease_lock_pkey) / $2))
}

item_sizes()
{
	local name="'size:' || lpad(:n::text, 15, '0')" owner="'$size_owner'" before updates

	echo '(sizes) sizes' >&2
	size_init
	size_start 100 256
	size_new_table
	size_sql -c "SELECT count(lease_acquire('size:' || lpad(n::text, 15, '0'), '1 hour', $owner)) FROM generate_series(1, $size_calls) AS n" \
		-c "SELECT lease_release_all($owner)" >/dev/null
	size_wal pair <<<"\\set n random(1, $size_calls)
		SELECT lease_acquire($name, '1 hour', $owner);
		SELECT lease_release($name, $owner);"
	size_wal new <<<"\\set number :number + 1
		\\set n 1000000 + :number
		SELECT lease_acquire($name, '1 hour', $owner);"
	size_wal renewal <<<"\\set n 1000000 + random(1, $size_calls)
		SELECT lease_renew($name, '2 hours', $owner);"
	size_sql -c 'VACUUM lease_lock' # else tries clean up pages after the renewals, as any query does
	size_wal refused <<<"\\set n 1000000 + random(1, $size_calls)
		SELECT lease_acquire($name, '1 hour', 'another');"

	size_space short 100000 "'size:' || lpad(n::text, 15, '0')" "$owner"
	size_space random 100000 "left(md5(n::text), 20)" "$owner"
	size_space long 1000 "(SELECT string_agg(md5(n || ' ' || i), '') FROM generate_series(1, 32) AS i)" \
		"(SELECT string_agg(md5(i || ' ' || n), '') FROM generate_series(1, 32) AS i)"

	updates=40000
	size_new_table
	size_sql -c "SELECT count(lease_acquire('size:' || lpad(n::text, 15, '0'), '1 hour', $owner)) FROM generate_series(1, 100) AS n" \
		-c "SELECT lease_release_all($owner)" >/dev/null
	samples["sizes first table"]=$(size_of lease_lock)
	samples["sizes first index"]=$(size_of lease_lock_pkey)
	size_repeat $((updates / 2)) "$fast" <<<"\\set n random(1, 100)
		SELECT lease_acquire($name, '1 hour', $owner);
		SELECT lease_release($name, $owner);"
	samples["sizes hot table"]=$(size_of lease_lock)
	samples["sizes hot index"]=$(size_of lease_lock_pkey)
	before=$(size_of lease_lock)
	size_sql -c "BEGIN" -c "SELECT pg_current_xact_id()" -c "PREPARE TRANSACTION 'old'" >/dev/null
	size_repeat $((updates / 8)) "$fast" <<<"\\set n random(1, 100)
		SELECT lease_acquire($name, '1 hour', $owner);
		SELECT lease_release($name, $owner);"
	samples["sizes version"]=$((($(size_of lease_lock) - before) / (updates / 4)))
	size_stop

	size_start 1000 256
	size_stop
	size_start 100 1
	size_stop
	rm -rf "$work/sizes"
}

report_sizes()
{
	local name

	printf '\n### (sizes) Sizes\n\nResources of 20 bytes, owners of 36, in pages of 8 kB. WAL is without images of pages.\n'
	header what size
	row 'WAL of acquire and release, the resource is in the table' "${samples["sizes pair"]} bytes"
	row 'WAL of acquire, the resource is new' "${samples["sizes new"]} bytes"
	row 'WAL of a renewal' "${samples["sizes renewal"]} bytes"
	row 'WAL of a refused try' "${samples["sizes refused"]} bytes"
	row "table, each of 100,000 leases" "${samples["sizes table, short"]} bytes"
	row 'primary key, names in order' "${samples["sizes index, short"]} bytes"
	row 'primary key, names at random' "${samples["sizes index, random"]} bytes"
	row '1,000,000 leases with the primary key, names in order' "$((samples["sizes table, short"] + samples["sizes index, short"])) MB"
	row '1,000,000 leases with the primary key, names at random' "$((samples["sizes table, random"] + samples["sizes index, random"])) MB"
	row 'table, resource and owner of 1024 bytes' "${samples["sizes table, long"]} bytes"
	row 'primary key, resource and owner of 1024 bytes' "${samples["sizes index, long"]} bytes"
	row 'table of 100 leases, released once' "$((samples["sizes first table"] / 1024)) kB"
	row 'the table after 40,000 changes more' "$((samples["sizes hot table"] / 1024)) kB"
	row 'primary key of 100 leases, released once' "$((samples["sizes first index"] / 1024)) kB"
	row 'the primary key after 40,000 changes more' "$((samples["sizes hot index"] / 1024)) kB"
	row 'a change of a lease beside an old snapshot' "${samples["sizes version"]} bytes"
	row 'shared memory, max_connections = 100' "$((samples["sizes memory 100 256"] / 1000)) kB"
	row 'shared memory, max_connections = 1000' "$((samples["sizes memory 1000 256"] / 1000)) kB"
	row 'shared memory, each further connection' "$(((samples["sizes memory 1000 256"] - samples["sizes memory 100 256"]) / 900)) bytes"
	row 'shared memory, each of lease_lock.stats_databases' "$(((samples["sizes memory 100 256"] - samples["sizes memory 100 1"]) / 255)) bytes"
}
