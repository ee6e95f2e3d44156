//! Failures of tests with the beginnings of their texts, parsed from the output of the test programs.

/// Maximum number of lines of a failure after its heading.
const LINES: usize = 8;

/// Maximum number of characters of a line.
const CHARACTERS: usize = 400;

/// Maximum number of failures.
const FAILURES: usize = 8;

/// The failures in an output: sections that begin with `---- <name> ----`, or `---- <name> stdout ----`.
#[derive(Debug, Default)]
pub struct Failures {
    texts: Vec<Vec<String>>,
    is_in_section: bool,
}

impl Failures {
    /// Processes the next line, without escape sequences.
    pub fn read(&mut self, line: &str) {
        let line = line.trim_end();
        let is_heading = line.starts_with("---- ") && line.ends_with(" ----");
        if is_heading {
            self.is_in_section = true;
            self.texts.push(Vec::new());
        } else if line == "failures:" || line.starts_with("test result:") {
            self.is_in_section = false;
        }
        if self.is_in_section
            && !line.is_empty()
            && let Some(text) = self.texts.last_mut()
            && text.len() <= LINES
        {
            text.push(line.chars().take(CHARACTERS).collect());
        }
    }

    /// Returns the lines of the first failures, and the number of the others.
    pub fn finish(self) -> Vec<String> {
        let more = self.texts.len().saturating_sub(FAILURES);
        let shown = self.texts.into_iter().take(FAILURES).flatten();
        shown.chain((more > 0).then(|| format!("({more} more failures)"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Vec<String> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        failures.finish()
    }

    #[test]
    fn failures_of_both_harnesses_are_found() {
        let output = "test a ... FAILED

failures:

---- a stdout ----

thread 'a' panicked at src/lib.rs:1:2:
it is wrong

---- b::c ----
namespace x: timed out

test result: 1 passed; 2 failed; 3.0 s
something else";
        let expected = [
            "---- a stdout ----",
            "thread 'a' panicked at src/lib.rs:1:2:",
            "it is wrong",
            "---- b::c ----",
            "namespace x: timed out",
        ];
        assert_eq!(read(output), expected);
        assert!(read("test a ... ok\n---- no heading\ntest result: ok").is_empty());
    }

    #[test]
    fn failures_are_limited() {
        let one = format!("---- a ----\n{}{}\n", "line\n".repeat(100), "long".repeat(1000));
        assert_eq!(read(&one).len(), 1 + LINES);
        assert_eq!(read(&format!("---- a ----\n{}", "é".repeat(1000)))[1].chars().count(), CHARACTERS);
        let many = read(&one.repeat(20));
        assert_eq!(many.len(), FAILURES * (1 + LINES) + 1);
        assert_eq!(many.last().map(String::as_str), Some("(12 more failures)"));
    }
}
