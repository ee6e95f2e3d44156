//! Parsing of expressions.
//!
//! The parser was written for this crate because no published parser has all of these: the positions that upstream
//! reports, macros with two variables, optional syntax, and limits on size and depth.

mod builder;
mod lexer;
mod macros;
mod parser;
mod string_literal;

use crate::ast::Ast;
use crate::stack::with_deep_stack;

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
///
/// # Errors
/// When the expression is not well-formed, or exceeds a limit.
pub fn parse(text: &str) -> Result<Ast, SyntaxError> {
    let no_thread = || Err(SyntaxError { offset: 0, message: "no thread could be started".to_owned() });
    with_deep_stack(text, || parse_on_this_stack(text)).unwrap_or_else(no_thread)
}

/// Like [`parse`], on the caller's stack, which has to be deep enough.
pub(crate) fn parse_on_this_stack(text: &str) -> Result<Ast, SyntaxError> {
    parser::parse(text)
}
