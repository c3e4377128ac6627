#!/bin/sh
# Makes DIRECTORY a Python environment with libCacheSim in it (from PyPI). Does nothing if it is there already.
set -eu
directory=$1
if [ ! -x "$directory/bin/python" ] || ! "$directory/bin/python" -c 'import libcachesim' 2>/dev/null; then
	python3 -m venv "$directory"
	"$directory/bin/pip" install --quiet --disable-pip-version-check 'libcachesim==0.3.5'
fi
