//! Which pages of private file mappings a process has written, where they are many: they are made anonymous before its agent starts, so that
//! they can be paged (`origins.rs`). The class archive of a JVM is such memory, Emacs's image, and the static data of large programs. So are
//! the tables of addresses that the dynamic linker has written and made read-only (RELRO): 11 MB of clang's.
//!
//! Left alone: mappings that are not both readable and writable (but for RELRO, as the file's program headers have it) or may be executed, those with advice or a lock that a new mapping would not
//! have, devices, the object's own, and what is less than [`RUN_PAGES`] in a row or [`MAPPING_BYTES`] in a mapping: the C library's and the
//! loader's data is among these, which the runtime needs itself. So are descriptors of restartable sequences: in signal mode the kernel would
//! not find one that is out, and end the program. They have a section of their own by convention (librseq, tcmalloc).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::{io, ops};

use crate::elf;
use crate::origins::TAKEN_MAX;
use crate::space::{PAGE_BYTES, PAGE_SHIFT};

/// A mapping of which less was written is left alone.
const MAPPING_BYTES: u64 = 1 << 20;
/// Fewer pages in a row would cost more than they give: each run is a mapping more, or two.
const RUN_PAGES: u64 = 16;
/// One command copies so much at most.
const RANGE_PAGES: u64 = (64 << 20) >> PAGE_SHIFT;
/// What /proc/PID/smaps may say of a mapping that is taken: rights, and that its memory is accounted for, or advice about reading.
const FLAGS: [&str; 11] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "sd", "sr", "rr", "gu"];

/// The section of descriptors.
const SEQUENCES: &[u8] = b"__rseq_cs";

/// Some pages of one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) is_read_only: bool,
}

/// A mapping as smaps has it, as far as it counts here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    start: u64,
    end: u64,
    /// Where its first byte is in the file.
    offset: u64,
    path: String,
    is_read_only: bool,
}

/// True if the process may have such pages. Cheap, and asked of every process.
pub(in crate::supervise) fn may_be(pid: i32, words: u64) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    has_candidate(&String::from_utf8_lossy(&maps), words)
}

/// The list of mappings names one that may be taken. Which pages of it were written it does not say.
fn has_candidate(maps: &str, words: u64) -> bool {
    let mappings: Vec<_> = maps.lines().map(Candidate::of).collect();
    let is_candidate = |at: usize| {
        let mapping = mappings[at].as_ref().filter(|mapping| mapping.may_be_taken(words));
        let next = mappings.get(at + 1).and_then(Option::as_ref);
        mapping.is_some_and(|mapping| !mapping.is_read_only || next.is_some_and(|next| mapping.is_before_data(next)))
    };
    (0..mappings.len()).any(is_candidate)
}

/// The ranges, the largest first if they are too many. `words`: an address in the object's own data. None where nothing can be seen.
pub(super) fn find(pid: i32, words: u64) -> Vec<Range> {
    let smaps = fs::read(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let Ok(pagemap) = File::open(format!("/proc/{pid}/pagemap")) else { return Vec::new() };
    let mut ranges = Vec::new();
    for mapping in candidates(&String::from_utf8_lossy(&smaps), words) {
        if mapping.is_read_only && !mapping.is_relocated(pid).unwrap_or(false) {
            continue;
        }
        // A file that is deleted, or that nobody may read, is taken for one without: hardly a loaded library.
        let descriptors = mapping.descriptors(pid).unwrap_or_default();
        let pages = (mapping.end - mapping.start) >> PAGE_SHIFT;
        let mut entries = vec![0; usize::try_from(pages * 8).expect("addresses are 64 bit")];
        if pagemap.read_exact_at(&mut entries, (mapping.start >> PAGE_SHIFT) * 8).is_ok() {
            let entry = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            let runs = runs(mapping.start, entries.chunks_exact(8).map(entry), &descriptors);
            ranges.extend(runs.into_iter().map(|run| Range { is_read_only: mapping.is_read_only, ..run }));
        }
    }
    ranges.sort_unstable_by_key(|range| std::cmp::Reverse(range.bytes));
    ranges.truncate(TAKEN_MAX);
    ranges
}

impl Candidate {
    /// From a line that begins a mapping; None: another line, or a mapping of another kind.
    fn of(line: &str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let is_read_only = match fields.next()? {
            "rw-p" => false,
            "r--p" => true,
            _ => return None,
        };
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(fields.next()?)?);
        let inode = fields.nth(1)?;
        let path = fields.next().map_or("", str::trim_start);
        let is_file = inode != "0" && path.starts_with('/') && !path.starts_with("/dev/");
        is_file.then(|| Self { start, end, offset, path: path.to_owned(), is_read_only })
    }

    const fn may_be_taken(&self, words: u64) -> bool {
        self.end - self.start >= MAPPING_BYTES && !(self.start <= words && words < self.end)
    }

    /// What comes behind it is data of the same file, as it does behind RELRO. (Where in the file: lld has both share a page of it.)
    fn is_before_data(&self, next: &Self) -> bool {
        next.start == self.end && !next.is_read_only && next.path == self.path
    }

    /// All of it is RELRO: the dynamic linker has written it, and nobody will. An error: its file cannot be read.
    fn is_relocated(&self, pid: i32) -> io::Result<bool> {
        let relocated = elf::relocated(&self.file(pid)?)?;
        let end = self.offset + (self.end - self.start);
        let whole = |at: u64| at / PAGE_BYTES * PAGE_BYTES;
        Ok(relocated.is_some_and(|range| whole(range.start) <= self.offset && end <= whole(range.end)))
    }

    fn file(&self, pid: i32) -> io::Result<File> {
        // Of this name there may be a pipe by now, whose writer nobody waits for.
        let path = format!("/proc/{pid}/root{}", self.path);
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
    }

    /// The addresses of descriptors of restartable sequences. An error: its file cannot be read.
    fn descriptors(&self, pid: i32) -> io::Result<Vec<ops::Range<u64>>> {
        let sections = elf::sections(&self.file(pid)?, SEQUENCES)?;
        let address = |at: u64| self.start.saturating_add(at.saturating_sub(self.offset));
        Ok(sections.into_iter().map(|section| address(section.start)..address(section.end)).collect())
    }
}

/// The mappings of which much was written.
fn candidates(smaps: &str, words: u64) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut mapping = None;
    let mut written = 0;
    for line in smaps.lines() {
        let value = |key: &str| line.strip_prefix(key).map(str::trim);
        if let Some(anonymous) = value("Anonymous:") {
            written = anonymous.strip_suffix(" kB").and_then(|size| size.parse::<u64>().ok()).unwrap_or(0) << 10;
        } else if let Some(flags) = value("VmFlags:") {
            let is_plain = flags.split_ascii_whitespace().all(|flag| FLAGS.contains(&flag));
            found.extend(mapping.take().filter(|_| is_plain && written >= MAPPING_BYTES));
        } else if !line.starts_with(|first: char| first.is_ascii_uppercase()) {
            mapping = Candidate::of(line).filter(|mapping| mapping.may_be_taken(words));
            written = 0;
        }
    }
    found
}

/// The pages in a row that are there and are nobody else's, of a mapping that begins at `start`, and have nothing of what is to be `kept`.
fn runs(start: u64, entries: impl Iterator<Item = u64>, kept: &[ops::Range<u64>]) -> Vec<Range> {
    /// There, and of a file or shared: bits of /proc/PID/pagemap.
    const PRESENT: u64 = 1 << 63;
    const FILE: u64 = 1 << 61;
    let mut ranges: Vec<Range> = Vec::new();
    for (at, entry) in (start..).step_by(usize::try_from(PAGE_BYTES).expect("a page is small")).zip(entries) {
        let is_kept = kept.iter().any(|kept| kept.start < at + PAGE_BYTES && at < kept.end);
        if entry & (PRESENT | FILE) != PRESENT || is_kept {
            continue;
        }
        match ranges.last_mut() {
            Some(last) if last.start + last.bytes == at && last.bytes < RANGE_PAGES * PAGE_BYTES => {
                last.bytes += PAGE_BYTES
            }
            _ => ranges.push(Range { start: at, bytes: PAGE_BYTES, is_read_only: false }),
        }
    }
    ranges.retain(|range| range.bytes >= RUN_PAGES * PAGE_BYTES);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00001000 fd:00 77 /usr/lib/classes.jsa
Size:               4096 kB
Anonymous:          2048 kB
VmFlags: rd wr mr mw me ac sd
7f0000400000-7f0000800000 rw-p 00001000 fd:00 78 /usr/lib/locked
Anonymous:          2048 kB
VmFlags: rd wr mr mw me lo ac sd
7f0000800000-7f0000c00000 rw-p 00001000 fd:00 79 /usr/lib/not written
Anonymous:             8 kB
VmFlags: rd wr mr mw me ac sd
7f0000c00000-7f0001000000 rw-p 00000000 00:0f 80 /anon_hugepage (deleted)
Anonymous:          4096 kB
VmFlags: rd wr mr mw me ac ht sd
7f0001000000-7f0001400000 rw-p 00000000 00:00 0
Anonymous:          4096 kB
VmFlags: rd wr mr mw me ac sd
7f0001400000-7f0001800000 r--p 00000000 fd:00 81 /usr/lib/read
Anonymous:          4096 kB
VmFlags: rd mr mw me ac sd
7f0001800000-7f0001c00000 rw-p 00000000 fd:00 82 /usr/lib/object.so
Anonymous:          4096 kB
VmFlags: rd wr mr mw me ac sd
";

    #[test]
    fn written_mappings_of_files_are_found_and_nothing_else() {
        let words = 0x7f00_0180_1000;
        let found = |words| -> Vec<_> {
            let found = candidates(SMAPS, words).into_iter();
            found.map(|found| (found.path, found.offset, found.is_read_only)).collect()
        };
        let archive = ("/usr/lib/classes.jsa".to_owned(), 0x1000, false);
        let constants = ("/usr/lib/read".to_owned(), 0, true);
        assert_eq!(found(words), [archive, constants]);
        assert_eq!(found(0).len(), 3, "the object's own is one without its words");
        assert_eq!(candidates("", 0), []);
        assert_eq!(candidates("no\nsmaps\n\nAnonymous: 9999\nVmFlags: rd\n", 0), []);
    }

    #[test]
    fn what_the_loader_has_made_read_only_is_told_from_constants_by_what_comes_behind_it() {
        const MAPS: &str = "\
7f0000000000-7f0000800000 r--p 00000000 fd:00 77 /usr/lib/libLLVM.so
7f0000800000-7f0000f00000 r--p 00800000 fd:00 77 /usr/lib/libLLVM.so
7f0000f00000-7f0000f10000 rw-p 00f00000 fd:00 77 /usr/lib/libLLVM.so
7f0000f10000-7f0000f20000 rw-p 00000000 00:00 0
";
        assert!(has_candidate(MAPS, 0));
        let without = |line: usize| {
            let lines = MAPS.lines().enumerate().filter(|&(at, _)| at != line).map(|(_, line)| line);
            has_candidate(&lines.collect::<Vec<_>>().join("\n"), 0)
        };
        assert_eq!([0, 1, 2].map(without), [true, false, false]);
        assert!(has_candidate(&MAPS.replace("rw-p 00f00000", "rw-p 00eff000"), 0), "as lld lays it out");
        assert!(!has_candidate(&MAPS.replace("7f0000f00000-7f0000f10000", "7f0000f01000-7f0000f10000"), 0), "a gap");
    }

    #[test]
    fn a_pipe_in_place_of_the_file_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("pagetide-pipe-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("coreutils are there");
        assert!(made.success());
        let (own, name) = (std::process::id().cast_signed(), path.to_string_lossy().into_owned());
        let found =
            Candidate { start: 0, end: MAPPING_BYTES, offset: 0, path: name, is_read_only: false }.descriptors(own);
        fs::remove_file(&path).expect("just made");
        assert!(found.is_err(), "{found:?}");
    }

    #[test]
    fn pages_that_were_written_in_a_row_are_a_range() {
        const WRITTEN: u64 = 1 << 63;
        const READ: u64 = 1 << 63 | 1 << 61;
        let page = |at: u64| 0x10_0000 + at * PAGE_BYTES;
        let mut entries = vec![WRITTEN; 100];
        (entries[20], entries[21], entries[30], entries[99]) = (READ, 0, 1 << 62, READ);
        let expected = [(0, 20), (31, 68)].map(|(at, pages)| Range {
            start: page(at),
            bytes: pages * PAGE_BYTES,
            is_read_only: false,
        });
        assert_eq!(runs(page(0), entries.iter().copied(), &[]), expected);
        let kept = [page(0) + 8..page(1) + 8, page(80)..page(80) + 1, page(98)..page(98)];
        let expected = [(2, 18), (31, 49), (81, 18)].map(|(at, pages)| Range {
            start: page(at),
            bytes: pages * PAGE_BYTES,
            is_read_only: false,
        });
        assert_eq!(runs(page(0), entries.into_iter(), &kept), expected);
        let many = runs(0, std::iter::repeat_n(WRITTEN, 40_000), &[]);
        assert_eq!(many.iter().map(|range| range.bytes).sum::<u64>(), 40_000 * PAGE_BYTES);
        assert!(many.iter().all(|range| range.bytes <= RANGE_PAGES * PAGE_BYTES));
    }
}
