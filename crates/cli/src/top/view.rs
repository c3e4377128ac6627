//! What is drawn: a function of the looks, the size of the screen and nothing else.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span as Piece};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};

use super::course::{Course, Flow, ProcessSpan};
use super::memory::MemoryCourse;
use super::memory_view;
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

/// What is told of a process, and in how many columns; its command follows.
const PROCESS_COLUMNS: [(&str, usize); 11] = [
    ("PID", 8),
    ("SHARE", 6),
    ("RESID", 6),
    ("SWAP", 6),
    (PACKED, 6),
    ("FLT/S", 6),
    ("READ/S", 6),
    ("REF/S", 6),
    ("HIT%", 4),
    ("SOME%", 5),
    ("ALL%", 5),
];
/// Only where something is compressed.
pub(super) const PACKED: &str = "COMPR";

/// What is looked at.
#[derive(Debug)]
pub(super) enum Shown<'a> {
    List { runs: &'a [Snapshot], selected: usize },
    Run { course: &'a Course, selected: usize },
    Memory { course: &'a Course, memory: &'a MemoryCourse },
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
        Shown::Run { course, selected } => {
            draw_run(frame, body, course, *selected);
            let head = course.last().map_or_else(String::new, title_of);
            (head, " +/-: budget  o: page out a tenth  p/r: pause, resume  enter: memory  q: quit")
        }
        Shown::Memory { course, memory } => {
            let processes = course.processes();
            let process = processes.iter().find(|process| process.now.pid == memory.pid);
            memory_view::draw(frame, body, memory, process);
            let head = course.last().map_or_else(String::new, title_of);
            (head, " +/-: budget   o: page out a tenth   up/down: regions   esc: back   q: quit")
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
    let head = ["", "NAME", "PID", "  BUDGET", "RESIDENT", " SWAPPED", "COMMAND"].map(str::to_owned);
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
    frame.render_widget(Table::new(rows, widths).header(header(head)), area);
}

fn draw_run(frame: &mut Frame, area: Rect, course: &Course, selected: usize) {
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
    draw_processes(frame, processes, &course.processes(), selected);
    draw_places(frame, devices, &places);
}

fn numbers_of(course: &Course, last: &Snapshot) -> Vec<Line<'static>> {
    let run = &last.run;
    let span = course.spans().last().copied().unwrap_or_default();
    let rates = span.rates;
    let sum = |of: fn(&crate::backend::ProcessView) -> u64| last.processes.iter().map(of).sum::<u64>();
    let packed = sum(|process| process.compressed_bytes);
    let hits = rates.hit_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"));
    let latency = |percent| course.latency_ns(percent).map_or_else(|| "-".to_owned(), short_time);
    let bold = |text: String| Piece::styled(text, Style::new().add_modifier(Modifier::BOLD));
    vec![
        Line::from(vec![
            Piece::raw("memory   "),
            bold(format!("{} of {}", size(run.resident_bytes), size(run.budget_bytes))),
            Piece::raw(format!(
                "  active {}  inactive {}  swapped {}{}",
                size(sum(|process| process.active_bytes)),
                size(sum(|process| process.inactive_bytes)),
                size(run.swapped_bytes),
                if packed > 0 { format!("  compressed {}", size(packed)) } else { String::new() },
            )),
        ]),
        Line::from(format!(
            "faults/s {}, {} read, {} refaults; half in {}, 99% in {}",
            count(rates.faults),
            count(rates.major_faults),
            count(rates.refaults),
            latency(50),
            latency(99),
        )),
        Line::from(format!(
            "pages/s  {} in, {} out, {} ahead ({hits} hit)",
            count(rates.pages_in),
            count(rates.pages_out),
            count(rates.read_ahead),
        )),
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

fn draw_processes(frame: &mut Frame, area: Rect, processes: &[ProcessSpan], selected: usize) {
    let has_packed = processes.iter().any(|process| process.now.compressed_bytes > 0);
    let columns: Vec<_> = PROCESS_COLUMNS.into_iter().filter(|(name, _)| has_packed || *name != PACKED).collect();
    // The one that is marked is on the screen.
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let first = (selected + 1).saturating_sub(room);
    let rows = processes.iter().enumerate().skip(first).map(|(index, process)| {
        let now = process.now;
        let is_managed = now.is_managed == 1;
        let sizes = [now.share_bytes, now.resident_bytes, now.swapped_bytes, now.compressed_bytes];
        let sizes = sizes.into_iter().take(if has_packed { 4 } else { 3 }).enumerate().map(|(index, bytes)| {
            // What is not managed has its size and nothing else.
            right(&if is_managed || index == 1 { size(bytes) } else { "-".to_owned() }, 6)
        });
        let rates = [process.faults, process.major_faults, process.refaults].map(|rate| right(&count(rate), 6));
        let hits = process.hit_percent.map_or_else(|| "-".to_owned(), |percent| percent.to_string());
        let shares = [process.some_bp, process.full_bp].map(|bp| right(&(bp / 100).to_string(), 5));
        let cells = [now.pid.to_string()].into_iter().chain(sizes).chain(rates).chain([right(&hits, 4)]);
        let row = Row::new(cells.chain(shares).chain([plain(&now.command)]));
        if index == selected { row.style(Style::new().add_modifier(Modifier::BOLD)) } else { row }
    });
    let names =
        ["PID     ".to_owned()].into_iter().chain(columns.iter().skip(1).map(|&(name, width)| right(name, width)));
    let head = header(names.chain(["COMMAND".to_owned()]));
    let widths = columns.iter().map(|&(_, width)| length(width)).chain([Constraint::Fill(1)]);
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn draw_places(frame: &mut Frame, area: Rect, places: &[(&DeviceView, [Flow; 2])]) {
    let numbers =
        [("USED", 6), ("SIZE", 6), ("STATE", 0), ("READ/S", 7), ("A READ", 8), ("WRITE/S", 7), ("A WRITE", 8)];
    let head = header(["SWAP".to_owned()].into_iter().chain(numbers.map(|(name, width)| right(name, width))));
    let widths = [6, 6, 9, 7, 8, 7, 8];
    let path_width = area.width.saturating_sub(widths.iter().sum::<u16>() + u16::try_from(widths.len()).expect("few"));
    let rows = places.iter().take(PLACES_MAX).map(|(place, flows)| {
        let sizes = [place.used_bytes, place.size_bytes].map(|bytes| right(&size(bytes), 6));
        let flows = flows.iter().flat_map(|flow| {
            let took = flow.us.map_or_else(|| "-".to_owned(), |us| short_time(us.saturating_mul(1000)));
            [right(&size(flow.bytes_per_s), 7), right(&took, 8)]
        });
        let cells = [end_of(&plain(&place.path), usize::from(path_width))]
            .into_iter()
            .chain(sizes)
            .chain([state(place).to_owned()]);
        Row::new(cells.chain(flows).map(Cell::from))
    });
    let widths = [Constraint::Fill(1)].into_iter().chain(widths.map(Constraint::Length));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

/// The end of a path, which tells places apart, where there is not room for all of it.
fn end_of(path: &str, width: usize) -> String {
    match path.chars().count().checked_sub(width) {
        None | Some(0) => path.to_owned(),
        Some(over) => format!("<{}", path.chars().skip(over + 1).collect::<String>()),
    }
}

pub(super) fn header(names: impl IntoIterator<Item = String>) -> Row<'static> {
    Row::new(names).style(Style::new().add_modifier(Modifier::UNDERLINED))
}

pub(super) fn size(bytes: u64) -> String {
    Short(bytes).to_string()
}

/// A column so wide.
pub(super) fn length(width: usize) -> Constraint {
    Constraint::Length(u16::try_from(width).expect("a small constant"))
}

pub(super) fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

/// A number in at most five characters.
pub(super) fn count(number: u64) -> String {
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

pub(super) fn percent(share_bp: u64) -> String {
    format!("{} %", (share_bp + 50) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{HeatView, Memory, ProcessView, RegionView};
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
            let lines = drawn(width, height, &Screen { shown: Shown::Run { course: &course, selected: 0 }, note: "" });
            let text = lines.join("\n");
            assert!(lines[0].starts_with(" pagetide top: job (7)  sort [2J big.txt"), "{text}");
            for part in [
                "768M of 1G",
                "swapped 2G",
                "faults/s 1024, 512 read",
                "25 % some",
                "half in 4095 ns",
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
    fn the_largest_numbers_and_the_ends_of_paths_fit_80_columns() {
        let mut course = Course::default();
        course.push(look(1_000_000_000, 0, 0));
        let mut last = look(2_000_000_000, 99_999, 0);
        let grown = [("workingset_refault_anon", 99_999), ("pswpin", 9_999_999), ("pswpout", 9_999_999)];
        let ahead = [("swap_ra", 9_999_999), ("swap_ra_hit", 9_999_999)];
        last.counters.extend(grown.into_iter().chain(ahead).map(|(name, value)| (name.to_owned(), value)));
        last.latency = vec![(9_999_999, 99_999)];
        last.devices[0].path = "/var/lib/somewhere/far/away/swap-of-the-second-disk".to_owned();
        course.push(last);
        let lines = drawn(80, 24, &Screen { shown: Shown::Run { course: &course, selected: 0 }, note: "" });
        let text = lines.join("\n");
        for part in
            ["99999 refaults; half in 9999 us, 99% in 9999 us ", "9999k ahead (100% hit) ", "of-the-second-disk "]
        {
            assert!(text.contains(part), "no '{part}' in\n{text}");
        }
    }

    #[test]
    fn the_course_of_waiting_has_a_column_for_each_look() {
        let mut course = Course::default();
        for at in 0..20 {
            course.push(look(at * 1_000_000_000, 0, at * 1_000_000));
        }
        let lines = drawn(80, 24, &Screen { shown: Shown::Run { course: &course, selected: 0 }, note: "" });
        assert_eq!(lines[5].matches('█').count(), 19, "{}", lines.join("\n"));
    }

    #[test]
    fn the_memory_of_a_process_is_shown_by_region_and_address() {
        let course = course();
        let mut memory = MemoryCourse::new(8);
        let empty = drawn(80, 24, &Screen { shown: Shown::Memory { course: &course, memory: &memory }, note: "" });
        assert!(empty.iter().any(|line| line.contains("first numbers")), "{}", empty.join("\n"));
        let region = |start: u64, mapping: &str| RegionView {
            start,
            size_bytes: 1 << 30,
            resident_bytes: 1 << 28,
            swapped_bytes: 3 << 28,
            faults: 1000,
            read_ahead_hits: 4,
            read_ahead_unused: 4,
            waited_us: 250_000,
            mapping: mapping.to_owned(),
            ..RegionView::default()
        };
        let part = |start: u64, faults| {
            let size_bytes = 1 << 30;
            HeatView { start, size_bytes, resident_bytes: 1 << 28, faults, major_faults: 0 }
        };
        for faults in [0, 500_000] {
            let heat = vec![part(0, faults), part(2 << 30, 100)];
            let regions = vec![region(0, "[heap]"), region(2 << 30, "[anon:arena\u{1b}]")];
            memory.push(Memory { pid: 8, interval_ns: 500_000_000, regions, heat });
        }
        for (width, height) in [(80, 24), (200, 60)] {
            let shown = Shown::Memory { course: &course, memory: &memory };
            let lines = drawn(width, height, &Screen { shown, note: "" });
            let text = lines.join("\n");
            let heap = lines.iter().find(|line| line.contains("[heap]") && line.contains("256M")).expect(&text);
            assert!(["768M", "2000", "50"].into_iter().all(|part| heap.contains(part)), "{text}");
            let rows: Vec<_> = lines.iter().skip_while(|line| !line.starts_with("in mem")).collect();
            assert!(rows[1].contains("██") && rows[1].contains("··") && !rows[2].contains("█"), "{text}");
            assert!(
                text.contains("process 8 sort") && text.contains("|[anon:arena ]") && text.contains("25 % some"),
                "{text}"
            );
        }
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
        let lines = drawn(60, 12, &Screen { shown: Shown::Run { course: &course(), selected: 0 }, note: "" });
        assert!(lines[0].starts_with(" pagetide top"));
    }
}
