//! Declarations of the functions that expressions may call.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::types::{Simple, Type};

/// One signature of a function. Its type parameters are numbered from 0.
#[derive(Debug)]
pub struct Overload {
    /// True if the function is called as `receiver.function()`; the receiver is then the first of the arguments.
    pub is_member: bool,
    /// The number of type parameters.
    pub params: u32,
    /// The types of the arguments.
    pub arguments: Vec<Type>,
    /// The type of the result.
    pub result: Type,
}

/// The overloads of functions, and the types that expressions can name, by their names.
#[derive(Debug)]
pub struct Declarations {
    functions: HashMap<String, Vec<Overload>>,
    types: HashMap<&'static str, Type>,
}

static KUBERNETES: LazyLock<Declarations> = LazyLock::new(|| Declarations::read(include_str!("../data/functions.txt")));

impl Declarations {
    /// Returns the functions of all Kubernetes versions up to 1.37, because stored expressions may call any of them.
    pub fn kubernetes() -> &'static Self {
        &KUBERNETES
    }

    /// Returns the overloads of a function, in the order in which they are tried.
    pub fn function(&self, name: &str) -> Option<&[Overload]> {
        self.functions.get(name).map(Vec::as_slice)
    }

    /// Returns the type of an expression that names a type: `type(int)` for `int`.
    pub fn type_name(&self, name: &str) -> Option<&Type> {
        self.types.get(name)
    }

    /// Parses a table of overloads, one per line: `[receiver .] name ( argument , argument ) result`.
    fn read(table: &str) -> Self {
        let mut functions: HashMap<String, Vec<Overload>> = HashMap::new();
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, overload)) = read_overload(line) {
                functions.entry(name).or_default().push(overload);
            }
        }
        Self { functions, types: type_names() }
    }
}

fn read_overload(line: &str) -> Option<(String, Overload)> {
    let (head, result) = line.rsplit_once(" ) ")?;
    let (head, arguments) = head.split_once(" ( ")?;
    let (receiver, name) = match head.split_once(" . ") {
        Some((receiver, name)) => (Some(receiver), name),
        None => (None, head),
    };
    let arguments = arguments.split(" , ").map(str::trim).filter(|argument| !argument.is_empty());
    let mut params = Vec::new();
    let arguments = receiver.into_iter().chain(arguments).map(|text| read_type(text, &mut params)).collect();
    let result = read_type(result, &mut params);
    let overload = Overload { is_member: receiver.is_some(), params: params.len() as u32, arguments, result };
    Some((name.to_owned(), overload))
}

/// Parses a type. `params` has the type parameters found before in this line; new ones are appended.
fn read_type(text: &str, params: &mut Vec<String>) -> Type {
    let text = text.trim();
    if let Some((constructor, parts)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        return match constructor {
            "list" => Type::list(read_type(parts, params)),
            "optional_type" => Type::optional(read_type(parts, params)),
            "type" => Type::type_of(read_type(parts, params)),
            _ => {
                let (key, value) = parts.split_once(", ").unwrap_or((parts, "dyn"));
                let key = read_type(key, params);
                Type::map(key, read_type(value, params))
            }
        };
    }
    if text.len() == 1 && text.starts_with(|character: char| character.is_ascii_uppercase()) {
        let known = params.iter().position(|param| param == text);
        let number = known.unwrap_or_else(|| {
            params.push(text.to_owned());
            params.len() - 1
        });
        return Type::Param(number as u32);
    }
    simple(text).map_or_else(|| named(text), Type::Simple)
}

/// Returns a type of a library by its name: opaque if it is in [`OPAQUE`], else an object type whose fields are not
/// declared.
fn named(name: &str) -> Type {
    if OPAQUE.contains(&name) { Type::opaque(name) } else { Type::unregistered(name) }
}

fn simple(name: &str) -> Option<Simple> {
    Some(match name {
        "dyn" => Simple::Dyn,
        "bool" => Simple::Bool,
        "bytes" => Simple::Bytes,
        "double" => Simple::Double,
        "duration" => Simple::Duration,
        "int" => Simple::Int,
        "null" => Simple::Null,
        "string" => Simple::String,
        "timestamp" => Simple::Timestamp,
        "uint" => Simple::Uint,
        _ => return None,
    })
}

/// The opaque types of libraries.
const OPAQUE: [&str; 2] = ["net.IP", "net.CIDR"];

/// Protobuf messages that an expression may name as a type, although no value has that type; each with the name of the
/// type in issues.
const MESSAGES: [(&str, &str); 11] = [
    ("google.protobuf.Any", "any"),
    ("google.protobuf.BoolValue", "wrapper(bool)"),
    ("google.protobuf.BytesValue", "wrapper(bytes)"),
    ("google.protobuf.DoubleValue", "wrapper(double)"),
    ("google.protobuf.Empty", "google.protobuf.Empty"),
    ("google.protobuf.FloatValue", "wrapper(double)"),
    ("google.protobuf.Int32Value", "wrapper(int)"),
    ("google.protobuf.Int64Value", "wrapper(int)"),
    ("google.protobuf.StringValue", "wrapper(string)"),
    ("google.protobuf.UInt32Value", "wrapper(uint)"),
    ("google.protobuf.UInt64Value", "wrapper(uint)"),
];

/// Returns the types of the names that every expression may use: names of types, and the constant `NULL_VALUE`.
fn type_names() -> HashMap<&'static str, Type> {
    let names = [
        ("bool", Type::BOOL),
        ("bytes", Type::Simple(Simple::Bytes)),
        ("double", Type::Simple(Simple::Double)),
        ("duration", Type::Simple(Simple::Duration)),
        ("google.protobuf.Duration", Type::Simple(Simple::Duration)),
        ("google.protobuf.ListValue", Type::list(Type::DYN)),
        ("google.protobuf.Struct", Type::map(Type::STRING, Type::DYN)),
        ("google.protobuf.Timestamp", Type::Simple(Simple::Timestamp)),
        ("google.protobuf.Value", Type::DYN),
        ("int", Type::INT),
        ("list", Type::list(Type::DYN)),
        ("map", Type::map(Type::DYN, Type::DYN)),
        ("null_type", Type::Simple(Simple::Null)),
        ("optional_type", Type::optional(Type::DYN)),
        ("string", Type::STRING),
        ("timestamp", Type::Simple(Simple::Timestamp)),
        ("type", Type::Simple(Simple::Type)),
        ("uint", Type::Simple(Simple::Uint)),
    ];
    let opaque = OPAQUE.map(|name| (name, Type::opaque(name)));
    let messages = MESSAGES.map(|(name, text)| (name, Type::opaque(text)));
    let instances = names.into_iter().chain(opaque).chain(messages);
    let types = instances.map(|(name, instance)| (name, Type::type_of(instance)));
    types.chain([("google.protobuf.NullValue.NULL_VALUE", Type::INT)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_an_overload() {
        let table = include_str!("../data/functions.txt");
        let lines = table.lines().filter(|line| !line.starts_with('#')).count();
        let overloads: usize = Declarations::kubernetes().functions.values().map(Vec::len).sum();
        assert_eq!(overloads, lines);
        assert!(lines > 300);
    }

    #[test]
    fn overload_numbers_its_type_parameters() {
        let overloads = Declarations::kubernetes().function("_[?_]").expect("declared");
        let last = overloads.last().expect("an overload");
        assert_eq!(last.params, 2);
        assert_eq!(last.arguments[0].to_string(), "optional_type(map(_var0, _var1))");
        assert!(!last.is_member);
        assert!(Declarations::kubernetes().function("charAt").expect("declared")[0].is_member);
    }
}
