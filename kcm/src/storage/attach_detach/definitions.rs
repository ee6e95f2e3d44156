//! Inline volumes, which pods define themselves, by their unique names.
//!
//! Each volume of a pod is reconciled separately. In a pod with thousands of them, a search of the whole pod for each
//! one would occupy the threads of all controllers for minutes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kinds::{Pod, Uid};
use runtime::lock::lock;
use runtime::store::Change;

use crate::storage::inline_volume::{InlineVolume, defining, names, resolve};

/// Maximum number of volumes in a pod that is searched at each lookup. Larger pods are indexed.
const MAX_SEARCHED: usize = 16;

/// Keys of the volumes of a pod and their positions in it, sorted.
type Positions = Arc<[(u64, usize)]>;

/// Positions of the volumes in pods that define more than [`MAX_SEARCHED`], by the pod's uid.
#[derive(Debug, Default)]
pub struct Definitions(Mutex<HashMap<Uid, Positions>>);

fn positions(pod: &Pod) -> Positions {
    let mut positions: Vec<(u64, usize)> = names(pod).map(|(at, name)| (defining(&name), at)).collect();
    positions.sort_unstable();
    positions.into()
}

impl Definitions {
    /// Applies a change of a pod, whose volumes never change.
    pub fn apply(&self, change: &Change<'_, Pod>) {
        let large = |pod: &&Arc<Pod>| pod.volumes.as_ref().is_some_and(|volumes| volumes.in_tree.len() > MAX_SEARCHED);
        let (old, new) = (change.old.filter(large), change.new.filter(large));
        if old.map(|pod| &pod.meta.uid) == new.map(|pod| &pod.meta.uid) {
            return;
        }
        if let Some(old) = old {
            lock(&self.0).remove(&old.meta.uid);
        }
        if let Some(new) = new {
            let positions = positions(new);
            lock(&self.0).insert(new.meta.uid.clone(), positions);
        }
    }

    /// Returns a volume that a pod defines, by its unique name; of several, the first one.
    pub fn find(&self, pod: &Pod, name: &str) -> Option<InlineVolume> {
        let in_tree = &pod.volumes.as_ref()?.in_tree;
        let known = lock(&self.0).get(&pod.meta.uid).cloned();
        let (positions, key) = (known.unwrap_or_else(|| positions(pod)), defining(name));
        let start = positions.partition_point(|(other, _)| *other < key);
        let same = positions[start..].iter().take_while(|(other, _)| *other == key);
        let mut volumes = same.filter_map(|(_, at)| resolve(&pod.meta.namespace, in_tree.get(*at)?));
        volumes.find(|volume| *volume.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kinds::Str;
    use kinds::pod::InTreeVolume;
    use kinds::schema::{gce_persistent_disk as gce, volume_source as source};
    use kinds::wire::Put;
    use runtime::testing::CpuTime;

    use super::*;
    use crate::storage::testing::pod_with;
    use crate::storage::volume_name::of_csi;

    fn disk(id: &str, is_read_only: bool) -> InTreeVolume {
        let mut raw = Vec::new();
        raw.put_str(gce::PD_NAME, id);
        raw.put_bool(gce::READ_ONLY, is_read_only);
        InTreeVolume { name: id.into(), field: source::GCE_PERSISTENT_DISK, raw: raw.into() }
    }

    fn pod(disks: Vec<InTreeVolume>) -> Arc<Pod> {
        let mut pod = pod_with("web", &["data"]);
        pod.volumes.as_mut().expect("it has volumes").in_tree = disks.into();
        Arc::new(pod)
    }

    fn name(id: &str) -> Str {
        of_csi("pd.csi.storage.gke.io", &format!("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{id}"))
    }

    #[test]
    fn volumes_of_a_large_pod_are_found_without_scans() {
        let ids: Vec<String> = (0..5_000).map(|at| format!("disk-{at}")).collect();
        let (definitions, pod) = (Definitions::default(), pod(ids.iter().map(|id| disk(id, false)).collect()));
        let started = CpuTime::now();
        definitions.apply(&Change { old: None, new: Some(&pod) });
        for id in &ids {
            assert_eq!(definitions.find(&pod, &name(id)).map(|volume| volume.name), Some(name(id)));
        }
        // A search of the pod for each volume takes minutes in a debug build.
        assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
        assert_eq!(definitions.find(&pod, &name("other")), None);
        definitions.apply(&Change { old: Some(&pod), new: Some(&pod) });
        assert_eq!(lock(&definitions.0).len(), 1);
        definitions.apply(&Change { old: Some(&pod), new: None });
        assert!(lock(&definitions.0).is_empty(), "nothing is kept of a deleted pod");
    }

    #[test]
    fn first_of_several_definitions_of_a_volume_counts() {
        for count in [1, MAX_SEARCHED] {
            let mut disks = vec![disk("a", true), disk("a", false)];
            disks.extend((0..count).map(|at| disk(&format!("other-{at}"), false)));
            let (definitions, pod) = (Definitions::default(), pod(disks));
            definitions.apply(&Change { old: None, new: Some(&pod) });
            assert_eq!(definitions.find(&pod, &name("a")).map(|volume| volume.is_exclusive), Some(false), "{count}");
        }
    }
}
