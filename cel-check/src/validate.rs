//! Checks after type inference: elements of a list or map literal have the same type, and the arguments of `format`
//! match its clauses.
//!
//! Upstream also checks literal durations, timestamps and regular expressions at this point. That is not needed here:
//! the API server refuses policies in which one is invalid.

use crate::ast::{Ast, Element, Entry, Expr, ExprKind, Literal};
use crate::source::IssueCollector;
use crate::types::{Constructor, Simple, Type};

/// Checks an expression. `types` has the type of each of its nodes.
pub fn validate(ast: &Ast, types: &[Type], issues: &mut IssueCollector) {
    Validator { ast, types, issues }.visit(&ast.root, false);
}

struct Validator<'a> {
    ast: &'a Ast,
    types: &'a [Type],
    issues: &'a mut IssueCollector,
}

impl Validator<'_> {
    fn visit(&mut self, expr: &Expr, in_format: bool) {
        match &expr.kind {
            ExprKind::List(elements) if !in_format => self.list(elements),
            ExprKind::Map(entries) if !in_format => self.map(entries),
            _ => {}
        }
        let is_format = matches!(&expr.kind, ExprKind::Call { function, .. } if function == "format");
        if is_format {
            self.format(expr);
        }
        expr.children().iter().for_each(|child| self.visit(child, in_format || is_format));
    }

    fn report(&mut self, at: &Expr, message: String) {
        self.issues.add(self.ast.offsets[at.id], message);
    }

    fn type_of(&self, expr: &Expr, is_optional: bool) -> Type {
        let found = &self.types[expr.id];
        if is_optional { found.parts().first().unwrap_or(found).clone() } else { found.clone() }
    }

    /// Returns true if `found` is the type of the first element, which is stored in `first`; otherwise adds an issue.
    fn expect_same(&mut self, first: &mut Option<Type>, at: &Expr, found: Type) -> bool {
        let Some(expected) = first else {
            *first = Some(found);
            return true;
        };
        let is_same = expected.is_equivalent(&found);
        if !is_same {
            let message = format!("expected type '{expected}' but found '{found}'");
            self.report(at, message);
        }
        is_same
    }

    fn list(&mut self, elements: &[Element]) {
        let mut first = None;
        for Element { is_optional, value } in elements {
            let found = self.type_of(value, *is_optional);
            if !self.expect_same(&mut first, value, found) {
                return;
            }
        }
    }

    fn map(&mut self, entries: &[Entry]) {
        let (mut first_key, mut first_value) = (None, None);
        for Entry { is_optional, key, value } in entries {
            let found = self.type_of(key, false);
            self.expect_same(&mut first_key, key, found);
            let found = self.type_of(value, *is_optional);
            self.expect_same(&mut first_value, value, found);
        }
    }

    /// Checks `'...'.format([...])` if both are literals.
    fn format(&mut self, expr: &Expr) {
        let ExprKind::Call { target: Some(target), arguments, .. } = &expr.kind else { return };
        let ExprKind::Literal(Literal::String(text)) = &target.kind else { return };
        let [Expr { kind: ExprKind::List(values), .. }] = arguments.as_slice() else { return };
        let mut requested = 0;
        for clause in clauses(text) {
            let Some(value) = values.get(requested) else {
                return self.report(expr, format!("index {requested} out of range"));
            };
            requested += 1;
            let Some(clause) = clause else { return };
            if let Some(mismatch) = self.first_mismatch(clause, &value.value) {
                let name = self.types[mismatch.id].plain_name();
                let message = format!("error during formatting: {}, was given {name}", clause.rule());
                return self.report(mismatch, message);
            }
        }
        if values.len() > requested {
            let count = values.len();
            let message = format!("too many arguments supplied to string.format (expected {requested}, got {count})");
            self.report(expr, message);
        }
    }

    /// Returns the first expression, of `value` and its elements, whose type the clause does not accept.
    fn first_mismatch<'e>(&self, clause: Clause, value: &'e Expr) -> Option<&'e Expr> {
        if !clause.accepts(&self.types[value.id]) {
            return Some(value);
        }
        if clause != Clause::String {
            return None;
        }
        match &value.kind {
            ExprKind::List(elements) => elements.iter().find_map(|element| self.first_mismatch(clause, &element.value)),
            ExprKind::Map(entries) => entries
                .iter()
                .flat_map(|entry| [&entry.key, &entry.value])
                .find_map(|part| self.first_mismatch(clause, part)),
            _ => None,
        }
    }
}

/// The kind of a formatting clause, which the letter at its end determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clause {
    String,
    Decimal,
    Fixed,
    Scientific,
    Binary,
    Hex,
    Octal,
}

impl Clause {
    fn of(letter: u8) -> Option<Self> {
        Some(match letter {
            b's' => Self::String,
            b'd' => Self::Decimal,
            b'f' => Self::Fixed,
            b'e' => Self::Scientific,
            b'b' => Self::Binary,
            b'x' | b'X' => Self::Hex,
            b'o' => Self::Octal,
            _ => return None,
        })
    }

    fn rule(self) -> &'static str {
        match self {
            Self::String => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
                 and timestamps"
            }
            Self::Decimal => "decimal clause can only be used on integers",
            Self::Fixed => "fixed-point clause can only be used on doubles",
            Self::Scientific => "scientific clause can only be used on doubles",
            Self::Binary => "only integers and bools can be formatted as binary",
            Self::Hex => "only integers, byte buffers, and strings can be formatted as hex",
            Self::Octal => "octal clause can only be used on integers",
        }
    }

    fn accepts(self, given: &Type) -> bool {
        match given {
            Type::Simple(Simple::Dyn) => true,
            Type::Simple(simple) => match self {
                Self::String => *simple != Simple::Error,
                Self::Decimal | Self::Octal => matches!(simple, Simple::Int | Simple::Uint),
                // Strings may be `NaN` or `Infinity`, as in cel-go.
                Self::Fixed | Self::Scientific => matches!(simple, Simple::Double | Simple::String),
                Self::Binary => matches!(simple, Simple::Int | Simple::Uint | Simple::Bool),
                Self::Hex => matches!(simple, Simple::Int | Simple::Uint | Simple::String | Simple::Bytes),
            },
            Type::Composite(constructor, _) => self == Self::String && *constructor != Constructor::Optional,
            Type::Object(_) | Type::Param(_) => false,
        }
    }
}

/// Returns the clauses of a format; `None` for a malformed clause. The API server refuses policies with such a clause.
fn clauses(text: &str) -> Vec<Option<Clause>> {
    let mut found = Vec::new();
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'%' || bytes.next_if_eq(&b'%').is_some() {
            continue;
        }
        if bytes.next_if_eq(&b'.').is_some() {
            while bytes.next_if(u8::is_ascii_digit).is_some() {}
        }
        found.push(bytes.next().and_then(Clause::of));
    }
    found
}
