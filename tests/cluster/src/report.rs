//! The short form of failures, which ends the output of a run: a failure may list thousands of requests.

/// Maximum number of lines of a failure.
const LINES: usize = 6;

/// Maximum number of characters of a line.
const CHARACTERS: usize = 400;

/// Returns a heading with the test's name, and the beginning of the failure.
pub fn short(name: &str, failure: &str) -> String {
    let lines: Vec<&str> = failure.lines().filter(|line| !line.trim().is_empty()).collect();
    let mut text = format!("---- {name} ----");
    for line in lines.iter().take(LINES) {
        text.push('\n');
        text.extend(line.chars().take(CHARACTERS));
        if line.chars().nth(CHARACTERS).is_some() {
            text.push_str(" ...");
        }
    }
    if lines.len() > LINES {
        text.push_str(&format!("\n({} more lines above)", lines.len() - LINES));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_any_length_is_short() {
        assert_eq!(short("a::b", "namespace x: no pod"), "---- a::b ----\nnamespace x: no pod");
        let long = short("a", &"ü".repeat(1_000_000));
        assert!(long.ends_with("ü ...") && long.lines().count() == 2, "{long}");
        let lines = short("a", &"line\n\n".repeat(100));
        assert!(lines.ends_with("\n(94 more lines above)") && lines.lines().count() == 8, "{lines}");
    }
}
