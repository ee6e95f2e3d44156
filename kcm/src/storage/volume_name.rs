//! Unique names of volumes: kubelets find their volumes under these names in the status of their Node.
//!
//! A name is `<plugin>/<name in the plugin>`. Two PersistentVolumes with the same driver and handle are one volume.

use kinds::access_modes::AccessModes;
use kinds::intern::Str;
use kinds::persistent_volume::Source;
use kinds::schema::{
    fc_volume_source as fc, iscsi_persistent_volume_source as iscsi, persistent_volume_source as source,
};
use kinds::wire::fields;
use kinds::{PersistentVolume, VolumeAttachment};
use ring::digest;
use runtime::store::{Index, index_key};

use super::translation;

const CSI: &str = "kubernetes.io/csi/";
const FC: &str = "kubernetes.io/fc/";
const ISCSI: &str = "kubernetes.io/iscsi/";
const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The component that attaches the volumes of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin<'a> {
    /// The external-attacher of a CSI driver, requested by a VolumeAttachment.
    Csi {
        /// Name of the driver.
        driver: &'a str,
        /// The driver's name of the volume.
        handle: &'a str,
    },
    /// The kubelet itself. Attaching such a volume only reserves it for the node.
    Kubelet(&'static str),
}

impl<'a> Plugin<'a> {
    /// Returns the plugin of a unique name; `None` if the plugin is unknown, or a CSI volume lacks driver or handle.
    ///
    /// A handle may contain `^`, a driver's name cannot. Upstream fails to detach a volume with such a handle.
    pub fn of(name: &'a str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix(CSI) {
            let (driver, handle) = rest.split_once('^')?;
            return (!driver.is_empty() && !handle.is_empty()).then_some(Self::Csi { driver, handle });
        }
        let plugin =
            |prefix: &'static str| name.starts_with(prefix).then_some(Self::Kubelet(&prefix[..prefix.len() - 1]));
        plugin(FC).or_else(|| plugin(ISCSI))
    }

    /// Returns the plugin's name in metrics.
    pub fn metric_name(self) -> String {
        match self {
            Self::Csi { driver, .. } => format!("kubernetes.io/csi:{driver}"),
            Self::Kubelet(name) => name.to_owned(),
        }
    }
}

/// Returns true if the kubelet attaches a volume, by its unique name.
pub fn is_attached_by_kubelet(name: &str) -> bool {
    matches!(Plugin::of(name), Some(Plugin::Kubelet(_)))
}

/// Returns the unique name of a CSI driver's volume.
pub fn of_csi(driver: &str, handle: &str) -> Str {
    format!("{CSI}{driver}^{handle}").into()
}

/// Returns the unique name of a volume that has to be attached; `None` for other volumes, and for those whose source is
/// invalid.
pub fn of_volume(volume: &PersistentVolume) -> Option<Str> {
    match &volume.source {
        Source::Csi { driver, handle } => (!driver.is_empty() && !handle.is_empty()).then(|| of_csi(driver, handle)),
        Source::Other { field: source::FC, raw } => of_fc(raw),
        Source::Other { field: source::ISCSI, raw } => of_iscsi(raw),
        Source::Other { .. } => {
            let (driver, handle) = translation::handle_of(volume)?.ok()?;
            Some(of_csi(driver, &handle))
        }
        _ => None,
    }
}

/// Returns the unique name of the inline volume of an attachment, which a pod defines itself; `None` for other
/// attachments, whose volume is a PersistentVolume.
pub fn of_inline(attachment: &VolumeAttachment) -> Option<Str> {
    let (driver, handle) = attachment.inline.as_deref()?.csi()?;
    Some(of_csi(driver, handle))
}

/// Returns the unique name of a Fibre Channel volume; `None` if its source is invalid.
pub fn of_fc(message: &[u8]) -> Option<Str> {
    let mut targets = Vec::new();
    let mut ids = Vec::new();
    let mut lun = None;
    for field in fields(message) {
        let field = field.ok()?;
        match field.number {
            fc::TARGET_WWNS => targets.push(field.value.str()),
            fc::WWIDS => ids.push(field.value.str()),
            fc::LUN => lun = Some(field.value.i32()),
            _ => {}
        }
    }
    match lun {
        Some(lun) if !targets.is_empty() => Some(format!("{FC}[{}]:{lun}", targets.join(" ")).into()),
        _ if !ids.is_empty() => Some(format!("{FC}[{}]", ids.join(" ")).into()),
        _ => None,
    }
}

/// Returns the unique name of an iSCSI volume; `None` if its source is malformed.
pub fn of_iscsi(message: &[u8]) -> Option<Str> {
    let (mut portal, mut iqn, mut lun) = ("", "", 0);
    for field in fields(message) {
        let field = field.ok()?;
        match field.number {
            iscsi::TARGET_PORTAL => portal = field.value.str(),
            iscsi::IQN => iqn = field.value.str(),
            iscsi::LUN => lun = field.value.i32(),
            _ => {}
        }
    }
    Some(format!("{ISCSI}{portal}:{iqn}:{lun}").into())
}

/// Returns the name of the VolumeAttachment of a volume on a node.
///
/// Upstream: pkg/volume/csi, getAttachmentName.
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    [handle, driver, node].iter().for_each(|part| context.update(part.as_bytes()));
    let hash = context.finish();
    // Each reconcile of a volume needs the name several times, so it is built without a formatter.
    let digits = hash.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    "csi-".chars().chain(digits.map(|digit| char::from(HEX_DIGITS[usize::from(digit)]))).collect()
}

/// Returns true if a name has the form of [`attachment_name`].
pub fn has_form_of_attachment(name: &str) -> bool {
    let hash = name.strip_prefix("csi-");
    hash.is_some_and(|hash| {
        hash.len() == 2 * digest::SHA256_OUTPUT_LEN && hash.bytes().all(|c| HEX_DIGITS.contains(&c))
    })
}

/// Returns true if an attachment is this controller's attachment of the volume with this unique name.
pub fn is_attachment_of(attachment: &VolumeAttachment, volume: &str) -> bool {
    match Plugin::of(volume) {
        Some(Plugin::Csi { driver, handle }) => {
            attachment_name(driver, handle, &attachment.node) == *attachment.meta.name
        }
        _ => false,
    }
}

/// Returns true if a volume may be attached to one node only: it has access modes, and none of them allows a second
/// node. The modes of its claim are not considered.
///
/// Upstream: pkg/volume/util, IsMultiAttachAllowed.
pub fn is_exclusive(volume: &PersistentVolume) -> bool {
    let modes = volume.modes();
    // After the migration to CSI, a GCE disk can be shared only if ReadOnlyMany is its sole mode: ReadWriteMany becomes
    // ReadWriteOnce, and ReadOnlyMany is dropped if there are other modes.
    let shared = match volume.source.field() {
        source::GCE_PERSISTENT_DISK if modes != AccessModes::READ_ONLY_MANY => AccessModes::default(),
        _ => AccessModes::READ_ONLY_MANY | AccessModes::READ_WRITE_MANY,
    };
    !volume.access_modes.is_empty() && !modes.intersects(shared)
}

/// Returns the index of volumes by their unique name. Look up by [`named`].
pub const fn volumes_by_unique_name() -> Index<PersistentVolume> {
    Index {
        name: "unique-name",
        keys: |volume, emit| {
            if let Some(name) = of_volume(volume) {
                emit(named(&name));
            }
        },
    }
}

/// Returns the key of all volumes with a unique name.
pub fn named(name: &str) -> u64 {
    index_key(("unique-name", name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::volume;
    use kinds::wire::Put;

    fn with(source: Source) -> PersistentVolume {
        let mut volume = volume("pv");
        volume.source = source;
        volume
    }

    #[test]
    fn unique_name_depends_on_the_source() {
        let fc_of = |targets: &[&str], ids: &[&str], lun: Option<i64>| {
            let mut raw = Vec::new();
            targets.iter().for_each(|target| raw.put_str(fc::TARGET_WWNS, target));
            ids.iter().for_each(|id| raw.put_str(fc::WWIDS, id));
            if let Some(lun) = lun {
                raw.put_int(fc::LUN, lun);
            }
            Source::Other { field: source::FC, raw: raw.into() }
        };
        let mut target = Vec::new();
        target.put_str(iscsi::TARGET_PORTAL, "10.0.0.1:3260");
        target.put_str(iscsi::IQN, "iqn.2026-11.com.example:disk");
        target.put_int(iscsi::LUN, 3);
        let csi = Source::Csi { driver: "disk.example.com".into(), handle: "vol^1".into() };
        let rows = [
            ("CSI", csi, Some("kubernetes.io/csi/disk.example.com^vol^1")),
            ("CSI without handle", Source::Csi { driver: "d".into(), handle: "".into() }, None),
            ("FC targets", fc_of(&["1", "2"], &["x"], Some(0)), Some("kubernetes.io/fc/[1 2]:0")),
            ("FC ids", fc_of(&["1"], &["x", "y"], None), Some("kubernetes.io/fc/[x y]")),
            ("FC without ids", fc_of(&[], &[], None), None),
            (
                "iSCSI",
                Source::Other { field: source::ISCSI, raw: target.into() },
                Some("kubernetes.io/iscsi/10.0.0.1:3260:iqn.2026-11.com.example:disk:3"),
            ),
            ("host path", Source::HostPath { path: "/tmp".into() }, None),
            ("local", Source::Other { field: source::LOCAL, raw: Box::default() }, None),
            ("ScaleIO", Source::Other { field: 19, raw: Box::default() }, None),
        ];
        for (name, source, expected) in rows {
            assert_eq!(of_volume(&with(source)).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn plugin_is_read_from_the_unique_name() {
        for (name, expected) in [
            ("kubernetes.io/csi/d^vol^1", Some(Plugin::Csi { driver: "d", handle: "vol^1" })),
            ("kubernetes.io/csi/d", None),
            ("kubernetes.io/csi/d^", None),
            ("kubernetes.io/fc/[1]:0", Some(Plugin::Kubelet("kubernetes.io/fc"))),
            ("kubernetes.io/iscsi/a:b:0", Some(Plugin::Kubelet("kubernetes.io/iscsi"))),
            ("kubernetes.io/aws-ebs/vol-1", None),
            ("vendor/driver/pv", None),
        ] {
            assert_eq!(Plugin::of(name), expected, "{name}");
        }
    }

    #[test]
    fn attachment_name_is_the_hash_of_handle_driver_and_node() {
        assert_eq!(
            attachment_name("csi.example.com", "vol-1", "node-1"),
            "csi-b74c7fc125891ffa0d0f2e0d645733e3fae7fba3066e76500a771ea08be9da28"
        );
    }

    #[test]
    fn access_modes_of_the_volume_decide_on_a_second_node() {
        let gce = || Source::Other { field: source::GCE_PERSISTENT_DISK, raw: Box::default() };
        for (modes, source, expected) in [
            (&["ReadWriteOnce"][..], Source::None, true),
            (&["ReadWriteOncePod"], Source::None, true),
            (&["ReadWriteOnce", "ReadOnlyMany"], Source::None, false),
            (&["ReadWriteMany"], Source::None, false),
            (&[], Source::None, false),
            (&["Unknown"], Source::None, true),
            (&["ReadOnlyMany"], gce(), false),
            (&["ReadWriteMany"], gce(), true),
            (&["ReadWriteOnce", "ReadOnlyMany"], gce(), true),
        ] {
            let mut volume = with(source);
            volume.access_modes = modes.iter().map(|mode| (*mode).into()).collect();
            assert_eq!(is_exclusive(&volume), expected, "{modes:?}");
        }
    }
}
