//! Creation of syntax tree nodes, with limits on their number and depth.

use super::SyntaxError;
use crate::ast::{Comprehension, Element, Entry, Expr, ExprKind, Id, Literal};

/// Maximum number of nodes of an expression. `optMap` copies its target, so a chain of calls grows exponentially.
const MAX_NODES: usize = 200_000;

/// Maximum depth of an expression after macro expansion, so that recursion over nodes cannot exhaust the stack.
/// Upstream has no such limit, so it accepts more deeply nested macros.
const MAX_DEPTH: u16 = 1000;

/// The name of the accumulator variable in expanded macros. It is not a valid identifier, so no expression can use it.
pub const ACCUMULATOR: &str = "@result";

/// Creates nodes with consecutive numbers and records their positions.
#[derive(Debug, Default)]
pub struct Builder {
    /// For each node, the offset in code points at which its issues are reported.
    pub offsets: Vec<u32>,
}

impl Builder {
    /// Creates a node.
    ///
    /// # Errors
    /// When the expression has too many nodes or is nested too deeply.
    pub fn node(&mut self, offset: u32, kind: ExprKind) -> Result<Expr, SyntaxError> {
        let mut expr = Expr { id: self.id(offset)?, depth: 1, kind };
        expr.depth += expr.children().iter().map(|child| child.depth).max().unwrap_or(0);
        if expr.depth > MAX_DEPTH {
            let message = "the expression is nested too deeply after the expansion of macros".to_owned();
            return Err(SyntaxError { offset, message });
        }
        Ok(expr)
    }

    fn id(&mut self, offset: u32) -> Result<Id, SyntaxError> {
        if self.offsets.len() >= MAX_NODES {
            return Err(SyntaxError { offset, message: "the expression is too large".to_owned() });
        }
        self.offsets.push(offset);
        Ok(self.offsets.len() - 1)
    }

    /// Creates a call of a function or an operator.
    pub fn call(&mut self, offset: u32, function: &str, arguments: Vec<Expr>) -> Result<Expr, SyntaxError> {
        self.node(offset, ExprKind::Call { function: function.to_owned(), target: None, arguments })
    }

    /// Creates a call of a member function.
    pub fn member_call(
        &mut self,
        offset: u32,
        target: Expr,
        function: &str,
        arguments: Vec<Expr>,
    ) -> Result<Expr, SyntaxError> {
        let target = Some(Box::new(target));
        self.node(offset, ExprKind::Call { function: function.to_owned(), target, arguments })
    }

    /// Creates an identifier.
    pub fn ident(&mut self, offset: u32, name: &str) -> Result<Expr, SyntaxError> {
        self.node(offset, ExprKind::Ident(name.to_owned()))
    }

    /// Creates a reference to the accumulator of a macro.
    pub fn accumulator(&mut self, offset: u32) -> Result<Expr, SyntaxError> {
        self.ident(offset, ACCUMULATOR)
    }

    /// Creates a literal.
    pub fn literal(&mut self, offset: u32, value: Literal) -> Result<Expr, SyntaxError> {
        self.node(offset, ExprKind::Literal(value))
    }

    /// Creates a list without optional elements.
    pub fn list(&mut self, offset: u32, values: Vec<Expr>) -> Result<Expr, SyntaxError> {
        let elements = values.into_iter().map(|value| Element { is_optional: false, value }).collect();
        self.node(offset, ExprKind::List(elements))
    }

    /// Copies a node and all nodes below it; the copies get new numbers.
    pub fn copy(&mut self, expr: &Expr) -> Result<Expr, SyntaxError> {
        let kind = match &expr.kind {
            ExprKind::Literal(value) => ExprKind::Literal(value.clone()),
            ExprKind::Ident(name) => ExprKind::Ident(name.clone()),
            ExprKind::Select { operand, field, is_test } => {
                ExprKind::Select { operand: Box::new(self.copy(operand)?), field: field.clone(), is_test: *is_test }
            }
            ExprKind::Call { function, target, arguments } => ExprKind::Call {
                function: function.clone(),
                target: target.as_deref().map(|target| self.copy(target).map(Box::new)).transpose()?,
                arguments: self.copy_all(arguments)?,
            },
            ExprKind::List(elements) => ExprKind::List(self.copy_elements(elements)?),
            ExprKind::Map(entries) => ExprKind::Map(self.copy_entries(entries)?),
            ExprKind::Message(values) => ExprKind::Message(self.copy_all(values)?),
            ExprKind::Comprehension(fold) => ExprKind::Comprehension(Box::new(self.copy_fold(fold)?)),
        };
        self.node(self.offsets[expr.id], kind)
    }

    fn copy_all(&mut self, exprs: &[Expr]) -> Result<Vec<Expr>, SyntaxError> {
        exprs.iter().map(|expr| self.copy(expr)).collect()
    }

    fn copy_elements(&mut self, elements: &[Element]) -> Result<Vec<Element>, SyntaxError> {
        let copy =
            |element: &Element| Ok(Element { is_optional: element.is_optional, value: self.copy(&element.value)? });
        elements.iter().map(copy).collect()
    }

    fn copy_entries(&mut self, entries: &[Entry]) -> Result<Vec<Entry>, SyntaxError> {
        let copy = |entry: &Entry| {
            Ok(Entry { is_optional: entry.is_optional, key: self.copy(&entry.key)?, value: self.copy(&entry.value)? })
        };
        entries.iter().map(copy).collect()
    }

    fn copy_fold(&mut self, fold: &Comprehension) -> Result<Comprehension, SyntaxError> {
        Ok(Comprehension {
            range: self.copy(&fold.range)?,
            variable: fold.variable.clone(),
            second: fold.second.clone(),
            accumulator: fold.accumulator.clone(),
            initial: self.copy(&fold.initial)?,
            condition: self.copy(&fold.condition)?,
            step: self.copy(&fold.step)?,
            result: self.copy(&fold.result)?,
        })
    }
}
