//! Node selectors and required node affinity, decoded once and matched often
//! (component-helpers/scheduling/corev1/nodeaffinity).

use crate::intern::{Interner, Str, label};
use crate::meta::Meta;
use crate::value::names::is_label_value;
use crate::wire::schema::{node_selector, node_selector_requirement as requirement, node_selector_term as term};
use crate::wire::{WireError, fields};

/// The only field of a node that requirements can refer to.
pub const NAME_FIELD: &str = "metadata.name";

/// A node selector: at least one of its terms must match. A selector without terms matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSelector {
    /// The terms that can match. Empty ones, of which an object may have 700,000, are left out: they match nothing.
    pub terms: Vec<Term>,
}

/// A term: all of its requirements must hold. A term without requirements matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Term {
    /// Requirements on labels.
    pub labels: Vec<Requirement>,
    /// Requirements on fields.
    pub fields: Vec<Requirement>,
}

/// One requirement on a label or field, as in the spec; it may be invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Name of the label or field.
    pub key: Str,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    pub operator: Str,
    /// The values that the operator compares with.
    pub values: Vec<Str>,
}

impl NodeSelector {
    /// Reads a `NodeSelector` message.
    ///
    /// # Errors
    /// When `message` is not well-formed.
    pub fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut selector = Self::default();
        for field in fields(message) {
            let field = field?;
            if field.number == node_selector::NODE_SELECTOR_TERMS {
                selector
                    .terms
                    .extend(Some(Term::decode(interner, field.value.bytes())?).filter(|term| !term.is_empty()));
            }
        }
        Ok(selector)
    }

    /// Returns true if the selector matches a node.
    pub fn matches(&self, node: &Meta) -> bool {
        self.terms.iter().any(|term| term.matches(node))
    }
}

impl Term {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                term::MATCH_EXPRESSIONS => read.labels.push(Requirement::decode(interner, field.value.bytes())?),
                term::MATCH_FIELDS => read.fields.push(Requirement::decode(interner, field.value.bytes())?),
                _ => {}
            }
        }
        Ok(read)
    }

    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns true if all requirements hold. An empty term matches nothing.
    fn matches(&self, node: &Meta) -> bool {
        !self.is_empty()
            && self.labels.iter().all(|requirement| requirement.holds_for_labels(&node.labels))
            && self.fields.iter().all(|requirement| requirement.holds_for_name(&node.name))
    }
}

impl Requirement {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut key = "";
        let mut operator = "";
        let mut values = Vec::new();
        for field in fields(message) {
            let field = field?;
            match field.number {
                requirement::KEY => key = field.value.str(),
                requirement::OPERATOR => operator = field.value.str(),
                requirement::VALUES => values.push(interner.str(field.value.str())),
                _ => {}
            }
        }
        Ok(Self { key: interner.str(key), operator: interner.str(operator), values })
    }

    /// Returns true if the requirement holds. An invalid one does not. Upstream: apimachinery/pkg/labels,
    /// NewRequirement.
    fn holds_for_labels(&self, labels: &[(Str, Str)]) -> bool {
        let value = label(labels, &self.key);
        let listed = || value.is_some_and(|value| self.values.iter().any(|wanted| **wanted == *value));
        let are_values_valid = self.values.iter().all(|value| is_label_value(value));
        are_values_valid
            && match (&*self.operator, &self.values[..]) {
                ("In", [_, ..]) => listed(),
                ("NotIn", [_, ..]) => !listed(),
                ("Exists", []) => value.is_some(),
                ("DoesNotExist", []) => value.is_none(),
                ("Gt", [bound]) => compare(value, bound).is_some_and(|(value, bound)| value > bound),
                ("Lt", [bound]) => compare(value, bound).is_some_and(|(value, bound)| value < bound),
                _ => false,
            }
    }

    /// Returns true if the requirement holds for a node with this name; other fields than the name count as empty.
    fn holds_for_name(&self, name: &str) -> bool {
        let value = if &*self.key == NAME_FIELD { name } else { "" };
        match (&*self.operator, &self.values[..]) {
            ("In", [wanted]) => **wanted == *value,
            ("NotIn", [refused]) => **refused != *value,
            _ => false,
        }
    }
}

fn compare(value: Option<&str>, bound: &str) -> Option<(i64, i64)> {
    Some((value?.parse().ok()?, bound.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::object_meta;

    fn requirement(key: &str, operator: &str, values: &[&str]) -> Requirement {
        let values = values.iter().map(|value| Str::from(*value)).collect();
        Requirement { key: key.into(), operator: operator.into(), values }
    }

    #[test]
    fn empty_terms_are_left_out_and_match_nothing() {
        let mut message = Vec::new();
        (0..1000).for_each(|_| message.put_message(node_selector::NODE_SELECTOR_TERMS, |_| {}));
        let interner = Interner::default();
        let node = Meta::decode(
            &interner,
            &{
                let mut meta = Vec::new();
                meta.put_str(object_meta::NAME, "a");
                meta.put_str(object_meta::RESOURCE_VERSION, "1");
                meta
            },
            |_, _| {},
        )
        .expect("a node");
        let empty = NodeSelector::decode(&interner, &message).expect("well-formed");
        assert!(empty.terms.is_empty() && !empty.matches(&node));
        message.put_message(node_selector::NODE_SELECTOR_TERMS, |term| {
            term.put_message(term::MATCH_FIELDS, |field| {
                field.put_str(requirement::KEY, NAME_FIELD);
                field.put_str(requirement::OPERATOR, "In");
                field.put_str(requirement::VALUES, "a");
            });
        });
        let some = NodeSelector::decode(&interner, &message).expect("well-formed");
        assert_eq!((some.terms.len(), some.matches(&node)), (1, true));
    }

    #[test]
    fn label_requirements_hold_as_for_the_scheduler() {
        let labels = [("cpus".into(), "16".into()), ("zone".into(), "a".into())];
        for (key, operator, values, expected) in [
            ("zone", "In", &["a", "b"][..], true),
            ("zone", "In", &["b"], false),
            ("zone", "In", &[], false),
            ("rack", "In", &["a"], false),
            ("zone", "NotIn", &["b"], true),
            ("zone", "NotIn", &["a"], false),
            ("rack", "NotIn", &["a"], true),
            ("rack", "NotIn", &[], false),
            ("rack", "NotIn", &["not a label"], false),
            ("zone", "Exists", &[], true),
            ("zone", "Exists", &["a"], false),
            ("rack", "Exists", &[], false),
            ("rack", "DoesNotExist", &[], true),
            ("rack", "DoesNotExist", &["a"], false),
            ("zone", "DoesNotExist", &[], false),
            ("cpus", "Gt", &["8"], true),
            ("cpus", "Gt", &["16"], false),
            ("cpus", "Gt", &["8", "9"], false),
            ("cpus", "Gt", &["many"], false),
            ("zone", "Gt", &["8"], false),
            ("rack", "Gt", &["8"], false),
            ("cpus", "Lt", &["32"], true),
            ("cpus", "Lt", &["16"], false),
            ("zone", "Near", &["a"], false),
        ] {
            assert_eq!(
                requirement(key, operator, values).holds_for_labels(&labels),
                expected,
                "{key} {operator} {values:?}"
            );
        }
    }

    #[test]
    fn field_requirements_support_only_the_name() {
        for (key, operator, values, expected) in [
            (NAME_FIELD, "In", &["node-1"][..], true),
            (NAME_FIELD, "In", &["node-2"], false),
            (NAME_FIELD, "In", &["node-1", "node-2"], false),
            (NAME_FIELD, "NotIn", &["node-2"], true),
            (NAME_FIELD, "NotIn", &["node-1"], false),
            (NAME_FIELD, "Exists", &[], false),
            ("spec.unschedulable", "In", &["true"], false),
            ("spec.unschedulable", "NotIn", &["true"], true),
        ] {
            assert_eq!(
                requirement(key, operator, values).holds_for_name("node-1"),
                expected,
                "{key} {operator} {values:?}"
            );
        }
    }

    #[test]
    fn selector_matches_when_all_requirements_of_one_term_hold() {
        let mut node = Vec::new();
        node.put_str(object_meta::NAME, "node-1");
        node.put_str(object_meta::RESOURCE_VERSION, "1");
        node.put_entry(object_meta::LABELS, "zone", "a");
        let node = Meta::decode(&Interner::default(), &node, |_, _| {}).expect("well-formed");
        let zone = |zone| vec![requirement("zone", "In", &[zone])];
        let name = |name| vec![requirement(NAME_FIELD, "In", &[name])];
        let term = |labels, fields| Term { labels, fields };
        for (terms, expected) in [
            (vec![], false),
            (vec![term(vec![], vec![])], false),
            (vec![term(zone("a"), vec![])], true),
            (vec![term(zone("a"), name("node-1"))], true),
            (vec![term(zone("a"), name("node-2"))], false),
            (vec![term(zone("b"), name("node-1"))], false),
            (vec![term(zone("b"), vec![]), term(vec![], name("node-1"))], true),
            (vec![term(vec![requirement("zone", "Near", &[])], vec![]), term(zone("a"), vec![])], true),
        ] {
            assert_eq!(NodeSelector { terms: terms.clone() }.matches(&node), expected, "{terms:?}");
        }
    }
}
