//! Parsing of expressions.
//!
//! The parser was written for this crate because no published one has all that is needed: the positions that upstream
//! reports, macros with two variables, optional syntax, and limits on size and depth.

mod builder;
mod lexer;
mod macros;
mod parser;
mod text;

use crate::ast::Ast;

/// An expression that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("syntax error at {offset}: {message}")]
pub struct SyntaxError {
    /// The offset of the error in code points.
    pub offset: u32,
    /// The description of the error.
    pub message: String,
}

/// Parses an expression and expands its macros.
pub fn parse(text: &str) -> Result<Ast, SyntaxError> {
    parser::parse(text)
}
