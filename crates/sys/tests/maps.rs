//! The list of mappings, by question and by text, and the sizes, alone in its process.

use pagetide_sys::fd;
use pagetide_sys::maps::{Kind, MapsQuery, MapsText, MapsWalk, NAME_BYTES, Vma};
use pagetide_sys::mem::{self, Advice, AnonOptions, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::proc::{self, StatmFile};

/// A mapping with its name, as owned data.
type Row = (usize, usize, [bool; 4], u64, (u32, u32), u64, Kind, Vec<u8>);

fn row(vma: &Vma<'_>) -> Row {
    let rights = [vma.read, vma.write, vma.exec, vma.shared];
    (vma.start, vma.end, rights, vma.offset, vma.device, vma.inode, vma.kind, vma.name.to_vec())
}

fn anonymous(pages: usize, protection: Protection) -> Mapping {
    let options = AnonOptions { protection, populate: false, inherit: true };
    Mapping::anonymous(pages * PAGE_BYTES, options).expect("mmap")
}

/// One test: the others of a process would change its mappings.
#[test]
fn question_and_text_give_equal_lists_and_sizes_follow_what_is_touched() {
    both_ways_are_equal();
    sizes_follow();
    what_is_shared_is_backed_when_it_is_touched();
}

fn both_ways_are_equal() {
    let named = anonymous(3, Protection::ReadWrite);
    mem::set_name(named.range(), c"pagetide test");
    let reserved = anonymous(5, Protection::None);
    let file = fd::memfd(c"a name with blanks").expect("memfd");
    pagetide_sys::file::truncate(&file, 8192).expect("truncate");
    let shared = Mapping::shared(&file, 4096, 4096, Protection::Read).expect("mmap");

    let mut text_rows = Vec::with_capacity(1024);
    let mut query_rows = Vec::with_capacity(1024);
    let mut walk_rows = Vec::with_capacity(1024);
    let mut buf = vec![0; NAME_BYTES + 4096];
    let mut walk_buf = vec![0; NAME_BYTES + 4096];
    // Names are copied with the program's allocator, which may map more: do it once before, then compare.
    for _ in 0..2 {
        text_rows.clear();
        query_rows.clear();
        walk_rows.clear();
        let mut text = MapsText::open(&mut buf).expect("maps");
        while let Some(vma) = text.next_vma().expect("a line") {
            text_rows.push(row(&vma));
        }
        let mut walk = MapsWalk::open(&mut walk_buf).expect("maps");
        while let Some(vma) = walk.next_vma().expect("a step") {
            walk_rows.push(row(&vma));
        }
        match MapsQuery::open() {
            Ok(query) => {
                let mut name = [0; NAME_BYTES];
                let mut at = 0;
                while let Some(vma) = query.at_or_after(at, &mut name).expect("an answer") {
                    query_rows.push(row(&vma));
                    at = vma.end;
                }
            }
            Err(error) => eprintln!("skipped: no PROCMAP_QUERY: {error}"),
        }
    }
    // The text ends with the kernel's own page at the top of the address space, which is no mapping of the process.
    text_rows.retain(|row| row.7 != b"[vsyscall]");
    walk_rows.retain(|row| row.7 != b"[vsyscall]");
    assert_eq!(walk_rows, text_rows);
    if !query_rows.is_empty() {
        assert_eq!(query_rows, text_rows);
    }

    let find = |start: usize| text_rows.iter().find(|row| row.0 <= start && start < row.1).expect("is mapped");
    let found = find(reserved.range().start());
    assert_eq!((found.2, found.6), ([false, false, false, false], Kind::Anon));
    let found = find(shared.range().start());
    assert_eq!((found.2, found.3, found.6), ([true, false, false, true], 4096, Kind::File));
    assert_eq!(found.7, b"/memfd:a name with blanks (deleted)");
    // Naming is a build option of the kernel.
    let found = find(named.range().start());
    assert!(found.6 == Kind::AnonNamed && found.7 == b"[anon:pagetide test]" || found.6 == Kind::Anon);
    assert!(text_rows.iter().any(|row| row.6 == Kind::Stack));
    assert!(text_rows.iter().any(|row| row.6 == Kind::Heap));
    assert!(text_rows.iter().any(|row| row.7 == b"[vdso]" && row.6 == Kind::Kernel));
}

fn sizes_follow() {
    const PAGES: usize = 4096;
    let statm = StatmFile::open_self().expect("statm");
    let region = anonymous(PAGES, Protection::ReadWrite);
    let before = statm.read().expect("statm");
    mem::advise(region.range(), Advice::PopulateWrite).expect("populate");
    let after = statm.read().expect("statm");
    let grown = after.anon_pages().saturating_sub(before.anon_pages());
    // The kernel's counters are up to a batch per CPU late.
    assert!(grown.abs_diff(PAGES as u64) < 512, "{grown} of {PAGES} pages seen");
    let status = proc::status(None).expect("status");
    assert!(status.resident_anon_bytes >= (PAGES * PAGE_BYTES) as u64);
    assert!(status.peak_resident_bytes >= status.resident_anon_bytes);
    assert_eq!(proc::status(Some(pagetide_sys::thread::getpid())).map(|status| status.threads), Ok(status.threads));
    assert_eq!(status.pending, 0, "no signal is on its way");
    drop(region);
    let gone = statm.read().expect("statm");
    assert!(after.size_pages - gone.size_pages >= PAGES as u64);
}

/// A store's table of checksums is long and seldom full.
fn what_is_shared_is_backed_when_it_is_touched() {
    const BYTES: usize = 64 << 20;
    let file = fd::memfd(c"a table").expect("memfd");
    pagetide_sys::file::truncate(&file, BYTES as u64).expect("truncate");
    let statm = StatmFile::open_self().expect("statm");
    let before = statm.read().expect("statm").resident_pages;
    let table = Mapping::shared(&file, 0, BYTES, Protection::ReadWrite).expect("mmap");
    let grown = statm.read().expect("statm").resident_pages.saturating_sub(before);
    assert!(grown < 512, "{grown} pages are resident of a table that nobody touched");
    drop(table);
}
