//! Numbers of passed and failed tests, and failures, parsed from the output of the test programs.

use super::failures::Failures;

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// The sum of the `test result:` lines of a stream of bytes, and the failures in it.
#[derive(Debug, Default)]
pub struct Tally {
    line: Vec<u8>,
    sum: Sum,
    failures: Failures,
}

impl Tally {
    /// Processes the next bytes, which may end anywhere in a line.
    pub fn read(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// Returns the sum and the lines of the failures, including a last line without an end.
    pub fn finish(mut self) -> (Sum, Vec<String>) {
        self.end_line();
        (self.sum, self.failures.finish())
    }

    fn end_line(&mut self) {
        let line = plain(&String::from_utf8_lossy(&self.line));
        if let Some(sum) = result(&line) {
            self.sum += sum;
        }
        self.failures.read(&line);
        self.line.clear();
    }
}

/// Returns the counts of a line such as `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
fn result(line: &str) -> Option<Sum> {
    let counts = line.trim().strip_prefix("test result: ")?;
    let count = |name: &str| {
        let before = counts.split(name).next().filter(|before| before.len() < counts.len())?;
        before.rsplit(' ').find(|word| !word.is_empty())?.parse().ok()
    };
    Some(Sum { passed: count(" passed")?, failed: count(" failed")? })
}

/// Returns the text without escape sequences for colour.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.find(|c: char| c.is_ascii_alphabetic()).map_or("", |end| &part[end + 1..]));
    std::iter::once(first).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OUTPUT: &str = "running 2 tests
test result_of_something ... ok
---- a ----
\u{1b}[1mwhy\u{1b}[m
test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: \u{1b}[31mFAILED\u{1b}[m. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out
test result: something else
7 passed; 7 failed
test result: ok. 1 passed; 0 failed; 0 ignored";

    #[test]
    fn other_lines_do_not_count() {
        for (line, expected) in [
            ("test result: ok. 5 passed; 0 failed; 1 ignored", Some((5, 0))),
            ("  test result: FAILED. 12 passed; 34 failed;\r", Some((12, 34))),
            ("test result: 3 passed; 1 failed; 1.0 s", Some((3, 1))),
            ("test result: ok.", None),
            ("test result: ok. x passed; 0 failed;", None),
            ("my test result: ok. 5 passed; 0 failed", None),
            ("", None),
        ] {
            assert_eq!(result(line).map(|sum| (sum.passed, sum.failed)), expected, "{line:?}");
        }
    }

    proptest! {
        /// The sum does not depend on how the output is split.
        #[test]
        fn output_may_be_split_anywhere(size in 1usize..200) {
            let mut tally = Tally::default();
            OUTPUT.as_bytes().chunks(size).for_each(|piece| tally.read(piece));
            prop_assert_eq!(tally.finish(), (Sum { passed: 13, failed: 2 }, vec!["---- a ----".to_owned(), "why".to_owned()]));
        }
    }
}
