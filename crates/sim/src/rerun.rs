//! `sim rerun`: the recorded events of a live run, told to a fresh core of the same configuration, must bring the same
//! effects (I8). Who saw a run abort sends its record; the same broken invariant shows here, under a debugger if need be.

use pagetide_core::effect::{EffectHash, Effects};
use pagetide_core::types::Nanos;
use pagetide_core::{Core, Event};
use pagetide_driver::record::{RecordError, RecordReader, short};

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rerun {
    /// Events that were told.
    pub events: u64,
    /// Effects that came of them.
    pub effects: u64,
    /// Hash of the effects of all events but the last, whose own are not recorded.
    pub hash: u32,
    /// The record was full before the run ended.
    pub is_full: bool,
    /// The first event that brought other effects than it brought live: its number from 1, and what it brought here.
    pub difference: Option<(u64, String)>,
}

/// Tells a fresh core the recorded events, the last one to `last_told` first, and stops at the first difference.
///
/// # Errors
/// The record is not one, cut short or damaged; or its configuration is unknown to this version.
///
/// # Panics
/// When an invariant of the core breaks, as it did live.
pub fn rerun(bytes: &[u8], last_told: impl FnOnce(u64, Nanos, Event)) -> Result<Rerun, String> {
    // All of it first: damage is not taken for a difference, and a broken invariant not for the record's.
    let mut reader = RecordReader::new(bytes).map_err(|error| error.to_string())?;
    let mut last = 0;
    while reader.next_event().map_err(|error: RecordError| error.to_string())?.is_some() {
        last += 1;
    }
    let mut reader = RecordReader::new(bytes).expect("it was read above");
    let config = reader.config().build().map_err(|error| format!("the configuration: {error}"))?;
    let mut core = Core::new(config);
    let mut out = Effects::new();
    let mut hash = EffectHash::new();
    let mut this = Rerun { events: 0, effects: 0, hash: short(hash), is_full: false, difference: None };
    let mut last_told = Some(last_told);
    let mut before = None;
    while let Some(recorded) = reader.next_event().expect("it was read above") {
        this.hash = short(hash);
        if this.hash != recorded.effects {
            let what = format!("{before:?} brought {:?}", out.as_slice());
            this.difference = Some((this.events, what));
            return Ok(this);
        }
        this.events += 1;
        if let Some(tell) = last_told.take_if(|_| this.events == last) {
            tell(last, recorded.now, recorded.event);
        }
        out.clear();
        core.handle(recorded.now, &recorded.event, &mut out);
        hash.add(out.as_slice());
        this.effects += out.as_slice().len() as u64;
        before = Some(recorded.event);
    }
    this.is_full = reader.is_full();
    Ok(this)
}
