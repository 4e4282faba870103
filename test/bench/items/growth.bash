# How the cost of a call grows with the table, with waiters, with the leases of
# its owner and with the holders of its resource. The cost is the processor time
# of the session, which says more on a busy machine than the clock does.

# The calls of each table: a name, the settings of the session, and what PL/pgSQL executes. n is the size, i a random
# number of a resource that is free. "with index" says in which database.
pair="PERFORM lease_acquire('free:' || i, '1 min', 'o'); PERFORM lease_release('free:' || i, 'o')"
ten="(SELECT array_agg('ten:' || t) FROM generate_series(1, 10) AS t)"
limit='SET lease_lock.max_leases_per_owner = 20000'
growth_of_table=(
	"refused try||PERFORM lease_acquire('held', '1 min', 'o')"
	"assertion||PERFORM lease_assert('held', 'holder')"
	"renewal||PERFORM lease_renew('held', '10 days', 'holder')"
	"pair||$pair"
	"pair, with index||$pair"
	"renewal of 10 by name||PERFORM lease_renew_several($ten, '10 days', 'ten')"
	"renewal of all 10||PERFORM lease_renew_all('10 days', 'ten')"
	"renewal of all 10, with index||PERFORM lease_renew_all('10 days', 'ten')"
	"pair under a limit|$limit|$pair"
	"pair under a limit, with index|$limit|$pair"
	"lease_status of a resource||PERFORM * FROM lease_status WHERE resource = 'held'"
	"purge that finds nothing|SET lease_lock.purge_after = '1000d'|PERFORM lease_purge()"
)
growth_of_waiters=(
	"refused try||PERFORM lease_acquire('busy', '1 min', 'o')"
	"renewal of the lease||PERFORM lease_renew('busy', '10 days', 'holder')"
	"pair on another resource||$pair"
	"lease_waiters||PERFORM * FROM lease_waiters"
)
growth_of_owner=(
	"renewal of one||PERFORM lease_renew('own:' || n || ':1', '10 days', 'own' || n)"
	"pair||PERFORM lease_acquire('free:' || i, '1 min', 'own' || n); PERFORM lease_release('free:' || i, 'own' || n)"
	"pair under a limit|$limit|PERFORM lease_acquire('free:' || i, '1 min', 'own' || n); PERFORM lease_release('free:' || i, 'own' || n)"
	"renewal of all||PERFORM lease_renew_all('10 days', 'own' || n)"
)
growth_of_resource=(
	"refused try||PERFORM lease_acquire('shared:' || n, '1 min', 'o')"
	"assertion||PERFORM lease_assert('shared:' || n, 'reader 1')"
	"renewal||PERFORM lease_renew('shared:' || n, '10 days', 'reader 1')"
	"shared pair||PERFORM lease_acquire_shared('shared:' || n, '1 min', 'o'); PERFORM lease_release('shared:' || n, 'o')"
)

# Measure a call, each time in a transaction of its own: microseconds of processor time, of the first run that takes
# longer than a fifth of a second.
measure_growth()	# name, database, number of free resources, size, call
{
	local call settings body usecs

	IFS='|' read -r call settings body <<<"$5"
	usecs=$(sql "$2" <<-SQL
		SET synchronous_commit = off; SET lease_lock.durable = off; SET enable_seqscan = off; SET client_min_messages = error;
		$settings;
		CREATE OR REPLACE FUNCTION used() RETURNS bigint LANGUAGE sql AS
			'SELECT split_part(pg_read_file(''/proc/self/schedstat''), '' '', 1)::bigint';
		CREATE OR REPLACE PROCEDURE growth(INOUT usecs float8) LANGUAGE plpgsql AS \$\$
		DECLARE
			calls bigint := 1;
			before bigint;
			n CONSTANT int := $4;
			i int;
		BEGIN
			LOOP
				before := used();
				FOR c IN 1 .. calls LOOP
					i := 1 + random() * ($3 - 1);
					$body;
					COMMIT;
				END LOOP;
				usecs := (used() - before) / 1e3 / calls;
				EXIT WHEN usecs * calls > 200000;
				calls := calls * 4;
			END LOOP;
		END \$\$;
		CALL growth(0);
	SQL
	)
	samples["growth $1 $call $4"]+="$usecs "
	printf '%s, %s, %s: %.1f us\n' "$1" "$call" "$4" "$usecs" >&2
}

measure_calls()	# name, database, number of free resources, size, call ...
{
	local name=$1 database=$2 free=$3 size=$4 call
	shift 4
	for call; do
		if [[ $call == *"with index|"* ]]; then
			measure_growth "$name" "${database}_index" "$free" "$size" "$call"
		else
			measure_growth "$name" "$database" "$free" "$size" "$call"
		fi
	done
}

create_growth_databases()
{
	local number

	for number in $growth_rows; do
		create_database "lease_bench_growth_$number" "$number"
		sql "lease_bench_growth_$number" <<-SQL
			SET synchronous_commit = off;
			DO \$\$ BEGIN
				PERFORM lease_acquire('ten:' || t, '10 days', 'ten') FROM generate_series(1, 10) AS t;
				PERFORM lease_acquire('held', '10 days', 'holder');
				PERFORM lease_acquire('busy', '10 days', 'holder');
			END \$\$;
			CHECKPOINT;
		SQL
		databases+=" lease_bench_growth_${number}_index"
		"$bin/createdb" -T "lease_bench_growth_$number" "lease_bench_growth_${number}_index"
		sql "lease_bench_growth_${number}_index" -c 'CREATE INDEX ON lease_lock (owner COLLATE "C", kept_for COLLATE "C")' -c CHECKPOINT
	done
	databases+=' lease_bench_growth_owner'
	"$bin/createdb" -T lease_bench_growth_100000_index lease_bench_growth_owner
	for number in $growth_leases; do
		sql lease_bench_growth_owner -c "DO \$\$ BEGIN
			PERFORM lease_acquire('own:$number:' || l, '10 days', 'own$number') FROM generate_series(1, $number) AS l; END \$\$"
	done
	create_database lease_bench_growth_resource 1000
	for number in $growth_holders; do
		sql lease_bench_growth_resource -c "DO \$\$ BEGIN
			PERFORM lease_acquire_shared('shared:$number', '10 days', 'reader ' || r) FROM generate_series(1, $number) AS r; END \$\$"
	done
}

# Measure while so many sessions wait for a lease.
measure_beside_waiters()	# number
{
	local pid=0 i

	if [ "$1" != 0 ]; then
		# They keep no snapshot, which would keep dead rows from being removed.
		echo "CALL lease_wait('busy', '1 min', 'waiter :client_id', NULL)" >"$work/wait.sql"
		"$bin/pgbench" -n -c "$1" -t 1 -f "$work/wait.sql" lease_bench_growth_1000 >/dev/null 2>&1 &
		pid=$!
		for ((i = 0; i < 600; i++)); do
			[ "$(sql lease_bench_growth_1000 -c 'SELECT count(*) FROM lease_waiters')" -lt "$1" ] || break
			sleep 0.2
		done
		[ "$i" -lt 600 ] || die "not all of $1 sessions wait"
	fi
	measure_calls waiters lease_bench_growth_1000 500 "$1" "${growth_of_waiters[@]}"
	if [ "$pid" != 0 ]; then
		sql lease_bench_growth_1000 -c 'SELECT pg_terminate_backend(pid) FROM lease_waiters' >/dev/null
		wait "$pid" || true
	fi
}

item_growth()
{
	local round number

	[ -r /proc/self/schedstat ] || die "(growth) needs /proc/self/schedstat of Linux"
	echo '(growth) processor time of a call' >&2
	create_growth_databases
	growth_load=$(cut -d ' ' -f 1 /proc/loadavg)
	for ((round = 0; round < rounds; round++)); do
		for number in $growth_rows; do
			measure_calls table "lease_bench_growth_$number" $((number / 2)) "$number" "${growth_of_table[@]}"
		done
		for number in $growth_waiters; do
			measure_beside_waiters "$number"
		done
		for number in $growth_leases; do
			measure_calls owner lease_bench_growth_owner 50000 "$number" "${growth_of_owner[@]}"
		done
		for number in $growth_holders; do
			measure_calls resource lease_bench_growth_resource 500 "$number" "${growth_of_resource[@]}"
		done
	done
	growth_load+=" to $(cut -d ' ' -f 1 /proc/loadavg)"
}

# Numbers as they are read: with a decimal below 100, with commas from 1,000 on.
growth_numbers()
{
	awk '
		function shown(x,	s, tail) {
			if (x < 100)
				return sprintf("%.1f", x)
			s = sprintf("%.0f", x)
			for (tail = ""; length(s) > 3; s = substr(s, 1, length(s) - 3))
				tail = "," substr(s, length(s) - 2) tail
			return s tail
		}
		{printf "%s (%s-%s)", shown($1), shown($2), shown($3)}'
}

growth_table()	# name, sizes, what they are, call ...
{
	local name=$1 sizes=$2 what=$3 call number least=${2%% *} cells
	shift 3
	printf '\nGrowth with %s:\n' "$what"
	# shellcheck disable=SC2046 # each size is a column
	header call $(sed -E 's/([0-9])(000(000)?)\b/\1,\2/g; s/,000000/,000,000/g' <<<"$sizes") 'last / first'
	for call; do
		call=${call%%|*}
		cells=()
		for number in $sizes; do
			cells+=("$(statistics "growth $name $call $number" | growth_numbers)")
		done
		row "$call" "${cells[@]}" "$(ratio "growth $name $call $number" "growth $name $call $least")"
	done
}

report_growth()
{
	printf '\n### (growth) Processor time of a call, in microseconds: not durable, in PL/pgSQL, a transaction for each\n'
	printf '\nMean number of processes that wanted to run, at the begin and the end: %s.\n' "$growth_load"
	growth_table table "$growth_rows" 'the rows of the lock table' "${growth_of_table[@]}"
	growth_table waiters "$growth_waiters" 'sessions that wait for one lease' "${growth_of_waiters[@]}"
	growth_table owner "$growth_leases" 'leases of the owner, among 100,000, with the index' "${growth_of_owner[@]}"
	growth_table resource "$growth_holders" 'shared leases on the resource' "${growth_of_resource[@]}"
}
