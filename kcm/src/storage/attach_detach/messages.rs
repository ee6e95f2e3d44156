//! Texts of events and errors. All but that of [`undecodable`] have upstream's wording.

use kinds::meta::ObjectKey;

/// Reason of an event: the volume is attached.
pub const ATTACHED: &str = "SuccessfulAttachVolume";
/// Reason of an event: the volume could not be attached, or not yet.
pub const FAILED: &str = "FailedAttachVolume";

/// Returns the message of [`ATTACHED`].
pub fn attached(volume: &str) -> String {
    format!("AttachVolume.Attach succeeded for volume \"{volume}\" ")
}

/// Returns the message of [`FAILED`] with an error.
pub fn failed(volume: &str, error: &str) -> String {
    format!("AttachVolume.Attach failed for volume \"{volume}\" : {error}")
}

/// Returns the error of a VolumeAttachment that could not be created.
pub fn refused(error: &str) -> String {
    format!("kubernetes.io/csi: attacher.Attach failed: {error}")
}

/// Returns the error of a driver that does not respond.
pub fn timed_out(driver: &str, handle: &str) -> String {
    format!("timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}")
}

/// Returns the message of [`FAILED`] for a volume that several nodes may have, unless an undecodable PersistentVolume has
/// the same storage.
pub fn undecodable(volume: &str) -> String {
    let error = "another node has the volume, and a PersistentVolume that may allow only one node for the same storage \
                 cannot be decoded";
    failed(volume, error)
}

/// Returns the message of [`FAILED`] for a pod in `namespace` whose volume is attached to other nodes, where the pods
/// `users` use it.
pub fn waiting<'a>(volume: &str, namespace: &str, users: impl IntoIterator<Item = &'a ObjectKey>) -> String {
    let mut names = Vec::new();
    let mut others = 0;
    for user in users {
        if &*user.namespace == namespace {
            names.push(&*user.name);
        } else {
            others += 1;
        }
    }
    names.sort_unstable();
    let names = names.join(", ");
    let reason = match (names.is_empty(), others) {
        (true, 0) => "Volume is already exclusively attached to one node, waiting on detach before it can be attached \
                      to another node"
            .to_owned(),
        (false, 0) => format!("Volume is already used by pod(s) {names}"),
        (false, _) => format!("Volume is already used by pod(s) {names} and {others} pod(s) in different namespaces"),
        (true, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
    };
    format!("Waiting for detach for volume \"{volume}\" {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_are_named_only_in_the_same_namespace() {
        let key = |text: &str| {
            let (namespace, name) = text.split_once('/').expect("namespace and name");
            ObjectKey::new(namespace, name)
        };
        for (users, expected) in [
            (
                &[][..],
                "Volume is already exclusively attached to one node, waiting on detach before it can be attached to \
                 another node",
            ),
            (&["ns1/b", "ns1/a"], "Volume is already used by pod(s) a, b"),
            (&["ns2/a"], "Volume is already used by 1 pod(s) in different namespaces"),
            (&["ns2/a", "ns1/c"], "Volume is already used by pod(s) c and 1 pod(s) in different namespaces"),
        ] {
            let users: Vec<_> = users.iter().copied().map(key).collect();
            assert_eq!(waiting("pv", "ns1", &users), format!("Waiting for detach for volume \"pv\" {expected}"));
        }
    }
}
