//! One figure: two samples of runs, their medians, spread and ratio, and the target if there is one. Integers only: a
//! ratio is in hundredths.

use serde_json::{Value, json};

/// The values of one side, one per run.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Who: `kernel`, `native`, `pagetide`, `pagetide signal`.
    pub(crate) side: String,
    /// In the order of the runs.
    pub(crate) values: Vec<u64>,
}

impl Sample {
    /// No value yet.
    pub(crate) fn new(side: impl Into<String>) -> Self {
        Self { side: side.into(), values: Vec::new() }
    }

    /// The middle value; 0 without any.
    pub(crate) fn median(&self) -> u64 {
        let mut sorted = self.values.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }

    fn text(&self, unit: &str) -> String {
        let (low, high) = (self.values.iter().min().unwrap_or(&0), self.values.iter().max().unwrap_or(&0));
        let spread =
            if self.values.len() > 1 { format!(" ({}..{})", grouped(*low), grouped(*high)) } else { String::new() };
        format!("{} {} {unit}{spread}", self.side, grouped(self.median()))
    }
}

/// What the ratio must be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// At least this many hundredths.
    AtLeast(u64),
    /// At most this many hundredths.
    AtMost(u64),
    /// The same value, to the last unit.
    Equal,
    /// Reported only.
    None,
}

/// A comparison, or a lone sample where there is nothing to compare with.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) name: String,
    /// Of the values.
    pub(crate) unit: &'static str,
    /// What we compare with.
    pub(crate) reference: Option<Sample>,
    /// Ours; absent with `--reference-only`.
    pub(crate) ours: Option<Sample>,
    /// For ours over reference.
    pub(crate) target: Target,
}

impl Figure {
    /// True if either side has a value.
    pub(crate) fn is_measured(&self) -> bool {
        self.reference.is_some() || self.ours.is_some()
    }

    /// Ours over the reference, in hundredths.
    pub(crate) fn ratio_hundredths(&self) -> Option<u64> {
        let (ours, reference) = (self.ours.as_ref()?.median(), self.reference.as_ref()?.median());
        (ours * 100 + reference / 2).checked_div(reference)
    }

    fn is_reached(&self) -> Option<bool> {
        let ratio = self.ratio_hundredths()?;
        match self.target {
            Target::AtLeast(least) => Some(ratio >= least),
            Target::AtMost(most) => Some(ratio <= most),
            Target::Equal => Some(self.ours.as_ref()?.median() == self.reference.as_ref()?.median()),
            Target::None => None,
        }
    }

    /// One line for people.
    pub(crate) fn text(&self) -> String {
        let sides = self.reference.iter().chain(&self.ours).map(|sample| sample.text(self.unit));
        let mut line = format!("{}: {}", self.name, sides.collect::<Vec<_>>().join("; "));
        if let Some(ratio) = self.ratio_hundredths() {
            line.push_str(&format!("; ratio {}", hundredths(ratio)));
        }
        match (self.target, self.is_reached()) {
            (Target::AtLeast(least), Some(reached)) => {
                line.push_str(&format!(", wanted >= {}{}", hundredths(least), verdict(reached)))
            }
            (Target::AtMost(most), Some(reached)) => {
                line.push_str(&format!(", wanted <= {}{}", hundredths(most), verdict(reached)))
            }
            (Target::Equal, Some(reached)) => line.push_str(&format!(", wanted the same{}", verdict(reached))),
            (Target::AtLeast(_) | Target::AtMost(_) | Target::Equal | Target::None, _) => {}
        }
        line
    }

    fn json(&self) -> Value {
        let sample = |sample: &Option<Sample>| {
            sample
                .as_ref()
                .map(|sample| json!({"side": sample.side, "median": sample.median(), "values": sample.values}))
        };
        json!({
            "name": self.name,
            "unit": self.unit,
            "reference": sample(&self.reference),
            "ours": sample(&self.ours),
            "ratio_hundredths": self.ratio_hundredths(),
            "reached": self.is_reached(),
        })
    }
}

/// The file that `--json` writes.
pub(crate) fn to_json(recipe: &[String], figures: &[Figure], runs: &[Value]) -> String {
    let figures: Vec<Value> = figures.iter().map(Figure::json).collect();
    format!("{:#}\n", json!({"recipe": recipe, "figures": figures, "runs": runs}))
}

fn verdict(reached: bool) -> &'static str {
    if reached { ": reached" } else { ": MISSED" }
}

fn hundredths(value: u64) -> String {
    format!("{}.{:02}", value / 100, value % 100)
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(side: &str, values: &[u64]) -> Sample {
        Sample { side: side.to_owned(), values: values.to_vec() }
    }

    #[test]
    fn the_ratio_is_that_of_the_medians_and_judged_against_the_target() {
        let figure = |target| Figure {
            name: "n".to_owned(),
            unit: "pages/s",
            reference: Some(sample("kernel", &[100, 1, 300])),
            ours: Some(sample("pagetide", &[150, 149, 9_000])),
            target,
        };
        assert_eq!(figure(Target::None).ratio_hundredths(), Some(150));
        assert_eq!(figure(Target::AtLeast(151)).is_reached(), Some(false));
        assert_eq!(figure(Target::AtLeast(150)).is_reached(), Some(true));
        assert_eq!(figure(Target::AtMost(149)).is_reached(), Some(false));
        assert_eq!(figure(Target::Equal).is_reached(), Some(false));
        assert_eq!(
            figure(Target::AtLeast(151)).text(),
            "n: kernel 100 pages/s (1..300); pagetide 150 pages/s (149..9,000); ratio 1.50, wanted >= 1.51: MISSED"
        );
    }

    #[test]
    fn a_reference_of_zero_has_no_ratio() {
        let figure = Figure {
            name: "n".to_owned(),
            unit: "ns",
            reference: Some(sample("kernel", &[0])),
            ours: Some(sample("pagetide", &[1])),
            target: Target::AtMost(100),
        };
        assert_eq!(figure.ratio_hundredths(), None);
        assert_eq!(figure.is_reached(), None);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
