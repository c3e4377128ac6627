//! `cargo bench -p pagetide-sim`: accesses per second of wall time, as one JSON object. The zipf traces have 20 million
//! accesses to a million pages; `exact_lru` is the same trace through a plain list.

#[expect(clippy::print_stdout, reason = "the report is the program's purpose")]
fn main() {
    // `cargo test --all-targets` starts benchmarks, too, to see whether they start.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("{:#}", pagetide_sim::bench::report(20_000_000, 1_000_000));
}
