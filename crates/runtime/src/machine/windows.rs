//! Windows of readahead, for those who draw them: each from when it was ordered to when its last page was there.
//!
//! A window is what the core orders in one piece beyond the page that a fault waits for; one that lies apart on the device is several.

use pagetide_core::types::{IoId, Nanos};

use super::LiveMachine;
use crate::spans::{Span, SpanKind};
use pagetide_kernel::AddressSpace;

/// Windows under way that are noted at most; further ones are not drawn, and counted.
const WINDOWS_MAX: usize = 256;

/// One that is under way.
#[derive(Debug)]
pub(super) struct Window {
    io: IoId,
    begun: Nanos,
    pages: u32,
    left: u32,
}

impl<K: AddressSpace> LiveMachine<K> {
    /// Pages are ordered to be read. Nothing, unless requests are noted.
    pub(super) fn window_begins(&mut self, io: IoId, pages: u32, demand: bool) {
        if self.request_spans.capacity() == 0 || (demand && pages == 1) {
            return;
        }
        if self.windows.len() == WINDOWS_MAX {
            self.request_spans_lost += 1;
            return;
        }
        let begun = self.space.now();
        self.windows.push(Window { io, begun, pages, left: pages });
    }

    /// One of the pages is there, or cannot be read.
    pub(super) fn window_goes_on(&mut self, io: IoId) {
        let Some(index) = self.windows.iter().position(|window| window.io == io) else { return };
        let window = &mut self.windows[index];
        window.left = window.left.saturating_sub(1);
        if window.left > 0 {
            return;
        }
        let Window { begun, pages, .. } = self.windows.swap_remove(index);
        let end_ns = self.space.now();
        self.note_span(Span { kind: SpanKind::Window { pages }, begin_ns: begun, end_ns });
    }
}
