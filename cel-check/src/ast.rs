//! The abstract syntax tree of an expression.

/// The number of a node, an index into [`Ast::offsets`].
pub type Id = usize;

/// A parsed expression with the positions of its nodes.
#[derive(Debug)]
pub struct Ast {
    /// The whole expression.
    pub root: Expr,
    /// For each node, the offset in code points at which its issues are reported.
    pub offsets: Vec<u32>,
}

/// A node of an expression.
#[derive(Debug)]
pub struct Expr {
    /// Its number in the tree.
    pub id: Id,
    /// The height of the subtree: the number of nodes on the longest path to a leaf, including this one.
    pub depth: u16,
    /// Its kind.
    pub kind: ExprKind,
}

/// The kind of an expression. Macros are expanded, so they have no kind.
#[derive(Debug)]
pub enum ExprKind {
    /// A literal value.
    Literal(Literal),
    /// An identifier, with a leading dot if the source has one.
    Ident(String),
    /// `operand.field`, or `has(operand.field)`.
    Select {
        /// The object.
        operand: Box<Expr>,
        /// The name of the field.
        field: String,
        /// True for `has()`: only the presence of the field is tested.
        is_test: bool,
    },
    /// `function(arguments)`, `target.function(arguments)` or an operator.
    Call {
        /// The name of the function; of an operator in CEL's notation, such as `_+_`.
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
    /// `name{field: value}`; only the values are kept.
    Message(Vec<Expr>),
    /// A loop, which only macros create.
    Comprehension(Box<Comprehension>),
}

/// An element of a list.
#[derive(Debug)]
pub struct Element {
    /// The value has an optional type, and the element is omitted if the value is empty.
    pub is_optional: bool,
    /// The value.
    pub value: Expr,
}

/// An entry of a map.
#[derive(Debug)]
pub struct Entry {
    /// The value has an optional type, and the entry is omitted if the value is empty.
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
    /// The first loop variable: the element of a list or the key of a map; with two variables, the index of a list.
    pub variable: String,
    /// The second loop variable: the element of a list or the value of a map.
    pub second: Option<String>,
    /// The name of the accumulator variable.
    pub accumulator: String,
    /// The initial value of the accumulator.
    pub initial: Expr,
    /// The loop continues while this is true.
    pub condition: Expr,
    /// The next value of the accumulator.
    pub step: Expr,
    /// The value of the whole loop.
    pub result: Expr,
}

/// A literal. Only strings keep their value; of the others, type checking needs only the type.
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
    /// Returns the direct children of this node.
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
