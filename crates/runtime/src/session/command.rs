//! What a session can be asked for while it runs, and what it answers: values, and their form in a packet.
//!
//! A command takes effect between two turns of the session, and is answered at once. What takes long (`SwapOff`) is begun by its
//! command; how far it is tells [`Report`], and it ends when the place is [`PlaceState::Gone`].
//!
//! Packets come from processes of the program, too: decoding checks numbers and ranges, and touches nothing else.

use std::fmt::Write as _;

use pagetide_core::config::SwapoffMode;

use crate::protocol::DeviceOffer;

/// A place to swap to, by its number in the run or the pool. Numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceId(pub(crate) u32);

/// An order to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The session's memory may be this large from now on.
    SetBudget { bytes: u64 },
    /// A knob of the policy has this value from now on.
    Set { knob: String, value: String },
    /// A further place; its empty swap file comes beside the command.
    SwapOn(DeviceOffer),
    /// Take nothing into the place any more, and bring back what is there. `mode`: what the statistics of readahead learn; `None`: as
    /// the settings say.
    SwapOff { place: PlaceId, mode: Option<SwapoffMode> },
    /// Let the place be used again: what was brought back stays where it is.
    StopSwapOff { place: PlaceId },
    /// So many pages leave that would stay. Begun at once; it ends when they have left, or when no more do.
    PageOut { pages: u32 },
    /// Page nothing out any more: the budget does not hold until `ResumeReclaim`.
    PauseReclaim,
    /// The budget holds again.
    ResumeReclaim,
    /// How it stands.
    Report,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It holds, or has begun.
    Done,
    /// It cannot be; nothing has changed. Why.
    Refused(String),
    /// Of `Report`.
    Report(Report),
}

/// How a session stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) budget_pages: u64,
    pub(crate) charged_pages: u64,
    pub(crate) is_paused: bool,
    pub(crate) places: Vec<PlaceReport>,
}

/// How a place of a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceReport {
    pub(crate) place: PlaceId,
    pub(crate) state: PlaceState,
    /// Slots in use of its own file, those that forked children need included.
    pub(crate) used: u64,
    /// Slots of forked parents' files in which it has pages.
    pub(crate) inherited: u64,
    /// Slots that are backed with disk space; of a place that takes no pages, those in use.
    pub(crate) backed: u64,
    /// Pages that could not be read back.
    pub(crate) lost: u64,
}

impl PlaceReport {
    /// Nothing is there.
    pub(crate) const fn empty(place: PlaceId, state: PlaceState) -> Self {
        Self { place, state, used: 0, inherited: 0, backed: 0, lost: 0 }
    }
}

/// What a place is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceState {
    /// Pages go there.
    Open,
    /// It takes no more pages: the disk is full, or writes have failed.
    Full,
    /// It is being drained.
    Draining,
    /// It is being drained because reads or writes fail.
    Failed,
    /// It was being drained, and what is left fits nowhere else.
    GivenUp,
    /// No page of the session is there, and no child of the session needs it.
    Gone,
}

/// Places in a report at most.
const PLACES_MAX: usize = 256;

const STATES: [(&str, PlaceState); 6] = [
    ("open", PlaceState::Open),
    ("full", PlaceState::Full),
    ("draining", PlaceState::Draining),
    ("failed", PlaceState::Failed),
    ("given-up", PlaceState::GivenUp),
    ("gone", PlaceState::Gone),
];

impl PlaceState {
    /// By number.
    pub(crate) fn from_word(word: u32) -> Option<Self> {
        STATES.iter().map(|(_, state)| *state).find(|state| *state as u32 == word)
    }

    /// As it is spelled.
    pub(crate) fn name(self) -> &'static str {
        STATES.iter().find(|(_, state)| *state == self).map_or("", |(name, _)| name)
    }

    fn parse(text: &str) -> Option<Self> {
        STATES.iter().find(|(name, _)| *name == text).map(|(_, state)| *state)
    }
}

impl Command {
    /// As text, one line.
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::SetBudget { bytes } => format!("budget {bytes}"),
            Self::Set { knob, value } => format!("set {knob} {value}"),
            Self::SwapOn(offer) => format!("swapon {}", offer.encode()),
            Self::SwapOff { place, mode } => format!("swapoff {} {}", place.0, mode.map_or("auto", SwapoffMode::name)),
            Self::StopSwapOff { place } => format!("stop-swapoff {}", place.0),
            Self::PageOut { pages } => format!("page-out {pages}"),
            Self::PauseReclaim => "pause".to_owned(),
            Self::ResumeReclaim => "resume".to_owned(),
            Self::Report => "report".to_owned(),
        }
    }

    /// From text; None if it is no command.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut words = rest.split(' ');
        let mut next = || words.next().filter(|word| !word.is_empty());
        let command = match verb {
            "budget" => Self::SetBudget { bytes: next()?.parse().ok()? },
            "set" => {
                let (knob, value) = rest.split_once(' ')?;
                return Some(Self::Set { knob: knob.to_owned(), value: value.to_owned() });
            }
            "swapon" => Self::SwapOn(DeviceOffer::decode(&mut std::iter::from_fn(&mut next))?),
            "swapoff" => {
                let place = PlaceId(next()?.parse().ok()?);
                let mode = match next()? {
                    "auto" => None,
                    name => Some(SwapoffMode::parse(name)?),
                };
                Self::SwapOff { place, mode }
            }
            "stop-swapoff" => Self::StopSwapOff { place: PlaceId(next()?.parse().ok()?) },
            "page-out" => Self::PageOut { pages: next()?.parse().ok()? },
            "pause" => Self::PauseReclaim,
            "resume" => Self::ResumeReclaim,
            "report" => Self::Report,
            _ => return None,
        };
        next().is_none().then_some(command)
    }
}

impl Answer {
    /// As text, one line and one for each place.
    pub(crate) fn encode(&self) -> String {
        match self {
            Self::Done => "done".to_owned(),
            Self::Refused(why) => format!("refused {why}"),
            Self::Report(report) => {
                let mut text =
                    format!("report {} {} {}", report.budget_pages, report.charged_pages, u8::from(report.is_paused));
                for PlaceReport { place, state, used, inherited, backed, lost } in &report.places {
                    write!(text, "\n{} {} {used} {inherited} {backed} {lost}", place.0, state.name())
                        .expect("writing to a String does not fail");
                }
                text
            }
        }
    }

    /// From text; None if it is no answer.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        match verb {
            "done" if rest.is_empty() => Some(Self::Done),
            "refused" => Some(Self::Refused(rest.to_owned())),
            "report" => Report::decode(rest).map(Self::Report),
            _ => None,
        }
    }
}

impl Report {
    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let mut words = lines.next()?.split(' ');
        let mut next = || words.next()?.parse::<u64>().ok();
        let mut report =
            Self { budget_pages: next()?, charged_pages: next()?, is_paused: next()? == 1, ..Self::default() };
        if next().is_some() {
            return None;
        }
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let &[place, state, used, inherited, backed, lost] = words.as_slice() else { return None };
            if report.places.len() == PLACES_MAX {
                return None;
            }
            report.places.push(PlaceReport {
                place: PlaceId(place.parse().ok()?),
                state: PlaceState::parse(state)?,
                used: used.parse().ok()?,
                inherited: inherited.parse().ok()?,
                backed: backed.parse().ok()?,
                lost: lost.parse().ok()?,
            });
        }
        Some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_answers_are_decoded_as_they_were_encoded() {
        let (place, division) = (PlaceId(7), crate::extents::Division::of(512, 3).expect("a good division"));
        let commands = [
            Command::SetBudget { bytes: 1 << 33 },
            Command::Set { knob: "swappiness".to_owned(), value: "60".to_owned() },
            Command::SwapOn(DeviceOffer { place, slots: 512, priority: Some(5), rotational: true, division: None }),
            Command::SwapOn(DeviceOffer { place, slots: 512, priority: None, rotational: false, division }),
            Command::SwapOff { place, mode: None },
            Command::SwapOff { place, mode: Some(SwapoffMode::LookupStats) },
            Command::StopSwapOff { place },
            Command::PageOut { pages: 7 },
            Command::PauseReclaim,
            Command::ResumeReclaim,
            Command::Report,
        ];
        for command in commands {
            assert_eq!(Command::decode(&command.encode()), Some(command));
        }
        let places = vec![
            PlaceReport { place, state: PlaceState::Draining, used: 1, inherited: 4, backed: 2, lost: 3 },
            PlaceReport::empty(PlaceId(0), PlaceState::Gone),
        ];
        let report = Report { budget_pages: 5, charged_pages: 4, is_paused: true, places };
        for answer in [Answer::Done, Answer::Refused("no room: 3 of 4".to_owned()), Answer::Report(report)] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for text in [
            "",
            "swapon 1 2",
            "swapon 1 2 -3 0 0 0",
            "swapon 1 2 3 0 0 1",
            "swapon 1 2 3 0 1000 4",
            "swapoff x auto",
            "swapoff 1 never",
            "pause 1",
            "budget 1 2",
            "set x",
            "page-out -1",
        ] {
            assert_eq!(Command::decode(text), None, "{text}");
        }
        for text in ["done 1", "report 1 2", "report 1 2 3 4", "report 1 2 0\n1 open 2 3", "report 1 2 0\n1 shut 2 3 4"]
        {
            assert_eq!(Answer::decode(text), None, "{text}");
        }
    }
}
