//! Expressions and documents of an attacker must not cause a panic, a stack overflow or unbounded work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cel_check::admission::{Checker, MatchedKind, Params};
use cel_check::schema::{Document, GroupVersionKind, type_of_kind};
use cel_check::types::Type;
use proptest::prelude::*;

/// Far more time than any check needs, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn kind() -> GroupVersionKind {
    GroupVersionKind { group: "g".to_owned(), version: "v1".to_owned(), kind: "K".to_owned() }
}

fn checker(variables: &[(String, String)]) -> Checker {
    let variables = variables.iter().map(|(name, expression)| (name.as_str(), expression.as_str()));
    Checker::new(MatchedKind { kind: kind(), object: Type::DYN }, &Params::None, variables)
}

#[test]
fn hostile_expressions_are_checked_in_bounded_time() {
    let started = Instant::now();
    let checker = checker(&[]);
    let deep = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    for expression in [
        deep("[", "]", 249),
        deep("(", ")", 249),
        deep("{1: ", "}", 249),
        deep("[1].map(x, ", ")", 249),
        deep("[1].sortBy(x, ", ")", 249),
        deep("[[]].map(x, {x: x}).map(y, ", ")", 120),
        deep("optional.of(1).optMap(x, ", ")", 249),
        format!("object{}", ".a".repeat(990)),
        vec!["1"; 990].join(" + "),
        vec!["object.a"; 9_000].join(" && "),
        format!("[{}]", vec!["1"; 40_000].join(",")),
        format!("optional.of(1){}", ".optMap(x, x)".repeat(14)),
        format!("'{}'.format([1])", "%s".repeat(40_000)),
        format!("{{1: 1}}{}", ".transformMapEntry(k, v, {k: {v: v}})".repeat(50)),
    ] {
        let _ = checker.warning(&expression);
    }
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
}

#[test]
fn variables_that_double_their_types_are_checked_in_bounded_time() {
    let started = Instant::now();
    let mut variables = vec![("v0".to_owned(), "1".to_owned())];
    for number in 1..400 {
        let before = format!("variables.v{}", number - 1);
        variables.push((format!("v{number}"), format!("{{'a': [{before}], 'b': [{before}]}}")));
        variables.push((format!("w{number}"), format!("{{{before}: {before}}}")));
    }
    let warning =
        checker(&variables).warning("variables.v399.a == variables.w399").expect("checked").expect("a warning");
    assert!(warning.len() < 100_000, "{}", warning.len());
    assert!(started.elapsed() < DEADLINE, "{:?}", started.elapsed());
}

#[test]
fn references_that_multiply_are_resolved_on_demand() {
    let mut schemas = vec![
        r##""K": {"type": "object", "properties": {"spec": {"$ref": "#/components/schemas/S0"}},
            "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "K"}]}"##
            .to_owned(),
    ];
    for number in 0..2_000 {
        let next = format!("{{\"$ref\": \"#/components/schemas/S{}\"}}", number + 1);
        let items = format!("{{\"$ref\": \"#/components/schemas/L{}\"}}", number + 1);
        schemas.push(format!(
            r#""S{number}": {{"type": "object", "properties": {{"a": {next}, "b": {next}, "l": {items}}}}}"#
        ));
        schemas.push(format!(r#""L{number}": {{"type": "array", "items": {items}}}"#));
    }
    let text = format!(r#"{{"components": {{"schemas": {{{}}}}}}}"#, schemas.join(","));
    let document = Arc::new(Document::read(text.as_bytes()).expect("well-formed"));
    let object = type_of_kind(&document, &kind()).expect("a kind");
    let checker = Checker::new(MatchedKind { kind: kind(), object }, &Params::None, []);
    assert_eq!(checker.warning(&format!("object.spec{} == null", ".a.b".repeat(100))), Ok(None));
    assert_eq!(checker.warning("object.spec.l.size() == 1"), Ok(None));
}

#[test]
fn documents_that_are_not_schemas_are_refused_or_empty() {
    let nested = format!("{}{}", r#"{"components":{"schemas":{"a":"#, r#"{"items":"#.repeat(100_000));
    assert!(Document::read(nested.as_bytes()).is_err());
    for text in ["", "x", "{\"components\": {", "{}}"] {
        assert!(Document::read(text.as_bytes()).is_err(), "{text}");
    }
    for text in [
        "{}",
        "1",
        "{\"components\": 1}",
        "{\"components\": {\"schemas\": {\"a\": 1}}}",
        r#"{"components": {"schemas": {"a": {"type": ["object", "null"], "items": [1]}}}}"#,
    ] {
        assert!(Document::read(text.as_bytes()).is_ok(), "{text}");
    }
}

/// Generates JSON similar to schemas: keywords at any place, references, loops, and arbitrary values.
fn schema() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => prop::sample::select(SCHEMA_VALUES).prop_map(str::to_owned),
        1 => "\\PC{0,8}".prop_map(|text| format!("{text:?}")),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let members = prop::collection::vec((prop::sample::select(SCHEMA_KEYS), inner.clone()), 0..6);
        let object = members.prop_map(|members| {
            let members: Vec<String> = members.into_iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
            format!("{{{}}}", members.join(","))
        });
        prop_oneof![
            3 => object,
            1 => prop::collection::vec(inner, 0..4).prop_map(|values| format!("[{}]", values.join(","))),
        ]
    })
}

const SCHEMA_KEYS: &[&str] = &[
    "type",
    "properties",
    "items",
    "additionalProperties",
    "$ref",
    "allOf",
    "anyOf",
    "format",
    "enum",
    "default",
    "required",
    "x-kubernetes-group-version-kind",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "x-kubernetes-embedded-resource",
    "group",
    "version",
    "kind",
    "a",
    "metadata",
];

const SCHEMA_VALUES: &[&str] = &[
    "null",
    "true",
    "1",
    "-1e400",
    "[]",
    "{}",
    "\"object\"",
    "\"array\"",
    "\"string\"",
    "\"integer\"",
    "\"K\"",
    "\"g\"",
    "\"v1\"",
    "\"#/components/schemas/a\"",
    "\"#/components/schemas/missing\"",
    "\"int-or-string\"",
    "\"date-time\"",
    "[{\"group\":\"g\",\"version\":\"v1\",\"kind\":\"K\"}]",
];

proptest! {
    #[test]
    fn any_document_is_read_or_refused(schema in schema(), other in schema(), text in "\\PC{0,60}") {
        let _ = Document::read(text.as_bytes());
        let kind_of = r#""x-kubernetes-group-version-kind":[{"group":"g","version":"v1","kind":"K"}]"#;
        let text = format!(
            r#"{{"components":{{"schemas":{{"a":{schema},"k":{{{kind_of},"type":"object","properties":{{"a":{other}}}}}}}}}}}"#
        );
        if let Ok(document) = Document::read(text.as_bytes()) {
            let object = type_of_kind(&Arc::new(document), &kind()).unwrap_or(Type::DYN);
            let checker = Checker::new(MatchedKind { kind: kind(), object }, &Params::None, []);
            let _ = checker.warning("object.a.a == object.metadata || has(object.a.items)");
        }
    }

    #[test]
    fn any_text_is_checked_without_a_panic(text in "\\PC{0,80}") {
        let _ = checker(&[]).warning(&text);
    }

    #[test]
    fn any_sequence_of_tokens_is_checked_without_a_panic(
        tokens in prop::collection::vec(prop::sample::select(TOKENS), 0..40)
    ) {
        let _ = checker(&[]).warning(&tokens.join(" "));
        let _ = checker(&[]).warning(&tokens.concat());
    }
}

const TOKENS: &[&str] = &[
    "object",
    "request",
    ".spec",
    ".?a",
    "[0]",
    "[?0]",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    "?",
    "x",
    "1",
    "1u",
    "1.5",
    "'a'",
    "b'a'",
    "'%s %d'",
    "null",
    "true",
    "+",
    "-",
    "*",
    "==",
    "<",
    "in",
    "&&",
    "||",
    "!",
    ".all(x, ",
    ".map(x, ",
    ".filter(x, ",
    ".optMap(x, ",
    ".sortBy(x, ",
    ".transformMap(k, v, ",
    ".exists(i, x, ",
    "has(object.a)",
    "size(",
    ".format([",
    "optional.of(",
    "type(",
    "dyn(",
    "variables",
    "authorizer",
    ".",
    "\n",
    "\u{fc}",
    "//",
];
