# Sourced first by scripts whose help is the comment at their head.

# Prints the help, and exits with this status.
usage() {
	(($1 == 0)) || exec >&2
	sed -n '1d; /^#/!q; s/^# \{0,1\}//p' "$0"
	exit "$1"
}

[[ ${1-} != --help && ${1-} != -h ]] || usage 0
