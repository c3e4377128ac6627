//! A process's memory on the screen: its regions, and a map of its addresses over time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span as Piece};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::course::ProcessSpan;
use super::memory::MemoryCourse;
use super::view::{PACKED, count, header, length, percent, right, size};
use crate::backend::RegionView;
use crate::ps::plain;
use crate::snapshot::used_percent;

/// The numbers of a region, and in how many columns.
const COLUMNS: [(&str, usize); 9] = [
    ("SIZE", 6),
    ("RESID", 6),
    ("SWAP", 6),
    (PACKED, 6),
    ("FLT/S", 6),
    ("READ/S", 6),
    ("REF/S", 6),
    ("HIT%", 4),
    ("WAIT%", 5),
];
/// From this width on, addresses are shown.
const WIDE: u16 = 110;
/// Left of the map: when a row was.
const MARGIN: u16 = 8;
/// Lines of the map beside its rows: names, what is resident, what the signs mean.
const MAP_LINES: u16 = 3;
/// What a column's faults a second look like, from so many on.
const HEAT: [(u64, &str, Option<Color>); 6] = [
    (10_000, "█", Some(Color::Red)),
    (1000, "▓", Some(Color::Magenta)),
    (100, "▒", Some(Color::Cyan)),
    (10, "░", Some(Color::Blue)),
    (1, "·", None),
    (0, " ", None),
];
const FILLED: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Draws it.
pub(super) fn draw(frame: &mut Frame, area: Rect, memory: &MemoryCourse, process: Option<&ProcessSpan>) {
    let [head, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(process.map_or_else(Vec::new, process_lines)), head);
    let Some(last) = memory.last() else {
        let text = "counting what its memory does: the first numbers come within two seconds";
        frame.render_widget(Paragraph::new(text), body);
        return;
    };
    let regions = u16::try_from(last.regions.len()).unwrap_or(u16::MAX).saturating_add(1);
    let [table, map] =
        Layout::vertical([Constraint::Length(regions.min(body.height / 2)), Constraint::Min(1)]).areas(body);
    draw_regions(frame, table, &last.regions, last.interval_ns, memory.first);
    draw_map(frame, map, memory);
}

fn process_lines(process: &ProcessSpan) -> Vec<Line<'static>> {
    let now = process.now;
    let bold = |text: String| Piece::styled(text, Style::new().add_modifier(Modifier::BOLD));
    vec![
        Line::from(vec![
            Piece::raw(format!("process {} {}   ", now.pid, plain(&now.command))),
            bold(format!("{} of {}", size(now.resident_bytes), size(now.share_bytes))),
            Piece::raw(format!("   swapped {}", size(now.swapped_bytes))),
        ]),
        Line::from(vec![
            Piece::raw("waited   "),
            bold(format!("{} some, {} all threads", percent(process.some_bp), percent(process.full_bp))),
        ]),
    ]
}

fn draw_regions(frame: &mut Frame, area: Rect, regions: &[RegionView], interval_ns: u64, first: usize) {
    let is_wide = area.width >= WIDE;
    let has_packed = regions.iter().any(|region| region.compressed_bytes > 0);
    let mut sorted: Vec<&RegionView> = regions.iter().collect();
    sorted.sort_by_key(|region| std::cmp::Reverse(region.resident_bytes.saturating_add(region.swapped_bytes)));
    let rows = sorted.into_iter().skip(first).map(|region| {
        let sizes = [region.size_bytes, region.resident_bytes, region.swapped_bytes, region.compressed_bytes];
        let sizes = sizes.into_iter().take(if has_packed { 4 } else { 3 }).map(|bytes| right(&size(bytes), 6));
        let rate = |counted: u64| {
            u64::try_from(u128::from(counted) * 1_000_000_000 / u128::from(interval_ns.max(1))).unwrap_or(u64::MAX)
        };
        let rates =
            [region.faults, region.major_faults, region.refaults].map(|counted| right(&count(rate(counted)), 6));
        let hits = used_percent(region.read_ahead_hits, region.read_ahead_unused);
        let hits = hits.map_or_else(|| "-".to_owned(), |percent| percent.to_string());
        let waited = rate(region.waited_us.saturating_mul(100)) / 1_000_000;
        let address = is_wide.then(|| format!("{:012x}", region.start));
        let cells = address.into_iter().chain([plain(&region.mapping)]).chain(sizes);
        Row::new(cells.chain(rates).chain([right(&hits, 4), right(&waited.to_string(), 5)]).map(Cell::from))
    });
    let columns: Vec<_> = COLUMNS.into_iter().filter(|(name, _)| has_packed || *name != PACKED).collect();
    let names = is_wide.then_some("ADDRESS").into_iter().chain(["MAPPING"]).map(str::to_owned);
    let head = header(names.chain(columns.iter().map(|&(name, width)| right(name, width))));
    let widths = is_wide.then_some(Constraint::Length(14)).into_iter().chain([Constraint::Fill(1)]);
    let widths = widths.chain(columns.iter().map(|&(_, width)| length(width)));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn draw_map(frame: &mut Frame, area: Rect, memory: &MemoryCourse) {
    let columns = usize::from(area.width.saturating_sub(MARGIN));
    let rows = usize::from(area.height.saturating_sub(MAP_LINES));
    let map = memory.map(columns, rows);
    let margin = |text: &str| Piece::raw(format!("{text:<width$}", width = usize::from(MARGIN)));
    let mut lines = vec![Line::from(vec![margin("address"), Piece::raw(names(&memory.borders(columns), columns))])];
    let resident: String = map.iter().take(1).flatten().map(|column| filled(column.resident_bp)).collect();
    lines.push(Line::from(vec![margin("in mem"), Piece::styled(resident, Style::new().fg(Color::Green))]));
    for (index, row) in map.iter().enumerate() {
        let when = if index == 0 { "faults" } else { "" };
        lines.push(Line::from_iter([margin(when)].into_iter().chain(row.iter().map(|column| heat(column.faults)))));
    }
    let signs = HEAT.iter().rev().skip(1).map(|&(from, sign, _)| format!("  {sign} {}", count(from)));
    let legend = format!("{}a second, newest on top:{}", " ".repeat(usize::from(MARGIN)), signs.collect::<String>());
    lines.push(Line::from(legend).style(Style::new().add_modifier(Modifier::DIM)));
    frame.render_widget(Paragraph::new(lines), area);
}

fn heat(faults: u64) -> Piece<'static> {
    let (_, sign, colour) = HEAT.into_iter().find(|&(from, ..)| faults >= from).expect("the last is zero");
    Piece::styled(sign, colour.map_or_else(Style::new, |colour| Style::new().fg(colour)))
}

/// Whatever is there at all is seen.
fn filled(resident_bp: u64) -> &'static str {
    let last = FILLED.len() - 1;
    FILLED[usize::try_from(resident_bp).unwrap_or(usize::MAX).min(10_000).saturating_mul(last).div_ceil(10_000)]
}

/// The regions' names where they begin, as far as there is room.
fn names(borders: &[(usize, usize, &str)], columns: usize) -> String {
    let mut line: Vec<char> = vec![' '; columns];
    for &(from, to, name) in borders {
        let signs = std::iter::once('|').chain(plain(name).chars().collect::<Vec<_>>());
        line.iter_mut().take(to.min(columns)).skip(from).zip(signs).for_each(|(place, sign)| *place = sign);
    }
    line.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_where_their_regions_begin_and_do_not_run_over() {
        let borders = [(0, 4, "[heap]"), (4, 4, "[anon:small]"), (4, 20, "[anon]")];
        assert_eq!(names(&borders, 14), "|[he|[anon]   ");
    }

    #[test]
    fn a_little_is_seen_and_all_is_full() {
        assert_eq!([0, 1, 5000, 9_999, 10_000].map(filled), [" ", "▁", "▄", "█", "█"]);
        assert_eq!([0, 1, 9, 10, 99_999].map(|faults| heat(faults).content.into_owned()), [" ", "·", "·", "░", "█"]);
    }
}
