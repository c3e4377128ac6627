//! How reclaim is divided between anonymous and file pages, and how much of each list a pass asks for.
//!
//! Each type has a cost: what reclaiming it lately led to. The cheaper type gets more of the pressure, within bounds that
//! swappiness weighs. Costs decay as the lists turn over, so that the past does not rule. With `a`, `f` the costs and
//! `T = a + f` (balance `cost`): pressure on anonymous `s / (T + a)`, on file `(200 - s) / (T + f)`; neither can fall under a
//! third or rise over two thirds but for `s`.

use super::Reclaim;
use crate::config::{Balance, Config};
use crate::memory::Memory;
use crate::memory::lru::{AA, AF, IA, IF};
use crate::swap::Space;
use crate::types::Nanos;

/// Cost of one page of I/O, in pages of CPU work.
const IO_WEIGHT: u64 = 32;

#[derive(Debug, Default)]
pub(crate) struct LruCost {
    /// `cost`: the cost; `lru-cost-2016`: the numerator. Anonymous, file.
    cost: [u64; 2],
    /// `lru-cost-2016` only.
    denominator: u64,
    /// `scanned-rotated` only.
    scanned: [u64; 2],
    rotated: [u64; 2],
}

/// Statistics as decisions see them: gathered from time to time.
#[derive(Debug)]
pub(super) struct SeenStats {
    sizes: [u32; 4],
    activate: [u64; 2],
    next: Nanos,
}

impl SeenStats {
    pub(super) const fn new(config: &Config) -> Self {
        Self { sizes: config.stat_start, activate: [0; 2], next: config.stat_first_ns }
    }
}

/// What a pass asks of which type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanBalance {
    File,
    Anon,
    Equal,
    Fract,
}

/// What the choice depends on, of one reclaim run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanFacts {
    pub(crate) priority: u32,
    pub(crate) memcg: bool,
    pub(crate) file_is_tiny: bool,
    pub(crate) cache_trim: bool,
}

impl Reclaim {
    /// List sizes as decisions see them: fresh, or as old as the statistics interval.
    #[inline]
    pub(super) fn policy_sizes(&mut self, mem: &Memory) -> [u32; 4] {
        if self.cfg.stat_interval_ns == 0 {
            return mem.list_sizes();
        }
        self.gather(mem);
        self.seen.sizes
    }

    /// Activations by refault, by type, as old as the list sizes that decisions see.
    pub(super) fn policy_activations(&mut self, mem: &Memory) -> [u64; 2] {
        if self.cfg.stat_interval_ns == 0 {
            return self.ws_activate;
        }
        self.gather(mem);
        self.seen.activate
    }

    fn gather(&mut self, mem: &Memory) {
        if mem.now >= self.seen.next {
            self.gather_stats(mem);
            self.seen.next = mem.now + self.cfg.stat_interval_ns;
        }
    }

    /// Gather the statistics that decisions see, before their time: somebody reads memory.stat.
    pub(crate) fn gather_stats(&mut self, mem: &Memory) {
        self.seen.sizes = mem.list_sizes();
        self.seen.activate = self.ws_activate;
    }

    /// An event that cost `io` pages of I/O and `rotated` pages of work for nothing.
    pub(crate) fn note_cost(&mut self, mem: &Memory, kind: usize, io: u32, rotated: u32) {
        let (io, rotated) = (u64::from(io), u64::from(rotated));
        let sizes = self.policy_sizes(mem);
        let all: u64 = sizes.iter().copied().map(u64::from).sum();
        let cost = match self.cfg.balance {
            Balance::Cost => IO_WEIGHT * io + rotated,
            Balance::CostIo => io,
            Balance::ScannedRotated => return,
            Balance::LruCost2016 => {
                self.cost.cost[kind] += IO_WEIGHT * io + rotated;
                self.cost.denominator += IO_WEIGHT * io + rotated;
                return;
            }
        };
        if cost == 0 && self.cfg.skip_zero_cost {
            return;
        }
        self.cost.cost[kind] += cost;
        if self.cost.cost[0] + self.cost.cost[1] > all / 4 {
            self.cost.cost[0] /= 2;
            self.cost.cost[1] /= 2;
        }
    }

    /// Up to 5.7: pages looked at, and pages found in use.
    #[inline]
    pub(crate) fn note_scanned(&mut self, kind: usize, scanned: u32, rotated: u32) {
        self.cost.scanned[kind] += u64::from(scanned);
        self.cost.rotated[kind] += u64::from(rotated);
    }

    /// True if the inactive list of a type is too short for its active list: G GiB ask for a ratio of `sqrt(10 G)`.
    pub(super) fn inactive_is_low(&mut self, space: &Space, kind: usize) -> bool {
        let sizes = self.policy_sizes(&space.mem);
        let (inactive, active) = (u64::from(sizes[kind * 2]), u64::from(sizes[kind * 2 + 1]));
        let gib = (inactive + active) / u64::from(self.cfg.gib_pages);
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        inactive * ratio < active
    }

    /// Weights of anonymous and file pages, and their common denominator.
    fn fractions(&mut self, mem: &Memory) -> ([u64; 2], u64) {
        let s = u64::from(self.cfg.swappiness.min(200));
        let sizes = self.policy_sizes(mem);
        let anon = u64::from(sizes[IA]) + u64::from(sizes[AA]);
        let file = u64::from(sizes[IF]) + u64::from(sizes[AF]);
        match self.cfg.balance {
            Balance::Cost | Balance::CostIo => {
                let total = self.cost.cost[0] + self.cost.cost[1];
                let (a, f) = (total + self.cost.cost[0], total + self.cost.cost[1]);
                let (ap, fp) = (s * (a + f + 1) / (a + 1), (200 - s) * (a + f + 1) / (f + 1));
                ([ap, fp], ap + fp)
            }
            Balance::ScannedRotated => {
                for (kind, size) in [(0, anon), (1, file)] {
                    if self.cost.scanned[kind] > size / 4 {
                        self.cost.scanned[kind] /= 2;
                        self.cost.rotated[kind] /= 2;
                    }
                }
                let ap = s * (self.cost.scanned[0] + 1) / (self.cost.rotated[0] + 1);
                let fp = (200 - s) * (self.cost.scanned[1] + 1) / (self.cost.rotated[1] + 1);
                ([ap, fp], ap + fp + 1)
            }
            Balance::LruCost2016 => {
                if self.cost.denominator > (anon + file) / 8 {
                    self.cost.cost[0] /= 2;
                    self.cost.cost[1] /= 2;
                    self.cost.denominator /= 2;
                }
                let ap = s * (self.cost.denominator + 1) / (self.cost.cost[0] + 1);
                let fp = (200 - s) * (self.cost.denominator + 1) / (self.cost.cost[1] + 1);
                ([ap, fp], ap + fp + 1)
            }
        }
    }

    /// True if an anonymous page could be reclaimed: there is a free slot, or pages that have kept theirs may go.
    pub(super) fn can_reclaim_anon(&self, space: &Space) -> bool {
        space.slots.free() > 0 || (self.host.reclaims_kept_slots && space.mem.counts().kept_slots > 0)
    }

    fn scan_balance(&self, space: &Space, facts: ScanFacts) -> ScanBalance {
        let swappiness = self.cfg.swappiness;
        if !self.can_reclaim_anon(space) || (facts.memcg && swappiness == 0) {
            ScanBalance::File
        } else if swappiness > 200 {
            ScanBalance::Anon
        } else if facts.priority == 0 && swappiness != 0 {
            ScanBalance::Equal
        } else if facts.file_is_tiny {
            ScanBalance::Anon
        } else if facts.cache_trim {
            ScanBalance::File
        } else {
            ScanBalance::Fract
        }
    }

    /// Pages to look at on each list in this pass.
    pub(super) fn scan_targets(&mut self, space: &Space, facts: ScanFacts) -> [u32; 4] {
        let balance = self.scan_balance(space, facts);
        let (weights, denominator) = self.fractions(&space.mem);
        let mut targets = space.mem.list_sizes();
        for (list, target) in targets.iter_mut().enumerate() {
            let kind = list / 2;
            let n = u64::from(*target >> facts.priority);
            let share = match balance {
                ScanBalance::Equal => n,
                ScanBalance::Fract => n * weights[kind] / denominator,
                ScanBalance::File => {
                    if kind == 1 {
                        n
                    } else {
                        0
                    }
                }
                ScanBalance::Anon => {
                    if kind == 0 {
                        n
                    } else {
                        0
                    }
                }
            };
            *target = u32::try_from(share).expect("a share of a u32");
        }
        targets
    }
}
