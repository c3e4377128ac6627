//! Settings of the policy: `--profile`, `--swappiness` and `--set KEY=VALUE`, brought into one list in the order in which
//! the runtime applies them. The core's knob table decides what is valid.

use crate::failure::{Exit, Failure};

/// Reads `KEY=VALUE`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => {
            Err("write KEY=VALUE, for example page-cluster=5; `pagetide knobs` lists the keys".to_owned())
        }
    }
}

/// All settings in one list: the profile first, because it sets the others.
pub(crate) fn collect(
    profile: Option<&str>,
    swappiness: Option<u8>,
    pairs: &[(String, String)],
) -> Result<Vec<(String, String)>, Failure> {
    let mut settings = Vec::new();
    settings.extend(profile.map(|name| ("profile".to_owned(), name.to_owned())));
    settings.extend(swappiness.map(|value| ("swappiness".to_owned(), value.to_string())));
    settings.extend_from_slice(pairs);
    for (index, (key, value)) in settings.iter().enumerate() {
        if let Some((_, earlier)) = settings[..index].iter().find(|(earlier, _)| earlier == key) {
            return Err(Failure::told(
                Exit::Usage,
                format!("{key} is set twice, to {earlier} and to {value}"),
                "set it once",
            ));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn pairs_need_a_key_and_a_value() {
        assert_eq!(parse_pair("a=b=c"), Ok(pair("a", "b=c")));
        assert_eq!(parse_pair(" a\t= b "), Ok(pair("a", "b")));
        for text in ["", "a", "a=", "=b", "a= ", "\t=b"] {
            assert!(parse_pair(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_profile_comes_first() {
        let settings = collect(Some("linux-6.18"), Some(100), &[pair("page-cluster", "5")]).expect("no conflict");
        assert_eq!(settings, [pair("profile", "linux-6.18"), pair("swappiness", "100"), pair("page-cluster", "5")]);
    }

    #[test]
    fn a_key_set_twice_is_a_usage_error() {
        let Err(Failure::Told(told)) = collect(None, Some(100), &[pair("swappiness", "5")]) else {
            panic!("two values for one key")
        };
        assert_eq!(told.exit, Exit::Usage);
        assert!(told.what.contains("swappiness"), "{}", told.what);
    }
}
