//! The INI dialect of `--cloud-config`: sections with an optional quoted name, variables, quotes, comments.
//!
//! The parser accepts what upstream's parser accepts (gopkg.in/gcfg.v1, `readInto`) and does not interpret the
//! variables. A library for plain INI files refuses the quoted section names and the variables without a value.

/// A variable of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    /// The name of the section, in the spelling of the file.
    pub section: String,
    /// The quoted name after the section's name, if there is one.
    pub subsection: Option<String>,
    /// The name of the variable, in the spelling of the file.
    pub name: String,
    /// The value; `true` for a variable without a value.
    pub value: String,
    /// The number of its line, from one.
    pub line: usize,
}

/// A line that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub(crate) struct SyntaxError {
    line: usize,
    message: String,
}

/// Parses a file, and returns its variables in their order. A line that ends in a backslash continues in the next one,
/// except in a comment.
pub(crate) fn parse(text: &str) -> Result<Vec<Variable>, SyntaxError> {
    let mut variables = Vec::new();
    let mut section = None;
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    while let Some((index, first)) = lines.next() {
        let mut line = first.trim().to_owned();
        while continues(&line) {
            line.pop();
            line.push_str(lines.next().map_or("", |(_, more)| more.trim()));
        }
        let fail = |message: String| SyntaxError { line: index + 1, message };
        if line.is_empty() || is_comment(&line) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            section = Some(header(rest).map_err(fail)?);
            continue;
        }
        let Some((section, subsection)) = section.clone() else {
            return Err(fail(format!("{line:?} is before the first section: put it under [Global]")));
        };
        let (name, value) = variable(&line).map_err(fail)?;
        variables.push(Variable { section, subsection, name, value, line: index + 1 });
    }
    Ok(variables)
}

fn is_comment(line: &str) -> bool {
    line.starts_with([';', '#'])
}

/// Parses the name and the value of a variable.
fn variable(line: &str) -> Result<(String, String), String> {
    let end = line.find(|c: char| !c.is_alphanumeric() && c != '-').unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let rest = rest.trim_start();
    let text = rest.strip_prefix('=');
    let is_name = name.starts_with(|c: char| c.is_alphabetic());
    if !is_name || (text.is_none() && !rest.is_empty() && !is_comment(rest)) {
        let name = line.split('=').next().unwrap_or_default().trim();
        return Err(format!("{name:?} is not a variable name: use letters, digits and dashes"));
    }
    Ok((name.to_owned(), text.map_or(Ok("true".into()), value)?))
}

/// Returns true if a line ends in a backslash that is neither escaped nor in a comment.
fn continues(line: &str) -> bool {
    let (mut is_quoted, mut is_escape) = (false, false);
    for c in line.chars() {
        match c {
            _ if is_escape => is_escape = false,
            '\\' => is_escape = true,
            '"' => is_quoted = !is_quoted,
            ';' | '#' if !is_quoted => return false,
            _ => {}
        }
    }
    is_escape
}

/// Parses the section's name from the text in its brackets.
fn header(rest: &str) -> Result<(String, Option<String>), String> {
    let (name, quoted) = match rest.find(['"', ']']) {
        Some(at) if rest[at..].starts_with('"') => (rest[..at].trim(), true),
        Some(at) => (rest[..at].trim(), false),
        None => return Err("the section has no closing bracket".into()),
    };
    let (subsection, after) = if quoted {
        let (text, after) = quoted_text(&rest[rest.find('"').unwrap_or_default() + 1..])?;
        let after = after.trim_start().strip_prefix(']').ok_or("the section has no closing bracket")?;
        (Some(text), after)
    } else {
        (None, &rest[rest.find(']').unwrap_or_default() + 1..])
    };
    let after = after.trim();
    if !after.is_empty() && !is_comment(after) {
        return Err(format!("{after:?} follows a section header: put it on a line of its own"));
    }
    if name.is_empty() {
        return Err("the section has no name".into());
    }
    Ok((name.to_owned(), subsection))
}

/// Parses a value. Quoted parts keep blanks and comment characters; the rest ends at a comment and is trimmed.
fn value(text: &str) -> Result<String, String> {
    let mut rest = text.trim_start();
    let mut value = String::new();
    let mut trimmed_end = 0;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '"' => {
                let (piece, after) = quoted_text(rest)?;
                value.push_str(&piece);
                trimmed_end = value.len();
                rest = after;
            }
            ';' | '#' => break,
            '\\' => {
                let escaped = rest.chars().next();
                value.push(escape(escaped)?);
                trimmed_end = value.len();
                rest = &rest[escaped.map_or(0, char::len_utf8)..];
            }
            c => {
                value.push(c);
                if !c.is_whitespace() {
                    trimmed_end = value.len();
                }
            }
        }
    }
    value.truncate(trimmed_end);
    Ok(value)
}

/// Returns the text up to the closing quote, and the text after the quote.
fn quoted_text(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(escape(chars.next().map(|(_, c)| c))?),
            c => value.push(c),
        }
    }
    Err("a quote is not closed on its line".into())
}

fn escape(c: Option<char>) -> Result<char, String> {
    match c {
        Some(c @ ('"' | '\\')) => Ok(c),
        Some('n') => Ok('\n'),
        Some('t') => Ok('\t'),
        Some('b') => Ok('\u{8}'),
        Some(c) => Err(format!("\\{c} is not an escape sequence: write \\\\ for a backslash")),
        None => Err("the value ends in a backslash: write \\\\ for one".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        let variables = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        variables
            .into_iter()
            .map(|v| {
                let section = v.subsection.map_or(v.section.clone(), |sub| format!("{}/{sub}", v.section));
                (format!("{section}.{}", v.name), v.value)
            })
            .collect()
    }

    #[test]
    fn values_are_parsed_in_all_spellings() {
        for (line, expected) in [
            ("a = b", "b"),
            ("a=b", "b"),
            ("a = b c  ", "b c"),
            ("a = b ; a comment", "b"),
            ("a = b # a comment", "b"),
            ("a = \"b ; c\" ; a comment", "b ; c"),
            ("a = \" b \"", " b "),
            ("a = b\" c \"d", "b c d"),
            ("a = \"say \\\"x\\\" \\\\ \\t\"", "say \"x\" \\ \t"),
            ("a =", ""),
            ("a", "true"),
            ("a ; x = y", "true"),
            ("a#", "true"),
            ("a = https://example.com/x?y=z", "https://example.com/x?y=z"),
            ("a = b \\\n  c", "b c"),
        ] {
            let text = format!("; first\n[Global]\n\n{line}\n");
            assert_eq!(read(&text), [("Global.a".to_owned(), expected.to_owned())], "{line}");
        }
    }

    #[test]
    fn backslash_in_a_comment_does_not_continue_the_line() {
        for first in
            ["a = b ; in C:\\", "a = b # \\", "; comment \\\na = b", "a = b\n[Global] ; \\", "a = \"b\" ; \"\\"]
        {
            let expected =
                [("Global.a", "b"), ("Global.c", "; d")].map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(read(&format!("[Global]\n{first}\nc = \"; \\\nd\"")), expected, "{first}");
        }
    }

    #[test]
    fn sections_may_repeat_and_have_names() {
        let text = "[Global]\na = 1\na = 2\n[ServiceOverride \"1\"] ; one\nURL = u\n[ ServiceOverride  \"2 \\\"x\\\"\" ]\nURL = v\n[Global]\nb";
        let pairs = read(text);
        let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Global.a", "Global.a", "ServiceOverride/1.URL", "ServiceOverride/2 \"x\".URL", "Global.b"]);
    }

    #[test]
    fn syntax_errors_contain_the_line() {
        for (text, expected) in [
            ("a = 1", "line 1: \"a = 1\" is before the first section: put it under [Global]"),
            ("[Global]\n\na b = 1", "line 3: \"a b\" is not a variable name: use letters, digits and dashes"),
            ("[Global]\n= 1", "line 2: \"\" is not a variable name: use letters, digits and dashes"),
            ("[Global", "line 1: the section has no closing bracket"),
            ("[\"x\"]", "line 1: the section has no name"),
            ("[X \"y]", "line 1: a quote is not closed on its line"),
            ("[X] y = 1", "line 1: \"y = 1\" follows a section header: put it on a line of its own"),
            ("[X]\na = \"b", "line 2: a quote is not closed on its line"),
            ("[X]\na = \"\\x\"", "line 2: \\x is not an escape sequence: write \\\\ for a backslash"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}|[\\[\\]\"\\\\=;#a\n ]{0,60}") {
            let _ = parse(&text);
        }
    }
}
