//! The words of CEL that cannot be identifiers.

/// Names of values and operators.
const LITERALS: [&str; 4] = ["true", "false", "null", "in"];

/// Reserved words, which cannot be names of variables.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Reports whether a name is reserved: it can be no variable.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Reports whether a name is a keyword: it can be no identifier.
pub fn is_keyword(name: &str) -> bool {
    LITERALS.contains(&name) || is_reserved(name)
}
