//! The types of expressions.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Display, Formatter};
use std::sync::Arc;

/// Maximum number of nodes of a type. A larger type becomes dyn: in a chain of nested literals, the type can double its
/// size at each level.
const MAX_NODES: u32 = 4_096;
/// Maximum depth of a type, so that recursion over types cannot exhaust the stack.
const MAX_DEPTH: u16 = 256;

/// A type without type parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simple {
    /// Any value; every operation is allowed.
    Dyn,
    /// The type of an expression with a mistake. It allows every operation, so that one mistake causes only one issue.
    Error,
    /// A boolean.
    Bool,
    /// A sequence of bytes.
    Bytes,
    /// A 64-bit float.
    Double,
    /// A duration.
    Duration,
    /// A signed 64-bit integer.
    Int,
    /// The null value.
    Null,
    /// A string.
    String,
    /// A point in time.
    Timestamp,
    /// The type of a value that is a type, without the type that it names.
    Type,
    /// An unsigned 64-bit integer.
    Uint,
}

/// The constructor of a composite type.
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

/// The type of an expression. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Type {
    /// A type without type parameters.
    Simple(Simple),
    /// A type with type parameters, such as `list(int)`.
    Composite(Constructor, Arc<Parts>),
    /// An object type, or another type with a name; see [`Fields`].
    Object(Arc<ObjectType>),
    /// In an overload, one of its type parameters; otherwise a type variable of the inference.
    Param(u32),
}

/// The type arguments of a composite type, with its size.
#[derive(Debug)]
pub struct Parts {
    types: Vec<Type>,
    nodes: u32,
    depth: u16,
}

/// An object type. Two of them are the same type if their names are equal and, with fields of a schema, their
/// [`origin`](LazyFields::origin) is the same root type.
#[derive(Debug)]
pub struct ObjectType {
    /// The name, as in messages.
    pub name: String,
    /// The fields.
    pub fields: Fields,
}

/// The fields of an object type.
#[derive(Debug)]
pub enum Fields {
    /// Known in advance, such as the fields of `request`.
    Known(BTreeMap<String, Type>),
    /// The fields of a schema, each resolved when an expression selects it.
    Lazy(Box<dyn LazyFields>),
    /// The fields of `variables`: the policy's own named expressions.
    Composed,
    /// An object type whose fields are not declared, such as `Authorizer`: a selection is a mistake.
    Unregistered,
    /// No fields: a named type that is not an object type, such as `net.IP`.
    Opaque,
}

/// Fields that are resolved one by one.
pub trait LazyFields: Debug + Send + Sync {
    /// Returns the type of the field `name` of the object type `owner`; `None` if expressions cannot select that field.
    fn field(&self, owner: &str, name: &str) -> Option<Type>;

    /// Returns the number of the root type from which the object type was derived. Types with the same name and
    /// different origins are different.
    fn origin(&self) -> u64;
}

impl Type {
    /// Any value.
    pub const DYN: Self = Self::Simple(Simple::Dyn);
    /// The type of an expression with a mistake.
    pub const ERROR: Self = Self::Simple(Simple::Error);
    /// A boolean.
    pub const BOOL: Self = Self::Simple(Simple::Bool);
    /// A signed integer.
    pub const INT: Self = Self::Simple(Simple::Int);
    /// A string.
    pub const STRING: Self = Self::Simple(Simple::String);

    /// Returns the type of lists of `element`.
    pub fn list(element: Self) -> Self {
        Self::composite(Constructor::List, vec![element])
    }

    /// Returns the type of maps from `key` to `value`.
    pub fn map(key: Self, value: Self) -> Self {
        Self::composite(Constructor::Map, vec![key, value])
    }

    /// Returns the type of optional values of `value`.
    pub fn optional(value: Self) -> Self {
        Self::composite(Constructor::Optional, vec![value])
    }

    /// Returns the type of a type.
    pub fn type_of(instance: Self) -> Self {
        Self::composite(Constructor::Type, vec![instance])
    }

    /// Returns a composite type, or dyn if it would be too large.
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

    /// Returns an object type whose fields are not declared.
    pub fn unregistered(name: &str) -> Self {
        Self::Object(Arc::new(ObjectType { name: name.to_owned(), fields: Fields::Unregistered }))
    }

    /// Returns a type that has a name and no fields.
    pub fn opaque(name: &str) -> Self {
        Self::Object(Arc::new(ObjectType { name: name.to_owned(), fields: Fields::Opaque }))
    }

    /// Returns the type arguments; empty for a type that is not composite.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::Composite(_, parts) => &parts.types,
            _ => &[],
        }
    }

    /// Returns true if the type is dyn.
    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Simple(Simple::Dyn))
    }

    /// Returns true if the type allows every operation.
    pub fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Simple(Simple::Dyn | Simple::Error))
    }

    /// Returns true if null is a value of the type.
    pub fn is_nullable(&self) -> bool {
        matches!(
            self,
            Self::Simple(Simple::Duration | Simple::Timestamp | Simple::Null)
                | Self::Composite(Constructor::Optional, _)
                | Self::Object(_)
        )
    }

    /// Returns the type without `optional_type` around it, and true if there was one.
    pub fn unwrap_optional(&self) -> (Self, bool) {
        match self {
            Self::Composite(Constructor::Optional, parts) => (parts.types[0].clone(), true),
            other => (other.clone(), false),
        }
    }

    /// Returns true if the types are equal, including the type variables in them.
    pub fn is_exact(&self, other: &Self) -> bool {
        self.is_same(other, true)
    }

    /// Returns true if the types are equal, except that different type variables count as equal.
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

    /// Returns the name without type arguments, as in error messages about `string.format`.
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
    /// Returns true if two object types are the same.
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
    fn type_becomes_dyn_when_too_large() {
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
