//! The changes of an initialized node, given its instance: addresses, and the labels and taints that follow the
//! instance. Policy, no IO.
//!
//! Only labels and taints with the provider's prefixes are changed: the others belong to users and other controllers.

use std::collections::BTreeMap;

use kinds::intern::label;
use kinds::meta::Time;
use kinds::taint::Taint;
use kinds::{Node, Str};
use providers::{Address, Instance, InstanceFeatures};

use super::decide::{BadNodeIp, addresses, has_addresses, is_kubernetes_own, is_label};

/// Labels to set, and to remove (`None`).
pub type LabelEdits = BTreeMap<String, Option<String>>;

/// The changes of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// New addresses; `None`: unchanged. With an error, too, the node keeps its addresses.
    pub addresses: Result<Option<Vec<Address>>, BadNodeIp>,
    /// Changed labels.
    pub labels: LabelEdits,
    /// The new list of all taints; `None`: unchanged.
    pub taints: Option<Vec<Taint>>,
}

impl Changes {
    /// Returns true if nothing is to be written.
    pub fn is_empty(&self) -> bool {
        !matches!(self.addresses, Ok(Some(_))) && self.labels.is_empty() && self.taints.is_none()
    }
}

/// Returns the changes that an initialized node needs.
pub fn changes(node: &Node, instance: &Instance, features: &InstanceFeatures) -> Changes {
    Changes {
        addresses: addresses(node, instance).map(|wanted| wanted.filter(|wanted| !has_addresses(node, wanted))),
        labels: label_edits(&node.meta.labels, instance, features.labels),
        taints: changed_taints(&node.taints, instance, features.taints),
    }
}

/// Returns the prefix if a provider may use it: it has a domain, which does not belong to Kubernetes.
fn usable(prefix: Option<&str>) -> Option<&str> {
    prefix.filter(|prefix| prefix.find('/').is_some_and(|at| at > 0) && !is_kubernetes_own(prefix))
}

/// Returns the changes of the labels with the provider's prefix.
pub fn label_edits(labels: &[(Str, Str)], instance: &Instance, prefix: Option<&str>) -> LabelEdits {
    let Some(prefix) = usable(prefix) else { return LabelEdits::new() };
    let follows = |(key, value): &(&String, &String)| key.starts_with(prefix) && is_label(key, value);
    let wanted: BTreeMap<&str, &str> =
        instance.labels.iter().filter(follows).map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let set = wanted.iter().filter(|(key, value)| label(labels, key) != Some(value));
    let set = set.map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned())));
    let removed = labels.iter().filter(|(key, _)| key.starts_with(prefix) && !wanted.contains_key(&**key));
    set.chain(removed.map(|(key, _)| (key.to_string(), None))).collect()
}

/// Returns the new list of a node's taints, including those of its instance, if it differs from the current list.
/// Unchanged taints keep their places and times.
pub fn changed_taints(taints: &[Taint], instance: &Instance, prefix: Option<&str>) -> Option<Vec<Taint>> {
    let prefix = usable(prefix)?;
    let wanted =
        instance.taints.iter().filter(|taint| taint.key.starts_with(prefix) && is_label(&taint.key, &taint.value));
    let mut wanted: BTreeMap<(&str, &str), &str> =
        wanted.map(|taint| ((taint.key.as_str(), taint.effect.as_str()), taint.value.as_str())).collect();
    let (mut all, mut differs) = (Vec::new(), false);
    for taint in taints {
        if !taint.key.starts_with(prefix) {
            all.push(taint.clone());
            continue;
        }
        match wanted.remove(&(&*taint.key, &*taint.effect)) {
            Some(value) if value == &*taint.value => all.push(taint.clone()),
            Some(value) => {
                all.push(Taint { value: value.into(), ..taint.clone() });
                differs = true;
            }
            None => differs = true,
        }
    }
    differs |= !wanted.is_empty();
    all.extend(wanted.into_iter().map(|((key, effect), value)| Taint {
        key: key.into(),
        value: value.into(),
        effect: effect.into(),
        added: Time::default(),
    }));
    differs.then_some(all)
}

#[cfg(test)]
mod tests {
    use providers::TaintEffect;

    use super::*;

    const PREFIX: &str = "node.acme.com/";

    fn pairs(labels: &[(&str, &str)]) -> Vec<(Str, Str)> {
        let mut pairs: Vec<(Str, Str)> = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        pairs.sort();
        pairs
    }

    fn labelled(labels: &[(&str, &str)]) -> Instance {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Instance { labels: labels.collect(), ..Instance::default() }
    }

    #[test]
    fn labels_with_the_prefix_follow_the_instance_and_others_stay() {
        let rack = "node.acme.com/rack";
        for (has, instance, want) in [
            (&[][..], &[][..], &[][..]),
            (&[], &[(rack, "7")], &[(rack, Some("7"))]),
            (&[(rack, "7")], &[(rack, "7")], &[]),
            (&[(rack, "6")], &[(rack, "7")], &[(rack, Some("7"))]),
            (&[(rack, "6"), ("team", "a"), ("acme.com/x", "y")], &[], &[(rack, None)]),
            (&[("team", "a")], &[("team", "b"), ("acme.com/x", "y")], &[]),
            // A text that the API server would refuse: the label must not keep its old value either.
            (&[(rack, "6")], &[(rack, "two words"), ("node.acme.com/a b", "1")], &[(rack, None)]),
        ] {
            let edits = label_edits(&pairs(has), &labelled(instance), Some(PREFIX));
            let want: LabelEdits =
                want.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect();
            assert_eq!(edits, want, "{has:?} {instance:?}");
        }
    }

    #[test]
    fn labels_and_taints_without_a_usable_prefix_are_not_changed() {
        let key = "node.kubernetes.io/out-of-service";
        let instance = Instance { taints: vec![taint(key, TaintEffect::NoExecute, "")], ..labelled(&[(key, "1")]) };
        for prefix in [None, Some(""), Some("/"), Some("node"), Some("node.kubernetes.io/"), Some("a.k8s.io/")] {
            assert!(label_edits(&pairs(&[("a.k8s.io/x", "1"), ("node", "1")]), &instance, prefix).is_empty());
            assert_eq!(changed_taints(&[own("node", "NoSchedule", "")], &instance, prefix), None, "{prefix:?}");
        }
    }

    fn taint(key: &str, effect: TaintEffect, value: &str) -> providers::Taint {
        providers::Taint { key: key.into(), effect, value: value.into() }
    }

    fn own(key: &str, effect: &str, value: &str) -> Taint {
        Taint { key: key.into(), value: value.into(), effect: effect.into(), added: Time(5) }
    }

    #[test]
    fn taints_with_the_prefix_follow_the_instance_and_others_stay() {
        use TaintEffect::{NoExecute, NoSchedule};
        let (key, other) = ("node.acme.com/maintenance", own("team", "NoExecute", "a"));
        let new = |effect: &str, value: &str| Taint { added: Time::default(), ..own(key, effect, value) };
        for (has, instance, want) in [
            (vec![other.clone()], vec![], None),
            (vec![other.clone()], vec![taint("team", NoExecute, "b")], None),
            (
                vec![other.clone()],
                vec![taint(key, NoSchedule, "soon")],
                Some(vec![other.clone(), new("NoSchedule", "soon")]),
            ),
            (vec![own(key, "NoSchedule", "soon"), other.clone()], vec![taint(key, NoSchedule, "soon")], None),
            (
                vec![own(key, "NoSchedule", "soon"), other.clone()],
                vec![taint(key, NoSchedule, "now"), taint(key, NoExecute, "")],
                Some(vec![own(key, "NoSchedule", "now"), other.clone(), new("NoExecute", "")]),
            ),
            (vec![own(key, "NoSchedule", ""), other.clone()], vec![], Some(vec![other.clone()])),
            (vec![], vec![taint(key, NoSchedule, "two words")], None),
            // The API server refuses a list with two taints of one key and effect.
            (
                vec![],
                vec![taint(key, NoSchedule, "a"), taint(key, NoSchedule, "b")],
                Some(vec![new("NoSchedule", "b")]),
            ),
        ] {
            let instance = Instance { taints: instance, ..Instance::default() };
            let changed = changed_taints(&has, &instance, Some(PREFIX));
            assert_eq!(changed, want, "{has:?} {instance:?}");
            if let Some(changed) = changed {
                assert_eq!(changed_taints(&changed, &instance, Some(PREFIX)), None, "{changed:?} is changed again");
            }
        }
    }
}
