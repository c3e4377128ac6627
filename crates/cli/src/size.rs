//! Amounts of memory as people write them, a size (`512M`, `8GiB`; [`units`]) or a share (`25%`), and as they are shown.

use std::fmt;

use pagetide_sim::units;

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

/// Reads a size or a share of memory.
pub(crate) fn parse_amount(text: &str) -> Result<Amount, String> {
    let Some(number) = text.trim().strip_suffix('%') else {
        return units::bytes(text)
            .map(Amount::Bytes)
            .map_err(|error| format!("{error}; 25% is of the memory there is"));
    };
    match u32::try_from(units::scaled(number.trim_end(), 100)?) {
        Ok(share_bp @ 1..=10_000) => Ok(Amount::ShareBp(share_bp)),
        Ok(_) | Err(_) => Err("a share of memory lies between 0.01% and 100%".to_owned()),
    }
}

/// Reads seconds from 0.1 to an hour, as nanoseconds.
pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    match units::scaled(text.trim(), 1_000_000_000) {
        Ok(ns @ 100_000_000..=3_600_000_000_000) => Ok(ns),
        Ok(_) => Err("give 0.1 to 3600 seconds".to_owned()),
        Err(_) => Err(format!("\"{text}\" is not a number of seconds: give 0.1 to 3600")),
    }
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
