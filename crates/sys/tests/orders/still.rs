//! Changes of the address space, and forks that want it as it is.

use loom::sync::Arc;
use loom::thread;
use pagetide_sys::sync::{Changing, Stillness};

use crate::{Watched, explore};

struct Space {
    stillness: Stillness,
    /// By thread: its flag, and what it changes.
    parts: [(Changing, Watched); 2],
}

impl Space {
    fn new() -> Self {
        Self { stillness: Stillness::new(), parts: [0, 1].map(|_| (Changing::new(), Watched::new())) }
    }

    fn change(&self, at: usize) {
        let (changing, part) = &self.parts[at];
        self.stillness.begin_change(changing);
        part.add();
        changing.end();
    }

    /// Reads all, and leaves a trace that a later change would have to see.
    fn copy(&self) {
        self.stillness.begin(|| self.parts.iter().map(|(changing, _)| changing), thread::yield_now);
        self.parts.iter().for_each(|(_, part)| part.add());
        self.stillness.end();
    }
}

fn parts(space: &Space) -> [u32; 2] {
    space.parts.each_ref().map(|(_, part)| part.get())
}

#[test]
fn nothing_changes_while_a_copy_is_made_and_every_change_is() {
    explore(3, || {
        let space = Arc::new(Space::new());
        let threads = [0, 1].map(|at| {
            let space = Arc::clone(&space);
            thread::spawn(move || space.change(at))
        });
        space.copy();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(parts(&space), [2, 2]);
    });
}

#[test]
fn two_copies_and_a_change_are_made_one_after_the_other() {
    explore(3, || {
        let space = Arc::new(Space::new());
        let (copying, changing) = (Arc::clone(&space), Arc::clone(&space));
        let threads = [thread::spawn(move || copying.copy()), thread::spawn(move || changing.change(0))];
        space.copy();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(parts(&space), [3, 2]);
    });
}
