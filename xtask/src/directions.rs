//! Which crate of the workspace may use which: the table below is the one in ARCHITECTURE.md, enforced. Inside the core, `layers`
//! does the same.

use serde_json::Value;

use crate::{layers, shell};

/// Crate, and the crates of the workspace it may use, its tests included.
const ALLOWED: [(&str, &[&str]); 13] = [
    ("pagetide-core", &[]),
    ("pagetide-trace", &[]),
    ("pagetide-driver", &["pagetide-core"]),
    ("pagetide-sim", &["pagetide-core", "pagetide-driver", "pagetide-trace"]),
    ("pagetide-sys", &[]),
    ("pagetide-kernel", &["pagetide-sys"]),
    ("pagetide", &["pagetide-core", "pagetide-driver", "pagetide-kernel", "pagetide-sys"]),
    ("pagetide-preload", &["pagetide", "pagetide-sys"]),
    ("pagetide-cli", &["pagetide-core", "pagetide-sim", "pagetide-sys", "pagetide"]),
    ("pagetide-tests", &[]),
    ("pagetide-bench", &["pagetide", "pagetide-sim", "pagetide-tests"]),
    ("pagetide-kernel-diff", &["pagetide-sim", "pagetide-tests"]),
    ("xtask", &["pagetide-core", "pagetide"]),
];

/// Reads the dependency graph and compares.
pub(crate) fn check() -> Result<(), String> {
    let text = shell::output(env!("CARGO"), &["metadata", "--format-version", "1", "--no-deps", "--locked"])?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let own: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, uses)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            findings.push(format!("directions: {name} is not in the table: add what it may use"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            if name == "pagetide-core" && dependency["kind"] != "dev" {
                findings.push(format!("directions: the core uses nothing, and now uses {used}"));
            } else if own.contains(&used) && !uses.contains(&used) {
                findings.push(format!("directions: {name} must not use {used}"));
            }
        }
    }
    findings.extend(layers::check().err());
    if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
}
