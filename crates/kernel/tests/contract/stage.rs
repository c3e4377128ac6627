//! Where a script is played: memory, calls of a program, and the runtime's port, named so that both stages write the same lines.

use pagetide_kernel::model::{Call, Extent};
use pagetide_kernel::{AddressSpace, Faults, Message};
use pagetide_sys::mem::{ManagedRange, PAGE_BYTES};
use pagetide_sys::uffd::RangeAnswer;

/// What kind of mapping a script asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// Anonymous and private.
    Plain,
    /// Anonymous and shared.
    Shared,
    /// As a stack: grows downward.
    Stack,
    /// Anonymous and private, aligned, with huge pages.
    Huge,
}

/// What a forked child is to its parent's runtime.
pub(crate) type ChildOf<S> = <<S as Stage>::Space as Faults>::Child;

/// Told before each message is read (`None`), and of what was read.
pub(crate) type OnMessage<'a, S> = &'a mut dyn FnMut(&S, Option<&Message<ChildOf<S>>>);

/// A stage.
pub(crate) trait Stage: Sized {
    /// The port.
    type Space: AddressSpace;

    /// The runtime's hold on the program's address space.
    fn space(&self) -> &Self::Space;

    /// Copy pages of the runtime's own process into a forked child.
    fn copy_to_child(&self, child: &ChildOf<Self>, to: ManagedRange, from: ManagedRange) -> RangeAnswer;

    /// Move pages of the runtime's own process into a forked child.
    fn move_to_child(&self, child: &ChildOf<Self>, to: ManagedRange, from: ManagedRange) -> RangeAnswer;

    /// A fresh mapping, with free pages before and behind it.
    fn map(&mut self, pages: u64, made: Made) -> Extent;

    /// Free the address for later use by `Remap`.
    fn place(&mut self, pages: u64) -> Extent;

    /// The name of the pages on this stage.
    fn range(&self, extent: Extent) -> ManagedRange;

    /// Play a call of the program to its end. `on_message` is asked before each message is read (`None`), and with what was read.
    /// The answer, as both stages write it.
    fn perform(&mut self, call: Call, on_message: OnMessage<'_, Self>) -> String;

    /// The number of the child that was made last.
    fn child(&self) -> i32;

    /// What a load from this page of the child that was made last comes to.
    fn load_in_child(&mut self, page: u64) -> String;

    /// All children end.
    fn end_children(&mut self);
}

/// Play a call that nothing is told of, or whose messages need no answer.
pub(crate) fn quietly<S: Stage>(stage: &mut S, call: Call) -> String {
    stage.perform(call, &mut |_, _| {})
}

/// A page number of an address.
pub(crate) fn vpn(address: usize) -> u64 {
    (address / PAGE_BYTES) as u64
}
