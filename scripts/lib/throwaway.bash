# A folder below /tmp or /dev/shm that holds everything. What belongs to the script
# itself is in $folder. A copy of the sources, server, data and sockets are in $work, a
# folder inside it. Everything else happens in $work, as an unprivileged user.
# Root writes nothing there, because that user could have left a symbolic link.
# The script removes all of it when it ends. Sourced by demo and the checks.

source "${BASH_SOURCE[0]%/*}/usage.bash"
source "${BASH_SOURCE[0]%/*}/packages.bash"

# Empty until the folder exists, and until a command runs in it.
folder=
work=
child=
as_account=()

# The pid of a process, and the time at which it started, so that a later
# process with that pid is another one.
process_name() {
	local fields
	fields=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return
	printf '%s %s\n' "$1" "$(cut -d ' ' -f 20 <<<"$fields")"
}

# Where the folder is made. In $TMPDIR the name of a socket could become too long,
# and make does not support spaces in paths.
parent=/tmp

# The tests create and remove a hundred thousand small files. On some disks that is
# a fifth of their time. They need 3 GB, so memory must have room for much more.
# Only as root: when a user logs out, the system may remove his files in /dev/shm.
prefer_memory() {
	local type options free available
	((EUID == 0)) && read -r type options free < <(findmnt -bno FSTYPE,OPTIONS,AVAIL /dev/shm) || return 0
	available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) # kB
	if [[ $type == tmpfs && ,$options, == *,rw,* && ,$options, != *,noexec,* ]] && ((free > 10 << 30 && available > 10 << 20)); then
		parent=/dev/shm
	fi
}

make_work_folder() {
	remove_left_folders
	folder=$(mktemp -d "$parent/lease_lock.XXXXXX")
	chmod 711 "$folder"
	process_name "$$" >"$folder/script"
	work=$folder/work
	mkdir "$work"

	# A server refuses to run as root.
	if ((EUID == 0)); then
		account=postgres
		id "$account" >/dev/null 2>&1 || account=nobody
		chown "$account:" "$work"
		as_account=(setpriv --reuid "$account" --regid "$(id -g "$account")" --init-groups)
	fi
	fill_work_folder
}

# Nothing is built in the checkout itself, and files that an earlier make left
# there are ignored. A file may come or go meanwhile: then the status of tar is 1.
fill_work_folder() {
	local root
	root=$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)
	{ tar -C "$root" --exclude=./.git --exclude=./tmp_check --exclude='*.o' --exclude='*.bc' --exclude='*.so' -cf - . || (($? == 1)); } |
		"${as_account[@]}" env -C "$work" sh -c 'mkdir tree tmp socket && tar -C tree -xf -'
}

# Ends all processes in the folder, and resets it, except for what the script
# itself keeps there.
start_over() {
	stop_all_inside
	"${as_account[@]}" find "$work" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
	fill_work_folder
}

# Replaces the shell, which must be a subshell, with a command that runs as the
# unprivileged user in the copy of the sources, and connects to the server in
# the folder.
exec_inside() {
	local bindir command
	bindir=$([[ ! -x $PG_CONFIG ]] || "$PG_CONFIG" --bindir) # one that is yet to be built has none
	command=(
		"${as_account[@]}" env HOME="$work" TMPDIR="$work/tmp" LANG=C.UTF-8 PATH="$work/pg$bindir:$PATH"
		WORK="$work" SYSTEM_PG_CONFIG="$PG_CONFIG" PG_CONFIG="$work/pg$bindir/pg_config"
		PGHOST="$work/socket" PGPORT=54321 PGUSER=postgres PGDATABASE=postgres
		"$@"
	)
	cd "$work/tree" || exit
	exec "${command[@]}"
}

# Runs a command inside the folder, in its own session, and returns its status.
# The command runs in the background, since bash runs no trap before a
# foreground command has ended.
run_inside() {
	exec_inside setsid "$@" </dev/null &
	child=$!
	wait "$child"
}

# What a check does first: installs what is missing for the given purposes, builds lease_lock with these flags, and
# starts the server in the folder.
build_and_start() {
	local flags=$1
	shift
	install_missing "$@"
	prefer_memory
	make_work_folder
	run_inside scripts/lib/start-server "COPT=$flags" && return
	echo 'not built, or the server did not start: no test ran'
	echo '0 passed, 1 failed'
	exit 1
}

# Those of the whole machine, if the folder had no name.
processes_inside() {
	find /proc/[0-9]*/cwd -prune -lname "${work:?}/*" 2>/dev/null | cut -d/ -f3
}

# A postmaster ends its children and its shared memory at SIGQUIT. Killed, it
# would leave segments in /dev/shm. So it has much longer than the others, which
# it also outlives: it ends when they have ended.
stop_process() {
	local pid=$1 tries=$2 first_line=
	read -r first_line 2>/dev/null <"/proc/$pid/cwd/postmaster.pid" || true
	if [[ $first_line == "$pid" ]]; then
		kill "-$( ((tries < 600)) && echo QUIT || echo KILL)" "$pid"
	else
		kill "-$( ((tries < 50)) && echo TERM || echo KILL)" "$pid"
	fi 2>/dev/null || true
	kill -CONT "$pid" 2>/dev/null || true # one that was stopped sees no other signal
}

# A process that belongs to the script has its working directory in the folder.
# One that dies of the signal, like a server that initdb runs, or a program with
# libfaketime, leaves the shared memory that it had.
stop_all_inside() {
	local pids pid tries maps segments=()
	for ((tries = 0; tries < 610; tries++)); do
		mapfile -t pids < <(processes_inside)
		((${#pids[@]} > 0)) || break
		maps=("${pids[@]/#//proc/}")
		mapfile -t -O "${#segments[@]}" segments < <(
			grep -ohsE '/dev/shm/(PostgreSQL\.|faketime_shm_|sem\.faketime_sem_)[0-9]+' "${maps[@]/%//maps}" | sort -u
		)
		for pid in "${pids[@]}"; do
			stop_process "$pid" "$tries"
		done
		sleep 0.1
	done
	((${#segments[@]} == 0)) || rm -f "${segments[@]}"
}

# A script that was killed could not clean up: the next one does, for the same
# user.
remove_left_folders() {
	local left work script
	for left in {/tmp,/dev/shm}/lease_lock.*; do
		[[ -d $left && ! -L $left && -O $left ]] && read -r script 2>/dev/null <"$left/script" || continue
		[[ $(process_name "${script%% *}") != "$script" ]] || continue
		work=$left/work
		stop_all_inside
		rm -rf "$left"
	done
}

# The folder comes first: a failure outside of it must not leave a server
# behind.
clean_up() {
	trap '' INT TERM HUP
	set +e
	if [[ -n $folder ]]; then
		{
			[[ -z $child ]] || kill -TERM "$child" || true
			stop_all_inside
			wait
		} 2>/dev/null # the shell would report on each
		rm -rf "$folder"
	fi
}

# Must come first in a script: from here on, nothing is left behind, however the
# script ends.
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 141' PIPE
trap 'exit 143' TERM

# The caller's servers, locale and make flags must not affect the script; the
# chosen server does, and how patient the tests are.
server_wanted=${PG_CONFIG-}
patience=${PG_TEST_TIMEOUT_DEFAULT-180}
unset "${!PG@}" "${!LC_@}" LANGUAGE "${!MAKE@}" MFLAGS COPT CDPATH
PG_CONFIG=$server_wanted
export PG_TEST_TIMEOUT_DEFAULT=$patience PGCTLTIMEOUT=$patience
