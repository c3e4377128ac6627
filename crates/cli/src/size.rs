//! Sizes as people write them: `512M`, `8G`, `8GiB`, `1.5G`, `25%`; a lone number is bytes.
//!
//! `K M G T` and `KiB MiB GiB TiB` are powers of 1024; `KB MB GB TB` are powers of 1000, as in coreutils. No float is
//! involved: a fraction is taken exactly and rounded down to a byte.

use std::fmt;

/// A size, or a share of this machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// Bytes.
    Bytes(u64),
    /// Hundredths of a percent of the memory there is.
    ShareBp(u32),
}

impl Amount {
    /// The amount in bytes on a machine with `memory_bytes` of memory.
    pub(crate) fn bytes(self, memory_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::ShareBp(share_bp) => {
                let bytes = u128::from(memory_bytes) * u128::from(share_bp) / 10_000;
                u64::try_from(bytes).expect("a share of at most 100 % is at most the whole")
            }
        }
    }
}

/// What a person can write, for messages.
const FORMS: &str = "write for example 512M, 8G, 8GiB, 1.5G or 25% (of RAM); a lone number is bytes";

/// Units and their sizes, longest names first within a letter.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Digits after the point beyond which a size is refused: 18 more digits still fit the arithmetic.
const FRACTION_DIGITS_MAX: usize = 18;

/// Reads a size or a share of memory.
pub(crate) fn parse_amount(text: &str) -> Result<Amount, String> {
    let text = text.trim();
    if let Some(number) = text.strip_suffix('%') {
        let share_bp = scaled(number.trim_end(), 100)?;
        return match u32::try_from(share_bp) {
            Ok(share_bp @ 1..=10_000) => Ok(Amount::ShareBp(share_bp)),
            Ok(_) | Err(_) => Err("a share of memory lies between 0.01% and 100%".to_owned()),
        };
    }
    parse_bytes(text).map(Amount::Bytes)
}

/// Reads a size in bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err("a size cannot be negative".to_owned());
    }
    let digits_end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    if number.is_empty() {
        return Err(format!("this is not a size: {FORMS}"));
    }
    let unit = unit.trim_start().to_ascii_lowercase();
    let Some((_, unit_bytes)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("\"{unit}\" is not a unit: {FORMS}"));
    };
    scaled(number, *unit_bytes)
}

/// Reads seconds from 0.1 to an hour, as nanoseconds.
pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    match scaled(text.trim(), 1_000_000_000) {
        Ok(ns @ 100_000_000..=3_600_000_000_000) => Ok(ns),
        Ok(_) => Err("give 0.1 to 3600 seconds".to_owned()),
        Err(_) => Err(format!("\"{text}\" is not a number of seconds: give 0.1 to 3600")),
    }
}

/// `number`, which may have a fraction, times `unit`, rounded down.
fn scaled(number: &str, unit: u64) -> Result<u64, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !(is_digits(whole) && is_digits(fraction)) || (whole.is_empty() && fraction.is_empty()) {
        return Err(format!("\"{number}\" is not a number: {FORMS}"));
    }
    if fraction.len() > FRACTION_DIGITS_MAX {
        return Err(format!("more than {FRACTION_DIGITS_MAX} digits after the point"));
    }
    let too_large = || format!("\"{number}\" is more than any machine has");
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
    let mut tail: u128 = 0;
    let mut tail_unit: u128 = 1;
    for digit in fraction.bytes() {
        tail = tail * 10 + u128::from(digit - b'0');
        tail_unit *= 10;
    }
    let total = u128::from(whole) * u128::from(unit) + tail * u128::from(unit) / tail_unit;
    u64::try_from(total).map_err(|_| too_large())
}

/// Shows bytes in the largest binary unit that leaves at least one, with one digit after the point: `1.5 GiB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match NAMES.iter().find(|(_, unit)| self.0 >= *unit) {
            None => write!(f, "{} bytes", self.0),
            Some((name, unit)) if self.0.is_multiple_of(*unit) => write!(f, "{} {name}", self.0 / unit),
            Some((name, unit)) => {
                let tenths = u128::from(self.0) * 10 / u128::from(*unit);
                write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
            }
        }
    }
}

/// Bytes in at most five characters, for tables: `1.5G`, `512M`, `0`.
pub(crate) struct Short(pub(crate) u64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
        match NAMES.iter().find(|(_, unit)| self.0 >= *unit) {
            None => write!(f, "{}", self.0),
            Some((name, unit)) => {
                let tenths = u128::from(self.0) * 10 / u128::from(*unit);
                if tenths < 100 && !tenths.is_multiple_of(10) {
                    write!(f, "{}.{}{name}", tenths / 10, tenths % 10)
                } else {
                    write!(f, "{}{name}", tenths / 10)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases: [(&str, u64); 13] = [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("8G", 8 << 30),
            ("8GiB", 8 << 30),
            ("8 GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("1.5G", 3 << 29),
            (".5K", 512),
            ("1.K", 1024),
            ("0.0001K", 0),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        let cases = [
            ("", "not a size"),
            ("M", "not a size"),
            ("-1M", "negative"),
            ("8Q", "\"q\" is not a unit"),
            ("1.2.3M", "not a number"),
            (".", "not a number"),
            ("18446744073709551616", "more than any machine"),
            ("99999999999T", "more than any machine"),
            ("1.0000000000000000000K", "digits after the point"),
            ("١M", "not a size"),
        ];
        for (text, reason) in cases {
            let error = parse_bytes(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn seconds_are_between_a_tenth_and_an_hour() {
        assert_eq!(parse_seconds("1"), Ok(1_000_000_000));
        assert_eq!(parse_seconds("0.25"), Ok(250_000_000));
        for text in ["0", "0.09", "3601", "x", "-1", ""] {
            assert!(parse_seconds(text).is_err_and(|error| error.contains("0.1 to 3600")), "{text}");
        }
    }

    #[test]
    fn a_share_is_of_the_memory_there_is() {
        assert_eq!(parse_amount("25%"), Ok(Amount::ShareBp(2_500)));
        assert_eq!(parse_amount("12.5 %"), Ok(Amount::ShareBp(1_250)));
        assert_eq!(parse_amount("25%").map(|amount| amount.bytes(8 << 30)), Ok(2 << 30));
        for text in ["0%", "101%", "%", "x%"] {
            assert!(parse_amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn short_sizes_have_a_digit_behind_the_point_where_it_tells_something() {
        for (bytes, text) in [(0, "0"), (1023, "1023"), (3 << 29, "1.5G"), (512 << 20, "512M"), (1 << 40, "1T")] {
            assert_eq!(Short(bytes).to_string(), text);
        }
    }

    #[test]
    fn bytes_are_shown_in_the_largest_unit() {
        let cases =
            [(0, "0 bytes"), (1023, "1023 bytes"), (1 << 20, "1 MiB"), (3 << 29, "1.5 GiB"), (1 << 41, "2 TiB")];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
