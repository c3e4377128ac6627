//! What a process is told of memory that stays native, where it matters: once for each reason.

use std::sync::atomic::Ordering;

use pagetide_sys::thread;

use super::{Agent, say};
use crate::pager::Pager;
use crate::space::Why;

impl Agent {
    /// Mappings, by their addresses.
    pub(super) fn tell_of_native(&mut self, pager: &Pager) {
        let quarter = self.quarter();
        let reasons = [
            (Why::NoIndices, 1, "lie beyond the 64 GiB of addresses that can be managed"),
            (Why::Refused, 1, "belong to another userfaultfd"),
            (Why::ReadOnly, quarter, "may not be written"),
            (Why::Executable, quarter, "may be executed, and not written"),
            (Why::Stack, quarter, "are the stack of the first thread"),
        ];
        for (why, least, text) in reasons {
            let pages = pager.census().pages(why);
            if pages >= least && self.is_first(why) {
                let (pid, mib) = (thread::getpid(), pages.div_ceil(256));
                say(&self.supervisor, format_args!("process {pid}: {mib} MiB of addresses {text}: counted, not paged"));
            }
        }
    }

    /// Files' pages, of which only those that were written count: how many they are is known once all have been looked at.
    pub(super) fn tell_of_written_files(&mut self, pager: &Pager) {
        let pages = Why::PrivateFile.unpaged().map_or(0, |reason| pager.unpaged().pages()[reason]);
        if pages >= self.quarter() && self.is_first(Why::PrivateFile) {
            let (pid, mib) = (thread::getpid(), pages.div_ceil(256));
            let text = "MiB of private file mappings were written: counted, not paged";
            say(&self.supervisor, format_args!("process {pid}: {mib} {text}"));
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
