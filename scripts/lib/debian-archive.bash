# Fetches packages and sources of a Debian release, without root and without
# changing the system's own lists. Sourced by scripts that run inside the
# throw-away folder.

# apt-get and apt-cache with their own lists and sources. Downloads go to the
# current folder.
private_apt() {
	local command=$1
	shift
	"$command" -qq \
		-o Dir::State::lists="$WORK/apt/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$WORK/apt" \
		-o Dir::Etc::sourcelist="$WORK/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
		-o APT::Default-Release= -o APT::Install-Recommends=false "$@"
}

# Prints the archives that this machine gets its own release from, as entries of
# kind $1 for release $2. Asks apt which files it would update from empty lists,
# since apt understands every format of its sources.
archives_of() {
	local kind=$1 wanted=$2 here
	here=$(. /etc/os-release && echo "$VERSION_CODENAME")
	mkdir -p "$WORK/apt/none/partial"
	apt-get -q -o Dir::State::lists="$WORK/apt/none" --print-uris update |
		sed -nE "s,^'(.*)/dists/($here|stable|oldstable)(-updates|-security)?/InRelease'.*,\1 $wanted\3 main,p" |
		sed "s,^,$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ," | sort -u
}

# Use the archives of a release: use_archives deb-src bookworm
use_archives() {
	mkdir -p "$WORK/apt/lists/partial" "$WORK/apt/archives/partial"
	archives_of "$@" >"$WORK/apt/sources.list"
	if [[ ! -s $WORK/apt/sources.list ]]; then
		echo 'this machine gets no packages from Debian' >&2
		return 1
	fi
	private_apt apt-get update
}

# Fetches the newest version of a source package that can be downloaded: an
# archive may list more versions than it has.
fetch_source() {
	local package=$1 version
	while read -r version; do
		if private_apt apt-get source --download-only "$package=$version" >/dev/null; then
			return 0
		fi
	done < <(private_apt apt-cache showsrc "$package" | sed -n 's/^Version: //p' | sort -Vr)
	echo "could not fetch the source of $package" >&2
	return 1
}

# Fetches a package and its dependencies, except those whose names match the
# pattern.
fetch_packages() {
	local package=$1 but_for=$2 packages
	mapfile -t packages < <(private_apt apt-get install --simulate "$package" | awk '/^Inst/ { print $2 }' |
		grep -vE "$but_for")
	((${#packages[@]} > 0)) && private_apt apt-get download "${packages[@]}"
}
