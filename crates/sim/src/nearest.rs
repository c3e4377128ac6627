//! "Did you mean": the known word nearest to an unknown one.

pub use pagetide_core::config::nearest;

/// ` (did you mean "x"?)`, or nothing.
pub fn hint<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |near| format!(" (did you mean \"{near}\"?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_stranger_none() {
        let words = ["memory", "profile", "device"];
        assert_eq!(nearest("memroy", words), Some("memory"));
        assert_eq!(nearest("Profil", words), Some("profile"));
        assert_eq!(nearest("zzzzzzzz", words), None);
    }
}
