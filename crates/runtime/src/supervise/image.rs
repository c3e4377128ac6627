//! Why a process cannot be served, as its program file and its environment tell it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagetide_sys::proc;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DYNAMIC_ENTRY_BYTES: usize = 16;
const DT_SONAME: u64 = 14;
/// Segments, and bytes of the table of the dynamic linker's facts, that are looked at.
const SEGMENTS_MAX: usize = 64;
const DYNAMIC_BYTES_MAX: usize = 4096;

/// A program file, as far as it matters how it is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linkage {
    /// A dynamic linker starts it.
    Dynamic,
    /// A library that may be started as a program: a dynamic linker is one.
    Library,
    /// It needs nobody.
    Static,
    /// It could not be read, or is nothing of this machine.
    Unknown,
}

/// True if process `pid`, in which the object was found, runs another program inside itself: a static program loads no object, so who
/// did is of a program that it emulates, and no code of ours may be run in it by the machine itself.
pub(super) fn is_emulator(pid: i32) -> bool {
    linkage_of(pid) == Linkage::Static
}

/// Why process `pid` has not loaded the object, and what helps. `library` is the object's file name.
pub(super) fn why_absent(pid: i32, library: &str) -> String {
    if linkage_of(pid) == Linkage::Static {
        return "is statically linked".to_owned();
    }
    match named(pid, library) {
        Named::Nowhere => {
            "runs without the preloaded library, which its environment does not name any more; hand LD_PRELOAD and \
                           PAGETIDE_RUN down to it"
                .to_owned()
        }
        Named::OutOfSight(path) => {
            format!("sees no file {path} from where it runs (a container); make pagetide's directory visible there")
        }
        Named::InSight => {
            "was not given the preloaded library by its dynamic linker (it has gained privileges, or uses another C \
                         library)"
                .to_owned()
        }
        Named::Unknown => "runs without the preloaded library".to_owned(),
    }
}

/// What the environment of a process says of the object.
pub(super) enum Named {
    /// The object's path, which leads there.
    InSight,
    /// The object's path, which leads nowhere for this process.
    OutOfSight(String),
    Nowhere,
    Unknown,
}

/// What the environment of process `pid` says of the object called `library`.
pub(super) fn named(pid: i32, library: &str) -> Named {
    if !proc::stat(Some(pid)).is_ok_and(|stat| stat.has_environment) {
        return Named::Unknown;
    }
    let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return Named::Unknown };
    let lists = environment.split(|&byte| byte == 0).filter_map(|word| word.strip_prefix(b"LD_PRELOAD="));
    let mut paths = lists.flat_map(|list| list.split(|byte| matches!(byte, b' ' | b':')));
    match paths.find(|path| path.ends_with(library.as_bytes())) {
        Some(path) => {
            let path = String::from_utf8_lossy(path).into_owned();
            let seen = std::fs::exists(format!("/proc/{pid}/root{path}"));
            if seen.is_ok_and(|is_seen| !is_seen) { Named::OutOfSight(path) } else { Named::InSight }
        }
        None => Named::Nowhere,
    }
}

fn linkage_of(pid: i32) -> Linkage {
    // It opens the program itself, also where its name is not to be seen from here.
    File::open(format!("/proc/{pid}/exe")).ok().and_then(|file| linkage(&file)).unwrap_or(Linkage::Unknown)
}

/// None: no program of 64 bits, or a damaged one.
fn linkage(file: &File) -> Option<Linkage> {
    let header = part(file, 0, HEADER_BYTES)?;
    if header[..5] != [0x7f, b'E', b'L', b'F', 2] {
        return None;
    }
    let count = usize::from(u16::from_le_bytes([header[56], header[57]])).min(SEGMENTS_MAX);
    let table = part(file, word(&header, 32)?, count * PROGRAM_HEADER_BYTES)?;
    let mut linkage = Linkage::Static;
    for segment in table.chunks_exact(PROGRAM_HEADER_BYTES) {
        match u32::from_le_bytes([segment[0], segment[1], segment[2], segment[3]]) {
            PT_INTERP => return Some(Linkage::Dynamic),
            PT_DYNAMIC => {
                let bytes = usize::try_from(word(segment, 32)?).ok()?.min(DYNAMIC_BYTES_MAX);
                let facts = part(file, word(segment, 8)?, bytes)?;
                if facts.chunks_exact(DYNAMIC_ENTRY_BYTES).any(|fact| word(fact, 0) == Some(DT_SONAME)) {
                    linkage = Linkage::Library;
                }
            }
            _ => {}
        }
    }
    Some(linkage)
}

fn part(file: &File, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_linker_is_no_static_program() {
        let own = File::open("/proc/self/exe").expect("a test is a program");
        assert_eq!(linkage(&own), Some(Linkage::Dynamic));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("of this test");
        let linker = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
        let linker = linker.into_iter().find(|path| path.contains("/ld-")).expect("a test is linked dynamically");
        assert_eq!(linkage(&File::open(linker).expect("it is mapped")), Some(Linkage::Library));
    }

    #[test]
    fn what_is_no_program_is_nothing() {
        assert_eq!(linkage(&File::open("/proc/self/maps").expect("of this test")), None);
        assert_eq!(linkage(&File::open("/dev/null").expect("every machine has it")), None);
    }
}
