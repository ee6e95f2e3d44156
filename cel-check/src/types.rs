//! The types of expressions.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display, Formatter};
use std::sync::Arc;

/// The largest number of nodes of a type. A larger one becomes dyn: a chain of literals doubles the size of a type with
/// each link.
const MAX_NODES: u32 = 4_096;
/// The largest depth of a type, so that no recursion over types exhausts the stack.
const MAX_DEPTH: u16 = 256;

/// A type without parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simple {
    /// Any value; everything is allowed.
    Dyn,
    /// The type of an expression with an issue. Allows everything, so that one mistake gives one issue.
    Error,
    /// A truth value.
    Bool,
    /// A sequence of bytes.
    Bytes,
    /// A 64-bit float.
    Double,
    /// A span of time.
    Duration,
    /// A signed 64-bit integer.
    Int,
    /// The null value.
    Null,
    /// A text.
    String,
    /// A point in time.
    Timestamp,
    /// A type whose instances are not known.
    Type,
    /// An unsigned 64-bit integer.
    Uint,
}

/// The constructor of a type with parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constructor {
    /// `list(element)`.
    List,
    /// `map(key, value)`.
    Map,
    /// `optional_type(value)`.
    Optional,
    /// `type(instance)`.
    Type,
}

/// A type of an expression. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Type {
    /// A type without parts.
    Simple(Simple),
    /// A type with parts.
    Composite(Constructor, Arc<Parts>),
    /// An object with fields.
    Object(Arc<ObjectType>),
    /// A parameter of a function, or a variable of the inference.
    Param(u32),
}

/// The parts of a composite type.
#[derive(Debug)]
pub struct Parts {
    types: Vec<Type>,
    nodes: u32,
    depth: u16,
}

/// An object type. Two are the same type if they have the same name and the same origin.
#[derive(Debug)]
pub struct ObjectType {
    /// The name in issues.
    pub name: String,
    /// The fields.
    pub fields: Fields,
}

/// The fields of an object type.
#[derive(Debug)]
pub enum Fields {
    /// Known in advance, as those of the request.
    Known(BTreeMap<String, Type>),
    /// Those of a schema, resolved when an expression selects one.
    Lazy(Box<dyn LazyFields>),
    /// The variables that a policy composes.
    Composed,
    /// The type has no fields that an expression may select, as Authorizer.
    Opaque,
}

/// Fields that are resolved one by one.
pub trait LazyFields: Debug + Send + Sync {
    /// The type of a field of the object type `owner`; `None` if it has none that expressions can use.
    fn field(&self, owner: &str, name: &str) -> Option<Type>;

    /// The root of the types. Types with one name and different roots are different.
    fn origin(&self) -> u64;
}

impl Type {
    /// Any value.
    pub const DYN: Self = Self::Simple(Simple::Dyn);
    /// The type of an expression with an issue.
    pub const ERROR: Self = Self::Simple(Simple::Error);
    /// A truth value.
    pub const BOOL: Self = Self::Simple(Simple::Bool);
    /// A signed integer.
    pub const INT: Self = Self::Simple(Simple::Int);
    /// A text.
    pub const STRING: Self = Self::Simple(Simple::String);

    /// Returns a list of a type.
    pub fn list(element: Self) -> Self {
        Self::composite(Constructor::List, vec![element])
    }

    /// Returns a map from a type to a type.
    pub fn map(key: Self, value: Self) -> Self {
        Self::composite(Constructor::Map, vec![key, value])
    }

    /// Returns an optional value of a type.
    pub fn optional(value: Self) -> Self {
        Self::composite(Constructor::Optional, vec![value])
    }

    /// Returns the type of a type.
    pub fn type_of(instance: Self) -> Self {
        Self::composite(Constructor::Type, vec![instance])
    }

    /// Returns a type with parts, or dyn if it is too large.
    pub fn composite(constructor: Constructor, types: Vec<Self>) -> Self {
        let mut parts = Parts { types, nodes: 1, depth: 1 };
        for part in &parts.types {
            let (nodes, depth) = match part {
                Self::Composite(_, inner) => (inner.nodes, inner.depth),
                _ => (1, 1),
            };
            parts.nodes = parts.nodes.saturating_add(nodes);
            parts.depth = parts.depth.max(depth.saturating_add(1));
        }
        if parts.nodes > MAX_NODES || parts.depth > MAX_DEPTH {
            return Self::DYN;
        }
        Self::Composite(constructor, Arc::new(parts))
    }

    /// Returns an object type with known fields.
    pub fn object<'a>(name: &str, fields: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let fields = fields.into_iter().map(|(name, field)| (name.to_owned(), field)).collect();
        Self::Object(Arc::new(ObjectType { name: name.to_owned(), fields: Fields::Known(fields) }))
    }

    /// Returns an object type whose fields cannot be selected.
    pub fn opaque(name: &str) -> Self {
        Self::Object(Arc::new(ObjectType { name: name.to_owned(), fields: Fields::Opaque }))
    }

    /// The parts of a type; none if it has none.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Composite(_, parts) => &parts.types,
            _ => &[],
        }
    }

    /// Reports whether the type is dyn.
    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Simple(Simple::Dyn))
    }

    /// Reports whether the type allows everything.
    pub fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Simple(Simple::Dyn | Simple::Error))
    }

    /// Reports whether null is a value of the type.
    pub fn is_nullable(&self) -> bool {
        matches!(
            self,
            Self::Simple(Simple::Duration | Simple::Timestamp | Simple::Null)
                | Self::Composite(Constructor::Optional, _)
                | Self::Object(_)
        )
    }

    /// Returns the value's type of an optional, and whether the type is one.
    pub fn unwrap_optional(&self) -> (Self, bool) {
        match self {
            Self::Composite(Constructor::Optional, parts) => (parts.types[0].clone(), true),
            other => (other.clone(), false),
        }
    }

    /// Reports whether the types are the same, with the same parameters.
    pub fn is_exact(&self, other: &Self) -> bool {
        self.is_same(other, true)
    }

    /// Reports whether the types are the same apart from the identity of their parameters.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        self.is_same(other, false)
    }

    fn is_same(&self, other: &Self, with_params: bool) -> bool {
        match (self, other) {
            (Self::Simple(a), Self::Simple(b)) => a == b,
            (Self::Param(a), Self::Param(b)) => a == b || !with_params,
            (Self::Object(a), Self::Object(b)) => a.is_same(b),
            (Self::Composite(a, _), Self::Composite(b, _)) => {
                a == b && self.parts().iter().zip(other.parts()).all(|(a, b)| a.is_same(b, with_params))
            }
            _ => false,
        }
    }

    /// The name without parts, as `string.format` reports it.
    pub fn plain_name(&self) -> &str {
        match self {
            Self::Simple(Simple::Null) => "null_type",
            Self::Simple(Simple::Duration) => "google.protobuf.Duration",
            Self::Simple(Simple::Timestamp) => "google.protobuf.Timestamp",
            Self::Simple(Simple::Error) => "error",
            Self::Simple(simple) => simple.name(),
            Self::Composite(constructor, _) => constructor.name(),
            Self::Object(object) => &object.name,
            Self::Param(_) => "dyn",
        }
    }
}

impl ObjectType {
    /// Reports whether two object types are the same.
    pub fn is_same(&self, other: &Self) -> bool {
        let same_origin = match (&self.fields, &other.fields) {
            (Fields::Lazy(a), Fields::Lazy(b)) => a.origin() == b.origin(),
            (Fields::Lazy(_), _) | (_, Fields::Lazy(_)) => false,
            _ => true,
        };
        same_origin && self.name == other.name
    }
}

impl Simple {
    fn name(self) -> &'static str {
        match self {
            Self::Dyn => "dyn",
            Self::Error => "!error!",
            Self::Bool => "bool",
            Self::Bytes => "bytes",
            Self::Double => "double",
            Self::Duration => "duration",
            Self::Int => "int",
            Self::Null => "null",
            Self::String => "string",
            Self::Timestamp => "timestamp",
            Self::Type => "type",
            Self::Uint => "uint",
        }
    }
}

impl Constructor {
    fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Map => "map",
            Self::Optional => "optional_type",
            Self::Type => "type",
        }
    }
}

impl Display for Type {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(simple) => out.write_str(simple.name()),
            Self::Object(object) => out.write_str(&object.name),
            Self::Param(number) => write!(out, "_var{number}"),
            Self::Composite(constructor, parts) => {
                write!(out, "{}(", constructor.name())?;
                for (index, part) in parts.types.iter().enumerate() {
                    if index > 0 {
                        out.write_str(", ")?;
                    }
                    Display::fmt(part, out)?;
                }
                out.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_becomes_dyn_when_it_is_too_large() {
        let mut wide = Type::INT;
        for _ in 0..11 {
            wide = Type::map(wide.clone(), wide);
        }
        assert!(!wide.is_dyn());
        assert!(Type::map(wide.clone(), wide).is_dyn());
        let deep = (0..300).fold(Type::INT, |inner, _| Type::list(inner));
        assert!(deep.to_string().len() < 2_000);
    }

    #[test]
    fn types_print_as_upstream_prints_them() {
        let map = Type::map(Type::STRING, Type::list(Type::optional(Type::INT)));
        assert_eq!(Type::type_of(map).to_string(), "type(map(string, list(optional_type(int))))");
        assert_eq!(Type::Simple(Simple::Null).to_string(), "null");
        assert_eq!(Type::list(Type::Param(3)).to_string(), "list(_var3)");
    }
}
