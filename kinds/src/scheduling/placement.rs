//! Placement of pods: the node constraints of a pod's spec, and the selection of one node by affinity.

use crate::intern::{Interner, Labels, Str, label};
use crate::meta::Meta;
use crate::scheduling::node_selector::{NAME_FIELD, NodeSelector};
use crate::scheduling::taint::{Toleration, Tolerations};
use crate::wire::schema::{
    affinity, node_affinity, node_selector, node_selector_requirement, node_selector_term, pod_spec,
};
use crate::wire::{Put, WireError, copy_fields, fields, find, map_entry};

const REQUIRED: u32 = node_affinity::REQUIRED_DURING_SCHEDULING_IGNORED_DURING_EXECUTION;

/// Maximum number of labels, terms, requirements, values and tolerations in total, with which a comparison with a node
/// takes only microseconds.
const MAX_SMALL_WEIGHT: usize = 1_000;

/// The node constraints of a pod's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The node that the spec names; empty if none.
    pub node_name: Str,
    /// Labels that the node must have.
    pub node_selector: Labels,
    /// The required node affinity.
    pub required: Option<NodeSelector>,
    /// `spec.tolerations`.
    pub tolerations: Tolerations,
    /// Pods use the network of their node.
    pub host_network: bool,
}

impl Placement {
    /// Reads a `PodSpec` message.
    ///
    /// # Errors
    /// When `spec` is not well-formed.
    pub fn decode(interner: &Interner, spec: &[u8]) -> Result<Self, WireError> {
        let mut node_labels = Vec::new();
        let mut placement = Self {
            node_name: interner.str(""),
            node_selector: interner.labels(Vec::new()),
            required: None,
            tolerations: Tolerations::all(interner, spec)?,
            host_network: false,
        };
        for field in fields(spec) {
            let field = field?;
            match field.number {
                pod_spec::NODE_NAME => placement.node_name = interner.str(field.value.str()),
                pod_spec::NODE_SELECTOR => {
                    let (key, value) = map_entry(field.value.bytes())?;
                    node_labels.push((interner.str(key), interner.str(value)));
                }
                pod_spec::AFFINITY => placement.required = required(interner, field.value.bytes())?,
                pod_spec::HOST_NETWORK => placement.host_network = field.value.bool(),
                _ => {}
            }
        }
        placement.node_selector = interner.labels(node_labels);
        Ok(placement)
    }

    /// Returns true if a comparison with a node may take milliseconds: users determine the numbers of terms,
    /// requirements, values and tolerations.
    pub fn is_large(&self) -> bool {
        let terms = self.required.iter().flat_map(|required| &required.terms);
        let weights = terms.flat_map(|term| {
            let requirements = term.labels.iter().chain(&term.fields);
            std::iter::once(1).chain(requirements.map(|requirement| 1 + requirement.values.len()))
        });
        let listed = self.node_selector.len() + self.tolerations.iter().take(MAX_SMALL_WEIGHT + 1).count();
        let counted = weights
            .take(MAX_SMALL_WEIGHT + 1)
            .try_fold(listed, |sum, weight| (sum <= MAX_SMALL_WEIGHT).then(|| sum + weight));
        counted.is_none_or(|sum| sum > MAX_SMALL_WEIGHT)
    }

    /// Returns true if node selector and required node affinity allow a node
    /// (component-helpers/scheduling/corev1/nodeaffinity, RequiredNodeAffinity).
    pub fn selects(&self, node: &Meta) -> bool {
        self.node_selector.iter().all(|(key, value)| label(&node.labels, key) == Some(value))
            && self.required.as_ref().is_none_or(|required| required.matches(node))
    }
}

fn required(interner: &Interner, message: &[u8]) -> Result<Option<NodeSelector>, WireError> {
    match nested(nested(Some(message), affinity::NODE_AFFINITY), REQUIRED) {
        Some(required) => NodeSelector::decode(interner, required).map(Some),
        None => Ok(None),
    }
}

/// Returns the nested message with this field number, which may exist and be empty.
fn nested(message: Option<&[u8]>, number: u32) -> Option<&[u8]> {
    fields(message?).flatten().filter(|field| field.number == number).last().map(|field| field.value.bytes())
}

/// Returns the node that a spec's required node affinity selects by name. Upstream: pkg/controller/daemon/util,
/// GetTargetNodeName.
pub fn target_node(spec: &[u8]) -> Option<&str> {
    let affinity = find(spec, pod_spec::AFFINITY);
    let required = find(find(affinity, affinity::NODE_AFFINITY), REQUIRED);
    let terms = values_of(required, node_selector::NODE_SELECTOR_TERMS);
    let named = terms.flat_map(|term| values_of(term, node_selector_term::MATCH_FIELDS)).find(|requirement| {
        find(requirement, node_selector_requirement::KEY) == NAME_FIELD.as_bytes()
            && find(requirement, node_selector_requirement::OPERATOR) == b"In"
    })?;
    let mut values = values_of(named, node_selector_requirement::VALUES);
    let only = values.next().filter(|_| values.next().is_none())?;
    std::str::from_utf8(only).ok()
}

/// Returns the values of all fields with this number.
fn values_of(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    fields(message).flatten().filter(move |field| field.number == number).map(|field| field.value.bytes())
}

/// A pod spec for a series of pods, each with an affinity to a different node. All fields except affinity and
/// tolerations keep their encoding.
#[derive(Debug, Clone)]
pub struct NodeSpecTemplate {
    /// The spec without its affinity.
    rest: Vec<u8>,
    affinity: Vec<u8>,
    node_affinity: Vec<u8>,
    required: Vec<u8>,
}

impl NodeSpecTemplate {
    /// Prepares a spec. `tolerations` replace those for the same taints, or are appended.
    ///
    /// # Errors
    /// When `spec` is not well-formed.
    pub fn new(spec: &[u8], tolerations: &[Toleration<'_>]) -> Result<Self, WireError> {
        let mut rest = Vec::with_capacity(spec.len() + 512);
        let mut missing: Vec<&Toleration<'_>> = tolerations.iter().collect();
        for field in fields(spec) {
            let field = field?;
            match field.number {
                pod_spec::AFFINITY => {}
                pod_spec::TOLERATIONS => {
                    let given = Toleration::decode(field.value.bytes())?;
                    match tolerations.iter().find(|toleration| toleration.same_taints(&given)) {
                        Some(toleration) => {
                            toleration.put(&mut rest, pod_spec::TOLERATIONS);
                            missing.retain(|missing| *missing != toleration);
                        }
                        None => rest.extend_from_slice(field.raw),
                    }
                }
                _ => rest.extend_from_slice(field.raw),
            }
        }
        missing.into_iter().for_each(|toleration| toleration.put(&mut rest, pod_spec::TOLERATIONS));
        let without = |message: &[u8], number| {
            let mut others = Vec::new();
            copy_fields(message, &mut others, |field| field.number != number).map(|()| others)
        };
        let whole = find(spec, pod_spec::AFFINITY);
        let nodes = find(whole, affinity::NODE_AFFINITY);
        let required = find(nodes, REQUIRED);
        Ok(Self {
            rest,
            affinity: without(whole, affinity::NODE_AFFINITY)?,
            node_affinity: without(nodes, REQUIRED)?,
            required: without(required, node_selector::NODE_SELECTOR_TERMS)?,
        })
    }

    /// Returns the spec for a node: the node's name replaces all required terms. Upstream: pkg/controller/daemon/util,
    /// ReplaceDaemonSetPodNodeNameNodeAffinity.
    pub fn for_node(&self, node: &str) -> Vec<u8> {
        let mut spec = Vec::with_capacity(self.rest.len() + self.affinity.len() + self.node_affinity.len() + 128);
        spec.extend_from_slice(&self.rest);
        spec.put_message(pod_spec::AFFINITY, |affinity| {
            affinity.extend_from_slice(&self.affinity);
            affinity.put_message(affinity::NODE_AFFINITY, |nodes| {
                nodes.extend_from_slice(&self.node_affinity);
                nodes.put_message(REQUIRED, |required| {
                    required.extend_from_slice(&self.required);
                    required.put_message(node_selector::NODE_SELECTOR_TERMS, |term| {
                        term.put_message(node_selector_term::MATCH_FIELDS, |requirement| {
                            requirement.put_str(node_selector_requirement::KEY, NAME_FIELD);
                            requirement.put_str(node_selector_requirement::OPERATOR, "In");
                            requirement.put_str(node_selector_requirement::VALUES, node);
                        });
                    });
                });
            });
        });
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::node_selector::Requirement;

    /// Writes a part of a pod's specification.
    type Edit<'a> = &'a dyn Fn(&mut Vec<u8>);

    const UNKNOWN: u32 = 99;

    /// Returns a spec with an unknown field at every level of its affinity.
    fn spec(tolerations: &[Toleration<'_>]) -> Vec<u8> {
        let mut spec = Vec::new();
        spec.put_str(UNKNOWN, "spec");
        tolerations.iter().for_each(|toleration| toleration.put(&mut spec, pod_spec::TOLERATIONS));
        spec.put_message(pod_spec::AFFINITY, |affinity| {
            affinity.put_str(UNKNOWN, "affinity");
            affinity.put_message(affinity::NODE_AFFINITY, |nodes| {
                nodes.put_str(UNKNOWN, "node affinity");
                nodes.put_message(REQUIRED, |required| {
                    required.put_str(UNKNOWN, "required");
                    for zone in ["a", "b"] {
                        required.put_message(node_selector::NODE_SELECTOR_TERMS, |term| {
                            term.put_message(node_selector_term::MATCH_EXPRESSIONS, |requirement| {
                                requirement.put_str(node_selector_requirement::KEY, "zone");
                                requirement.put_str(node_selector_requirement::OPERATOR, "In");
                                requirement.put_str(node_selector_requirement::VALUES, zone);
                            });
                        });
                    }
                });
            });
        });
        spec
    }

    fn aimed(spec: &[u8], tolerations: &[Toleration<'_>]) -> Vec<u8> {
        NodeSpecTemplate::new(spec, tolerations).expect("well-formed").for_node("node-1")
    }

    #[test]
    fn new_target_replaces_only_the_required_terms() {
        let interner = Interner::default();
        let aimed = aimed(&spec(&[]), &[]);
        let placement = Placement::decode(&interner, &aimed).expect("well-formed");
        let [term] = &placement.required.expect("there is one").terms[..] else { panic!("one term") };
        assert!(term.labels.is_empty());
        let by_name = Requirement { key: NAME_FIELD.into(), operator: "In".into(), values: vec!["node-1".into()] };
        assert_eq!(term.fields, [by_name]);
        let affinity = find(&aimed, pod_spec::AFFINITY);
        let nodes = find(affinity, affinity::NODE_AFFINITY);
        let unknown = [&aimed[..], affinity, nodes, find(nodes, REQUIRED)].map(|message| find(message, UNKNOWN));
        assert_eq!(unknown, [&b"spec"[..], b"affinity", b"node affinity", b"required"]);
    }

    #[test]
    fn target_is_the_node_of_the_affinity() {
        assert_eq!(target_node(&spec(&[])), None);
        assert_eq!(target_node(&aimed(&spec(&[]), &[])), Some("node-1"));
        assert_eq!(target_node(&aimed(&[], &[])), Some("node-1"), "spec without an affinity");
        assert_eq!(target_node(&[]), None);
    }

    #[test]
    fn tolerations_replace_those_for_the_same_taints() {
        let (a, b, c) = (Toleration::of("a", ""), Toleration::of("b", ""), Toleration::of("c", ""));
        let short = |toleration: Toleration<'static>| Toleration { seconds: Some(5), ..toleration };
        for (given, added, expected) in [
            (vec![], vec![a], vec![a]),
            (vec![short(c)], vec![a, b], vec![short(c), a, b]),
            (vec![short(a), c], vec![b, a], vec![a, c, b]),
        ] {
            let aimed = aimed(&spec(&given), &added);
            let placement = Placement::decode(&Interner::default(), &aimed).expect("well-formed");
            assert_eq!(placement.tolerations.iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn placement_is_large_when_any_of_its_lists_is_long() {
        let is_large = |edit: &dyn Fn(&mut Vec<u8>)| {
            let mut spec = Vec::new();
            edit(&mut spec);
            Placement::decode(&Interner::default(), &spec).expect("well-formed").is_large()
        };
        let affinity = |spec: &mut Vec<u8>, edit: &dyn Fn(&mut Vec<u8>)| {
            spec.put_message(pod_spec::AFFINITY, |affinity| {
                affinity.put_message(affinity::NODE_AFFINITY, |nodes| nodes.put_message(REQUIRED, edit));
            });
        };
        let term = |required: &mut Vec<u8>, requirements: usize, values: usize| {
            required.put_message(node_selector::NODE_SELECTOR_TERMS, |term| {
                for _ in 0..requirements {
                    term.put_message(node_selector_term::MATCH_EXPRESSIONS, |requirement| {
                        (0..values).for_each(|_| requirement.put_str(node_selector_requirement::VALUES, "v"));
                    });
                }
            });
        };
        for (count, expected) in [(10, false), (2_000, true)] {
            let toleration = Toleration::of("a", "");
            let cases: [(&str, Edit<'_>); 5] = [
                ("tolerations", &|spec| (0..count).for_each(|_| toleration.put(spec, pod_spec::TOLERATIONS))),
                ("labels", &|spec| {
                    (0..count).for_each(|number| spec.put_entry(pod_spec::NODE_SELECTOR, &number.to_string(), ""));
                }),
                ("terms", &|spec| affinity(spec, &|required| (0..count).for_each(|_| term(required, 1, 0)))),
                ("requirements", &|spec| affinity(spec, &|required| term(required, count, 0))),
                ("values", &|spec| affinity(spec, &|required| term(required, 1, count))),
            ];
            for (name, edit) in cases {
                assert_eq!(is_large(edit), expected, "{count} {name}");
            }
        }
    }

    #[test]
    fn selectors_and_affinity_must_both_allow_a_node() {
        let node = |labels: &[(&str, &str)]| {
            let mut meta = Vec::new();
            meta.put_str(crate::wire::schema::object_meta::NAME, "node-1");
            meta.put_str(crate::wire::schema::object_meta::RESOURCE_VERSION, "1");
            labels.iter().for_each(|(key, value)| meta.put_entry(crate::wire::schema::object_meta::LABELS, key, value));
            Meta::decode(&Interner::default(), &meta, |_, _| {}).expect("well-formed")
        };
        let mut spec = spec(&[]);
        spec.put_entry(pod_spec::NODE_SELECTOR, "disk", "fast");
        let placement = Placement::decode(&Interner::default(), &spec).expect("well-formed");
        for (labels, expected) in [
            (&[("disk", "fast"), ("zone", "b")][..], true),
            (&[("disk", "fast")], false),
            (&[("zone", "b")], false),
            (&[("disk", "slow"), ("zone", "b")], false),
        ] {
            assert_eq!(placement.selects(&node(labels)), expected, "{labels:?}");
        }
        let anywhere = Placement::decode(&Interner::default(), &[]).expect("well-formed");
        assert!(anywhere.selects(&node(&[])));
    }

    #[test]
    fn empty_required_affinity_selects_nothing() {
        let mut spec = Vec::new();
        spec.put_message(pod_spec::AFFINITY, |affinity| {
            affinity.put_message(affinity::NODE_AFFINITY, |nodes| nodes.put_message(REQUIRED, |_| {}));
        });
        let placement = Placement::decode(&Interner::default(), &spec).expect("well-formed");
        assert_eq!(placement.required, Some(NodeSelector::default()));
    }
}
