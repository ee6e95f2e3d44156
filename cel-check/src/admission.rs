//! Type checks of the expressions of a ValidatingAdmissionPolicy.
//!
//! Upstream: apiserver/pkg/admission/plugin/policy/validating, TypeChecker.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use crate::check::{COMPOSED_TYPE, CheckError, Variables, Verdict, check};
use crate::declarations::Declarations;
use crate::schema::GroupVersionKind;
use crate::types::{Constructor, Fields, Simple, Type};

/// A kind of objects that a policy matches.
#[derive(Clone, Debug)]
pub struct MatchedKind {
    /// Its group, version and kind.
    pub kind: GroupVersionKind,
    /// The type of its objects.
    pub object: Type,
}

/// The parameters of a policy.
#[derive(Clone, Debug)]
pub enum Params {
    /// The policy has no parameters.
    None,
    /// The type of the parameters; dyn if their kind is not known.
    Typed(Type),
}

/// Checks the expressions of one policy against one kind.
pub struct Checker {
    kind: GroupVersionKind,
    variables: Variables,
}

impl Checker {
    /// Creates a checker. `variables` are the policy's named expressions in their order: each may use the variables
    /// before it.
    pub fn new<'a>(
        matched: MatchedKind,
        params: &Params,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let MatchedKind { kind, object } = matched;
        let mut globals = BUILT_IN.clone();
        globals.insert("object".to_owned(), object.clone());
        globals.insert("oldObject".to_owned(), object);
        if let Params::Typed(params) = params {
            globals.insert("params".to_owned(), params.clone());
        }
        let mut checker = Self { kind, variables: Variables { globals, composed: BTreeMap::new() } };
        for (name, expression) in variables {
            let found = match checker.verdict(expression) {
                Verdict::Typed(found) => composed(&found),
                // Mistakes in a variable are not reported here. The variable's type is dyn, so that they cause no
                // further issues.
                Verdict::Invalid(_) | Verdict::CheckError(_) => Type::DYN,
            };
            checker.variables.composed.insert(name.to_owned(), found);
        }
        checker
    }

    /// Returns this kind's part of the warning about an expression; `None` if there are no mistakes.
    ///
    /// # Errors
    /// When the expression could not be checked.
    pub fn warning(&self, expression: &str) -> Result<Option<String>, CheckError> {
        match self.verdict(expression) {
            Verdict::Typed(_) => Ok(None),
            Verdict::Invalid(issues) => Ok(Some(format!("{}: {issues}\n", self.kind))),
            Verdict::CheckError(reason) => Err(reason),
        }
    }

    fn verdict(&self, expression: &str) -> Verdict {
        check(expression, Declarations::kubernetes(), &self.variables)
    }
}

/// Returns the type that a variable has in the expressions that use it. As in upstream, objects, optional values and
/// types are dyn there, also as elements of lists and maps.
fn composed(found: &Type) -> Type {
    match found {
        Type::Simple(Simple::Type) => Type::DYN,
        Type::Simple(_) => found.clone(),
        Type::Composite(constructor @ (Constructor::List | Constructor::Map), _) => {
            Type::composite(*constructor, found.parts().iter().map(composed).collect())
        }
        Type::Composite(..) | Type::Object(_) | Type::Param(_) => Type::DYN,
    }
}

/// The variables of every policy, and the names of the object types that they contain.
static BUILT_IN: LazyLock<HashMap<String, Type>> = LazyLock::new(|| {
    [
        ("request", request()),
        ("namespaceObject", namespace()),
        ("authorizer", Type::unregistered("kubernetes.authorization.Authorizer")),
    ]
    .map(|(name, given)| (name.to_owned(), given))
    .into_iter()
    .chain(object_type_names())
    .collect()
});

/// Returns the names of all object types that the built-in variables contain: an expression may use each as the name of
/// a type.
fn object_type_names() -> BTreeMap<String, Type> {
    let mut names = BTreeMap::new();
    let mut pending = vec![request(), namespace(), COMPOSED_TYPE.clone()];
    while let Some(found) = pending.pop() {
        pending.extend_from_slice(found.parts());
        if let Type::Object(object) = &found {
            if let Fields::Known(fields) = &object.fields {
                pending.extend(fields.values().cloned());
            }
            names.insert(object.name.clone(), Type::type_of(found));
        }
    }
    names
}

fn request() -> Type {
    let text = || Type::STRING;
    let kind = Type::object("kubernetes.GroupVersionKind", [("group", text()), ("version", text()), ("kind", text())]);
    let resource =
        Type::object("kubernetes.GroupVersionResource", [("group", text()), ("version", text()), ("resource", text())]);
    let user = Type::object(
        "kubernetes.UserInfo",
        [
            ("username", text()),
            ("uid", text()),
            ("groups", Type::list(text())),
            ("extra", Type::map(text(), Type::list(text()))),
        ],
    );
    Type::object(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", Type::BOOL),
            ("options", Type::DYN),
        ],
    )
}

fn namespace() -> Type {
    let text = || Type::STRING;
    let time = || Type::Simple(Simple::Timestamp);
    let texts = || Type::map(Type::STRING, Type::STRING);
    let condition = Type::object(
        "kubernetes.NamespaceCondition",
        [("status", text()), ("type", text()), ("lastTransitionTime", time()), ("message", text()), ("reason", text())],
    );
    let metadata = Type::object(
        "kubernetes.NamespaceMetadata",
        [
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", texts()),
            ("annotations", texts()),
            ("UID", text()),
            ("creationTimestamp", time()),
            ("deletionGracePeriodSeconds", Type::INT),
            ("deletionTimestamp", time()),
            ("generation", Type::INT),
            ("resourceVersion", text()),
            ("finalizers", Type::list(text())),
        ],
    );
    let spec = Type::object("kubernetes.NamespaceSpec", [("finalizers", Type::list(text()))]);
    let status = Type::object("kubernetes.NamespaceStatus", [("conditions", Type::list(condition)), ("phase", text())]);
    Type::object("kubernetes.Namespace", [("metadata", metadata), ("spec", spec), ("status", status)])
}
