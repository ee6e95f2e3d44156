//! The end of a log, for errors.

use std::fs;
use std::path::Path;

/// Number of log lines in an error.
const LAST_LINES: usize = 15;

/// Returns the end of a text file, or the reason why it cannot be read.
pub(crate) fn last_lines(log: &Path) -> String {
    match fs::read(log) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
        }
        Err(error) => format!("({} cannot be read: {error})", log.display()),
    }
}
