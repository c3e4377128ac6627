//! `pagetide top [RUN]`: what the runs of this user do, on a screen that is drawn again each second, and keys that steer one.
//!
//! A look is one request to the run, a packet each way: the run's processes notice nothing of it. What is drawn follows from the
//! looks alone (`view`), and what a key does is one order, as of `pagetide ctl`: whoever ends here, by a key or by a signal, leaves
//! the runs as they are.

mod course;
mod ending;
mod memory;
mod memory_view;
mod view;

use std::io::{self, IsTerminal};
use std::time::Duration;

use pagetide_sys::clock;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::args::TopArgs;
use crate::backend::{self, Answer, Connection, Request, Snapshot, WatchError, unwatchable};
use crate::failure::{self, Exit, Failure};
use crate::size::Bytes;
use course::Course;
use ending::Ending;
use memory::MemoryCourse;
use view::{Screen, Shown};

/// A key changes the budget by one part in so many, or pages out as much of what is resident.
const BUDGET_STEP: u64 = 10;

/// So often the main loop looks whether it is to end. Well below the time it has for that.
const END_LOOK_NS: u64 = 100_000_000;

/// Shows them until a key ends it, or the run that was named ends.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    refuse_what_is_no_screen(std::env::var("TERM").ok().as_deref())?;
    let mut top = Top { interval_ns: args.interval, watched: None, list: Vec::new(), selected: 0, note: String::new() };
    if let Some(run) = &args.run {
        let connection = Connection::open(run).map_err(|error| unwatchable(run, &error))?;
        top.watched = Some(Watched::new(run.clone(), connection));
    }
    let is_named = args.run.is_some();
    top.look();
    let ending = Ending::watch().map_err(|error| terminal_failed(&error))?;
    let mut terminal = ratatui::try_init().map_err(|error| terminal_failed(&error))?;
    let end = top.go_on(&mut terminal, &ending, is_named);
    ending::give_back();
    // Also where the terminal failed: that it is gone is why.
    if let Some(signal) = ending.asked() {
        ending::die(signal);
    }
    match end.map_err(|error| terminal_failed(&error))? {
        End::Asked => Ok(()),
        End::Run(name, error) => {
            if error == WatchError::Ended {
                failure::say(format_args!("pagetide: {name}: the run has ended"));
                return Ok(());
            }
            Err(unwatchable(&name, &error))
        }
    }
}

fn terminal_failed(error: &io::Error) -> Failure {
    Failure::told(
        Exit::Failed,
        format!("top: the terminal cannot be used: {error}"),
        "`pagetide stat RUN --interval 1`",
    )
}

fn refuse_what_is_no_screen(term: Option<&str>) -> Result<(), Failure> {
    let remedy = "`pagetide stat RUN --interval 1` prints a line each second, `pagetide ps` the runs";
    let refuse = |what: &str| Err(Failure::told(Exit::Usage, format!("top: {what}"), remedy));
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return refuse("it needs a terminal to draw on and to take keys from, not a file or a pipe");
    }
    match term {
        None | Some("" | "dumb") => refuse("this terminal cannot be drawn on (TERM is not set, or dumb)"),
        Some(_) => Ok(()),
    }
}

/// The run that is looked at.
#[derive(Debug)]
struct Watched {
    name: String,
    connection: Connection,
    course: Course,
    /// The process that is marked, among those that are shown.
    selected: usize,
    /// Its memory, if that is looked at.
    memory: Option<MemoryCourse>,
}

impl Watched {
    fn new(name: String, connection: Connection) -> Self {
        Self { name, connection, course: Course::default(), selected: 0, memory: None }
    }

    /// Ask. Err: the run cannot be asked any more. Else what there is to be said.
    fn look(&mut self) -> Result<Option<String>, WatchError> {
        self.course.push(self.connection.stat()?);
        let count = self.course.last().map_or(0, |last| last.processes.len());
        self.selected = self.selected.min(count.saturating_sub(1));
        let Some(course) = &mut self.memory else { return Ok(None) };
        if let Some(memory) = self.connection.memory(course.pid)? {
            course.push(memory);
            return Ok(None);
        }
        let text = format!("process {} has ended, or is not paged: no memory to tell of", course.pid);
        self.memory = None;
        Ok(Some(text))
    }

    /// Look at the memory of the process that is marked.
    fn look_at_memory(&mut self) {
        let process = self.course.last().and_then(|last| last.processes.get(self.selected));
        self.memory = process.map(|process| MemoryCourse::new(process.pid));
    }

    /// No longer. What is said to that does not matter: the run may have ended.
    fn leave_memory(&mut self) {
        self.memory = None;
        let _ = self.connection.memory(0);
    }

    fn mark(&mut self, down: bool) {
        let (place, count) = match &mut self.memory {
            Some(memory) => {
                let count = memory.last().map_or(0, |last| last.regions.len());
                (&mut memory.first, count)
            }
            None => (&mut self.selected, self.course.last().map_or(0, |last| last.processes.len())),
        };
        *place = if down { (*place + 1).min(count.saturating_sub(1)) } else { place.saturating_sub(1) };
    }
}

/// Why it is over.
enum End {
    Asked,
    Run(String, WatchError),
}

/// What a key or a look led to.
enum Next {
    Stay,
    End(End),
}

/// Why a wait is over.
enum Woken {
    /// The next look is due.
    Due,
    Event(Event),
    /// A signal came, or the terminal is gone.
    Ended,
}

/// Wait for a key or the like, until the next look is due.
fn wait(next_look: u64, ending: &Ending) -> io::Result<Woken> {
    loop {
        if ending.asked().is_some() {
            return Ok(Woken::Ended);
        }
        let left = next_look.saturating_sub(clock::now());
        if event::poll(Duration::from_nanos(left.min(END_LOOK_NS)))? {
            return event::read().map(Woken::Event);
        }
        if left <= END_LOOK_NS {
            return Ok(Woken::Due);
        }
    }
}

#[derive(Debug)]
struct Top {
    interval_ns: u64,
    watched: Option<Watched>,
    /// The runs, where none is looked at.
    list: Vec<Snapshot>,
    selected: usize,
    /// What became of the last key.
    note: String,
}

impl Top {
    fn go_on(&mut self, terminal: &mut DefaultTerminal, ending: &Ending, is_named: bool) -> io::Result<End> {
        let mut next_look = clock::now() + self.interval_ns;
        loop {
            terminal.draw(|frame| view::draw(frame, &self.screen()))?;
            match wait(next_look, ending)? {
                Woken::Ended => return Ok(End::Asked),
                Woken::Event(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    if let Next::End(end) = self.press(key, is_named) {
                        return Ok(end);
                    }
                    continue;
                }
                Woken::Event(_) => continue,
                Woken::Due => {}
            }
            next_look = clock::now() + self.interval_ns;
            if let Some((name, error)) = self.look() {
                if is_named {
                    return Ok(End::Run(name, error));
                }
                self.note = format!("{name}: {error}");
                self.watched = None;
                self.look();
            }
        }
    }

    /// Ask. The run that cannot be asked any more, and why.
    fn look(&mut self) -> Option<(String, WatchError)> {
        let Some(watched) = &mut self.watched else {
            self.list = backend::runs().into_iter().flatten().collect();
            self.selected = self.selected.min(self.list.len().saturating_sub(1));
            return None;
        };
        match watched.look() {
            Ok(None) => None,
            Ok(Some(text)) => {
                self.note = text;
                None
            }
            Err(error) => Some((watched.name.clone(), error)),
        }
    }

    fn screen(&self) -> Screen<'_> {
        let shown = match &self.watched {
            Some(Watched { course, memory: Some(memory), .. }) => Shown::Memory { course, memory },
            Some(Watched { course, selected, .. }) => Shown::Run { course, selected: *selected },
            None => Shown::List { runs: &self.list, selected: self.selected },
        };
        Screen { shown, note: &self.note }
    }

    fn press(&mut self, key: KeyEvent, is_named: bool) -> Next {
        self.note.clear();
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
        if is_interrupt || key.code == KeyCode::Char('q') {
            return Next::End(End::Asked);
        }
        match (key.code, self.watched.is_some()) {
            (KeyCode::Esc, true) if self.watched.as_ref().is_some_and(|watched| watched.memory.is_some()) => {
                self.watched.iter_mut().for_each(Watched::leave_memory);
            }
            (KeyCode::Enter, true) => {
                self.watched.iter_mut().for_each(Watched::look_at_memory);
                self.look();
            }
            (KeyCode::Up, true) => self.watched.iter_mut().for_each(|watched| watched.mark(false)),
            (KeyCode::Down, true) => self.watched.iter_mut().for_each(|watched| watched.mark(true)),
            (KeyCode::Esc, true) if !is_named => {
                self.watched = None;
                self.look();
            }
            (KeyCode::Char('+'), true) => self.change_budget(|bytes| bytes.saturating_add(bytes / BUDGET_STEP)),
            (KeyCode::Char('-'), true) => self.change_budget(|bytes| bytes - bytes / BUDGET_STEP),
            (KeyCode::Char('o'), true) => self.page_out(),
            (KeyCode::Char('p'), true) => self.order(&Request::Pause),
            (KeyCode::Char('r'), true) => self.order(&Request::Resume),
            (KeyCode::Up, false) => self.selected = self.selected.saturating_sub(1),
            (KeyCode::Down, false) => self.selected = (self.selected + 1).min(self.list.len().saturating_sub(1)),
            (KeyCode::Enter, false) => self.choose(),
            _ => {}
        }
        Next::Stay
    }

    /// Look at the run that is marked in the list.
    fn choose(&mut self) {
        let Some(snapshot) = self.list.get(self.selected) else { return };
        let pid = snapshot.run.pid.to_string();
        let name = if snapshot.run.name.is_empty() { pid } else { snapshot.run.name.clone() };
        match Connection::open(&name) {
            Ok(connection) => {
                let mut watched = Watched::new(name, connection);
                watched.course.push(snapshot.clone());
                self.watched = Some(watched);
            }
            Err(error) => self.note = format!("{name}: {error}"),
        }
    }

    fn change_budget(&mut self, change: impl Fn(u64) -> u64) {
        let last = self.watched.as_ref().and_then(|watched| watched.course.last());
        if let Some(bytes) = last.map(|last| change(last.run.budget_bytes)) {
            self.note = format!("budget {}...", Bytes(bytes));
            self.order(&Request::Memory(bytes));
        }
    }

    fn page_out(&mut self) {
        let last = self.watched.as_ref().and_then(|watched| watched.course.last());
        if let Some(bytes) = last.map(|last| last.run.resident_bytes / BUDGET_STEP) {
            self.order(&Request::PageOut(bytes));
            self.note = format!("paging out {}: {}", Bytes(bytes), self.note);
        }
    }

    /// One order, and what the run says to it.
    fn order(&mut self, request: &Request) {
        let Some(watched) = &mut self.watched else { return };
        self.note = match watched.connection.ask(request) {
            Ok(Answer::Done(text) | Answer::Refused(text)) => text,
            Ok(Answer::Snapshot(_) | Answer::Regions(_)) => "the run answers what was not asked".to_owned(),
            Err(error) => error.to_string(),
        };
        self.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_screen_is_refused_with_the_way_out() {
        // The harness's output may be a terminal or not: a dumb one is refused in both cases.
        let Err(Failure::Told(told)) = refuse_what_is_no_screen(Some("dumb")) else { panic!("it cannot be drawn on") };
        assert_eq!(told.exit, Exit::Usage);
        assert!(told.remedy.contains("pagetide stat"), "{told}");
    }
}
