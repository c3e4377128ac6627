//! Who plays the host of a workload: the table `[host]`.

use toml::de::DeValue;

use super::{Section, WorkloadError, line_of};
use crate::world::{BlindCosts, HostModel};

/// Keys of `[host]`.
pub const HOST_KEYS: [&str; 5] = ["kind", "mode", "fault", "move", "move_page"];

/// The host; a kernel where the text says nothing.
pub(super) fn parse_host(top: &Section<'_>) -> Result<HostModel, WorkloadError> {
    let Some(value) = top.get("host") else { return Ok(HostModel::Exact) };
    let DeValue::Table(table) = value.get_ref() else {
        return Err(top.error(Some("host"), "`host` is a table: write [host] and kind = \"blind\""));
    };
    let line = line_of(top.text, value.span().start);
    let section = Section { text: top.text, name: "[host]", table, line };
    section.known(&HOST_KEYS)?;
    let is_blind = section.word("kind", &["exact", "blind"])? == Some("blind");
    if !is_blind {
        if let Some(key) = HOST_KEYS[1..].iter().find(|key| table.contains_key(**key)) {
            return Err(section.error(Some(key), format!("`{key}` belongs to kind = \"blind\"")));
        }
        return Ok(HostModel::Exact);
    }
    if top.table.contains_key("file") {
        return Err(top.error(Some("file"), "a blind host has no files: it pages anonymous memory only"));
    }
    let mut costs = match section.word("mode", &["thread", "signal"])? {
        Some("signal") => BlindCosts::SIGNAL,
        Some(_) | None => BlindCosts::THREAD,
    };
    for (key, field) in
        [("fault", &mut costs.fault_ns), ("move", &mut costs.move_ns), ("move_page", &mut costs.move_page_ns)]
    {
        if let Some(ns) = section.nanos(key)? {
            *field = ns;
        }
    }
    Ok(HostModel::Blind(costs))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const BLIND: &str = r#"
memory = "64MiB"
[host]
kind = "blind"
mode = "signal"
move = "2us"
[[task]]
size = "1MiB"
laps = 1
"#;

    #[test]
    fn a_blind_host_has_the_costs_that_the_text_says() {
        let host = parse(BLIND).expect("sound").host;
        assert_eq!(host, HostModel::Blind(BlindCosts { move_ns: 2_000, ..BlindCosts::SIGNAL }));
        let plain = parse(&BLIND.replacen("[host]\nkind = \"blind\"\nmode = \"signal\"\nmove = \"2us\"\n", "", 1));
        assert_eq!(plain.expect("sound").host, HostModel::Exact);
    }

    #[test]
    fn a_host_that_cannot_be_is_named_with_its_line() {
        let cases = [
            ("\"blind\"", "\"blnd\"", 4, "did you mean \"blind\"?"),
            ("\"blind\"", "\"exact\"", 5, "belongs to kind = \"blind\""),
            ("move = ", "moove = ", 6, "did you mean \"move\"?"),
            ("[[task]]", "[[file]]\nname = \"f\"\nsize = \"1MiB\"\npreset = \"disk\"\n[[task]]", 7, "no files"),
        ];
        for (from, to, line, part) in cases {
            let error = parse(&BLIND.replacen(from, to, 1)).expect_err(to);
            assert_eq!(error.line, line, "{to}: {error}");
            assert!(error.what.contains(part), "{to}: {error}");
        }
    }
}
