//! Sizes and times as people write them.

use pagetide_core::types::Nanos;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// How a size may be written, for messages.
const SIZES: &str = "write for example 512M, 8G, 8GiB or 1.5G; a lone number is bytes";

/// As coreutils have it: `K` and `KiB` are powers of 1024, `KB` of 1000.
const SIZE_UNITS: [(&str, u64); 14] = [
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

const TIME_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Digits after the point beyond which a number is refused: 18 more digits still fit the arithmetic.
const FRACTION_DIGITS_MAX: usize = 18;

/// Bytes of a size: `512M`, `8GiB`, `1.5 G`, `4096`. A part of a byte is dropped.
///
/// # Errors
/// A sentence that says what is wrong with the text.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text).ok_or_else(|| format!("this is not a size: {SIZES}"))?;
    let Some((_, bytes)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("\"{unit}\" is not a unit of size: {SIZES}"));
    };
    scaled(number, *bytes)
}

/// Pages of a size: as [`bytes()`] reads it, rounded up, or `300pages`; at most 4 TiB.
///
/// # Errors
/// A sentence that says what is wrong with the text.
pub fn pages(text: &str) -> Result<u32, String> {
    let bytes = match split(text) {
        Some((number, unit)) if ["p", "page", "pages"].contains(&unit.as_str()) => scaled(number, PAGE_BYTES),
        _ => bytes(text),
    };
    let pages = bytes?.div_ceil(PAGE_BYTES);
    u32::try_from(pages).ok().filter(|p| *p <= 1 << 30).ok_or_else(|| format!("\"{text}\" is more than 4 TiB"))
}

/// Nanoseconds of a time: `24us`, `1.5ms`, `300s`, `2min`, `0`; at most a year, so that sums of them stay far from overflow.
///
/// # Errors
/// A sentence that says what is wrong with the text.
pub fn nanos(text: &str) -> Result<Nanos, String> {
    let (number, unit) = split(text).ok_or_else(|| "this is not a time: write 24us, 10ms or 3s".to_owned())?;
    let found = TIME_UNITS.iter().find(|(name, _)| *name == unit);
    let total = match found {
        Some((_, ns)) => scaled(number, *ns)?,
        None if unit.is_empty() && scaled(number, u64::from(u32::MAX)) == Ok(0) => 0,
        None if unit.is_empty() => return Err(format!("\"{number}\" has no unit: write 24us, 10ms or 3s")),
        None => return Err(format!("\"{unit}\" is not a unit of time: write 24us, 10ms or 3s")),
    };
    if total > 31_536_000_000_000_000 { Err(format!("\"{text}\" is longer than a year")) } else { Ok(total) }
}

/// `number`, which may have a fraction, times `unit`, rounded down. No float is involved.
///
/// # Errors
/// A sentence that says what is wrong with the number.
pub fn scaled(number: &str, unit: u64) -> Result<u64, String> {
    if number.starts_with('-') {
        return Err(format!("\"{number}\" is negative"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !(is_digits(whole) && is_digits(fraction)) || (whole.is_empty() && fraction.is_empty()) {
        return Err(format!("\"{number}\" is not a number"));
    }
    if fraction.len() > FRACTION_DIGITS_MAX {
        return Err(format!("more than {FRACTION_DIGITS_MAX} digits after the point"));
    }
    let too_large = || format!("\"{number}\" is too large");
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
    let (mut tail, mut tail_unit) = (0_u128, 1_u128);
    for digit in fraction.bytes() {
        tail = tail * 10 + u128::from(digit - b'0');
        tail_unit *= 10;
    }
    let total = u128::from(whole) * u128::from(unit) + tail * u128::from(unit) / tail_unit;
    u64::try_from(total).map_err(|_| too_large())
}

/// A number, which may have a sign, and its unit in small letters. None: it does not begin with a number.
fn split(text: &str) -> Option<(&str, String)> {
    let text = text.trim();
    let from = usize::from(text.starts_with('-'));
    let end = text[from..].find(|c: char| !(c.is_ascii_digit() || c == '.')).map_or(text.len(), |at| from + at);
    (end > from).then(|| (&text[..end], text[end..].trim_start().to_lowercase()))
}

/// A time for people: the largest unit in which it has a whole part.
pub fn show_nanos(ns: Nanos) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{}.{:02} us", ns / 1_000, ns % 1_000 / 10),
        1_000_000..1_000_000_000 => format!("{}.{:02} ms", ns / 1_000_000, ns % 1_000_000 / 10_000),
        _ => format!("{}.{:02} s", ns / 1_000_000_000, ns % 1_000_000_000 / 10_000_000),
    }
}

/// A number of pages for people.
pub fn show_pages(pages: u64) -> String {
    let kib = pages * (PAGE_BYTES / 1024);
    match kib {
        0..1024 => format!("{kib} KiB"),
        1024..1_048_576 => format!("{}.{} MiB", kib / 1024, kib % 1024 * 10 / 1024),
        _ => format!("{}.{:02} GiB", kib / 1_048_576, kib % 1_048_576 * 100 / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases: [(&str, u64); 14] = [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("8G", 8 << 30),
            ("8GiB", 8 << 30),
            ("8 GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("64kb", 64_000),
            ("1.5G", 3 << 29),
            (".5K", 512),
            ("1.K", 1024),
            ("0.0001K", 0),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        let cases = [
            ("", "not a size"),
            ("M", "not a size"),
            ("-", "not a size"),
            ("-1M", "negative"),
            ("8Q", "\"q\" is not a unit"),
            ("1.2.3M", "not a number"),
            (".", "not a number"),
            ("18446744073709551616", "too large"),
            ("99999999999T", "too large"),
            ("1.0000000000000000000K", "digits after the point"),
            ("١M", "not a size"),
        ];
        for (text, reason) in cases {
            let error = bytes(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn pages_are_as_many_as_hold_the_size() {
        assert_eq!(pages("64MiB"), Ok(16_384));
        assert_eq!(pages("1.5 G"), Ok(393_216));
        assert_eq!(pages("300pages"), Ok(300));
        assert_eq!(pages("4097"), Ok(2));
        for bad in ["-3M", "-3 pages", "12Q", "pages", "5T", "99999999T", "18446744073709551615G"] {
            assert!(pages(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_a_unit_and_end_within_a_year() {
        assert_eq!(nanos("24us"), Ok(24_000));
        assert_eq!(nanos("24 µs"), Ok(24_000));
        assert_eq!(nanos("1.5ms"), Ok(1_500_000));
        assert_eq!(nanos("0"), Ok(0));
        let cases = [
            ("-1us", "negative"),
            ("5", "no unit"),
            ("9999h", "a year"),
            ("9999999h", "too large"),
            ("1fortnight", "not a unit"),
            (".", "no unit"),
            ("us", "not a time"),
        ];
        for (text, reason) in cases {
            let error = nanos(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
