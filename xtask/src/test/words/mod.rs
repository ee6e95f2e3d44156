//! Checks that comments and docs do not use phrases that the glossary replaces.
//!
//! Each folder has a limit: the number of remaining phrases. The test fails if a folder has more. It also fails if a
//! folder has many fewer: then the limit must be lowered.

use std::collections::BTreeMap;
use std::fs;

use super::files::files;
use crate::cargo::workspace;

/// Phrases that `docs/glossary.md` replaces. A phrase counts only as whole words.
const PHRASES: &[&str] = &[
    "anew",
    "lest",
    "whoever",
    "nobody",
    "somebody",
    "any more",
    "what became",
    "what came of",
    "of before",
    "is told",
    "are told",
    "be told",
    "told of",
    "so many",
    "so long",
    "asked for",
    "growing time",
    "let go",
    "lets go",
    "looks at",
    "look at",
    "looked at",
    "at once",
    "comes back",
    "come back",
    "is gone",
    "are gone",
    "stands still",
    "stand still",
];

/// Files that quote the phrases on purpose.
const QUOTES: &[&str] = &["docs/glossary.md", "CONTRIBUTING.md", "xtask/src/test/words/mod.rs"];

/// The limits: a folder and a number per line.
const LIMITS: &str = include_str!("limits.txt");

/// Returns the number of phrases in comments of Rust and in Markdown, by the first folder of the path. Files in hidden
/// folders do not count.
fn counts() -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for path in files(workspace()) {
        let relative = path.strip_prefix(workspace()).unwrap_or(&path).to_string_lossy().into_owned();
        let is_hidden = relative.starts_with('.') || relative.contains("/.");
        let is_code = relative.ends_with(".rs");
        if (is_code || relative.ends_with(".md")) && !is_hidden && !QUOTES.contains(&relative.as_str()) {
            let text = fs::read_to_string(&path).expect("a text file");
            let first = relative.split_once('/').map_or("(root)", |(first, _)| first);
            *counts.entry(first.to_owned()).or_default() += count(&text, is_code);
        }
    }
    counts
}

/// Returns the number of phrases in a text; for code only in comment lines.
fn count(text: &str, is_code: bool) -> usize {
    let lines = text.lines().map(str::trim).filter(|line| !is_code || line.starts_with("//"));
    lines.map(|line| PHRASES.iter().map(|phrase| occurrences(&line.to_lowercase(), phrase)).sum::<usize>()).sum()
}

/// Returns the number of occurrences of the phrase as whole words.
fn occurrences(line: &str, phrase: &str) -> usize {
    let is_word = |character: Option<char>| character.is_some_and(char::is_alphanumeric);
    let whole = |(start, found): &(usize, &str)| {
        !is_word(line[..*start].chars().next_back()) && !is_word(line[start + found.len()..].chars().next())
    };
    line.match_indices(phrase).filter(whole).count()
}

#[test]
fn comments_and_docs_have_no_more_phrases_that_the_glossary_replaces() {
    let limits: BTreeMap<&str, usize> = LIMITS
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(folder, limit)| (folder, limit.trim().parse().expect("a number")))
        .collect();
    let counts = counts();
    let listed: String = counts.iter().map(|(folder, count)| format!("{folder} {count}\n")).collect();
    for (folder, count) in &counts {
        let limit = limits.get(folder.as_str()).copied().unwrap_or(0);
        assert!(
            *count <= limit,
            "{folder} has {count} phrases that docs/glossary.md replaces, {limit} are allowed; reword the new ones"
        );
        assert!(
            *count + SLACK > limit,
            "{folder} has only {count} of {limit} phrases: lower the limits in xtask/src/test/words/limits.txt to\n{listed}"
        );
    }
}

/// Maximum difference between a limit and its count, so that not every change of a comment changes a limit.
const SLACK: usize = 25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_count_as_whole_words_in_comments_only() {
        assert_eq!(count("// Nobody is told of it.\nlet nobody = 1;", true), 3);
        assert_eq!(count("Listing anew, renewed.", false), 1);
        assert_eq!(count("// blest, forgone", true), 0);
    }
}
