//! The parser: from tokens to a syntax tree.

use super::SyntaxError;
use super::builder::Builder;
use super::lexer::{Token, TokenKind, tokens};
use super::macros::{Call, expand};
use crate::ast::{Ast, Element, Entry, Expr, ExprKind, Literal};
use crate::keywords::is_reserved;

/// Maximum length of an expression in code points; upstream's limit.
const MAX_CODE_POINTS: usize = 100_000;
/// Maximum depth of nested expressions, so that recursion cannot exhaust the stack; upstream's limit.
const MAX_NESTING: usize = 250;

/// Parses an expression.
pub fn parse(text: &str) -> Result<Ast, SyntaxError> {
    if text.len() > MAX_CODE_POINTS && text.chars().count() > MAX_CODE_POINTS {
        return Err(SyntaxError { offset: 0, message: "the expression is too long".to_owned() });
    }
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0, builder: Builder::default() };
    let root = parser.expr()?;
    match parser.peek() {
        TokenKind::End => Ok(Ast { root, offsets: parser.builder.offsets }),
        _ => Err(parser.error("unexpected token")),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    builder: Builder,
}

type Parsed<T = Expr> = Result<T, SyntaxError>;

/// The binary operators of one precedence level, with the names of their functions.
type Operators = [(&'static str, &'static str)];

const RELATIONS: &Operators =
    &[("<", "_<_"), ("<=", "_<=_"), (">=", "_>=_"), (">", "_>_"), ("==", "_==_"), ("!=", "_!=_"), ("in", "@in")];
const SUMS: &Operators = &[("+", "_+_"), ("-", "_-_")];
const PRODUCTS: &Operators = &[("*", "_*_"), ("/", "_/_"), ("%", "_%_")];

impl Parser {
    fn peek(&self) -> &TokenKind {
        &self.tokens[self.at].kind
    }

    fn offset(&self) -> u32 {
        self.tokens[self.at].offset
    }

    fn error(&self, message: &str) -> SyntaxError {
        SyntaxError { offset: self.offset(), message: message.to_owned() }
    }

    fn is_symbol(&self, ahead: usize, symbol: &str) -> bool {
        let token = self.tokens.get(self.at + ahead);
        token.is_some_and(|token| matches!(&token.kind, TokenKind::Symbol(found) if *found == symbol))
    }

    /// Consumes the next token if it is this symbol, and returns its offset.
    fn take(&mut self, symbol: &str) -> Option<u32> {
        self.is_symbol(0, symbol).then(|| {
            self.at += 1;
            self.tokens[self.at - 1].offset
        })
    }

    fn expect(&mut self, symbol: &str) -> Parsed<u32> {
        self.take(symbol).ok_or_else(|| self.error(&format!("expected {symbol:?}")))
    }

    fn name(&mut self) -> Parsed<(String, u32)> {
        let offset = self.offset();
        let TokenKind::Ident(name) = self.peek() else { return Err(self.error("expected a name")) };
        let name = name.clone();
        self.at += 1;
        Ok((name, offset))
    }

    /// Parses the name of a field, which may be in backticks. Upstream: cel-go, escapeIdent.
    fn field_name(&mut self) -> Parsed<(String, u32)> {
        let TokenKind::Quoted(name) = self.peek() else { return self.name() };
        let name = name.clone();
        let offset = self.offset();
        self.at += 1;
        if self.is_symbol(0, "(") {
            return Err(self.error("backticks are allowed around field names, not around function names"));
        }
        Ok((name, offset))
    }

    /// Parses an expression one level deeper than the current one.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_NESTING {
            return Err(self.error("the expression is nested too deeply"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn expr(&mut self) -> Parsed {
        self.deeper(|parser| {
            let condition = parser.or()?;
            let Some(offset) = parser.take("?") else { return Ok(condition) };
            let then = parser.or()?;
            parser.expect(":")?;
            let otherwise = parser.expr()?;
            parser.builder.call(offset, "_?_:_", vec![condition, then, otherwise])
        })
    }

    fn or(&mut self) -> Parsed {
        self.balanced("||", "_||_", Self::and)
    }

    fn and(&mut self) -> Parsed {
        self.balanced("&&", "_&&_", |parser| parser.binary(0))
    }

    /// Parses a chain of one logical operator into a balanced tree, so that long chains do not become deep.
    fn balanced(&mut self, symbol: &str, function: &str, term: impl Fn(&mut Self) -> Parsed) -> Parsed {
        let mut terms = vec![Some(term(self)?)];
        let mut offsets = Vec::new();
        while let Some(offset) = self.take(symbol) {
            offsets.push(offset);
            terms.push(Some(term(self)?));
        }
        self.tree(function, &mut terms, &offsets)
    }

    /// Builds a balanced tree of `terms` that are joined by operators at `offsets`.
    fn tree(&mut self, function: &str, terms: &mut [Option<Expr>], offsets: &[u32]) -> Parsed {
        if offsets.is_empty() {
            return terms[0].take().ok_or_else(|| self.error("expected an operand"));
        }
        let middle = offsets.len() / 2;
        let (left, right) = terms.split_at_mut(middle + 1);
        let left = self.tree(function, left, &offsets[..middle])?;
        let right = self.tree(function, right, &offsets[middle + 1..])?;
        self.builder.call(offsets[middle], function, vec![left, right])
    }

    /// Parses relations, sums and products. `level` is the precedence, the lowest first.
    fn binary(&mut self, level: usize) -> Parsed {
        const LEVELS: [&Operators; 3] = [RELATIONS, SUMS, PRODUCTS];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some((symbol, function)) = operators.iter().find(|(symbol, _)| self.is_symbol(0, symbol)) {
            let offset = self.expect(symbol)?;
            let right = self.binary(level + 1)?;
            left = self.builder.call(offset, function, vec![left, right])?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed {
        let (symbol, function) = match self.peek() {
            TokenKind::Symbol("!") => ("!", "!_"),
            TokenKind::Symbol("-") if !self.is_signed_literal() => ("-", "-_"),
            _ => return self.member(),
        };
        let offset = self.offset();
        let mut count = 0;
        while self.take(symbol).is_some() {
            count += 1;
        }
        let operand = self.member()?;
        if count % 2 == 0 { Ok(operand) } else { self.builder.call(offset, function, vec![operand]) }
    }

    fn is_signed_literal(&self) -> bool {
        let number = self.tokens.get(self.at + 1).map(|token| &token.kind);
        self.is_symbol(0, "-") && matches!(number, Some(TokenKind::Literal(Literal::Int | Literal::Double)))
    }

    fn member(&mut self) -> Parsed {
        let mut operand = self.primary()?;
        loop {
            operand = if let Some(offset) = self.take("[") {
                let function = if self.take("?").is_some() { "_[?_]" } else { "_[_]" };
                let index = self.expr()?;
                self.expect("]")?;
                self.builder.call(offset, function, vec![operand, index])?
            } else if let Some(offset) = self.take(".") {
                self.selection(operand, offset)?
            } else {
                return Ok(operand);
            };
        }
    }

    /// Parses the field or the member call after `operand.`.
    fn selection(&mut self, operand: Expr, dot: u32) -> Parsed {
        let is_optional = self.take("?").is_some();
        let (name, at) = self.field_name()?;
        if is_optional {
            let field = self.builder.literal(at, Literal::String(name))?;
            return self.builder.call(dot, "_?._", vec![operand, field]);
        }
        let Some(offset) = self.take("(") else {
            let operand = Box::new(operand);
            return self.builder.node(dot, ExprKind::Select { operand, field: name, is_test: false });
        };
        let arguments = self.arguments()?;
        expand(&mut self.builder, Call { function: name, target: Some(operand), arguments, offset })
    }

    /// Parses the arguments of a call, including the closing parenthesis.
    fn arguments(&mut self) -> Parsed<Vec<Expr>> {
        let mut arguments = Vec::new();
        if self.take(")").is_some() {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expr()?);
            if self.take(",").is_none() {
                self.expect(")")?;
                return Ok(arguments);
            }
        }
    }

    fn primary(&mut self) -> Parsed {
        let offset = self.offset();
        match self.peek().clone() {
            TokenKind::Literal(value) => {
                self.at += 1;
                self.builder.literal(offset, value)
            }
            TokenKind::Symbol("-") if self.is_signed_literal() => {
                self.at += 1;
                let TokenKind::Literal(value) = self.peek().clone() else {
                    return Err(self.error("expected a number"));
                };
                self.at += 1;
                self.builder.literal(offset, value)
            }
            TokenKind::Symbol("(") => {
                self.at += 1;
                let inner = self.expr()?;
                self.expect(")")?;
                Ok(inner)
            }
            TokenKind::Symbol("[") => self.list(),
            TokenKind::Symbol("{") => self.map(),
            TokenKind::Symbol(".") | TokenKind::Ident(_) => self.identifier(),
            _ => Err(self.error("expected an expression")),
        }
    }

    /// Parses a variable, a call of a function, or a message.
    fn identifier(&mut self) -> Parsed {
        if let Some(brace) = self.message_brace() {
            self.at = brace;
            return self.message();
        }
        let dot = if self.take(".").is_some() { "." } else { "" };
        let (name, at) = self.name()?;
        if is_reserved(&name) {
            return Err(SyntaxError { offset: at, message: format!("reserved identifier: {name}") });
        }
        let function = format!("{dot}{name}");
        let Some(offset) = self.take("(") else { return self.builder.ident(at, &function) };
        let arguments = self.arguments()?;
        expand(&mut self.builder, Call { function, target: None, arguments, offset })
    }

    /// Returns the index of the opening brace if a qualified name with a brace after it is next.
    fn message_brace(&self) -> Option<usize> {
        let mut at = self.at + usize::from(self.is_symbol(0, "."));
        loop {
            if !matches!(self.tokens.get(at)?.kind, TokenKind::Ident(_)) {
                return None;
            }
            match self.tokens.get(at + 1)?.kind {
                TokenKind::Symbol("{") => return Some(at + 1),
                TokenKind::Symbol(".") => at += 2,
                _ => return None,
            }
        }
    }

    fn message(&mut self) -> Parsed {
        let offset = self.open("{", "}")?;
        let mut values = Vec::new();
        while self.take("}").is_none() {
            self.take("?");
            self.field_name()?;
            self.expect(":")?;
            values.push(self.expr()?);
            self.separator("}")?;
        }
        self.builder.node(offset, ExprKind::Message(values))
    }

    fn list(&mut self) -> Parsed {
        let offset = self.open("[", "]")?;
        let mut elements = Vec::new();
        while self.take("]").is_none() {
            let is_optional = self.take("?").is_some();
            elements.push(Element { is_optional, value: self.expr()? });
            self.separator("]")?;
        }
        self.builder.node(offset, ExprKind::List(elements))
    }

    fn map(&mut self) -> Parsed {
        let offset = self.open("{", "}")?;
        let mut entries = Vec::new();
        while self.take("}").is_none() {
            let is_optional = self.take("?").is_some();
            let key = self.expr()?;
            self.expect(":")?;
            entries.push(Entry { is_optional, key, value: self.expr()? });
            self.separator("}")?;
        }
        self.builder.node(offset, ExprKind::Map(entries))
    }

    /// Parses an opening bracket, and a comma if the closing bracket follows it: `[,]` is an empty list.
    fn open(&mut self, open: &str, close: &str) -> Parsed<u32> {
        let offset = self.expect(open)?;
        if self.is_symbol(1, close) {
            self.take(",");
        }
        Ok(offset)
    }

    /// Parses a comma, which may be absent before the closing bracket.
    fn separator(&mut self, close: &str) -> Parsed<()> {
        if self.is_symbol(0, close) { Ok(()) } else { self.expect(",").map(drop) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax;

    /// Formats an expression with all operators as calls, each with its offset.
    fn show(text: &str) -> String {
        fn write(ast: &Ast, expr: &Expr) -> String {
            match &expr.kind {
                ExprKind::Literal(value) => format!("{value:?}"),
                ExprKind::Ident(name) => name.clone(),
                ExprKind::Select { operand, field, .. } => format!("{}.{field}", write(ast, operand)),
                ExprKind::Call { function, target, arguments } => {
                    let all: Vec<String> =
                        target.as_deref().into_iter().chain(arguments).map(|part| write(ast, part)).collect();
                    format!("{function}@{}({})", ast.offsets[expr.id], all.join(","))
                }
                other => format!("{other:?}"),
            }
        }
        let ast = parse(text).expect("an expression");
        write(&ast, &ast.root)
    }

    #[test]
    fn operators_bind_by_their_precedence() {
        for (text, expected) in [
            ("a + b * c == d", "_==_@10(_+_@2(a,_*_@6(b,c)),d)"),
            ("a - b - c", "_-_@6(_-_@2(a,b),c)"),
            ("a || b || c && d", "_||_@7(_||_@2(a,b),_&&_@12(c,d))"),
            ("a ? b : c ? d : e", "_?_:_@2(a,b,_?_:_@10(c,d,e))"),
            ("!!a", "a"),
            ("!a.b", "!_@0(a.b)"),
            ("-1 - -1", "_-_@3(Int,Int)"),
            ("-a", "-_@0(a)"),
            ("a.b(c)[d].?e", "_?._@9(_[_]@6(b@3(a,c),d),String(\"e\"))"),
            ("a in b", "@in@2(a,b)"),
            (".a(b)", ".a@2(b)"),
            ("a.`b.c/d-e`.f", "a.b.c/d-e.f"),
            ("a.?`b c`", "_?._@1(a,String(\"b c\"))"),
            ("[,] + {,}", "_+_@4(List([]),Map([]))"),
        ] {
            assert_eq!(show(text), expected, "{text}");
        }
    }

    #[test]
    fn chain_of_and_becomes_a_balanced_tree() {
        let chain = vec!["a"; 5_000].join(" && ");
        assert!(syntax::parse(&chain).is_ok());
    }

    #[test]
    fn nesting_limit_is_that_of_upstream() {
        for (open, close) in [
            ("(", ")"),
            ("(1 + ", ")"),
            ("!(", ")"),
            ("[", "]"),
            ("{1: ", "}"),
            ("string(", ")"),
            ("a.b(", ")"),
            ("a[", "]"),
            ("true ? 1 : ", ""),
            ("[1].all(x, ", ")"),
        ] {
            let nested = |depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
            assert!(syntax::parse(&nested(MAX_NESTING - 1)).is_ok(), "{open}");
            assert!(syntax::parse(&nested(MAX_NESTING)).is_err(), "{open}");
        }
    }

    #[test]
    fn too_deep_too_long_and_exponential_expressions_are_refused() {
        let nested = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        let sum = vec!["1"; 2_000].join("+");
        let members = format!("a{}", ".b".repeat(2_000));
        let optional = format!("a{}", ".optMap(b, c)".repeat(60));
        let long = format!("'{}'", "a".repeat(200_000));
        for text in [nested, sum, members, optional, long] {
            assert!(syntax::parse(&text).is_err());
        }
    }

    #[test]
    fn invalid_expression_is_refused() {
        for text in ["", "a b", "a.", "a.in", "namespace", "[1", "{1}", "a(", "has(a)", "a.all(1, b)", "a ? b", "1 +"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["`a`.b", "a.`b`()", "a.``", "a.`b", "a.`b:c`", "`f`(a)", "[,,]", "{,", "[,1]"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
