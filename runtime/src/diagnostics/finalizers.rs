//! Who takes which finalizer away, and what for.

/// What is known of a finalizer: its name, who takes it away, and when.
const KNOWN: &[(&str, &str, &str)] = &[
    ("foregroundDeletion", "garbage-collector-controller", "when the dependents that block the deletion are gone"),
    ("orphan", "garbage-collector-controller", "when the dependents have been let go"),
    ("kubernetes", "namespace-controller", "when nothing is left in the namespace"),
    ("kubernetes.io/pvc-protection", "persistentvolumeclaim-protection-controller", "when no pod uses the claim"),
    ("kubernetes.io/pv-protection", "persistentvolume-protection-controller", "when no claim is bound to the volume"),
    (
        "kubernetes.io/vac-protection",
        "volumeattributesclass-protection-controller",
        "when no volume and no claim uses the class",
    ),
    ("batch.kubernetes.io/job-tracking", "job-controller", "when the pod has been counted in its Job's status"),
    (
        "service.kubernetes.io/load-balancer-cleanup",
        "service-lb-controller (cloud-controller-manager)",
        "when the cloud shows nothing of the balancer any more",
    ),
    ("resource.kubernetes.io/delete-protection", "resourceclaim-controller", "when no pod uses the claim any more"),
    ("scheduling.k8s.io/podgroup-protection", "podgroup-protection-controller", "when no pod of the group is left"),
    ("networking.k8s.io/service-cidr-finalizer", "service-cidr-controller", "when no address of the range is in use"),
    ("customresourcecleanup.apiextensions.k8s.io", "kube-apiserver", "when all objects of the kind are gone"),
    ("external-attacher/", "the CSI driver's external-attacher", "when the volume is detached"),
    ("external-provisioner.volume.kubernetes.io/finalizer", "the CSI driver's provisioner", "when the volume is gone"),
    ("snapshot.storage.kubernetes.io/", "the snapshot controller", "when nothing refers to the snapshot"),
];

/// Who takes a finalizer away, and when. Of one that is not known here only its own domain tells.
pub(super) fn owner(finalizer: &str) -> (String, String) {
    let fits = |name: &str| finalizer == name || name.ends_with('/') && finalizer.starts_with(name);
    if let Some((_, by, when)) = KNOWN.iter().find(|(name, ..)| fits(name)) {
        return ((*by).to_owned(), (*when).to_owned());
    }
    let domain = finalizer.split_once('/').map_or(finalizer, |(domain, _)| domain);
    (
        format!("whoever put it there ({domain})"),
        "when it has cleaned up; if it runs no more, nobody takes this finalizer away".to_owned(),
    )
}
