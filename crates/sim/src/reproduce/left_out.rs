//! Why a row of the source has no model.

/// Path prefix or part, and the reason. The first that fits counts.
const REASONS: &[(&str, &str)] = &[
    ("/Stddev", "spread of three real runs: the model has no noise between runs to show"),
    ("/CoeffVar", "spread of three real runs: the model has no noise between runs to show"),
    ("/stddev", "spread between real runs"),
    ("/range", "spread between real runs"),
    ("NUMA", "the model has one memory node"),
    ("THP", "the model has no huge pages"),
    ("Compaction", "the model has no huge pages, so nothing is compacted"),
    ("migrate", "the model has no huge pages, so nothing is migrated"),
    ("AutoNUMA", "the model has one memory node"),
    ("allocs", "allocations by zone: the model has one zone"),
    ("Zone ", "scanning by zone: the model has one zone"),
    ("Slabs", "the model has no slab caches"),
    ("inode", "the model has no inodes"),
    ("Page rescued", "zero everywhere: the counter is of a path the documents' kernels do not take"),
    ("Kswapd skipped", "zero everywhere: the counter is of a path the documents' kernels do not take"),
    ("/User", "computing of the benchmark programs: an input of the model"),
    ("/System", "computing of the benchmark programs: an input of the model"),
    ("/Elapsed", "the length of a run is an input of the model"),
    ("time", "the length of a run and its computing are inputs of the model"),
    ("/latency_stddev_ms", "spread between transactions, of which checkpoints, not modelled, are a part"),
];

/// Parts of the source that say a set-up or repeat what the rows say.
const NO_RESULTS: &[&str] = &[
    "/condition/",
    "/setting/",
    "change_pct",
    "/foreground/",
    "/background/",
    "/duration_s",
    "/per_page_delay_us",
    "/processes",
    "/virtual_gib",
    "/derived/",
];

/// The reason; `None` for numbers that are no results.
pub(super) fn reason(path: &str) -> Option<&'static str> {
    if NO_RESULTS.iter().any(|part| path.contains(part)) {
        return None;
    }
    let found = REASONS.iter().find(|(part, _)| path.contains(part));
    Some(found.map_or("no model gives this value", |(_, reason)| reason))
}
