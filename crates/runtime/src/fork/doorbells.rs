//! The pages that a forking thread touches to let the agent know, and others of ours that forks need.

use pagetide_kernel::{AddressSpace, OwnMapping};
use pagetide_sys::Errno;
use pagetide_sys::mem::{self, ManagedRange};
use pagetide_sys::uffd::Modes;

/// Registered, so that a touch of a bell is told, and so that the kernel tells of every copy: `witness` is in each.
#[derive(Debug)]
pub(crate) struct Doorbells<M> {
    /// The two doorbells; a page where nothing ever is, which is discarded to wake the agent: who does goes on as soon as that has read
    /// of it; and a page behind them.
    bells: M,
    /// A page that every child inherits.
    witness: M,
}

impl<M: OwnMapping> Doorbells<M> {
    /// Pages of [`Self::new`]'s `bells`.
    pub(crate) const PAGES: usize = 4;

    /// In memory of ours, which is not registered yet; children have a copy of `witness`, of one page.
    pub(crate) fn new<K: AddressSpace<Mapping = M>>(space: &K, bells: M, witness: M) -> Result<Self, Errno> {
        let doorbells = Self { bells, witness };
        space.register(doorbells.bells.range().part(0, 3 * mem::PAGE_BYTES), Modes::MISSING)?;
        space.register(doorbells.witness.range(), Modes::MISSING)?;
        Ok(doorbells)
    }

    pub(crate) fn range(&self) -> ManagedRange {
        self.bells.range().part(0, 2 * mem::PAGE_BYTES)
    }

    /// A page for what is read for a child.
    pub(super) fn bounce(&self) -> ManagedRange {
        self.bells.range().page(3)
    }
}
