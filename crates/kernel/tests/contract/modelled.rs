//! The stage in the model: one thread of the program, and a runtime that does nothing by itself.

use std::sync::{Arc, Mutex};

use pagetide_kernel::model::{Answer, Call, Extent, Kind, Mapping, Model, ModelChild, Pid, Progress, Quirks, World};
use pagetide_kernel::{AddressSpace, Faults};
use pagetide_sys::mem::{ManagedRange, PAGE_BYTES};
use pagetide_sys::uffd::{RangeAnswer, Wake};

use crate::scripts::HUGE_PAGES;
use crate::stage::{Made, OnMessage, Stage};

/// Steps that a call may take.
const STEPS: usize = 1_000;

pub(crate) struct OnModel {
    space: Model,
    next: u64,
    children: Vec<Pid>,
}

impl OnModel {
    /// A runtime that is told of no copies.
    pub(crate) fn without_copies() -> Self {
        let stage = Self::new();
        stage.space.world().tells_no_copy(stage.space.pid());
        stage
    }

    pub(crate) fn new() -> Self {
        let mut world = World::new(1, Quirks::NONE);
        world.have_huge_pages(HUGE_PAGES);
        let pid = world.new_process();
        Self { space: Model::new(Arc::new(Mutex::new(world)), pid), next: 0x1000, children: Vec::new() }
    }
}

impl Stage for OnModel {
    type Space = Model;

    fn space(&self) -> &Model {
        &self.space
    }

    fn map(&mut self, pages: u64, made: Made) -> Extent {
        if made == Made::Huge {
            self.next = self.next.next_multiple_of(HUGE_PAGES);
        }
        let extent = self.place(pages);
        let kind = match made {
            Made::Plain | Made::Huge => Kind::Anon,
            Made::Shared => Kind::Shared,
            Made::Stack => Kind::Stack,
        };
        let mapping = Mapping { kind, huge: made == Made::Huge, ..Mapping::anon(extent.start, extent.end) };
        self.space.world().map(self.space.pid(), mapping);
        extent
    }

    fn place(&mut self, pages: u64) -> Extent {
        let extent = Extent::new(self.next, pages);
        self.next += pages + 2;
        extent
    }

    fn range(&self, extent: Extent) -> ManagedRange {
        let bytes = |pages: u64| usize::try_from(pages).expect("64 bits") * PAGE_BYTES;
        // SAFETY: an address of the model is never used as one of this process.
        unsafe { ManagedRange::new(bytes(extent.start), bytes(extent.pages())) }
    }

    fn copy_to_child(&self, child: &ModelChild, to: ManagedRange, from: ManagedRange) -> RangeAnswer {
        child.copy_run(to, from, Wake::Now)
    }

    fn move_to_child(&self, child: &ModelChild, to: ManagedRange, from: ManagedRange) -> RangeAnswer {
        child.space().move_pages(to, from, Wake::Now)
    }

    fn perform(&mut self, call: Call, on_message: OnMessage<'_, Self>) -> String {
        let pid = self.space.pid();
        let thread = self.space.world().new_thread(pid);
        self.space.world().will(thread, call);
        for _ in 0..STEPS {
            let progress = self.space.world().step(thread);
            match progress {
                Progress::Ended(Answer::Child(child)) => {
                    self.children.push(child);
                    return "a child".to_owned();
                }
                Progress::Ended(Answer::Segv | Answer::Bus) => return "Failed(EFAULT)".to_owned(),
                Progress::Ended(Answer::Failed(errno)) => return format!("Failed({})", errno.name()),
                Progress::Ended(answer @ (Answer::Done | Answer::Value(_))) => return format!("{answer:?}"),
                Progress::Idle | Progress::Runs => {}
                Progress::Sleeps => {
                    on_message(self, None);
                    let message = self.space.next_message().expect("the model can be read");
                    on_message(self, message.as_ref());
                }
            }
        }
        panic!("{call:?} does not end");
    }

    fn child(&self) -> i32 {
        i32::try_from(self.children.last().expect("a child").0).expect("a small number")
    }

    fn load_in_child(&mut self, page: u64) -> String {
        let mut world = self.space.world();
        let thread = world.new_thread(*self.children.last().expect("a child"));
        world.will(thread, Call::Load(page));
        match world.step(thread) {
            Progress::Ended(Answer::Segv | Answer::Bus) => "Failed(EFAULT)".to_owned(),
            Progress::Ended(answer) => format!("{answer:?}"),
            progress @ (Progress::Idle | Progress::Runs | Progress::Sleeps) => {
                panic!("a load that nobody is told of {progress:?}")
            }
        }
    }

    fn end_children(&mut self) {
        for child in self.children.drain(..) {
            self.space.world().end_process(child);
        }
    }
}
