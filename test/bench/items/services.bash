# Other lock services, as a user would run them, under one load generator.
#
# shellcheck disable=SC2016 # backquotes of Markdown

# What is compared: name, service of the load generator, and how the server or the session is set up.
services='durable flushed fast advisory row redis_always redis_everysec etcd zookeeper'
declare -A service_label=(
	[durable]='lease' [flushed]='lease, `flush_releases = on`' [fast]='lease, not durable'
	[advisory]='advisory lock' [row]='`FOR UPDATE` on a row'
	[redis_always]='Redis, `appendfsync always`' [redis_everysec]='Redis, `appendfsync everysec`'
	[redis_blpop]='Redis, `BLPOP` on a list' [etcd]='etcd, HTTP gateway' [zookeeper]='ZooKeeper'
	[lease_all]='lease, `lease_acquire_all`'
)
declare -A service_durability=(
	[durable]='grants' [flushed]='grants and releases' [fast]='within a second' [advisory]='never'
	[row]='never' [redis_always]='grants and releases' [redis_everysec]='within a second'
	[etcd]='grants and releases' [zookeeper]='grants and releases'
)

# Processes of the other servers, to be ended with the run.
rivals=()

need()	# command or file, Debian package
{
	command -v "$1" >/dev/null || [ -e "$1" ] || missing+=" $2"
}

build_load()
{
	local missing=""

	need redis-server redis-server
	need etcd etcd-server
	need /usr/share/zookeeper/bin/zkServer.sh zookeeper
	need /usr/include/hiredis/hiredis.h libhiredis-dev
	need /usr/include/zookeeper/zookeeper.h libzookeeper-mt-dev
	need "$("$pg_config" --includedir)/libpq-fe.h" libpq-dev
	curl-config --version >/dev/null 2>&1 || missing+=' libcurl4-openssl-dev'
	[ -z "$missing" ] || die "services: needs these Debian packages:$missing"
	"${CC:-cc}" -DTHREADED -Wall -Wextra -O2 -I"$("$pg_config" --includedir)" "$here"/services/*.c -o "$work/load" \
		-L"$("$pg_config" --libdir)" -lpq -lhiredis -lcurl -lzookeeper_mt -lpthread
	chmod 755 "$work"
}

# A port that nobody listens on now.
free_port()
{
	perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport'
}

# Start a server of somebody else's, in a folder of its own.
start_rival()	# name, command ...
{
	local name=$1
	shift
	mkdir -p "$work/$name"
	(cd "$work/$name" && exec "$@") >"$work/$name.log" 2>&1 &
	rivals+=($!)
}

stop_rivals()
{
	local pid

	for pid in "${rivals[@]}"; do
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	rivals=()
}

start_rivals()
{
	local fsync port peer

	trap 'stop_rivals; clean_up' EXIT
	for fsync in always everysec; do
		start_rival "redis_$fsync" redis-server --port 0 --unixsocket "$work/redis_$fsync/socket" --save '' \
			--appendonly yes --appendfsync "$fsync" --daemonize no
	done
	port=$(free_port) peer=$(free_port)
	export ETCD_URL=http://127.0.0.1:$port
	start_rival etcd etcd --data-dir "$work/etcd/data" --log-level error \
		--listen-client-urls "$ETCD_URL" --advertise-client-urls "$ETCD_URL" \
		--listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
		--initial-cluster "default=http://127.0.0.1:$peer"
	port=$(free_port)
	export ZOOKEEPER_HOST=127.0.0.1:$port
	mkdir -p "$work/zookeeper"
	printf '%s\n' tickTime=2000 "dataDir=$work/zookeeper" clientPortAddress=127.0.0.1 "clientPort=$port" maxClientCnxns=0 \
		admin.enableServer=false >"$work/zookeeper/zoo.cfg"
	ZOO_LOG_DIR=$work/zookeeper start_rival zookeeper /usr/share/zookeeper/bin/zkServer.sh start-foreground "$work/zookeeper/zoo.cfg"
	sql lease_bench -c "CREATE TABLE bench_row (resource text PRIMARY KEY);
		INSERT INTO bench_row SELECT 'bench-' || i FROM generate_series(0, 4095) AS i;
		INSERT INTO bench_row VALUES ('bench-held'), ('bench-handoff')"
}

# Wait until a server answers the load generator.
await_rivals()
{
	local name tries

	for name in redis_always redis_everysec etcd zookeeper; do
		for ((tries = 0; tries < 100; tries++)); do
			if put_load "$name" noop 1 0.1 >"$work/load.out" 2>"$work/load.err"; then
				break
			fi
			sleep 0.2
		done
		((tries < 100)) || die "$name does not answer: $(cat "$work/load.err" "$work/$name.log")"
	done
}

put_load()	# name, workload, clients, seconds
{
	local name=$1
	shift
	case $name in
		durable) PGDATABASE=lease_bench PGOPTIONS=$durable "$work/load" lease "$@" ;;
		flushed) PGDATABASE=lease_bench PGOPTIONS="$durable -c lease_lock.flush_releases=on" "$work/load" lease "$@" ;;
		fast) PGDATABASE=lease_bench PGOPTIONS=$fast "$work/load" lease "$@" ;;
		advisory | row | lease_all) PGDATABASE=lease_bench PGOPTIONS=$durable "$work/load" "$name" "$@" ;;
		redis_blpop) REDIS_SOCKET=$work/redis_always/socket "$work/load" redis_blpop "$@" ;;
		redis_*) REDIS_SOCKET=$work/$name/socket "$work/load" redis "$@" ;;
		*) "$work/load" "$name" "$@" ;;
	esac
}

measure_service()	# name, workload, clients
{
	local rate p50 p99 key="services $2 $1 $3"

	put_load "$1" "$2" "$3" "$seconds" >"$work/load.out" 2>"$work/load.err" || die "$key: $(cat "$work/load.err")"
	read -r rate p50 p99 <"$work/load.out"
	samples["$key rate"]+="$rate "
	samples["$key p50"]+="$p50 "
	samples["$key p99"]+="$p99 "
	printf '%s: %.0f/s, p50 %.0f us, p99 %.0f us\n' "$key" "$rate" "$p50" "$p99" >&2
}

service_clients="1 4 16 64"
batch_services='durable fast lease_all redis_always redis_everysec'
handoff_services='durable fast advisory row redis_always redis_blpop etcd zookeeper'

item_services()
{
	local round count name workload

	echo '(services) other lock services' >&2
	build_load
	start_rivals
	await_rivals
	for ((round = 0; round < rounds; round++)); do
		sql lease_bench -c 'VACUUM lease_lock, bench_row'
		for count in $service_clients; do
			for workload in noop pair refused; do
				for name in $services; do
					[[ $workload == pair || ! $name =~ ^(flushed|fast)$ ]] || continue
					measure_service "$name" "$workload" "$count"
				done
			done
		done
		for workload in batch renew; do
			for name in $batch_services; do
				[[ $workload == batch || $name != lease_all ]] || continue
				measure_service "$name" "$workload" 4
			done
		done
		for count in 3 17; do
			for name in $handoff_services; do
				measure_service "$name" handoff "$count"
			done
		done
	done
	stop_rivals
}

# One table: a row for each service, a column for each number of clients.
services_table()	# workload, figure, services ...
{
	local workload=$1 figure=$2 name count cells=()
	shift 2
	for count in $service_clients; do
		cells+=("$count client$([ "$count" = 1 ] || echo s)")
	done
	header service 'on disk before the answer' "${cells[@]}"
	for name; do
		cells=()
		for count in $service_clients; do
			cells+=("$(cell "services $workload $name $count $figure")")
		done
		row "${service_label[$name]}" "${service_durability[$name]}" "${cells[@]}"
	done
}

report_services()
{
	local name count others=${services/flushed fast /}

	printf '\n### (services) Other lock services\n'
	printf '\n%s; %s; ZooKeeper %s. One server each, on the same disk; clients over Unix sockets (PostgreSQL, Redis) or 127.0.0.1.\n' \
		"$(redis-server --version | sed 's/ sha=.*//')" "$(etcd --version | head -n 1)" \
		"$(dpkg-query -W -f '${Version}' zookeeper 2>/dev/null || echo '?')"
	# shellcheck disable=SC2086 # words
	{
		printf '\nPairs of acquire and release per second.\n'
		services_table pair rate $services
		printf '\nThe same pairs: 99th percentile of the latency, microseconds.\n'
		services_table pair p99 $services
		printf '\nRefused tries per second.\n'
		services_table refused rate $others
		printf '\nCalls that do nothing, per second: what the client, the connection and the server cost at least.\n'
		services_table noop rate $others
	}
	printf '\n100 resources in one statement or pipeline, 4 clients, resources per second.\n'
	header service 'acquire and release' renew
	for name in $batch_services; do
		row "${service_label[$name]}" "$(cell "services batch $name 4 rate")" \
			"$([ "$name" = lease_all ] || cell "services renew $name 4 rate")"
	done
	printf '\nHand-off of one lock, microseconds from before the release is sent until the next client has the grant.\n'
	header waiters service 'per second' p50 p99
	for count in 3 17; do
		for name in $handoff_services; do
			row $((count - 1)) "${service_label[$name]}" "$(cell "services handoff $name $count rate")" \
				"$(cell "services handoff $name $count p50")" "$(cell "services handoff $name $count p99")"
		done
	done
	printf '\nRatios of pairs: lease / service, with 1, 4, 16 and 64 clients.\n'
	header service 1 4 16 64
	for name in ${services#durable }; do
		row "${service_label[$name]}" "$(for count in 1 4 16 64; do
			[ "$count" = 1 ] || printf ' | '
			ratio "services pair durable $count rate" "services pair $name $count rate"
		done)"
	done
}
