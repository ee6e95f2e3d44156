//! The volumes of a pod that storage controllers process, and the state that decides if the pod may still use them.

use std::sync::Arc;

use super::Pod;
use super::selinux::{self, SeLinux};
use crate::decode::Decode;
use crate::intern::{Interner, Str};
use crate::wire::schema::{
    claim_volume_source, container_state, container_status, csi_volume_source, object_meta, pod_spec, pod_status,
    volume, volume_source,
};
use crate::wire::{WireError, fields, find, find_str};

/// The volumes of a pod that storage controllers process, and the state that decides if the pod may still use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volumes {
    /// The volumes with a claim behind them, sorted by the claim's name: a pod may have tens of thousands of them. See
    /// [`Volumes::of_claim`].
    pub claims: Box<[ClaimVolume]>,
    /// Volumes that the pod defines itself with an in-tree plugin whose volumes may have to be attached.
    pub in_tree: Box<[InTreeVolume]>,
    /// The drivers of the CSI volumes that the pod defines itself, once for each volume.
    pub csi_drivers: Arc<[Str]>,
    /// An init, regular or ephemeral container runs, or has a status without a state.
    pub is_running: bool,
    /// `metadata.deletionGracePeriodSeconds` is 0: the pod was deleted without a grace period, or its kubelet has
    /// stopped it.
    pub has_no_grace: bool,
    /// SELinux labels of mounted volumes, if there are any: see [`SeLinux::mounts`]. Only with section
    /// [`Pod::SELINUX`].
    pub selinux: Option<Box<SeLinux>>,
}

impl Volumes {
    /// Returns the volumes of the claim with this name.
    pub fn of_claim(&self, claim: &str) -> &[ClaimVolume] {
        let start = self.claims.partition_point(|volume| *volume.claim < *claim);
        let count = self.claims[start..].partition_point(|volume| *volume.claim == *claim);
        &self.claims[start..start + count]
    }
}

/// A volume of an in-tree plugin, in its encoded form. Such volumes are rare, so their fields are not decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InTreeVolume {
    /// Name of the volume.
    pub name: Str,
    /// Field number of its source in `VolumeSource`.
    pub field: u32,
    /// The message of its source.
    pub raw: Box<[u8]>,
}

/// A volume with a claim of the pod's namespace behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimVolume {
    /// Name of the volume.
    pub volume: Str,
    /// Name of the claim; for a generic ephemeral volume `<pod>-<volume>`.
    pub claim: Str,
    /// It is a generic ephemeral volume: the claim counts only if this pod controls it.
    pub is_ephemeral: bool,
}

/// Reads the volumes of a pod that matter to controllers; `None` without any.
pub(super) fn read(
    context: &Decode,
    pod: &str,
    (meta, spec, status): (&[u8], &[u8], &[u8]),
) -> Result<Option<Box<Volumes>>, WireError> {
    let interner = &context.interner;
    let (mut claims, mut in_tree, mut csi_drivers) = (Vec::<ClaimVolume>::new(), Vec::new(), Vec::new());
    for field in fields(spec) {
        let field = field?;
        if field.number == pod_spec::VOLUMES {
            claims.extend(read_volume(interner, pod, field.value.bytes())?);
            in_tree.extend(read_in_tree(interner, field.value.bytes())?);
            csi_drivers.extend(read_csi_driver(interner, field.value.bytes())?);
        }
    }
    let selinux = if context.sections.contains(Pod::SELINUX) {
        let attachable = claims.iter().map(|claim| &*claim.volume).chain(in_tree.iter().map(|volume| &*volume.name));
        selinux::read(interner, spec, &attachable.collect())?
    } else {
        None
    };
    if claims.is_empty() && in_tree.is_empty() && csi_drivers.is_empty() && selinux.is_none() {
        return Ok(None);
    }
    claims.sort_by(|one, other| one.claim.cmp(&other.claim));
    let has_no_grace = fields(meta)
        .flatten()
        .any(|field| field.number == object_meta::DELETION_GRACE_PERIOD_SECONDS && field.value.i64() == 0);
    let (claims, in_tree, csi_drivers) = (claims.into(), in_tree.into(), interner.list(&csi_drivers));
    let is_running = is_running(status)?;
    Ok(Some(Box::new(Volumes { claims, in_tree, csi_drivers, is_running, has_no_grace, selinux })))
}

fn read_in_tree(interner: &Interner, message: &[u8]) -> Result<Option<InTreeVolume>, WireError> {
    for source in fields(find(message, volume::VOLUME_SOURCE)) {
        let source = source?;
        let is_attachable = matches!(
            source.number,
            volume_source::AWS_ELASTIC_BLOCK_STORE
                | volume_source::AZURE_DISK
                | volume_source::AZURE_FILE
                | volume_source::CINDER
                | volume_source::FC
                | volume_source::GCE_PERSISTENT_DISK
                | volume_source::ISCSI
                | volume_source::PORTWORX_VOLUME
                | volume_source::VSPHERE_VOLUME
        );
        if is_attachable {
            let name = find_str(message, volume::NAME);
            let raw = source.value.bytes().into();
            return Ok(Some(InTreeVolume { name: interner.str(name), field: source.number, raw }));
        }
    }
    Ok(None)
}

fn read_csi_driver(interner: &Interner, message: &[u8]) -> Result<Option<Str>, WireError> {
    for source in fields(find(message, volume::VOLUME_SOURCE)) {
        let source = source?;
        if source.number == volume_source::CSI {
            return Ok(Some(interner.str(find_str(source.value.bytes(), csi_volume_source::DRIVER))));
        }
    }
    Ok(None)
}

fn read_volume(interner: &Interner, pod: &str, message: &[u8]) -> Result<Option<ClaimVolume>, WireError> {
    let name = find_str(message, volume::NAME);
    for source in fields(find(message, volume::VOLUME_SOURCE)) {
        let source = source?;
        let (claim, is_ephemeral) = match source.number {
            volume_source::PERSISTENT_VOLUME_CLAIM => {
                let claim = find(source.value.bytes(), claim_volume_source::CLAIM_NAME);
                (interner.str(std::str::from_utf8(claim).unwrap_or_default()), false)
            }
            volume_source::EPHEMERAL => (interner.str(&format!("{pod}-{name}")), true),
            _ => continue,
        };
        return Ok(Some(ClaimVolume { volume: interner.str(name), claim, is_ephemeral }));
    }
    Ok(None)
}

fn is_running(status: &[u8]) -> Result<bool, WireError> {
    for field in fields(status) {
        let field = field?;
        let is_container = matches!(
            field.number,
            pod_status::CONTAINER_STATUSES
                | pod_status::INIT_CONTAINER_STATUSES
                | pod_status::EPHEMERAL_CONTAINER_STATUSES
        );
        if is_container {
            let state = find(field.value.bytes(), container_status::STATE);
            // The presence of the message counts, not its content: it is empty if its times are unknown. A container
            // without any state may run.
            let does_not_run = [container_state::WAITING, container_state::TERMINATED];
            if !fields(state).flatten().any(|field| does_not_run.contains(&field.number)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::Sections;
    use crate::wire::Put;

    fn context() -> Decode {
        Decode { interner: Arc::default(), sections: Sections::default() }
    }

    fn spec() -> Vec<u8> {
        let mut spec = Vec::new();
        let mut add = |name: &str, number: u32, fill: fn(&mut Vec<u8>)| {
            spec.put_message(pod_spec::VOLUMES, |message| {
                message.put_str(volume::NAME, name);
                message.put_message(volume::VOLUME_SOURCE, |source| source.put_message(number, fill));
            });
        };
        add("data", volume_source::PERSISTENT_VOLUME_CLAIM, |out| {
            out.put_str(claim_volume_source::CLAIM_NAME, "claim")
        });
        add("tmp", volume_source::EMPTY_DIR, |_| {});
        add("scratch", volume_source::EPHEMERAL, |_| {});
        spec
    }

    fn read(meta: &[u8], spec: &[u8], status: &[u8]) -> Option<Box<Volumes>> {
        super::read(&context(), "web", (meta, spec, status)).expect("well-formed")
    }

    #[test]
    fn claims_and_generic_ephemeral_volumes_are_read() {
        let volumes = read(&[], &spec(), &[]).expect("it has claims");
        let read: Vec<_> = volumes.claims.iter().map(|one| (&*one.volume, &*one.claim, one.is_ephemeral)).collect();
        assert_eq!(read, [("data", "claim", false), ("scratch", "web-scratch", true)]);
        assert!(!volumes.is_running && !volumes.has_no_grace);
        assert_eq!(super::read(&context(), "web", (&[], &[], &[])), Ok(None));
    }

    #[test]
    fn drivers_of_csi_volumes_are_read_once_for_each_volume() {
        let mut spec = Vec::new();
        for driver in ["secrets.example.com", "certificates.example.com", "secrets.example.com"] {
            spec.put_message(pod_spec::VOLUMES, |message| {
                message.put_str(volume::NAME, driver);
                message.put_message(volume::VOLUME_SOURCE, |source| {
                    source.put_message(volume_source::CSI, |out| out.put_str(csi_volume_source::DRIVER, driver));
                });
            });
        }
        let volumes = read(&[], &spec, &[]).expect("it has volumes");
        let drivers: Vec<&str> = volumes.csi_drivers.iter().map(|driver| &**driver).collect();
        assert_eq!(drivers, ["secrets.example.com", "certificates.example.com", "secrets.example.com"]);
        assert!(volumes.claims.is_empty() && volumes.in_tree.is_empty());
    }

    #[test]
    fn volumes_of_a_claim_are_found_in_any_order_of_the_spec() {
        let mut spec = Vec::new();
        for (name, claim) in [("a", "logs"), ("b", "data"), ("c", "logs"), ("d", "tmp")] {
            spec.put_message(pod_spec::VOLUMES, |message| {
                message.put_str(volume::NAME, name);
                message.put_message(volume::VOLUME_SOURCE, |source| {
                    source.put_message(volume_source::PERSISTENT_VOLUME_CLAIM, |out| {
                        out.put_str(claim_volume_source::CLAIM_NAME, claim);
                    });
                });
            });
        }
        let volumes = read(&[], &spec, &[]).expect("it has claims");
        for (claim, expected) in
            [("data", &["b"][..]), ("logs", &["a", "c"]), ("tmp", &["d"]), ("a", &[]), ("m", &[]), ("z", &[])]
        {
            let found: Vec<&str> = volumes.of_claim(claim).iter().map(|volume| &*volume.volume).collect();
            assert_eq!(found, expected, "{claim}");
        }
    }

    #[test]
    fn one_container_of_any_kind_that_may_run_counts() {
        for sort in [
            pod_status::CONTAINER_STATUSES,
            pod_status::INIT_CONTAINER_STATUSES,
            pod_status::EPHEMERAL_CONTAINER_STATUSES,
        ] {
            for (state, expected) in [
                (Some(container_state::RUNNING), true),
                (Some(container_state::WAITING), false),
                (Some(container_state::TERMINATED), false),
                (None, true),
            ] {
                let mut status = Vec::new();
                status.put_message(sort, |out| {
                    out.put_message(container_status::STATE, |out| {
                        state.iter().for_each(|state| out.put_message(*state, |_| {}));
                    })
                });
                let is_running = read(&[], &spec(), &status).expect("it has claims").is_running;
                assert_eq!(is_running, expected, "{sort} {state:?}");
            }
        }
    }

    #[test]
    fn has_no_grace_is_set_only_for_a_grace_period_of_zero() {
        for (seconds, expected) in [(None, false), (Some(0), true), (Some(30), false)] {
            let mut meta = Vec::new();
            if let Some(seconds) = seconds {
                meta.put_int(object_meta::DELETION_GRACE_PERIOD_SECONDS, seconds);
            }
            assert_eq!(read(&meta, &spec(), &[]).expect("it has claims").has_no_grace, expected, "{seconds:?}");
        }
    }
}
