//! Pictures of numbers, as SVG: lines over a scale, and cells by depth of colour.
//!
//! Integers only, so that the same run makes the same page. A picture is as wide as its place; values are told by titles that
//! browsers show under the pointer.

use std::fmt::Write as _;

/// Of a picture, in its own units.
const WIDTH: u64 = 900;
const LEFT: u64 = 76;
const RIGHT: u64 = 14;
const TOP: u64 = 10;
const BOTTOM: u64 = 26;
/// Points of a line at most: more are not seen.
const POINTS_MAX: usize = 600;
/// Of a line of text.
const NAME_HEIGHT: u64 = 18;
/// Lines of the grid, about.
const STEPS: u64 = 4;

/// How numbers of an axis are written.
pub(super) type Label = fn(u64) -> String;

/// A line.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// `a`, `b` or `c`: its colour.
    pub(super) colour: char,
    pub(super) points: Vec<(u64, u64)>,
    /// It stays at a value until the next, as sizes do.
    pub(super) is_stepped: bool,
}

/// What an axis shows.
pub(super) struct Axis {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) label: Label,
}

impl Axis {
    fn place(&self, value: u64, from: u64, length: u64) -> u64 {
        let span = self.to.saturating_sub(self.from).max(1);
        let inside = value.clamp(self.from, self.to.max(self.from)) - self.from;
        from + u64::try_from(u128::from(inside) * u128::from(length) / u128::from(span)).unwrap_or(length)
    }

    /// Round values of the axis.
    fn ticks(&self, most: u64, unit: u64) -> Vec<u64> {
        let step = round_step(self.to.saturating_sub(self.from) / unit / most.max(1)).saturating_mul(unit);
        let first = self.from.div_ceil(step).saturating_mul(step);
        (0..=2 * most).map(|number| first.saturating_add(number * step)).take_while(|&value| value <= self.to).collect()
    }
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn round_step(least: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for step in [power, power.saturating_mul(2), power.saturating_mul(5)] {
            if step >= least {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Lines over one scale. `units`: what the steps of the two axes are counted in.
pub(super) fn lines(height: u64, x: &Axis, y: &Axis, units: (u64, u64), lines: &[Line]) -> String {
    let mut svg = begin(height, &lines.iter().map(|line| line.name).collect::<Vec<_>>().join(", "));
    let (wide, high) = (WIDTH - LEFT - RIGHT, height - TOP - BOTTOM);
    for value in y.ticks(STEPS, units.1) {
        let at = TOP + high - y.place(value, 0, high);
        // Writing to a String does not fail, here and below.
        let _ = write!(svg, "<path class=grid d=\"M{LEFT} {at}h{wide}\"/>");
        let _ = write!(svg, "<text class=y x={} y={}>{}</text>", LEFT - 8, at + 4, (y.label)(value));
    }
    below(&mut svg, height, x, units.0);
    for line in lines {
        let mut path = String::new();
        let mut before = None;
        for (at, value) in thinned(&line.points) {
            let (px, py) = (x.place(at, LEFT, wide), TOP + high - y.place(value, 0, high));
            let _ = match before {
                None => write!(path, "M{px} {py}"),
                Some(_) if line.is_stepped => write!(path, "H{px}V{py}"),
                Some(_) => write!(path, "L{px} {py}"),
            };
            before = Some(py);
        }
        if line.is_stepped && before.is_some() {
            let _ = write!(path, "H{}", LEFT + wide);
        }
        let most = line.points.iter().map(|&(_, value)| value).max().unwrap_or(0);
        let title = format!("{}: at most {}", line.name, (y.label)(most));
        let _ = write!(svg, "<path class=\"line {}\" d=\"{path}\"><title>{title}</title></path>", line.colour);
    }
    svg.push_str("</svg>");
    svg
}

/// What a table of cells is called, and how high a row of it is.
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) row_height: u64,
}

/// Cells of a table, the deeper the more there is in them. `rows` are named from below, as far as there is room.
pub(super) fn cells(table: &Table, x: &Axis, unit: u64, rows: &[String], values: &[Vec<u64>]) -> String {
    let row_height = table.row_height;
    let count = |length: usize| u64::try_from(length).expect("a length");
    let height = TOP + BOTTOM + row_height * count(rows.len());
    let mut svg = begin(height, table.name);
    let wide = WIDTH - LEFT - RIGHT;
    let most = values.iter().flatten().copied().max().unwrap_or(0).max(1);
    for (number, (name, cells)) in rows.iter().zip(values).enumerate() {
        let at = height - BOTTOM - row_height * (count(number) + 1);
        if count(number) * row_height % NAME_HEIGHT < row_height {
            let _ = write!(svg, "<text class=y x={} y={}>{name}</text>", LEFT - 8, at + row_height - 5);
        }
        let _ = write!(svg, "<path class=grid d=\"M{LEFT} {at}h{wide}\"/>");
        for (column, &value) in cells.iter().enumerate().filter(|&(_, &value)| value > 0) {
            let edge = |column: usize| LEFT + wide * count(column) / count(cells.len());
            let (from, to) = (edge(column), edge(column + 1));
            // Few are to be seen beside many: by the logarithm, in eight steps.
            let depth = (u64::from(value.ilog2()) + 1) * 8 / (u64::from(most.ilog2()) + 1);
            let _ = write!(
                svg,
                "<rect class=\"cell d{depth}\" x={from} y={} width={} height={}><title>{value} of {name}</title></rect>",
                at + 1,
                (to - from).max(1),
                row_height - 1
            );
        }
    }
    below(&mut svg, height, x, unit);
    svg.push_str("</svg>");
    svg
}

fn begin(height: u64, name: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{name}\">")
}

/// The axis of time, or of whatever lies across.
fn below(svg: &mut String, height: u64, x: &Axis, unit: u64) {
    let wide = WIDTH - LEFT - RIGHT;
    let (base, text) = (height - BOTTOM, height - BOTTOM + 17);
    let _ = write!(svg, "<path class=axis d=\"M{LEFT} {base}h{wide}\"/>");
    for value in x.ticks(8, unit) {
        let at = x.place(value, LEFT, wide);
        let _ = write!(
            svg,
            "<path class=axis d=\"M{at} {base}v4\"/><text class=x x={at} y={text}>{}</text>",
            (x.label)(value)
        );
    }
}

/// At most so many points: of neighbours the largest.
fn thinned(points: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64)> {
    let together = points.len().div_ceil(POINTS_MAX).max(1);
    points.chunks(together).filter_map(|chunk| chunk.iter().copied().max_by_key(|&(_, value)| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!([0, 1, 2, 3, 6, 11, 499, 501].map(round_step), [1, 1, 2, 5, 10, 20, 500, 1000]);
    }

    #[test]
    fn the_largest_numbers_have_a_place() {
        let axis = Axis { from: 0, to: u64::MAX, label: |value| value.to_string() };
        assert_eq!(axis.place(u64::MAX, 5, 100), 105);
        assert!(axis.ticks(4, 1 << 20).len() <= 9);
        let point = Axis { from: 7, to: 7, label: |value| value.to_string() };
        assert_eq!(point.ticks(4, 1), [7]);
        let line = Line { name: "x", colour: 'a', points: vec![(0, 0), (u64::MAX, u64::MAX)], is_stepped: true };
        assert!(lines(200, &axis, &axis, (1, 1), &[line]).contains("<path class=\"line a\""));
    }
}
