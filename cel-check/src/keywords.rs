//! The words of CEL that cannot be identifiers.

/// Keywords for values and operators.
const KEYWORDS: [&str; 4] = ["true", "false", "null", "in"];

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

/// Returns true if a name is reserved: no variable can have it.
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// Returns true if a name is a keyword or reserved: it cannot be an identifier.
pub fn is_keyword(name: &str) -> bool {
    KEYWORDS.contains(&name) || is_reserved(name)
}
