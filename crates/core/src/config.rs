//! Configuration: the table of knobs, the profiles (in `profiles`), and the sizes a host fixes for good.
//!
//! A [`Config`] is valid by construction. Knobs are set by `KEY=VALUE`; an unknown key is an error that names the nearest
//! one. A profile is a set of knob defaults plus switches that only make sense together (a kernel version).

mod live;
mod profiles;

pub use live::LiveSetting;

use alloc::{format, string::String, string::ToString};

/// What the host can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// Young and dirty bits live in the core's page table (the simulator): `Core::touch` sets them.
    Exact,
    /// No accessed or dirty bits, and maps and unmaps take time (the live runtime).
    Blind,
}

/// What limits memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMode {
    /// A memory cgroup limit: reclaim only when a charge hits it.
    Memcg {
        /// Version 1: reclaim waits for a page under write-back that it meets twice.
        v1: bool,
    },
    /// A machine, or a live budget: watermarks below the budget, kswapd, direct reclaim.
    Watermarks,
}

/// Which pages come early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readahead {
    /// Only the faulting page.
    Off,
    /// The aligned block of slots around the fault (one state for all).
    Cluster,
    /// As `cluster`, with a fixed window (before 3.15).
    ClusterFixed,
    /// S3: by direction, before the lookup.
    VmaRfc,
    /// S0: windows per region, sized by hits.
    Vma,
    /// Streams per region, windows mapped whole but for a marker.
    Stream,
}

/// How reclaim is divided between anonymous and file pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Up to 5.7.
    ScannedRotated,
    /// S1 as posted in 2016.
    LruCost2016,
    /// 5.8 to 6.1: only I/O costs.
    CostIo,
    /// Since 6.2: `32 * io + rotated`.
    Cost,
}

/// How swapoff finds pages that are in the swap cache already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapoffMode {
    /// 5.1 to 5.7: readahead is called for every page.
    NoLookup,
    /// 6.18: looked up first, statistics untouched.
    Lookup,
    /// S2, 5.8 to 6.17: looked up first, hits counted.
    LookupStats,
}

impl SwapoffMode {
    /// As the knob spells it.
    pub fn name(self) -> &'static str {
        SWAPOFF.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }

    /// From the knob's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        SWAPOFF.iter().find(|(name, _)| *name == text).map(|&(_, mode)| mode)
    }
}

/// How a blind host's core finds out whether a mapped page at the inactive tail is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Unmapped and given one more lap; a touch is a soft fault.
    Lap,
    /// Kept by how soon it comes back, see `reclaim::watch`.
    Watch,
    /// Not at all: it goes.
    None,
}

/// How pages that leave are compressed into memory before they are written (the host does it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compress {
    /// Not at all.
    Off,
    /// As LZ4, once that is seen to pay.
    Auto,
    /// LZ4: fast.
    Lz4,
    /// Zstandard: a third less memory, at some times the CPU time.
    Zstd,
}

/// Which clusters slots are taken from first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotOrder {
    /// 6.13 and later: started clusters before free ones.
    Nonfull,
    /// Before: free clusters first; devices of equal priority alternate every 64 slots.
    Free,
    /// Ours: free clusters first, then the one with the most free slots, as log-structured file systems choose: pages that
    /// leave together are written together.
    Emptiest,
}

/// A wrong setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    message: String,
}

impl ConfigError {
    fn new(message: String) -> Self {
        Self { message }
    }
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.message)
    }
}

impl core::error::Error for ConfigError {}

/// A setting: one line of the table.
#[derive(Debug)]
pub struct Knob {
    /// As it is spelled everywhere.
    pub name: &'static str,
    /// The values it takes, as a person reads them.
    pub values: &'static str,
    /// Unit of a number, or empty.
    pub unit: &'static str,
    /// One line.
    pub doc: &'static str,
    set: fn(&mut Config, &str) -> bool,
    get: fn(&Config) -> String,
}

fn number(text: &str, min: u32, max: u32, into: &mut u32) -> bool {
    match text.parse::<u32>() {
        Ok(n) if n >= min && n <= max => {
            *into = n;
            true
        }
        Ok(_) | Err(_) => false,
    }
}

fn choice<T: Copy + PartialEq>(text: &str, names: &[(&str, T)], into: &mut T) -> bool {
    match names.iter().find(|(name, _)| *name == text) {
        Some(&(_, value)) => {
            *into = value;
            true
        }
        None => false,
    }
}

fn name_of<T: Copy + PartialEq>(value: T, names: &[(&str, T)]) -> String {
    names.iter().find(|(_, v)| *v == value).map_or_else(String::new, |(name, _)| (*name).to_string())
}

const READAHEAD: &[(&str, Readahead)] = &[
    ("off", Readahead::Off),
    ("cluster", Readahead::Cluster),
    ("cluster-fixed", Readahead::ClusterFixed),
    ("vma-rfc", Readahead::VmaRfc),
    ("vma", Readahead::Vma),
    ("stream", Readahead::Stream),
];
const BALANCE: &[(&str, Balance)] = &[
    ("scanned-rotated", Balance::ScannedRotated),
    ("lru-cost-2016", Balance::LruCost2016),
    ("cost-io", Balance::CostIo),
    ("cost", Balance::Cost),
];
const SWAPOFF: &[(&str, SwapoffMode)] = &[
    ("no-lookup", SwapoffMode::NoLookup),
    ("lookup", SwapoffMode::Lookup),
    ("lookup-stats", SwapoffMode::LookupStats),
];
const SAMPLE: &[(&str, Sample)] = &[("watch", Sample::Watch), ("lap", Sample::Lap), ("none", Sample::None)];
const COMPRESS: &[(&str, Compress)] =
    &[("off", Compress::Off), ("auto", Compress::Auto), ("lz4", Compress::Lz4), ("zstd", Compress::Zstd)];
const SWITCH: &[(&str, bool)] = &[("on", true), ("off", false)];
const ANON_LIST: &[(&str, bool)] = &[("inactive", false), ("active", true)];

/// All knobs.
pub const KNOBS: &[Knob] = &[
    Knob {
        name: "swappiness",
        values: "0..201",
        unit: "",
        doc: "weight of anonymous against file reclaim; 100: equal cost; 201: anonymous only",
        set: |c, v| number(v, 0, 201, &mut c.swappiness),
        get: |c| c.swappiness.to_string(),
    },
    Knob {
        name: "page-cluster",
        values: "0..31",
        unit: "log2 pages",
        doc: "largest swap readahead window; 0: none (vma: at most 5)",
        set: |c, v| number(v, 0, 31, &mut c.page_cluster),
        get: |c| c.page_cluster.to_string(),
    },
    Knob {
        name: "readahead",
        values: "off, cluster, cluster-fixed, vma-rfc, vma, stream",
        unit: "",
        doc: "which swapped pages are read before they are asked for",
        set: |c, v| choice(v, READAHEAD, &mut c.readahead),
        get: |c| name_of(c.readahead, READAHEAD),
    },
    Knob {
        name: "readahead-max",
        values: "2..256",
        unit: "pages",
        doc: "largest window of a stream",
        set: |c, v| number(v, 2, 256, &mut c.readahead_max),
        get: |c| c.readahead_max.to_string(),
    },
    Knob {
        name: "zero-ahead",
        values: "0..256",
        unit: "pages",
        doc: "most zero pages that are mapped with a first touch that goes on with what is mapped beside it; 0: none",
        set: |c, v| number(v, 0, 256, &mut c.zero_ahead),
        get: |c| c.zero_ahead.to_string(),
    },
    Knob {
        name: "balance",
        values: "scanned-rotated, lru-cost-2016, cost-io, cost",
        unit: "",
        doc: "how reclaim is divided between anonymous and file pages",
        set: |c, v| choice(v, BALANCE, &mut c.balance),
        get: |c| name_of(c.balance, BALANCE),
    },
    Knob {
        name: "swapoff",
        values: "no-lookup, lookup, lookup-stats",
        unit: "",
        doc: "what swapoff does about pages that are in the swap cache",
        set: |c, v| choice(v, SWAPOFF, &mut c.swapoff),
        get: |c| name_of(c.swapoff, SWAPOFF),
    },
    Knob {
        name: "min-scan-priority",
        values: "0..1",
        unit: "",
        doc: "lowest reclaim priority before out of memory; 1: priority 0 is one last pass",
        set: |c, v| number(v, 0, 1, &mut c.min_scan_priority),
        get: |c| c.min_scan_priority.to_string(),
    },
    Knob {
        name: "watermark-scale",
        values: "1..3000",
        unit: "1/10000 of the budget",
        doc: "distance between the watermarks min, low and high; where the host is blind and the profile `pagetide`, at most",
        set: |c, v| number(v, 1, 3000, &mut c.watermark_scale),
        get: |c| c.watermark_scale.to_string(),
    },
    Knob {
        name: "reclaim-batch",
        values: "1..64",
        unit: "pages",
        doc: "pages taken from a list at a time",
        set: |c, v| number(v, 1, 64, &mut c.reclaim_batch),
        get: |c| c.reclaim_batch.to_string(),
    },
    Knob {
        name: "sample",
        values: "watch, lap, none",
        unit: "",
        doc: "how use is seen (live only): pages are kept by how soon they come back, watched for a lap before they go, or neither",
        set: |c, v| choice(v, SAMPLE, &mut c.sample),
        get: |c| name_of(c.sample, SAMPLE),
    },
    Knob {
        name: "free-on-write-done",
        values: "on, off",
        unit: "",
        doc: "free a page when its write ends instead of looking at it once more",
        set: |c, v| choice(v, SWITCH, &mut c.free_on_write_done),
        get: |c| name_of(c.free_on_write_done, SWITCH),
    },
    Knob {
        name: "anon-list",
        values: "inactive, active",
        unit: "",
        doc: "list on which a new anonymous page starts",
        set: |c, v| choice(v, ANON_LIST, &mut c.anon_active),
        get: |c| name_of(c.anon_active, ANON_LIST),
    },
    Knob {
        name: "lru-batch",
        values: "0..31",
        unit: "pages",
        doc: "new pages held back before they are put on a list; 0: none",
        set: |c, v| number(v, 0, 31, &mut c.lru_batch),
        get: |c| c.lru_batch.to_string(),
    },
    Knob {
        name: "charge-batch",
        values: "0..64",
        unit: "pages",
        doc: "pages charged at a time under a memcg limit; 0 or 1: singly",
        set: |c, v| number(v, 0, 64, &mut c.charge_batch),
        get: |c| c.charge_batch.to_string(),
    },
    Knob {
        name: "compress",
        values: "off, auto, lz4, zstd",
        unit: "",
        doc: "how pages that leave are compressed into a part of the budget before they go to the disk (live, and in sim study and replay); auto: by lz4, once 2 s were waited for pages and an eighth of that would have been saved",
        set: |c, v| choice(v, COMPRESS, &mut c.compress),
        get: |c| name_of(c.compress, COMPRESS),
    },
];

/// Names of the profiles, newest kernel last but for our own.
pub const PROFILES: &[&str] = &["linux-3.10", "linux-4.10", "linux-5.6", "linux-6.1", "linux-6.18", "pagetide"];

/// Pages of a GiB.
const GIB_PAGES: u32 = 1 << 18;

/// Everything that is fixed when a core is built.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) host: HostKind,
    pub(crate) memory: MemoryMode,
    pub(crate) pages_max: u32,
    pub(crate) slots_max: u32,
    pub(crate) budget: u32,
    pub(crate) min_free: u32,
    /// Frames that kswapd sees to beyond the distances of the watermarks.
    pub(crate) reserve: u32,
    /// Pages under write that a disk's queue holds: who writes more waits. 0: no end to it.
    pub(crate) write_queue: u32,
    pub(crate) swappiness: u32,
    pub(crate) page_cluster: u32,
    pub(crate) readahead: Readahead,
    pub(crate) readahead_max: u32,
    pub(crate) zero_ahead: u32,
    pub(crate) balance: Balance,
    pub(crate) swapoff: SwapoffMode,
    pub(crate) min_scan_priority: u32,
    pub(crate) watermark_scale: u32,
    pub(crate) reclaim_batch: u32,
    pub(crate) sample: Sample,
    pub(crate) free_on_write_done: bool,
    pub(crate) anon_active: bool,
    pub(crate) lru_batch: u32,
    pub(crate) charge_batch: u32,
    pub(crate) compress: Compress,
    /// A referenced anonymous page on the inactive list is activated at once (until 5.8).
    pub(crate) activate_at_once: bool,
    /// Anonymous pages leave shadow entries (since 5.9).
    pub(crate) anon_shadows: bool,
    /// File pages leave shadow entries (since 3.15).
    pub(crate) file_shadows: bool,
    /// Refault sizes compare with the active file list only (until 5.8).
    pub(crate) refault_active_file: bool,
    pub(crate) slot_order: SlotOrder,
    /// Dirty and under-write pages that reclaim meets go up the lists (since 4.11) instead of round the inactive one.
    pub(crate) activate_dirty: bool,
    /// kswapd of 3.10 as released, from memory of it: scans whole targets, one priority lower each pass, down to 0, begins again
    /// from the top once it has freed a batch, and so on until the high watermark is met; it does not sleep in between. From the
    /// fourth priority on it hands dirty file pages to the file system itself, which leaves them dirty (ext4 does where their
    /// blocks are not allocated yet, as in a new file): a count and no I/O.
    pub(crate) kswapd_unlimited: bool,
    /// Reclaim as the series of S4 builds on it, from memory of 3.11: after a batch of nothing but dirty file pages that nobody writes
    /// yet, kswapd and tasks wait for the disk's queue, so long at most (which is how long they wait here), and kswapd hands such pages
    /// to the file system for the rest of its run. Nanoseconds; 0: neither.
    pub(crate) nap_ns: u64,
    /// A call that writes to a page of a file counts as a use of it (until 4.6).
    pub(crate) write_marks: bool,
    /// The limits of dirty pages are parts of all memory above the watermarks, not only of what is free or holds files (until
    /// 3.13), and writers go at the pace of the disk from half way between the two limits on (since 3.2; the profiles of newer
    /// kernels let them go on to the limit).
    pub(crate) dirty_of_all: bool,
    /// Pages that come back to the active list open it to reclaim, however long the inactive one is (since 4.12).
    pub(crate) refault_deactivates: bool,
    /// Swapped pages come back to the active list (4.8 to 5.8), not to the inactive one. The kernel does it when a fault maps them,
    /// in batches of a CPU that keep a stream's pages together; here they are there when they are read.
    pub(crate) swapin_active: bool,
    /// Pages that stand for a GiB where the ratio of the lists depends on their size.
    pub(crate) gib_pages: u32,
    /// Page-cache readahead aligns its windows (since 6.17).
    pub(crate) aligned_readahead: bool,
    /// Slots kept for clean pages are freed once fewer than one slot in so many is free.
    pub(crate) early_free: u32,
    /// A cost event of zero is skipped (6.18).
    pub(crate) skip_zero_cost: bool,
    /// The walk over all groups that a fruitless memcg reclaim repeats (since 6.12).
    pub(crate) full_walk_retry: bool,
    /// Decisions use list sizes up to this old; 0: fresh.
    pub(crate) stat_interval_ns: u64,
    pub(crate) stat_first_ns: u64,
    pub(crate) stat_start: [u32; 4],
    /// Reclaim does not go on between the ends of one request's pages.
    pub(crate) request_ends: bool,
    /// Pages whose writes have ended wait for a full batch on another CPU.
    pub(crate) writes_end_elsewhere: bool,
    pub(crate) profile: &'static str,
}

impl Config {
    /// Set one knob from `KEY=VALUE`.
    pub fn set(&mut self, setting: &str) -> Result<(), ConfigError> {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(ConfigError::new(format!("`{setting}`: expected KEY=VALUE")));
        };
        let (key, value) = (key.trim(), value.trim());
        let Some(knob) = KNOBS.iter().find(|k| k.name == key) else {
            let near = hint(key, KNOBS.iter().map(|k| k.name));
            return Err(ConfigError::new(format!("no setting `{key}`{near}")));
        };
        if (knob.set)(self, value) {
            Ok(())
        } else {
            Err(ConfigError::new(format!("{key}: `{value}` is not one of {}", knob.values)))
        }
    }

    /// The value of a knob, as `set` takes it.
    pub fn get(&self, key: &str) -> Option<String> {
        KNOBS.iter().find(|k| k.name == key).map(|knob| (knob.get)(self))
    }

    /// The profile it was built from.
    pub const fn profile_name(&self) -> &'static str {
        self.profile
    }

    /// What the host sees.
    pub const fn host(&self) -> HostKind {
        self.host
    }

    /// Pages the host's table holds, and frames it may use.
    #[must_use]
    pub const fn memory(mut self, mode: MemoryMode, pages_max: u32, budget: u32) -> Self {
        self.memory = mode;
        self.pages_max = pages_max;
        self.budget = budget;
        self
    }

    /// Slots that all devices together will ever have; rounded up to whole clusters for each device.
    #[must_use]
    pub const fn slots_max(mut self, slots: u32) -> Self {
        self.slots_max = slots;
        self
    }

    /// Frames that only a fault in direct reclaim may take (the min watermark).
    #[must_use]
    pub const fn min_free(mut self, pages: u32) -> Self {
        self.min_free = pages;
        self
    }

    /// Frames that tasks may take while kswapd sees to more: raises the watermarks low and high above min. It stands for the
    /// zones of a machine before 4.8. kswapd is woken, and works, for a zone in which a file's writer may dirty no more, or which
    /// is low by itself; tasks then take what another zone has free, and seldom have to reclaim.
    #[must_use]
    pub const fn reserve(mut self, pages: u32) -> Self {
        self.reserve = pages;
        self
    }

    /// Pages under write that a disk's queue holds. The flusher and reclaim share it: one alone has all of it, both half each.
    #[must_use]
    pub const fn write_queue(mut self, pages: u32) -> Self {
        self.write_queue = pages;
        self
    }

    /// Age of the list sizes that decisions use (the kernel: 2 s in memcg reclaim; 0: always fresh), and when they are
    /// gathered first; before that they are `start` (what a group used before has left there).
    #[must_use]
    pub const fn stat_interval_ns(mut self, ns: u64, first: u64, start: [u32; 4]) -> Self {
        self.stat_interval_ns = ns;
        self.stat_first_ns = first;
        self.stat_start = start;
        self
    }

    /// The host tells the ends of one request's pages one after the other: reclaim that is going on takes them in together, at
    /// the next timeout, and so does kswapd.
    #[must_use]
    pub const fn request_ends(mut self) -> Self {
        self.request_ends = true;
        self
    }

    /// Writes end on another CPU than the one that reclaims. Their pages wait there until a batch of them is full before they go
    /// to the tail, and reclaim that meets one keeps it.
    #[must_use]
    pub const fn writes_end_elsewhere(mut self) -> Self {
        self.writes_end_elsewhere = true;
        self
    }

    /// For a model whose sizes are divided by `scale` (1 to 2^18): the ratio of the lists is that of the full sizes.
    ///
    /// # Panics
    /// Another scale.
    #[must_use]
    pub const fn scaled(mut self, scale: u32) -> Self {
        assert!(scale >= 1 && scale <= GIB_PAGES, "a scale is 1 to 2^18");
        self.gib_pages = GIB_PAGES / scale;
        self
    }

    /// Swapped pages come back to the inactive list, as before 4.8.
    #[must_use]
    pub const fn swapin_inactive(mut self) -> Self {
        self.swapin_active = false;
        self
    }

    /// Profile `linux-3.10`: kswapd as the series of S4 builds on it, limited in what it reclaims at each priority; it naps for so many
    /// nanoseconds (100 ms, by the scale of a model) when all that it finds is dirty.
    #[must_use]
    pub const fn kswapd_limited(mut self, nap_ns: u64) -> Self {
        self.kswapd_unlimited = false;
        self.nap_ns = nap_ns;
        self
    }

    pub(crate) const fn is_memcg(&self) -> bool {
        matches!(self.memory, MemoryMode::Memcg { .. })
    }

    /// What a disk's queue holds for one who writes, while `others` pages of another are in it.
    pub(crate) const fn queue_share(&self, others: u32) -> u32 {
        let (half, rest) = (self.write_queue / 2, self.write_queue.saturating_sub(others));
        if half > rest { half } else { rest }
    }

    /// How the host is to compress pages that leave.
    pub const fn compress(&self) -> Compress {
        self.compress
    }
}

/// `; did you mean ...?` with the candidate that is nearest, or nothing if none is near.
fn hint<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// The candidate within a third of its letters (at least two) of `word`, or none.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|c| (edit_distance(&word.to_lowercase(), c), c));
    let (edits, best) = scored.min_by_key(|(edits, _)| *edits)?;
    (edits <= (best.chars().count() / 3).max(2)).then_some(best)
}

/// Characters to insert, delete or replace to make one word of the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: alloc::vec::Vec<char> = b.chars().collect();
    let mut row: alloc::vec::Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_reads_back_what_it_was_set_to() {
        let mut config = Config::profile("pagetide", HostKind::Exact).expect("a profile");
        for knob in KNOBS {
            let value = (knob.get)(&config);
            config.set(&format!("{}={value}", knob.name)).expect("its own value");
            assert_eq!(config.get(knob.name), Some(value));
        }
        assert!(KNOBS.len() <= 16);
    }

    #[test]
    fn a_wrong_key_names_the_nearest() {
        let mut config = Config::profile("linux-6.1", HostKind::Exact).expect("a profile");
        let error = config.set("swapiness=3").expect_err("misspelt").to_string();
        assert_eq!(error, "no setting `swapiness`; did you mean `swappiness`?");
        let error = config.set("page-cluster=40").expect_err("out of range").to_string();
        assert_eq!(error, "page-cluster: `40` is not one of 0..31");
        let error = Config::profile("linux-6.2", HostKind::Exact).expect_err("unknown").to_string();
        assert_eq!(error, "no profile `linux-6.2`; did you mean `linux-6.1`?");
    }
}
