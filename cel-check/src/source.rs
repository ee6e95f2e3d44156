//! Positions in an expression's text, and the rendering of issues.

use std::fmt::{self, Display, Formatter, Write as _};

/// Maximum number of issues that are reported for one expression.
const MAX_ISSUES: usize = 100;
/// Maximum length in bytes of a line that is shown below an issue.
const MAX_SNIPPET_BYTES: usize = 16_384;

/// A mistake in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The offset of the mistake in code points.
    pub offset: u32,
    /// The description of the mistake.
    pub message: String,
}

/// The mistakes in an expression, in the order of their positions: the first 100 that were found, and the number of
/// all.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Issues {
    issues: Vec<Issue>,
    total: usize,
    lines: Vec<String>,
}

/// The issues that are found while an expression is checked.
#[derive(Debug, Default)]
pub struct IssueCollector {
    issues: Vec<Issue>,
    total: usize,
}

impl IssueCollector {
    /// Adds an issue. Issues beyond the limit are only counted.
    pub fn add(&mut self, offset: u32, message: String) {
        self.total += 1;
        if self.issues.len() < MAX_ISSUES {
            self.issues.push(Issue { offset, message });
        }
    }

    /// Returns true if there is no issue.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the issues, sorted by position, with the lines of `text` for their rendering.
    pub fn into_issues(mut self, text: &str) -> Issues {
        self.issues.sort_by_key(|issue| issue.offset);
        let lines = text.split('\n').map(str::to_owned).collect();
        Issues { issues: self.issues, total: self.total, lines }
    }
}

impl Issues {
    /// Returns the issues that were kept.
    pub fn iter(&self) -> impl Iterator<Item = &Issue> {
        self.issues.iter()
    }

    /// Writes one issue: position and message; then the line and a mark below the position, unless the text is empty or
    /// the line is too long.
    fn write_issue(&self, out: &mut Formatter<'_>, issue: &Issue) -> fmt::Result {
        let (line, column) = self.position(issue.offset as usize);
        write!(out, "ERROR: <input>:{}:{}: {}", line + 1, column + 1, issue.message)?;
        let snippet = self.lines[line].replace('\t', " ");
        // As in cel-go, no line is shown for an empty text.
        if snippet.len() > MAX_SNIPPET_BYTES || self.lines == [""] {
            return Ok(());
        }
        write!(out, "\n | {snippet}\n | ")?;
        // Below characters of more than one byte the marks are full-width, as in cel-go.
        let mut characters = snippet.chars();
        for character in characters.by_ref().take(column) {
            out.write_char(if character.len_utf8() > 1 { '\u{ff0e}' } else { '.' })?;
        }
        let is_wide = characters.next().is_some_and(|character| character.len_utf8() > 1);
        out.write_char(if is_wide { '\u{ff3e}' } else { '^' })
    }

    /// Returns line and column of a code point, both counted from 0.
    fn position(&self, offset: usize) -> (usize, usize) {
        let mut start = 0;
        for (number, line) in self.lines.iter().enumerate() {
            let length = line.chars().count();
            if offset <= start + length || number + 1 == self.lines.len() {
                return (number, offset.saturating_sub(start));
            }
            start += length + 1;
        }
        (0, offset)
    }
}

impl Display for Issues {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for (index, issue) in self.issues.iter().enumerate() {
            if index > 0 {
                out.write_char('\n')?;
            }
            self.write_issue(out, issue)?;
        }
        if self.total > self.issues.len() {
            write!(out, "\n{} more errors were truncated", self.total - self.issues.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str, offsets: &[u32]) -> String {
        let mut issues = IssueCollector::default();
        offsets.iter().for_each(|offset| issues.add(*offset, "wrong".to_owned()));
        issues.into_issues(text).to_string()
    }

    #[test]
    fn issue_shows_its_line_and_marks_its_column() {
        let expected = "ERROR: <input>:2:3: wrong\n | a b.c\n | ..^";
        assert_eq!(render("true &&\na\tb.c", &[10]), expected);
        assert_eq!(render("'\u{fc}' + x", &[6]), "ERROR: <input>:1:7: wrong\n | '\u{fc}' + x\n | .\u{ff0e}....^");
        assert_eq!(render("\u{fc}", &[0]), "ERROR: <input>:1:1: wrong\n | \u{fc}\n | \u{ff3e}");
    }

    #[test]
    fn issues_are_in_the_order_of_their_positions_and_limited() {
        assert!(render("ab", &[1, 0]).starts_with("ERROR: <input>:1:1"));
        let many = render("a", &[0; 103]);
        assert!(many.ends_with("3 more errors were truncated"));
        assert_eq!(many.matches("ERROR").count(), 100);
    }
}
