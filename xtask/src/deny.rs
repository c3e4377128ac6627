//! Licences, duplicates and sources of the dependencies, by cargo-deny and `deny.toml`.
//!
//! cargo-deny is taken from the path, or built once into `target/tools`. Its fourth check, against the advisory database,
//! needs that database from the network: it is a target of its own (`make advisories`) and not part of `lint`.

use std::path::PathBuf;
use std::process::Command;

use crate::shell;

/// The version that is built when none is installed.
const VERSION: &str = "0.20.2";

/// Runs the checks that need no network.
pub(crate) fn check() -> Result<(), String> {
    let program = program()?;
    let mut command = Command::new(&program);
    command.args(["--log-level", "error", "check", "licenses", "bans", "sources"]);
    shell::run(&mut command, "cargo deny check")
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
