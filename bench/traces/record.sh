#!/bin/sh
# record.sh FILE PROGRAM ARGUMENTS...: writes what the program touches into FILE, for `pagetide sim replay FILE`. Thirty times as slow as
# the program. Needs a C compiler and Debian's qemu-user (7.2 or later).
set -eu
[ $# -ge 2 ] || { echo "usage: $0 FILE PROGRAM ARGUMENTS..." >&2; exit 2; }
file=$1
shift
for tool in cc qemu-x86_64; do
	command -v $tool >/dev/null || { echo "$0: $tool is missing: apt-get install gcc qemu-user" >&2; exit 3; }
done
here=$(dirname "$0")
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
cc -O2 -Wall -Wno-parentheses -shared -fPIC -fvisibility=hidden -o "$built/accesses.so" "$here/accesses.c"
program=$(command -v "$1")
shift
ACCESSES_OUT=$file qemu-x86_64 -cpu max -plugin "$built/accesses.so" "$program" "$@"
