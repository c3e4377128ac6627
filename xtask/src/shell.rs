//! Starting cargo and git from the root of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Runs cargo with its output shown.
pub(crate) fn cargo(arguments: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    run(Command::new(env!("CARGO")).args(arguments).envs(variables.iter().copied()), &arguments.join(" "))
}

/// Runs a command with its output shown.
pub(crate) fn run(command: &mut Command, shown: &str) -> Result<(), String> {
    match command.current_dir(root()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// Runs a command for its output.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let shown = format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{shown}: {error}"))
}

/// The files git knows, and new ones it would take: paths relative to the root.
pub(crate) fn files() -> Result<Vec<String>, String> {
    let list = output("git", &["ls-files", "--cached", "--others", "--exclude-standard"])?;
    Ok(list.lines().filter(|path| root().join(path).is_file()).map(str::to_owned).collect())
}
