//! Imports of a source file from its own crate: `crate::` and `super::` paths, without those of tests.

/// A path into the same crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    /// The line on which it begins.
    pub line: usize,
    /// Its segments from the crate root.
    pub path: Vec<String>,
}

/// A source file's position in the crate, and its imports.
#[derive(Debug)]
pub struct Source {
    /// The path of its module; empty for the crate root.
    pub module: Vec<String>,
    /// Its imports.
    pub imports: Vec<Import>,
    /// Modules that exist only for tests.
    pub tests: Vec<Vec<String>>,
}

impl Source {
    /// Reads the file of a module.
    pub fn read(module: Vec<String>, text: &str) -> Self {
        let mut reader = Reader { tokens: tokens(text), at: 0, module, imports: Vec::new(), tests: Vec::new() };
        reader.items();
        Self { module: reader.module, imports: reader.imports, tests: reader.tests }
    }
}

/// An identifier, `::`, or another character, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    line: usize,
    text: String,
}

/// Splits Rust source into tokens. Comments and literals are dropped.
fn tokens(text: &str) -> Vec<Token> {
    let (mut tokens, mut line, mut rest) = (Vec::new(), 1, text);
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest).unwrap_or_else(|| {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
            if !first.is_whitespace() {
                tokens.push(Token { line, text: rest[..length].to_owned() });
            }
            length
        });
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

/// Returns the length of a comment or literal at the beginning of a text; `None` if there is none.
fn skipped(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(text.find("*/").map_or(text.len(), |end| end + 2));
    }
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|prefix| {
        let rest = text.strip_prefix(prefix).map(|rest| rest.trim_start_matches('#'));
        rest.is_some_and(|rest| rest.starts_with('"'))
            && (prefix.ends_with('r') || text[prefix.len()..].starts_with('"'))
    });
    if let Some(prefix) = prefix {
        let hashes = text[prefix.len()..].chars().take_while(|c| *c == '#').count();
        let start = prefix.len() + hashes + 1;
        if prefix.ends_with('r') {
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()));
        }
        return Some(start + quoted(&text[start..], '"'));
    }
    // A character, not a lifetime.
    let mut chars = text.strip_prefix('\'')?.chars();
    match (chars.next()?, chars.next()?) {
        ('\\', _) => Some(1 + quoted(&text[1..], '\'')),
        (first, '\'') => Some(2 + first.len_utf8()),
        _ => None,
    }
}

/// Returns the length of a literal's content with its closing quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    module: Vec<String>,
    imports: Vec<Import>,
    tests: Vec<Vec<String>>,
}

impl Reader {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| &token.text)
    }

    fn is_next(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(ahead, word)| self.text(ahead) == *word)
    }

    fn items(&mut self) {
        while self.at < self.tokens.len() {
            if self.is_next(&["#", "[", "cfg", "(", "test", ")", "]"]) {
                self.at += 7;
                self.skip_item();
            } else if self.is_next(&["pub", "(", "in"]) {
                // A visibility, not an import.
                while !matches!(self.text(0), ")" | "") {
                    self.at += 1;
                }
            } else if self.is_next(&["$", "crate"]) {
                // The crate of a macro, in its body: the code that uses the macro contains the path.
                self.at += 2;
            } else if matches!(self.text(0), "crate" | "super") && self.text(1) == "::" {
                let line = self.tokens[self.at].line;
                let start = self.start();
                self.paths(line, start);
            } else {
                self.at += 1;
            }
        }
    }

    /// Skips an item of a test, with further attributes; records a module in a separate file.
    fn skip_item(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            if self.text(0) == "mod" && self.text(2) == ";" {
                let module = self.module.iter().cloned().chain([self.text(1).to_owned()]).collect();
                self.tests.push(module);
            }
            match self.text(0) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth -= 1,
                _ => {}
            }
            let is_end = depth == 0 && matches!(self.text(0), ";" | "}");
            self.at += 1;
            if is_end {
                return;
            }
        }
    }

    /// Reads `crate::` or a chain of `super::`; returns the module that it refers to.
    fn start(&mut self) -> Vec<String> {
        let mut start = if self.text(0) == "crate" { Vec::new() } else { self.module.clone() };
        while matches!(self.text(0), "crate" | "super") && self.text(1) == "::" {
            if self.text(0) == "super" {
                start.pop();
            }
            self.at += 2;
        }
        start
    }

    /// Reads the rest of a path, or a group of them. Macros are exported at the crate root, wherever they are defined.
    fn paths(&mut self, line: usize, mut path: Vec<String>) {
        if self.text(0) == "{" {
            self.at += 1;
            while !matches!(self.text(0), "}" | "") {
                self.paths(line, path.clone());
                if self.text(0) == "," {
                    self.at += 1;
                }
            }
            self.at += 1;
            return;
        }
        loop {
            if !matches!(self.text(0), "self" | "*") {
                path.push(self.text(0).to_owned());
            }
            self.at += 1;
            if self.text(0) != "::" {
                break;
            }
            self.at += 1;
            if self.text(0) == "{" {
                return self.paths(line, path);
            }
            if self.text(0) == "<" {
                break;
            }
        }
        if self.text(0) == "as" {
            self.at += 2;
        }
        if self.text(0) != "!" {
            self.imports.push(Import { line, path });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let source = Source::read(vec!["a".into(), "b".into()], text);
        source.imports.iter().map(|import| format!("{} {}", import.line, import.path.join("::"))).collect()
    }

    #[test]
    fn paths_are_found_with_their_lines() {
        let text = "use crate::{c::D as E,\n f::{self, G}, h::*};\nfn x(y: super::Z) { crate::i::<u8>('{', \"}\") }";
        assert_eq!(read(text), ["1 c::D", "1 f", "1 f::G", "1 h", "3 a::Z", "3 i"]);
        assert_eq!(read("use super::super::c; pub(in crate::v) fn x() { crate::m!(crate::d) }"), ["1 c", "1 d"]);
        assert_eq!(read("macro_rules! m { () => { $crate::e::E } } use crate::f::F;"), ["1 f::F"]);
    }

    #[test]
    fn paths_in_comments_literals_and_tests_are_ignored() {
        let text =
            "// crate::a\n/* crate::b */ const C: &str = \"crate::c \\\" crate::d\"; const R: &str = r#\"\"crate::e\"#;
            const Q: char = '\"'; fn f<'a>(x: &'a u8) {} use crate::g::G; const Y: char = '\\''; use crate::y::Y;
            #[cfg(test)] #[allow(x)] mod tests { use crate::h::H; fn g() { { } } }
            #[cfg(test)] mod world; #[cfg(test)] use crate::i::I; use crate::j::J;";
        assert_eq!(read(text), ["3 g::G", "3 y::Y", "5 j::J"]);
        assert_eq!(Source::read(vec!["a".into()], text).tests, [["a", "world"]]);
    }
}
