#!/bin/sh
# Installs the programs that the end-to-end tests run, if any is missing (Debian and its relatives). Safe to call again.
set -eu

missing=
need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}

need cc gcc
need gcc gcc
need c++ g++
need python3 python3
need perl perl
need node nodejs
need java default-jdk-headless
need javac default-jdk-headless
need sqlite3 sqlite3
need tmux tmux
need stress-ng stress-ng
need redis-check-rdb redis-tools
need sort coreutils
need setpriv util-linux
need valgrind valgrind
need script bsdutils
python3 -c 'import ensurepip' >/dev/null 2>&1 || missing="$missing python3-venv"
need mkswap util-linux
need mkfs.btrfs btrfs-progs
command -v chromium >/dev/null 2>&1 || need chromium-headless-shell chromium-headless-shell
# The static victim needs the C library's archive.
echo 'int main(void) { return 0; }' | cc -static -x c -o /dev/null - 2>/dev/null || missing="$missing libc6-dev"

# Readers of what the program writes, of the format's own people, in an environment of their own.
readers() {
    directory=$(dirname "$0")/../target/readers
    wanted='prometheus_client==0.26.0 perfetto==0.59.1'
    [ "$(cat "$directory/installed" 2>/dev/null)" = "$wanted" ] && return
    echo "tests/setup.sh: installing $wanted in $directory" >&2
    # shellcheck disable=SC2086 # a list of names
    { python3 -m venv "$directory" && "$directory/bin/pip" install --quiet --disable-pip-version-check $wanted; } >/dev/null &&
        echo "$wanted" >"$directory/installed" ||
        echo "tests/setup.sh: the tests that need them will be skipped" >&2
}

if [ -z "$missing" ]; then
    readers
    exit 0
fi
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    echo "tests/setup.sh: install these yourself (no apt-get, or not root): $missing" >&2
    echo "tests/setup.sh: the tests that need them will be skipped" >&2
    exit 0
fi
echo "tests/setup.sh: installing $missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
apt-get install -y -qq --no-install-recommends $missing >/dev/null
readers
