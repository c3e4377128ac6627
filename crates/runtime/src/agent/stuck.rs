//! What of a program's memory cannot be taken out: the budget gives way to it, with a word.
//!
//! Most of it is known by what the program asks for. What the kernel pins (for direct reads, rings, other devices) is found by moves that are
//! refused, and a read pins its pages one by one before it begins: many at once, none of which has all of its pages, wait for each
//! other if the budget does not grow.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::{clock, proc, thread};

use super::{Agent, Managed, say};
use crate::limits;
use crate::shares;
use crate::space::PAGE_SHIFT;
use crate::space::held::{self, HELD};

/// A fault that waits this long finds nothing by waiting, if all that is charged could not be moved. It is tried again every 20 ms.
const STARVED_NS: Nanos = 50_000_000;
/// What was pinned a moment ago is soon again, by the next reads: this share of it less is reckoned with at each look, ten times a second.
pub(super) const PINNED_FADES: u64 = 8;
/// A count takes a call or two for each mapping, 0.1 s where a program has very many. So many times as long passes before the next.
const RESTS: Nanos = 8;

impl Agent {
    /// Count the pages that cannot be taken out. True if there are more than before.
    pub(super) fn measure_stuck(&self, managed: &mut Managed) -> bool {
        let begun = clock::now();
        let files = limits::for_files();
        let locked = proc::status(None).map_or(0, |status| status.locked_bytes >> PAGE_SHIFT);
        drop(files);
        let read_only = managed.session.pager.read_only_pages();
        let (in_calls, kept) = (pages_in_calls(managed), pages_kept(managed));
        let known = read_only + locked + in_calls + kept;
        let before = managed.pinned_pages;
        let pinned = if before > 0 { unmovable(managed).saturating_sub(known).max(before) } else { 0 };
        let stuck =
            (read_only + locked + pinned).min(u64::from(managed.session.pager.core().charged())) + in_calls + kept;
        managed.pinned_pages = pinned;
        let end = clock::now();
        managed.stuck_rest_until = end + RESTS * (end - begun);
        let is_more = stuck > std::mem::replace(&mut managed.stuck_pages, stuck);
        let share = self.entry().share_pages.load(Ordering::Relaxed);
        if shares::is_stuck(stuck, share) && !managed.stuck_told {
            managed.stuck_told = true;
            say(
                &self.supervisor,
                format_args!(
                    "process {}: {} MiB of its memory cannot be paged out ({} MiB read-only, {} MiB locked, {} MiB used by system \
                     calls, {} MiB pinned by the kernel, {} MiB with words for the kernel); where they do not fit, the budget is exceeded",
                    thread::getpid(),
                    stuck >> 8,
                    read_only >> 8,
                    locked >> 8,
                    in_calls >> 8,
                    pinned >> 8,
                    kept >> 8,
                ),
            );
        }
        is_more
    }
}

/// Pages that calls hold which are under way, as far as they can be managed ones.
pub(super) fn pages_in_calls(managed: &Managed) -> u64 {
    held::pages_in_calls().min(managed.session.pager.machine().mappings.managed_pages())
}

/// Pages that are never taken (`space::held`), as far as reclaim has come upon them.
pub(super) fn pages_kept(managed: &Managed) -> u64 {
    u64::from(HELD.count()).min(unmovable(managed))
}

/// Pages that could not be moved when they were tried last.
fn unmovable(managed: &Managed) -> u64 {
    let [.., unevictable] = managed.session.pager.core().list_sizes();
    unevictable.into()
}

/// Does a fault wait although nothing is left that could make room for it?
pub(super) fn is_starved(managed: &Managed, now: Nanos) -> bool {
    let machine = managed.session.pager.machine();
    let Some((_, since)) = machine.oldest_fault() else { return false };
    // Pages that are shared since a fork can be moved once they are private again, and those that are spared a while later.
    let will_be_movable = managed.forks.is_under_way() || machine.first_private().is_some() || machine.is_sparing();
    let core = managed.session.pager.core();
    let [movable @ .., _] = core.list_sizes();
    now.saturating_sub(since.max(managed.resumed)) > STARVED_NS
        && movable == [0; 4]
        && core.is_settled()
        && !will_be_movable
}
