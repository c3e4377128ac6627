//! The pages that a forking thread touches to let the agent know, and others of ours that forks need.

use pagetide_kernel::{AddressSpace, OwnMapping};
use pagetide_sys::Errno;
use pagetide_sys::mem::{self, ManagedRange};
use pagetide_sys::uffd::Modes;

use crate::own;

/// Mappings that a child does not inherit: one of a program that has all that the kernel grants needs some for its own agent.
const SPARE: usize = 32;

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

impl Doorbells<mem::Mapping> {
    /// In new memory.
    pub(super) fn map(space: &impl AddressSpace<Mapping = mem::Mapping>) -> Result<Self, Errno> {
        let pages = Self::PAGES + SPARE;
        let bells = own::map(pages * mem::PAGE_BYTES, false)?;
        let witness = own::map(mem::PAGE_BYTES, false)?;
        mem::advise(witness.range(), mem::Advice::DoFork)?;
        // Every page differs from the next, and so is a mapping of its own: a doorbell is emptied without one more. (Nothing is there to be
        // dumped.) A child of a program that has all may not get them here either.
        for which in (0..pages).step_by(2) {
            let _ = mem::advise(bells.range().page(which), mem::Advice::DoDump);
        }
        Self::new(space, bells, witness)
    }
}
