#!/usr/bin/env bash
# Every test, in two rows beside each other: live tests wait most of their time, and those of the simulator compute.
set -uo pipefail
cd "$(dirname "$0")/.."

cargo test --release --locked --workspace --no-run || exit 1

run() { cargo test --release --locked --no-fail-fast "$@"; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
(
	failed=0
	run --package pagetide-tests --test victims || failed=1
	run --package pagetide-sim || failed=1
	exit $failed
) >"$log" 2>&1 &
beside=$!

others=()
for file in tests/tests/*.rs; do
	name=$(basename "$file" .rs)
	[ "$name" = victims ] || others+=(--test "$name")
done
failed=0
run --workspace --exclude pagetide-tests --exclude pagetide-sim || failed=1
run --package pagetide-tests --lib "${others[@]}" || failed=1
wait "$beside" || failed=1
cat "$log"
exit $failed
