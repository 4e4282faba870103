# What an idle server costs, some time after its start, and some time after all leases were purged.
#
# It has servers of its own, since the number of databases is what counts.

idle_databases="1 10 50 100"
idle_settles=40 # seconds: a few rounds of the launcher, and of the workers

# Context switches and ticks of the processor so far of all processes of the server whose name matches. A process that
# has ended since the last call counts no more, so workers that come and go are counted by the forks of the postmaster.
idle_cost()	# data folder, pattern
{
	local postmaster pid switches=0 ticks=0 name

	postmaster=$(head -n 1 "$1/postmaster.pid")
	for pid in "$postmaster" $(cat "/proc/$postmaster/task/$postmaster/children"); do
		{ name=$(tr '\0' ' ' <"/proc/$pid/cmdline"); } 2>/dev/null || continue
		[[ $name =~ $2 ]] || continue
		switches=$((switches + $(awk '/_ctxt_switches/ {n += $2} END {print n}' "/proc/$pid/status")))
		ticks=$((ticks + $(awk '{sub(/^.*\) /, ""); print $12 + $13}' "/proc/$pid/stat")))
	done
	# the postmaster's children that have ended
	[[ $2 != . ]] || ticks=$((ticks + $(awk '{sub(/^.*\) /, ""); print $14 + $15}' "/proc/$postmaster/stat")))
	echo "$switches $ticks"
}

measure_idle()	# name, data folder
{
	local key="idle $1" before_lease before_all after_lease after_all

	read -r -a before_lease <<<"$(idle_cost "$2" 'lease_lock')"
	read -r -a before_all <<<"$(idle_cost "$2" .)"
	sleep "$idle_seconds"
	read -r -a after_lease <<<"$(idle_cost "$2" 'lease_lock')"
	read -r -a after_all <<<"$(idle_cost "$2" .)"
	samples["$key switches"]+="$(((after_lease[0] - before_lease[0]) * 60 / idle_seconds)) "
	samples["$key ticks"]+="$(((after_all[1] - before_all[1]) * 60 * 10 / idle_seconds)) "
	printf '%s: %s context switches of lease_lock, %s ms of the server, a minute\n' "$key" \
		"$(((after_lease[0] - before_lease[0]) * 60 / idle_seconds))" "$(((after_all[1] - before_all[1]) * 600 / idle_seconds))" >&2
}

idle_sql()	# folder, database, psql option ...
{
	local folder=$1
	shift
	PGHOST=$folder sql "$@"
}

run_idle()	# databases, preload: yes or no
{
	local folder=$work/idle i

	mkdir "$folder"
	[ "$(id -u)" != 0 ] || chown postgres "$folder"
	as_server "$bin/initdb" -D "$folder/data" -U postgres -A trust -E UTF8 --no-locale -N >"$work/idle.log" 2>&1
	printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$folder'" 'autovacuum = off' 'lease_lock.purge_after = 1s' \
		"$([ "$2" = no ] || echo "shared_preload_libraries = 'lease_lock'")" >>"$folder/data/postgresql.conf"
	as_server "$bin/pg_ctl" -D "$folder/data" -l "$folder/log" -w start >/dev/null
	idle_sql "$folder" template1 -c 'CREATE EXTENSION lease_lock'
	for ((i = 1; i < $1; i++)); do
		idle_sql "$folder" postgres -c "CREATE DATABASE idle_$i STRATEGY file_copy" >/dev/null
	done
	idle_sql "$folder" postgres -c 'CREATE EXTENSION IF NOT EXISTS lease_lock'
	as_server "$bin/pg_ctl" -D "$folder/data" -l "$folder/log" -w restart >/dev/null
	sleep "$idle_settles"
	measure_idle "$1 $2 none" "$folder/data"
	for ((i = 0; i < $1; i++)); do
		idle_sql "$folder" "$([ $i = 0 ] && echo postgres || echo "idle_$i")" -c "SELECT lease_acquire('r', '1 second', 'o')" >/dev/null
	done
	sleep "$idle_settles"
	measure_idle "$1 $2 ended" "$folder/data"
	as_server "$bin/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null
	rm -rf "$folder"
}

item_idle()
{
	local round count

	echo '(idle) idle' >&2
	idle_seconds=$((seconds * 10))
	for ((round = 0; round < (rounds + 2) / 3; round++)); do
		for count in $idle_databases; do
			run_idle "$count" yes
		done
		run_idle 100 no
	done
}

report_idle()
{
	local count

	printf '\n### (idle) An idle server, a minute\n'
	header databases 'context switches of lease_lock, nothing was granted' 'after one lease in each has ended' \
		'processor time of the server in ms, nothing was granted' 'after one lease in each has ended'
	for count in $idle_databases; do
		row "$count" "$(cell "idle $count yes none switches")" "$(cell "idle $count yes ended switches")" \
			"$(cell "idle $count yes none ticks")" "$(cell "idle $count yes ended ticks")"
	done
	row '100, not preloaded' '' '' "$(cell 'm 100 no none ticks')" "$(cell 'm 100 no ended ticks')"
}
