//! Parsed expressions.

/// The number of a node, an index into [`Ast::offsets`].
pub type Id = usize;

/// A parsed expression with the positions of its nodes.
#[derive(Debug)]
pub struct Ast {
    /// The whole expression.
    pub root: Expr,
    /// For each node the code point at which it is reported.
    pub offsets: Vec<u32>,
}

/// A node of an expression.
#[derive(Debug)]
pub struct Expr {
    /// Its number.
    pub id: Id,
    /// The number of nodes on the longest way down, with this one.
    pub depth: u16,
    /// Its form.
    pub kind: ExprKind,
}

/// The form of an expression. Macros are expanded.
#[derive(Debug)]
pub enum ExprKind {
    /// A literal value.
    Literal(Literal),
    /// A name, with a leading dot if the source has one.
    Ident(String),
    /// `operand.field`, or `has(operand.field)`.
    Select {
        /// The object.
        operand: Box<Expr>,
        /// The name of the field.
        field: String,
        /// Only the presence of the field is tested.
        is_test: bool,
    },
    /// `function(arguments)`, `target.function(arguments)` or an operator.
    Call {
        /// The name; `_+_` for an operator.
        function: String,
        /// The receiver of a member call.
        target: Option<Box<Expr>>,
        /// The arguments.
        arguments: Vec<Expr>,
    },
    /// `[a, ?b]`.
    List(Vec<Element>),
    /// `{a: b, ?c: d}`.
    Map(Vec<Entry>),
    /// `name{field: value}`.
    Message(Vec<Expr>),
    /// A loop, made by a macro.
    Comprehension(Box<Comprehension>),
}

/// An element of a list.
#[derive(Debug)]
pub struct Element {
    /// The value is an optional that is left out if it is empty.
    pub is_optional: bool,
    /// The value.
    pub value: Expr,
}

/// An entry of a map.
#[derive(Debug)]
pub struct Entry {
    /// The value is an optional; the entry is left out if it is empty.
    pub is_optional: bool,
    /// The key.
    pub key: Expr,
    /// The value.
    pub value: Expr,
}

/// A loop over a list or a map that folds its elements.
#[derive(Debug)]
pub struct Comprehension {
    /// The list or map.
    pub range: Expr,
    /// The variable of the element, of the index, or of the key.
    pub variable: String,
    /// The variable of the element or the value, if there are two.
    pub second: Option<String>,
    /// The variable of the result.
    pub accumulator: String,
    /// The first value of the accumulator.
    pub initial: Expr,
    /// The loop goes on while this is true.
    pub condition: Expr,
    /// The next value of the accumulator.
    pub step: Expr,
    /// The value of the loop.
    pub result: Expr,
}

/// A literal value. Numbers and bytes are only told apart by their type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// `true` or `false`.
    Bool,
    /// `b'text'`.
    Bytes,
    /// `1.0`.
    Double,
    /// `1`.
    Int,
    /// `null`.
    Null,
    /// `'text'`.
    String(String),
    /// `1u`.
    Uint,
}

impl Expr {
    /// The nodes directly below this one.
    pub fn children(&self) -> Vec<&Self> {
        match &self.kind {
            ExprKind::Literal(_) | ExprKind::Ident(_) => Vec::new(),
            ExprKind::Select { operand, .. } => vec![operand],
            ExprKind::Call { target, arguments, .. } => target.as_deref().into_iter().chain(arguments).collect(),
            ExprKind::List(elements) => elements.iter().map(|element| &element.value).collect(),
            ExprKind::Map(entries) => entries.iter().flat_map(|entry| [&entry.key, &entry.value]).collect(),
            ExprKind::Message(values) => values.iter().collect(),
            ExprKind::Comprehension(fold) => {
                vec![&fold.range, &fold.initial, &fold.condition, &fold.step, &fold.result]
            }
        }
    }
}
