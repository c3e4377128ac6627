//! Orders that the kernel would not let through yet, and what a discard does to them.
//!
//! Each entry's pages have no other order in flight (I2).

use pagetide_core::Core;
use pagetide_core::effect::Effect;
use pagetide_core::event::{Event, MoveAnswer};
use pagetide_core::types::{PageIdx, PageRange};
use pagetide_driver::Answers;
use pagetide_kernel::AddressSpace;

use super::moves::Busy;
use super::{LiveMachine, Unsharing, managed};

impl<K: AddressSpace> LiveMachine<K> {
    /// Orders that waited for the program, or for pages to be made private, are tried again.
    pub(crate) fn retry_deferred(&mut self, core: &Core, answers: &mut Answers) {
        while self.unsharer.as_ref().is_some_and(|unsharer| self.unshared != unsharer.done()) {
            self.unshared = self.unshared.wrapping_add(1);
            let done = self.unsharing.pop_front().expect("ranges are done in the order asked");
            self.unmap(core, done.pages, Busy::Answer, answers);
        }
        for _ in 0..self.deferred.len() {
            let Some(effect) = self.deferred.pop_front() else { break };
            if matches!(effect, Effect::Unmap { .. }) && self.are_many_unsharing() {
                self.deferred.push_back(effect);
            } else {
                self.carry_out(core, effect, answers);
            }
        }
    }

    /// The virtual pages that are made private at present, or next: the first one, and the one behind the last.
    pub(crate) fn first_private(&self) -> Option<(u64, u64)> {
        self.unsharing.front().map(|&Unsharing { asked: (first, pages), .. }| (first, first + u64::from(pages)))
    }

    /// True if this virtual page is among those that were asked to be made private, and that is not done.
    pub(crate) fn is_being_made_private(&self, vpn: u64) -> bool {
        let has = |&Unsharing { asked: (first, len), .. }: &Unsharing| (first..first + u64::from(len)).contains(&vpn);
        self.unsharing.iter().any(has)
    }

    /// True if this page waits to be moved out, and the kernel has freed it: the program gave it back, and was slow to do so after it
    /// had said it would.
    pub(crate) fn is_gone_before_it_left(&self, page: PageIdx, vpn: u64) -> bool {
        let is_to_leave = |effect: &Effect| matches!(effect, Effect::Unmap { range } if range.contains(page));
        let waits =
            self.unsharing.iter().any(|waiting| waiting.pages.contains(page)) || self.deferred.iter().any(is_to_leave);
        waits && self.space.leading(managed(vpn, 1), true) == Ok(0)
    }

    /// True if pages stay because others map them as well, and will be tried again.
    pub(crate) fn is_sparing(&self) -> bool {
        self.sparing.spares(self.space.now())
    }

    /// True if a page that the program has at present may be taken out at any moment, without another order of the core.
    pub(crate) fn is_taking_out(&self) -> bool {
        let leaves = |effect: &Effect| matches!(effect, Effect::Unmap { .. });
        self.unsharing.iter().any(|waiting| waiting.pages.len > 0) || self.deferred.iter().any(leaves)
    }

    /// The content of these pages is gone: orders that wait are answered as such, so that no old copy is mapped.
    pub(crate) fn forget_deferred(&mut self, range: PageRange, answers: &mut Answers) {
        self.placeless = None;
        for index in 0..self.unsharing.len() {
            let (before, hit, after) = cut(self.unsharing[index].pages, range);
            if hit.len == 0 {
                continue;
            }
            // The entry stays, if empty: entries end in the order in which they were asked for.
            self.unsharing[index].pages = before;
            if after.len > 0 {
                self.deferred.push_back(Effect::Unmap { range: after });
            }
            answers.push(Event::Unmapped { range: hit, answer: MoveAnswer::Gone });
        }
        for _ in 0..self.deferred.len() {
            let Some(effect) = self.deferred.pop_front() else { break };
            let (pages, is_map) = match effect {
                Effect::Map { range, .. } => (range, true),
                Effect::Unmap { range } => (range, false),
                other @ (Effect::Read { .. }
                | Effect::Write { .. }
                | Effect::Drop { .. }
                | Effect::Wake { .. }
                | Effect::Poison { .. }
                | Effect::OutOfMemory { .. }) => {
                    // A read goes on, and the core drops what it brings; a lost page is marked or its address is gone.
                    self.deferred.push_back(other);
                    continue;
                }
            };
            let (before, hit, after) = cut(pages, range);
            for left in [before, after] {
                if left.len > 0 {
                    self.deferred.push_back(with_range(effect, left));
                }
            }
            if hit.len == 0 {
                continue;
            }
            if is_map {
                self.gone(hit, answers);
            } else {
                answers.push(Event::Unmapped { range: hit, answer: MoveAnswer::Gone });
            }
        }
    }
}

pub(super) fn with_range(effect: Effect, range: PageRange) -> Effect {
    match effect {
        Effect::Map { source, access, .. } => Effect::Map { range, source, access },
        Effect::Unmap { .. } => Effect::Unmap { range },
        other @ (Effect::Read { .. }
        | Effect::Write { .. }
        | Effect::Drop { .. }
        | Effect::Wake { .. }
        | Effect::Poison { .. }
        | Effect::OutOfMemory { .. }) => unreachable!("only moves are cut, not {other:?}"),
    }
}

/// `pages` as the parts before, inside and after `hole`.
fn cut(pages: PageRange, hole: PageRange) -> (PageRange, PageRange, PageRange) {
    let (from, to) = (pages.first.0, pages.end().0);
    let cut_from = hole.first.0.clamp(from, to);
    let cut_to = hole.end().0.clamp(cut_from, to);
    let piece = |from: u32, to: u32| PageRange::new(PageIdx(from), to - from);
    (piece(from, cut_from), piece(cut_from, cut_to), piece(cut_to, to))
}
