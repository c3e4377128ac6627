//! `--swap PATH[:SIZE][:PRIO]`: where the pages go that do not fit. The runtime sizes and checks each place; this module
//! reads the flag and chooses a place when none is given.

use std::env;
use std::path::{Path, PathBuf};

use pagetide_sim::units;

use crate::backend::SwapSpec;
use crate::failure::Failure;
use crate::machine::Place;
use crate::size::Bytes;

/// Where swap goes when no place is given, best first; after these the current directory.
const DIRECTORIES_DEFAULT: [&str; 1] = ["/var/tmp"];

/// A default place should hold this many budgets, else the next one is looked at.
const BUDGETS_WANTED: u64 = 4;

/// Smallest swap file that makes sense: 256 pages.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// Reads `PATH[:SIZE][:PRIO]`. A path that exists under the whole text is taken as it is, so colons in names work.
pub(crate) fn parse(text: &str) -> Result<SwapSpec, String> {
    parse_knowing(text, |path| path.exists())
}

fn parse_knowing(text: &str, exists: impl Fn(&Path) -> bool) -> Result<SwapSpec, String> {
    if exists(Path::new(text)) {
        return Ok(SwapSpec { path: absolute(text), size_bytes: None, priority: None });
    }
    let mut parts = text.splitn(3, ':');
    let path = parts.next().unwrap_or_default();
    if path.is_empty() {
        return Err("no path: write PATH, PATH:SIZE or PATH:SIZE:PRIO, for example /var/tmp:8G:5".to_owned());
    }
    let size_bytes = match parts.next() {
        None | Some("") => None,
        Some(size) => Some(units::bytes(size)?),
    };
    if let Some(small) = size_bytes.filter(|bytes| *bytes < SIZE_BYTES_MIN) {
        let (small, least) = (Bytes(small), Bytes(SIZE_BYTES_MIN));
        return Err(format!("a swap size of {small} is under the least of {least}; a lone number is bytes"));
    }
    let priority = parts.next().map(parse_priority).transpose()?;
    Ok(SwapSpec { path: absolute(path), size_bytes, priority })
}

fn parse_priority(text: &str) -> Result<i16, String> {
    match text.parse::<i16>() {
        Ok(priority @ 0..) => Ok(priority),
        Ok(_) | Err(_) => {
            Err(format!("\"{text}\" is not a priority: write 0 to 32767; devices with higher numbers are used first"))
        }
    }
}

/// The processes of a run may be started anywhere, so a place must not depend on the directory.
fn absolute(path: &str) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path))
}

/// The places given, or the default one.
pub(crate) fn places(given: &[SwapSpec], budget_bytes: u64) -> Result<Vec<SwapSpec>, Failure> {
    if given.is_empty() {
        let path = default_directory(budget_bytes)?;
        return Ok(vec![SwapSpec { path, size_bytes: None, priority: None }]);
    }
    Ok(given.to_vec())
}

/// The first default directory that is on a disk, can be written and holds several budgets; else the roomiest.
pub(crate) fn default_directory(budget_bytes: u64) -> Result<PathBuf, Failure> {
    let candidates = DIRECTORIES_DEFAULT.iter().map(PathBuf::from).chain(env::current_dir().ok());
    choose(candidates.map(|path| (Place::of(&path).ok(), path)).collect(), budget_bytes)
}

fn choose(candidates: Vec<(Option<Place>, PathBuf)>, budget_bytes: u64) -> Result<PathBuf, Failure> {
    let wanted_bytes = budget_bytes.saturating_mul(BUDGETS_WANTED);
    let looked: Vec<String> = candidates.iter().map(|(_, path)| path.display().to_string()).collect();
    let mut best: Option<(u64, PathBuf)> = None;
    for (place, path) in candidates {
        let Some(Place { usable: true, free_bytes }) = place else { continue };
        let room = free_bytes.min(wanted_bytes);
        if best.as_ref().is_none_or(|(most, _)| room > *most) {
            best = Some((room, path));
        }
    }
    best.map(|(_, path)| path).ok_or_else(|| {
        Failure::unsupported(
            format!("no place for the swap file: {} cannot be written, or lie in memory (tmpfs)", looked.join(" and ")),
            "name a directory on a disk with room: --swap DIR[:SIZE]",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<SwapSpec, String> {
        parse_knowing(text, |_| false)
    }

    fn spec(path: &str, size_bytes: Option<u64>, priority: Option<i16>) -> SwapSpec {
        SwapSpec { path: PathBuf::from(path), size_bytes, priority }
    }

    #[test]
    fn path_size_and_priority_are_told_apart() {
        assert_eq!(parsed("/var/tmp"), Ok(spec("/var/tmp", None, None)));
        assert_eq!(parsed("/var/tmp:8G"), Ok(spec("/var/tmp", Some(8 << 30), None)));
        assert_eq!(parsed("/var/tmp:8G:5"), Ok(spec("/var/tmp", Some(8 << 30), Some(5))));
        assert_eq!(parsed("/var/tmp::0"), Ok(spec("/var/tmp", None, Some(0))));
        assert!(parsed("here:8G").is_ok_and(|spec| spec.path.is_absolute()));
    }

    #[test]
    fn a_path_with_colons_works_when_it_exists() {
        assert_eq!(parse_knowing("/a:b", |_| true), Ok(spec("/a:b", None, None)));
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
    fn the_default_is_the_first_place_with_room_for_several_budgets() {
        let place = |usable, free_bytes| Some(Place { usable, free_bytes });
        let chosen = |first, second| {
            let candidates = vec![(first, PathBuf::from("/first")), (second, PathBuf::from("/second"))];
            choose(candidates, 1 << 30).ok()
        };
        let (first, second) = (Some(PathBuf::from("/first")), Some(PathBuf::from("/second")));
        assert_eq!(chosen(place(true, 5 << 30), place(true, 9 << 30)), first, "both have room");
        assert_eq!(chosen(place(true, 1 << 30), place(true, 9 << 30)), second, "the first is small");
        assert_eq!(chosen(place(true, 2 << 30), place(true, 1 << 30)), first, "both are small");
        assert_eq!(chosen(place(false, 9 << 30), place(true, 1 << 30)), second, "the first is no place");
        assert_eq!(chosen(None, place(false, 9 << 30)), None);
    }
}
