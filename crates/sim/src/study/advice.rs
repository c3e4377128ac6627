//! With the memory that is advised, a program waits as long as it was promised: within a third, and a hundredth of its time.

use super::*;
use pagetide_core::absences::{Prospect, UNNOTICED_BP};
use pagetide_trace::Record;

use crate::rng::XorShift64;

/// A program, what it was advised, and how it does with it.
struct Advised {
    first: ReplayRow,
    advice: Prospect,
    then: ReplayRow,
}

impl Advised {
    fn new(trace: DenseTrace, memory_pages: u32, access_ns: u64) -> Self {
        let trace = Rc::new(trace);
        let setup = ReplaySetup {
            profile: "pagetide".to_owned(),
            settings: Vec::new(),
            device: preset("nvme").expect("a preset").params.clone(),
            access_ns,
            host: HostModel::named("blind").expect("a host"),
            packed_bytes: 4096,
            machine: false,
            seed: 1,
        };
        let run = |pages| replay(&trace, pages, &setup).expect("a sound setup");
        let first = run(memory_pages);
        let advice = first.absences.advise_against(first.waited).expect("pages came back");
        let more = u32::try_from(advice.extra_pages).expect("less than all");
        Self { then: run(memory_pages + more), first, advice }
    }

    /// The promise, and that it is one: the program waits for a tenth at most of what more memory can save.
    fn check(&self, name: &str) {
        let (promised, then) = (self.first.waited.with(self.advice), self.then.waited);
        let what = format!("{name}: {:?}, {:?}; promised {promised:?}, waits {then:?}", self.advice, self.first.waited);
        let slack = promised.stalled / 3 + then.ran / 100;
        assert!(then.stalled.abs_diff(promised.stalled) <= slack, "{what}");
        let slack_bp = promised.share_bp() / 3 + UNNOTICED_BP;
        assert!(then.share_bp().abs_diff(promised.share_bp()) <= slack_bp, "{what}");
        let savable = self.first.waited.stalled - self.first.waited.first_touch;
        assert!(promised.stalled <= self.first.waited.first_touch + savable / 10, "{what}");
    }
}

#[test]
fn with_the_advised_memory_a_program_waits_as_long_as_was_promised() {
    let names = [
        "hot-3/4-95",
        "zipf-1.0",
        "loop-1.25",
        "loop+hot",
        "phases",
        "stride",
        "merge-64",
        "sort",
        "hash-join",
        "tree",
    ];
    for program in PROGRAMS.iter().filter(|program| names.contains(&program.name)) {
        Advised::new(program.trace(), program.memory_pages, program.access_ns).check(program.name);
    }
}

/// Most of what leaves here is never used again: no memory helps against that, and none is advised for it.
#[test]
fn a_hot_set_beside_a_stream_is_advised_what_the_hot_set_needs() {
    const MEMORY: u32 = 4096;
    let mut rng = XorShift64::new(7);
    let (hot, mut stream) = (MEMORY * 2, u64::from(MEMORY * 2));
    let records: Vec<Record> = (0..400_000)
        .map(|at| {
            let page = if at % 16 == 0 {
                stream += 1;
                stream
            } else {
                u64::from(rng.below(hot))
            };
            Record { page, task: 0, op: pagetide_trace::Op::Write }
        })
        .collect();
    let advised = Advised::new(DenseTrace::of_records(&records).expect("a small trace"), MEMORY, 1000);
    let (extra, away) = (advised.advice.extra_pages, advised.first.absences.away_pages_max());
    assert!((4000..8000).contains(&extra) && away > 4 * extra, "{extra} more of {away} that were away");
    advised.check("hot set beside a stream");
}
