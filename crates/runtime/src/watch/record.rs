//! What a run says of itself: records of numbers and a text each, one line each.
//!
//! A record is declared once: its fields, their meaning and their order on the line come from one list.

use std::fmt::Write as _;
use std::path::Path;

/// Bytes of a text at most.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Priorities from here on are given by the order of the places.
pub const PRIORITY_BY_ORDER: u64 = 1 << 15;

/// Declares records: public fields of `u64` in the order of the line, then one text, which ends the line.
macro_rules! records {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $field_doc:literal])+ $field:ident),+ ; $(#[doc = $text_doc:literal])+ $text:ident })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $field_doc])+ pub $field: u64,)+
            $(#[doc = $text_doc])+
            pub $text: String,
        }

        impl $name {
            /// As a line that begins with `key`.
            pub(super) fn write(&self, key: &str, out: &mut String) {
                out.push_str(key);
                $(write!(out, " {}", self.$field).expect("writing to a String does not fail");)+
                out.push(' ');
                push_text(&self.$text, out);
                out.push('\n');
            }

            /// From what follows the key.
            pub(super) fn read(line: &str) -> Option<Self> {
                let mut rest = line;
                $(let $field = next_number(&mut rest)?;)+
                Some(Self { $($field,)+ $text: read_text(rest)? })
            }
        }
    )+};
}

records! {
    /// A run as a whole.
    RunView {
        /// The process that supervises it.
        pid,
        /// The process that it started first.
        main_pid,
        /// When it began, in nanoseconds since 1970.
        started_unix_ns,
        /// When this was said, in nanoseconds of a clock that never goes back: differences count.
        now_ns,
        /// What it may keep resident.
        budget_bytes,
        /// What it keeps resident.
        resident_bytes,
        /// The most that it kept.
        peak_resident_bytes,
        /// What its processes have in swap space and not in memory as well, each by itself.
        swapped_bytes,
        /// The last seconds, for which the following tells: so long.
        recent_ns,
        /// Faults in them for which a page had to be read.
        recent_major_faults,
        /// Time in them under management, in microseconds: the sum over the processes.
        recent_managed_us,
        /// Time of that in which at least one thread of the process waited for memory.
        recent_stall_us,
        /// Processes that live.
        processes,
        /// Those whose memory is managed.
        managed_processes
        ;
        /// Its name; empty if it was given none.
        name
    }

    /// One process of a run.
    ProcessView {
        /// Its number.
        pid,
        /// 1 if its memory is managed, 0 if it runs natively.
        is_managed,
        /// What it may keep resident at present; 0 if it is not managed.
        share_bytes,
        /// What it keeps resident.
        resident_bytes,
        /// What is in swap space and not in memory as well.
        swapped_bytes,
        /// Faults on managed memory.
        faults,
        /// Those for which a page had to be read.
        major_faults,
        /// Of what is paged out: in memory, compressed.
        compressed_bytes,
        /// What is resident by list: used a while ago, and lately.
        inactive_bytes,
        /// See `inactive_bytes`.
        active_bytes,
        /// Pages that came back soon enough to belong to the working set.
        refaults,
        /// Pages read ahead.
        read_ahead,
        /// Of those, pages that are known to have been touched.
        read_ahead_hits,
        /// And those that are known not to have been, before they went.
        read_ahead_unused,
        /// Microseconds under management.
        managed_us,
        /// Of those, in which at least one thread waited for memory.
        stall_some_us,
        /// Of those, in which no thread did anything else.
        stall_full_us
        ;
        /// Its command, as the kernel has it.
        command
    }

    /// A region of a process's memory that is managed: what it holds, and what it did in the last interval.
    RegionView {
        /// Its first address.
        start,
        /// Addresses of it.
        size_bytes,
        /// What is resident.
        resident_bytes,
        /// What is paged out.
        swapped_bytes,
        /// Of that: in memory, compressed.
        compressed_bytes,
        /// Faults on it in the interval.
        faults,
        /// Those for which a page had to be read.
        major_faults,
        /// Pages that came back soon enough to belong to the working set.
        refaults,
        /// Pages read ahead that are known to have been touched.
        read_ahead_hits,
        /// And those that are known not to have been, before they went.
        read_ahead_unused,
        /// Microseconds that faults on it waited, one by one.
        waited_us
        ;
        /// Its mapping, as the kernel names it: `[heap]`, `[anon]`, `[anon:NAME]`.
        mapping
    }

    /// One place that a run swaps to.
    DeviceView {
        /// What may be there at most: of a directory in the files of all processes that have pages there.
        size_bytes,
        /// What of it holds something, each part once.
        used_bytes,
        /// What could not be read back.
        lost_bytes,
        /// Higher is used first; [`PRIORITY_BY_ORDER`] and more: given by the order.
        priority,
        /// 0: pages go there; 1: it takes no more; 2: it is being emptied; 3: it fails, and is being emptied as far as it can
        /// be read; 4: emptying it was given up.
        state,
        /// Pages a second that leave a place that is being drained; 0 if that is not known.
        pages_per_s,
        /// Time until it is drained at this rate; 0 if that is not known.
        left_ns,
        /// Reads so far, by processes that live.
        read_requests,
        /// What they read.
        read_bytes,
        /// Time that they took, one by one.
        read_ns,
        /// The same of writes.
        write_requests,
        /// See `write_requests`.
        write_bytes,
        /// See `write_requests`.
        write_ns
        ;
        /// Where it is.
        path
    }
}

impl DeviceView {
    /// True if `path` names this place, in whatever way.
    pub fn is_at(&self, path: &Path) -> bool {
        is_same(Path::new(&self.path), path)
    }
}

/// True if two names name the same place.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

/// Appends a text so that it holds no end of a line, at most [`TEXT_BYTES_MAX`] bytes of it.
pub(super) fn push_text(text: &str, out: &mut String) {
    for sign in text[..text.floor_char_boundary(TEXT_BYTES_MAX)].chars() {
        match sign {
            '\n' => out.push_str("\\n"),
            '\\' => out.push_str("\\\\"),
            other => out.push(other),
        }
    }
}

/// What `push_text` wrote. None: it cannot have written that.
pub(super) fn read_text(line: &str) -> Option<String> {
    let mut text = String::with_capacity(line.len());
    let mut signs = line.chars();
    while let Some(sign) = signs.next() {
        text.push(match sign {
            '\\' => match signs.next()? {
                'n' => '\n',
                '\\' => '\\',
                _ => return None,
            },
            other => other,
        });
    }
    (text.len() <= TEXT_BYTES_MAX).then_some(text)
}

/// The number that `rest` begins with, which a blank ends.
pub(super) fn next_number(rest: &mut &str) -> Option<u64> {
    let (word, behind) = rest.split_once(' ')?;
    *rest = behind;
    decimal(word)
}

/// A number without a sign.
pub(super) fn decimal(word: &str) -> Option<u64> {
    if word.bytes().all(|byte| byte.is_ascii_digit()) { word.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_ends_of_lines_come_back() {
        for text in ["", "plain", "a\nb\\n", "\\", "ä\u{1f600}"] {
            let mut line = String::new();
            push_text(text, &mut line);
            assert!(!line.contains('\n'), "{line:?}");
            assert_eq!(read_text(&line).as_deref(), Some(text));
        }
        assert_eq!(read_text("a\\"), None);
        assert_eq!(read_text("a\\x"), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut line = String::new();
        push_text(&"ä".repeat(TEXT_BYTES_MAX), &mut line);
        assert_eq!(read_text(&line).map(|text| text.len()), Some(TEXT_BYTES_MAX));
    }

    #[test]
    fn numbers_have_no_sign() {
        assert_eq!(
            DeviceView::read("1 2 3 4 5 6 7 8 9 10 11 12 13 /a b").map(|view| view.path),
            Some("/a b".to_owned())
        );
        assert_eq!(DeviceView::read("1 2 3 4 5 6 7 8 9 10 11 12 13"), None);
        assert_eq!(DeviceView::read("+1 2 3 4 5 6 7 8 9 10 11 12 13 x"), None);
        assert_eq!(DeviceView::read("1 2 3 4 5 6 7 8 9 10 11 12 18446744073709551616 x"), None);
    }
}
