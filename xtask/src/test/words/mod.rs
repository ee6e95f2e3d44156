//! Checks that comments, docs, log messages and errors do not use phrases that the glossary replaces.
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
    "as by upstream",
    "again and again",
    "in vain",
    "in one go",
    "without end",
    "at the latest",
    "beside upstream",
    "stuck page",
    "halves of the contract",
    "leftovers",
    "surroundings",
    "hopeless",
    "parked",
    "drip",
    "drips",
    "ends well",
    "ends badly",
    "our time",
    "silent node",
    "silent nodes",
    "not heard of",
    "live look",
    "the wish",
    "what is there",
    "what is left",
    "come so far",
    "store shows",
    "lay down",
    "lays down",
    "an own",
    "the own",
    "some ten",
];

/// Upstream's texts with such phrases, which stay as they are.
const UPSTREAM_TEXTS: &[&str] = &["is gone: got uid", "we asked for exactly one"];

/// The beginnings of comment lines, by the end of the file's name. In Markdown every line counts.
const COMMENTS: &[(&str, &[&str])] = &[
    (".md", &[""]),
    (".rs", &["//"]),
    (".go", &["//"]),
    (".py", &["#", "\"\"\""]),
    (".toml", &["#"]),
    (".yaml", &["#"]),
];

/// Files that quote the phrases on purpose.
const QUOTES: &[&str] = &["docs/glossary.md", "CONTRIBUTING.md", "xtask/src/test/words/mod.rs"];

/// The limits: a folder and a number per line.
const LIMITS: &str = include_str!("limits.txt");

/// Returns the beginnings of comment lines in a file; `None` if its comments are not checked.
fn comment_starts(path: &str) -> Option<&'static [&'static str]> {
    COMMENTS.iter().find(|(end, _)| path.ends_with(*end)).map(|(_, starts)| *starts)
}

/// Returns the number of phrases in lines that are comments, in string literals of Rust and in Markdown, by the first
/// folder of the path. A phrase that is broken over two lines is not found. Files in hidden folders do not count.
fn counts() -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for path in files(workspace()) {
        let relative = path.strip_prefix(workspace()).unwrap_or(&path).to_string_lossy().into_owned();
        let is_hidden = relative.starts_with('.') || relative.contains("/.");
        let is_checked = !is_hidden && !QUOTES.contains(&relative.as_str());
        if let Some(starts) = comment_starts(&relative).filter(|_| is_checked) {
            let text = fs::read_to_string(&path).expect("a text file");
            let first = relative.split_once('/').map_or("(root)", |(first, _)| first);
            let of_literals = if relative.ends_with(".rs") { count_literals(&text) } else { 0 };
            *counts.entry(first.to_owned()).or_default() += count(&text, starts) + of_literals;
        }
    }
    counts
}

/// Returns the number of phrases in the lines of a text that begin with one of `starts`.
fn count(text: &str, starts: &[&str]) -> usize {
    let is_comment = |line: &&str| starts.iter().any(|start| line.starts_with(*start));
    text.lines().map(str::trim).filter(is_comment).map(phrases).sum()
}

/// Returns the number of phrases in the string literals of Rust source that begin and end on one line, such as log
/// messages and errors. Literals without blanks are names.
fn count_literals(text: &str) -> usize {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let literals = lines.flat_map(|line| line.split('"').skip(1).step_by(2)).filter(|literal| literal.contains(' '));
    literals
        .map(|literal| UPSTREAM_TEXTS.iter().fold(literal.to_owned(), |rest, text| rest.replace(text, "")))
        .map(|rest| phrases(&rest))
        .sum()
}

/// Returns the number of phrases in a text.
fn phrases(text: &str) -> usize {
    let text = text.to_lowercase();
    PHRASES.iter().map(|phrase| occurrences(&text, phrase)).sum()
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
fn phrases_that_the_glossary_replaces_stay_within_their_limits() {
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
        assert_eq!(count("// Nobody is told of it.\nlet nobody = 1;", &["//"]), 3);
        assert_eq!(count("Listing anew, renewed.", &[""]), 1);
        assert_eq!(count("// blest, forgone", &["//"]), 0);
    }

    #[test]
    fn phrases_count_in_literals_except_for_names_and_texts_of_upstream() {
        let message = r#"warn!(node, "the node is gone"); let nobody = 1;"#;
        assert_eq!(count_literals(message), 1);
        assert_eq!(count_literals(r#"bail!("{name}: in vain: {error}")"#), 1);
        assert_eq!(count_literals(r#"let user = "nobody";"#), 0);
        assert_eq!(count_literals(r#"format!("original Job is gone: got uid {}", uid)"#), 0);
    }
}
