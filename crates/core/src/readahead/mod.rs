//! Readahead: which pages come before they are asked for. It decides, and leaves the reading and mapping to its callers.
//!
//! What the modes of swap readahead share: the rule for the size of a window, and the window itself, a walk over pages or slots that a job
//! follows one page at a time.

pub(crate) mod around;
pub(crate) mod cluster;
pub(crate) mod file;
pub(crate) mod regions;
pub(crate) mod stream;
pub(crate) mod untouched;
pub(crate) mod vma;
pub(crate) mod vma_rfc;

use crate::config::{Config, Readahead as Mode};
use crate::event::Advice;
use crate::host::Host;
use crate::memory::Memory;
use crate::memory::page::PageState;
use crate::memory::tally::Tallied;
use crate::swap::Space;
use crate::vmstat::Counter;

use cluster::ClusterRa;
use regions::Regions;
use stream::SwapStreams;
use vma::VmaRa;
use vma_rfc::RfcRa;

/// A window takes at most this share of the budget.
const BUDGET_SHARE: u32 = 16;

/// Readahead state of a region.
#[derive(Clone, Debug)]
pub(crate) struct RegionRa {
    pub(crate) advice: Advice,
    pub(crate) vma: VmaRa,
    pub(crate) rfc: RfcRa,
}

impl RegionRa {
    pub(crate) const fn new() -> Self {
        Self { advice: Advice::Normal, vma: VmaRa::new(), rfc: RfcRa::new() }
    }
}

/// What is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// Pages, ascending.
    Pages,
    /// Pool slots, ascending.
    Slots,
    /// Pages of a file, ascending.
    File,
    /// S3: the target, then page table entries in one direction until enough pages were read.
    Rfc { back: bool, allocations: u32, found: u32, size: u32 },
}

/// A window: pages to be read one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    walk: Walk,
    next: u32,
    end: u32,
    /// From one page to the next.
    step: u32,
    target: u32,
    /// Single pages do not empty the batch of new pages.
    single: bool,
    /// Stream windows: mapped when they arrive, but for the marker.
    pub(crate) marker: Option<u32>,
}

impl Window {
    /// Only the target.
    pub(crate) const fn one(target: u32) -> Self {
        Self { walk: Walk::Pages, next: target, end: target + 1, step: 1, target, single: true, marker: None }
    }

    /// The pages `from..to`.
    pub(crate) const fn pages(target: u32, from: u32, to: u32) -> Self {
        Self { walk: Walk::Pages, next: from, end: to, step: 1, target, single: to - from <= 1, marker: None }
    }

    /// Every so manyth of its pages only.
    pub(crate) const fn every(self, step: u32) -> Self {
        Self { step, ..self }
    }

    /// The owners of the pool slots `from..to`.
    pub(crate) const fn slots(target: u32, from: u32, to: u32) -> Self {
        Self { walk: Walk::Slots, next: from, end: to, step: 1, target, single: to - from <= 1, marker: None }
    }

    /// The pages `from..to` of a file.
    pub(crate) const fn file(target: u32, from: u32, to: u32) -> Self {
        Self { walk: Walk::File, next: from, end: to, step: 1, target, single: false, marker: None }
    }

    /// Nothing.
    pub(crate) const fn none(target: u32) -> Self {
        Self { walk: Walk::File, next: 0, end: 0, step: 1, target, single: true, marker: None }
    }

    pub(crate) const fn drains(&self) -> bool {
        !self.single
    }

    pub(crate) const fn target(&self) -> u32 {
        self.target
    }

    /// Leave the target out: it is there already.
    pub(crate) fn without_target(&mut self, target: u32) {
        if self.single {
            self.next = self.end;
        }
        self.target = target;
    }
}

/// The size of the next window (facts section 6.1): twice what was hit, rounded up to a power of two, at most `max`, and
/// at least half of the window before.
pub(crate) fn window_size(previous: Option<u32>, this: u32, hits: u32, max: u32, last: u32) -> u32 {
    let mut n = hits + 2;
    if n == 2 {
        let adjacent = previous.is_some_and(|q| q.abs_diff(this) == 1);
        n = if adjacent { 2 } else { 1 };
    } else {
        n = n.max(4).next_power_of_two();
    }
    n.min(max).max(last / 2)
}

fn count_window(mem: &mut Memory, n: u32) {
    let counter = match n {
        0 | 1 => Counter::pt_ra_window_1,
        2 => Counter::pt_ra_window_2,
        3 | 4 => Counter::pt_ra_window_4,
        5..=8 => Counter::pt_ra_window_8,
        _ => Counter::pt_ra_window_more,
    };
    mem.count(counter, 1);
}

/// What readahead remembers: of each region, and of all slots.
#[derive(Debug)]
pub(crate) struct Readahead {
    pub(crate) cfg: Config,
    host: Host,
    pub(crate) regions: Regions,
    cluster: ClusterRa,
    swap_streams: SwapStreams,
}

impl Readahead {
    pub(crate) fn new(config: &Config, host: Host) -> Self {
        Self {
            cfg: config.clone(),
            host,
            regions: Regions::new(),
            cluster: ClusterRa::new(),
            swap_streams: SwapStreams::new(),
        }
    }

    /// The mode in force: VMA readahead is off while any rotational device is on.
    #[inline]
    fn mode(&self, space: &Space) -> Mode {
        match self.cfg.readahead {
            Mode::Vma if space.slots.rotational > 0 => Mode::Cluster,
            mode @ (Mode::Off | Mode::Cluster | Mode::ClusterFixed | Mode::VmaRfc | Mode::Vma | Mode::Stream) => mode,
        }
    }

    /// The window of a fault on a swapped page. Updates the state of its mode.
    pub(crate) fn window(&mut self, space: &mut Space, p: u32) -> Window {
        let slot = space.mem.slot(p).expect("I4: a swapped page has a slot");
        let Some(at) = self.regions.find(p) else {
            return Window::one(p);
        };
        if space.slots.spec_of(slot).synchronous {
            return Window::one(p);
        }
        match self.mode(space) {
            Mode::Off => Window::one(p),
            Mode::Cluster => self.cluster_window(space, p, slot, false),
            Mode::ClusterFixed => self.cluster_window(space, p, slot, true),
            Mode::VmaRfc => self.rfc_window(&space.mem, at, p),
            Mode::Vma => self.vma_window(&mut space.mem, at, p),
            Mode::Stream => self.stream_window(&mut space.mem, at, p),
        }
    }

    /// The window of a page that swapoff is to bring in. On a host that looks ahead nothing has to be guessed where streams are: it
    /// goes through all pages, `most` at a time, and the streams are those of the program's own faults.
    pub(crate) fn swapoff_window(&mut self, space: &mut Space, p: u32, most: u32) -> Window {
        match self.regions.find(p) {
            Some(at) if self.knows_swapoff(space) => Window::pages(p, p, (p + most).min(self.regions.get(at).end)),
            Some(_) | None => self.window(space, p),
        }
    }

    /// Swapoff has windows of its own, and asks once for each.
    pub(crate) fn knows_swapoff(&self, space: &Space) -> bool {
        self.host.swapoff_ahead > 0 && self.mode(space) == Mode::Stream
    }

    /// A fault found its page in the swap cache (or on its way there): what the statistics learn, and the window that is to
    /// be read ahead all the same, as far as frames are free.
    pub(crate) fn swap_cache_hit(&mut self, space: &mut Space, p: u32) -> Option<Window> {
        // Where the mark of a page read ahead and that of a page to be freed after its write are one bit, who comes back to a
        // page under write counts as a hit, and keeps the page from the tail of its list.
        let hit = if self.host.shares_reclaim_mark {
            space.mem.take_shared_readahead(p)
        } else {
            space.mem.take_readahead(p)
        };
        if hit {
            space.mem.count_at(p, Tallied::ReadAheadHit, 1);
        }
        let at = self.regions.find(p)?;
        match self.mode(space) {
            Mode::Off | Mode::ClusterFixed => {}
            Mode::Stream if hit => space.mem.around.note(p, true),
            Mode::Stream => {}
            Mode::Cluster => {
                if hit {
                    self.cluster.hit();
                }
            }
            Mode::VmaRfc => {
                let window = self.rfc_window(&space.mem, at, p);
                return (!window.single).then_some(window);
            }
            Mode::Vma => self.regions.get_mut(at).ra.vma.found(p, hit),
        }
        None
    }

    /// The next page of the window that is only in its slot.
    pub(crate) fn next(&mut self, space: &mut Space, window: &mut Window) -> Option<u32> {
        if let Walk::Rfc { .. } = window.walk {
            return vma_rfc::next(&mut space.mem, window);
        }
        if window.walk == Walk::File {
            let there = (window.next..window.end).find(|&p| !space.mem.at(p).has_frame());
            window.next = there.map_or(window.end, |p| p + 1);
            return there;
        }
        while window.next < window.end {
            let at = window.next;
            window.next += window.step;
            let page = match window.walk {
                Walk::Pages => Some(at),
                Walk::Slots => space.slots.owner(at),
                Walk::File | Walk::Rfc { .. } => None,
            };
            if let Some(page) = page
                && space.mem.at(page).state() == PageState::Swapped
                && self.regions.find(page).is_some()
            {
                return Some(page);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::window_size;

    #[test]
    fn windows_grow_with_hits_and_fall_by_halves() {
        assert_eq!(window_size(None, 0, 4, 8, 0), 8, "the first window of a region");
        assert_eq!(window_size(Some(7), 100, 0, 8, 8), 4);
        assert_eq!(window_size(Some(7), 100, 0, 8, 4), 2);
        assert_eq!(window_size(Some(7), 100, 0, 8, 2), 1);
        assert_eq!(window_size(Some(99), 100, 0, 8, 1), 2, "adjacent");
        assert_eq!(window_size(Some(1), 9, 2, 8, 4), 4);
        assert_eq!(window_size(Some(1), 9, 3, 8, 4), 8);
        assert_eq!(window_size(Some(1), 9, 0, 2, 32), 16, "page-cluster was lowered");
    }
}
