//! `--swap PATH[:SIZE][:PRIO]`: where the pages go that do not fit, and how much room they get.
//!
//! The rule for the size when none is given: up to [`BUDGETS_DEFAULT`] times the budget, but never more than
//! [`Volume::usable_bytes`] leaves. The file grows as it is needed, so a large ceiling costs nothing by itself.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::backend::SwapSpec;
use crate::failure::Failure;
use crate::machine::Volume;
use crate::size::{self, Bytes};

/// Times the budget that swap may grow to when no size is given.
pub(crate) const BUDGETS_DEFAULT: u64 = 32;

/// Smallest swap file that makes sense: 256 pages.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// What a person wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwapArg {
    path: PathBuf,
    size_bytes: Option<u64>,
    priority: Option<i16>,
}

/// Reads `PATH[:SIZE][:PRIO]`. A path that exists under the whole text is taken as it is, so colons in names work.
pub(crate) fn parse(text: &str) -> Result<SwapArg, String> {
    parse_knowing(text, |path| path.exists())
}

fn parse_knowing(text: &str, exists: impl Fn(&Path) -> bool) -> Result<SwapArg, String> {
    if exists(Path::new(text)) {
        return Ok(SwapArg { path: PathBuf::from(text), size_bytes: None, priority: None });
    }
    let mut parts = text.splitn(3, ':');
    let path = parts.next().unwrap_or_default();
    if path.is_empty() {
        return Err("no path: write PATH, PATH:SIZE or PATH:SIZE:PRIO, for example /var/tmp:8G:5".to_owned());
    }
    let size_bytes = match parts.next() {
        None | Some("") => None,
        Some(size) => Some(size::parse_bytes(size)?),
    };
    if let Some(small) = size_bytes.filter(|bytes| *bytes < SIZE_BYTES_MIN) {
        return Err(format!(
            "a swap size of {} is under the least of {}; a lone number is bytes",
            Bytes(small),
            Bytes(SIZE_BYTES_MIN)
        ));
    }
    let priority = match parts.next() {
        None => None,
        Some(priority) => Some(parse_priority(priority)?),
    };
    Ok(SwapArg { path: PathBuf::from(path), size_bytes, priority })
}

fn parse_priority(text: &str) -> Result<i16, String> {
    match text.parse::<i16>() {
        Ok(priority @ 0..) => Ok(priority),
        Ok(_) | Err(_) => {
            Err(format!("\"{text}\" is not a priority: write 0 to 32767; devices with higher numbers are used first"))
        }
    }
}

/// Checks the places given, or finds one. Every spec that comes back has its size.
pub(crate) fn resolve(args: &[SwapArg], budget_bytes: u64) -> Result<Vec<SwapSpec>, Failure> {
    if args.is_empty() {
        return default_place(budget_bytes).map(|spec| vec![spec]);
    }
    args.iter().map(|arg| place(arg, budget_bytes)).collect()
}

/// The default places, best first.
pub(crate) fn default_directories() -> Vec<PathBuf> {
    [Some(PathBuf::from("/var/tmp")), env::current_dir().ok()].into_iter().flatten().collect()
}

/// The first default directory that is on a disk, can be written and has room.
fn default_place(budget_bytes: u64) -> Result<SwapSpec, Failure> {
    let mut looked = Vec::new();
    for directory in default_directories() {
        match place(&SwapArg { path: directory, size_bytes: None, priority: None }, budget_bytes) {
            Ok(spec) => return Ok(spec),
            Err(Failure::Told(told)) => looked.push(told.what),
            Err(Failure::BrokenPipe) => return Err(Failure::BrokenPipe),
        }
    }
    Err(Failure::unsupported(
        format!("no place for the swap file: {}", looked.join("; ")),
        "name a directory on a disk with room: --swap DIR[:SIZE]",
    ))
}

/// Checks one place and settles its size.
fn place(arg: &SwapArg, budget_bytes: u64) -> Result<SwapSpec, Failure> {
    let shown = arg.path.display();
    let directory = directory_of(&arg.path)?;
    let elsewhere = "name a directory on a disk: --swap DIR[:SIZE]";
    let volume = Volume::of(&directory).map_err(|error| {
        Failure::unsupported(format!("--swap {shown}: cannot look at its file system: {error}"), elsewhere)
    })?;
    if volume.in_memory {
        return Err(Failure::unsupported(
            format!("--swap {shown}: this file system keeps its files in memory, so paging to it frees nothing"),
            elsewhere,
        ));
    }
    if volume.read_only || rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK).is_err() {
        return Err(Failure::unsupported(
            format!("--swap {shown}: cannot write there"),
            "name a directory you can write to",
        ));
    }
    let usable = volume.usable_bytes();
    let wanted = arg.size_bytes.unwrap_or_else(|| budget_bytes.saturating_mul(BUDGETS_DEFAULT).min(usable));
    if wanted > usable || wanted < SIZE_BYTES_MIN {
        return Err(Failure::unsupported(
            format!(
                "--swap {shown}: {} asked for, {} free there, of which {} may be used (the rest stays free for others)",
                Bytes(wanted),
                Bytes(volume.free_bytes),
                Bytes(usable),
            ),
            "free some space, ask for less (--swap PATH:SIZE), or name another disk",
        ));
    }
    Ok(SwapSpec { path: absolute(&arg.path), size_bytes: Some(wanted), priority: arg.priority })
}

/// The directory that will hold the file. An existing file is taken only if it is empty: nobody's data is overwritten.
fn directory_of(path: &Path) -> Result<PathBuf, Failure> {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(absolute(path)),
        Ok(found) if found.is_file() && found.len() > 0 => Err(Failure::unsupported(
            format!("--swap {shown}: the file exists and holds data, which would be overwritten"),
            "name a directory, or a file that does not exist yet",
        )),
        Ok(found) if found.is_file() => Ok(parent_of(path)),
        Ok(_) => Err(Failure::unsupported(
            format!("--swap {shown}: neither a directory nor a file"),
            "name a directory, or a file that does not exist yet",
        )),
        Err(_) if parent_of(path).is_dir() => Ok(parent_of(path)),
        Err(error) => Err(Failure::unsupported(format!("--swap {shown}: {error}"), "name a directory that exists")),
    }
}

fn parent_of(path: &Path) -> PathBuf {
    let path = absolute(path);
    path.parent().map_or_else(|| path.clone(), Path::to_path_buf)
}

/// Paths in the environment of the wrapped programs must not depend on where they are started.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Told;

    fn parsed(text: &str) -> Result<SwapArg, String> {
        parse_knowing(text, |_| false)
    }

    fn arg(path: &str, size_bytes: Option<u64>, priority: Option<i16>) -> SwapArg {
        SwapArg { path: PathBuf::from(path), size_bytes, priority }
    }

    fn told(result: Result<Vec<SwapSpec>, Failure>) -> Told {
        match result {
            Err(Failure::Told(told)) => told,
            other => panic!("a refusal was expected: {other:?}"),
        }
    }

    #[test]
    fn path_size_and_priority_are_told_apart() {
        assert_eq!(parsed("/var/tmp"), Ok(arg("/var/tmp", None, None)));
        assert_eq!(parsed("/var/tmp:8G"), Ok(arg("/var/tmp", Some(8 << 30), None)));
        assert_eq!(parsed("/var/tmp:8G:5"), Ok(arg("/var/tmp", Some(8 << 30), Some(5))));
        assert_eq!(parsed("/var/tmp::0"), Ok(arg("/var/tmp", None, Some(0))));
    }

    #[test]
    fn a_path_with_colons_works_when_it_exists() {
        assert_eq!(parse_knowing("/a:b", |_| true), Ok(arg("/a:b", None, None)));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, reason) in [
            ("", "no path"),
            (":8G", "no path"),
            ("/t:8Q", "not a unit"),
            ("/t:100", "lone number is bytes"),
            ("/t:8G:x", "not a priority"),
            ("/t:8G:-1", "not a priority"),
            ("/t:8G:40000", "not a priority"),
            ("/t:8G:1:2", "not a priority"),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_system_in_memory_is_refused() {
        let told = told(resolve(&[arg("/dev/shm", None, None)], 64 << 20));
        assert!(told.what.contains("in memory"), "{}", told.what);
        assert_eq!(told.exit.code(), 3);
    }

    #[test]
    fn more_than_the_disk_has_is_refused_with_both_figures() {
        let here = env::current_dir().expect("tests run somewhere");
        let told = told(resolve(&[arg(&here.to_string_lossy(), Some(1 << 60), None)], 64 << 20));
        assert!(told.what.contains("asked for") && told.what.contains("free there"), "{}", told.what);
    }

    #[test]
    fn a_file_with_data_is_never_taken() {
        let path = env::temp_dir().join(format!("pagetide-swap-{}", std::process::id()));
        fs::write(&path, b"precious").expect("a few bytes fit");
        let told = told(resolve(&[arg(&path.to_string_lossy(), None, None)], 64 << 20));
        fs::remove_file(&path).expect("own file");
        assert!(told.what.contains("overwritten"), "{}", told.what);
    }

    #[test]
    fn the_default_size_is_a_multiple_of_the_budget_within_the_free_space() {
        let here = env::current_dir().expect("tests run somewhere");
        let specs = resolve(&[arg(&here.to_string_lossy(), None, None)], 1 << 20).expect("32 MiB are free here");
        assert_eq!(specs[0].size_bytes, Some(32 << 20));
        assert!(specs[0].path.is_absolute());
    }
}
