//! `[[file]]` of a workload, and the keys of `[[task]]` that use one.

use super::{Section, WorkloadError};
use crate::device::{self, DeviceParams};
use crate::pattern::{Pattern, Walk};

/// A file of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSetup {
    /// How tasks name it.
    pub name: String,
    /// Its size.
    pub pages: u32,
    /// The disk: files with equal parameters share one.
    pub params: DeviceParams,
    /// It lies on the first swap device's disk instead.
    pub on_swap: bool,
    /// Limit of readahead.
    pub ra_pages: u32,
    /// It is a program that runs.
    pub executable: bool,
}

/// How a task uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileUse {
    /// Which.
    pub file: usize,
    /// By `read` and `write` instead of a mapping: so many pages in each call.
    pub request: Option<u32>,
}

/// Keys of `[[file]]`.
pub const FILE_KEYS: [&str; 6] = ["name", "size", "preset", "on_swap", "read_ahead", "executable"];
/// Values of `by`.
const WAYS: [&str; 2] = ["map", "call"];
/// Files of one workload.
const FILES_MAX: usize = 100;
/// The kernel's default limit of readahead: 128 KiB.
const RA_PAGES: u32 = 32;
/// Largest request of a call: 4 MiB.
const REQUEST_MAX: u32 = 1024;

/// All files of a workload.
pub(super) fn parse_files(top: &Section<'_>) -> Result<Vec<FileSetup>, WorkloadError> {
    let sections = top.sections("file")?;
    if sections.len() > FILES_MAX {
        return Err(top.error(Some("file"), format!("more than {FILES_MAX} files")));
    }
    let mut out: Vec<FileSetup> = Vec::new();
    for section in &sections {
        section.known(&FILE_KEYS)?;
        let name = section.required("name", section.string("name")?)?.to_owned();
        if out.iter().any(|file| file.name == name) {
            return Err(section.error(Some("name"), format!("two files are called \"{name}\"")));
        }
        let on_swap = section.boolean("on_swap")?.unwrap_or(false);
        if on_swap && !top.table.contains_key("device") {
            return Err(section.error(Some("on_swap"), "`on_swap`: there is no [[device]]"));
        }
        let names: Vec<&str> = device::names().collect();
        let preset = section.word("preset", &names)?.unwrap_or("nvme");
        out.push(FileSetup {
            name,
            pages: section.required("size", section.pages("size")?)?,
            params: device::preset(preset).expect("`word` admits only presets").params.clone(),
            on_swap,
            ra_pages: section.pages("read_ahead")?.unwrap_or(RA_PAGES),
            executable: section.boolean("executable")?.unwrap_or(false),
        });
    }
    Ok(out)
}

/// The file a task uses, and how.
pub(super) fn parse_use(section: &Section<'_>, files: &[FileSetup]) -> Result<Option<FileUse>, WorkloadError> {
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let Some(name) = section.word("file", &names)? else {
        for key in ["by", "request"] {
            if section.table.contains_key(key) {
                return Err(section.error(Some(key), format!("`{key}` belongs to `file`")));
            }
        }
        return Ok(None);
    };
    for key in ["size", "shared", "fill"] {
        if section.table.contains_key(key) {
            return Err(section.error(Some(key), format!("`{key}` has no meaning beside `file`")));
        }
    }
    let file = names.iter().position(|n| *n == name).expect("`word` admits only files");
    let by_call = section.word("by", &WAYS)? == Some("call");
    let request = section.pages("request")?;
    match request {
        Some(_) if !by_call => return Err(section.error(Some("request"), "`request` belongs to by = \"call\"")),
        Some(pages) if pages > REQUEST_MAX.min(files[file].pages) => {
            return Err(section.error(Some("request"), "`request` is at most 4 MiB, and at most the file"));
        }
        Some(_) | None => {}
    }
    Ok(Some(FileUse { file, request: by_call.then_some(request.unwrap_or(1)) }))
}

/// Accesses of one lap over the file.
pub(super) fn lap(pattern: &Pattern, pages: u32, file: Option<FileUse>) -> u64 {
    let request = file.and_then(|file| file.request).unwrap_or(1);
    u64::from(Walk::new(pattern.clone(), pages / request).lap())
}
