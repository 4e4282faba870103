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

# Packages that are missing, besides the server: for the build, and with "tests" for those too.
missing_packages() {
	command -v make >/dev/null || echo make
	command -v gcc >/dev/null || printf '%s\n' gcc libc6-dev
	if [[ $1 == tests ]]; then
		command -v prove >/dev/null || echo perl
		command -v faketime >/dev/null || echo faketime
		perl -MIPC::Run -MTest::More -e 1 2>/dev/null || echo libipc-run-perl
	fi
}

# Packages without which a test of a client library would be skipped. A Node.js that is not Debian's cannot use
# Debian's library; the test asks npm then.
missing_clients() {
	/usr/bin/python3 -c 'import psycopg' || echo python3-psycopg
	/usr/bin/python3 -c 'import psycopg2' || echo python3-psycopg2
	/usr/bin/ruby -e 'require "active_record"' || echo ruby-activerecord
	/usr/bin/ruby -e 'require "pg"' || echo ruby-pg
	node -e 'require("pg")' || command -v npm >/dev/null || echo node-pg
	PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || echo pgbouncer
} 2>/dev/null

as_root() {
	if ((EUID == 0)); then
		"$@"
	else
		sudo "$@"
	fi
}

# Debian starts a server on port 5432 with every new server package, and PgBouncer on 6432; this machine did not
# ask for them.
no_cluster_file=/etc/postgresql-common/createcluster.d/zz_lease_lock_install.conf
no_service_file=/usr/sbin/policy-rc.d

forbid_services() {
	as_root install -d -m 755 "${no_cluster_file%/*}"
	echo 'create_main_cluster = false' | as_root tee "$no_cluster_file" >/dev/null
	if [[ ! -e $no_service_file ]]; then
		printf '%s\n' '#!/bin/sh' '# While scripts/check of lease_lock installs packages.' 'exit 101' |
			as_root tee "$no_service_file" >/dev/null
		as_root chmod 755 "$no_service_file"
	fi
}

allow_services() {
	if [[ -e $no_cluster_file ]]; then
		as_root rm -f "$no_cluster_file"
		as_root rmdir -p --ignore-fail-on-non-empty "${no_cluster_file%/*}"
	fi
	if grep -qs lease_lock "$no_service_file"; then
		as_root rm -f "$no_service_file"
	fi
}

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq -y --no-install-recommends install "$@" >&2
}

# Clients are worth a try each, and not worth to fail for: a test whose client cannot be had is skipped.
install_clients() {
	local package
	if ! apt_install "$@"; then
		for package in "$@"; do
			apt_install "$package" || echo "$package cannot be installed: a test will be skipped" >&2
		done
	fi
	# Nor is it to start with the machine.
	if [[ " $* " == *' pgbouncer '* && -x /usr/sbin/pgbouncer ]]; then
		as_root update-rc.d pgbouncer disable >&2 || true
	fi
}

# Installs what is missing to build, with "tests" also to test, and sets PG_CONFIG unless the caller chose a
# server. Touches neither the network nor sudo when nothing is missing.
install_missing() {
	local missing clients=() version
	mapfile -t missing < <(missing_packages "$1")
	[[ $1 != tests ]] || mapfile -t clients < <(missing_clients)
	[[ -n $PG_CONFIG ]] || find_server
	if [[ -n $PG_CONFIG ]] && ((${#missing[@]} + ${#clients[@]} == 0)); then
		return
	fi

	echo 'Installing what is missing ...' >&2
	as_root apt-get -qq update >&2 || echo 'no fresh list of packages' >&2
	if [[ -z $PG_CONFIG ]]; then
		version=$(server_version_to_install)
		missing+=("postgresql-$version" "postgresql-server-dev-$version")
	fi
	forbid_services || true
	((${#missing[@]} == 0)) || apt_install "${missing[@]}"
	((${#clients[@]} == 0)) || install_clients "${clients[@]}"
	allow_services
	[[ -n $PG_CONFIG ]] || find_server
	if [[ -z $PG_CONFIG ]]; then
		echo 'no PostgreSQL server 15 or later with its headers, even after the installation' >&2
		exit 1
	fi
}
