//! The lexer: from text to tokens.

use super::SyntaxError;
use super::string_literal::unescape;
use crate::ast::Literal;

/// A token and its position.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its kind.
    pub kind: TokenKind,
    /// The offset of its start in code points.
    pub offset: u32,
}

/// The kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An identifier; not `in`, `true`, `false` or `null`.
    Ident(String),
    /// The name of a field in backticks, without them. It may contain characters that identifiers cannot.
    Quoted(String),
    /// A literal; numbers are without their sign.
    Literal(Literal),
    /// An operator, a bracket or `in`.
    Symbol(&'static str),
    /// The end of the text.
    End,
}

/// All symbols except `in`, which is read as a word. The longer of two symbols with the same beginning comes first.
const SYMBOLS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%",
];

/// Splits a text into tokens; the last one is the end.
pub fn tokens(text: &str) -> Result<Vec<Token>, SyntaxError> {
    let characters: Vec<char> = text.chars().collect();
    let mut lexer = Lexer { characters: &characters, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks();
        let offset = lexer.at as u32;
        let kind = lexer.next()?;
        let is_end = kind == TokenKind::End;
        tokens.push(Token { kind, offset });
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    characters: &'a [char],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.characters.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn error(&self, message: &str) -> SyntaxError {
        SyntaxError { offset: self.at as u32, message: message.to_owned() }
    }

    fn skip_blanks(&mut self) {
        loop {
            match (self.peek(0), self.peek(1)) {
                ('\t' | ' ' | '\r' | '\n' | '\u{c}', _) => self.at += 1,
                ('/', '/') => self.skip_while(|character| character != '\n'),
                _ => return,
            }
        }
    }

    fn skip_while(&mut self, is_skipped: impl Fn(char) -> bool) {
        while self.characters.get(self.at).is_some_and(|character| is_skipped(*character)) {
            self.at += 1;
        }
    }

    fn text_since(&mut self, start: usize) -> String {
        self.characters[start..self.at].iter().collect()
    }

    fn next(&mut self) -> Result<TokenKind, SyntaxError> {
        if self.at >= self.characters.len() {
            return Ok(TokenKind::End);
        }
        if let Some(length) = self.string_prefix() {
            return self.string(length);
        }
        let (first, second) = (self.peek(0), self.peek(1));
        if first.is_ascii_digit() || first == '.' && second.is_ascii_digit() {
            return self.number();
        }
        if first.is_ascii_alphabetic() || first == '_' {
            return Ok(self.word());
        }
        if first == '`' {
            return self.quoted();
        }
        let fits = |symbol: &&&str| symbol.chars().enumerate().all(|(ahead, expected)| self.peek(ahead) == expected);
        let symbol = SYMBOLS.iter().find(fits).ok_or_else(|| self.error("unexpected character"))?;
        self.at += symbol.len();
        Ok(TokenKind::Symbol(symbol))
    }

    fn word(&mut self) -> TokenKind {
        let start = self.at;
        self.skip_while(|character| character.is_ascii_alphanumeric() || character == '_');
        match self.text_since(start).as_str() {
            "in" => TokenKind::Symbol("in"),
            "true" | "false" => TokenKind::Literal(Literal::Bool),
            "null" => TokenKind::Literal(Literal::Null),
            word => TokenKind::Ident(word.to_owned()),
        }
    }

    fn quoted(&mut self) -> Result<TokenKind, SyntaxError> {
        self.at += 1;
        let start = self.at;
        self.skip_while(|character| {
            character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-' | '/' | ' ')
        });
        let name = self.text_since(start);
        if name.is_empty() || self.peek(0) != '`' {
            return Err(self.error("invalid name in backticks"));
        }
        self.at += 1;
        Ok(TokenKind::Quoted(name))
    }

    fn number(&mut self) -> Result<TokenKind, SyntaxError> {
        let start = self.at;
        let is_hex = self.peek(0) == '0' && self.peek(1) == 'x' && self.peek(2).is_ascii_hexdigit();
        let mut is_float = false;
        if is_hex {
            self.at += 2;
            self.skip_while(|character| character.is_ascii_hexdigit());
        } else {
            self.skip_while(|character| character.is_ascii_digit());
            if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
                is_float = true;
                self.at += 1;
                self.skip_while(|character| character.is_ascii_digit());
            }
            is_float |= self.exponent();
        }
        let digits = self.text_since(start);
        if is_float {
            return Ok(TokenKind::Literal(Literal::Double));
        }
        if matches!(self.peek(0), 'u' | 'U') {
            self.at += 1;
            return Ok(TokenKind::Literal(Literal::Uint));
        }
        let (digits, radix) = if is_hex { (&digits[2..], 16) } else { (&digits[..], 10) };
        // The sign is a separate token, so the magnitude of the lowest integer, 2^63, must be accepted here.
        match u64::from_str_radix(digits, radix) {
            Ok(value) if value <= 1 << 63 => Ok(TokenKind::Literal(Literal::Int)),
            _ => Err(self.error("invalid int literal")),
        }
    }

    fn exponent(&mut self) -> bool {
        let sign = usize::from(matches!(self.peek(1), '+' | '-'));
        if !matches!(self.peek(0), 'e' | 'E') || !self.peek(1 + sign).is_ascii_digit() {
            return false;
        }
        self.at += 1 + sign;
        self.skip_while(|character| character.is_ascii_digit());
        true
    }

    /// Returns the length of the prefix (`b`, `r`, `br` or none) of a string or bytes literal; `None` if none is next.
    fn string_prefix(&self) -> Option<usize> {
        let is_quote = |character| matches!(character, '"' | '\'');
        let bytes = usize::from(matches!(self.peek(0), 'b' | 'B'));
        let raw = usize::from(matches!(self.peek(bytes), 'r' | 'R'));
        is_quote(self.peek(bytes + raw)).then_some(bytes + raw)
    }

    fn string(&mut self, prefix: usize) -> Result<TokenKind, SyntaxError> {
        let is_bytes = matches!(self.peek(0), 'b' | 'B');
        let is_raw = prefix > usize::from(is_bytes);
        self.at += prefix;
        let quote = self.peek(0);
        let width = if self.peek(1) == quote && self.peek(2) == quote { 3 } else { 1 };
        self.at += width;
        let start = self.at;
        loop {
            let character = *self.characters.get(self.at).ok_or_else(|| self.error("unterminated string"))?;
            if (0..width).all(|ahead| self.peek(ahead) == quote) {
                break;
            }
            if width == 1 && matches!(character, '\n' | '\r') {
                return Err(self.error("unterminated string"));
            }
            self.at += if character == '\\' && !is_raw { 2 } else { 1 };
        }
        let content: String = self.characters[start..self.at].iter().collect();
        self.at += width;
        let value = if is_raw { content } else { unescape(&content, is_bytes).map_err(|error| self.error(error))? };
        Ok(TokenKind::Literal(if is_bytes { Literal::Bytes } else { Literal::String(value) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind> {
        tokens(text).expect("tokens").into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn number_literal_has_the_type_of_its_syntax() {
        for (text, expected) in [
            ("1", Literal::Int),
            ("0xfF", Literal::Int),
            ("1u", Literal::Uint),
            ("0x1U", Literal::Uint),
            ("1.5", Literal::Double),
            (".5e-3", Literal::Double),
            ("1e9", Literal::Double),
        ] {
            assert_eq!(kinds(text), [TokenKind::Literal(expected), TokenKind::End], "{text}");
        }
        assert!(tokens("99999999999999999999").is_err());
    }

    #[test]
    fn strings_end_at_their_quotes() {
        for (text, expected) in [
            (r#"'a"b'"#, "a\"b"),
            (r"'\u00fc\'\x41'", "\u{fc}'A"),
            (r"r'\d'", "\\d"),
            ("'''a\n'b'''", "a\n'b"),
            (r#""\"""#, "\""),
        ] {
            assert_eq!(kinds(text)[0], TokenKind::Literal(Literal::String(expected.to_owned())), "{text}");
        }
        for text in ["'a", "'a\n'", "'\\", r"'\q'", "`a", "``", "`a:b`", "#"] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }

    #[test]
    fn comments_and_blanks_separate_tokens() {
        assert_eq!(kinds("a // b\n in").len(), 3);
        assert_eq!(tokens("\u{fc}").unwrap_err().offset, 0);
    }
}
