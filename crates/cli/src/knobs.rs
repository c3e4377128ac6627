//! `pagetide knobs`: the settings of the policy and the profiles, from the core's own table.

use std::fmt::Write;

use pagetide_core::config::{Config, HostKind, KNOBS, PROFILES};
use serde_json::json;

use crate::args::KnobsArgs;
use crate::failure::{Exit, Failure};
use crate::output;

/// Prints the table.
pub(crate) fn run(args: &KnobsArgs) -> Result<(), Failure> {
    let config = Config::profile(&args.profile, HostKind::Blind).map_err(|error| {
        Failure::told(Exit::Usage, format!("--profile: {error}"), format!("one of {}", PROFILES.join(", ")))
    })?;
    output::print(&if args.json { as_json(&config) } else { as_table(&config) })
}

fn as_table(config: &Config) -> String {
    let mut text = format!("Settings (--set KEY=VALUE) and their values in profile {}:\n\n", config.profile_name());
    for knob in KNOBS {
        let value = config.get(knob.name).unwrap_or_default();
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "  {:<20} {value}", knob.name);
        let unit = if knob.unit.is_empty() { String::new() } else { format!(" {}", knob.unit) };
        let _ = writeln!(text, "      {}\n      {}{unit}", knob.doc, knob.values);
    }
    let _ = writeln!(text, "\nProfiles (--profile NAME): {}", PROFILES.join(", "));
    text
}

fn as_json(config: &Config) -> String {
    let knobs: Vec<serde_json::Value> = KNOBS
        .iter()
        .map(|knob| {
            let value = config.get(knob.name);
            json!({"name": knob.name, "value": value, "values": knob.values, "unit": knob.unit, "doc": knob.doc})
        })
        .collect();
    let object = json!({"profile": config.profile_name(), "profiles": PROFILES, "knobs": knobs});
    format!("{object:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_is_in_both_forms_with_its_value() {
        let config = Config::profile("linux-6.18", HostKind::Blind).expect("a profile");
        let (table, json) = (as_table(&config), as_json(&config));
        for knob in KNOBS {
            assert!(table.contains(knob.name) && json.contains(knob.name), "{}", knob.name);
        }
        let value: serde_json::Value = serde_json::from_str(&json).expect("own output");
        assert_eq!(value["profile"], "linux-6.18");
    }
}
