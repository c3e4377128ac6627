//! Paging out by order: memory leaves although the budget has room for it.
//!
//! While the order lasts, the budget is what will be left. It ends when that is reached, or when for [`STUCK_NS`] no more has left:
//! what is in use comes back as fast, or what is there cannot leave. Then the budget is what it was, and what the program touches stays again.

use pagetide_core::types::Nanos;

use crate::setup::BUDGET_PAGES_MIN;

/// How long none may leave until it is over.
const STUCK_NS: Nanos = 2_000_000_000;

/// An order that is being carried out.
#[derive(Debug)]
pub(super) struct PageOut {
    left_pages: u32,
    /// The least that was charged since it began, and when that was.
    least_pages: u32,
    since: Nanos,
}

impl PageOut {
    /// Of what is charged, so many pages are to leave.
    pub(super) fn new(charged: u32, pages: u32, now: Nanos) -> Self {
        let floor = u32::try_from(BUDGET_PAGES_MIN).expect("a small constant");
        Self { left_pages: charged.saturating_sub(pages).max(floor), least_pages: charged, since: now }
    }

    /// What may be charged while it lasts.
    pub(super) const fn left_pages(&self) -> u32 {
        self.left_pages
    }

    /// So much is charged now: is it over?
    pub(super) const fn ends(&mut self, charged: u32, now: Nanos) -> bool {
        if charged < self.least_pages {
            (self.least_pages, self.since) = (charged, now);
        }
        charged <= self.left_pages || now >= self.since + STUCK_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_the_pages_have_left_or_no_more_do() {
        let mut order = PageOut::new(10_000, 4_000, 0);
        assert_eq!(order.left_pages(), 6_000);
        assert!(!order.ends(10_000, STUCK_NS - 1) && !order.ends(8_000, STUCK_NS));
        assert!(!order.ends(9_000, 2 * STUCK_NS - 1), "some had left since it began");
        assert!(order.ends(9_000, 2 * STUCK_NS), "none has left for long");
        assert!(PageOut::new(10_000, 4_000, 0).ends(6_000, 1));
    }

    #[test]
    fn what_every_process_needs_stays() {
        assert_eq!(u64::from(PageOut::new(10_000, u32::MAX, 0).left_pages()), BUDGET_PAGES_MIN);
    }
}
