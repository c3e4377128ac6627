//! The language of scripts: a phase is a letter, some with a number.
//!
//! | phase | what it does |
//! | --- | --- |
//! | `w`, `r`, `b` | write all pages ascending; read all ascending; read all descending |
//! | `s`, `sN` | read every second, every Nth page |
//! | `RN`, `WN` | N random reads, writes |
//! | `x`, `X` | page 0 of each region, page 1 of each region...: read, write |
//! | `f`, `fN` | read the file in order, by calls of one page, of N pages |
//! | `FN` | read N pages of the file at random, each by a call |
//! | `m`, `MN` | load from every page of the mapped file ascending, from N pages at random |
//! | `aN` | N times: read a page at random, and the file's next page by a call |
//! | `AN` | N times: read a page at random, and a page of the file at random by a call |
//! | `t` | the trace |
//! | `LN` | the limit is N pages from now on |
//! | `oN` | swapoff of device N, the first being 0 |
//!
//! A script has a bound: so many accesses are played in minutes, more are a slip of the finger.

use pagetide_core::types::Access;

use super::ScriptError;

/// Accesses of a whole script, at most.
pub const ACCESSES_MAX: u64 = 2_000_000_000;

/// Pages of one call, at most.
pub const CALL_PAGES_MAX: u32 = 64;

/// One phase of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `w`.
    Write,
    /// `r`.
    Read,
    /// `b`.
    Back,
    /// `sN`.
    Stride(u32),
    /// `RN` and `WN`.
    Random(u64, Access),
    /// `x` and `X`.
    Turns(Access),
    /// `f` and `fN`: pages of a call.
    Calls(u32),
    /// `FN`.
    RandomCalls(u64),
    /// `m`.
    Mapped,
    /// `MN`.
    RandomMapped(u64),
    /// `aN` and `AN`: the file at random.
    Mixed(u64, bool),
    /// `t`.
    Trace,
    /// `LN`.
    Limit(u32),
    /// `oN`.
    Swapoff(u8),
}

impl Phase {
    /// It uses the file.
    pub(super) const fn needs_file(self) -> bool {
        matches!(self, Self::Calls(_) | Self::RandomCalls(_) | Self::Mapped | Self::RandomMapped(_) | Self::Mixed(..))
    }

    /// Accesses that the phase makes over so many pages.
    fn accesses(self, pages: u32, file: u32, trace: u64) -> u64 {
        match self {
            Self::Write | Self::Read | Self::Back | Self::Turns(_) => u64::from(pages),
            Self::Stride(step) => u64::from(pages.div_ceil(step)),
            Self::Calls(_) | Self::Mapped => u64::from(file),
            Self::Random(count, _) | Self::RandomCalls(count) | Self::RandomMapped(count) => count,
            Self::Mixed(count, _) => count.saturating_mul(2),
            Self::Trace => trace,
            Self::Limit(_) | Self::Swapoff(_) => u64::from(pages),
        }
    }
}

fn phase(word: &str) -> Option<Phase> {
    let mut letters = word.chars();
    let letter = letters.next()?;
    let number = letters.as_str();
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    match (letter, number) {
        ('w', "") => Some(Phase::Write),
        ('r', "") => Some(Phase::Read),
        ('b', "") => Some(Phase::Back),
        ('s', "") => Some(Phase::Stride(2)),
        ('x', "") => Some(Phase::Turns(Access::Read)),
        ('X', "") => Some(Phase::Turns(Access::Write)),
        ('f', "") => Some(Phase::Calls(1)),
        ('m', "") => Some(Phase::Mapped),
        ('t', "") => Some(Phase::Trace),
        ('s', _) if digits => number.parse().ok().filter(|step| *step > 0).map(Phase::Stride),
        ('R', _) if digits => Some(Phase::Random(count(number), Access::Read)),
        ('W', _) if digits => Some(Phase::Random(count(number), Access::Write)),
        ('f', _) if digits => number.parse().ok().filter(|n| (1..=CALL_PAGES_MAX).contains(n)).map(Phase::Calls),
        ('F', _) if digits => Some(Phase::RandomCalls(count(number))),
        ('M', _) if digits => Some(Phase::RandomMapped(count(number))),
        ('a' | 'A', _) if digits => Some(Phase::Mixed(count(number), letter == 'A')),
        ('L', _) if digits => number.parse().ok().map(Phase::Limit),
        ('o', _) if digits => number.parse().ok().map(Phase::Swapoff),
        _ => None,
    }
}

/// Digits as a number; too many of them are as bad as the largest.
fn count(digits: &str) -> u64 {
    digits.parse().unwrap_or(u64::MAX)
}

/// The phases of a script, with their spelling.
///
/// # Errors
/// The first word that is no phase, with its place.
pub fn parse(script: &str) -> Result<Vec<(String, Phase)>, ScriptError> {
    let named = |(at, word): (usize, &str)| {
        let error = || ScriptError::Phase { word: word.to_owned(), place: at + 1 };
        phase(word).map(|phase| (word.to_owned(), phase)).ok_or_else(error)
    };
    script.split_whitespace().enumerate().map(named).collect()
}

/// Refuses a script that would not end in a reasonable time.
pub(super) fn check_length(phases: &[(String, Phase)], pages: u32, file: u32, trace: u64) -> Result<(), ScriptError> {
    let mut all = 0u64;
    for (at, (word, phase)) in phases.iter().enumerate() {
        all = all.saturating_add(phase.accesses(pages, file, trace));
        if all > ACCESSES_MAX {
            return Err(ScriptError::TooLong { word: word.clone(), place: at + 1 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_phase_is_understood() {
        let phases = parse("w r b s s5 R7 W8 x X f f4 F9 m M6 a5 A4 t L100 o1").expect("all are phases");
        let phases: Vec<Phase> = phases.into_iter().map(|(_, phase)| phase).collect();
        let expected = [
            Phase::Write,
            Phase::Read,
            Phase::Back,
            Phase::Stride(2),
            Phase::Stride(5),
            Phase::Random(7, Access::Read),
            Phase::Random(8, Access::Write),
            Phase::Turns(Access::Read),
            Phase::Turns(Access::Write),
            Phase::Calls(1),
            Phase::Calls(4),
            Phase::RandomCalls(9),
            Phase::Mapped,
            Phase::RandomMapped(6),
            Phase::Mixed(5, false),
            Phase::Mixed(4, true),
            Phase::Trace,
            Phase::Limit(100),
            Phase::Swapoff(1),
        ];
        assert_eq!(phases, expected);
        for bad in ["s0", "f0", "f65", "F", "a", "m1", "R", "W-1", "R+1", "w1", "o", "o300", "L", "é", "R1é", "sé"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_script_without_end_is_refused_with_its_phase() {
        let phases = parse("w R999999999999999999999999").expect("phases");
        let error = check_length(&phases, 100, 0, 0).expect_err("too long");
        assert!(error.to_string().starts_with("phase 2: `R999999999999999999999999` makes"), "{error}");
        let many = parse(&"w ".repeat(100)).expect("phases");
        assert!(check_length(&many, 1 << 26, 0, 0).is_err(), "the sum counts");
        assert_eq!(check_length(&many, 1 << 20, 0, 0), Ok(()));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*", words in "([wrbsRWxXtLofFmMaA][0-9é]{0,30} ?){0,20}") {
            for script in [text, words] {
                if let Ok(phases) = parse(&script) {
                    let _ = check_length(&phases, u32::MAX, u32::MAX, u64::MAX);
                }
            }
        }
    }
}
