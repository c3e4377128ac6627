//! Commands to a run while it goes on: they reach every agent, and their answers are collected.
//!
//! How a control socket uses it, in the supervisor's loop:
//!
//! 1. a request becomes a [`RunCommand`]; [`Supervisor::command`] refuses it with an error and without having changed anything, or
//!    returns a [`Ticket`];
//! 2. at every turn [`Supervisor::outcome`] is asked with the ticket, until it is `Some`: every agent has answered, or ended. An agent
//!    answers within milliseconds, one whose process is stopped (SIGSTOP) when it goes on: whoever asks decides how long he
//!    waits, and may drop the ticket at any time ([`Supervisor::forget`]);
//! 3. `SwapOff` is over when [`Supervisor::places`] says so: its outcome only says that it has begun. Its progress is there, too.
//!
//! The budget is no command: `budget_pages` of the supervisor and of every agent's page is divided at the next turn.
//!
//! Agents that start later are told what holds then: a place that is on is in their hello; one that is being drained reaches the
//! agents of forked children, which inherit pages there.
//!
//! Invariant: an agent is sent commands only while its memory is managed: before, it waits for other answers on the same socket.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use pagetide_core::config::SwapoffMode;
use pagetide_core::types::Nanos;
use pagetide_sys::fd::Fd;
use pagetide_sys::{Errno, clock, socket};

use crate::control::PlaceWords;
use crate::error::{Error, ErrorKind};
use crate::protocol::DO;
use crate::session::command::{Answer, Command, PlaceId, PlaceState, Report};
use crate::setup;
use crate::space::PAGE_BYTES;
use crate::store::Traffic;
use crate::supervise::places::{Place, open_place};
use crate::supervise::{Supervisor, SwapSpec};
use crate::watch::is_same;

/// Answers that nobody has fetched yet, at most.
const TICKETS_MAX: usize = 1024;
/// Places of a run at one time, at most: a core knows 32 devices, those of forked parents included.
const PLACES_MAX: usize = 8;

/// What a run can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunCommand {
    /// A further place.
    SwapOn(SwapSpec),
    /// Bring back, or to other places, what is in this one; then forget it.
    SwapOff { path: PathBuf, mode: Option<SwapoffMode> },
    /// Use the place again that is being drained.
    StopSwapOff { path: PathBuf },
    /// A knob of the policy, in all processes and in those that start later.
    Set { knob: String, value: String },
    /// So many bytes leave that would stay, of each process as much as it is large.
    PageOut { bytes: u64 },
    /// Page nothing out: the budget does not hold.
    Pause,
    /// It holds again.
    Resume,
}

/// Names a command that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// What became of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Processes that were asked.
    pub(crate) asked: usize,
    /// Those that refused, and why.
    pub(crate) refused: Vec<(i32, String)>,
    /// What `Report` is answered with.
    pub(crate) reports: Vec<(i32, Report)>,
    /// What holds if nobody refused, in words.
    pub(crate) told: String,
}

/// How a place of the run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlaceStatus {
    pub(crate) path: PathBuf,
    pub(crate) state: PlaceState,
    pub(crate) priority: Option<i16>,
    /// What may be there at most, in pages: of a directory in the files of all processes that have pages there.
    pub(crate) size_pages: u64,
    /// Slots that hold something: of a place that is being drained, those that are left.
    pub(crate) used_pages: u64,
    /// Pages that could not be read back.
    pub(crate) lost_pages: u64,
    /// Reads and writes so far, by processes that live.
    pub(crate) traffic: [Traffic; 2],
    /// Pages a second that leave a place that is being drained; 0 if that is not known.
    pub(crate) rate: u64,
    /// Time until it is drained, at this rate.
    pub(crate) left_ns: Option<Nanos>,
}

/// A place that is being drained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    began: Nanos,
    began_with: u64,
    mode: Option<SwapoffMode>,
}

impl Drain {
    /// It begins now, with so many pages.
    pub(super) fn new(pages: u64, mode: Option<SwapoffMode>) -> Self {
        Self { began: clock::now(), began_with: pages, mode }
    }
}

#[derive(Debug)]
struct Pending {
    command: Command,
    left: Vec<i32>,
    outcome: Outcome,
}

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Commands {
    next: u64,
    pending: BTreeMap<u64, Pending>,
    /// What each process has yet to be told.
    queues: BTreeMap<i32, VecDeque<(u64, Command)>>,
}

impl Commands {
    /// Some agent has yet to be told of one, or to answer.
    pub(super) fn are_waiting(&self) -> bool {
        self.queues.values().any(|queue| !queue.is_empty())
            || self.pending.values().any(|pending| !pending.left.is_empty())
    }

    /// Process `pid` is not there any more, or another program: it answers nothing.
    pub(super) fn ended(&mut self, pid: i32) {
        self.queues.remove(&pid);
        for pending in self.pending.values_mut() {
            pending.left.retain(|&left| left != pid);
        }
    }

    /// True if process `pid` has yet to hear that it is to drain this place.
    pub(super) fn will_drain(&self, pid: i32, place: PlaceId) -> bool {
        let is_this = |command: &Command| matches!(command, Command::SwapOff { place: of, .. } if *of == place);
        self.queues.get(&pid).is_some_and(|queue| queue.iter().any(|(_, command)| is_this(command)))
    }

    /// The command that everybody has answered with this, if somebody refused it; and whether all did.
    fn note(&mut self, pid: i32, number: u64, answer: Answer) -> Option<(Command, bool)> {
        let pending = self.pending.get_mut(&number)?;
        let index = pending.left.iter().position(|&left| left == pid)?;
        pending.left.swap_remove(index);
        match answer {
            Answer::Done => {}
            Answer::Refused(why) => pending.outcome.refused.push((pid, crate::supervise::printable(why.as_bytes()))),
            Answer::Report(report) => pending.outcome.reports.push((pid, report)),
        }
        let refused = pending.outcome.refused.len();
        let is_over = pending.left.is_empty() && refused > 0;
        is_over.then(|| (pending.command.clone(), refused == pending.outcome.asked))
    }
}

impl Supervisor {
    /// Check a command, and hand it to all agents.
    pub(crate) fn command(&mut self, command: RunCommand) -> Result<Ticket, Error> {
        if self.commands.pending.len() >= TICKETS_MAX {
            return Err(Error::new(ErrorKind::Config, "too many commands are under way"));
        }
        let (ticket, told) = match command {
            RunCommand::SwapOn(spec) => self.begin_swapon(&spec)?,
            RunCommand::SwapOff { path, mode } => self.begin_swapoff(&path, mode)?,
            RunCommand::StopSwapOff { path } => self.begin_stop(&path)?,
            RunCommand::Set { knob, value } => self.begin_set(&knob, &value)?,
            RunCommand::PageOut { bytes } => self.begin_page_out(bytes)?,
            RunCommand::Pause => {
                self.is_paused = true;
                let told = "paging out is paused: the budget does not hold until `resume`";
                (self.tell_all(&Command::PauseReclaim), told.to_owned())
            }
            RunCommand::Resume => {
                self.is_paused = false;
                (self.tell_all(&Command::ResumeReclaim), "the budget holds".to_owned())
            }
        };
        if let Some(pending) = self.commands.pending.get_mut(&ticket.0) {
            pending.outcome.told = told;
        }
        Ok(ticket)
    }

    pub(super) fn tell_all(&mut self, command: &Command) -> Ticket {
        let linked = self.tree.list.iter().filter(|process| process.link.is_some());
        let orders = linked.map(|process| (process.pid, command.clone())).collect();
        self.tell_each(command, orders)
    }

    /// Each its part of a command.
    fn tell_each(&mut self, command: &Command, orders: Vec<(i32, Command)>) -> Ticket {
        let number = self.commands.next;
        self.commands.next += 1;
        let left: Vec<i32> = orders.iter().map(|(pid, _)| *pid).collect();
        for (pid, part) in orders {
            self.commands.queues.entry(pid).or_default().push_back((number, part));
        }
        let outcome = Outcome { asked: left.len(), ..Outcome::default() };
        self.commands.pending.insert(number, Pending { command: command.clone(), left, outcome });
        Ticket(number)
    }

    /// What became of a command; None while answers are missing. It is told once.
    pub(crate) fn outcome(&mut self, ticket: Ticket) -> Option<Outcome> {
        let pending = self.commands.pending.get(&ticket.0)?;
        if !pending.left.is_empty() {
            return None;
        }
        self.commands.pending.remove(&ticket.0).map(|pending| pending.outcome)
    }

    /// Nobody asks for this outcome any more. The command goes on.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.commands.pending.remove(&ticket.0);
    }

    /// The places of the run, those that are being drained included.
    pub(crate) fn places(&self) -> Vec<PlaceStatus> {
        self.places.iter().map(|place| self.status_of(place)).collect()
    }

    pub(super) fn status_of(&self, place: &Place) -> PlaceStatus {
        let id = place.offer.place;
        let (mut lost, mut is_full, mut has_failed) = (0_u64, false, false);
        let ((used, size), pages) = (self.used_and_size(place), self.pages_to_move(id));
        let mut traffic = [Traffic::default(); 2];
        for (_, words) in self.words_of_place(id) {
            lost = lost.saturating_add(words.lost.load(Ordering::Relaxed));
            is_full |= words.state() == PlaceState::Full;
            has_failed |= words.state() == PlaceState::Failed;
            traffic.iter_mut().zip(words.traffic()).for_each(|(sum, way)| sum.add(way));
        }
        let state = match place.drain {
            Some(_) if has_failed => PlaceState::Failed,
            Some(_) => PlaceState::Draining,
            None if place.is_given_up => PlaceState::GivenUp,
            None if has_failed => PlaceState::Failed,
            None if is_full => PlaceState::Full,
            None => PlaceState::Open,
        };
        let (rate, left_ns) = place.drain.map_or((0, None), |drain| {
            let (gone, took) = (drain.began_with.saturating_sub(pages), clock::now().saturating_sub(drain.began));
            let rate = u128::from(gone) * 1_000_000_000 / u128::from(took.max(1));
            let left = (gone > 0).then(|| u128::from(pages) * u128::from(took) / u128::from(gone));
            (u64::try_from(rate).unwrap_or(u64::MAX), left.and_then(|left| u64::try_from(left).ok()))
        });
        PlaceStatus {
            path: place.path.clone(),
            state,
            priority: place.offer.priority,
            size_pages: size,
            used_pages: used,
            lost_pages: lost,
            traffic,
            rate,
            left_ns,
        }
    }

    /// Slots of a place that hold something, and how many there may be. What a parent keeps for forked children is told by it and by
    /// them, of one file: it counts once, as the process has it that has most of it. That is whose file it is, as long as it lives.
    fn used_and_size(&self, place: &Place) -> (u64, u64) {
        let mut files = BTreeMap::new();
        for link in self.tree.list.iter().filter_map(|process| process.link.as_ref()) {
            for (file, used) in link.control.entry().files.iter().filter_map(|words| words.of(place.offer.place)) {
                let most = files.entry(file).or_insert(0);
                *most = used.max(*most);
            }
        }
        let used = files.values().copied().fold(0, u64::saturating_add);
        let own = u64::from(place.offer.slots).saturating_sub(1);
        // A device is shared by all, and in a directory each has a file.
        let files = if place.is_device() { 1 } else { files.len() as u64 };
        (used, own.saturating_mul(files.max(1)).max(used))
    }

    /// Pages of all processes in a place, which are moved one by one when it is drained: what several have since a fork is of each.
    pub(super) fn pages_to_move(&self, place: PlaceId) -> u64 {
        self.words_of_place(place).map(|(_, words)| words.pages()).fold(0, u64::saturating_add)
    }

    /// What each agent says of a place.
    pub(super) fn words_of_place(&self, place: PlaceId) -> impl Iterator<Item = (i32, &PlaceWords)> {
        let linked = self.tree.list.iter().filter_map(|process| Some((process.pid, process.link.as_ref()?)));
        linked.filter_map(move |(pid, link)| Some((pid, link.control.entry().place(place)?)))
    }

    fn find_place(&self, path: &Path) -> Result<usize, Error> {
        let found = self.places.iter().position(|place| is_same(&place.path, path));
        found
            .ok_or_else(|| Error::new(ErrorKind::Config, format!("{}: the run has no such swap place", path.display())))
    }

    fn begin_swapon(&mut self, spec: &SwapSpec) -> Result<(Ticket, String), Error> {
        if self.places.iter().any(|place| is_same(&place.path, &spec.path)) {
            let text = format!("{}: the run swaps there already", spec.path.display());
            return Err(Error::new(ErrorKind::Config, text));
        }
        if self.places.len() >= PLACES_MAX {
            return Err(Error::new(ErrorKind::Config, format!("a run has at most {PLACES_MAX} swap places")));
        }
        let shown = spec.path.display();
        let place = open_place(spec, self.next_place(), self.budget_pages)
            .map_err(|why| Error::new(ErrorKind::NoSwapSpace, format!("{shown}: {why}")))?;
        let offer = place.offer;
        let whose = if place.is_device() { "" } else { " of each process" };
        self.places.push(place);
        // What was given up may fit now.
        self.places.iter_mut().for_each(|place| place.is_given_up = false);
        let when = offer.priority.map_or_else(|| "used last".to_owned(), |priority| format!("priority {priority}"));
        let told = format!("{shown}: up to {} MiB{whose} are swapped there, {when}", offer.slots >> 8);
        Ok((self.tell_all(&Command::SwapOn(offer)), told))
    }

    fn next_place(&mut self) -> PlaceId {
        self.places_made += 1;
        PlaceId(self.places_made - 1)
    }

    fn begin_swapoff(&mut self, path: &Path, mode: Option<SwapoffMode>) -> Result<(Ticket, String), Error> {
        let index = self.find_place(path)?;
        let used = self.status_of(&self.places[index]).used_pages;
        let told = format!("{}: it is being emptied, {} MiB are there", path.display(), used.div_ceil(256));
        if let Some(drain) = self.places[index].drain {
            // Who was interrupted may wait for it again.
            if mode.is_none_or(|mode| drain.mode == Some(mode)) {
                let command = Command::SwapOff { place: self.places[index].offer.place, mode };
                return Ok((self.tell_each(&command, Vec::new()), told));
            }
            let text =
                format!("{}: it is being emptied already, with other statistics: stop that first", path.display());
            return Err(Error::new(ErrorKind::Config, text));
        }
        if !self.places.iter().enumerate().any(|(other, place)| other != index && place.drain.is_none()) {
            let text = format!("{}: it is the only place: swap on another first", path.display());
            return Err(Error::new(ErrorKind::NoSwapSpace, text));
        }
        self.check_that_it_fits(index)?;
        let pages = self.pages_to_move(self.places[index].offer.place);
        let place = &mut self.places[index];
        place.drain = Some(Drain::new(pages, mode));
        place.is_given_up = false;
        let command = Command::SwapOff { place: place.offer.place, mode };
        Ok((self.tell_all(&command), told))
    }

    /// What is in the place has room in the others and in the budget, of each process and on the disks.
    fn check_that_it_fits(&self, index: usize) -> Result<(), Error> {
        let place = &self.places[index];
        let refuse = |needed: u64, room: u64, what: &str| {
            let text = format!(
                "{}: {} MiB are there, and {} MiB are free {what}: give another place or more memory first",
                place.path.display(),
                needed.div_ceil(256),
                room >> 8
            );
            Err(Error::new(ErrorKind::NoSwapSpace, text))
        };
        let others: Vec<&Place> = self
            .places
            .iter()
            .filter(|other| other.offer.place != place.offer.place && other.drain.is_none())
            .collect();
        let mut needed_in_all = 0_u64;
        for (pid, words) in self.words_of_place(place.offer.place) {
            let Some(process) = self.tree.process(pid) else { continue };
            let Some(entry) = process.link.as_ref().map(|link| link.control.entry()) else { continue };
            let needed = words.pages();
            needed_in_all = needed_in_all.saturating_add(needed);
            let free = |other: &&Place| {
                let words = entry.place(other.offer.place);
                let used = words.map_or(0, |words| words.used.load(Ordering::Relaxed));
                let slots = match words {
                    Some(words) if words.state() == PlaceState::Full => words.backed.load(Ordering::Relaxed),
                    Some(_) | None => u64::from(other.offer.slots).saturating_sub(1),
                };
                slots.saturating_sub(used)
            };
            // A share grows when it is needed, into what nobody has.
            let in_memory = entry.share_pages.load(Ordering::Relaxed).saturating_sub(process.resident);
            let in_memory = in_memory.max(self.left_pages());
            let room = others.iter().map(free).fold(in_memory, u64::saturating_add);
            if needed > room {
                return refuse(needed, room, &format!("elsewhere for process {pid}"));
            }
        }
        let mut counted = Vec::new();
        let mut room = self.left_pages();
        for other in others {
            let file_system = other.file_system();
            let is_counted = file_system.is_some() && counted.contains(&file_system);
            let free = if is_counted { 0 } else { other.free_pages() };
            room = room.saturating_add(free).saturating_add(self.backed_unused(other));
            counted.push(file_system);
        }
        if needed_in_all > room { refuse(needed_in_all, room, "on other disks and in memory") } else { Ok(()) }
    }

    /// Pages that the agents may still write to a place in slots that are backed already.
    fn backed_unused(&self, place: &Place) -> u64 {
        let unused = |words: &PlaceWords| {
            words.backed.load(Ordering::Relaxed).saturating_sub(words.used.load(Ordering::Relaxed))
        };
        self.words_of_place(place.offer.place).map(|(_, words)| unused(words)).fold(0, u64::saturating_add)
    }

    fn begin_stop(&mut self, path: &Path) -> Result<(Ticket, String), Error> {
        let index = self.find_place(path)?;
        let place = &mut self.places[index];
        if place.drain.take().is_none() {
            return Err(Error::new(ErrorKind::Config, format!("{}: it is not being emptied", path.display())));
        }
        let command = Command::StopSwapOff { place: place.offer.place };
        let told = format!("{}: in use again; what was brought back stays where it is", path.display());
        Ok((self.tell_all(&command), told))
    }

    fn begin_page_out(&mut self, bytes: u64) -> Result<(Ticket, String), Error> {
        let refused = |text: &str| Err(Error::new(ErrorKind::Config, text));
        if self.is_paused {
            return refused("paging out is paused: `resume` first");
        }
        let pages = bytes / PAGE_BYTES;
        if pages == 0 {
            return refused("less than a page of 4 KiB cannot be paged out");
        }
        let managed: Vec<_> = self.tree.list.iter().filter(|process| process.is_managed()).collect();
        let resident = managed.iter().fold(0, |sum: u64, process| sum.saturating_add(process.resident));
        if resident == 0 {
            return refused("nothing of the run is paged: it has not come near its budget");
        }
        // More than all is all.
        let pages = pages.min(resident);
        let part =
            |of: u64| u32::try_from(u128::from(pages) * u128::from(of) / u128::from(resident)).unwrap_or(u32::MAX);
        let orders = managed.iter().map(|process| (process.pid, Command::PageOut { pages: part(process.resident) }));
        let orders = orders.collect();
        let told = format!("up to {} MiB of {} MiB leave", pages >> 8, resident >> 8);
        Ok((self.tell_each(&Command::PageOut { pages: part(resident) }, orders), told))
    }

    fn begin_set(&mut self, knob: &str, value: &str) -> Result<(Ticket, String), Error> {
        let (knob, value) = (knob.trim().to_owned(), value.trim().to_owned());
        setup::check_live(&knob, &value).map_err(|text| Error::new(ErrorKind::Config, text))?;
        self.hello.settings.retain(|(known, _)| *known != knob);
        self.hello.settings.push((knob.clone(), value.clone()));
        let told = format!("{knob}={value}");
        Ok((self.tell_all(&Command::Set { knob, value }), told))
    }

    /// Commands that a new agent has to hear beside its hello.
    pub(super) fn greet(&mut self, pid: i32, is_forked: bool) {
        let drained = self.places.iter().filter(|_| is_forked);
        let drained = drained.filter_map(|place| place.drain.map(|drain| (place.offer.place, drain.mode)));
        let mut orders: VecDeque<_> =
            drained.map(|(place, mode)| (u64::MAX, Command::SwapOff { place, mode })).collect();
        if self.is_paused {
            orders.push_back((u64::MAX, Command::PauseReclaim));
        }
        self.commands.queues.insert(pid, orders);
    }

    /// Tell the agents what they have yet to be told.
    pub(super) fn serve_commands(&mut self) {
        let mut refused = Vec::new();
        for process in &self.tree.list {
            let Some(link) = process.link.as_ref().filter(|link| link.control.entry().is_managed()) else { continue };
            let Some(queue) = self.commands.queues.get_mut(&process.pid) else { continue };
            while let Some((number, command)) = queue.front() {
                match files_of(command, &self.places) {
                    Ok((file, claim)) => {
                        let fds: Vec<&Fd> = file.iter().chain(claim).collect();
                        // Not told: the agent has to read what is there first. Any other error is its end, which is about to be seen.
                        if tell(&link.socket, *number, command, &fds) == Err(Errno::EAGAIN) {
                            break;
                        }
                    }
                    Err(why) => refused.push((process.pid, *number, why)),
                }
                queue.pop_front();
            }
        }
        for (pid, number, why) in refused {
            self.note_answer(pid, number, Answer::Refused(why));
        }
    }

    /// An agent's answer.
    pub(super) fn hear_answer(&mut self, pid: i32, text: &[u8]) {
        let Ok(text) = std::str::from_utf8(text) else { return };
        let Some((number, answer)) = text.split_once(' ') else { return };
        if let (Ok(number), Some(answer)) = (number.parse(), Answer::decode(answer)) {
            self.note_answer(pid, number, answer);
        }
    }

    fn note_answer(&mut self, pid: i32, number: u64, answer: Answer) {
        match self.commands.note(pid, number, answer) {
            Some((Command::SwapOff { place, .. }, _)) => self.drain_refused(place),
            Some((Command::SwapOn(offer), true)) => self.place_refused(offer.place),
            Some(_) | None => {}
        }
    }
}

/// The descriptors that belong to a command: an empty swap file, and what keeps others from its device. The error says why there can be
/// none.
fn files_of<'a>(command: &Command, places: &'a [Place]) -> Result<(Option<Fd>, Option<&'a Fd>), String> {
    match command {
        Command::SwapOn(offer) => {
            let place = places.iter().find(|known| known.offer.place == offer.place);
            let place = place.ok_or_else(|| "the place was given up".to_owned())?;
            Ok((Some(place.new_file()?), place.claim()))
        }
        Command::SetBudget { .. }
        | Command::Set { .. }
        | Command::SwapOff { .. }
        | Command::StopSwapOff { .. }
        | Command::PageOut { .. }
        | Command::PauseReclaim
        | Command::ResumeReclaim
        | Command::Report => Ok((None, None)),
    }
}

fn tell(socket: &Fd, number: u64, command: &Command, fds: &[&Fd]) -> Result<(), Errno> {
    let mut packet = DO.to_vec();
    packet.extend(format!("{number} {}", command.encode()).as_bytes());
    socket::send(socket, &packet, fds, false)
}
