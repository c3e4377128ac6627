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
need stress-ng stress-ng
need sort coreutils
need setpriv util-linux
need mkswap util-linux
# The static victim needs the C library's archive.
echo 'int main(void) { return 0; }' | cc -static -x c -o /dev/null - 2>/dev/null || missing="$missing libc6-dev"

[ -z "$missing" ] && exit 0
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
