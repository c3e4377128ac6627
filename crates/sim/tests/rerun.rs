//! `sim rerun` of records whose head is true, and is not: the exit codes.

use std::sync::{Arc, Mutex};

use pagetide_core::Core;
use pagetide_core::effect::Effect;
use pagetide_core::event::{Event, MoveAnswer};
use pagetide_core::types::{Access, Nanos, PageIdx, PageRange, RegionId, TaskId};
use pagetide_driver::record::{LiveConfig, RecordWriter, Tape};
use pagetide_driver::{Answers, Driver, Machine, Recorder};
use pagetide_sim::cli::{EXIT_DIFFERENT, EXIT_OK, rerun_record};

#[derive(Clone, Debug, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Tape for Bytes {
    fn put(&mut self, bytes: &[u8]) -> bool {
        self.0.lock().expect("one thread").extend(bytes);
        true
    }

    fn put_last(&mut self, byte: u8) {
        self.0.lock().expect("one thread").push(byte);
    }
}

/// Maps what it is told to.
#[derive(Debug)]
struct Maps;

impl Machine for Maps {
    fn execute(&mut self, _core: &Core, _now: Nanos, effects: &[Effect], answers: &mut Answers) {
        for effect in effects {
            if let Effect::Map { range, .. } = *effect {
                answers.push(Event::Mapped { range, answer: MoveAnswer::Done });
            }
        }
    }
}

fn config(zero_ahead: u32) -> LiveConfig {
    let settings = vec![("zero-ahead".to_owned(), zero_ahead.to_string())];
    LiveConfig { settings, pages_max: 1024, budget_pages: 512, slots: 0 }
}

/// 100 ascending faults in fresh memory, as a core without zero windows answers them, under the head of `told`.
fn record_of(told: &LiveConfig) -> Vec<u8> {
    let bytes = Bytes::default();
    let recorder = Recorder::new(1, Some(RecordWriter::new(Box::new(bytes.clone()), told)));
    let core = Core::new(config(0).build().expect("a knob of ours"));
    let mut driver = Driver::new(core, Maps, recorder);
    driver.step(0, Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(1), 200) });
    for page in 1..=100 {
        let fault = Event::Fault { page: PageIdx(page), access: Access::Write, task: TaskId(0) };
        driver.step(u64::from(page) * 1_000, fault);
    }
    let mut bytes = bytes.0.lock().expect("one thread").clone();
    bytes.push(0);
    bytes
}

#[test]
fn the_same_effects_are_0_and_others_are_67_with_the_first_event_that_brought_them() {
    let path = std::env::temp_dir().join(format!("pagetide-rerun-{}", std::process::id()));
    for (zero_ahead, code, text) in [(0, EXIT_OK, "\"difference\":null"), (64, EXIT_DIFFERENT, "Fault")] {
        std::fs::write(&path, record_of(&config(zero_ahead))).expect("a temporary file");
        let mut out = Vec::new();
        let answer = rerun_record(&path, true, &mut out);
        let told = String::from_utf8(out).expect("JSON is text");
        assert_eq!(answer.expect("a whole record"), code, "{told}");
        assert!(told.contains(text), "{told}");
    }
    assert_eq!(EXIT_DIFFERENT, 67);
    std::fs::remove_file(&path).expect("it was written above");
}
