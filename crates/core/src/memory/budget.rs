//! The charge against the budget, and the watermarks below it.
//!
//! What is free holds nothing, so our own profile keeps no more free than is asked for: the watermarks go down while everybody finds a
//! frame, and up when somebody does not: streams, which ask for a window at a time, find more than faults that read one page. A memcg limit has no watermarks; it is charged in batches, of which the unused rest is the *stock*. Who waits for a frame is
//! counted here, so that a freed one is told to somebody only if there is somebody.

use crate::config::{Config, HostKind, MemoryMode, Readahead, Sample};

/// The watermarks go up by so much of their distance when a frame is missed, and down by so much when none was for a while.
const RAISE_SHARE: u32 = 4;
const LOWER_SHARE: u32 = 16;
/// The least distance of those that go down: enough for one thread's faults while a write is under way. Streams ask for more.
const STEP_LEAST: u32 = 16;
/// Where many pages are waited for, each for itself, one part in so many of what a stream may find.
const DEMANDED_SHARE: u32 = 5;

#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) budget: u32,
    /// Frames in use, stock included.
    pub(crate) charged: u32,
    pub(crate) stock: u32,
    pub(crate) min: u32,
    pub(crate) low: u32,
    pub(crate) high: u32,
    /// Frames kept free above `min` whatever is asked for.
    reserve: u32,
    /// From one watermark to the next; the least and the most that it may be.
    step: u32,
    step_least: u32,
    step_most: u32,
    /// The most where many pages are waited for, each for itself.
    step_demanded: u32,
    /// They are.
    is_demanded: bool,
    /// Somebody has found no frame since the watermarks were to be lowered last.
    is_missed: bool,
    /// Pages charged at a time; 0 for a limit with watermarks.
    batch: u32,
    /// Jobs that wait for a frame.
    waiting: u32,
    /// Memory was freed, or a write ended: the oldest job that waits for memory may try again.
    kick: bool,
}

impl Budget {
    pub(crate) fn new(config: &Config) -> Self {
        let mut budget = Self {
            budget: 0,
            charged: 0,
            stock: 0,
            min: 0,
            low: 0,
            high: 0,
            reserve: config.reserve,
            // Nobody knows yet what will be asked for.
            step: u32::MAX,
            step_least: 0,
            step_most: 0,
            step_demanded: 0,
            is_demanded: false,
            is_missed: false,
            batch: 0,
            waiting: 0,
            kick: false,
        };
        budget.set(config, config.budget);
        budget
    }

    pub(crate) fn set(&mut self, config: &Config, pages: u32) {
        self.budget = pages;
        self.min = config.min_free.min(pages / 2);
        let share = u64::from(pages) * u64::from(config.watermark_scale) / 10_000;
        // A stream's next window is to find free frames.
        let window = if config.readahead == Readahead::Stream { config.readahead_max.min(pages / 16) } else { 0 };
        let least = (self.min / 4).max(window);
        let share = u32::try_from(share).expect("at most 30 % of a u32");
        self.step_most = least.max(share).min(pages / 4);
        let adapts = config.host == HostKind::Blind && config.sample == Sample::Watch;
        self.step_least = if adapts { STEP_LEAST.min(self.step_most) } else { self.step_most };
        let demanded = least.max(share / DEMANDED_SHARE).max(self.step_least);
        self.step_demanded = if adapts { demanded.min(self.step_most) } else { self.step_most };
        self.set_step(self.step);
        if matches!(config.memory, MemoryMode::Memcg { .. }) {
            (self.min, self.low, self.high) = (0, 0, 0);
            (self.step_least, self.step_most, self.step_demanded) = (self.step, self.step, self.step);
            self.batch = config.charge_batch.max(1);
        }
    }

    fn set_step(&mut self, step: u32) {
        let most = if self.is_demanded { self.step_demanded } else { self.step_most };
        self.step = step.clamp(self.step_least, most);
        self.low = self.min + self.step + self.reserve;
        self.high = self.low + self.step;
    }

    /// Somebody found no frame.
    pub(crate) fn missed(&mut self) {
        self.is_missed = true;
        if self.step < self.step_most {
            self.set_step(self.step + self.step / RAISE_SHARE + 1);
        }
    }

    /// It is time to lower the watermarks, if nobody has missed a frame since the last time. `is_demanded`: since then many pages were
    /// waited for, each for itself.
    pub(crate) fn lower_watermarks(&mut self, is_demanded: bool) {
        self.is_demanded = is_demanded;
        let is_missed = core::mem::take(&mut self.is_missed);
        let less = if is_missed || self.step <= self.step_least { 0 } else { self.step.div_ceil(LOWER_SHARE) };
        self.set_step(self.step - less);
    }

    /// Charge one page if that is possible without reclaim.
    #[inline]
    pub(crate) const fn try_charge(&mut self) -> bool {
        if self.batch == 0 {
            let enough = self.free() > self.min;
            self.charged += enough as u32;
            return enough;
        }
        if self.stock > 0 {
            self.stock -= 1;
            return true;
        }
        let free = self.free();
        let n = if self.batch <= free {
            self.batch
        } else if free > 0 {
            1
        } else {
            0
        };
        self.charged += n;
        self.stock += n.saturating_sub(1);
        n > 0
    }

    /// Charge one page beyond all limits: of a page that exists, or while memory is held.
    #[inline]
    pub(crate) const fn force_charge(&mut self) {
        self.charged += 1;
    }

    #[inline]
    pub(crate) fn uncharge(&mut self, n: u32) {
        assert!(self.charged >= n, "I3: uncharged more than was charged");
        self.charged -= n;
        self.freed();
    }

    /// The unused rest of a batch. True if there was one.
    #[inline]
    pub(crate) const fn return_stock(&mut self) -> bool {
        let had = self.stock > 0;
        self.charged -= self.stock;
        self.stock = 0;
        had
    }

    /// More is charged than the budget allows (it was cut, or pages were adopted).
    #[inline]
    pub(crate) const fn is_exceeded(&self) -> bool {
        self.charged > self.budget
    }

    /// Free frames are at the low watermark.
    #[inline]
    pub(crate) const fn is_low(&self) -> bool {
        self.free() <= self.low
    }

    /// Something was freed, or may be: the oldest job that waits for a frame may try again.
    #[inline]
    pub(crate) const fn freed(&mut self) {
        self.kick = self.waiting > 0;
    }

    /// A job begins to wait for a frame.
    #[inline]
    pub(crate) const fn begin_wait(&mut self) {
        self.waiting += 1;
    }

    /// It goes on.
    #[inline]
    pub(crate) const fn end_wait(&mut self) {
        self.waiting -= 1;
    }

    /// It went on and found nothing: the next waits for the next frame.
    #[inline]
    pub(crate) const fn found_nothing(&mut self) {
        self.kick = false;
    }

    #[inline]
    pub(crate) const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Somebody waits, and may try again.
    #[inline]
    pub(crate) const fn may_retry(&self) -> bool {
        self.kick && self.waiting > 0
    }

    /// Something was freed since the last try.
    #[inline]
    pub(crate) const fn is_kicked(&self) -> bool {
        self.kick
    }

    #[inline]
    pub(crate) const fn free(&self) -> u32 {
        self.budget.saturating_sub(self.charged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostKind;

    #[test]
    fn watermarks_follow_the_kernels_formula() {
        let mut config = Config::profile("linux-6.18", HostKind::Exact).expect("a profile");
        config = config.memory(MemoryMode::Watermarks, 1, 12_000_000).min_free(12_880);
        let budget = Budget::new(&config);
        // 0.1 % of the zone is 12,000; a quarter of min is less.
        assert_eq!((budget.min, budget.low, budget.high), (12_880, 24_880, 36_880));
    }

    #[test]
    fn a_reserve_lies_between_min_and_low() {
        let mut config = Config::profile("linux-3.10", HostKind::Exact).expect("a profile");
        config = config.memory(MemoryMode::Watermarks, 1, 100_000).min_free(4_000).reserve(20_000);
        let budget = Budget::new(&config);
        assert_eq!((budget.min, budget.low, budget.high), (4_000, 25_000, 26_000));
    }

    #[test]
    fn our_watermarks_go_down_while_all_find_a_frame_and_up_when_one_is_missed() {
        let config = Config::profile("pagetide", HostKind::Blind).expect("a profile");
        let config = config.memory(MemoryMode::Watermarks, 1, 32_768);
        let mut budget = Budget::new(&config);
        assert_eq!((budget.low, budget.high), (327, 654), "one in a hundred at first");
        (0..100).for_each(|_| budget.lower_watermarks(false));
        assert_eq!((budget.low, budget.high), (16, 32));
        budget.missed();
        budget.lower_watermarks(false);
        assert_eq!(budget.low, 21, "it was missed just now");
        budget.set(&config, 32_000);
        assert_eq!(budget.low, 21, "another budget is no reason to begin again");
        (0..20).for_each(|_| budget.missed());
        assert_eq!(budget.low, 320);
        budget.lower_watermarks(true);
        (0..20).for_each(|_| budget.missed());
        assert_eq!(budget.low, 64, "pages that are waited for singly need few free frames");
    }
}
