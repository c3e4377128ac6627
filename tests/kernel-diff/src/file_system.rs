//! The file that a row reads: on a file system of its own, with nothing of it in the page cache.
//!
//! ext4 with journaled data, which has no large folios: the page cache consists of single pages, as the model's does.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::loops::{Loops, tool};

/// The file system's own pages: tables, and a journal.
const OVERHEAD_PAGES: u64 = 16_384;
/// The kernel's default; the simulator's, too.
const READ_AHEAD_KB: &str = "128";

/// Makes a file of so many pages, of which page i begins with the number i + 1.
pub(crate) fn make_file(loops: &mut Loops, directory: &Path, pages: u32) -> Result<PathBuf, String> {
    let node = loops.device(u64::from(pages) + OVERHEAD_PAGES)?;
    let name = node.trim_start_matches("/dev/");
    let readahead = format!("/sys/block/{name}/queue/read_ahead_kb");
    fs::write(&readahead, READ_AHEAD_KB).map_err(|e| format!("{readahead}: {e}"))?;
    tool("mkfs.ext4", &["-q", "-b", "4096", "-m", "0", &node])?;
    let mounted = directory.join("files");
    fs::create_dir(&mounted).map_err(|e| format!("{}: {e}", mounted.display()))?;
    let at = mounted.display().to_string();
    let mount = || tool("mount", &["-o", "data=journal,noatime,noinit_itable", &node, &at]);
    loops.janitor.at_end(&format!("umount '{at}'"));
    mount()?;
    let file = mounted.join("file");
    write(&file, pages).map_err(|e| format!("{}: {e}", file.display()))?;
    // Mounted anew: nothing is cached.
    tool("umount", &[&at])?;
    mount()?;
    Ok(file)
}

fn write(file: &Path, pages: u32) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    let mut page = [0u8; 4096];
    for number in 1..=u64::from(pages) {
        page[..8].copy_from_slice(&number.to_ne_bytes());
        out.write_all(&page)?;
    }
    out.flush()?;
    out.get_ref().sync_all()
}
