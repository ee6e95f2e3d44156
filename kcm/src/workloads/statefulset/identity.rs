//! The identity of a StatefulSet's pod: name, ordinal, labels, volumes.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::intern::label;
use kinds::{Pod, StatefulSet};

/// The label with the name of a pod's revision.
pub const REVISION_LABEL: &str = "controller-revision-hash";
/// The label with a pod's own name.
pub const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// The label with a pod's ordinal.
pub const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// A pod of a StatefulSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its ordinal.
    pub ordinal: i32,
    /// The pod.
    pub pod: Arc<Pod>,
}

/// Returns the StatefulSet's name and the ordinal in a pod's name. Each ordinal has exactly one name: a number with a
/// leading zero, for example, is not an ordinal.
pub fn parse(pod: &str) -> Option<(&str, i32)> {
    let (parent, digits) = pod.rsplit_once('-')?;
    let ordinal: i32 = digits.parse().ok().filter(|ordinal| *ordinal >= 0)?;
    (ordinal.to_string() == digits).then_some((parent, ordinal))
}

/// Returns the name of the pod with an ordinal.
pub fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.meta.name)
}

/// Returns the name of the claim that is created from `template` for the pod with an ordinal.
pub fn claim_name(set: &StatefulSet, template: &str, ordinal: i32) -> String {
    format!("{template}-{}-{ordinal}", set.meta.name)
}

/// Returns true if an ordinal should have a pod.
pub fn is_wanted(set: &StatefulSet, ordinal: i32) -> bool {
    ordinal >= set.start && i64::from(ordinal) < i64::from(set.start) + i64::from(set.replicas)
}

/// Returns the revision that a pod was created from; empty if its label is missing.
pub fn revision(pod: &Pod) -> &str {
    label(&pod.meta.labels, REVISION_LABEL).unwrap_or_default()
}

/// Returns the labels with a pod's name and its ordinal.
pub fn labels(set: &StatefulSet, ordinal: i32) -> Vec<(&'static str, String)> {
    vec![(NAME_LABEL, pod_name(set, ordinal)), (INDEX_LABEL, ordinal.to_string())]
}

/// Returns true if a pod has the label with its own name. Upstream: pkg/controller/statefulset, identityMatches.
pub fn has_identity(pod: &Pod) -> bool {
    label(&pod.meta.labels, NAME_LABEL) == Some(&*pod.meta.name)
}

/// Returns the names of the claimed volumes of the pod with an ordinal, each with the name of its claim.
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<(String, String)> {
    let templates = set.claim_templates();
    templates.iter().map(|template| (template.name.to_owned(), claim_name(set, template.name, ordinal))).collect()
}

/// Returns true if a pod has the volumes of its ordinal. Upstream: pkg/controller/statefulset, storageMatches.
pub fn has_storage(pod: &Pod, wanted: &[(String, String)]) -> bool {
    if wanted.is_empty() {
        return true;
    }
    // Both lists may have thousands of entries.
    let mounted = pod.claims.as_deref().map_or(&[][..], |claims| &claims.volumes);
    let mounted: HashSet<(&str, &str)> = mounted.iter().map(|(name, source)| (&**name, &**source)).collect();
    wanted.iter().all(|(volume, claim)| mounted.contains(&(volume.as_str(), claim.as_str())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kinds::pod::Claims;
    use kinds::schema::{object_meta, pod};
    use kinds::wire::Put;
    use kinds::{Decode, Kind, Sections};
    use runtime::testing::CpuTime;

    use super::*;

    #[test]
    fn volumes_of_a_pod_are_compared_in_time_when_there_are_many() {
        let mut object = Vec::new();
        object.put_message(pod::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "web-0");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let mut pod = Pod::decode(&context, &object).expect("well-formed");
        let mut wanted: Vec<(String, String)> =
            (0..30_000).map(|number| (format!("v{number}"), format!("v{number}-web-0"))).collect();
        let mounted = wanted.iter().rev().map(|(name, claim)| (name.as_str().into(), claim.as_str().into()));
        pod.claims = Some(Box::new(Claims { volumes: mounted.collect() }));
        let started = CpuTime::now();
        assert!(has_storage(&pod, &wanted));
        wanted[7].1 = "v7-web-1".to_owned();
        assert!(!has_storage(&pod, &wanted));
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }

    proptest::proptest! {
        #[test]
        fn any_pod_name_has_one_ordinal_or_none(name in "[-a-z0-9+]{0,14}|\\PC{0,8}") {
            if let Some((parent, ordinal)) = parse(&name) {
                proptest::prop_assert_eq!(format!("{parent}-{ordinal}"), name);
            }
        }
    }

    #[test]
    fn ordinal_has_one_name() {
        for (name, expected) in [
            ("web-0", Some(("web", 0))),
            ("my-web-12", Some(("my-web", 12))),
            ("web-01", None),
            ("web-+1", None),
            ("web--1", Some(("web-", 1))),
            ("web-x", None),
            ("web", None),
            ("web-", None),
            ("web-2147483647", Some(("web", i32::MAX))),
            ("web-2147483648", None),
        ] {
            assert_eq!(parse(name), expected, "{name}");
        }
    }
}
