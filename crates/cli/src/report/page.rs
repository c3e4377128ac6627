//! The page: what is known of the run, from the most telling to the details.

use std::fmt::{Display, Write as _};

use pagetide_sim::curve::Curve;
use serde_json::Value;

use super::Known;
use super::chart::{Axis, Line, Table, cells, lines};
use super::course::Course;
use crate::size::Bytes;
use crate::snapshot::used_percent;

/// Columns of the picture of waits.
const COLUMNS: u64 = 120;
/// Rows of it: waits from 32 us on, each row twice as long as the one below.
const ROWS: u64 = 14;
/// Rows of the picture of memory, at most.
const MAP_ROWS: usize = 48;
const FIRST_ROW_NS: u64 = 1 << 15;
const SECOND_NS: u64 = 1_000_000_000;
const PAGE_BYTES: u64 = 4096;
/// Larger budgets that are simulated.
const SIMULATED: u64 = 8;

const STYLE: &str = "\
:root{color-scheme:light dark;--ground:#fbfbf9;--panel:#fff;--edge:#dcdcd6;--text:#1d1e20;--quiet:#62656b;--grid:#e8e8e3;\
--a:#1f6fb2;--b:#c2571a;--c:#2f8a4c;--cell:31,111,178}\
@media(prefers-color-scheme:dark){:root{--ground:#16181b;--panel:#1e2125;--edge:#33373d;--text:#e6e7e9;--quiet:#9aa0a8;--grid:#2b2f35;\
--a:#6bb3ec;--b:#f0975a;--c:#74c98c;--cell:107,179,236}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.5 system-ui,sans-serif}\
main{max-width:980px;margin:0 auto;padding:28px 20px 60px}\
h1{font-size:23px;margin:0 0 2px}h2{font-size:16px;margin:0 0 4px}\
p{margin:0 0 10px;color:var(--quiet)}p.warn{color:var(--b)}\
section{background:var(--panel);border:1px solid var(--edge);border-radius:8px;padding:16px 18px;margin:16px 0}\
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:14px;margin:6px 0 0}\
dt{color:var(--quiet);font-size:13px}dd{margin:0;font-size:19px;font-variant-numeric:tabular-nums}\
svg{display:block;width:100%;height:auto}\
svg text{fill:var(--quiet);font:12px system-ui,sans-serif}text.y{text-anchor:end}text.x{text-anchor:middle}\
.grid,.axis{stroke:var(--grid);fill:none}.axis{stroke:var(--edge)}\
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
.a{stroke:var(--a)}.b{stroke:var(--b)}.c{stroke:var(--c)}\
.key{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--quiet);margin:2px 0 8px}\
.key i{display:inline-block;width:18px;height:3px;border-radius:2px;margin-right:7px;vertical-align:middle}\
i.a{background:var(--a)}i.b{background:var(--b)}i.c{background:var(--c)}\
.d1{fill:rgba(var(--cell),.16)}.d2{fill:rgba(var(--cell),.28)}.d3{fill:rgba(var(--cell),.4)}.d4{fill:rgba(var(--cell),.52)}\
.d5{fill:rgba(var(--cell),.64)}.d6{fill:rgba(var(--cell),.76)}.d7{fill:rgba(var(--cell),.88)}.d8{fill:rgb(var(--cell))}.d0{fill:none}\
table{border-collapse:collapse;width:100%;font-size:14px}td,th{padding:3px 10px 3px 0;text-align:left;border-top:1px solid var(--grid)}\
td.n{text-align:right;font-variant-numeric:tabular-nums}th{font-weight:600}\
details summary{cursor:pointer;font-weight:600}.columns{columns:2 340px;column-gap:34px}.columns table{break-inside:auto}tr{break-inside:avoid}\
code{font:13px ui-monospace,monospace}";

/// The whole page.
pub(super) fn page(known: &Known) -> String {
    let name = known.course.as_ref().map_or("pagetide run", |course| course.name.as_str());
    let mut html = format!(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <link rel=icon href=\"data:,\"><title>{0}</title><style>{STYLE}</style></head>\n<body><main><h1>{0}</h1>\n",
        Text(name)
    );
    if known.course.as_ref().is_some_and(|course| course.is_cut) {
        html.push_str("<p class=warn>The timeline ends inside of a packet: what lies behind is not shown.</p>\n");
    }
    if let Some(stats) = &known.stats {
        summary(&mut html, stats);
    }
    if let Some(course) = &known.course {
        over_time(&mut html, course);
        waits(&mut html, course);
    }
    if let Some(curve) = &known.curve {
        heat_map(&mut html, curve);
    }
    if let Some(stats) = &known.stats {
        miss_ratio(&mut html, stats, known.curve.as_ref());
        details(&mut html, stats);
    }
    html.push_str("</main></body></html>\n");
    html
}

/// A text as HTML.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for sign in self.0.chars() {
            match sign {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                other if other.is_control() => f.write_char(' ')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

fn counter(stats: &Value, name: &str) -> u64 {
    stats["vmstat"][name].as_u64().unwrap_or(0)
}

fn summary(html: &mut String, stats: &Value) {
    let number = |key: &str| stats[key].as_u64();
    let mut facts: Vec<(&str, String)> = Vec::new();
    let status = stats["exit_status"].as_i64();
    facts.push((
        "exit status",
        status.map_or_else(|| "none: it runs, or was killed".to_owned(), |code| code.to_string()),
    ));
    facts.extend(number("elapsed_ns").map(|ns| ("ran", duration(ns))));
    facts.extend(number("memory_budget_bytes").map(|bytes| ("budget", Bytes(bytes).to_string())));
    facts.extend(number("peak_resident_bytes").map(|bytes| ("resident, at most", Bytes(bytes).to_string())));
    facts.push(("faults", grouped(counter(stats, "pgfault"))));
    facts.push(("faults that read", grouped(counter(stats, "pgmajfault"))));
    let (managed, some) = (counter(stats, "pt_managed_us"), counter(stats, "pt_stall_some_us"));
    if managed > 0 {
        facts.push((
            "waited for memory",
            format!("{} % of the time", some.saturating_mul(100).div_ceil(managed).min(100)),
        ));
    }
    let used = used_percent(counter(stats, "swap_ra_hit"), counter(stats, "pt_ra_unused"));
    facts.extend(used.map(|percent| ("readahead used", format!("{percent} %"))));
    facts.extend(stats["fault_latency_ns"]["p99"].as_u64().map(|ns| ("99 % of faults within", duration(ns))));
    html.push_str("<section><h2>Summary</h2><dl>");
    for (name, value) in facts {
        let _ = write!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html.push_str("</dl></section>\n");
}

/// A picture with its key.
fn picture(html: &mut String, title: &str, text: &str, shown: &[Line], svg: &str) {
    let _ = write!(html, "<section><h2>{title}</h2><p>{text}</p><div class=key>");
    for line in shown {
        let _ = write!(html, "<span><i class={}></i>{}</span>", line.colour, line.name);
    }
    let _ = writeln!(html, "</div>{svg}</section>");
}

/// The axis of time of a run and its unit.
fn time(course: &Course) -> (Axis, u64) {
    time_to((course.span.1 - course.span.0).max(1))
}

/// Short runs are told in tenths of a second.
fn time_to(to: u64) -> (Axis, u64) {
    if to < 10 * SECOND_NS {
        let tenths = |ns: u64| format!("{}.{} s", ns / SECOND_NS, ns % SECOND_NS / (SECOND_NS / 10));
        return (Axis { from: 0, to, label: tenths }, SECOND_NS / 10);
    }
    (Axis { from: 0, to, label: |ns| format!("{} s", ns / SECOND_NS) }, SECOND_NS)
}

fn over_time(html: &mut String, course: &Course) {
    let (x, unit) = time(course);
    let from = course.span.0;
    let line = |name: &'static str, colour, is_stepped| Line {
        name,
        colour,
        points: course.line(name).iter().map(|&(at, value)| (at.saturating_sub(from), value)).collect(),
        is_stepped,
    };
    let most = |shown: &[Line]| shown.iter().flat_map(|line| &line.points).map(|&(_, value)| value).max().unwrap_or(0);
    let sizes = [line("budget", 'b', true), line("resident", 'a', true), line("swapped", 'c', true)];
    let y = Axis { from: 0, to: most(&sizes).max(1), label: |bytes| format!("{} MiB", bytes >> 20) };
    let svg = lines(240, &x, &y, (unit, 1 << 20), &sizes);
    picture(html, "Memory", "What the run may keep, keeps, and has paged out.", &sizes, &svg);
    let rates = [line("faults/s", 'c', true), line("major faults/s", 'b', true)];
    let y = Axis { from: 0, to: most(&rates).max(1), label: grouped };
    let svg = lines(200, &x, &y, (unit, 1), &rates);
    picture(html, "Faults a second", "A major fault is one for which a page was read.", &rates, &svg);
    let rates = [line("pages in/s", 'a', true), line("pages out/s", 'b', true), line("pages read ahead/s", 'c', true)];
    let y = Axis { from: 0, to: most(&rates).max(1), label: grouped };
    let svg = lines(200, &x, &y, (unit, 1), &rates);
    picture(html, "Pages a second", "A page is 4 KiB.", &rates, &svg);
}

fn waits(html: &mut String, course: &Course) {
    if course.waits.is_empty() {
        return;
    }
    let span = time(course).0.to;
    let mut table = vec![vec![0_u64; usize::try_from(COLUMNS).expect("small")]; usize::try_from(ROWS).expect("small")];
    for &(at, length) in &course.waits {
        let column = u128::from(at.saturating_sub(course.span.0)) * u128::from(COLUMNS) / u128::from(span);
        let row = u64::from((length / FIRST_ROW_NS).max(1).ilog2()).min(ROWS - 1);
        let column = usize::try_from(column).unwrap_or(usize::MAX).min(table[0].len() - 1);
        table[usize::try_from(row).expect("small")][column] += 1;
    }
    let used = table.iter().rposition(|row| row.iter().any(|&waits| waits > 0)).map_or(0, |row| row + 1);
    let names: Vec<String> = (0..ROWS).take(used).map(|row| duration(FIRST_ROW_NS << row)).collect();
    let (x, unit) = time(course);
    let look = Table { name: "waits by time and length", row_height: 18 };
    let svg = cells(&look, &x, unit, &names, &table[..used]);
    let total: u64 = course.waits.iter().fold(0, |sum: u64, &(_, length)| sum.saturating_add(length));
    let not_drawn = course.line(crate::timeline::NOT_DRAWN).last().map_or(0, |&(_, missing)| missing);
    let mut text = format!(
        "{} waits of 49 us or longer, {} in all. A row is waits of at least so long, and less than the row above.",
        grouped(u64::try_from(course.waits.len()).expect("a length")),
        duration(total)
    );
    if not_drawn > 0 {
        let _ = write!(text, " {} waits and requests were counted and not drawn.", grouped(not_drawn));
    }
    picture(html, "When threads waited for memory, and how long", &text, &[], &svg);
}

/// What more memory would have made of the reads: how many bytes more, and the hundredths of a percent that are left.
fn prospects(stats: &Value) -> Option<Vec<(u64, u64)>> {
    let pairs = stats["reads_left_bp_with_more_bytes"].as_array()?;
    pairs.iter().map(|pair| Some((pair[0].as_u64()?, pair[1].as_u64()?))).collect()
}

/// Which memory was used when.
fn heat_map(html: &mut String, curve: &Curve) {
    let map = curve.map(usize::try_from(COLUMNS).expect("small"), MAP_ROWS);
    let (what, places, (x, unit)) = if map.is_time {
        let places = "Rows are the pages that were managed, in the order of addresses as far as they came under management together";
        ("Faults, and pages that were mapped before one", places, time_to(map.length))
    } else {
        let axis = Axis { from: 0, to: map.length, label: grouped };
        ("Accesses", "Rows are addresses; to the right, accesses in their order", (axis, 1))
    };
    let names: Vec<String> = map
        .rows
        .iter()
        .map(|&page| match page.saturating_mul(PAGE_BYTES) {
            at if map.is_time => format!("{} MiB", at >> 20),
            at => format!("{at:#x}"),
        })
        .collect();
    let all: u64 = map.counts.iter().flatten().sum();
    let cut = if curve.is_cut { "the first " } else { "" };
    let text = format!(
        "{what}: {cut}{}. {places}; memory that was not used is left out. The deeper the colour, the more.",
        grouped(all)
    );
    let look = Table { name: "uses by address and time", row_height: 9 };
    picture(html, "Which memory was used when", &text, &[], &cells(&look, &x, unit, &names, &map.counts));
}

fn miss_ratio(html: &mut String, stats: &Value, curve: Option<&Curve>) {
    let (Some(prospects), Some(budget)) = (prospects(stats), stats["memory_budget_bytes"].as_u64()) else { return };
    let points: Vec<(u64, u64)> =
        prospects.iter().map(|&(more, left_bp)| (budget.saturating_add(more), left_bp / 100)).collect();
    let Some(&(last, _)) = points.last().filter(|_| points.len() > 1) else { return };
    let mut shown = vec![Line { name: "from how long pages stayed away", colour: 'a', points, is_stepped: false }];
    let x = Axis { from: budget, to: last.max(budget + 1), label: |bytes| format!("{} MiB", bytes >> 20) };
    let y = Axis { from: 0, to: 100, label: |percent| format!("{percent} %") };
    let mut text = "Of the pages that were read, the share that would have been. ".to_owned();
    if let Some((more, _)) = prospects.iter().find(|&&(more, left_bp)| more > 0 && left_bp <= 500) {
        let all = Bytes(budget.saturating_add(*more));
        let _ = write!(text, "With {all} in all at most 5 %, going by how long pages stayed away. ");
    }
    match curve.map(|curve| simulated(curve, budget, last)) {
        None => text.push_str(
            "What the simulator says is not shown: no record was given (<code>run --record</code>), and no trace.",
        ),
        Some(Err(why)) => {
            let _ = write!(text, "The simulator says nothing: {}.", Text(&why));
        }
        Some(Ok((points, told))) => {
            text.push_str(&told);
            shown.push(Line { name: "what the simulator says", colour: 'b', points, is_stepped: false });
        }
    }
    let svg = lines(200, &x, &y, (1 << 20, 1), &shown);
    picture(html, "What a larger budget would save", &text, &shown, &svg);
}

/// The share of the reads that the simulator makes in budgets between two, in percent of those in the lesser one; and what was
/// simulated.
fn simulated(curve: &Curve, from: u64, to: u64) -> Result<(Vec<(u64, u64)>, String), String> {
    let reads = |bytes: u64| curve.reads(u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX));
    let all = reads(from)?;
    if all == 0 {
        return Err("in this budget it reads nothing of it".to_owned());
    }
    let mut points = vec![(from, 100)];
    for step in 1..=SIMULATED {
        let bytes = from + (to - from) / SIMULATED * step;
        points.push((bytes, reads(bytes)?.saturating_mul(100).div_ceil(all).min(100)));
    }
    let accesses = grouped(u64::try_from(curve.accesses()).unwrap_or(u64::MAX));
    let what = if curve.is_record { "faults and mapped pages of the record" } else { "accesses of the trace" };
    let first = if curve.is_cut { "the first " } else { "" };
    Ok((
        points,
        format!("The simulator has replayed {first}{accesses} {what}: {} pages are read in the budget.", grouped(all)),
    ))
}

fn details(html: &mut String, stats: &Value) {
    if let Some(settings) = stats["settings"].as_object() {
        html.push_str("<section><h2>Settings</h2>");
        if settings.is_empty() {
            html.push_str("<p>None was given: those of the profile <code>pagetide</code>.</p>");
        }
        html.push_str("<table>");
        for (key, value) in settings {
            let value = value.as_str().unwrap_or_default();
            let _ = write!(html, "<tr><td><code>{}</code><td><code>{}</code></tr>", Text(key), Text(value));
        }
        html.push_str("</table></section>\n");
    }
    html.push_str("<section><details><summary>All counters</summary><p>docs/counters.md says what each counts.</p><div class=columns><table>");
    for (name, value) in stats["vmstat"].as_object().into_iter().flatten() {
        let value = value.as_u64().unwrap_or(0);
        let _ = write!(html, "<tr><td><code>{}</code><td class=n>{}</tr>", Text(name), grouped(value));
    }
    html.push_str("</table></div></details></section>\n<section><details><summary>Memory that is not paged, at most</summary><table>");
    for (reason, bytes) in stats["peak_unpaged_bytes"].as_object().into_iter().flatten() {
        let bytes = Bytes(bytes.as_u64().unwrap_or(0)).to_string();
        let _ = write!(html, "<tr><td><code>{}</code><td class=n>{bytes}</tr>", Text(reason));
    }
    html.push_str("</table></details></section>\n");
}

/// `1 234 567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// In the unit that fits.
fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..10_000_000 => format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10),
        10_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        1_000_000_000..600_000_000_000 => format!("{}.{} s", ns / 1_000_000_000, ns / 100_000_000 % 10),
        _ => format!("{} min", ns / 60_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_calls_itself_is_text() {
        assert_eq!(Text("<script>\"&\u{1b}").to_string(), "&lt;script&gt;&quot;&amp; ");
    }

    #[test]
    fn numbers_are_read_by_people() {
        assert_eq!([7, 1234, 1_234_567].map(grouped), ["7", "1\u{202f}234", "1\u{202f}234\u{202f}567"]);
        assert_eq!([5, 65_536, 1_234_567, 65_000_000_000].map(duration), ["5 ns", "65 us", "1.2 ms", "65.0 s"]);
    }

    #[test]
    fn a_trace_shows_which_memory_was_used_when() {
        let path = std::env::temp_dir().join(format!("pagetide-map-{}.csv", std::process::id()));
        let lines: String = (0..5000_u64).map(|at| format!("{:#x},r\n", 0x7_f000_0000 + at % 700)).collect();
        std::fs::write(&path, lines).expect("it can be written");
        let curve = Curve::of_trace(&path);
        std::fs::remove_file(&path).expect("it was written a moment ago");
        let curve = curve.expect("a trace");
        let html = page(&Known { curve: Some(curve), ..Known::default() });
        assert!(html.contains("Which memory was used when") && html.contains("0x7f0000000000"), "{html}");
        assert!(html.matches("class=\"cell").count() > 100, "{html}");
    }

    #[test]
    fn any_statistics_make_a_page() {
        for text in ["{}", "{\"vmstat\": [], \"reads_left_bp_with_more_bytes\": [[1]], \"peak_unpaged_bytes\": 5}"] {
            let stats = serde_json::from_str(text).expect("JSON");
            let html = page(&Known { stats: Some(stats), ..Known::default() });
            assert!(html.contains("<h2>Summary</h2>") && html.ends_with("</html>\n"));
        }
    }
}
