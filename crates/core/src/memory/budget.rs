//! The charge against the budget, and the watermarks below it.
//!
//! A memcg limit has no watermarks; it is charged in batches, of which the unused rest is the *stock*.

use crate::config::{Config, MemoryMode, Readahead};

#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) budget: u32,
    /// Frames in use, stock included.
    pub(crate) charged: u32,
    pub(crate) stock: u32,
    pub(crate) min: u32,
    pub(crate) low: u32,
    pub(crate) high: u32,
}

impl Budget {
    pub(crate) fn new(config: &Config) -> Self {
        let mut budget = Self { budget: 0, charged: 0, stock: 0, min: 0, low: 0, high: 0 };
        budget.set(config, config.budget);
        budget
    }

    pub(crate) fn set(&mut self, config: &Config, pages: u32) {
        self.budget = pages;
        self.min = config.min_free.min(pages / 2);
        let share = u64::from(pages) * u64::from(config.watermark_scale) / 10_000;
        // A stream's next window is to find free frames.
        let window = if config.readahead == Readahead::Stream { config.readahead_max.min(pages / 16) } else { 0 };
        let step = (self.min / 4).max(window).max(u32::try_from(share).expect("at most 30 % of a u32")).min(pages / 4);
        self.low = self.min + step + config.reserve;
        self.high = self.low + step;
        if matches!(config.memory, MemoryMode::Memcg { .. }) {
            (self.min, self.low, self.high) = (0, 0, 0);
        }
    }

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
}
