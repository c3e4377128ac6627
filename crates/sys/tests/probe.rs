//! The probe, alone in its process: it counts descriptors.

use pagetide_sys::fd;
use pagetide_sys::probe::Probe;

#[test]
fn probing_leaves_no_descriptor_and_answers_twice_the_same() {
    let count = || (0..1024).filter(|raw| fd::is_open(*raw)).count();
    let first = Probe::run();
    let before = count();
    let second = Probe::run();
    assert_eq!(count(), before);
    assert_eq!(first.uffd, second.uffd);
    assert_eq!(first.page_bytes, 4096);
    assert!(first.version >= (5, 0));
    eprintln!("{first:#?}");
}
