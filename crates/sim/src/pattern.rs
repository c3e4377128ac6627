//! Which page a task touches next.

use crate::rng::{XorShift64, Zipf};

/// An order of pages within a region.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// 0, 1, 2, ... and again.
    Sequential,
    /// Down from the last page, and again.
    Backward,
    /// Every n-th page, then again from 0.
    Stride(u32),
    /// Every page as likely as every other.
    Random,
    /// Few pages often, many seldom, spread over the region.
    Zipf(Zipf),
    /// A part at the beginning (pages) gets a share (1/10,000) of all accesses, at random within it and outside it.
    Hot {
        /// Pages of the hot part.
        pages: u32,
        /// Its share.
        share_bp: u32,
    },
}

/// A pattern at some position over a region of some size.
#[derive(Clone, Debug)]
pub struct Walk {
    pattern: Pattern,
    pages: u32,
    at: u32,
    scatter: u32,
}

/// Spreads zipf ranks over the region; any odd number coprime to the size would do.
const SCATTER: u32 = 2_654_435_761;

impl Walk {
    /// The walk from its beginning over `pages` pages, at least one.
    pub fn new(pattern: Pattern, pages: u32) -> Self {
        let pages = pages.max(1);
        let mut scatter = SCATTER % pages.max(2);
        while gcd(scatter, pages) != 1 {
            scatter = (scatter + 1) % pages.max(2);
        }
        let at = if matches!(pattern, Pattern::Backward) { pages - 1 } else { 0 };
        Self { pattern, pages, at, scatter }
    }

    /// Accesses of one lap over the region.
    pub const fn lap(&self) -> u32 {
        match self.pattern {
            Pattern::Stride(step) => self.pages.div_ceil(if step == 0 { 1 } else { step }),
            Pattern::Sequential | Pattern::Backward | Pattern::Random | Pattern::Zipf(_) | Pattern::Hot { .. } => {
                self.pages
            }
        }
    }

    /// The next page of the region.
    pub fn step(&mut self, rng: &mut XorShift64) -> u32 {
        match &self.pattern {
            Pattern::Sequential => self.advance(1),
            Pattern::Stride(step) => self.advance(*step),
            Pattern::Backward => {
                let page = self.at;
                self.at = if page == 0 { self.pages - 1 } else { page - 1 };
                page
            }
            Pattern::Random => rng.below(self.pages),
            Pattern::Zipf(zipf) => {
                let spread = u64::from(zipf.draw(rng)) * u64::from(self.scatter) % u64::from(self.pages);
                u32::try_from(spread).expect("a remainder of a u32")
            }
            Pattern::Hot { pages, share_bp } => {
                let hot = (*pages).min(self.pages);
                if hot == self.pages || (hot > 0 && rng.chance_bp(*share_bp)) {
                    rng.below(hot)
                } else {
                    hot + rng.below(self.pages - hot)
                }
            }
        }
    }

    fn advance(&mut self, by: u32) -> u32 {
        let page = self.at;
        let next = page.saturating_add(by.max(1));
        self.at = if next >= self.pages { 0 } else { next };
        page
    }
}

const fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pattern: Pattern, pages: u32, n: usize) -> Vec<u32> {
        let mut rng = XorShift64::new(3);
        let mut walk = Walk::new(pattern, pages);
        (0..n).map(|_| walk.step(&mut rng)).collect()
    }

    #[test]
    fn walks_go_where_they_say() {
        assert_eq!(take(Pattern::Sequential, 3, 5), [0, 1, 2, 0, 1]);
        assert_eq!(take(Pattern::Backward, 3, 5), [2, 1, 0, 2, 1]);
        assert_eq!(take(Pattern::Stride(2), 5, 4), [0, 2, 4, 0]);
        assert_eq!(Walk::new(Pattern::Stride(2), 5).lap(), 3);
    }

    #[test]
    fn zipf_reaches_every_page_of_the_region_once_per_rank() {
        for pages in [1u32, 2, 6, 512, 1000] {
            let walk = Walk::new(Pattern::Zipf(Zipf::new(pages, 1.0)), pages);
            let mut seen = vec![false; pages as usize];
            for rank in 0..u64::from(pages) {
                seen[usize::try_from(rank * u64::from(walk.scatter) % u64::from(pages)).expect("small")] = true;
            }
            assert!(seen.iter().all(|s| *s), "{pages} pages");
        }
    }

    #[test]
    fn the_hot_part_gets_its_share() {
        let pages = take(Pattern::Hot { pages: 100, share_bp: 9_000 }, 1000, 100_000);
        let hot = pages.iter().filter(|p| **p < 100).count();
        assert!((89_000..91_000).contains(&hot), "{hot}");
    }
}
