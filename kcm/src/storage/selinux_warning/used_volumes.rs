//! Volumes of pods with their labels and policies, and the conflicts between pods.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use kinds::Str;
use kinds::meta::ObjectKey;
use runtime::lock::lock;

use super::label;

/// Number of new conflicts of a pod on a volume, counted from both sides, after which the pod is compared with no
/// further pods. Any user can create thousands of pods that conflict with each other, and the number of conflicts grows
/// with the square of the number of pods.
const MAX_REPORTED: usize = 2_000;

/// Method of labeling a volume's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Policy {
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

/// Labeling of a volume that a pod requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The label of the containers that mount the volume; empty if they have none.
    pub label: Str,
    /// The pod's policy is `Recursive`.
    pub is_recursive: bool,
}

impl Request {
    /// Decides how the volume is labeled. Upstream: pkg/volume/util, GetMountSELinuxLabel;
    /// pkg/controller/volume/selinuxwarning, syncVolume.
    fn effective_labeling(&self, supports_context: bool) -> EffectiveLabeling {
        if self.is_recursive || !supports_context || self.label.is_empty() {
            return EffectiveLabeling { label: "".into(), policy: Policy::Recursive };
        }
        EffectiveLabeling { label: self.label.clone(), policy: Policy::MountOption }
    }
}

/// A volume of a pod.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its unique name.
    pub name: Str,
    /// Name of its CSI driver; empty for other volumes.
    pub driver: Str,
    /// The volume can be mounted with a label.
    pub supports_context: bool,
    /// The requested labeling.
    pub request: Request,
}

/// Effective labeling of a volume for a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EffectiveLabeling {
    /// The label to mount with; empty if the volume is not mounted with one.
    label: Str,
    /// The effective policy.
    policy: Policy,
}

/// Property in which two pods differ.
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

/// A conflict from the point of view of one of its two pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The property that differs.
    pub property: Property,
    /// The pod.
    pub pod: ObjectKey,
    /// The pod's value.
    pub value: Str,
    /// The pod that uses the same volume.
    pub other: ObjectKey,
    /// The value of the other pod.
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

#[derive(Debug)]
struct Entry {
    request: Request,
    /// The labeling with which the pod was last compared with others.
    compared: EffectiveLabeling,
}

#[derive(Debug, Default)]
struct UsedVolume {
    /// Name of its CSI driver; empty for other volumes.
    driver: Str,
    supports_context: bool,
    pods: BTreeMap<ObjectKey, Entry>,
}

impl UsedVolume {
    fn effective_labeling(&self, entry: &Entry) -> EffectiveLabeling {
        entry.request.effective_labeling(self.supports_context)
    }

    /// Returns the pods by their effective labeling. Pods with the same labeling never conflict, so labelings are
    /// compared instead of pods.
    fn pods_by_labeling(&self) -> BTreeMap<EffectiveLabeling, Vec<&ObjectKey>> {
        let mut groups: BTreeMap<EffectiveLabeling, Vec<&ObjectKey>> = BTreeMap::new();
        for (pod, entry) in &self.pods {
            groups.entry(self.effective_labeling(entry)).or_default().push(pod);
        }
        groups
    }

    /// Records the labeling that a pod requests. Returns the pod's new conflicts with the pods that were compared since
    /// the driver changed. The other pods are compared with this one in their own reconciles.
    fn put(&mut self, pod: &ObjectKey, request: Request) -> Vec<Conflict> {
        let mine = request.effective_labeling(self.supports_context);
        let before = self.pods.insert(pod.clone(), Entry { request, compared: mine.clone() });
        if before.is_some_and(|before| before.compared == mine) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (other, entry) in self.pods.iter().filter(|(other, _)| *other != pod) {
            if found.len() >= MAX_REPORTED {
                break;
            }
            let theirs = self.effective_labeling(entry);
            if theirs != entry.compared {
                continue;
            }
            for conflict in conflicts((pod, &mine), (other, &theirs)) {
                let reversed = conflict.reversed();
                found.extend([conflict, reversed]);
            }
        }
        found
    }
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

    /// Records the volumes that a pod uses, and their requested labeling. Returns the conflicts that are new, each from
    /// both sides: none for a volume that is used as before.
    pub fn put(&self, pod: &ObjectKey, volumes: Vec<Volume>) -> Vec<Conflict> {
        let mut state = self.lock();
        let names: Vec<Str> = volumes.iter().map(|volume| volume.name.clone()).collect();
        state.remove_pod_except_from(pod, &names.iter().collect());
        let mut found = Vec::new();
        for volume in volumes {
            let used = state.volumes.entry(volume.name).or_default();
            used.driver = volume.driver;
            used.supports_context = volume.supports_context;
            found.extend(used.put(pod, volume.request));
        }
        if !names.is_empty() {
            state.by_pod.insert(pod.clone(), names);
        }
        found
    }

    /// Removes a pod that no longer uses volumes.
    pub fn remove(&self, pod: &ObjectKey) {
        self.lock().remove_pod_except_from(pod, &HashSet::new());
    }

    /// Returns the pods that use a volume of a driver.
    pub fn pods_of_driver(&self, driver: &str) -> Vec<ObjectKey> {
        let state = self.lock();
        let volumes = state.volumes.values().filter(|volume| &*volume.driver == driver);
        let pods: BTreeSet<&ObjectKey> = volumes.flat_map(|volume| volume.pods.keys()).collect();
        pods.into_iter().cloned().collect()
    }

    /// Returns up to `max` current conflicts, each from both sides. Pods that conflict on several volumes are listed
    /// once.
    pub fn conflicts(&self, max: usize) -> BTreeSet<Conflict> {
        let state = self.lock();
        let mut found = BTreeSet::new();
        for volume in state.volumes.values() {
            let groups = volume.pods_by_labeling();
            for (mine, pods) in &groups {
                let in_conflict = |(theirs, _): &(&EffectiveLabeling, &Vec<&ObjectKey>)| {
                    *theirs > mine && are_in_conflict(mine, theirs)
                };
                for (theirs, others) in groups.iter().filter(in_conflict) {
                    let pairs = pods.iter().flat_map(|pod| others.iter().map(move |other| (pod, other)));
                    for conflict in pairs.flat_map(|(pod, other)| conflicts((pod, mine), (other, theirs))) {
                        if found.len() + 2 > max {
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
    /// Removes a pod from the volumes that it no longer uses.
    fn remove_pod_except_from(&mut self, pod: &ObjectKey, kept: &HashSet<&Str>) {
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

/// Returns true if pods with these labelings of a volume cannot use it on the same node.
fn are_in_conflict(one: &EffectiveLabeling, other: &EffectiveLabeling) -> bool {
    one.policy != other.policy || label::conflict(&one.label, &other.label)
}

/// Returns the conflicts between the labelings of a volume by two pods, from the first pod's side.
fn conflicts(
    (pod, mine): (&ObjectKey, &EffectiveLabeling),
    (other, theirs): (&ObjectKey, &EffectiveLabeling),
) -> Vec<Conflict> {
    let conflict = |property, value: &str, other_value: &str| Conflict {
        property,
        pod: pod.clone(),
        value: value.into(),
        other: other.clone(),
        other_value: other_value.into(),
    };
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
    use runtime::testing::CpuTime;

    use super::*;

    fn pod(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    fn with(label: &str) -> Request {
        Request { label: label.into(), is_recursive: false }
    }

    fn recursive() -> Request {
        Request { label: ":::s0:c1".into(), is_recursive: true }
    }

    fn volume(name: &str, request: Request) -> Volume {
        Volume { name: name.into(), driver: "disk.example.com".into(), supports_context: true, request }
    }

    fn put(used: &UsedVolumes, name: &str, of: &str, request: Request) -> Vec<(&'static str, String, String)> {
        put_volume(used, name, volume(of, request))
    }

    fn put_volume(used: &UsedVolumes, name: &str, volume: Volume) -> Vec<(&'static str, String, String)> {
        let found = used.put(&pod(name), vec![volume]);
        let short = |one: Conflict| (one.property.name(), one.pod.name.to_string(), one.other.name.to_string());
        found.into_iter().map(short).collect()
    }

    fn pair(property: &'static str, one: &str, other: &str) -> [(&'static str, String, String); 2] {
        [(property, one.to_owned(), other.to_owned()), (property, other.to_owned(), one.to_owned())]
    }

    /// A search of the new volumes for each old one would take minutes.
    #[test]
    fn pod_with_very_many_volumes_is_recorded_in_linear_time() {
        let used = UsedVolumes::default();
        let started = CpuTime::now();
        let volumes = || (0..50_000).map(|number| volume(&format!("volume-{number:08}"), with("a"))).collect();
        assert_eq!((used.put(&pod("a"), volumes()).len(), used.put(&pod("a"), volumes()).len()), (0, 0));
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
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
    fn label_counts_only_if_the_volume_is_mounted_with_it() {
        for (name, request, supports_context, expected) in [
            ("a label", with(":::s0:c1"), true, (":::s0:c1", Policy::MountOption)),
            ("opted out", recursive(), true, ("", Policy::Recursive)),
            ("driver does not support labels", with(":::s0:c1"), false, ("", Policy::Recursive)),
            ("no label", with(""), true, ("", Policy::Recursive)),
        ] {
            let found = request.effective_labeling(supports_context);
            assert_eq!((&*found.label, found.policy), expected, "{name}");
        }
    }

    #[test]
    fn change_of_the_driver_reports_each_pair_once_and_no_intermediate_state() {
        let used = UsedVolumes::default();
        let unsupported = |label| Volume { supports_context: false, ..volume("v", with(label)) };
        for (name, label) in [("a", ":::s0:c1"), ("b", ":::s0:c2"), ("c", ":::s0:c1")] {
            assert_eq!(put_volume(&used, name, unsupported(label)), []);
        }
        assert_eq!(put(&used, "a", "v", with(":::s0:c1")), [], "the others are not compared yet");
        assert_eq!(put(&used, "b", "v", with(":::s0:c2")), pair("SELinuxLabel", "b", "a"));
        assert_eq!(put(&used, "c", "v", with(":::s0:c1")), pair("SELinuxLabel", "c", "b"));
        assert_eq!(used.conflicts(100).len(), 4);
    }

    #[test]
    fn conflicts_end_when_a_pod_ends_or_changes() {
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
    fn conflict_on_several_volumes_counts_once_and_the_number_of_conflicts_is_limited() {
        let used = UsedVolumes::default();
        for (name, label) in [("a", ":::s0:c1"), ("b", ":::s0:c2")] {
            used.put(&pod(name), ["v", "w"].map(|name| volume(name, with(label))).into());
        }
        assert_eq!(used.conflicts(100).len(), 2);
        for at in 0..100 {
            put(&used, &format!("p{at}"), "x", with(&format!(":::s0:c{at}")));
        }
        for max in [50, 51, 1, 0] {
            assert_eq!(used.conflicts(max).len(), max / 2 * 2, "both sides of a conflict, or none");
        }
        assert_eq!(used.pods_of_driver("disk.example.com").len(), 102);
        assert_eq!(used.pods_of_driver("other.example.com"), []);
    }

    #[test]
    fn conflicts_of_a_pod_with_very_many_others_are_reported_in_part() {
        let used = UsedVolumes::default();
        for at in 0..MAX_REPORTED {
            put(&used, &format!("p{at}"), "v", with(":::s0:c1"));
        }
        assert_eq!(put(&used, "other", "v", with(":::s0:c2")).len(), MAX_REPORTED);
        assert_eq!(used.conflicts(10 * MAX_REPORTED).len(), 2 * MAX_REPORTED, "all count");
    }

    #[test]
    fn pods_with_the_same_labeling_are_not_compared_with_each_other() {
        let used = UsedVolumes::default();
        for at in 0..200 {
            put(&used, &format!("p{at}"), "v", with(":::s0:c1"));
        }
        put(&used, "other", "v", with(":::s0:c2"));
        put(&used, "recursive", "v", recursive());
        let sizes: Vec<usize> = used.lock().volumes["v"].pods_by_labeling().values().map(Vec::len).collect();
        assert_eq!(sizes, [1, 200, 1]);
        // 201 pods with a label differ from the recursive pod in label and policy, and 200 of them from the pod with
        // the other label.
        assert_eq!(used.conflicts(10_000).len(), 2 * (201 * 2 + 200));
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
