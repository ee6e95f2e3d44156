//! Finalizers and the programs that remove them, for the diagnostics page.

use runtime::diagnostics::FinalizerOwner;

use crate::descriptor::Descriptor;

/// Well-known finalizers: name, or prefix that ends with a slash; program that removes it; condition. The descriptor of
/// a controller of this binary takes precedence over a row. A test of `kcm` compares the rows of its controllers with
/// their descriptors.
const WELL_KNOWN: &[(&str, &str, &str)] = &[
    ("foregroundDeletion", "garbage-collector-controller", "once all dependents that block the deletion are deleted"),
    ("orphan", "garbage-collector-controller", "once the dependents are orphaned"),
    ("kubernetes", "namespace-controller", "once the namespace is empty"),
    (
        "kubernetes.io/pvc-protection",
        "persistentvolumeclaim-protection-controller",
        "once no pod on a node uses the claim",
    ),
    (
        "kubernetes.io/pv-protection",
        "persistentvolume-protection-controller",
        "once the volume is not bound to a claim",
    ),
    (
        "kubernetes.io/pv-controller",
        "persistentvolume-binder-controller",
        "once the storage of the released volume was deleted, or this controller no longer has to delete it",
    ),
    (
        "kubernetes.io/vac-protection",
        "volumeattributesclass-protection-controller",
        "once no volume and no claim refers to the class",
    ),
    (
        "batch.kubernetes.io/job-tracking",
        "job-controller",
        "once the pod is recorded in its Job's status, or no Job will count it",
    ),
    (
        "service.kubernetes.io/load-balancer-cleanup",
        "service-lb-controller (cloud-controller-manager)",
        "once the cloud reports that the load balancer no longer exists",
    ),
    (
        "resource.kubernetes.io/delete-protection",
        "resourceclaim-controller",
        "once the claim is not reserved for a consumer",
    ),
    (
        "scheduling.k8s.io/podgroup-protection",
        "podgroup-protection-controller",
        "once all pods of the group have finished or are deleted",
    ),
    (
        "networking.k8s.io/service-cidr-finalizer",
        "service-cidr-controller",
        "once no Service has an address that only this range contains",
    ),
    ("customresourcecleanup.apiextensions.k8s.io", "kube-apiserver", "once all objects of the kind are deleted"),
    ("external-attacher/", "the CSI driver's external-attacher", "once the volume is detached"),
    (
        "external-provisioner.volume.kubernetes.io/finalizer",
        "the CSI driver's provisioner",
        "once the storage of the volume is deleted",
    ),
    ("snapshot.storage.kubernetes.io/", "the snapshot controller", "once nothing refers to the snapshot"),
];

/// Returns the finalizers that a binary's controllers remove, and then the well-known ones. The first match applies.
pub fn owners<C>(controllers: &[Descriptor<C>]) -> Vec<FinalizerOwner> {
    let own = controllers.iter().flat_map(|controller| {
        let by = controller.name;
        controller.finalizers.iter().map(move |finalizer| FinalizerOwner {
            finalizer: finalizer.name,
            by,
            condition: finalizer.removed,
        })
    });
    let well_known = WELL_KNOWN.iter().map(|&(finalizer, by, condition)| FinalizerOwner { finalizer, by, condition });
    own.chain(well_known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Finalizer;

    #[test]
    fn descriptor_overrides_the_well_known_owner_of_its_finalizer() {
        let finalizers = &[Finalizer { name: "orphan", removed: "once tested" }];
        let owners = owners(&[Descriptor::<()> { name: "test-controller", finalizers, ..Descriptor::NONE }]);
        let orphan: Vec<_> = owners.iter().filter(|owner| owner.finalizer == "orphan").map(|owner| owner.by).collect();
        assert_eq!(orphan, ["test-controller", "garbage-collector-controller"]);
        assert!(owners.iter().all(|owner| owner.condition.starts_with("once ")));
    }
}
