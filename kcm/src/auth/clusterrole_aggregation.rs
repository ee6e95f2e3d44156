//! clusterrole-aggregation-controller: sets the rules of a ClusterRole to those of all ClusterRoles that its
//! aggregation rule selects.
//!
//! Upstream: pkg/controller/clusterroleaggregation.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::cluster_role::Rule;
use kinds::meta::{Meta, ObjectKey};
use kinds::selector::{Requirement, Selector};
use kinds::{ClusterRole, Kind};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use serde_json::{Map, Value, json};

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "clusterrole-aggregation-controller",
    service_account: "clusterrole-aggregation-controller",
    watches,
    writes: &[Write { verb: Verb::Patch, group: "rbac.authorization.k8s.io", resource: "clusterroles" }],
    queues: &[QueueKeys::of("ClusterRoleAggregator", "ClusterRole")],
    start,
    ..Descriptor::NONE
};

const FIELD_MANAGER: &str = "clusterrole-aggregation-controller";
const WORKERS: usize = 5;

/// The roles with an aggregation rule.
const AGGREGATING: Index<ClusterRole> = Index {
    name: "aggregating",
    keys: |role, emit| {
        if role.aggregates.is_some() {
            emit(index_key(()));
        }
    },
};

/// Index of roles by each label, by the key of each label, and of all roles under one value.
const LABELLED: Index<ClusterRole> = Index {
    name: "labelled",
    keys: |role, emit| {
        emit(index_key(()));
        for (key, value) in &*role.meta.labels {
            emit(index_key(&**key));
            emit(index_key((&**key, &**value)));
        }
    },
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<ClusterRole>(ClusterRole::RULES, &[AGGREGATING, LABELLED]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named("ClusterRoleAggregator"));
    let roles = manager.registry().store::<ClusterRole>();
    let (changed, all) = (queue.clone(), roles.clone());
    // Any role may be a source of any aggregating role: the reconcile matches the labels.
    roles.subscribe(move |_| {
        all.by_index(&AGGREGATING, index_key(())).iter().for_each(|role| changed.add(role.meta.key()));
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let consistency = Consistency::default();
    let reconciler = Arc::new(Aggregation { roles, writer, consistency, queue: queue.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
}

/// Returns index values of [`LABELLED`] that together have every role that a selector matches.
fn candidates(selector: &Selector) -> Vec<u64> {
    let Selector::All(requirements) = selector else { return Vec::new() };
    let narrow = requirements.iter().find_map(|requirement| match requirement {
        Requirement::Equals(key, value) | Requirement::DoubleEquals(key, value) => {
            Some(vec![index_key((&**key, &**value))])
        }
        Requirement::In(key, values) => {
            let values: BTreeSet<&str> = values.iter().map(|value| &**value).collect();
            Some(values.into_iter().map(|value| index_key((&**key, value))).collect())
        }
        Requirement::Exists(key) => Some(vec![index_key(&**key)]),
        Requirement::NotEquals(..)
        | Requirement::NotIn(..)
        | Requirement::DoesNotExist(_)
        | Requirement::Greater(..)
        | Requirement::Less(..) => None,
    });
    narrow.unwrap_or_else(|| vec![index_key(())])
}

/// Returns the rules that a role gathers, ordered by selector and source, without duplicates. `found` returns at least
/// all roles that a selector matches.
fn gather(
    role: &ClusterRole,
    selectors: &[Selector],
    found: impl Fn(&Selector) -> Vec<Arc<ClusterRole>>,
) -> Result<Vec<Rule>, String> {
    let (mut rules, mut seen, mut gathered) = (Vec::new(), HashSet::new(), HashSet::new());
    for selector in selectors {
        if let Selector::Invalid(problem) = selector {
            return Err(format!("aggregationRule.clusterRoleSelectors of {}: {problem}", role.meta.name));
        }
        let mut sources = found(selector);
        // There may be tens of thousands of selectors that match the same roles.
        sources.retain(|source| {
            let is_other = source.meta.name != role.meta.name && !gathered.contains(&source.meta.name);
            is_other && selector.matches(&source.meta.labels)
        });
        sources.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
        for source in sources {
            for rule in &source.rules {
                if seen.insert(rule.clone()) {
                    rules.push(rule.clone());
                }
            }
            gathered.insert(source.meta.name.clone());
        }
    }
    Ok(rules)
}

/// Returns the object to apply. Without rules it has no `rules` field, so that only the rules that this controller set
/// are removed.
///
/// The apply fails for another version of the role. Without preconditions it would recreate a deleted role, and replace
/// the rules that a user has set on a role that no longer aggregates.
fn applied_object(role: &Meta, rules: &[Rule]) -> Value {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {
            "name": &*role.name, "uid": role.uid.to_string(), "resourceVersion": role.version.to_string(),
        },
    });
    if !rules.is_empty() {
        object["rules"] = rules.iter().map(rule_json).collect();
    }
    object
}

fn rule_json(rule: &Rule) -> Value {
    let lists = Rule::LISTS.iter().filter_map(|(name, number)| {
        let values: Vec<Value> = rule.list(*number).map(Value::from).collect();
        (!values.is_empty()).then(|| ((*name).to_owned(), Value::from(values)))
    });
    Value::Object(lists.collect::<Map<String, Value>>())
}

struct Aggregation {
    roles: Arc<Store<ClusterRole>>,
    writer: Writer,
    consistency: Consistency,
    queue: Arc<Queue<ObjectKey>>,
}

impl Reconcile for Aggregation {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Aggregation {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.consistency.caught_up(key, &self.roles, self.queue.waker(key)) {
            return Ok(Outcome::WaitingForCache);
        }
        let role = self.roles.get(key);
        let Some(role) = role.filter(|role| role.aggregates.is_some()) else {
            self.consistency.forget(key);
            return Ok(Outcome::Done);
        };
        let unreadable = self.roles.undecodable();
        if unreadable > 0 {
            let message =
                format!("not gathering rules while {unreadable} ClusterRoles cannot be decoded (see the log)");
            return Err(ReconcileError::new(message));
        }
        // The comparison of many selectors with many roles takes a while, and must not delay other tasks.
        let (roles, aggregating) = (self.roles.clone(), role.clone());
        let gathered = tokio::task::spawn_blocking(move || {
            let selectors = aggregating.aggregates.as_deref().unwrap_or_default();
            gather(&aggregating, selectors, |selector| find(&roles, selector))
        });
        let rules = gathered.await.map_err(|error| ReconcileError::new(error.to_string()))?;
        let rules = rules.map_err(ReconcileError::new)?;
        if *rules == *role.rules {
            return Ok(Outcome::Done);
        }
        let object = applied_object(&role.meta, &rules);
        match self.writer.apply(&ClusterRole::RESOURCE, key, None, FIELD_MANAGER, &object).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(key, &self.roles, meta.version);
                }
                Ok(Outcome::Done)
            }
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns at least all roles that a selector matches.
fn find(roles: &Store<ClusterRole>, selector: &Selector) -> Vec<Arc<ClusterRole>> {
    candidates(selector).into_iter().flat_map(|key| roles.by_index(&LABELLED, key)).collect()
}

#[cfg(test)]
mod tests {
    use kinds::schema::{
        aggregation_rule, cluster_role as f, label_selector, label_selector_requirement, object_meta, policy_rule,
    };
    use kinds::wire::Put;
    use kinds::{Decode, Interner};
    use proptest::prelude::*;
    use runtime::testing::CpuTime;

    use super::*;

    /// Returns a role with labels and rules; each rule is the name of a resource.
    fn role(name: &str, labels: &[(&str, &str)], rules: &[&str], selectors: Option<&[&[u8]]>) -> Arc<ClusterRole> {
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            labels.iter().for_each(|(key, value)| meta.put_entry(object_meta::LABELS, key, value));
        });
        for resource in rules {
            object.put_message(f::RULES, |rule| {
                rule.put_str(policy_rule::VERBS, "get");
                rule.put_str(policy_rule::API_GROUPS, "");
                rule.put_str(policy_rule::RESOURCES, resource);
            });
        }
        if let Some(selectors) = selectors {
            object.put_message(f::AGGREGATION_RULE, |rule| {
                selectors
                    .iter()
                    .for_each(|selector| rule.put_bytes(aggregation_rule::CLUSTER_ROLE_SELECTORS, selector));
            });
        }
        let context = Decode { interner: Arc::new(Interner::default()), sections: ClusterRole::RULES };
        Arc::new(ClusterRole::decode(&context, &object).expect("a role"))
    }

    fn labelled(key: &str, value: &str) -> Vec<u8> {
        let mut selector = Vec::new();
        selector.put_entry(label_selector::MATCH_LABELS, key, value);
        selector
    }

    fn gathered(role: &ClusterRole, all: &[Arc<ClusterRole>]) -> Result<Vec<String>, String> {
        let rules =
            gather(role, role.aggregates.as_ref().expect("the role has an aggregation rule"), |_| all.to_vec())?;
        Ok(rules.iter().map(|rule| rule.list(policy_rule::RESOURCES).collect()).collect())
    }

    #[test]
    fn rules_are_ordered_by_selector_and_source_without_duplicates() {
        let (first, second) = (labelled("a", "1"), labelled("b", "1"));
        let sum = role("sum", &[("a", "1")], &["own"], Some(&[&first, &second]));
        let all = [
            sum.clone(),
            role("z", &[("a", "1")], &["pods", "nodes"], None),
            role("y", &[("a", "1"), ("b", "1")], &["pods", "secrets"], None),
            role("x", &[("b", "1")], &["events"], None),
            role("w", &[("b", "2")], &["never"], None),
        ];
        assert_eq!(gathered(&sum, &all).expect("valid"), ["pods", "secrets", "nodes", "events"]);
        let lonely = role("lonely", &[], &["dead"], Some(&[&labelled("c", "1")]));
        assert!(gathered(&lonely, &all).expect("valid").is_empty());
        assert!(applied_object(&lonely.meta, &[]).get("rules").is_none());
    }

    #[test]
    fn rules_are_gathered_in_time_when_many_selectors_match_one_role() {
        let mut repeated = Vec::new();
        repeated.put_message(label_selector::MATCH_EXPRESSIONS, |requirement| {
            requirement.put_str(label_selector_requirement::KEY, "a");
            requirement.put_str(label_selector_requirement::OPERATOR, "In");
            (0..10_000).for_each(|_| requirement.put_str(label_selector_requirement::VALUES, "1"));
        });
        let resources: Vec<String> = (0..10_000).map(|number| format!("r{number}")).collect();
        let resources: Vec<&str> = resources.iter().map(String::as_str).collect();
        let all = [role("large", &[("a", "1")], &resources, None)];
        let selector = labelled("a", "1");
        let selectors: Vec<&[u8]> = std::iter::once(&*repeated).chain(vec![&*selector; 2_000]).collect();
        let sum = role("sum", &[], &[], Some(&selectors));
        let started = CpuTime::now();
        assert_eq!(gathered(&sum, &all).expect("valid").len(), resources.len());
        assert!(started.elapsed() < std::time::Duration::from_secs(3), "{:?}", started.elapsed());
        let selectors = sum.aggregates.as_deref().expect("the role has an aggregation rule");
        assert_eq!(candidates(&selectors[0]).len(), 1, "a repeated value is looked up once");
    }

    #[test]
    fn invalid_selector_is_an_error() {
        let mut invalid = Vec::new();
        invalid.put_message(label_selector::MATCH_EXPRESSIONS, |requirement| {
            requirement.put_str(label_selector_requirement::KEY, "a");
            requirement.put_str(label_selector_requirement::OPERATOR, "Near");
        });
        let role = role("sum", &[], &[], Some(&[&invalid]));
        assert!(gathered(&role, &[]).expect_err("invalid").contains("Near"));
    }

    #[test]
    fn rules_are_applied_to_the_version_that_was_read() {
        let role = role("r", &[], &["pods"], None);
        let expected = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "r", "uid": role.meta.uid.to_string(), "resourceVersion": "1"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
        });
        assert_eq!(applied_object(&role.meta, &role.rules), expected);
    }

    proptest! {
        /// The index never misses a role that the selector matches.
        #[test]
        fn candidates_hold_all_matches(
            labels in proptest::collection::vec(("[ab]", "[12]"), 0..3),
            requirements in proptest::collection::vec((0..6, "[ab]", "[12]"), 0..3),
        ) {
            let interner = Interner::default();
            let labels: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
            let role = role("r", &labels, &[], None);
            let requirements = requirements.into_iter().map(|(kind, key, value)| {
                let (key, value) = (interner.str(&key), interner.str(&value));
                match kind {
                    0 => Requirement::In(key, vec![value]),
                    1 => Requirement::NotIn(key, vec![value]),
                    2 => Requirement::Exists(key),
                    3 => Requirement::Equals(key, value),
                    4 => Requirement::NotEquals(key, value),
                    _ => Requirement::DoesNotExist(key),
                }
            });
            let selector = Selector::All(requirements.collect());
            let mut indexed = Vec::new();
            (LABELLED.keys)(&role, &mut |key| indexed.push(key));
            if selector.matches(&role.meta.labels) {
                prop_assert!(candidates(&selector).iter().any(|key| indexed.contains(key)));
            }
        }
    }
}
