# Installs what this machine needs before anything can be built. Sourced.

# Sets PG_CONFIG to the newest server of version 15 or later that extensions can be built for, or to nothing.
find_server() {
	local dir
	PG_CONFIG=
	while read -r dir; do
		# PGXS may be installed, with the client programs, but without the
		# server's headers.
		if ((${dir##*/} >= 15)) && [[ -x $dir/bin/postgres && -x $dir/bin/pg_config ]] &&
			[[ -e $("$dir/bin/pg_config" --includedir-server)/postgres.h ]]; then
			PG_CONFIG=$dir/bin/pg_config
		fi
	done < <(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -name '[0-9]*' 2>/dev/null | sort -V)
}

# The newest server version that is installed without its headers, else the
# version that the distribution offers.
server_version_to_install() {
	local version
	version=$({ find /usr/lib/postgresql -path '*/bin/postgres' 2>/dev/null || true; } | cut -d/ -f5 | sort -n | tail -n 1)
	if ((${version:-0} < 15)); then
		version=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1)
	fi
	echo "${version:?no PostgreSQL server package found}"
}

# Missing packages, besides the server, for each given purpose: build, tests,
# models, the programs that some tests try leases with, static checks, and building a
# server from its source.
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

# To explore the models.
missing_for_model() {
	command -v spin >/dev/null || echo spin
	command -v gcc >/dev/null || printf '%s\n' gcc libc6-dev
}

missing_for_tests() {
	missing_for_model
	command -v prove >/dev/null || echo perl
	command -v faketime >/dev/null || echo faketime
	perl -MIPC::Run -MTest::More -e 1 2>/dev/null || echo libipc-run-perl
}

# Without one of these, a test is skipped. A Node.js that is not Debian's cannot
# use Debian's library; then the test gets the library from npm.
missing_for_clients() {
	/usr/bin/python3 -c 'import psycopg' || echo python3-psycopg
	/usr/bin/python3 -c 'import psycopg2' || echo python3-psycopg2
	python_packages psycopg_pool pytest xdist tooz django sqlalchemy
	/usr/bin/ruby -e 'require "active_record"' || echo ruby-activerecord
	/usr/bin/ruby -e 'require "pg"' || echo ruby-pg
	/usr/bin/ruby -e 'require "minitest"' || echo ruby-minitest
	command -v go >/dev/null || printf '%s\n' golang-go gcc libc6-dev
	[[ -e /usr/share/gocode/src/github.com/jackc/pgx/v4 ]] || echo golang-github-jackc-pgx-v4-dev
	command -v javac >/dev/null || echo default-jdk-headless
	[[ -e /usr/share/java/postgresql.jar ]] || echo libpostgresql-jdbc-java
	node -e 'require("pg")' || command -v npm >/dev/null || echo node-pg
	PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || echo pgbouncer
	command -v dot >/dev/null || echo graphviz
	command -v prometheus-postgres-exporter >/dev/null || echo prometheus-postgres-exporter
	plproxy_package
} 2>/dev/null

# Debian's packages of these modules.
python_packages() {
	local module
	for module; do
		/usr/bin/python3 -c "import $module" || case $module in
			psycopg_pool) echo python3-psycopg-pool ;;
			xdist) echo python3-pytest-xdist ;;
			*) echo "python3-$module" ;;
		esac
	done
} 2>/dev/null

# It belongs to a server of Debian's.
plproxy_package() {
	if [[ $PG_CONFIG =~ ^/usr/lib/postgresql/([0-9]+)/ && ! -e /usr/share/postgresql/${BASH_REMATCH[1]}/extension/plproxy.control ]]; then
		echo "postgresql-${BASH_REMATCH[1]}-plproxy"
	fi
}

missing_for_static() {
	local command
	for command in clang clang-tidy cppcheck shellcheck pyflakes3; do
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

# Some packages start a service at once and at every boot: PostgreSQL on port
# 5432, PgBouncer, the exporter. The tests need only the programs. So a policy
# forbids starting services, and is removed after the installation.
#
# Only one run at a time installs: it locks the folder of the policy. If a run
# that has the lock finds a policy of ours, that was left by a run that was
# killed.
unwanted_services=(pgbouncer prometheus-postgres-exporter)
no_cluster_file=/etc/postgresql-common/createcluster.d/zz_lease_lock_install.conf
policy_file=/usr/sbin/policy-rc.d
kept_policy_file=$policy_file.lease_lock_kept

# File descriptor of the lock, while this run holds it.
install_lock=

is_own_policy() {
	grep -qs lease_lock "$policy_file"
}

forbid_services() {
	exec {install_lock}<"${policy_file%/*}"
	if ! flock -w 600 "$install_lock"; then
		echo 'another installation for lease_lock does not end' >&2
		exec {install_lock}<&-
		install_lock=
		exit 1
	fi

	as_root install -d -m 755 "${no_cluster_file%/*}"
	echo 'create_main_cluster = false' | as_root tee "$no_cluster_file" >/dev/null

	# A policy that the machine already has still decides about all other
	# services.
	if [[ -e $policy_file ]] && ! is_own_policy; then
		as_root mv "$policy_file" "$kept_policy_file"
	fi
	as_root tee "$policy_file" >/dev/null <<-EOP
		#!/bin/sh
		# Of lease_lock, while it installs packages.
		for name in ${unwanted_services[*]}; do
			case "\$*" in *\$name*) exit 101 ;; esac
		done
		[ ! -x $kept_policy_file ] || exec $kept_policy_file "\$@"
	EOP
	as_root chmod 755 "$policy_file"
}

# Removes the policy, and continues if a step fails, because this also runs when
# a script is stopped. Does nothing in a run that set no policy.
allow_services() {
	[[ -n $install_lock ]] || return 0
	if [[ -e $no_cluster_file ]]; then
		as_root rm -f "$no_cluster_file" || true
		as_root rmdir -p --ignore-fail-on-non-empty "${no_cluster_file%/*}" || true
	fi
	if [[ -e $kept_policy_file ]]; then
		as_root mv "$kept_policy_file" "$policy_file" || true
	elif is_own_policy; then
		as_root rm -f "$policy_file" || true
	fi
	exec {install_lock}<&-
	install_lock=
}

# Do not start the service at the next boot either, with systemd or with init
# scripts.
disable_services() {
	local package
	for package in "${unwanted_services[@]}"; do
		if [[ " $* " == *" $package "* ]]; then
			as_root deb-systemd-helper disable "$package.service" || true
			as_root update-rc.d "$package" disable || true
		fi
	done
} >/dev/null 2>&1

# In a subshell, since what the packages start must not keep the lock.
apt_install() (
	[[ -z $install_lock ]] || exec {install_lock}<&-
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -qq -y --no-install-recommends install "$@" >&2
)

# These packages are optional: a test whose client is missing is skipped.
install_clients() {
	local package
	apt_install "$@" && return
	for package; do
		apt_install "$package" || echo "$package cannot be installed: a test will be skipped" >&2
	done
}

# Installs what is missing for the given purposes, and sets PG_CONFIG unless the
# caller chose a server. Uses neither the network nor sudo if nothing is
# missing.
install_missing() {
	local missing clients=() version
	[[ -n $PG_CONFIG ]] || find_server
	mapfile -t missing < <(missing_packages "$@")
	[[ " $* " != *' tests '* ]] || mapfile -t clients < <(missing_packages clients)
	if [[ -n $PG_CONFIG ]] && ((${#missing[@]} + ${#clients[@]} == 0)); then
		return
	fi

	echo 'Installing what is missing ...' >&2
	as_root apt-get -qq update >&2 || echo 'no fresh list of packages' >&2
	if [[ -z $PG_CONFIG ]]; then
		version=$(server_version_to_install)
		missing+=("postgresql-$version" "postgresql-server-dev-$version")
		[[ " $* " != *' tests '* ]] || clients+=("postgresql-$version-plproxy")
	fi
	forbid_services
	((${#missing[@]} == 0)) || apt_install "${missing[@]}"
	((${#clients[@]} == 0)) || install_clients "${clients[@]}"
	allow_services
	disable_services "${clients[@]}"
	[[ -n $PG_CONFIG ]] || find_server
	if [[ -z $PG_CONFIG ]]; then
		echo 'no PostgreSQL server 15 or later with its headers, even after the installation' >&2
		exit 1
	fi
}
