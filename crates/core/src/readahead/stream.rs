//! Our own readahead: several streams per region, windows that grow, and are mapped whole.

use super::Window;
use crate::effect::Effects;
use crate::policy::Core;

/// The streams of a region.
#[derive(Clone, Debug)]
pub(crate) struct Streams {}

impl Streams {
    pub(crate) const fn new() -> Self {
        Self {}
    }
}

impl Core {
    pub(crate) fn stream_window(&mut self, at: usize, p: u32) -> Window {
        self.vma_window(at, p)
    }

    pub(crate) fn stream_hit(&mut self, at: usize, p: u32, hit: bool) {
        self.regions.get_mut(at).ra.vma.found(p, hit);
    }

    pub(crate) fn stream_arrived(&mut self, _p: u32, _out: &mut Effects) {}

    pub(crate) fn marker_touched(&mut self, _p: u32, _out: &mut Effects) {}

    pub(crate) fn after_window(&mut self, _p: u32, _window: &Window, _out: &mut Effects) {}

    pub(crate) fn zero_ahead(&mut self, _p: u32, _out: &mut Effects) {}
}
