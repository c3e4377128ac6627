//! A parallel device: several reads at once, and writes behind their backs.
//!
//! A write goes into the device's own memory and from there to the medium. While that memory has room, the write is done for
//! its caller, and reads never wait for writes. When it is full, a write is done when what is before it has made room, a
//! read waits for the one program in its way, or now and then for an erase, and of the medium's time reads get two parts and
//! writes one. Reads and writes share the medium: what a read takes of it delays the writes that come later, so reads that nobody
//! needs cost writes.

use pagetide_core::types::Nanos;

use crate::device::DeviceParams;
use crate::rng::XorShift64;

/// Pages that one place of the medium gives at once (two planes of 16 KiB); they leave over its channel one by one. Longer
/// requests lie in several places.
const PLACE_PAGES: u32 = 8;
/// Pages of a flash page: neighbours beyond it lie elsewhere, and may meet an erase of their own.
const FLASH_PAGE_PAGES: u32 = 4;
/// Parts of the medium's time that reads get for one of the writes, when both wait: as the deadline elevator's `writes_starved`.
const READ_PARTS: u64 = 2;

/// When channels and medium are free.
#[derive(Debug)]
pub(super) struct Parallel {
    channel_free_at: Vec<Nanos>,
    /// All pages of the reads that have begun are with the caller.
    reads_until: Nanos,
    /// The medium has done all that it was asked for.
    medium_until: Nanos,
    /// It has all that was written.
    drained_at: Nanos,
}

impl Parallel {
    pub(super) fn new(channels: u32) -> Self {
        Self { channel_free_at: vec![0; channels.max(1) as usize], reads_until: 0, medium_until: 0, drained_at: 0 }
    }

    /// A write of so many pages; `base_ns` is its time on an idle device. When it ends.
    pub(super) fn write(&mut self, params: &DeviceParams, now: Nanos, pages: u32, base_ns: Nanos) -> Nanos {
        self.medium_until = self.medium_until.max(now) + u64::from(pages) * params.write_page_ns;
        self.drained_at = self.medium_until;
        self.drained_at.saturating_sub(room_ns(params)).max(now) + base_ns
    }

    /// A read of so many pages; `base_ns` is the time before its first page on an idle device. When it ends.
    pub(super) fn read(
        &mut self,
        params: &DeviceParams,
        now: Nanos,
        pages: u32,
        base_ns: Nanos,
        rng: &mut XorShift64,
    ) -> Nanos {
        let channel = (0..self.channel_free_at.len()).min_by_key(|c| self.channel_free_at[*c]).unwrap_or(0);
        let begins_at = now.max(self.channel_free_at[channel]);
        let is_full = self.drained_at > begins_at + room_ns(params);
        let busy_ns = if is_full { busy_ns(params, pages, rng) } else { 0 };
        let leaves_ns = u64::from(pages.min(PLACE_PAGES)) * params.channel_page_ns;
        let ready_at = begins_at + busy_ns + base_ns + leaves_ns;
        let medium_ns = u64::from(pages) * params.read_page_ns;
        let passing_ns = if is_full { medium_ns + medium_ns / READ_PARTS } else { medium_ns };
        let ends_at = self.reads_until.max(ready_at) + passing_ns;
        self.reads_until = ends_at;
        self.channel_free_at[channel] = ends_at;
        self.medium_until = self.medium_until.max(now) + medium_ns;
        if self.drained_at > now {
            self.drained_at += medium_ns;
        }
        ends_at
    }
}

/// How long a read of so many pages waits for its places while the device writes: for the last of them.
fn busy_ns(params: &DeviceParams, pages: u32, rng: &mut XorShift64) -> Nanos {
    let mut up_to = |most: Nanos| match u32::try_from(most) {
        Ok(most @ 1..) => u64::from(rng.below(most)),
        Ok(0) | Err(_) => 0,
    };
    let mut busy_ns = up_to(params.program_ns);
    if params.erase_share_bp > 0 {
        for _ in 0..pages.div_ceil(FLASH_PAGE_PAGES) {
            if up_to(10_000) < u64::from(params.erase_share_bp) {
                busy_ns = busy_ns.max(up_to(params.erase_ns));
            }
        }
    }
    busy_ns
}

/// The medium's time for what the device's memory holds.
const fn room_ns(params: &DeviceParams) -> Nanos {
    params.buffer_pages as Nanos * params.write_page_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::preset;

    const IDLE_READ_NS: Nanos = 75_000 + 5_000 + 1_600;

    fn nvme() -> DeviceParams {
        preset("nvme").expect("a preset").params.clone()
    }

    /// A device that was asked to write so many pages, and what reads draw from.
    fn written(params: &DeviceParams, pages: u32) -> (Parallel, XorShift64) {
        let mut device = Parallel::new(params.channels);
        device.write(params, 0, pages, params.write_ns);
        (device, XorShift64::new(1))
    }

    #[test]
    fn writes_that_fit_into_the_memory_are_done_at_once_and_delay_no_read() {
        let params = nvme();
        let (mut device, mut rng) = written(&params, params.buffer_pages - 1);
        assert_eq!(device.read(&params, 0, 1, params.read_ns, &mut rng), IDLE_READ_NS);
        assert_eq!(device.write(&params, 0, 1, params.write_ns), params.write_ns + params.read_page_ns);
    }

    /// Thousands of pages that kswapd has sent are worth one program to a read.
    #[test]
    fn reads_overtake_writes_that_wait() {
        let params = nvme();
        let (mut device, mut rng) = written(&params, 3 * params.buffer_pages);
        let worst = (0..30).map(|_| device.read(&params, 0, 1, params.read_ns, &mut rng)).max();
        let least = IDLE_READ_NS + params.program_ns / 2;
        let most = IDLE_READ_NS + params.program_ns + 30 * 2 * params.read_page_ns;
        assert!(worst.is_some_and(|ns| (least..most).contains(&ns)), "{worst:?} ns");
        let written_ns = u64::from(2 * params.buffer_pages) * params.write_page_ns;
        assert!(device.write(&params, 0, 1, params.write_ns) > written_ns, "the writes still take their time");
    }

    /// One flash page of forty is being erased: of reads that have two of them, twice as many wait for that.
    #[test]
    fn longer_reads_meet_more_erases() {
        let params = DeviceParams { erase_share_bp: 250, erase_ns: 10_000_000, ..nvme() };
        let slow = |pages: u32, written_pages: u32| {
            let late_ns = IDLE_READ_NS + params.program_ns + 8 * (params.channel_page_ns + 2 * params.read_page_ns);
            let mut rng = XorShift64::new(1);
            let mut took = || written(&params, written_pages).0.read(&params, 0, pages, params.read_ns, &mut rng);
            (0..10_000).filter(|_| took() > late_ns).count()
        };
        let full = 3 * params.buffer_pages;
        assert_eq!(slow(8, 0), 0, "nothing is being written");
        let (short, long) = (slow(4, full), slow(8, full));
        assert!((200..260).contains(&short) && (400..520).contains(&long), "{short} and {long} of 10,000");
    }

    /// Reads of 1 MiB, as many as there are channels, and one writer that waits for each of its requests.
    #[test]
    fn writes_are_not_starved_for_ever() {
        let params = nvme();
        let (mut device, mut rng) = written(&params, params.buffer_pages);
        let mut reads = vec![0; params.channels as usize];
        let mut now = 0;
        for nr in 1..=1_000 {
            now = device.write(&params, now, 64, params.write_ns);
            for at in &mut reads {
                while *at <= now {
                    *at = device.read(&params, *at, 256, params.read_ns, &mut rng);
                }
            }
            // A third of the time is theirs, but for the reads that are there first.
            let alone_ns = nr * 64 * params.write_page_ns;
            assert!(now < 3 * alone_ns + 200_000_000, "write {nr} ends after {now} ns, alone after {alone_ns}");
        }
    }

    #[test]
    fn reads_that_nobody_needs_cost_writes() {
        let params = nvme();
        let ends = |pages: u32| {
            let (mut device, mut rng) = written(&params, params.buffer_pages);
            for nr in 0..1_000 {
                device.read(&params, nr * 100_000, pages, params.read_ns, &mut rng);
                device.write(&params, nr * 100_000, 32, params.write_ns);
            }
            device.write(&params, 100_000_000, 1, params.write_ns)
        };
        let more_ns = 1_000 * 7 * params.read_page_ns;
        assert_eq!(ends(8) - ends(1), more_ns);
    }
}
