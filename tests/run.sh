#!/usr/bin/env bash
# Every test. Live ones take turns (tests/src/serial.rs) and wait most of their time; the simulator's compute beside them.
set -uo pipefail
cd "$(dirname "$0")/.."

cargo test --release --locked --workspace --no-run || exit 1

run() { cargo test --release --locked --no-fail-fast "$@"; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run --package pagetide-sim >"$log" 2>&1 &
beside=$!
failed=0
run --workspace --exclude pagetide-sim || failed=1
wait "$beside" || failed=1
cat "$log"
exit $failed
