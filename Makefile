# `make` alone lists the targets. Each does its own set-up; none needs another to have run.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PROGRAM := --package pagetide-cli --package pagetide-preload
# Built with the program, so that nothing is compiled a second time for it.
XTASK := cargo build --quiet --release --locked $(PROGRAM) --package xtask && target/release/xtask
.PHONY: help build demo test fuzz loom miri lint bench kernel-diff docs advisories

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

# Everything that is needed before anything works; says what is missing in one line.
build: ## build the program and its preloaded library (target/release)
	@command -v cargo >/dev/null || { echo 'make: cargo is missing: install Rust from https://rustup.rs' >&2; exit 1; }
	cargo build --release --locked $(PROGRAM)

demo: build ## the same program natively and in a quarter of its memory, side by side
	@command -v python3 >/dev/null || { echo 'make demo: python3 is missing: install it' >&2; exit 1; }
	python3 examples/demo.py target/release/pagetide

# PAGETIDE_REQUIRE=uffd,cgroup,... makes a test fail that would otherwise say which feature of the machine it misses.
test: build ## every test: unit, property, simulation, and real programs on this kernel
	@if [ -x tests/setup.sh ]; then tests/setup.sh; fi
	cargo test --release --locked --workspace --no-fail-fast

fuzz: ## whatever comes from outside (packets, traces, records, workloads, scripts, maps) under libFuzzer, SECONDS each (8)
	@if [ -x tests/setup.sh ]; then tests/setup.sh; fi
	fuzz/run.sh $(or $(SECONDS),8)

loom: ## what threads share (crates/sys/src/sync) in every order of their steps
	CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' cargo test --release --locked --package pagetide-sys --test orders

# What has unsafe code and makes no system call, which miri does not know. Core, traces and driver forbid unsafe code.
miri: ## undefined behaviour in what makes no system call (needs a nightly with the components miri and rust-src)
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo 'make miri: missing: rustup toolchain install nightly --component miri,rust-src' >&2; exit 1; }
	CARGO_TARGET_DIR=target/miri MIRIFLAGS=-Zmiri-permissive-provenance cargo +nightly miri test --locked --package pagetide-sys --lib -- maps:: text::
	CARGO_TARGET_DIR=target/miri MIRIFLAGS=-Zmiri-permissive-provenance cargo +nightly miri test --locked --package pagetide --lib -- space::regions:: space::unpaged:: frames:: control:: protocol:: shares::

lint: ## format, tidy, directions, no-std, licences, clippy, aarch64, documentation
	$(XTASK) lint

# SUITE=hot ROW='zipf 1.0' ARGS='--runs 3 --side kernel' select; bench/README.md lists what there is.
bench: build ## figures against the kernel's own swap, as ratios with their recipe (root)
	cargo run --release --locked --package pagetide-bench -- $(if $(SUITE),--only '$(SUITE)') $(if $(ROW),--row '$(ROW)') $(ARGS)

kernel-diff: ## the simulator against the real kernel, counter by counter (root, memory cgroup, loop swap)
	cargo run --release --locked --package pagetide-kernel-diff

docs: ## write docs/knobs.md, counters.md and errors.md again from the tables in the code
	$(XTASK) docs

advisories: ## known holes in dependencies (needs the network)
	cargo deny check advisories
