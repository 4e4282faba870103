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

# Runs a command silently, and prints the packages if it fails.
need() {
	local packages=$1
	shift
	"$@" >/dev/null 2>&1 || printf '%s\n' $packages
}

# Missing packages, besides the server, for the given purposes.
missing_packages() {
	local purpose
	for purpose; do
		"missing_for_$purpose"
	done
}

missing_for_build() {
	need make command -v make
	need 'gcc libc6-dev' command -v gcc
}

# To explore the models.
missing_for_model() {
	need spin command -v spin
	need 'gcc libc6-dev' command -v gcc
}

missing_for_tests() {
	missing_for_model
	need perl command -v prove
	need faketime command -v faketime
	need libipc-run-perl perl -MIPC::Run -MTest::More -e 1
}

# Without one of these, a test is skipped. A Node.js that is not Debian's cannot
# use Debian's library; then the test gets the library from npm.
missing_for_clients() {
	local module
	for module in psycopg psycopg2 pytest tooz django sqlalchemy; do
		need "python3-$module" /usr/bin/python3 -c "import $module"
	done
	need python3-psycopg-pool /usr/bin/python3 -c 'import psycopg_pool'
	need python3-wheel /usr/bin/python3 -c 'import wheel'
	need python3-venv /usr/bin/python3 -c 'import ensurepip'
	need mypy /usr/bin/python3 -c 'import mypy'
	need python3-pytest-xdist /usr/bin/python3 -c 'import xdist'
	need ruby-activerecord /usr/bin/ruby -e 'require "active_record"'
	need ruby-pg /usr/bin/ruby -e 'require "pg"'
	need ruby-minitest /usr/bin/ruby -e 'require "minitest"'
	need 'golang-go gcc libc6-dev' command -v go
	need golang-github-jackc-pgx-v4-dev test -e /usr/share/gocode/src/github.com/jackc/pgx/v4
	need default-jdk-headless command -v javac
	need libpostgresql-jdbc-java test -e /usr/share/java/postgresql.jar
	command -v npm >/dev/null || need node-pg node -e 'require("pg")'
	need pgbouncer test -x /usr/sbin/pgbouncer
	need graphviz command -v dot
	need prometheus-postgres-exporter command -v prometheus-postgres-exporter
	plproxy_package
}

# It belongs to a server of Debian's.
plproxy_package() {
	if [[ $PG_CONFIG =~ ^/usr/lib/postgresql/([0-9]+)/ ]]; then
		need "postgresql-${BASH_REMATCH[1]}-plproxy" test -e "/usr/share/postgresql/${BASH_REMATCH[1]}/extension/plproxy.control"
	fi
}

# Without the Python packages, Patroni does not know etcd.
missing_for_patroni() {
	need 'patroni python3-etcd python3-dnspython' command -v patroni
	need etcd-server command -v etcd
}

missing_for_static() {
	local command
	for command in cppcheck shellcheck pyflakes3; do
		need "$command" command -v "$command"
	done
}

missing_for_deep() {
	need clang command -v clang
	need clang-tidy command -v clang-tidy
}

missing_for_server() {
	need dpkg-dev command -v dpkg-source
	need bison command -v bison
	need flex command -v flex
}

as_root() {
	if ((EUID == 0)); then
		"$@"
	else
		sudo "$@"
	fi
}

update_packages() {
	as_root apt-get -qq update >&2 || echo 'no fresh list of packages' >&2
}

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >&2
}

# Some packages start a service at once and at every boot: PostgreSQL on port
# 5432, PgBouncer, the exporter, etcd. The tests need only the programs. So a policy
# forbids starting services, and is removed after the installation. A machine
# that has a policy of its own keeps that.
unwanted_services=(pgbouncer prometheus-postgres-exporter etcd patroni)
no_cluster_file=/etc/postgresql-common/createcluster.d/zz_lease_lock_install.conf
policy_file=/usr/sbin/policy-rc.d

forbid_services() {
	as_root install -d -m 755 "${no_cluster_file%/*}"
	echo 'create_main_cluster = false' | as_root tee "$no_cluster_file" >/dev/null
	[[ ! -e $policy_file ]] || return 0
	as_root tee "$policy_file" >/dev/null <<-EOP
		#!/bin/sh
		# Of lease_lock, while it installs packages.
		for name in ${unwanted_services[*]}; do
			case "\$*" in *\$name*) exit 101 ;; esac
		done
	EOP
	as_root chmod 755 "$policy_file"
}

# Also removes what a run left that was killed.
allow_services() {
	as_root rm -f "$no_cluster_file" || true
	as_root rmdir -p --ignore-fail-on-non-empty "${no_cluster_file%/*}" || true
	! grep -qs lease_lock "$policy_file" || as_root rm -f "$policy_file" || true
}

# Nor is the service to run now, or to start at the next boot, with systemd or
# with init scripts.
disable_services() {
	local service
	for service in "${unwanted_services[@]}"; do
		if [[ " $* " == *" $service"* ]]; then
			as_root invoke-rc.d "$service" stop || true
			as_root deb-systemd-helper disable "$service.service" || true
			as_root update-rc.d "$service" disable || true
		fi
	done
} >/dev/null 2>&1

# Installs packages, and those that are optional: a test whose client is missing
# is skipped. Arguments: packages, "--", optional ones. A subshell has the lock,
# since one run at a time may change the policy; what the packages start must
# not keep it.
install_without_services() (
	local package required=()
	while [[ $1 != -- ]]; do
		required+=("$1")
		shift
	done
	shift
	exec 9<"${policy_file%/*}"
	if ! flock -w 600 9; then
		echo 'another installation for lease_lock does not end' >&2
		exit 1
	fi
	trap allow_services EXIT
	forbid_services
	{
		((${#required[@]} == 0)) || apt_install "${required[@]}"
		(($# == 0)) || apt_install "$@" || for package; do
			apt_install "$package" || echo "$package cannot be installed: a test will be skipped" >&2
		done
		disable_services "${required[@]}" "$@"
	} 9<&-
)

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
	update_packages
	if [[ -z $PG_CONFIG ]]; then
		version=$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1)
		: "${version:?no PostgreSQL server package found}"
		missing+=("postgresql-$version" "postgresql-server-dev-$version")
		[[ " $* " != *' tests '* ]] || clients+=("postgresql-$version-plproxy")
	fi
	install_without_services "${missing[@]}" -- "${clients[@]}"
	[[ -n $PG_CONFIG ]] || find_server
	if [[ -z $PG_CONFIG ]]; then
		echo 'no PostgreSQL server 15 or later with its headers, even after the installation' >&2
		exit 1
	fi
}
