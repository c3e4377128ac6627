#!/usr/bin/env bash
# Runs each fuzz target, or those named, for SECONDS: fuzz/run.sh SECONDS [TARGET...]
#
# libFuzzer with coverage, on the stable compiler: what cargo-fuzz asks of it but a sanitizer needs no nightly, and the code under
# test has no unsafe blocks. Begins with fuzz/seeds/TARGET and keeps what it finds in target/fuzz-corpus/TARGET. An input
# that fails is written to target/fuzz-corpus, and the command to run it again is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: fuzz/run.sh SECONDS [TARGET...]}
shift
[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | grep -v pagetide-fuzz)
command -v c++ >/dev/null || { echo 'fuzz/run.sh: c++ is missing (libFuzzer is built from source): install g++' >&2; exit 1; }

flags='--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module'
for argument in coverage-level=4 coverage-inline-8bit-counters coverage-pc-table coverage-trace-compares; do
    flags+=" -Cllvm-args=-sanitizer-$argument"
done
# With a target named, build scripts and macros are built without these flags.
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=target/fuzz
RUSTFLAGS=$flags cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target "$host"

# One target: its corpus grows, and what it says is kept beside it.
run() {
    local target=$1 program=target/fuzz/$host/release/$1 corpus=target/fuzz-corpus/$1
    mkdir -p "$corpus"
    # The limits are of one input. No leak detection: that needs a sanitizer.
    local arguments=(-timeout=10 -rss_limit_mb=1024 -max_len=4096 -detect_leaks=0 "-artifact_prefix=target/fuzz-corpus/$target-")
    if ! "$program" "${arguments[@]}" -max_total_time="$seconds" "$corpus" "fuzz/seeds/$target" >"$corpus.log" 2>&1; then
        tail -40 "$corpus.log" >&2
        echo "fuzz/run.sh: $target failed: run it again with $program FILE (FILE as named above)" >&2
        return 1
    fi
    grep -o 'Done .*' "$corpus.log" | sed "s/^/fuzz: $target: /"
}
export -f run
export seconds host
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'run {}'
