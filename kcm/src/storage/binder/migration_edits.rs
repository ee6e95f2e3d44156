//! Annotations and finalizers that record which component provisions and deletes a volume.
//!
//! Upstream: pkg/controller/volume/persistentvolume, updateMigrationAnnotations,
//! updateVolumeMigrationAnnotationsAndFinalizers.

use kinds::PersistentVolumeClaim;
use kinds::metadata_edit::{with_finalizer, without_finalizers};
use kinds::persistent_volume::ReclaimPolicy;
use kinds::persistent_volume_claim::{BETA_STORAGE_PROVISIONER, STORAGE_PROVISIONER};
use kinds::wire::WireError;

use super::names::{CONTROLLER_FINALIZER, EXTERNAL_FINALIZER, IN_TREE};
use crate::storage::migration::of_plugin;

/// Change of the annotation that names the CSI driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationEdit {
    /// The provisioner is migrated and the annotation has another value.
    Set(&'static str),
    /// The provisioner is not migrated, but the annotation names a driver.
    Remove,
}

impl MigrationEdit {
    /// Returns the annotation's new value.
    pub fn value(self) -> Option<&'static str> {
        match self {
            Self::Set(driver) => Some(driver),
            Self::Remove => None,
        }
    }
}

/// Returns the provisioner from which the volume of a claim was requested.
pub fn requested_from(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotation(STORAGE_PROVISIONER).or_else(|| claim.annotation(BETA_STORAGE_PROVISIONER))
}

/// Returns the change of the annotation that the object's provisioner requires. Objects without a provisioner are not
/// changed.
pub fn annotation_edit(provisioner: Option<&str>, migrated_to: Option<&str>) -> Option<MigrationEdit> {
    match (of_plugin(provisioner?).map(|migrated| migrated.driver), migrated_to) {
        (Some(driver), current) if current != Some(driver) => Some(MigrationEdit::Set(driver)),
        (None, Some(current)) if !current.is_empty() => Some(MigrationEdit::Remove),
        _ => None,
    }
}

/// Changes of a volume's finalizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FinalizerEdit {
    /// The finalizer of this controller is missing.
    pub add_own: bool,
    /// The finalizer of this controller must be removed.
    pub remove_own: bool,
    /// The finalizer of external provisioners must be removed.
    pub remove_external: bool,
}

impl FinalizerEdit {
    /// Returns true if there is nothing to change.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns a copy of an object with the changed finalizers.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn apply(self, object: &[u8]) -> Result<Vec<u8>, WireError> {
        let all = [(self.remove_own, CONTROLLER_FINALIZER), (self.remove_external, EXTERNAL_FINALIZER)];
        let removed: Vec<&str> = all.into_iter().filter(|(is_removed, _)| *is_removed).map(|(_, name)| name).collect();
        let kept = without_finalizers(object, &removed)?;
        if self.add_own { with_finalizer(&kept, CONTROLLER_FINALIZER) } else { Ok(kept) }
    }
}

/// Returns the changes of a volume's finalizers that its provisioner and reclaim policy require.
///
/// Only volumes of in-tree provisioners are changed. No finalizer is added to a volume that is being deleted: the API
/// server rejects that, and the rejection would block the volume's reconciles forever.
pub fn finalizer_edit(
    provisioner: Option<&str>,
    policy: ReclaimPolicy,
    is_deleting: bool,
    has: impl Fn(&str) -> bool,
) -> FinalizerEdit {
    let Some(provisioner) = provisioner else { return FinalizerEdit::default() };
    let has_own = has(CONTROLLER_FINALIZER);
    if of_plugin(provisioner).is_some() {
        return FinalizerEdit { remove_own: has_own, ..FinalizerEdit::default() };
    }
    if !provisioner.starts_with(IN_TREE) {
        return FinalizerEdit::default();
    }
    FinalizerEdit {
        add_own: policy == ReclaimPolicy::Delete && !has_own && !is_deleting,
        remove_own: matches!(policy, ReclaimPolicy::Retain | ReclaimPolicy::Recycle) && has_own,
        remove_external: has(EXTERNAL_FINALIZER),
    }
}

#[cfg(test)]
mod tests {
    use kinds::PersistentVolume;

    use super::*;
    use crate::storage::binder::tests::builders::{claim, read, volume};

    #[test]
    fn annotation_follows_the_provisioner() {
        let ebs = Some("ebs.csi.aws.com");
        for (case, provisioner, migrated_to, expected) in [
            ("migrated", Some("kubernetes.io/aws-ebs"), None, Some(MigrationEdit::Set("ebs.csi.aws.com"))),
            (
                "migrated, other value",
                Some("kubernetes.io/aws-ebs"),
                Some("x"),
                Some(MigrationEdit::Set("ebs.csi.aws.com")),
            ),
            ("migrated, right value", Some("kubernetes.io/aws-ebs"), ebs, None),
            ("not migrated", Some("kubernetes.io/host-path"), ebs, Some(MigrationEdit::Remove)),
            ("not migrated, empty value", Some("kubernetes.io/host-path"), Some(""), None),
            ("not migrated, no annotation", Some("kubernetes.io/host-path"), None, None),
            ("CSI", Some("ebs.csi.aws.com"), ebs, Some(MigrationEdit::Remove)),
            ("no provisioner", None, ebs, None),
        ] {
            assert_eq!(annotation_edit(provisioner, migrated_to), expected, "{case}");
        }
    }

    #[test]
    fn beta_annotation_counts_if_a_claim_has_no_other_one() {
        let beta = || claim("data").annotated(BETA_STORAGE_PROVISIONER, "kubernetes.io/gce-pd");
        for (case, claim, expected) in [
            ("none", claim("data"), None),
            ("beta", beta(), Some("kubernetes.io/gce-pd")),
            ("both", beta().annotated(STORAGE_PROVISIONER, "csi.example.com"), Some("csi.example.com")),
        ] {
            assert_eq!(requested_from(&claim.record()), expected, "{case}");
        }
    }

    #[test]
    fn finalizers_follow_provisioner_and_policy() {
        use ReclaimPolicy::{Delete, Recycle, Retain, Unknown};
        const OWN: &str = CONTROLLER_FINALIZER;
        const EXTERNAL: &str = EXTERNAL_FINALIZER;
        let host_path = Some("kubernetes.io/host-path");
        let migrated = Some("kubernetes.io/gce-pd");
        for (case, provisioner, policy, is_deleting, before, after) in [
            ("external provisioner", Some("csi.example.com"), Delete, false, &[EXTERNAL][..], &[EXTERNAL][..]),
            ("no provisioner", None, Delete, false, &[EXTERNAL], &[EXTERNAL]),
            ("in-tree with Delete", host_path, Delete, false, &["custom"], &["custom", OWN]),
            ("in-tree with Delete, has it", host_path, Delete, false, &[OWN, "custom"], &[OWN, "custom"]),
            ("in-tree with both", host_path, Delete, false, &[EXTERNAL, OWN], &[OWN]),
            ("in-tree with external only", host_path, Delete, false, &[EXTERNAL], &[OWN]),
            ("in-tree with Retain", host_path, Retain, false, &[OWN], &[]),
            ("in-tree with Retain, none", host_path, Retain, false, &[], &[]),
            ("in-tree with Recycle", host_path, Recycle, false, &[OWN], &[]),
            ("in-tree with an unknown policy", host_path, Unknown, false, &[OWN], &[OWN]),
            ("in-tree being deleted", host_path, Delete, true, &["custom"], &["custom"]),
            ("migrated with both", migrated, Delete, false, &[OWN, EXTERNAL], &[EXTERNAL]),
            ("migrated with none", migrated, Delete, false, &[], &[]),
        ] {
            let edit = finalizer_edit(provisioner, policy, is_deleting, |name| before.contains(&name));
            let object = volume("a").with(|volume| volume.head.finalizers = before.to_vec()).object();
            let edited: std::sync::Arc<PersistentVolume> = read(&edit.apply(&object).expect("well-formed"));
            let finalizers: Vec<&str> = edited.meta.finalizers.iter().map(|name| &**name).collect();
            assert_eq!(finalizers, after, "{case}");
            assert_eq!(edit.is_empty(), before == after, "{case}");
        }
    }
}
