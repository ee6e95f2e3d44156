//! Label selectors in the syntax of queries: `app=web,tier in (a,b),!old` (apimachinery/pkg/labels, Parse).

use crate::intern::{Interner, Str};
use crate::value::selector::{Requirement, Selector};

/// A word, or an operator or other symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'a str),
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            found.push(Token::Symbol(&rest[..symbol.len()]));
            rest = rest[symbol.len()..].trim_start();
        } else {
            let ends_word = |c: char| c.is_whitespace() || "=!(),><".contains(c);
            let (word, after) = rest.split_at(rest.find(ends_word).unwrap_or(rest.len()));
            found.push(Token::Word(word));
            rest = after.trim_start();
        }
    }
    found
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    interner: &'a Interner,
}

impl<'a> Parser<'a> {
    fn take(&mut self) -> Option<Token<'a>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(*first)
    }

    fn word(&mut self, what: &str) -> Result<Str, String> {
        match self.take() {
            Some(Token::Word(word)) => Ok(self.interner.str(word)),
            Some(Token::Symbol(symbol)) => Err(format!("found '{symbol}', expected: {what}")),
            None => Err(format!("found '', expected: {what}")),
        }
    }

    fn at_end(&self) -> bool {
        matches!(self.tokens.first(), None | Some(Token::Symbol(",")))
    }

    /// Returns a value, which may be empty.
    fn value(&mut self) -> Result<Str, String> {
        if self.at_end() { Ok(self.interner.str("")) } else { self.word("identifier") }
    }

    fn values(&mut self) -> Result<Vec<Str>, String> {
        if self.take() != Some(Token::Symbol("(")) {
            return Err("found no '(' after 'in' or 'notin'".to_owned());
        }
        let mut values = Vec::new();
        loop {
            let empty = matches!(self.tokens.first(), Some(Token::Symbol("," | ")")));
            values.push(if empty { self.interner.str("") } else { self.word("identifier")? });
            match self.take() {
                Some(Token::Symbol(",")) => {}
                Some(Token::Symbol(")")) => {
                    // Upstream stores the values as a set.
                    values.sort();
                    values.dedup();
                    return Ok(values);
                }
                _ => return Err("found no ',' or ')' after a value".to_owned()),
            }
        }
    }

    /// Returns the number after `<` or `>`.
    fn bound(&mut self) -> Result<i64, String> {
        let word = self.word("a whole number")?;
        word.parse().map_err(|_| format!("for 'Gt', 'Lt' operators, the value must be an integer, not {word:?}"))
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if self.tokens.first() == Some(&Token::Symbol("!")) {
            self.take();
            return Ok(Requirement::DoesNotExist(self.word("identifier")?));
        }
        let key = self.word("!, identifier")?;
        if self.at_end() {
            return Ok(Requirement::Exists(key));
        }
        match self.take() {
            Some(Token::Symbol("=")) => Ok(Requirement::Equals(key, self.value()?)),
            Some(Token::Symbol("==")) => Ok(Requirement::DoubleEquals(key, self.value()?)),
            Some(Token::Symbol("!=")) => Ok(Requirement::NotEquals(key, self.value()?)),
            Some(Token::Symbol(">")) => Ok(Requirement::Greater(key, self.bound()?)),
            Some(Token::Symbol("<")) => Ok(Requirement::Less(key, self.bound()?)),
            Some(Token::Word("in")) => Ok(Requirement::In(key, self.values()?)),
            Some(Token::Word("notin")) => Ok(Requirement::NotIn(key, self.values()?)),
            Some(Token::Word(found) | Token::Symbol(found)) => {
                Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt"))
            }
            None => Ok(Requirement::Exists(key)),
        }
    }
}

impl Selector {
    /// Parses a selector in the syntax of queries; empty text matches everything.
    ///
    /// # Errors
    /// Returns the problem, mostly with upstream's text. Unlike in upstream, the syntax of keys and values is not
    /// checked.
    pub fn parse(interner: &Interner, text: &str) -> Result<Self, String> {
        let tokens = tokens(text);
        let mut parser = Parser { tokens: &tokens, interner };
        let mut requirements = Vec::new();
        while !parser.tokens.is_empty() {
            requirements.push(parser.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?);
            match parser.take() {
                None => break,
                Some(Token::Symbol(",")) if !parser.tokens.is_empty() => {}
                Some(Token::Symbol(",")) => return Err("found '', expected: identifier after ','".to_owned()),
                Some(Token::Word(found) | Token::Symbol(found)) => {
                    return Err(format!("found '{found}', expected: ',' or 'end of string'"));
                }
            }
        }
        Ok(Self::sorted(requirements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_keeps_its_operators_when_parsed_and_formatted() {
        let interner = Interner::default();
        for (text, query) in [
            ("app=web", "app=web"),
            ("tier!=front,app == web ", "app==web,tier!=front"),
            ("app in (b, a),!old,new", "app in (a,b),new,!old"),
            ("app in (b)", "app in (b)"),
            ("app notin (a,),x=", "app notin (,a),x="),
            ("size>3,size<9", "size>3,size<9"),
            ("", ""),
        ] {
            let selector = Selector::parse(&interner, text).expect(text);
            assert_eq!(selector.query().as_deref(), Some(query), "{text}");
            assert_eq!(Selector::parse(&interner, query).expect(query), selector, "{text}");
        }
        for text in ["app in", "app in (a", "=web", "a b", "a,", "!", "size>x", "a=b c", "a=(b)"] {
            assert!(Selector::parse(&interner, text).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_compare_numbers() {
        let interner = Interner::default();
        let selector = Selector::parse(&interner, "size>3,size<9").expect("well-formed");
        for (size, matches) in [("4", true), ("3", false), ("9", false), ("x", false)] {
            assert_eq!(selector.matches(&[("size".into(), size.into())]), matches, "{size}");
        }
        assert!(!selector.matches(&[]));
    }
}
