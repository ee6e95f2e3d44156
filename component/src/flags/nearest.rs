//! Suggestions for mistyped words.

/// Returns the candidate with the smallest edit distance to `word`, the first among equals; `None` if all distances
/// exceed the limit: a third of the word's length, but at least two.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the text ` (did you mean X?)`, or nothing; `dashes` precede the name.
pub fn hint(nearest: Option<&str>, dashes: &str) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean {dashes}{name}?)"))
}

/// Returns the Levenshtein distance, ignoring case.
fn distance(left: &str, right: &str) -> usize {
    let letters = |text: &str| text.to_lowercase().chars().collect::<Vec<_>>();
    let (left, right) = (letters(left), letters(right));
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nearest_word_is_found_within_its_distance() {
        let words = ["leader-elect", "kubeconfig", "master"];
        assert_eq!(nearest("leader-elct", words), Some("leader-elect"));
        assert_eq!(nearest("KubeConfg", words), Some("kubeconfig"));
        assert_eq!(nearest("nothing-like-it", words), None);
    }

    proptest! {
        #[test]
        fn distance_is_symmetric_and_zero_only_to_itself(left in "[a-d]{0,6}", right in "[a-d]{0,6}") {
            prop_assert_eq!(distance(&left, &right), distance(&right, &left));
            prop_assert_eq!(distance(&left, &right) == 0, left == right);
            prop_assert!(distance(&left, &right) <= left.len().max(right.len()));
        }
    }
}
