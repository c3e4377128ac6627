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

/// What a program is started with beside knobs: where they come from, how the host reads and writes, what it does with idle CPUs, and how
/// memory is divided between processes.
const STARTED_WITH: [&str; 4] = ["profile", "io", "idle", "shares"];

impl Config {
    /// Checks a setting for a core that runs. The texts may be anything; space around them is none of theirs, as in [`Config::set`].
    pub fn live_setting(&self, key: &str, value: &str) -> Result<LiveSetting, ConfigError> {
        let (key, value) = (key.trim(), value.trim());
        if !STARTED_WITH.contains(&key) {
            self.clone().set(&format!("{key}={value}"))?;
        }
        let place = KNOBS.iter().position(|knob| knob.name == key && LIVE_KNOBS.contains(&key));
        let Some(index) = place else {
            let text = format!("{key} is chosen when the program starts, and cannot change while it runs");
            return Err(ConfigError::new(text));
        };
        let word = KNOBS[index].values.split(", ").position(|word| word == value);
        let number = word.map_or_else(|| value.parse().ok(), |word| u32::try_from(word).ok());
        let Some(number) = number else {
            return Err(ConfigError::new(format!("{key}: `{value}` is not one of {}", KNOBS[index].values)));
        };
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

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::config::HostKind;

    fn config() -> Config {
        Config::profile("pagetide", HostKind::Blind).expect("a profile")
    }

    #[test]
    fn space_around_key_and_value_is_none_of_theirs() {
        let plain = config().live_setting("page-cluster", "3");
        assert!(plain.is_ok());
        for (key, value) in [("page-cluster", "3 "), ("page-cluster ", "\t3"), (" page-cluster\n", " 3\u{a0}")] {
            assert_eq!(config().live_setting(key, value), plain, "{key:?} {value:?}");
        }
        assert_eq!(config().live_setting("swapoff", " lookup\t"), config().live_setting("swapoff", "lookup"));
    }

    #[test]
    fn each_knob_is_live_or_chosen_at_the_start() {
        let started = ["readahead", "balance", "sample", "free-on-write-done", "lru-batch", "charge-batch", "compress"];
        for knob in KNOBS {
            let is_live = LIVE_KNOBS.contains(&knob.name);
            assert_ne!(is_live, started.contains(&knob.name), "{}", knob.name);
            let answer = config().live_setting(knob.name, &(knob.get)(&config()));
            assert_eq!(answer.is_ok(), is_live, "{}: {answer:?}", knob.name);
        }
        for key in STARTED_WITH {
            assert!(KNOBS.iter().all(|knob| knob.name != key), "{key}");
        }
        assert_eq!(LIVE_KNOBS.len() + started.len(), KNOBS.len());
    }

    #[test]
    fn any_text_is_taken_as_at_the_start_or_refused() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % 1_000_003).expect("small") % below
        };
        let pieces =
            [" ", "\t", "+", "-", "0", "3", "64", "4294967296", "=", ",", "\u{85}", "\0", "\u{fffd}", "lookup", "off"];
        let mut taken = 0;
        for _ in 0..20_000 {
            let knob = &KNOBS[next(KNOBS.len())];
            let text: String = (0..next(4)).map(|_| pieces[next(pieces.len())]).collect();
            let (mut before, mut live) = (config(), config());
            let is_set = before.set(&format!("{}={text}", knob.name)).is_ok();
            let setting = live.live_setting(knob.name, &text);
            assert_eq!(setting.is_ok(), is_set && LIVE_KNOBS.contains(&knob.name), "{}={text:?}", knob.name);
            if let Ok(setting) = setting {
                assert!(live.set_live(setting), "{}={text:?}", knob.name);
                assert_eq!(live.get(knob.name), before.get(knob.name), "{}={text:?}", knob.name);
                taken += 1;
            }
            // As a key it is none, or one.
            let _ = config().live_setting(&text, knob.name);
        }
        assert!(taken > 100, "{taken} of them were values");
    }
}
