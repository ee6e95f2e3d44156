//! ClusterRole: its rules, and the selectors of aggregated roles.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError, Sections};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::value::selector::Selector;
use crate::wire::fields;
use crate::wire::schema::{aggregation_rule, cluster_role as object, policy_rule};

/// A ClusterRole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRole {
    /// Metadata.
    pub meta: Meta,
    /// Its rules, in order; only with section [`ClusterRole::RULES`].
    pub rules: Box<[Rule]>,
    /// The selectors of the roles whose rules it aggregates; `None` without an aggregation rule.
    pub aggregates: Option<Box<[Selector]>>,
}

/// A rule in its encoded form, in which absent and empty lists are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule(Arc<[u8]>);

impl Rule {
    /// Returns a list of the rule, by its field number in [`crate::wire::schema::policy_rule`].
    pub fn list(&self, number: u32) -> impl Iterator<Item = &str> {
        fields(&self.0).flatten().filter(move |field| field.number == number).map(|field| field.value.str())
    }

    /// The lists of a rule, by their names in JSON.
    pub const LISTS: [(&'static str, u32); 5] = [
        ("verbs", policy_rule::VERBS),
        ("apiGroups", policy_rule::API_GROUPS),
        ("resources", policy_rule::RESOURCES),
        ("resourceNames", policy_rule::RESOURCE_NAMES),
        ("nonResourceURLs", policy_rule::NON_RESOURCE_URLS),
    ];
}

impl ClusterRole {
    /// Section: the rules.
    pub const RULES: Sections = Sections(1);
}

impl Kind for ClusterRole {
    const RESOURCE: Resource = Resource {
        group: "rbac.authorization.k8s.io",
        version: "v1",
        kind: "ClusterRole",
        plural: "clusterroles",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut meta = &[][..];
        let mut rules = Vec::new();
        let mut aggregates = None;
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::METADATA => meta = field.value.bytes(),
                object::RULES if context.sections.contains(Self::RULES) => {
                    rules.push(Rule(context.interner.blob(field.value.bytes())));
                }
                object::AGGREGATION_RULE => {
                    let mut selectors = Vec::new();
                    for field in fields(field.value.bytes()) {
                        let field = field?;
                        if field.number == aggregation_rule::CLUSTER_ROLE_SELECTORS {
                            selectors.push(Selector::decode(&context.interner, field.value.bytes())?);
                        }
                    }
                    aggregates = Some(selectors.into());
                }
                _ => {}
            }
        }
        Ok(Self { meta: Meta::decode(&context.interner, meta, |_, _| {})?, rules: rules.into(), aggregates })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
