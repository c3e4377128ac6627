//! What kind of program a file is, read from its first bytes. Reads a bounded amount; trusts nothing in the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// What the file is, as far as a preloaded library cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dynamically linked ELF program for a 64-bit machine.
    Dynamic {
        /// Its dynamic linker.
        loader: String,
        /// ELF machine number.
        machine: u16,
        /// Made by the Go tool chain (with cgo): it makes its memory by raw system calls and brings its own signal stacks.
        go: bool,
    },
    /// An ELF program that no dynamic linker starts: nothing can be preloaded into it, unless it is a dynamic linker itself.
    Static {
        /// It has a name for those that link to it: a library that may be started as a program, as a dynamic linker is.
        is_library: bool,
        /// ELF machine number.
        machine: u16,
        /// Made by the Go tool chain.
        go: bool,
    },
    /// A 32-bit or other-endian ELF program.
    OtherWord,
    /// A script: the interpreter's path and its argument, as the `#!` line gives them.
    Script {
        /// The interpreter.
        interpreter: String,
        /// What stands after it.
        argument: String,
    },
    /// Neither; the kernel would answer ENOEXEC.
    Other,
}

/// ELF machine number of the machine this program was built for.
pub const MACHINE_HERE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// The kernel reads this much of a script's first line.
const SCRIPT_LINE_BYTES: usize = 256;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// Program headers looked at; real programs have about a dozen.
const PROGRAM_HEADERS_MAX: u16 = 128;
/// Bytes of one note segment looked at.
const NOTE_BYTES_MAX: usize = 4096;
const LOADER_BYTES_MAX: usize = 4096;

/// Bytes of the table of the dynamic linker's facts that are looked at, and of one of them.
const DYNAMIC_BYTES_MAX: usize = 4096;
const DYNAMIC_ENTRY_BYTES: usize = 16;
const DT_SONAME: u64 = 14;

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PT_GNU_RELRO: u32 = 0x6474_e552;

/// A section's entry in the table of sections, and so many are looked at; real programs have about forty.
const SECTION_BYTES: usize = 64;
const SECTIONS_MAX: u16 = 4096;
const SECTION_NAMES_BYTES_MAX: usize = 1 << 20;

/// Where in `file` its sections of this name are. None in a file that is no 64-bit ELF file, has lost its table of sections, or is damaged.
/// An error of reading it.
pub(crate) fn sections(file: &File, name: &[u8]) -> io::Result<Vec<Range<u64>>> {
    let head = read_up_to(file, 0, HEADER_BYTES)?;
    if !head.starts_with(b"\x7fELF\x02\x01")
        || head.len() < HEADER_BYTES
        || usize::from(u16_at(&head, 58)) != SECTION_BYTES
    {
        return Ok(Vec::new());
    }
    let (count, names) = (u16_at(&head, 60).min(SECTIONS_MAX), usize::from(u16_at(&head, 62)));
    let table = read_up_to(file, u64_at(&head, 40), usize::from(count) * SECTION_BYTES)?;
    let sections = || table.chunks_exact(SECTION_BYTES);
    let place = |section: &[u8]| (u64_at(section, 24), u64_at(section, 32));
    let Some((at, len)) = sections().nth(names).map(place) else { return Ok(Vec::new()) };
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(SECTION_NAMES_BYTES_MAX);
    let names = read_up_to(file, at, len)?;
    let is_named = |section: &&[u8]| {
        let from = usize::try_from(u32_at(section, 0)).expect("addresses are 64 bit");
        names.get(from..).and_then(|rest| rest.split(|byte| *byte == 0).next()) == Some(name)
    };
    Ok(sections().filter(is_named).map(place).map(|(at, len)| at..at.saturating_add(len)).collect())
}

/// Where in `file` what the dynamic linker writes and then makes read-only is, as the program headers of a 64-bit ELF file say. An error of
/// reading it.
pub(crate) fn relocated(file: &File) -> io::Result<Option<Range<u64>>> {
    let head = read_up_to(file, 0, HEADER_BYTES)?;
    if !head.starts_with(b"\x7fELF\x02\x01") || head.len() < HEADER_BYTES {
        return Ok(None);
    }
    let Some(table) = program_headers(file, &head)? else { return Ok(None) };
    let found = table.chunks_exact(PROGRAM_HEADER_BYTES).find(|entry| u32_at(entry, 0) == PT_GNU_RELRO);
    Ok(found.map(|entry| {
        let (at, len) = (u64_at(entry, 8), u64_at(entry, 40));
        at..at.saturating_add(len)
    }))
}

/// The program headers of an ELF file for 64 bits that begins with `head`. None: they are no such headers.
fn program_headers(file: &File, head: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let entries = usize::from(u16_at(head, 56).min(PROGRAM_HEADERS_MAX));
    if entries > 0 && usize::from(u16_at(head, 54)) != PROGRAM_HEADER_BYTES {
        return Ok(None);
    }
    read_up_to(file, u64_at(head, 32), entries * PROGRAM_HEADER_BYTES).map(Some)
}

/// Reads what `file` is. An error of reading it; a damaged file is what its first bytes say, as far as they go.
pub fn kind_of(file: &File) -> io::Result<Kind> {
    let head = read_up_to(file, 0, SCRIPT_LINE_BYTES)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    if !head.starts_with(b"\x7fELF") || head.len() < HEADER_BYTES {
        return Ok(Kind::Other);
    }
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    if head[4] != CLASS_64 || head[5] != LITTLE_ENDIAN {
        return Ok(Kind::OtherWord);
    }
    let machine = u16_at(&head, 18);
    let (mut loader, mut go, mut is_library) = (None, false, false);
    let Some(table) = program_headers(file, &head)? else { return Ok(Kind::Other) };
    for entry in table.chunks_exact(PROGRAM_HEADER_BYTES) {
        let (kind, at) = (u32_at(entry, 0), u64_at(entry, 8));
        let len = usize::try_from(u64_at(entry, 32)).unwrap_or(usize::MAX);
        match kind {
            PT_INTERP => loader = Some(text(&read_up_to(file, at, len.min(LOADER_BYTES_MAX))?)),
            PT_DYNAMIC => is_library |= has_name(&read_up_to(file, at, len.min(DYNAMIC_BYTES_MAX))?),
            PT_NOTE => go |= has_go_note(&read_up_to(file, at, len.min(NOTE_BYTES_MAX))?),
            _ => {}
        }
    }
    Ok(match loader {
        Some(loader) => Kind::Dynamic { loader, machine, go },
        None => Kind::Static { is_library, machine, go },
    })
}

/// True if one of the dynamic linker's facts is a name for those that link to the file.
fn has_name(facts: &[u8]) -> bool {
    facts.chunks_exact(DYNAMIC_ENTRY_BYTES).any(|fact| u64_at(fact, 0) == DT_SONAME)
}

/// Splits the rest of a `#!` line as the kernel does: the interpreter, and everything after it as one argument.
fn script(line: &[u8]) -> Kind {
    let end = line.iter().position(|b| *b == b'\n' || *b == 0).unwrap_or(line.len());
    let line = String::from_utf8_lossy(&line[..end]);
    let line = line.trim_matches([' ', '\t']);
    let (interpreter, argument) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    if interpreter.is_empty() {
        return Kind::Other;
    }
    Kind::Script { interpreter: interpreter.to_owned(), argument: argument.trim_matches([' ', '\t']).to_owned() }
}

/// True if one of the notes is named `Go`: every program of the Go linker carries its build identifier so.
fn has_go_note(mut notes: &[u8]) -> bool {
    const NOTE_HEADER_BYTES: usize = 12;
    while notes.len() >= NOTE_HEADER_BYTES {
        let aligned = |len: u32| usize::try_from(len).unwrap_or(usize::MAX).saturating_add(3) & !3;
        let name_bytes = aligned(u32_at(notes, 0));
        let content_bytes = aligned(u32_at(notes, 4));
        let rest = &notes[NOTE_HEADER_BYTES..];
        if rest.starts_with(b"Go\0\0") && name_bytes == 4 {
            return true;
        }
        match name_bytes.checked_add(content_bytes).and_then(|skip| rest.get(skip..)) {
            Some(next) => notes = next,
            None => return false,
        }
    }
    false
}

/// Up to `len` bytes at `offset`; fewer at the end of the file.
fn read_up_to(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let at = u64::try_from(filled).expect("a buffer's length fits 64 bits").saturating_add(offset);
        match file.read_at(&mut bytes[filled..], at) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // EINVAL: an offset beyond what the kernel accepts, from a damaged header.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// The bytes up to the first zero, as text.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn file_of(bytes: &[u8]) -> File {
        // Tests of one process make files at the same time.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("pagetide-elf-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let mut file = File::create_new(&path).expect("a fresh name in the temporary directory");
        file.write_all(bytes).expect("a few bytes fit");
        let file = File::open(&path).expect("just written");
        std::fs::remove_file(&path).expect("just written");
        file
    }

    /// An ELF file with the given segments: (type, content).
    fn elf(class: u8, machine: u16, segments: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0_u8; HEADER_BYTES];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&u16::try_from(segments.len()).expect("few").to_le_bytes());
        let mut at = HEADER_BYTES + segments.len() * PROGRAM_HEADER_BYTES;
        for (kind, content) in segments {
            let mut entry = [0_u8; PROGRAM_HEADER_BYTES];
            entry[..4].copy_from_slice(&kind.to_le_bytes());
            entry[8..16].copy_from_slice(&(at as u64).to_le_bytes());
            entry[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&entry);
            at += content.len();
        }
        for (_, content) in segments {
            bytes.extend_from_slice(content);
        }
        bytes
    }

    fn kind(bytes: &[u8]) -> Kind {
        kind_of(&file_of(bytes)).expect("a regular file can be read")
    }

    #[test]
    fn a_loader_makes_a_program_dynamic() {
        let bytes = elf(2, 62, &[(1, b""), (PT_INTERP, b"/lib64/ld-linux-x86-64.so.2\0")]);
        let loader = "/lib64/ld-linux-x86-64.so.2".to_owned();
        assert_eq!(kind(&bytes), Kind::Dynamic { loader, machine: 62, go: false });
    }

    #[test]
    fn no_loader_makes_it_static_and_a_go_note_names_its_maker() {
        assert_eq!(kind(&elf(2, 183, &[(1, b"")])), Kind::Static { is_library: false, machine: 183, go: false });
        let gnu = b"\x04\0\0\0\x03\0\0\0\x03\0\0\0GNU\0abc\0";
        let go = b"\x04\0\0\0\x02\0\0\0\x04\0\0\0Go\0\0id\0\0";
        let both = [gnu.as_slice(), go.as_slice()].concat();
        assert_eq!(kind(&elf(2, 62, &[(PT_NOTE, &both)])), Kind::Static { is_library: false, machine: 62, go: true });
        assert_eq!(kind(&elf(2, 62, &[(PT_NOTE, gnu)])), Kind::Static { is_library: false, machine: 62, go: false });
    }

    #[test]
    fn a_library_is_no_static_program() {
        let facts: Vec<u8> = [5, 0, DT_SONAME, 1, 0, 0].into_iter().flat_map(u64::to_le_bytes).collect();
        let of = |facts: &[u8]| kind(&elf(2, 62, &[(PT_DYNAMIC, facts)]));
        assert_eq!(of(&facts), Kind::Static { is_library: true, machine: 62, go: false });
        assert_eq!(of(&facts[..40]), Kind::Static { is_library: true, machine: 62, go: false });
        assert_eq!(of(&facts[..24]), Kind::Static { is_library: false, machine: 62, go: false }, "cut");
    }

    #[test]
    fn a_dynamic_linker_is_a_library_and_this_test_has_one() {
        let own = File::open("/proc/self/exe").and_then(|file| kind_of(&file)).expect("a test is a program");
        let Kind::Dynamic { loader, machine, .. } = own else { panic!("a test is linked dynamically: {own:?}") };
        assert_eq!(machine, MACHINE_HERE);
        let linker = File::open(loader).and_then(|file| kind_of(&file)).expect("it has linked this test");
        assert_eq!(linker, Kind::Static { is_library: true, machine, go: false });
    }

    #[test]
    fn sections_are_found_by_their_names() {
        let own = File::open("/proc/self/exe").expect("a test is a program");
        let text = sections(&own, b".text").expect("it can be read");
        assert!(matches!(text[..], [ref text] if !text.is_empty()), "{text:?}");
        assert_eq!(sections(&own, b".no such").expect("it can be read"), []);
        assert_eq!(sections(&own, b"text").expect("it can be read"), [], "names are whole");
    }

    #[test]
    fn damaged_and_foreign_files_have_no_sections() {
        let none = |bytes: &[u8]| assert_eq!(sections(&file_of(bytes), b"").expect("a file can be read"), []);
        none(b"");
        none(b"hello");
        none(&elf(2, 62, &[(1, b"x")]));
        let mut table = elf(2, 62, &[(1, &[0xff; 3 * SECTION_BYTES])]);
        table[58..60].copy_from_slice(&64_u16.to_le_bytes());
        for (at, count, names) in [(u64::MAX, 3, 0), (0, 3, 7), (120, 3, 1), (120, u16::MAX, 2), (0, u16::MAX, 0)] {
            table[40..48].copy_from_slice(&u64::to_le_bytes(at));
            table[60..62].copy_from_slice(&u16::to_le_bytes(count));
            table[62..64].copy_from_slice(&u16::to_le_bytes(names));
            assert_eq!(sections(&file_of(&table), b"__rseq_cs").expect("a file can be read"), []);
        }
    }

    #[test]
    fn a_32_bit_program_is_told_apart() {
        assert_eq!(kind(&elf(1, 3, &[])), Kind::OtherWord);
    }

    #[test]
    fn a_script_gives_interpreter_and_one_argument() {
        let script = |interpreter: &str, argument: &str| Kind::Script {
            interpreter: interpreter.to_owned(),
            argument: argument.to_owned(),
        };
        assert_eq!(kind(b"#!/bin/sh\necho\n"), script("/bin/sh", ""));
        assert_eq!(kind(b"#! /usr/bin/env -S python3 -u \n"), script("/usr/bin/env", "-S python3 -u"));
        assert_eq!(kind(b"#!\n"), Kind::Other);
    }

    #[test]
    fn damaged_and_foreign_files_are_other_or_short() {
        assert_eq!(kind(b""), Kind::Other);
        assert_eq!(kind(b"hello"), Kind::Other);
        assert_eq!(kind(b"\x7fELF"), Kind::Other);
        let mut far = elf(2, 62, &[(PT_INTERP, b"/lib/ld.so\0")]);
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(kind(&far), Kind::Static { is_library: false, machine: 62, go: false });
        let mut huge_note = elf(2, 62, &[(PT_NOTE, b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0")]);
        huge_note.truncate(huge_note.len());
        assert_eq!(kind(&huge_note), Kind::Static { is_library: false, machine: 62, go: false });
    }

    #[test]
    fn what_the_dynamic_linker_makes_read_only_is_where_the_program_headers_say() {
        let mut bytes = elf(2, MACHINE_HERE, &[(PT_INTERP, b"/lib/ld.so\0"), (PT_GNU_RELRO, b"addresses")]);
        let header = HEADER_BYTES + PROGRAM_HEADER_BYTES;
        bytes[header + 40..header + 48].copy_from_slice(&5000_u64.to_le_bytes());
        let at = u64_at(&bytes[header..], 8);
        assert_eq!(relocated(&file_of(&bytes)).expect("it can be read"), Some(at..at + 5000));
        let no_elf: [&[u8]; 3] = [b"", b"#!/bin/sh\n", &bytes[..70]];
        assert!(no_elf.into_iter().all(|bytes| relocated(&file_of(bytes)).expect("it can be read").is_none()));
        let without = elf(2, MACHINE_HERE, &[(PT_INTERP, b"/lib/ld.so\0")]);
        assert_eq!(relocated(&file_of(&without)).expect("it can be read"), None);
    }
}
