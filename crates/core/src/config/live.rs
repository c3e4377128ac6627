//! Settings that may change while the core runs: an event carries them, so that a record tells of them.

use alloc::format;

use super::{Config, ConfigError, KNOBS};

/// A setting of a knob that may change while the core runs, as two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LiveSetting {
    /// Index in [`KNOBS`].
    pub knob: u32,
    /// The number, or the index of the word among the knob's values.
    pub value: u32,
}

/// Knobs that may change while the core runs. What the others chose is built into its state.
const LIVE_KNOBS: [&str; 9] = [
    "swappiness",
    "page-cluster",
    "readahead-max",
    "zero-ahead",
    "swapoff",
    "min-scan-priority",
    "watermark-scale",
    "reclaim-batch",
    "anon-list",
];

/// What a program is started with beside knobs: where they come from, how the host reads and writes, and what it does with idle CPUs.
const STARTED_WITH: [&str; 3] = ["profile", "io", "idle"];

impl Config {
    /// Checks a setting for a core that runs.
    pub fn live_setting(&self, key: &str, value: &str) -> Result<LiveSetting, ConfigError> {
        let is_knob = !STARTED_WITH.contains(&key);
        if is_knob {
            self.clone().set(&format!("{key}={value}"))?;
        }
        if !is_knob || !LIVE_KNOBS.contains(&key) {
            let text = format!("{key} is chosen when the program starts, and cannot change while it runs");
            return Err(ConfigError::new(text));
        }
        let index = KNOBS.iter().position(|knob| knob.name == key).expect("it was set just now");
        let word = KNOBS[index].values.split(", ").position(|word| word == value);
        let number = word.map_or_else(
            || value.parse().expect("it was set just now"),
            |word| u32::try_from(word).expect("few words"),
        );
        Ok(LiveSetting { knob: u32::try_from(index).expect("few knobs"), value: number })
    }

    /// Carries it out. False: it is none.
    pub(crate) fn set_live(&mut self, setting: LiveSetting) -> bool {
        let Some(knob) = KNOBS.get(setting.knob as usize).filter(|knob| LIVE_KNOBS.contains(&knob.name)) else {
            return false;
        };
        let word = if knob.values.contains(", ") { knob.values.split(", ").nth(setting.value as usize) } else { None };
        match word {
            Some(word) => (knob.set)(self, word),
            None => (knob.set)(self, &format!("{}", setting.value)),
        }
    }
}
