//! Text without an allocator: a fixed buffer for paths and messages, numbers from bytes, and a last word before the end.

use core::ffi::CStr;
use core::fmt;

use crate::{signal, stderr};

/// Up to `N - 1` bytes of text. What does not fit is cut, and `is_cut` says so.
#[derive(Clone)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
    cut: bool,
}

impl<const N: usize> Text<N> {
    /// No text.
    pub const fn new() -> Self {
        assert!(N > 0, "a Text has room for its closing zero");
        Self { bytes: [0; N], len: 0, cut: false }
    }

    /// Formatted text: `Text::format(format_args!("/proc/{pid}/statm"))`.
    pub fn format(args: fmt::Arguments<'_>) -> Self {
        let mut text = Self::new();
        // `write_str` below never fails; what does not fit is recorded in `cut`.
        let _ = fmt::Write::write_fmt(&mut text, args);
        text
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The text up to the first byte that is not UTF-8.
    pub fn as_str(&self) -> &str {
        match core::str::from_utf8(self.as_bytes()) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&self.bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }

    /// The text as a path for the kernel: up to the first zero byte.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// True if something did not fit.
    pub const fn is_cut(&self) -> bool {
        self.cut
    }

    /// Append bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        let room = N - 1 - self.len;
        let taken = bytes.len().min(room);
        self.bytes[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        self.cut |= taken < bytes.len();
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_bytes(text.as_bytes());
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The decimal number at the head of `bytes` (after blanks) and what follows it. `None` without a digit or beyond 64 bits.
pub fn decimal(bytes: &[u8]) -> Option<(u64, &[u8])> {
    number(bytes, 10)
}

/// The same in hexadecimal, without `0x`.
pub fn hexadecimal(bytes: &[u8]) -> Option<(u64, &[u8])> {
    number(bytes, 16)
}

fn number(bytes: &[u8], radix: u32) -> Option<(u64, &[u8])> {
    let bytes = bytes.trim_ascii_start();
    let mut value = 0u64;
    let mut used = 0;
    for &byte in bytes {
        let Some(digit) = char::from(byte).to_digit(radix) else { break };
        value = value.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))?;
        used += 1;
    }
    (used > 0).then(|| (value, &bytes[used..]))
}

/// Say `message` on standard error and abort the process, without std, unwinding, handlers of the program or those of its exit.
pub fn die(message: fmt::Arguments<'_>) -> ! {
    let mut text = Text::<512>::format(message);
    text.push_bytes(b"\n");
    stderr::write(text.as_bytes());
    signal::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_and_said() {
        let text = Text::<8>::format(format_args!("{}-{}", 1234, 56789));
        assert_eq!(text.as_str(), "1234-56");
        assert!(text.is_cut());
        assert_eq!(text.as_c_str().to_bytes(), b"1234-56");
    }

    #[test]
    fn numbers_stop_at_the_first_foreign_byte_and_refuse_overflow() {
        assert_eq!(decimal(b"  42 kB"), Some((42, b" kB".as_slice())));
        assert_eq!(hexadecimal(b"7f-8"), Some((0x7f, b"-8".as_slice())));
        assert_eq!(decimal(b"kB"), None);
        assert_eq!(decimal(b"18446744073709551616"), None);
    }
}
