//! Licences, duplicates and sources of the dependencies, by cargo-deny and `deny.toml`.
//!
//! cargo-deny is taken from the path, or built once into `target/tools`, which takes minutes. What it says follows from the files that
//! [`CHECKED`] has the sum of, so it runs when one of them has changed, and what passes is noted there, to be committed with the change.
//! Its fourth check, against the advisory database, needs that database from the network: it is a target of its own (`make advisories`)
//! and not part of `lint`.

use std::path::PathBuf;
use std::process::Command;

use crate::shell;

/// The version that is built when none is installed.
const VERSION: &str = "0.20.2";
/// What has passed.
const CHECKED: &str = "xtask/deny-checked.txt";

/// Runs the checks that need no network, unless they have passed over the same files.
pub(crate) fn check() -> Result<(), String> {
    let sum = sum()?;
    let checked = shell::root().join(CHECKED);
    if std::fs::read_to_string(&checked).is_ok_and(|noted| noted == sum) {
        return Ok(());
    }
    let mut command = Command::new(program()?);
    command.args(["--log-level", "error", "check", "licenses", "bans", "sources"]);
    shell::run(&mut command, "cargo deny check")?;
    std::fs::write(&checked, sum).map_err(|error| format!("{CHECKED}: {error}"))?;
    println!("lint: deny: passed; commit {CHECKED}");
    Ok(())
}

/// cargo-deny's version, and the FNV-1a sum of what its answer depends on: what is depended on, and what that may be.
fn sum() -> Result<String, String> {
    let is_read = |path: &String| ["Cargo.toml", "Cargo.lock", "deny.toml"].iter().any(|name| path.ends_with(name));
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for path in shell::files()?.into_iter().filter(is_read) {
        let text = std::fs::read(shell::root().join(&path)).map_err(|error| format!("{path}: {error}"))?;
        for byte in path.bytes().chain([0]).chain(text) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(format!("cargo-deny {VERSION}, {sum:016x}\n"))
}

/// cargo-deny, built first if need be.
fn program() -> Result<PathBuf, String> {
    let installed = Command::new("cargo-deny").arg("--version").output();
    if installed.is_ok_and(|output| output.status.success()) {
        return Ok(PathBuf::from("cargo-deny"));
    }
    let tools = shell::root().join("target/tools");
    let program = tools.join("bin/cargo-deny");
    if !program.is_file() {
        let tools = tools.to_string_lossy();
        shell::cargo(&["install", "--quiet", "cargo-deny", "--version", VERSION, "--locked", "--root", &tools], &[])?;
    }
    Ok(program)
}
