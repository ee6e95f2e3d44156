//! Comparison with upstream's type checker: on a corpus of expressions, verdicts and messages are equal.
//!
//! Upstream's verdicts were recorded by `tests/control-plane/cel`: `cel record cel-check/tests/corpus <specification>`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cel_check::admission::{Checker, MatchedKind, Params};
use cel_check::schema::{Document, GroupVersionKind, type_of_kind};
use cel_check::types::Type;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    resources: Vec<String>,
    #[serde(default)]
    params: String,
    #[serde(default)]
    variables: Vec<Variable>,
    expression: String,
    #[serde(default)]
    warning: String,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    expression: String,
}

/// The OpenAPI documents and the kinds of the corpus.
struct Corpus {
    documents: BTreeMap<String, Arc<Document>>,
    kinds: BTreeMap<String, String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

fn read<T: serde::de::DeserializeOwned>(file: &str) -> T {
    let text = std::fs::read(folder().join(file)).expect("a file of the corpus");
    serde_json::from_slice(&text).expect("well-formed")
}

impl Corpus {
    fn read() -> Self {
        let mut documents = BTreeMap::new();
        for entry in ["schemas", "custom"].iter().flat_map(|part| std::fs::read_dir(folder().join(part)).unwrap()) {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
            let document = Document::read(&std::fs::read(&path).expect("a document")).expect("well-formed");
            documents.insert(name, Arc::new(document));
        }
        Self { documents, kinds: read("kinds.json") }
    }

    fn kind(&self, resource: &str) -> MatchedKind {
        let mut parts = resource.split('/').map(str::to_owned);
        let mut next = || parts.next().expect("group/version/plural");
        let kind = GroupVersionKind { group: next(), version: next(), kind: self.kinds[resource].clone() };
        let name = match kind.group.as_str() {
            "" => format!("api__{}", kind.version),
            group => format!("apis__{group}__{}", kind.version),
        };
        MatchedKind { object: type_of_kind(&self.documents[&name], &kind).expect("a schema"), kind }
    }

    fn warning(&self, case: &Case) -> String {
        let params = match case.params.as_str() {
            "" => Params::None,
            params => Params::Typed(self.kind(params).object),
        };
        let mut kinds: Vec<MatchedKind> = case.resources.iter().map(|resource| self.kind(resource)).collect();
        kinds.sort_by(|a, b| a.kind.cmp(&b.kind));
        let parts = kinds.into_iter().filter_map(|kind| {
            let variables = case.variables.iter().map(|variable| (&*variable.name, &*variable.expression));
            let checker = Checker::new(kind, &params, variables);
            checker.warning(&case.expression).unwrap_or_else(|reason| Some(format!("not checked: {reason}")))
        });
        parts.collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn verdicts_on_the_corpus_equal_those_of_upstream() {
    let corpus = Corpus::read();
    let cases: Vec<Case> = read("verdicts.json");
    assert!(cases.len() >= 300, "{} cases", cases.len());
    let mut differences = String::new();
    let mut count = 0;
    for case in &cases {
        let found = corpus.warning(case);
        if found != case.warning {
            count += 1;
            let _ = writeln!(differences, "{}\nexpected:\n{}\nfound:\n{found}\n", case.expression, case.warning);
        }
    }
    assert!(count == 0, "{count} of {} differ\n{differences}", cases.len());
}

/// Functions that expressions cannot call by their names: macros and the parser insert them.
const INTERNAL: [&str; 5] =
    ["@not_strictly_false", "@sortByAssociatedKeys", "__not_strictly_false__", "cel.@mapInsert", "in"];

const MACROS: [&str; 13] = [
    "has",
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "map",
    "filter",
    "optMap",
    "optFlatMap",
    "sortBy",
    "transformList",
    "transformMap",
    "transformMapEntry",
];

/// Returns the names of all declared functions.
fn functions() -> BTreeSet<&'static str> {
    let table = include_str!("../data/functions.txt");
    let heads = table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" ( "));
    heads.map(|(head, _)| head.rsplit(" . ").next().unwrap_or(head)).collect()
}

/// Returns true if an expression calls this function or macro, or contains this operator.
fn calls(expression: &str, function: &str) -> bool {
    let operator = match function {
        "_[_]" => "[",
        "_[?_]" => "[?",
        "_?._" => ".?",
        "_?_:_" => " ? ",
        "!_" => "!",
        "-_" => "-",
        "@in" => " in ",
        name => match name.strip_prefix('_').and_then(|name| name.strip_suffix('_')) {
            Some(operator) => return expression.contains(&format!(" {operator} ")),
            None => {
                let call = format!("{name}(");
                let is_part = |before: &str| before.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_');
                return expression.match_indices(&call).any(|(at, _)| !is_part(&expression[..at]));
            }
        },
    };
    expression.contains(operator)
}

#[test]
fn corpus_has_a_right_and_a_wrong_expression_for_each_function_operator_and_macro() {
    let cases: Vec<Case> = read("verdicts.json");
    let names: Vec<&str> = functions().into_iter().chain(MACROS).filter(|name| !INTERNAL.contains(name)).collect();
    assert!(names.len() > 150, "{} names", names.len());
    for name in names {
        let (wrong, right): (Vec<&Case>, Vec<&Case>) =
            cases.iter().filter(|case| calls(&case.expression, name)).partition(|case| !case.warning.is_empty());
        assert!(!right.is_empty() && !wrong.is_empty(), "{name}: {} right, {} wrong", right.len(), wrong.len());
    }
}

#[test]
fn corpus_has_kinds_of_the_core_group_of_another_group_and_of_a_custom_resource() {
    let cases: Vec<Case> = read("verdicts.json");
    for group in ["/v1/", "apps/v1/", "example.com/v1/"] {
        let is_of = |case: &&Case| case.resources.iter().any(|resource| resource.starts_with(group));
        let (wrong, right): (Vec<&Case>, Vec<&Case>) =
            cases.iter().filter(is_of).partition(|case| !case.warning.is_empty());
        assert!(!right.is_empty() && !wrong.is_empty(), "{group}: {} right, {} wrong", right.len(), wrong.len());
    }
}

#[test]
fn value_of_unknown_type_causes_no_warning() {
    let kind = GroupVersionKind { group: "g".to_owned(), version: "v1".to_owned(), kind: "Free".to_owned() };
    let checker = Checker::new(MatchedKind { kind, object: Type::DYN }, &Params::Typed(Type::DYN), []);
    for expression in ["object.a.b[0].c > params.d", "object.all(x, x.y)", "params.exists(k, v, v.w == k)"] {
        assert_eq!(checker.warning(expression), Ok(None), "{expression}");
    }
}
