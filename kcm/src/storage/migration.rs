//! The in-tree volume plugins that are permanently migrated to CSI drivers.
//!
//! Upstream: k8s.io/csi-translation-lib. No feature gate disables a migration.

use kinds::persistent_volume::Source;
use kinds::schema::persistent_volume_source as s;

/// An in-tree plugin whose volumes are processed by a CSI driver instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigratedPlugin {
    /// Name of the plugin.
    pub plugin: &'static str,
    /// Name of the CSI driver.
    pub driver: &'static str,
    /// Field number of the plugin's source in `PersistentVolumeSource`.
    field: u32,
}

const MIGRATED: [MigratedPlugin; 7] = [
    MigratedPlugin { plugin: "kubernetes.io/aws-ebs", driver: "ebs.csi.aws.com", field: s::AWS_ELASTIC_BLOCK_STORE },
    MigratedPlugin { plugin: "kubernetes.io/gce-pd", driver: "pd.csi.storage.gke.io", field: s::GCE_PERSISTENT_DISK },
    MigratedPlugin { plugin: "kubernetes.io/azure-disk", driver: "disk.csi.azure.com", field: s::AZURE_DISK },
    MigratedPlugin { plugin: "kubernetes.io/azure-file", driver: "file.csi.azure.com", field: s::AZURE_FILE },
    MigratedPlugin { plugin: "kubernetes.io/cinder", driver: "cinder.csi.openstack.org", field: s::CINDER },
    MigratedPlugin {
        plugin: "kubernetes.io/vsphere-volume",
        driver: "csi.vsphere.vmware.com",
        field: s::VSPHERE_VOLUME,
    },
    MigratedPlugin { plugin: "kubernetes.io/portworx-volume", driver: "pxd.portworx.com", field: s::PORTWORX_VOLUME },
];

/// Returns the migration of the plugin with this name, if it was migrated.
pub fn of_plugin(name: &str) -> Option<MigratedPlugin> {
    MIGRATED.into_iter().find(|migrated| migrated.plugin == name)
}

/// Returns the name of the CSI driver to which a plugin was migrated; empty if it was not migrated.
pub fn driver_of_plugin(name: &str) -> &'static str {
    of_plugin(name).map_or("", |migrated| migrated.driver)
}

/// Returns the migration of a volume's plugin, if it was migrated.
pub fn of_source(source: &Source) -> Option<MigratedPlugin> {
    MIGRATED.into_iter().find(|migrated| migrated.field == source.field())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrated_plugins_are_found_by_name_and_source() {
        for migrated in MIGRATED {
            assert_eq!(of_plugin(migrated.plugin), Some(migrated));
            let source = Source::Other { field: migrated.field, raw: Box::default() };
            assert_eq!(of_source(&source), Some(migrated));
        }
        assert_eq!((of_plugin("kubernetes.io/host-path"), of_plugin("ebs.csi.aws.com")), (None, None));
        assert_eq!((of_source(&Source::None), of_source(&Source::HostPath { path: "/tmp".into() })), (None, None));
    }
}
