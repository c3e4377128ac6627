//! What tasks, the page cache and swapoff have in common: a page is charged, gets its frame, is read and is mapped.
//!
//! Joins memory, swap space, reclaim and readahead, and carries out what readahead decides. It knows of no task: whoever calls
//! decides what waits.

use crate::config::{Balance, Config};
use crate::effect::{Effect, Effects, Source};
use crate::host::Host;
use crate::memory::page::{Flight, PageState};
use crate::memory::used::Used;
use crate::readahead::regions::File;
use crate::readahead::{Readahead, Window};
use crate::reclaim::{Pageout, Reclaim};
use crate::swap::Space;
use crate::types::{Access, PageIdx, PageRange, SlotIdx};
use crate::vmstat::Counter;

/// Effects that one step of a task may need.
pub(crate) const STEP_ROOM: usize = 8;

/// Everything below the tasks.
#[derive(Debug)]
pub(crate) struct Paging {
    pub(crate) cfg: Config,
    pub(crate) host: Host,
    pub(crate) space: Space,
    pub(crate) reclaim: Reclaim,
    pub(crate) readahead: Readahead,
}

impl Paging {
    pub(crate) fn new(config: &Config) -> Self {
        let host = Host::of(config);
        Self {
            space: Space::new(config, &host),
            reclaim: Reclaim::new(config, host),
            readahead: Readahead::new(config, host),
            cfg: config.clone(),
            host,
        }
    }

    // Charge and frames.

    /// Charge one page if that is possible without reclaim.
    #[inline]
    pub(crate) fn try_charge(&mut self) -> bool {
        let enough = self.space.mem.budget.try_charge();
        if !enough {
            self.space.mem.budget.missed();
        }
        if self.space.mem.budget.is_low() {
            self.wake_kswapd();
        }
        enough
    }

    /// Return the charge for a page that was not taken after all.
    #[inline]
    pub(crate) fn uncharge_unused(&mut self) {
        self.space.mem.uncharge(1);
    }

    pub(crate) fn wake_kswapd(&mut self) {
        self.reclaim.wake_kswapd(&mut self.space);
    }

    /// A page enters its list for the first time.
    #[inline]
    pub(crate) fn add_to_list(&mut self, p: u32) {
        let page = self.space.mem.at(p);
        self.reclaim.note_arrival();
        self.reclaim.note_scanned(usize::from(page.is_file()), 1, u32::from(page.is_active()));
        self.space.mem.add_to_list(p);
    }

    /// A charged, new anonymous page, put on its list.
    #[inline]
    pub(crate) fn new_page(&mut self, p: u32) {
        self.space.mem.begin_zero_page(p, self.cfg.anon_active);
        self.add_to_list(p);
    }

    /// A charged page of a file, to be read or overwritten, put on its list.
    pub(crate) fn new_file_page(&mut self, p: u32, file: &File, is_read: bool, marker: bool) {
        let shadow = self.space.mem.begin_file_page(p, file.spec.executable);
        // What is overwritten whole is no refault.
        if let Some(shadow) = shadow.filter(|_| is_read) {
            self.reclaim.refault(&mut self.space, p, shadow, true);
        }
        if marker {
            self.space.mem.mark_readahead(p);
        }
        self.add_to_list(p);
    }

    #[inline]
    pub(crate) fn pageout(&mut self, p: u32, out: &mut Effects) -> Pageout {
        self.reclaim.pageout(&mut self.space, p, out)
    }

    // Reads.

    /// Read a charged page from its slot into the swap cache.
    pub(crate) fn read_page(&mut self, p: u32, demand: bool, out: &mut Effects) {
        let space = &mut self.space;
        if let Some(shadow) = space.mem.begin_swap_in(p) {
            self.reclaim.refault(space, p, shadow, demand);
        } else if self.cfg.balance == Balance::LruCost2016 {
            self.reclaim.note_cost(&space.mem, 0, 1, 0);
        }
        if demand {
            space.mem.count(Counter::pt_demand_read, 1);
        } else {
            space.mem.mark_readahead(p);
            space.mem.count(Counter::swap_ra, 1);
        }
        if self.cfg.swapin_active {
            space.mem.start_active(p);
        }
        self.add_to_list(p);
        let space = &mut self.space;
        space.mem.begin_read(p);
        space.mem.count(Counter::pswpin, 1);
        let slot = space.mem.slot(p).expect("I4: a swapped page has a slot");
        let (device, place) = space.slots.locate(slot);
        space.io.read(p, device, place, demand, out);
    }

    /// Read a charged page of a file into the page cache.
    pub(crate) fn read_file_page(&mut self, p: u32, file: &File, marker: bool, demand: bool, out: &mut Effects) {
        self.new_file_page(p, file, true, marker);
        self.space.mem.begin_file_read(p);
        self.space.mem.count(Counter::pgpgin, 4);
        self.space.io.read(p, file.device, SlotIdx(p - file.base), demand, out);
    }

    #[inline]
    pub(crate) fn window(&mut self, p: u32) -> Window {
        self.readahead.window(&mut self.space, p)
    }

    /// The window of a page that swapoff is to bring in.
    pub(crate) fn swapoff_window(&mut self, p: u32, most: u32) -> Window {
        self.readahead.swapoff_window(&mut self.space, p, most)
    }

    /// The next page of the window that is only in its slot.
    #[inline]
    pub(crate) fn window_next(&mut self, window: &mut Window) -> Option<u32> {
        self.readahead.next(&mut self.space, window)
    }

    /// Read a page that is only in its slot, if a frame is free. False: no more can be read now.
    fn read_ahead(&mut self, q: u32, out: &mut Effects) -> bool {
        if self.space.mem.at(q).state() != PageState::Swapped {
            return true;
        }
        if out.room() < STEP_ROOM || self.space.io.is_full() || !self.try_charge() {
            return false;
        }
        self.read_page(q, false, out);
        true
    }

    /// A fault found its page in the swap cache.
    pub(crate) fn swap_cache_hit(&mut self, p: u32, out: &mut Effects) {
        let Some(mut window) = self.readahead.swap_cache_hit(&mut self.space, p) else {
            return;
        };
        while out.room() >= STEP_ROOM && !self.space.io.is_full() && self.try_charge() {
            let Some(q) = self.window_next(&mut window) else {
                self.uncharge_unused();
                return;
            };
            self.read_page(q, false, out);
        }
    }

    /// The marker of a window was touched: the next window of its stream is due.
    pub(crate) fn marker_touched(&mut self, p: u32, out: &mut Effects) {
        let Some(ahead) = self.readahead.marker_touched(&mut self.space.mem, p) else {
            return;
        };
        let (mut reached, mut marker) = (0, None);
        for i in 0..ahead.len() {
            let q = ahead.page(i);
            if !self.read_ahead(q, out) {
                break;
            }
            reached = i + 1;
            if marker.is_none() && self.space.mem.at(q).flight() == Flight::Reading {
                marker = Some(q);
                self.space.mem.mark_marker(q);
            }
        }
        self.readahead.window_read(&ahead, reached, marker);
    }

    /// A page that was read has arrived.
    #[inline]
    pub(crate) fn read_arrived(&mut self, p: u32, out: &mut Effects) {
        let page = self.space.mem.at(p);
        if !page.has_frame() || page.is_discarded() || out.room() < 2 {
            return;
        }
        if self.readahead.is_mapped_on_arrival(&self.space.mem, p) {
            self.map_ahead(p, Access::Read, out);
            if !self.host.answers_moves {
                self.credit(p);
            }
        }
    }

    #[inline]
    pub(crate) fn credit(&mut self, p: u32) {
        self.readahead.credit(&mut self.space.mem, p);
    }

    // Maps.

    /// Order the map of a page whose frame the host holds. It is in flight if the host answers moves, or mapped.
    #[inline]
    pub(crate) fn map_frame(&mut self, p: u32, access: Access, out: &mut Effects) {
        out.push_merged(Effect::Map { range: PageRange::one(PageIdx(p)), source: Source::Frame, access });
        self.begin_map(p, access);
    }

    #[inline]
    fn begin_map(&mut self, p: u32, access: Access) {
        if self.host.answers_moves {
            self.space.mem.begin_map(p, access);
        } else {
            self.space.map(p);
        }
    }

    /// Order the map of a new page of zeroes.
    #[inline]
    pub(crate) fn map_zero(&mut self, p: u32, access: Access, out: &mut Effects) {
        out.push_merged(Effect::Map { range: PageRange::one(PageIdx(p)), source: Source::Zero, access });
        self.begin_map(p, access);
        if !self.host.answers_moves {
            self.space.mem.mark_used(p, Access::Read);
        }
    }

    /// Map a cached page that nobody asked for. Its slot is kept.
    pub(crate) fn map_ahead(&mut self, p: u32, access: Access, out: &mut Effects) {
        let page = self.space.mem.at(p);
        if !page.is_cached() || page.is_discarded() || page.in_flight() {
            return;
        }
        self.map_frame(p, access, out);
        self.space.mem.count(Counter::pt_map_ahead, 1);
    }

    /// A soft fault at `p`: if it continues a stream, what is cached ahead of it is mapped, too.
    #[inline]
    pub(crate) fn soft_ahead(&mut self, p: u32, access: Access, out: &mut Effects) {
        let Some(ahead) = self.readahead.soft_ahead(&self.space.mem, p) else {
            return;
        };
        for i in 1..ahead.len() {
            let q = ahead.page(i);
            let page = self.space.mem.at(q);
            if out.room() < STEP_ROOM || page.is_marker() {
                break;
            }
            self.map_ahead(q, access, out);
        }
    }

    /// A soft fault at `p`, which was watched: what its use proves to be in use is mapped, too.
    pub(crate) fn neighbours_ahead(&mut self, p: u32, access: Access, out: &mut Effects) {
        for q in Used::group(p).filter(|&q| q != p) {
            if q < self.space.mem.len() && out.room() >= STEP_ROOM && self.reclaim.is_used_with(&mut self.space.mem, q)
            {
                self.map_ahead(q, access, out);
            }
        }
    }

    /// A first touch at `p`: if it goes on with what is mapped beside it, zero pages are mapped with it.
    #[inline]
    pub(crate) fn zero_ahead(&mut self, p: u32, out: &mut Effects) {
        let Some(beside) = self.readahead.zero_ahead(&self.space.mem, p) else {
            return;
        };
        for q in beside {
            if !self.space.mem.at(q).is_blank() || out.room() < STEP_ROOM || !self.try_charge() {
                break;
            }
            self.new_page(q);
            self.map_zero(q, Access::Write, out);
            self.space.mem.count(Counter::pt_zero_ahead, 1);
        }
    }

    /// True if a region holds the page.
    #[inline]
    pub(crate) fn is_managed(&mut self, p: u32) -> bool {
        self.readahead.regions.find(p).is_some()
    }
}
