//! The output of demos: plain lines, in colour only on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

/// The terminal output of a demo: its destination and colour.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    colour: bool,
    to_error: bool,
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

impl Console {
    /// Returns the console that prints to standard output.
    pub fn output() -> Self {
        Self { colour: colour(std::io::stdout().is_terminal(), std::env::var("NO_COLOR").ok()), to_error: false }
    }

    /// Returns the console that prints to standard error.
    pub fn error() -> Self {
        Self { colour: colour(std::io::stderr().is_terminal(), std::env::var("NO_COLOR").ok()), to_error: true }
    }

    /// Prints a line.
    pub fn line(&self, text: &str) {
        if self.to_error { eprintln!("{text}") } else { println!("{text}") }
    }

    /// Prints a heading.
    pub fn title(&self, text: &str) {
        self.line(&format!("\n{}", self.paint(BOLD, text)));
    }

    /// Prints a command as a user would type it.
    pub fn command(&self, text: &str) {
        self.line(&format!("    {}", self.paint(CYAN, &format!("$ {text}"))));
    }

    /// Prints an event with the time since the step began.
    pub fn happened(&self, after: Duration, text: &str) {
        self.line(&format!("    {} {text}", self.paint(DIM, &format!("{:6.2} s ", after.as_secs_f64()))));
    }

    /// Prints the success of a step.
    pub fn done(&self, after: Duration, text: &str) {
        self.line(&format!("  {} {text} ({:.1} s)", self.paint(GREEN, "✓"), after.as_secs_f64()));
    }

    /// Prints the failure of a step, or of the whole command.
    pub fn failed(&self, text: &str) {
        self.line(&format!("  {} {text}", self.paint(RED, "✗")));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Returns true if the output is in colour. `NO_COLOR` counts if it is set and not empty (no-color.org).
fn colour(terminal: bool, no_color: Option<String>) -> bool {
    terminal && no_color.is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_used_on_a_terminal_when_no_color_is_unset_or_empty() {
        let cases = [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (false, None, false),
            (false, Some("1"), false),
        ];
        for (terminal, no_color, expected) in cases {
            assert_eq!(colour(terminal, no_color.map(String::from)), expected, "{terminal} {no_color:?}");
        }
    }

    #[test]
    fn output_without_colour_has_no_escapes() {
        let console = |colour| Console { colour, to_error: false };
        assert_eq!(console(false).paint(RED, "text"), "text");
        assert_eq!(console(true).paint(RED, "text"), "\u{1b}[31mtext\u{1b}[0m");
    }
}
