# What has to be installed on this machine before anything can be built. Sourced.

# Sets PG_CONFIG to the newest server of version 15 or later that extensions can be built for, or to nothing.
find_server() {
	local dir
	PG_CONFIG=
	while read -r dir; do
		if ((${dir##*/} >= 15)) && [[ -x $dir/bin/postgres && -e $dir/lib/pgxs/src/makefiles/pgxs.mk ]]; then
			PG_CONFIG=$dir/bin/pg_config
		fi
	done < <(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -name '[0-9]*' 2>/dev/null | sort -V)
}

# Newest server version that is installed without its headers, else the one that the distribution offers.
server_version_to_install() {
	local version
	version=$({ find /usr/lib/postgresql -path '*/bin/postgres' 2>/dev/null || true; } | cut -d/ -f5 | sort -n | tail -n 1)
	if ((${version:-0} < 15)); then
		version=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1)
	fi
	echo "${version:?no PostgreSQL server package found}"
}

# Packages that are missing, besides the server, for each purpose named: build, tests, static checks, and
# to build a server from its source.
missing_packages() {
	local purpose
	for purpose; do
		"missing_for_$purpose"
	done
}

missing_for_build() {
	command -v make >/dev/null || echo make
	command -v gcc >/dev/null || printf '%s\n' gcc libc6-dev
}

missing_for_tests() {
	command -v prove >/dev/null || echo perl
	command -v faketime >/dev/null || echo faketime
	command -v dot >/dev/null || echo graphviz
	command -v prometheus-postgres-exporter >/dev/null || echo prometheus-postgres-exporter
	perl -MIPC::Run -MTest::More -e 1 2>/dev/null || echo libipc-run-perl
}

missing_for_static() {
	local command
	for command in clang clang-tidy cppcheck shellcheck; do
		command -v "$command" >/dev/null || echo "$command"
	done
}

missing_for_server() {
	command -v dpkg-source >/dev/null || echo dpkg-dev
	command -v bison >/dev/null || echo bison
	command -v flex >/dev/null || echo flex
}

as_root() {
	if ((EUID == 0)); then
		"$@"
	else
		sudo "$@"
	fi
}

# Debian starts a server on port 5432 with every new server package; this machine did not ask for one.
no_cluster_file=/etc/postgresql-common/createcluster.d/zz_lease_lock_install.conf

forbid_new_cluster() {
	as_root install -d -m 755 "${no_cluster_file%/*}"
	echo 'create_main_cluster = false' | as_root tee "$no_cluster_file" >/dev/null
}

allow_new_cluster() {
	if [[ -e $no_cluster_file ]]; then
		as_root rm -f "$no_cluster_file"
		as_root rmdir -p --ignore-fail-on-non-empty "${no_cluster_file%/*}"
	fi
}

# Debian starts the exporter as well, at once and at every boot; the tests want its program only. Its start is
# forbidden by a policy that leaves all others to the one that may be there, and is gone after the installation.
unwanted_service=prometheus-postgres-exporter
policy_file=/usr/sbin/policy-rc.d

forbid_service() {
	if [[ -e $policy_file ]] && ! is_own_policy; then
		as_root mv "$policy_file" "$policy_file.lease_lock_kept"
	fi
	as_root tee "$policy_file" >/dev/null <<-EOP
		#!/bin/sh
		# Of lease_lock, while it installs packages.
		case "\$*" in *$unwanted_service*) exit 101 ;; esac
		[ ! -x $policy_file.lease_lock_kept ] || exec $policy_file.lease_lock_kept "\$@"
	EOP
	as_root chmod 755 "$policy_file"
}

is_own_policy() {
	grep -q lease_lock "$policy_file" 2>/dev/null
}

allow_service() {
	if ! is_own_policy; then
		return
	elif [[ -e $policy_file.lease_lock_kept ]]; then
		as_root mv "$policy_file.lease_lock_kept" "$policy_file"
	else
		as_root rm -f "$policy_file"
	fi
}

# Nor at the next boot, under either system of starting services.
disable_service() {
	as_root deb-systemd-helper disable "$unwanted_service.service" || true
	as_root update-rc.d "$unwanted_service" disable || true
} >/dev/null 2>&1

# Installs what is missing for the purposes named, and sets PG_CONFIG unless the caller chose a server. Touches
# neither the network nor sudo when nothing is missing.
install_missing() {
	local missing version
	mapfile -t missing < <(missing_packages "$@")
	[[ -n $PG_CONFIG ]] || find_server
	if [[ -n $PG_CONFIG ]] && ((${#missing[@]} == 0)); then
		return
	fi

	echo 'Installing what is missing ...' >&2
	as_root apt-get -qq update >&2
	if [[ -z $PG_CONFIG ]]; then
		version=$(server_version_to_install)
		missing+=("postgresql-$version" "postgresql-server-dev-$version")
	fi
	forbid_new_cluster
	forbid_service
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq -y --no-install-recommends install "${missing[@]}" >&2
	allow_service
	allow_new_cluster
	if [[ " ${missing[*]} " == *" $unwanted_service "* ]]; then
		disable_service
	fi
	[[ -n $PG_CONFIG ]] || find_server
	if [[ -z $PG_CONFIG ]]; then
		echo 'no PostgreSQL server 15 or later with its headers, even after the installation' >&2
		exit 1
	fi
}
