//! The name a person probably meant: the nearest by edit distance.

/// The candidate nearest to `word`, if one is near enough to be worth saying.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = 1 + word.len() / 3;
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .min()
        .filter(|(edits, _)| *edits <= allowed)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and replacements that lead from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 3] = ["page-cluster", "swappiness", "readahead"];

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        assert_eq!(nearest("page_cluster", WORDS), Some("page-cluster"));
        assert_eq!(nearest("swapiness", WORDS), Some("swappiness"));
        assert_eq!(nearest("readahaed", WORDS), Some("readahead"));
    }

    #[test]
    fn a_foreign_name_finds_none() {
        assert_eq!(nearest("colour", WORDS), None);
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }
}
