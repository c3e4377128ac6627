//! How an agent begins: the program's memory comes under management, or a forked child takes its memory over.
//!
//! Each beginning is a function that is never inlined, so that what it took of the stack can be given back.

use std::sync::atomic::Ordering;

use pagetide_sys::fd::Fd;
use pagetide_sys::{Errno, clock, proc, thread};

use super::{Agent, Managed, die};
use crate::control::Phase;
use crate::fork;
use crate::serve::Served;
use crate::space::held::HELD;
use crate::{foothold, limits, own, setup};

impl Agent {
    /// Take the program's memory under management and serve it until the program ends.
    pub(crate) fn manage(mut self) -> ! {
        let served = self.begin();
        own::give_stack_back();
        self.serve(served)
    }

    /// As [`Agent::manage`], in a forked child whose parent's agent is at the other end of `call`.
    pub(crate) fn manage_child(mut self, call: &Fd) -> ! {
        let served = self.begin_child(call);
        own::give_stack_back();
        self.serve(served)
    }

    #[inline(never)]
    fn begin(&mut self) -> &'static Served {
        clock::init();
        let files = limits::for_files();
        self.hold_threads();
        let now = clock::now();
        let pager = match setup::pager(self, None, Vec::new()) {
            Ok(pager) => pager,
            Err(error) => die(&self.supervisor, format_args!("memory cannot be managed: {error}")),
        };
        let forks = fork::begin(self, &pager);
        let mut managed = Managed::new(pager, self.hello.floor_bytes, forks, now);
        self.exclude_initial(&mut managed.session.pager);
        self.adopt(&mut managed.session.pager, now);
        managed.forks.publish(self.entry());
        // Who waits for us goes on with the limit that it knows.
        drop(files);
        self.begin_to_serve(managed)
    }

    #[inline(never)]
    fn begin_child(&mut self, call: &Fd) -> &'static Served {
        let files = limits::for_files();
        let mut managed = match fork::takeover::take_over(self, call) {
            Ok(managed) => managed,
            Err(error) => {
                let text = "a forked child cannot take over its memory";
                die(&self.supervisor, format_args!("process {}: {text}: {error}", thread::getpid()))
            }
        };
        self.hold_threads();
        self.adopt(&mut managed.session.pager, clock::now());
        // Who waits for us goes on with the limit that it knows.
        drop(files);
        self.begin_to_serve(managed)
    }

    fn begin_to_serve(&mut self, managed: Managed) -> &'static Served {
        // Whoever hears that it is managed finds what it keeps, and where its pages are.
        setup::publish(self.entry(), &managed.session);
        setup::publish_places(self.entry(), &managed.session);
        let faults = proc::stat(None).map_or(0, |stat| stat.minor_faults);
        self.entry().begun_faults.store(faults, Ordering::Relaxed);
        self.entry().phase.store(Phase::Managed as u32, Ordering::Release);
        foothold::managed();
        Served::begin(managed, self.files.take())
    }

    /// The control blocks of the threads that exist stay in memory. Later ones say so themselves, as they begin.
    fn hold_threads(&self) {
        let hold = |tid| {
            if let Ok(Some(list)) = thread::robust_list(tid) {
                HELD.hold(list.start(), list.len());
            }
        };
        let told = proc::each_thread(hold);
        if told == Err(Errno::EACCES) {
            // No directory may be read behind a rule set (Landlock). The first thread is known, and is a child's only one; those that the C
            // library made have been held since they began.
            hold(thread::getpid());
        } else if let Err(errno) = told {
            die(&self.supervisor, format_args!("the threads of the program are not told: {}", errno.name()));
        }
    }
}
