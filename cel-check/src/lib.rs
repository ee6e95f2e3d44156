//! A type checker for the Common Expression Language, as Kubernetes uses it.
//!
//! The checker finds mistakes in expressions over objects whose OpenAPI schemas are known: fields that do not exist,
//! and calls with arguments of the wrong types. Positions and messages are those of cel-go, which Kubernetes uses.
//! Expressions are not evaluated.
//!
//! Expressions and schemas may come from an attacker. The size and depth of expressions and types, and the steps of a
//! check, are limited. An expression that exceeds a limit is not checked. A type that exceeds one is replaced by the
//! CEL type `dyn`, which allows every operation; a value whose type cannot be determined has this type, too.
//!
//! ```
//! use cel_check::admission::{Checker, MatchedKind, Params};
//! use cel_check::schema::{Document, GroupVersionKind, type_of_kind};
//!
//! let document = br#"{"components": {"schemas": {"Shelf": {
//!     "type": "object",
//!     "properties": {"books": {"type": "integer"}},
//!     "x-kubernetes-group-version-kind": [{"group": "library", "version": "v1", "kind": "Shelf"}]
//! }}}}"#;
//! let document = std::sync::Arc::new(Document::read(document).unwrap());
//! let kind = GroupVersionKind { group: "library".into(), version: "v1".into(), kind: "Shelf".into() };
//! let object = type_of_kind(&document, &kind).unwrap();
//! let checker = Checker::new(MatchedKind { kind, object }, &Params::None, []);
//! assert_eq!(checker.warning("object.books > 3"), Ok(None));
//! let warning = checker.warning("object.boks > 3").unwrap().unwrap();
//! assert!(warning.starts_with("library/v1, Kind=Shelf: ERROR: <input>:1:7: undefined field 'boks'"));
//! ```

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod admission;
mod assign;
pub mod ast;
pub mod check;
pub mod declarations;
mod escape;
mod keywords;
pub mod schema;
pub mod source;
mod stack;
pub mod syntax;
pub mod types;
mod validate;
