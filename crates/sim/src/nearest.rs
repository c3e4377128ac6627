//! "Did you mean": the known word nearest to an unknown one.

/// The candidate within a third of its letters (at least two) of `word`, or none.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|c| (distance(&word.to_lowercase(), c), c));
    let (edits, best) = scored.min_by_key(|(edits, _)| *edits)?;
    (edits <= (best.chars().count() / 3).max(2)).then_some(best)
}

/// ` (did you mean "x"?)`, or nothing.
pub fn hint<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or_else(String::new, |near| format!(" (did you mean \"{near}\"?)"))
}

/// Edits (insert, delete, replace) between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replace = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
