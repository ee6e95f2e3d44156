//! Comparison with upstream's type checker: on a corpus of expressions, verdicts and messages are equal.
//!
//! Upstream's verdicts were recorded by `tests/control-plane/cel`: `cel record cel-check/tests/corpus <specification>`.

use std::collections::BTreeMap;
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

#[test]
fn value_of_unknown_type_causes_no_warning() {
    let kind = GroupVersionKind { group: "g".to_owned(), version: "v1".to_owned(), kind: "Free".to_owned() };
    let checker = Checker::new(MatchedKind { kind, object: Type::DYN }, &Params::Typed(Type::DYN), []);
    for expression in ["object.a.b[0].c > params.d", "object.all(x, x.y)", "params.exists(k, v, v.w == k)"] {
        assert_eq!(checker.warning(expression), Ok(None), "{expression}");
    }
}
