//! The hot path of a task: accesses that hit.

use pagetide_core::types::{Access, Nanos, PageIdx};
use pagetide_core::{Core, Touch};
use pagetide_trace::Op;

use crate::oracle::{Oracle, WrongContent};
use crate::task::{Call, Program, Step, Task};

/// Why a task's accesses stop.
pub(super) enum Stop {
    Horizon,
    Finished,
    Miss(PageIdx, Access, Nanos),
    Discard(PageIdx),
    Call(Call),
    Wrong(WrongContent),
}

/// The accesses of a trace that hit, up to the horizon: what the loop of `hits` does with them, without its questions. Stops
/// before the first record that needs more.
#[inline]
fn trace_hits(
    core: &mut Core,
    oracle: &mut Oracle,
    task: &mut Task,
    horizon: Nanos,
    cost: Nanos,
) -> Result<(), WrongContent> {
    let Program::Trace { trace, next } = &mut task.program else { return Ok(()) };
    if task.pending.is_some() || task.served || !task.is_counting || task.clock > horizon {
        return Ok(());
    }
    let room = usize::try_from((horizon - task.clock) / cost).unwrap_or(usize::MAX).saturating_add(1);
    let mut done = 0;
    for record in trace.records[*next..].iter().take(room) {
        let page = PageIdx(record.page());
        let access = match record.op() {
            Op::Read => Access::Read,
            Op::Write => Access::Write,
            Op::Discard => break,
        };
        if core.touch(page, access) == Touch::Fault {
            break;
        }
        match access {
            Access::Write => oracle.store(page)?,
            Access::Read => oracle.load(page)?,
        }
        done += 1;
    }
    *next += done;
    let done = done as u64;
    task.clock += done * cost;
    task.plain_hits += done;
    task.stats.accesses += done;
    Ok(())
}

/// The hot path: accesses that hit, up to the horizon.
pub(super) fn hits(core: &mut Core, oracle: &mut Oracle, task: &mut Task, horizon: Nanos) -> Stop {
    let cost = task.access_ns + task.think_ns;
    loop {
        if let Err(wrong) = trace_hits(core, oracle, task, horizon, cost) {
            return Stop::Wrong(wrong);
        }
        let (page, access, tried_at) = match task.pending.take() {
            // Its page may have gone again within the call that brought it: what is due before comes first.
            Some(pending) if task.clock > horizon && !task.served => {
                task.pending = Some(pending);
                return Stop::Horizon;
            }
            Some(pending) => pending,
            None => {
                if task.clock > horizon {
                    return Stop::Horizon;
                }
                let filling = task.program.is_filling();
                match task.program.step(task.clock) {
                    Some(Step::Touch(page, access)) => {
                        if !filling && !task.is_counting {
                            task.begin_counting(task.clock);
                        }
                        (page, access, task.clock + task.think_ns)
                    }
                    Some(Step::Discard(page)) => return Stop::Discard(page),
                    Some(Step::Call(call)) => return Stop::Call(call),
                    Some(Step::Think(ns)) => {
                        task.clock += ns;
                        continue;
                    }
                    Some(Step::UnitDone) => {
                        task.unit_done();
                        continue;
                    }
                    None => return Stop::Finished,
                }
            }
        };
        if std::mem::take(&mut task.served) {
            task.count_access(tried_at, cost);
            continue;
        }
        if core.touch(page, access) == Touch::Fault {
            task.clock = task.clock.max(tried_at);
            return Stop::Miss(page, access, tried_at);
        }
        let checked = match access {
            Access::Write => oracle.store(page),
            Access::Read => oracle.load(page),
        };
        if let Err(wrong) = checked {
            return Stop::Wrong(wrong);
        }
        task.count_access(tried_at, cost);
    }
}
