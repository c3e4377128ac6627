//! Call sites of the C library that lead to `inplace` instead of the kernel.
//!
//! A site is the instruction that sets the number of a call, up to the system call instruction. Only the first of these is replaced,
//! by a jump to a *stub*, which does what stood at the site and goes on to `inplace`. All others stay as they are, so that a thread may be
//! at any of them, be put back to any of them, or return to any of them out of the kernel:
//!
//! - `mov eax, NUMBER` has as many bytes as a jump;
//! - `xor eax, eax` (`read`) has two. Of the jump's five bytes the last three are those of `syscall` and of the first byte behind it,
//!   which lets the stub lie within 256 addresses, 1.1 GiB above.
//!
//! The sites are changed before the first thread is armed, while all others are stopped. What does not look as expected, and all that
//! cannot be mapped or changed here, stays: its calls are stopped one by one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagetide_sys::dispatch::{Context, Register};
use pagetide_sys::mem::{self, ManagedRange, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::word;

use super::inplace;
use crate::own;

/// Sites at most.
const SITES: usize = 192;
/// What a stub does before it leaves has at most so many bytes.
const PREFIX_MAX: usize = 24;
/// With the two addresses and the jump.
const STUB_BYTES: usize = PREFIX_MAX + 24;
const JUMP_BYTES: usize = 5;
/// The calls whose sites are changed: a page of the library becomes private for about two of them.
const MADE_MOST: [u32; 15] = [0, 1, 5, 7, 8, 17, 18, 24, 39, 44, 45, 186, 202, 232, 281];
/// The upper three bytes of a jump over `xor eax, eax`: the system call instruction, and the first byte of a comparison behind it.
const SHORT_JUMP: [u8; 3] = [0x0f, 0x05, 0x48];
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The library's code.
static TEXT: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// The stubs.
static STUBS: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// Of each stub its address, its site, and the bytes that it has from there.
static LIST: [[AtomicU64; 3]; SITES] = [const { [const { AtomicU64::new(0) }; 3] }; SITES];

/// What was found: offset of the first instruction, and bytes up to the system call instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    at: usize,
    prefix: usize,
}

impl Site {
    const NONE: Self = Self { at: 0, prefix: 0 };

    const fn is_short(self) -> bool {
        self.prefix == 2
    }
}

/// The code of the C library; nothing is done to it yet.
pub(crate) fn note_text(start: usize, end: usize) {
    TEXT.0.store(start, Ordering::Relaxed);
    TEXT.1.store(end - start, Ordering::Relaxed);
}

/// In a forked child: the stubs are its own.
pub(super) fn note() {
    let [start, len] = [&STUBS.0, &STUBS.1].map(|word| word.load(Ordering::Relaxed));
    if len != 0 {
        // SAFETY: mapped for ever, and nothing else.
        own::note(unsafe { ManagedRange::new(start, len) });
    }
}

/// True if `bytes` are instructions that do the same anywhere: `xor` of registers, `xor sil`, and loads from the stack.
fn is_movable(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let len = match bytes {
            [0x31, 0xd2 | 0xf6 | 0xff, ..] => 2,
            [0x45, 0x31, 0xd2 | 0xc0 | 0xc9, ..] => 3,
            [0x40, 0x80, 0xf6, ..] | [0x8b, 0x7c | 0x74 | 0x54, 0x24, ..] => 4,
            [0x48, 0x8b, 0x7c | 0x74 | 0x54, 0x24, ..] => 5,
            [0x81, 0xe6, ..] => 6,
            _ => return false,
        };
        match bytes.get(len..) {
            Some(rest) => bytes = rest,
            None => return false,
        }
    }
    true
}

/// True if the byte before an instruction may be a prefix of it, or its operation: then it is none of ours.
fn may_belong(text: &[u8], at: usize, number: u32) -> bool {
    const PREFIXES: [u8; 11] = [0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65];
    let is_prefix = |byte: u8| (0x40..=0x4f).contains(&byte) || PREFIXES.contains(&byte);
    // An offset of 128 and more from R8 looks like the number: a prefix that names R8 stands up to three bytes before.
    let names_r8 = |back: usize| at >= back && (0x40..=0x4f).contains(&text[at - back]) && text[at - back] & 1 == 1;
    at == 0 || is_prefix(text[at - 1]) || (number >= 128 && (1..=3).any(names_r8))
}

/// The site of the system call instruction at `end`.
fn site_before(text: &[u8], end: usize) -> Option<Site> {
    const MOVE: u8 = 0xb8;
    const MOVE_BYTES: usize = 5;
    const CLEAR: [u8; 2] = [0x31, 0xc0];
    if end >= 2 && text[end - 2..end] == CLEAR && text.get(end + 2) == Some(&SHORT_JUMP[2]) {
        let site = Site { at: end - 2, prefix: 2 };
        return (!may_belong(text, site.at, 0)).then_some(site);
    }
    (MOVE_BYTES..=PREFIX_MAX.min(end)).find_map(|prefix| {
        let at = end - prefix;
        let number = u32::from_le_bytes(text[at + 1..at + MOVE_BYTES].try_into().ok()?);
        let is_ours = text[at] == MOVE && MADE_MOST.contains(&number) && inplace::has(number);
        let is_site = is_ours && is_movable(&text[at + MOVE_BYTES..end]) && !may_belong(text, at, number);
        is_site.then_some(Site { at, prefix })
    })
}

/// All sites, in ascending order; how many there are.
fn find(text: &[u8], into: &mut [Site; SITES]) -> usize {
    let mut count = 0;
    for end in 0..text.len().saturating_sub(2) {
        if text[end..end + 2] == SYSCALL
            && count < SITES
            && let Some(site) = site_before(text, end)
        {
            into[count] = site;
            count += 1;
        }
    }
    count
}

/// Where the stub of a short site may begin: here, and 255 addresses on.
const fn window(start: usize, site: Site) -> usize {
    let [low, middle, high] = SHORT_JUMP;
    start + site.at + JUMP_BYTES + u32::from_le_bytes([0, low, middle, high]) as usize
}

/// Put the stubs of all sites into `places`: the short ones where they must be, the others behind them. None: they do not fit.
fn arrange(start: usize, sites: &[Site], places: &mut [usize; SITES]) -> Option<()> {
    let mut next = 0;
    for (&site, place) in sites.iter().zip(places.iter_mut()).filter(|(site, _)| site.is_short()) {
        *place = window(start, site).max(next);
        if *place - window(start, site) > 255 {
            return None;
        }
        next = *place + STUB_BYTES;
    }
    if next == 0 {
        return None;
    }
    for (_, place) in sites.iter().zip(places.iter_mut()).filter(|(site, _)| !site.is_short()) {
        *place = next;
        next += STUB_BYTES;
    }
    Some(())
}

/// Before the first thread is armed, while all others are stopped: let the sites lead to us, as far as that can be done.
pub(super) fn change() {
    let [start, len] = [&TEXT.0, &TEXT.1].map(|word| word.load(Ordering::Relaxed));
    if len == 0 {
        return;
    }
    let mut sites = [Site::NONE; SITES];
    // SAFETY: the library's code is mapped for ever, readable, and changes only below.
    let text = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), len) };
    let count = find(text, &mut sites);
    let sites = &sites[..count];
    let mut places = [0; SITES];
    if arrange(start, sites, &mut places).is_none() {
        return;
    }
    let places = &places[..count];
    let (Some(&lowest), Some(&highest)) = (places.iter().min(), places.iter().max()) else { return };
    let from = lowest & !(PAGE_BYTES - 1);
    let end = (highest + STUB_BYTES).next_multiple_of(PAGE_BYTES);
    let Ok(stubs) = Mapping::reserve(from as u64, (end - from) as u64) else { return };
    // SAFETY: the library's code, which is ours to change for the moment.
    let library = unsafe { ManagedRange::new(start, len) };
    let is_open = mem::protect(stubs.range(), Protection::ReadWrite).is_ok()
        && mem::protect(library, Protection::ReadWriteExecute).is_ok();
    if !is_open {
        return;
    }
    let stubs = stubs.into_range();
    own::note(stubs);
    STUBS.0.store(stubs.start(), Ordering::Relaxed);
    STUBS.1.store(stubs.len(), Ordering::Relaxed);
    for ((&site, &place), entry) in sites.iter().zip(places).zip(&LIST) {
        write_stub(start, site, place);
        for (word, value) in entry.iter().zip([place, start + site.at, site.prefix]) {
            word.store(value as u64, Ordering::Relaxed);
        }
    }
    if mem::protect(stubs, Protection::ReadExecute).is_ok() {
        sites.iter().zip(places).for_each(|(&site, &place)| lead(start + site.at, place));
    }
    let closed = mem::protect(library, Protection::ReadExecute);
    debug_assert!(closed.is_ok(), "code becomes what it was: {closed:?}");
}

fn write_bytes(to: usize, bytes: &[u8]) {
    for (offset, &byte) in bytes.iter().enumerate() {
        let place = std::ptr::with_exposed_provenance_mut::<u8>(to + offset);
        // SAFETY: the caller has made the place writable, and nobody runs it meanwhile.
        unsafe { place.write_volatile(byte) };
    }
}

/// What stood at the site; the address of its system call instruction into RCX, which that would have overwritten; and on.
fn write_stub(start: usize, site: Site, place: usize) {
    let from = start + site.at;
    for offset in 0..site.prefix {
        let byte = std::ptr::with_exposed_provenance::<u8>(from + offset);
        // SAFETY: the library's code.
        write_bytes(place + offset, &[unsafe { byte.read_volatile() }]);
    }
    let mut at = place + site.prefix;
    let mut add = |bytes: &[u8]| {
        write_bytes(at, bytes);
        at += bytes.len();
    };
    add(&[0x48, 0xb9]);
    add(&word::u64_of(from + site.prefix).to_le_bytes());
    add(&[0x49, 0xbb]);
    add(&inplace::entry().to_le_bytes());
    add(&[0x41, 0xff, 0xe3]);
}

/// Let the site jump to its stub. Of a short site only the bytes before its system call instruction change.
fn lead(from: usize, place: usize) {
    let distance = place.wrapping_sub(from + JUMP_BYTES);
    let Ok(distance) = i32::try_from(distance.cast_signed()) else { return };
    write_bytes(from, &[0xe9]);
    write_bytes(from + 1, &distance.to_le_bytes());
}

/// Put a thread that a signal has found in a stub back to its site.
pub(super) fn step_out(context: &mut Context) {
    let at = context.get(Register::Rip);
    let [start, len] = [&STUBS.0, &STUBS.1].map(|word| word.load(Ordering::Relaxed) as u64);
    if at < start || at - start >= len {
        return;
    }
    for entry in &LIST {
        let [place, site, prefix] = [0, 1, 2].map(|index| entry[index].load(Ordering::Relaxed));
        if place <= at && at < place + STUB_BYTES as u64 {
            context.set(Register::Rip, site + (at - place).min(prefix));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: [u8; 10] = [0x90, 0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff];

    fn found(text: &[u8]) -> Vec<Site> {
        let mut sites = [Site::NONE; SITES];
        let count = find(text, &mut sites);
        sites[..count].to_vec()
    }

    #[test]
    fn sites_are_found_by_their_number_and_what_stands_between() {
        assert_eq!(found(&READ), [Site { at: 1, prefix: 2 }]);
        let write = [0xc3, 0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert_eq!(found(&write), [Site { at: 1, prefix: 5 }]);
        let futex = [0xc3, 0xb8, 0xca, 0, 0, 0, 0x40, 0x80, 0xf6, 0x80, 0x0f, 0x05, 0xc3];
        assert_eq!(found(&futex), [Site { at: 1, prefix: 9 }]);
    }

    #[test]
    fn what_may_be_another_instruction_is_left_alone() {
        assert_eq!(found(&[0xc3, 0x41, 0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xc3]), [], "mov r8d, 1");
        assert_eq!(found(&[0x45, 0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d]), [], "xor r8d, r8d");
        assert_eq!(found(&[0xc3, 0x41, 0x8b, 0xb8, 0xca, 0, 0, 0, 0x0f, 0x05, 0xc3]), [], "mov edi, [r8 + 202]");
        assert_eq!(found(&[0xc3, 0xb8, 9, 0, 0, 0, 0x0f, 0x05, 0xc3]), [], "mmap");
        assert_eq!(found(&[0xc3, 0xb8, 1, 0, 0, 0, 0xff, 0xd0, 0x0f, 0x05, 0xc3]), [], "a call in between");
        assert_eq!(found(&[0xc3, 0x31, 0xc0, 0x0f, 0x05, 0xc3, 0x90]), [], "nothing is compared behind it");
    }

    #[test]
    fn short_sites_keep_their_system_call_and_what_follows() {
        let mut code = READ;
        let start = code.as_mut_ptr().expose_provenance();
        let site = Site { at: 1, prefix: 2 };
        let mut places = [0; SITES];
        assert_eq!(arrange(start, &[site, Site { at: 2, prefix: 2 }], &mut places), Some(()));
        assert_eq!(places[0], window(start, site));
        assert!(places[1] >= places[0] + STUB_BYTES && places[1] - window(start, Site { at: 2, prefix: 2 }) < 256);
        lead(start + site.at, places[0]);
        assert_eq!(code, [0x90, 0xe9, 0x00, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff]);
    }

    #[test]
    fn stubs_that_do_not_fit_into_their_windows_are_none() {
        let near: Vec<Site> = (0..8).map(|at| Site { at, prefix: 2 }).collect();
        assert_eq!(arrange(0x1000, &near, &mut [0; SITES]), None);
    }
}
