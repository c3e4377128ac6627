//! Sums a table of 256 MiB in 32 MiB of memory, as any user: `cargo run --release --example region`.
//!
//! Then writes a part of it to a file: system calls need what they use to be held.

use std::os::fd::AsRawFd as _;

use pagetide::Pool;

const MIB: usize = 1 << 20;

#[expect(clippy::print_stdout, reason = "an example talks to its reader")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::builder(32 << 20).swap("/var/tmp", 512 << 20).build()?;
    let table = pool.region(256 * MIB)?;
    let words: *mut u64 = table.as_ptr().cast();
    let count = table.len() / 8;

    for index in 0..count {
        // SAFETY: the word lies in the region, and no other thread uses it.
        unsafe { words.wrapping_add(index).write(index as u64) };
    }
    let mut sum = 0u64;
    for index in 0..count {
        // SAFETY: as above.
        sum = sum.wrapping_add(unsafe { words.wrapping_add(index).read() });
    }
    let last = count as u64 - 1;
    assert_eq!(sum, last * (last + 1) / 2, "every word came back");

    let null = std::fs::File::create("/dev/null")?;
    let head = table.hold(0..MIB)?;
    // SAFETY: the kernel reads the held bytes.
    let written = unsafe { libc::write(null.as_raw_fd(), head.as_ptr().cast(), head.len()) };
    assert_eq!(usize::try_from(written), Ok(MIB));
    drop(head);

    println!("sum {sum}; {} MiB in memory", pool.resident_bytes() >> 20);
    for (name, value) in pool.vmstat() {
        if ["pgmajfault", "pswpin", "pswpout"].contains(&name) {
            println!("{name} {value}");
        }
    }
    Ok(())
}
