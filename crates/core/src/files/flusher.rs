//! The flusher: writes dirty pages back, in the order of the files.

use super::Files;
use crate::effect::{Effect, Effects};
use crate::memory::Memory;
use crate::paging::{Paging, STEP_ROOM};
use crate::types::{DeviceId, PageIdx, PageRange, SlotIdx};
use crate::vmstat::Counter;

/// Pages the flusher looks at in one event, and has under write at most where queues have no end.
const FLUSH_LOOKS: u32 = 8192;
const FLUSH_PAGES: u32 = 1024;

impl Files {
    /// The host asks for write-back: what was dirtied through mappings, too, which nobody has counted.
    pub(crate) fn write_back(&mut self, mem: &mut Memory) {
        if mem.writeback.left == 0 {
            self.flusher_at = (0, 0);
            mem.writeback.left = mem.len();
        }
    }

    /// The flusher has something to do, and room for it in the disk's queue.
    #[inline]
    pub(crate) const fn is_flusher_runnable(&self, mem: &Memory) -> bool {
        let queue = if self.cfg.write_queue > 0 { self.cfg.queue_share(mem.leaving()) } else { FLUSH_PAGES };
        mem.writeback.left > 0 && mem.writeback.writing < queue
    }

    /// Let the flusher write dirty pages, in the order of the files.
    pub(crate) fn run_flusher(&mut self, paging: &mut Paging, out: &mut Effects) {
        let mut looks = 0;
        while self.is_flusher_runnable(&paging.space.mem)
            && out.room() >= STEP_ROOM
            && looks < FLUSH_LOOKS
            && !paging.space.io.is_full()
        {
            let regions = &paging.readahead.regions;
            let writeback = &mut paging.space.mem.writeback;
            if self.flusher_at.0 >= regions.len() {
                self.flusher_at = (0, 0);
                writeback.left /= 2;
                if regions.len() == 0 || writeback.dirty == 0 {
                    writeback.left = 0;
                    return;
                }
            }
            let region = regions.get(self.flusher_at.0);
            let p = self.flusher_at.1.max(region.start);
            looks += 1;
            let Some(file) = region.file.as_ref().filter(|_| p < region.end) else {
                self.flusher_at = (self.flusher_at.0 + 1, 0);
                continue;
            };
            writeback.left -= 1;
            self.flusher_at.1 = p + 1;
            let page = paging.space.mem.at(p);
            if page.is_dirty() && page.has_frame() && page.is_file() && !page.in_flight() {
                let (device, place) = (file.device, SlotIdx(p - file.base));
                write(paging, p, device, place, out);
            }
        }
    }
}

fn write(paging: &mut Paging, p: u32, device: DeviceId, place: SlotIdx, out: &mut Effects) {
    if paging.space.mem.at(p).is_mapped() {
        // The next store is to be seen: it faults.
        paging.space.unmap(p);
        out.push_merged(Effect::Unmap { range: PageRange::one(PageIdx(p)) });
    }
    paging.space.mem.begin_writeback(p);
    paging.space.mem.count(Counter::pgpgout, 4);
    paging.space.io.write(p, device, place, out);
}
