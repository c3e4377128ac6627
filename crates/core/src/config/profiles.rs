//! The profiles: each older kernel by what it does otherwise than the next newer one, and our own policy.

use alloc::format;

use super::{
    Balance, Compress, Config, ConfigError, GIB_PAGES, HostKind, MemoryMode, PROFILES, Readahead, Sample, SlotOrder,
    SwapoffMode, hint,
};

impl Config {
    /// The settings of a profile for a host, with no memory yet: set `budget` and `pages_max`.
    pub fn profile(name: &str, host: HostKind) -> Result<Self, ConfigError> {
        let mut config = Self::linux_6_18(host);
        match name {
            "linux-6.18" => {}
            "linux-6.1" => config.older_6_1(),
            "linux-5.6" => config.older_5_6(),
            "linux-4.10" => config.older_4_10(),
            "linux-3.10" => config.older_3_10(),
            "pagetide" => config.ours(),
            other => {
                let near = hint(other, PROFILES.iter().copied());
                return Err(ConfigError::new(format!("no profile `{other}`{near}")));
            }
        }
        config.profile = PROFILES.iter().find(|p| **p == name).copied().unwrap_or("linux-6.18");
        Ok(config)
    }

    fn linux_6_18(host: HostKind) -> Self {
        Self {
            host,
            memory: MemoryMode::Watermarks,
            pages_max: 0,
            slots_max: 0,
            budget: 0,
            min_free: 0,
            reserve: 0,
            write_queue: 0,
            swappiness: 60,
            page_cluster: 3,
            readahead: Readahead::Vma,
            readahead_max: 64,
            zero_ahead: 0,
            balance: Balance::Cost,
            swapoff: SwapoffMode::Lookup,
            min_scan_priority: 0,
            watermark_scale: 10,
            reclaim_batch: 32,
            sample: Sample::Lap,
            free_on_write_done: false,
            anon_active: false,
            lru_batch: 31,
            charge_batch: 64,
            compress: Compress::Off,
            activate_at_once: false,
            anon_shadows: true,
            file_shadows: true,
            refault_active_file: false,
            slot_order: SlotOrder::Nonfull,
            activate_dirty: true,
            kswapd_unlimited: false,
            nap_ns: 0,
            write_marks: false,
            dirty_of_all: false,
            refault_deactivates: true,
            swapin_active: false,
            gib_pages: GIB_PAGES,
            aligned_readahead: true,
            early_free: 2,
            skip_zero_cost: true,
            full_walk_retry: true,
            stat_interval_ns: 0,
            stat_first_ns: 0,
            stat_start: [0; 4],
            request_ends: false,
            writes_end_elsewhere: false,
            profile: "linux-6.18",
        }
    }

    fn older_6_1(&mut self) {
        self.balance = Balance::CostIo;
        self.swapoff = SwapoffMode::LookupStats;
        self.lru_batch = 15;
        self.slot_order = SlotOrder::Free;
        self.aligned_readahead = false;
        self.skip_zero_cost = false;
        self.full_walk_retry = false;
    }

    fn older_5_6(&mut self) {
        self.older_6_1();
        self.balance = Balance::ScannedRotated;
        self.swapoff = SwapoffMode::NoLookup;
        self.anon_active = true;
        self.swapin_active = true;
        self.activate_at_once = true;
        self.anon_shadows = false;
        self.refault_active_file = true;
    }

    fn older_4_10(&mut self) {
        self.older_5_6();
        self.readahead = Readahead::Cluster;
        self.lru_batch = 14;
        self.activate_dirty = false;
        self.refault_deactivates = false;
    }

    fn older_3_10(&mut self) {
        self.older_4_10();
        self.readahead = Readahead::ClusterFixed;
        self.file_shadows = false;
        self.kswapd_unlimited = true;
        self.swapin_active = false;
        self.write_marks = true;
        self.dirty_of_all = true;
    }

    fn ours(&mut self) {
        self.sample = Sample::Watch;
        self.swappiness = 100;
        self.readahead = Readahead::Stream;
        self.zero_ahead = 64;
        self.swapoff = SwapoffMode::LookupStats;
        self.watermark_scale = 100;
        self.free_on_write_done = true;
        self.early_free = 8;
        self.slot_order = SlotOrder::Emptiest;
        self.lru_batch = 0;
        self.charge_batch = 0;
        self.compress = Compress::Auto;
    }
}
