//! Which layer of the core may name which: the picture in ARCHITECTURE.md, enforced as the directions between crates are.
//!
//! A layer is a module of `crates/core/src`: a folder, or a file beside `lib.rs`. Reads the sources as text, so that a path in a
//! body counts as one in a `use`; tests may name everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "crates/core/src";

/// Lowest first. A layer may name the nouns, itself, and what stands behind it, all of which stands above it in the table.
const LAYERS: [(&str, &[&str]); 12] = [
    ("host", &[]),
    ("memory", &["host"]),
    ("io", &[]),
    ("swap", &["host", "memory", "io"]),
    ("reclaim", &["host", "memory", "swap"]),
    ("readahead", &["host", "memory", "swap"]),
    ("paging", &["host", "memory", "swap", "reclaim", "readahead"]),
    ("files", &["memory", "readahead", "paging"]),
    ("tasks", &["host", "memory", "reclaim", "readahead", "paging", "files"]),
    ("policy", &["memory", "tasks"]),
    ("control", &["memory", "swap", "readahead", "tasks", "policy"]),
    ("audit", &["policy"]),
];

/// What every layer may name, and what may name nothing but each other.
const NOUNS: [&str; 6] = ["types", "event", "effect", "vmstat", "config", "absences"];

/// Reads the core and compares.
pub(crate) fn check() -> Result<(), String> {
    let mut findings = Vec::new();
    for (at, (layer, uses)) in LAYERS.iter().enumerate() {
        for used in *uses {
            if !LAYERS[..at].iter().any(|(lower, _)| lower == used) {
                findings.push(format!("layers: the table lets {layer} name {used}, which is not below it"));
            }
        }
    }
    let mut files = Vec::new();
    collect(Path::new(ROOT), &mut files)?;
    let mut names = BTreeMap::new();
    for path in &files {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let own = layer_of(path);
        if own == "lib" {
            continue;
        }
        for used in named(text, "crate::") {
            if !may(&own, &used) {
                findings.push(format!("layers: {}: {own} must not name {used}", path.display()));
            }
        }
        names.insert(path.clone(), siblings(path, text));
    }
    findings.extend(circles(&names));
    if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            collect(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// The first part of the path below the root, without its ending.
fn layer_of(path: &Path) -> String {
    let below = path.strip_prefix(ROOT).unwrap_or(path);
    let first = below.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    first.unwrap_or_default().trim_end_matches(".rs").to_owned()
}

fn may(own: &str, used: &str) -> bool {
    let is_noun = |name: &str| NOUNS.contains(&name);
    if own == used || is_noun(used) {
        return true;
    }
    LAYERS.iter().any(|(layer, uses)| *layer == own && uses.contains(&used))
}

/// The names that follow `prefix` in the text, comments left out.
fn named(text: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for part in line.split(prefix).skip(1) {
            let name: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if !name.is_empty() {
                found.insert(name);
            }
        }
    }
    found
}

/// The files of its own folder that a file names. What the folder's `mod.rs` holds is for all of them, and does not count.
fn siblings(path: &Path, text: &str) -> BTreeSet<PathBuf> {
    let Some(folder) = path.parent().filter(|_| !path.ends_with("mod.rs")) else {
        return BTreeSet::new();
    };
    let own = format!("crate::{}::", layer_of(path));
    let mut names = named(text, "super::");
    names.extend(named(text, &own));
    names.iter().map(|name| folder.join(format!("{name}.rs"))).filter(|file| file.is_file()).collect()
}

/// A file that is reached from itself.
fn circles(names: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<String> {
    let reaches = |from: &PathBuf| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            for next in names.get(at).into_iter().flatten() {
                if seen.insert(next) {
                    left.push(next);
                }
            }
        }
        seen.contains(from)
    };
    let caught = names.keys().filter(|path| reaches(path));
    caught.map(|path| format!("layers: {} is part of a circle of files", path.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_uses_and_bodies_but_not_in_comments() {
        let text = "use crate::memory::Memory;\n// crate::tasks::Tasks\nlet x = crate::swap::f(crate::io::g);\n";
        assert!(named(text, "crate::").iter().eq(["io", "memory", "swap"]));
    }

    #[test]
    fn a_layer_names_what_is_below_it_only() {
        assert!(may("reclaim", "memory") && may("memory", "types") && may("files", "files"));
        assert!(!may("memory", "reclaim") && !may("reclaim", "tasks") && !may("types", "memory"));
    }

    #[test]
    fn a_circle_of_files_is_found() {
        let file = |name: &str| PathBuf::from(name);
        let mut names = BTreeMap::from([(file("a"), BTreeSet::from([file("b")])), (file("b"), BTreeSet::new())]);
        assert!(circles(&names).is_empty());
        names.insert(file("b"), BTreeSet::from([file("a")]));
        assert_eq!(circles(&names).len(), 2);
    }
}
