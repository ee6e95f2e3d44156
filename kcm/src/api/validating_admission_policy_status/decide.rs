//! Policy: the kind of a policy's parameters, and the warnings about its expressions.

use cel_check::admission::{Checker, MatchedKind, Params};
use cel_check::check::CheckError;
use cel_check::schema::GroupVersionKind;
use kinds::Kind;
use kinds::ValidatingAdmissionPolicy;
use kinds::meta::Meta;
use kinds::validating_admission_policy::{ParamKind, PolicySpec};
use serde_json::{Value, json};

/// Maximum length of all warnings of a policy in bytes. The API server refuses objects of more than a few MiB: the
/// status could never be written.
const MAX_WARNING_BYTES: usize = 256 << 10;

/// The end of a truncated warning.
const TRUNCATION_MARK: &str = "\n(the rest was cut)\n";

/// Field manager of the status.
pub const FIELD_MANAGER: &str = "validatingadmissionpolicy-status";

/// The mistakes in an expression of a policy.
#[derive(Debug, PartialEq, Eq)]
pub struct ExpressionWarning {
    /// The field of the expression.
    pub field_ref: String,
    /// The errors in the expression, for each kind that the policy matches.
    pub warning: String,
}

/// Returns the kind of a policy's parameters; `None` if it has none, or its version is malformed.
pub fn params_kind(kind: Option<&ParamKind>) -> Option<GroupVersionKind> {
    let ParamKind { api_version, kind } = kind?;
    let (group, version) = match api_version.split_once('/') {
        Some((_, version)) if version.contains('/') => return None,
        Some((group, version)) => (group, version),
        None => ("", api_version.as_str()),
    };
    Some(GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.clone() })
}

/// Returns the warnings of a policy's expressions, and the reasons why expressions could not be checked. Expressions
/// after one whose warning is truncated are not checked: the status has no room for their warnings.
pub fn warnings(
    spec: &PolicySpec,
    kinds: Vec<MatchedKind>,
    params: &Params,
) -> (Vec<ExpressionWarning>, Vec<CheckError>) {
    let variables = || spec.variables.iter().map(|variable| (&*variable.name, &*variable.expression));
    let checkers: Vec<Checker> = kinds.into_iter().map(|kind| Checker::new(kind, params, variables())).collect();
    let (mut found, mut unchecked) = (Vec::new(), Vec::new());
    let mut remaining_bytes = MAX_WARNING_BYTES;
    for (field_ref, expression) in expressions(spec) {
        let parts: Vec<String> = checkers
            .iter()
            .filter_map(|checker| {
                checker.warning(expression).unwrap_or_else(|reason| {
                    unchecked.push(reason);
                    None
                })
            })
            .collect();
        if parts.is_empty() {
            continue;
        }
        let mut warning = parts.join("\n");
        let is_truncated = truncate(&mut warning, remaining_bytes);
        remaining_bytes = remaining_bytes.saturating_sub(warning.len());
        found.push(ExpressionWarning { field_ref, warning });
        if is_truncated {
            break;
        }
    }
    (found, unchecked)
}

/// Returns the expressions whose mistakes are reported, with their fields.
fn expressions(spec: &PolicySpec) -> impl Iterator<Item = (String, &str)> {
    spec.validations.iter().enumerate().flat_map(|(index, validation)| {
        let message = Some(&validation.message_expression).filter(|expression| !expression.is_empty());
        let field = move |name: &str| format!("spec.validations[{index}].{name}");
        let message = message.map(|expression| (field("messageExpression"), expression.as_str()));
        std::iter::once((field("expression"), validation.expression.as_str())).chain(message)
    })
}

/// Truncates a text to a number of bytes. Returns true if it was longer.
fn truncate(text: &mut String, limit: usize) -> bool {
    if text.len() <= limit {
        return false;
    }
    text.truncate(text.floor_char_boundary(limit.saturating_sub(TRUNCATION_MARK.len())));
    text.push_str(TRUNCATION_MARK);
    true
}

/// Returns the status for a server-side apply. The UID prevents a write to another policy of the same name.
pub fn applied_status(meta: &Meta, warnings: &[ExpressionWarning]) -> Value {
    let mut checking = json!({});
    if !warnings.is_empty() {
        let warnings = warnings.iter().map(|one| json!({ "fieldRef": one.field_ref, "warning": one.warning }));
        checking["expressionWarnings"] = warnings.collect();
    }
    let resource = ValidatingAdmissionPolicy::RESOURCE;
    json!({
        "apiVersion": format!("{}/{}", resource.group, resource.version),
        "kind": resource.kind,
        "metadata": { "name": &*meta.name, "uid": meta.uid.to_string() },
        "status": { "observedGeneration": meta.generation, "typeChecking": checking },
    })
}

#[cfg(test)]
mod tests {
    use cel_check::types::Type;
    use kinds::validating_admission_policy::{Validation, Variable};

    use super::*;

    fn kind(group: &str, version: &str, kind: &str) -> GroupVersionKind {
        GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    #[test]
    fn params_of_a_malformed_version_have_no_kind() {
        let params = |api_version: &str| {
            let params = ParamKind { api_version: api_version.to_owned(), kind: "P".to_owned() };
            params_kind(Some(&params)).map(|kind| kind.to_string())
        };
        assert_eq!(params("v1").as_deref(), Some("/v1, Kind=P"));
        assert_eq!(params("a/v1").as_deref(), Some("a/v1, Kind=P"));
        assert_eq!(params("a/b/v1"), None);
        assert_eq!(params_kind(None), None);
    }

    fn check(validations: &[(&str, &str)]) -> Vec<ExpressionWarning> {
        let validations = validations.iter().map(|(expression, message)| Validation {
            expression: (*expression).to_owned(),
            message_expression: (*message).to_owned(),
        });
        let variables = vec![Variable { name: "count".to_owned(), expression: "object.count".to_owned() }];
        let spec = PolicySpec { validations: validations.collect(), variables, ..PolicySpec::default() };
        let object = Type::object("K", [("count", Type::INT)]);
        let matched = MatchedKind { kind: kind("g", "v1", "K"), object };
        let (found, unchecked) = warnings(&spec, vec![matched], &Params::None);
        assert_eq!(unchecked, []);
        found
    }

    #[test]
    fn warning_names_the_field_of_its_expression() {
        let found =
            check(&[("object.count > 1", "'a' + 1"), ("object.size > 1", ""), ("variables.count == 'x'", "'x'")]);
        let fields: Vec<&str> = found.iter().map(|warning| &*warning.field_ref).collect();
        assert_eq!(
            fields,
            [
                "spec.validations[0].messageExpression",
                "spec.validations[1].expression",
                "spec.validations[2].expression"
            ]
        );
        assert_eq!(
            found[1].warning,
            "g/v1, Kind=K: ERROR: <input>:1:7: undefined field 'size'\n | object.size > 1\n | ......^\n"
        );
    }

    #[test]
    fn warnings_are_truncated_before_the_status_is_too_large() {
        let long = format!("object.x == '{}'", "\u{fc}".repeat(7_000));
        let found = check(&vec![(&*long, ""); 100]);
        let length: usize = found.iter().map(|warning| warning.warning.len()).sum();
        assert!(length <= MAX_WARNING_BYTES + TRUNCATION_MARK.len(), "{length}");
        assert!(found.len() > 5 && found.last().expect("a warning").warning.ends_with(TRUNCATION_MARK));
    }
}
