//! Which pods use which volume, with which label and policy, and which of them conflict.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};

use kinds::Str;
use kinds::meta::ObjectKey;
use runtime::lock::lock;

use super::label;

/// How the labels of a volume's files are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The volume is mounted with the label.
    MountOption,
    /// The files are relabeled one by one.
    Recursive,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Self::MountOption => "MountOption",
            Self::Recursive => "Recursive",
        }
    }
}

/// How a pod uses a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The label to mount with; empty if the volume is not mounted with one.
    pub label: Str,
    /// The effective policy.
    pub policy: Policy,
}

/// What two pods differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Property {
    /// The policy.
    ChangePolicy,
    /// The label.
    Label,
}

impl Property {
    /// Returns its name in events and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChangePolicy => "SELinuxChangePolicy",
            Self::Label => "SELinuxLabel",
        }
    }

    /// Returns the reason of events.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ChangePolicy => "SELinuxChangePolicyConflict",
            Self::Label => "SELinuxLabelConflict",
        }
    }
}

/// A conflict, seen from one of its two pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// What differs.
    pub property: Property,
    /// The pod.
    pub pod: ObjectKey,
    /// Its value.
    pub value: Str,
    /// The pod that uses the same volume.
    pub other: ObjectKey,
    /// That one's value.
    pub other_value: Str,
}

impl Conflict {
    /// Returns the message of the event. It does not name pods of another namespace.
    pub fn message(&self) -> String {
        const END: &str = "If both pods land on the same node, only one of them may access the volume.";
        let Self { property, value, other, other_value, .. } = self;
        let property = property.name();
        if self.pod.namespace == other.namespace {
            return format!(
                "{property} \"{value}\" conflicts with pod {} that uses the same volume as this pod with {property} \
                 \"{other_value}\". {END}",
                other.name
            );
        }
        // Upstream has no space after the property here.
        format!(
            "{property}\"{value}\" conflicts with another pod that uses the same volume as this pod with a different \
             {property}. {END}"
        )
    }

    fn reversed(&self) -> Self {
        Self {
            property: self.property,
            pod: self.other.clone(),
            value: self.other_value.clone(),
            other: self.pod.clone(),
            other_value: self.value.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct UsedVolume {
    /// Name of its CSI driver; empty for other volumes.
    driver: Str,
    pods: BTreeMap<ObjectKey, Use>,
}

#[derive(Debug, Default)]
struct State {
    volumes: HashMap<Str, UsedVolume>,
    by_pod: HashMap<ObjectKey, Vec<Str>>,
}

/// All volumes that pods use.
#[derive(Debug, Default)]
pub struct UsedVolumes(Mutex<State>);

impl UsedVolumes {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Records how a pod uses its volumes, by unique name and driver. Returns the conflicts that are new, each from both
    /// sides: none for a volume that is used as before.
    pub fn put(&self, pod: &ObjectKey, uses: Vec<(Str, Str, Use)>) -> Vec<Conflict> {
        let mut state = self.lock();
        let names: Vec<Str> = uses.iter().map(|(volume, ..)| volume.clone()).collect();
        state.drop_all_but(pod, &names);
        let mut found = Vec::new();
        for (name, driver, mine) in uses {
            let volume = state.volumes.entry(name).or_default();
            volume.driver = driver;
            if volume.pods.get(pod) == Some(&mine) {
                continue;
            }
            for (other, theirs) in volume.pods.iter().filter(|(other, _)| *other != pod) {
                for conflict in conflicts((pod, &mine), (other, theirs)) {
                    let reversed = conflict.reversed();
                    found.extend([conflict, reversed]);
                }
            }
            volume.pods.insert(pod.clone(), mine);
        }
        if !names.is_empty() {
            state.by_pod.insert(pod.clone(), names);
        }
        found
    }

    /// Removes a pod that no longer uses volumes.
    pub fn remove(&self, pod: &ObjectKey) {
        self.lock().drop_all_but(pod, &[]);
    }

    /// Returns the pods that use a volume of a driver.
    pub fn pods_of_driver(&self, driver: &str) -> Vec<ObjectKey> {
        let state = self.lock();
        let volumes = state.volumes.values().filter(|volume| &*volume.driver == driver);
        let pods: BTreeSet<&ObjectKey> = volumes.flat_map(|volume| volume.pods.keys()).collect();
        pods.into_iter().cloned().collect()
    }

    /// Returns the present conflicts, each from both sides and once, whatever the number of volumes, up to this number.
    pub fn conflicts(&self, most: usize) -> BTreeSet<Conflict> {
        let state = self.lock();
        let mut found = BTreeSet::new();
        for volume in state.volumes.values() {
            for (at, mine) in volume.pods.iter().enumerate() {
                for theirs in volume.pods.iter().skip(at + 1) {
                    for conflict in conflicts(mine, theirs) {
                        if found.len() >= most {
                            return found;
                        }
                        found.insert(conflict.reversed());
                        found.insert(conflict);
                    }
                }
            }
        }
        found
    }
}

impl State {
    /// Removes a pod from the volumes that it does not use any longer.
    fn drop_all_but(&mut self, pod: &ObjectKey, kept: &[Str]) {
        for name in self.by_pod.remove(pod).unwrap_or_default() {
            if kept.contains(&name) {
                continue;
            }
            if let Some(volume) = self.volumes.get_mut(&name) {
                volume.pods.remove(pod);
                if volume.pods.is_empty() {
                    self.volumes.remove(&name);
                }
            }
        }
    }
}

/// Compares how two pods use a volume.
fn conflicts(mine: (&ObjectKey, &Use), theirs: (&ObjectKey, &Use)) -> Vec<Conflict> {
    let conflict = |property, value: &str, other_value: &str| Conflict {
        property,
        pod: mine.0.clone(),
        value: value.into(),
        other: theirs.0.clone(),
        other_value: other_value.into(),
    };
    let ((_, mine), (_, theirs)) = (mine, theirs);
    let mut found = Vec::new();
    if mine.policy != theirs.policy {
        found.push(conflict(Property::ChangePolicy, mine.policy.name(), theirs.policy.name()));
    }
    if label::conflict(&mine.label, &theirs.label) {
        found.push(conflict(Property::Label, &mine.label, &theirs.label));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    fn with(label: &str) -> Use {
        Use { label: label.into(), policy: Policy::MountOption }
    }

    fn recursive() -> Use {
        Use { label: "".into(), policy: Policy::Recursive }
    }

    fn put(used: &UsedVolumes, name: &str, volume: &str, mine: Use) -> Vec<(&'static str, String, String)> {
        let found = used.put(&pod(name), vec![(volume.into(), "disk.example.com".into(), mine)]);
        let short = |one: Conflict| (one.property.name(), one.pod.name.to_string(), one.other.name.to_string());
        found.into_iter().map(short).collect()
    }

    fn pair(property: &'static str, one: &str, other: &str) -> [(&'static str, String, String); 2] {
        [(property, one.to_owned(), other.to_owned()), (property, other.to_owned(), one.to_owned())]
    }

    #[test]
    fn each_conflict_is_found_once_from_both_sides() {
        let used = UsedVolumes::default();
        assert_eq!(put(&used, "a", "v", with(":::s0:c1")), []);
        assert_eq!(put(&used, "b", "v", with(":::s0:c1")), []);
        assert_eq!(put(&used, "c", "w", with(":::s0:c9")), [], "another volume");
        let with_a_and_b = [pair("SELinuxLabel", "d", "a"), pair("SELinuxLabel", "d", "b")].concat();
        assert_eq!(put(&used, "d", "v", with(":::s0:c2")), with_a_and_b);
        assert_eq!(put(&used, "d", "v", with(":::s0:c2")), [], "as before");
        assert_eq!(used.conflicts(100).len(), 4);
        let both = [pair("SELinuxChangePolicy", "c", "e"), pair("SELinuxLabel", "c", "e")].concat();
        assert_eq!(put(&used, "e", "w", recursive()).len(), both.len());
    }

    #[test]
    fn pods_that_end_or_change_take_their_conflicts_along() {
        let used = UsedVolumes::default();
        put(&used, "a", "v", with(":::s0:c1"));
        put(&used, "b", "v", with(":::s0:c2"));
        put(&used, "c", "v", with(":::s0:c3"));
        assert_eq!(used.conflicts(100).len(), 6);
        used.remove(&pod("b"));
        used.remove(&pod("b"));
        assert_eq!(used.conflicts(100).len(), 2);
        assert_eq!(put(&used, "c", "v", with(":::s0:c1")), [], "it changed to the label of the other one");
        assert_eq!(used.conflicts(100).len(), 0);
        assert_eq!(put(&used, "c", "w", with(":::s0:c2")), [], "it uses another volume now");
        used.remove(&pod("a"));
        used.remove(&pod("c"));
        let state = used.lock();
        assert!(state.volumes.is_empty() && state.by_pod.is_empty());
    }

    #[test]
    fn conflicts_on_several_volumes_are_one_and_their_number_is_limited() {
        let used = UsedVolumes::default();
        for (name, label) in [("a", ":::s0:c1"), ("b", ":::s0:c2")] {
            let uses = ["v", "w"].map(|volume| (volume.into(), "disk.example.com".into(), with(label)));
            used.put(&pod(name), uses.into());
        }
        assert_eq!(used.conflicts(100).len(), 2);
        for at in 0..100 {
            put(&used, &format!("p{at}"), "x", with(&format!(":::s0:c{at}")));
        }
        assert_eq!(used.conflicts(50).len(), 50);
        assert_eq!(used.pods_of_driver("disk.example.com").len(), 102);
        assert_eq!(used.pods_of_driver("other.example.com"), []);
    }

    #[test]
    fn message_names_the_other_pod_in_the_same_namespace_only() {
        let conflict = |namespace| Conflict {
            property: Property::Label,
            pod: pod("a"),
            value: ":::s0:c1".into(),
            other: ObjectKey::new(namespace, "b"),
            other_value: "".into(),
        };
        let end = "If both pods land on the same node, only one of them may access the volume.";
        assert_eq!(
            conflict("ns").message(),
            format!(
                "SELinuxLabel \":::s0:c1\" conflicts with pod b that uses the same volume as this pod with SELinuxLabel \
                 \"\". {end}"
            )
        );
        assert_eq!(
            conflict("other").message(),
            format!(
                "SELinuxLabel\":::s0:c1\" conflicts with another pod that uses the same volume as this pod with a \
                 different SELinuxLabel. {end}"
            )
        );
    }
}
