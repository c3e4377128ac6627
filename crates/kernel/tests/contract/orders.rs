//! In which order the kernel tells of two changes: as their threads come to tell them, which need not be as they were made.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use pagetide_kernel::model::Call;
use pagetide_kernel::{AddressSpace, Linux, Message};
use pagetide_sys::uffd::{Features, Modes};
use pagetide_sys::{mem, proc, thread};

use crate::linux;
use crate::modelled::OnModel;
use crate::stage::{Made, Stage};

const CHANGES: Features = Features::EVENT_FORK.with(Features::EVENT_REMOVE);

/// What is told next.
fn told<K: AddressSpace>(space: &K) -> &'static str {
    match space.next_message().expect("messages can be read") {
        Some(Message::Fork(_)) => "fork",
        Some(Message::Remove { .. }) => "remove",
        other => panic!("neither a fork nor a discard: {other:?}"),
    }
}

/// Run `call` in a thread, and wait until it sleeps because nobody has read its message.
fn until_it_sleeps<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, call: impl FnOnce() + Send + 'scope) {
    let tid = Arc::new(AtomicI32::new(0));
    let tell = Arc::clone(&tid);
    scope.spawn(move || {
        tell.store(thread::gettid(), Ordering::Release);
        call();
    });
    let sleeps = || match tid.load(Ordering::Acquire) {
        0 => false,
        tid => proc::thread_state(tid).is_ok_and(|state| matches!(state, b'S' | b'D')),
    };
    while !sleeps() {
        std::thread::yield_now();
    }
}

/// A thread forks, and waits until that is read; then another one discards.
#[test]
fn changes_that_wait_are_told_in_the_order_in_which_they_came() {
    let _alone = linux::alone();
    let Some(uffd) = linux::uffd(CHANGES) else { return };
    let space = Linux::new(uffd);
    let region = linux::frames(2);
    space.register(region.range(), Modes::MISSING).expect("register");
    let heard = std::thread::scope(|scope| {
        until_it_sleeps(scope, || drop(linux::fork()));
        until_it_sleeps(scope, || mem::advise(region.range(), mem::Advice::DontNeed).expect("madvise"));
        [told(&space), told(&space)]
    });
    assert_eq!(heard, ["fork", "remove"]);
    for (steps, expected) in [([0, 0, 1, 1], ["fork", "remove"]), ([0, 1, 1, 0], ["remove", "fork"])] {
        assert_eq!(in_the_model(steps), expected, "{steps:?}");
    }
}

/// The forking thread (0) makes its copy in its first step, and comes to tell it in its second. Between the two Linux holds no lock
/// against the discard of the other (1): whoever has the only copy of the page may hear of the discard first. No test can make Linux do it.
fn in_the_model(steps: [usize; 4]) -> [&'static str; 2] {
    let mut stage = OnModel::new();
    let region = stage.map(2, Made::Plain);
    let space = stage.space();
    space.register(stage.range(region), Modes::MISSING).expect("register");
    let mut world = space.world();
    let threads = [world.new_thread(space.pid()), world.new_thread(space.pid())];
    world.will(threads[0], Call::Fork);
    world.will(threads[1], Call::Discard(region));
    for index in steps {
        world.step(threads[index]);
    }
    drop(world);
    [told(space), told(space)]
}
