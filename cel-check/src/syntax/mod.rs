//! From the text of an expression to its nodes.
//!
//! Written for this crate: no published parser keeps the positions that upstream reports, knows macros with two variables
//! and the optional syntax, and limits size and depth.

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
    /// The code point at which it is.
    pub offset: u32,
    /// The description.
    pub message: String,
}

/// Parses an expression and expands its macros.
pub fn parse(text: &str) -> Result<Ast, SyntaxError> {
    parser::parse(text)
}
