//! Swap places of a pool that come and go, and settings that change, while its regions are in use.

use std::path::{Path, PathBuf};

use pagetide_core::types::DeviceId;
use pagetide_sys::fd::Fd;
use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::{clock, file};

use super::{Place, Pool, slots_of};
use crate::protocol::DeviceOffer;
use crate::session::command::{Answer, Command, PlaceId, PlaceState};
use crate::setup;
use crate::store::SwapFile;
use crate::{Error, ErrorKind};

/// How a swap place of a pool stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapPlace {
    /// The directory, as it was named.
    pub directory: PathBuf,
    /// What it is used for.
    pub state: SwapState,
    /// Bytes of pages that are there: of a place that is being drained, those that are left.
    pub used_bytes: u64,
    /// Bytes of pages that could not be read back.
    pub lost_bytes: u64,
}

/// What a swap place is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwapState {
    /// Pages go there.
    Open,
    /// It takes no more pages: its disk is full up to the floor, or writes have failed.
    Full,
    /// It is being drained.
    Draining,
    /// It is being drained because reads or writes fail.
    Failed,
    /// What was left of it had no room in other places or in the budget: it is used again.
    GivenUp,
}

/// An open directory for swap files, and what is to be known of it.
pub(super) fn open(place: &Place, id: PlaceId) -> Result<(Fd, DeviceOffer), Error> {
    let refuse = |text: String| refusal(&place.directory, &text);
    let path = std::ffi::CString::new(place.directory.as_os_str().as_encoded_bytes())
        .map_err(|_| refuse("a zero byte in its name".to_owned()))?;
    let directory = Fd::open(&path, file::flags::DIRECTORY, 0)
        .map_err(|errno| refuse(format!("it cannot be opened ({})", errno.name())))?;
    let info = file::fs_info(&directory).map_err(|errno| refuse(errno.name().to_string()))?;
    if info.kind.is_memory() {
        return Err(refuse("it lies in memory (tmpfs); name a directory on a disk".to_owned()));
    }
    let offer = DeviceOffer {
        place: id,
        slots: slots_of(place.bytes),
        priority: place.priority,
        rotational: setup::is_rotational(&place.directory),
        division: None,
    };
    Ok((directory, offer))
}

pub(super) fn refusal(directory: &Path, text: &str) -> Error {
    Error::new(ErrorKind::NoSwapSpace, format!("the swap place {}: {text}", directory.display()))
}

impl Pool {
    /// Use a further swap place, as [`super::PoolBuilder::swap_with_priority`] does; without a priority it is filled after those
    /// that have one. Up to 32 places at a time.
    ///
    /// # Errors
    /// `Config`: the pool swaps there already. `NoSwapSpace`: the place cannot be used, or has no room.
    pub fn swapon(&self, directory: impl Into<PathBuf>, bytes: u64, priority: Option<i16>) -> Result<(), Error> {
        let place = Place { directory: directory.into(), bytes, priority };
        let mut state = self.running.shared.lock("a new place");
        if state.places.iter().any(|(_, known)| *known == place.directory) {
            drop(state);
            let text = format!("the pool swaps to {} already", place.directory.display());
            return Err(Error::new(ErrorKind::Config, text));
        }
        let id = PlaceId(state.places_made);
        state.places_made += 1;
        drop(state);
        let (directory, offer) = open(&place, id)?;
        let file = setup::swap_file(&directory)
            .map_err(|errno| refusal(&place.directory, &format!("no swap file can be made ({})", errno.name())))?;
        self.carry_out(Command::SwapOn(offer), Some(file.into())).map_err(|text| refusal(&place.directory, &text))?;
        self.running.shared.lock("a new place").places.push((id, place.directory));
        Ok(())
    }

    /// Begin to bring back what is in this swap place, or to move it to others, and close it then. It takes no new pages from now
    /// on. [`Pool::swap_places`] tells how far it is; when it is over the place is in that list no more. What readahead learns of it
    /// says the setting `swapoff` (see [`Pool::set`]).
    ///
    /// # Errors
    /// `Config`: the pool has no such place. `NoSwapSpace`: what is there fits neither into other places nor into the budget, or it
    /// is being drained already; nothing has changed then.
    pub fn swapoff(&self, directory: impl AsRef<Path>) -> Result<(), Error> {
        let (place, directory) = (self.place(directory.as_ref())?, directory.as_ref());
        self.carry_out(Command::SwapOff { place, mode: None }, None).map_err(|text| refusal(directory, &text))
    }

    /// Use the place again that [`Pool::swapoff`] drains. What was brought back stays where it is.
    ///
    /// # Errors
    /// `Config`: the pool has no such place.
    pub fn stop_swapoff(&self, directory: impl AsRef<Path>) -> Result<(), Error> {
        let (place, directory) = (self.place(directory.as_ref())?, directory.as_ref());
        self.carry_out(Command::StopSwapOff { place }, None).map_err(|text| refusal(directory, &text))
    }

    /// The swap places, in the order in which they came.
    pub fn swap_places(&self) -> Vec<SwapPlace> {
        let mut places = Vec::with_capacity(32);
        let mut state = self.running.shared.lock("places");
        let reports: Vec<_> = state.session.places().collect();
        state
            .places
            .retain(|(id, _)| reports.iter().any(|report| report.place == *id && report.state != PlaceState::Gone));
        for (id, directory) in &state.places {
            let Some(report) = reports.iter().find(|report| report.place == *id) else { continue };
            places.push(SwapPlace {
                directory: directory.clone(),
                state: match report.state {
                    PlaceState::Open | PlaceState::Gone => SwapState::Open,
                    PlaceState::Full => SwapState::Full,
                    PlaceState::Draining => SwapState::Draining,
                    PlaceState::Failed => SwapState::Failed,
                    PlaceState::GivenUp => SwapState::GivenUp,
                },
                used_bytes: report.used * PAGE_BYTES as u64,
                lost_bytes: report.lost * PAGE_BYTES as u64,
            });
        }
        drop(state);
        places
    }

    /// Change a knob of docs/knobs.md while the pool is in use.
    ///
    /// # Errors
    /// `Config`: there is no such knob or value, or it can be chosen for a new pool only.
    pub fn set(&self, key: &str, value: &str) -> Result<(), Error> {
        let command = Command::Set { knob: key.to_owned(), value: value.to_owned() };
        self.carry_out(command, None).map_err(|text| Error::new(ErrorKind::Config, text))
    }

    /// Page nothing out any more until [`Pool::resume_paging_out`]: the budget does not hold meanwhile.
    pub fn pause_paging_out(&self) {
        let done = self.carry_out(Command::PauseReclaim, None);
        debug_assert!(done.is_ok(), "there is nothing to refuse: {done:?}");
    }

    /// The budget holds again; what exceeds it leaves memory in the background.
    pub fn resume_paging_out(&self) {
        let done = self.carry_out(Command::ResumeReclaim, None);
        debug_assert!(done.is_ok(), "there is nothing to refuse: {done:?}");
    }

    fn place(&self, directory: &Path) -> Result<PlaceId, Error> {
        let state = self.running.shared.lock("a place");
        let found = state.places.iter().find(|(_, known)| known == directory).map(|(id, _)| *id);
        drop(state);
        let text = || format!("the pool has no swap place {}", directory.display());
        found.ok_or_else(|| Error::new(ErrorKind::Config, text()))
    }

    /// Carry a command out at once. The error says why it was refused.
    pub(super) fn carry_out(&self, command: Command, file: Option<SwapFile>) -> Result<(), String> {
        let shared = &self.running.shared;
        let answer = shared.lock("a command").session.carry_out(clock::now(), command, file);
        shared.sleepers.ring();
        match answer {
            Answer::Done | Answer::Report(_) => Ok(()),
            Answer::Refused(why) => Err(why),
        }
    }
}

/// The places of a new pool, by the numbers of their devices.
pub(super) fn named(places: &[Place]) -> Vec<(PlaceId, PathBuf)> {
    (0..).map(PlaceId).zip(places.iter().map(|place| place.directory.clone())).collect()
}

/// The place that a new pool's device lies in.
pub(super) fn of_device(device: DeviceId) -> PlaceId {
    PlaceId(u32::from(device.0))
}
