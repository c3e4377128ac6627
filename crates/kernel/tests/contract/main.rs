//! The contract: the same scripts on Linux and on the model, and every answer compared, so that the model stays true.
//!
//! Needs a full userfaultfd; `PAGETIDE_REQUIRE=uffd` makes its lack a failure. One test at a time: forks and events are about
//! whole processes.

mod believed;
mod linux;
mod modelled;
mod orders;
mod scripts;
mod stage;

use linux::OnLinux;
use modelled::OnModel;

/// The lines that differ, side by side.
fn compare(script: &str, linux: &[String], model: &[String]) {
    let differing: Vec<String> = (0..linux.len().max(model.len()))
        .filter(|&line| linux.get(line) != model.get(line))
        .map(|line| format!("linux: {:?}\nmodel: {:?}", linux.get(line), model.get(line)))
        .collect();
    assert!(
        differing.is_empty(),
        "{script}: {} of {} answers differ\n{}",
        differing.len(),
        linux.len(),
        differing.join("\n")
    );
}

#[test]
fn linux_and_the_model_answer_every_script_alike() {
    let _alone = linux::alone();
    for (name, on_linux, on_model) in [
        (
            "pages",
            scripts::pages::<OnLinux> as fn(&mut OnLinux) -> Vec<String>,
            scripts::pages::<OnModel> as fn(&mut OnModel) -> _,
        ),
        ("registered", scripts::registered, scripts::registered),
        ("runs", scripts::runs, scripts::runs),
        ("changes", scripts::changes, scripts::changes),
        ("joined", scripts::joined, scripts::joined),
        ("forks", scripts::forks, scripts::forks),
        ("huge pages", scripts::huge_pages, scripts::huge_pages),
    ] {
        let Some(mut linux) = OnLinux::new() else { return };
        let linux = on_linux(&mut linux);
        if linux.is_empty() {
            // Not enabled, or no memory in one piece at the moment.
            eprintln!("skipped: {name}: the kernel has none");
            continue;
        }
        compare(name, &linux, &on_model(&mut OnModel::new()));
    }
}

#[test]
fn linux_and_the_model_copy_alike_where_nobody_is_told() {
    let _alone = linux::alone();
    let Some(mut linux) = OnLinux::without_copies() else { return };
    compare("copies", &scripts::copies(&mut linux), &scripts::copies(&mut OnModel::without_copies()));
}
