#!/bin/sh
# Makes DIRECTORY a Python environment with DuckDB and numpy in it (from PyPI). Does nothing if they are there already.
set -eu
directory=$1
if [ ! -x "$directory/bin/python" ] || ! "$directory/bin/python" -c 'import duckdb, numpy' 2>/dev/null; then
	python3 -m venv "$directory"
	"$directory/bin/pip" install --quiet --disable-pip-version-check 'duckdb==2.0.0' 'numpy==2.4.6'
fi
