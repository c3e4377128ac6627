//! What is drawn: a function of the looks, the size of the screen and nothing else.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span as Piece};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};

use super::course::{Course, Flow, ProcessSpan};
use crate::backend::{DeviceView, RunView, Snapshot};
use crate::ps::plain;
use crate::size::Short;
use crate::snapshot::state;

/// Less than this is no screen.
const WIDTH_MIN: u16 = 60;
const HEIGHT_MIN: u16 = 12;
/// Lines of the course of waiting.
const COURSE_LINES: u16 = 5;
/// Places that are shown at most.
const PLACES_MAX: usize = 6;

/// What is looked at.
#[derive(Debug)]
pub(super) enum Shown<'a> {
    List { runs: &'a [Snapshot], selected: usize },
    Run(&'a Course),
}

/// All that a screen says.
#[derive(Debug)]
pub(super) struct Screen<'a> {
    pub(super) shown: Shown<'a>,
    /// What became of the last key; empty: nothing.
    pub(super) note: &'a str,
}

/// Draws it.
pub(super) fn draw(frame: &mut Frame, screen: &Screen) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        frame.render_widget(format!("at least {WIDTH_MIN} x {HEIGHT_MIN}, please (q: quit)"), area);
        return;
    }
    let [title, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]).areas(area);
    let (head, keys) = match &screen.shown {
        Shown::List { runs, selected } => {
            draw_list(frame, body, runs, *selected);
            (format!(" pagetide top: {} runs", runs.len()), " up/down, enter: look at a run   q: quit")
        }
        Shown::Run(course) => {
            draw_run(frame, body, course);
            let head = course.last().map_or_else(String::new, title_of);
            (head, " +/-: budget, a tenth   o: page out a tenth   p/r: pause, resume   esc   q: quit")
        }
    };
    frame.render_widget(Line::from(head).style(Style::new().add_modifier(Modifier::REVERSED)), title);
    let text = if screen.note.is_empty() { keys.to_owned() } else { format!(" {}", plain(screen.note)) };
    frame.render_widget(Line::from(text).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn title_of(snapshot: &Snapshot) -> String {
    let RunView { name, pid, .. } = &snapshot.run;
    let name = if name.is_empty() { "-" } else { name };
    format!(" pagetide top: {} ({pid})  {}", plain(name), plain(&snapshot.command))
}

fn draw_list(frame: &mut Frame, area: Rect, runs: &[Snapshot], selected: usize) {
    let head = ["", "NAME", "PID", "BUDGET", "RESIDENT", "SWAPPED", "COMMAND"];
    let rows = runs.iter().enumerate().map(|(index, snapshot)| {
        let run = &snapshot.run;
        let mark = if index == selected { ">" } else { "" };
        let name = if run.name.is_empty() { "-".to_owned() } else { plain(&run.name) };
        let sizes = [run.budget_bytes, run.resident_bytes, run.swapped_bytes].map(|bytes| right(&size(bytes), 8));
        let cells = [mark.to_owned(), name, run.pid.to_string()].into_iter().chain(sizes);
        let row = Row::new(cells.chain([plain(&snapshot.command)]));
        if index == selected { row.style(Style::new().add_modifier(Modifier::BOLD)) } else { row }
    });
    let widths = [1, 16, 8, 8, 8, 8].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    frame.render_widget(Table::new(rows, widths).header(header(&head)), area);
}

fn draw_run(frame: &mut Frame, area: Rect, course: &Course) {
    let Some(last) = course.last() else { return };
    let places = course.places();
    let places_lines = u16::try_from(places.len().min(PLACES_MAX)).expect("few") + 1;
    let [numbers, waited, processes, devices] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(COURSE_LINES),
        Constraint::Min(2),
        Constraint::Length(places_lines),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(numbers_of(course, last)), numbers);
    draw_waited(frame, waited, course);
    draw_processes(frame, processes, &course.processes());
    draw_places(frame, devices, &places);
}

fn numbers_of(course: &Course, last: &Snapshot) -> Vec<Line<'static>> {
    let run = &last.run;
    let span = course.spans().last().copied().unwrap_or_default();
    let rates = span.rates;
    let sum = |of: fn(&crate::backend::ProcessView) -> u64| last.processes.iter().map(of).sum::<u64>();
    let hits = rates.hit_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"));
    let latency = |percent| course.latency_ns(percent).map_or_else(|| "-".to_owned(), short_time);
    let bold = |text: String| Piece::styled(text, Style::new().add_modifier(Modifier::BOLD));
    vec![
        Line::from(vec![
            Piece::raw("memory   "),
            bold(format!("{} of {}", size(run.resident_bytes), size(run.budget_bytes))),
            Piece::raw(format!(
                "   active {}   inactive {}   swapped {}   compressed {}",
                size(sum(|process| process.active_bytes)),
                size(sum(|process| process.inactive_bytes)),
                size(run.swapped_bytes),
                size(sum(|process| process.compressed_bytes)),
            )),
        ]),
        Line::from(format!(
            "a second {} faults, {} read, {} refaults; pages: {} in, {} out, {} ahead, hits {hits}",
            rates.faults, rates.major_faults, rates.refaults, rates.pages_in, rates.pages_out, rates.read_ahead,
        )),
        Line::from(format!("faults   answered in {} (half), {} (99 of 100)", latency(50), latency(99))),
        Line::from(vec![
            Piece::raw("waited   "),
            bold(format!("{} some, {} all threads", percent(span.some_bp), percent(span.full_bp))),
        ]),
    ]
}

/// How much was waited, a column for each look.
fn draw_waited(frame: &mut Frame, area: Rect, course: &Course) {
    let [label, graph] = Layout::horizontal([Constraint::Length(9), Constraint::Fill(1)]).areas(area);
    let lines: Vec<Line> = (0..area.height)
        .map(|line| match line {
            0 => Line::from("   100 %"),
            _ if line + 1 == area.height => Line::from("     0 %"),
            _ => Line::default(),
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), label);
    let skipped = course.spans().len().saturating_sub(usize::from(graph.width));
    let shares: Vec<u64> = course.spans().skip(skipped).map(|span| span.some_bp).collect();
    frame.render_widget(Sparkline::default().data(shares).max(10_000), graph);
}

fn draw_processes(frame: &mut Frame, area: Rect, processes: &[ProcessSpan]) {
    let head =
        ["PID", "SHARE", "RESID", "SWAP", "COMPR", "FLT/S", "READ/S", "REF/S", "HIT%", "SOME%", "ALL%", "COMMAND"];
    let rows = processes.iter().map(|process| {
        let now = process.now;
        let is_managed = now.is_managed == 1;
        let sizes = [now.share_bytes, now.resident_bytes, now.swapped_bytes, now.compressed_bytes];
        let sizes = sizes.into_iter().enumerate().map(|(index, bytes)| {
            // What is not managed has its size and nothing else.
            right(&if is_managed || index == 1 { size(bytes) } else { "-".to_owned() }, 6)
        });
        let rates = [process.faults, process.major_faults, process.refaults].map(|rate| right(&count(rate), 6));
        let hits = process.hit_percent.map_or_else(|| "-".to_owned(), |percent| percent.to_string());
        let shares = [process.some_bp, process.full_bp].map(|bp| right(&(bp / 100).to_string(), 5));
        let cells = [now.pid.to_string()].into_iter().chain(sizes).chain(rates).chain([right(&hits, 4)]);
        Row::new(cells.chain(shares).chain([plain(&now.command)]))
    });
    let widths = [8, 6, 6, 6, 6, 6, 6, 6, 4, 5, 5].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    frame.render_widget(Table::new(rows, widths).header(header(&head)), area);
}

fn draw_places(frame: &mut Frame, area: Rect, places: &[(&DeviceView, [Flow; 2])]) {
    let head = ["SWAP", "USED", "SIZE", "STATE", "READ/S", "A READ", "WRITE/S", "A WRITE"];
    let rows = places.iter().take(PLACES_MAX).map(|(place, flows)| {
        let sizes = [place.used_bytes, place.size_bytes].map(|bytes| right(&size(bytes), 6));
        let flows = flows.iter().flat_map(|flow| {
            let took = flow.us.map_or_else(|| "-".to_owned(), |us| short_time(us.saturating_mul(1000)));
            [right(&size(flow.bytes_per_s), 8), right(&took, 8)]
        });
        let cells = [plain(&place.path)].into_iter().chain(sizes).chain([state(place).to_owned()]);
        Row::new(cells.chain(flows).map(Cell::from))
    });
    let widths = [6, 6, 9, 8, 8, 8, 8].map(Constraint::Length);
    let widths = [Constraint::Fill(1)].into_iter().chain(widths);
    frame.render_widget(Table::new(rows, widths).header(header(&head)), area);
}

fn header(names: &[&'static str]) -> Row<'static> {
    Row::new(names.to_vec()).style(Style::new().add_modifier(Modifier::UNDERLINED))
}

fn size(bytes: u64) -> String {
    Short(bytes).to_string()
}

fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

/// A number in at most five characters.
fn count(number: u64) -> String {
    match number {
        0..100_000 => number.to_string(),
        100_000..10_000_000 => format!("{}k", number / 1000),
        10_000_000.. => format!("{}M", number / 1_000_000),
    }
}

fn short_time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        10_000_000.. => format!("{} ms", ns / 1_000_000),
    }
}

fn percent(share_bp: u64) -> String {
    format!("{} %", (share_bp + 50) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ProcessView;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// What a screen of this size shows, line by line.
    fn drawn(width: u16, height: u16, screen: &Screen) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("no terminal is needed");
        terminal.draw(|frame| draw(frame, screen)).expect("it is memory");
        let buffer = terminal.backend().buffer();
        (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect()).collect()
    }

    fn look(at_ns: u64, faults: u64, stalled_us: u64) -> Snapshot {
        let counters = [("pgfault", faults), ("pgmajfault", faults / 2), ("pt_stall_some_us", stalled_us)];
        Snapshot {
            run: RunView {
                pid: 7,
                now_ns: at_ns,
                budget_bytes: 1 << 30,
                resident_bytes: 3 << 28,
                swapped_bytes: 2 << 30,
                name: "job".to_owned(),
                ..RunView::default()
            },
            command: "sort\u{1b}[2J big.txt".to_owned(),
            counters: counters.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            latency: vec![(4095, faults)],
            processes: vec![ProcessView {
                pid: 8,
                is_managed: 1,
                share_bytes: 1 << 30,
                resident_bytes: 3 << 28,
                faults,
                managed_us: at_ns / 1000,
                stall_some_us: stalled_us,
                command: "sort".to_owned(),
                ..ProcessView::default()
            }],
            devices: vec![DeviceView {
                path: "/var/tmp".to_owned(),
                read_bytes: faults * 4096,
                read_requests: faults,
                read_ns: faults * 90_000,
                ..DeviceView::default()
            }],
            ..Snapshot::default()
        }
    }

    fn course() -> Course {
        let mut course = Course::default();
        course.push(look(1_000_000_000, 0, 0));
        course.push(look(3_000_000_000, 2048, 500_000));
        course
    }

    #[test]
    fn a_run_is_shown_on_80_by_24_and_on_a_wide_screen() {
        let course = course();
        for (width, height) in [(80, 24), (200, 60)] {
            let lines = drawn(width, height, &Screen { shown: Shown::Run(&course), note: "" });
            let text = lines.join("\n");
            assert!(lines[0].starts_with(" pagetide top: job (7)  sort [2J big.txt"), "{text}");
            for part in [
                "768M of 1G",
                "swapped 2G",
                "1024 faults, 512 read",
                "25 % some",
                "4095 ns (half)",
                "/var/tmp",
                "90 us",
                "4M",
                "q: quit",
            ] {
                assert!(text.contains(part), "no '{part}' in\n{text}");
            }
            let process = lines.iter().find(|line| line.starts_with("8 ")).expect("a line for the process");
            assert!(process.contains("1024") && process.trim_end().ends_with("sort"), "{process}");
        }
    }

    #[test]
    fn the_course_of_waiting_has_a_column_for_each_look() {
        let mut course = Course::default();
        for at in 0..20 {
            course.push(look(at * 1_000_000_000, 0, at * 1_000_000));
        }
        let lines = drawn(80, 24, &Screen { shown: Shown::Run(&course), note: "" });
        assert_eq!(lines[5].matches('█').count(), 19, "{}", lines.join("\n"));
    }

    #[test]
    fn the_runs_are_listed_and_one_is_marked() {
        let runs = [look(1, 0, 0), look(1, 0, 0)];
        let shown = Shown::List { runs: &runs, selected: 1 };
        let lines = drawn(80, 24, &Screen { shown, note: "gone" });
        assert!(lines[2].starts_with("  job") && lines[3].starts_with("> job"), "{}", lines.join("\n"));
        assert!(lines[23].starts_with(" gone"));
    }

    #[test]
    fn a_screen_that_is_too_small_says_so() {
        let lines = drawn(40, 8, &Screen { shown: Shown::List { runs: &[], selected: 0 }, note: "" });
        assert!(lines[0].starts_with("at least 60 x 12"));
        let lines = drawn(60, 12, &Screen { shown: Shown::Run(&course()), note: "" });
        assert!(lines[0].starts_with(" pagetide top"));
    }
}
