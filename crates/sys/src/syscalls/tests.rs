//! The table is whole, and tells of calls of every kind what they touch.

use std::vec::Vec;

use linux_raw_sys::general as k;

use super::table::TABLE;
use crate::mem::{Memory, PAGE_BYTES};

use super::{Call, Class, Direction, Place, Range, Size};

/// The caller's memory: pieces at made-up addresses, each filled up to the end of its last page.
struct Pieces(Vec<(usize, Vec<u8>)>);

impl Memory for Pieces {
    fn read(&mut self, address: usize, into: &mut [u8]) -> bool {
        let is_in = |(start, bytes): &&(usize, Vec<u8>)| {
            *start <= address && address + into.len() <= (start + bytes.len()).next_multiple_of(PAGE_BYTES)
        };
        let found = self.0.iter().filter(is_in).max_by_key(|(start, _)| *start);
        if let Some((start, bytes)) = found {
            for (byte, at) in into.iter_mut().zip(address - start..) {
                *byte = bytes.get(at).copied().unwrap_or(b'.');
            }
        }
        found.is_some()
    }
}

fn words(words: &[usize]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// What a call touches: `(start, length)`.
fn touched(number: u32, arguments: &[usize], pieces: Vec<(usize, Vec<u8>)>) -> Vec<(usize, usize)> {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let mut told = Vec::new();
    let call = Call::find(number).expect("it is in the table");
    call.ranges(&all, &mut Pieces(pieces), &mut |range: Range| told.push((range.start, range.len)));
    told
}

#[test]
fn every_number_up_to_linux_6_18_is_there_once_and_in_order() {
    let numbers: Vec<u32> = TABLE.iter().map(|call| call.number).collect();
    let expected: Vec<u32> = (0..=336).chain(424..=k::__NR_file_setattr).collect();
    assert_eq!(numbers, expected);
    assert_eq!(Call::find(400).map(Call::name), None);
    assert_eq!(Call::find(k::__NR_file_setattr + 1).map(Call::name), None);
}

#[test]
fn names_are_the_kernels_and_all_different() {
    assert_eq!(Call::find(0).map(Call::name), Some("read"));
    assert_eq!(Call::find(k::__NR_clone3).map(Call::name), Some("clone3"));
    let mut names: Vec<&str> = TABLE.iter().map(Call::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TABLE.len());
}

#[test]
fn lengths_name_arguments_that_are_no_addresses() {
    for call in TABLE {
        assert!(call.places.len() <= 6, "{}", call.name());
        for &place in call.places {
            let (Place::In(size) | Place::Out(size) | Place::Both(size)) = place else { continue };
            let (Size::Arg(index) | Size::ArgPlus(index, _) | Size::Times(index, _) | Size::Bits(index)) = size else {
                continue;
            };
            let named = call.places.get(usize::from(index)).copied().unwrap_or(Place::V);
            assert_eq!(named, Place::V, "{}", call.name());
        }
        let is_free = call.places.is_empty();
        assert!(call.class != Class::Consuming || !is_free, "{} writes nothing that could be lost", call.name());
    }
}

#[test]
fn buffers_are_as_long_as_their_argument_says() {
    assert_eq!(touched(k::__NR_read, &[3, 0x1000, 77], Vec::new()), [(0x1000, 77)]);
    assert_eq!(touched(k::__NR_read, &[3, 0x1000, 0], Vec::new()), []);
    assert_eq!(touched(k::__NR_poll, &[0x1000, 3, 0], Vec::new()), [(0x1000, 24)]);
    assert_eq!(touched(k::__NR_select, &[65, 0x1000, 0, 0x2000, 0], Vec::new()), [(0x1000, 16), (0x2000, 16)]);
    assert_eq!(touched(k::__NR_mincore, &[0x10_0000, 4097, 0x1000], Vec::new()), [(0x1000, 2)]);
    assert_eq!(touched(k::__NR_msgrcv, &[1, 0x1000, 100, 0, 0], Vec::new()), [(0x1000, 108)]);
    assert_eq!(touched(k::__NR_epoll_wait, &[1, 0x1000, 2, 5], Vec::new()), [(0x1000, 24)]);
}

#[test]
fn strings_end_where_they_end() {
    let text = alloc(b"/tmp/x\0rest");
    assert_eq!(touched(k::__NR_openat, &[0, 0x1ffe, 0], Vec::from([(0x1ffe, text)])), [(0x1ffe, 7)]);
    let begun = touched(k::__NR_chdir, &[0x1ff0], Vec::from([(0x1000, alloc(b"no end"))]));
    assert_eq!(begun, [(0x1ff0, 16)], "what can be read of one without an end");
    assert_eq!(touched(k::__NR_chdir, &[0x1000], Vec::new()), [], "nothing there: the kernel says EFAULT");
}

fn alloc(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

#[test]
fn a_program_is_started_with_its_lists_of_strings() {
    let pieces = Vec::from([
        (0x1000, alloc(b"/bin/x\0")),
        (0x2000, words(&[0x3000, 0x3100, 0])),
        (0x3000, alloc(b"a\0")),
        (0x3100, alloc(b"bcd\0")),
        (0x4000, words(&[0])),
    ]);
    let expected = [(0x1000, 7), (0x2000, 8), (0x3000, 2), (0x2008, 8), (0x3100, 4), (0x2010, 8), (0x4000, 8)];
    assert_eq!(touched(k::__NR_execve, &[0x1000, 0x2000, 0x4000], pieces), expected);
}

#[test]
fn vectors_and_messages_tell_what_they_name() {
    let pieces = Vec::from([(0x1000, words(&[0x8000, 10, 0x9000, 20]))]);
    assert_eq!(touched(k::__NR_readv, &[3, 0x1000, 2], pieces.clone()), [(0x1000, 32), (0x8000, 10), (0x9000, 20)]);
    assert_eq!(touched(k::__NR_readv, &[3, 0x1000, 2000], pieces), [], "the kernel refuses so many");
    let message = words(&[0x5000, 16, 0x1000, 1, 0x6000, 24, 0]);
    let pieces = Vec::from([(0x2000, message), (0x1000, words(&[0x8000, 10]))]);
    let expected = [(0x2000, 56), (0x5000, 16), (0x6000, 24), (0x1000, 16), (0x8000, 10)];
    assert_eq!(touched(k::__NR_recvmsg, &[3, 0x2000, 0], pieces), expected);
}

#[test]
fn many_messages_lie_one_behind_the_other() {
    let mut messages = words(&[0x5000, 16, 0, 0, 0, 0, 0, 0]);
    messages.extend(words(&[0, 0, 0, 0, 0x6000, 8, 0, 0]));
    let told = touched(k::__NR_recvmmsg, &[3, 0x2000, 2, 0, 0], Vec::from([(0x2000, messages)]));
    assert_eq!(told, [(0x2000, 128), (0x2000, 56), (0x5000, 16), (0x2040, 56), (0x6000, 8)]);
}

#[test]
fn a_length_that_is_given_and_returned_is_followed() {
    let pieces = Vec::from([(0x1000, alloc(&28_u32.to_ne_bytes()))]);
    assert_eq!(touched(k::__NR_accept, &[3, 0x2000, 0x1000], pieces), [(0x1000, 4), (0x2000, 28), (0x1000, 4)]);
    assert_eq!(touched(k::__NR_accept, &[3, 0, 0], Vec::new()), []);
}

#[test]
fn futexes_have_times_or_second_words_by_their_operation() {
    let futex = |operation| touched(k::__NR_futex, &[0x1000, operation, 1, 0x2000, 0x3000, 0], Vec::new());
    const PRIVATE: usize = 128;
    assert_eq!(futex(PRIVATE), [(0x1000, 4), (0x2000, 16)]);
    assert_eq!(futex(1 | PRIVATE), [(0x1000, 4)], "waking: the time is none");
    assert_eq!(futex(4), [(0x1000, 4), (0x3000, 4)], "moving: the time is a number");
    assert_eq!(futex(11), [(0x1000, 4), (0x2000, 16), (0x3000, 4)]);
}

#[test]
fn what_an_ioctl_touches_is_in_its_number() {
    const TCGETS: usize = 0x5401;
    const BIG: usize = 0x2000 << 16 | 0x1234;
    assert_eq!(touched(k::__NR_ioctl, &[0, TCGETS, 0x1000], Vec::new()), [(0x1000, 64)]);
    assert_eq!(touched(k::__NR_ioctl, &[0, BIG, 0x1000], Vec::new()), [(0x1000, 0x2000)]);
    assert_eq!(touched(k::__NR_ioctl, &[0, 0xdead, 0x1000], Vec::new()), [(0x1000, 4096)]);
}

#[test]
fn masks_behind_pairs_and_words_behind_lists_are_followed() {
    let pieces = Vec::from([(0x1000, words(&[0x2000, 8]))]);
    assert_eq!(touched(k::__NR_pselect6, &[0, 0, 0, 0, 0, 0x1000], pieces), [(0x1000, 16), (0x2000, 8)]);
    let waiters = Vec::from([(0x1000, words(&[1, 0x5000, 2, 1, 0x6000, 2]))]);
    let told = touched(k::__NR_futex_waitv, &[0x1000, 2, 0, 0, 0], waiters);
    assert_eq!(told, [(0x1000, 24), (0x5000, 8), (0x1018, 24), (0x6000, 8)]);
    let new = Vec::from([(0x1000, words(&[0, 0, 0x5000, 0x6000, 0, 0, 0, 0, 0, 0, 0]))]);
    assert_eq!(touched(k::__NR_clone3, &[0x1000, 88], new), [(0x1000, 88), (0x5000, 4), (0x6000, 4)]);
}

#[test]
fn directions_are_the_kernels() {
    let mut told = Vec::new();
    let read = Call::find(k::__NR_pread64).expect("it is in the table");
    read.ranges(&[0, 0x1000, 5, 0, 0, 0], &mut Pieces(Vec::new()), &mut |range: Range| told.push(range.direction));
    let write = Call::find(k::__NR_write).expect("it is in the table");
    write.ranges(&[0, 0x1000, 5, 0, 0, 0], &mut Pieces(Vec::new()), &mut |range: Range| told.push(range.direction));
    assert_eq!(told, [Direction::Out, Direction::In]);
}

#[test]
fn calls_that_touch_nothing_are_known() {
    let is_free = |number| Call::find(number).expect("it is in the table").is_free();
    assert!(is_free(k::__NR_getpid) && is_free(k::__NR_close) && is_free(k::__NR_pause));
    assert!(!is_free(k::__NR_mmap) && !is_free(k::__NR_exit) && !is_free(k::__NR_clone) && !is_free(k::__NR_read));
}
