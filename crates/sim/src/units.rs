//! Sizes and times as people write them.

use pagetide_core::types::Nanos;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Pages of a size: `512M`, `8GiB`, `64MiB`, `4096` (bytes), `300pages`.
///
/// # Errors
/// A sentence that says what is wrong with the text.
pub fn pages(text: &str) -> Result<u32, String> {
    let (number, unit) = split(text)?;
    let bytes = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1u64 << 40,
        "p" | "page" | "pages" => PAGE_BYTES,
        other => return Err(format!("`{other}` is no unit of size: write 512M, 8GiB or 300pages")),
    };
    let total = scale(number, bytes).ok_or_else(|| format!("`{text}` is too large"))?;
    let pages = total.div_ceil(PAGE_BYTES);
    u32::try_from(pages).ok().filter(|p| *p <= 1 << 30).ok_or_else(|| format!("`{text}` is more than 4 TiB"))
}

/// Nanoseconds of a time: `24us`, `1.5ms`, `300s`, `2min`, `0`.
///
/// # Errors
/// A sentence that says what is wrong with the text.
pub fn nanos(text: &str) -> Result<Nanos, String> {
    let (number, unit) = split(text)?;
    let ns = match unit.to_ascii_lowercase().as_str() {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" if number == (0, 0) => 1,
        "" => return Err(format!("`{text}` has no unit: write 24us, 10ms or 3s")),
        other => return Err(format!("`{other}` is no unit of time: write 24us, 10ms or 3s")),
    };
    let total = scale(number, ns).ok_or_else(|| format!("`{text}` is too long"))?;
    // A year in nanoseconds: nobody waits for more, and sums of them stay far from overflow.
    if total > 31_536_000_000_000_000 { Err(format!("`{text}` is longer than a year")) } else { Ok(total) }
}

/// A number as whole part and billionths.
type Decimal = (u64, u64);

fn split(text: &str) -> Result<(Decimal, &str), String> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(format!("`{text}` is negative"));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let bad = || format!("`{text}` does not begin with a number");
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return Err(bad());
    }
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let digits = u32::try_from(fraction.len()).map_err(|_| bad())?;
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| bad())? };
    Ok(((whole, fraction * 10u64.pow(9 - digits)), unit.trim()))
}

fn scale((whole, billionths): Decimal, unit: u64) -> Option<u64> {
    let fraction = u128::from(billionths) * u128::from(unit) / 1_000_000_000;
    whole.checked_mul(unit)?.checked_add(u64::try_from(fraction).ok()?)
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
    fn sizes_and_times_are_read_as_written() {
        assert_eq!(pages("64MiB"), Ok(16_384));
        assert_eq!(pages("1.5 G"), Ok(393_216));
        assert_eq!(pages("300pages"), Ok(300));
        assert_eq!(pages("4097"), Ok(2));
        assert_eq!(nanos("24us"), Ok(24_000));
        assert_eq!(nanos("1.5ms"), Ok(1_500_000));
        assert_eq!(nanos("0"), Ok(0));
    }

    #[test]
    fn absurd_ones_are_refused_with_a_reason() {
        for bad in ["-3M", "12Q", "", "M", "1..2G", "99999999T", "1.2.3G", "18446744073709551615G"] {
            assert!(pages(bad).is_err(), "{bad}");
        }
        for bad in ["-1us", "5", "9999999h", "1fortnight", "."] {
            assert!(nanos(bad).is_err(), "{bad}");
        }
    }
}
