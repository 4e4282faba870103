# A whole Debian release in a folder, to build and test in. Sourced, by scripts that have a throw-away folder.
# Needs root or sudo. The packages come from where this machine's come from.

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/debian-archive.bash"

: "${folder?throwaway.bash comes first}" "${work?}"

# Where PostgreSQL of a major version is to be found.
release_of() {
	case $1 in
		15) echo bookworm ;;
		17) echo trixie ;;
		18) echo sid ;;
		19) echo experimental ;;
		*) return 1 ;;
	esac
}

# The archives of a release. The two that are always in the making have no updates besides; experimental is an
# addition to sid. Another architecture than this machine's does without updates: its mirrors may lag behind.
sources_of() {
	local release=$1 architecture=$2
	if [[ $release == experimental ]]; then
		sources_of sid "$architecture"
	fi
	if [[ $release =~ ^(sid|experimental)$ || $architecture != $(dpkg --print-architecture) ]]; then
		archives_of deb "$release" | grep " $release main$"
	else
		archives_of deb "$release"
	fi
}

# How this machine reaches its archives is good for the folder, too.
settings_of_apt() {
	apt-config dump Acquire | grep -E '^Acquire::(Check-|Retries|https?::)' || true
}

# Makes a folder with the release that has PostgreSQL of this version, and nothing but apt. The version may name an
# architecture that this machine can run: make_root 15:i386 FOLDER
make_root() {
	local version=${1%:*} root=$2 release architecture
	architecture=$([[ $1 == *:* ]] && echo "${1#*:}" || dpkg --print-architecture)
	release=$(release_of "$version") || {
		echo "no Debian release is known to have PostgreSQL $version" >&2
		return 1
	}
	mkdir -p "$folder/apt"
	WORK=$folder sources_of "$release" "$architecture" >"$folder/apt/$release.list"
	settings_of_apt >"$folder/apt/settings"
	as_root rm -rf "$root.new" # of one that was broken off
	as_root mmdebstrap --quiet --mode=root --variant=apt --architectures="$architecture" \
		--aptopt="$folder/apt/settings" "${release/experimental/sid}" "$root.new" "$folder/apt/$release.list" >&2 &&
		configure_root "$root.new" "$version" "$release" &&
		in_root "$root.new" apt-get -qq update >&2 &&
		as_root mv "$root.new" "$root"
}

# Only the programs are wanted, not a server on port 5432. Packages of experimental have to be asked for.
configure_root() {
	local root=$1 version=$2 release=$3
	as_root install -d "$root/etc/postgresql-common/createcluster.d"
	as_root tee "$root/etc/postgresql-common/createcluster.d/none.conf" >/dev/null <<<'create_main_cluster = false'
	printf '#!/bin/sh\nexit 101\n' | as_root tee "$root/usr/sbin/policy-rc.d" >/dev/null
	as_root chmod 755 "$root/usr/sbin/policy-rc.d"
	[[ $release != experimental ]] || as_root tee "$root/etc/apt/preferences.d/experimental" >/dev/null <<-EOP
		Package: src:postgresql-$version
		Pin: release a=experimental
		Pin-Priority: 990
	EOP
}

# The folders that something was run in, for stop_roots.
declare -A used_roots

# Runs a command as root in the folder, with processes and shared memory of its own: they end with it. In the
# background, since bash would run no trap before a command in the foreground has ended.
in_root() {
	local root=$1
	shift
	used_roots[$root]=yes
	# shellcheck disable=SC2016
	as_root unshare --mount --pid --ipc --fork --kill-child sh -c '
		mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" "$@"' \
		"$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@" &
	wait $!
}

stop_roots() {
	local root
	for root in "${!used_roots[@]}"; do
		as_root find /proc/[0-9]*/root -prune -lname "$root" -printf '%h\n' | cut -d/ -f3 |
			as_root xargs -r kill -KILL
	done
} 2>/dev/null

# Besides what a throw-away folder does at the end.
trap 'stop_roots || true; clean_up' EXIT

install_in_root() {
	local root=$1
	shift
	used_roots[$root]=yes
	in_root "$root" apt-get -qq -y -o Dpkg::Use-Pty=false --no-install-recommends install "$@" >"$root.log" 2>&1 || {
		tail -n 20 "$root.log" >&2
		return 1
	}
}

# The sources without what an earlier make left there, nor what an earlier check left in the folder.
copy_tree() {
	as_root rm -rf "$1"
	as_root cp -R "$work/tree" "$1"
}

install_for_roots() {
	if ! command -v mmdebstrap >/dev/null || ! command -v arch-test >/dev/null; then
		as_root apt-get -qq update >&2
		apt_install mmdebstrap arch-test
	fi
}
