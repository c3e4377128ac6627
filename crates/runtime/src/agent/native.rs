//! What a process is told of memory that stays native, where it matters: once for each reason.

use std::sync::atomic::Ordering;

use pagetide_sys::thread;

use super::{Agent, say};
use crate::pager::Pager;
use crate::space::Why;

impl Agent {
    /// Mappings that cannot come under management, by their addresses.
    pub(super) fn tell_of_native(&mut self, pager: &Pager) {
        let reasons = [
            (Why::NoIndices, "of addresses lie beyond the 64 GiB of addresses that can be managed"),
            (Why::Refused, "of addresses belong to another userfaultfd"),
        ];
        for (why, text) in reasons {
            self.tell_of(why, pager.census().pages(why), 1, text);
        }
    }

    /// Mappings of which only pages with memory count: how many they are is known once all have been looked at.
    pub(super) fn tell_of_unpaged(&mut self, pager: &Pager) {
        let quarter = self.quarter();
        let reasons = [
            (Why::PrivateFile, "of private file mappings were written"),
            (Why::ReadOnly, "may not be written"),
            (Why::Executable, "may be executed, and not written"),
            (Why::Stack, "are the stack of the first thread"),
        ];
        for (why, text) in reasons {
            let pages = why.unpaged().map_or(0, |reason| pager.unpaged().pages()[reason]);
            self.tell_of(why, pages, quarter, text);
        }
    }

    fn tell_of(&mut self, why: Why, pages: u64, least: u64, text: &str) {
        if pages >= least && self.is_first(why) {
            let (pid, mib) = (thread::getpid(), pages.div_ceil(256));
            say(&self.supervisor, format_args!("process {pid}: {mib} MiB {text}: counted, not paged"));
        }
    }

    /// A quarter of the budget, in pages.
    fn quarter(&self) -> u64 {
        (self.entry().budget_pages.load(Ordering::Relaxed) / 4).max(1)
    }

    /// True if this reason was not told of before.
    const fn is_first(&mut self, why: Why) -> bool {
        let bit = 1 << (why as u32);
        let is_first = self.native_told & bit == 0;
        self.native_told |= bit;
        is_first
    }
}
