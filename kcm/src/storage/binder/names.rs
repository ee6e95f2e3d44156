//! Names that other components read: finalizers, annotation values and plugins.

/// Annotation that names the creator of a volume; set by the host-path provisioner.
pub const CREATED_BY: &str = "kubernetes.io/createdby";

/// Finalizer of volumes that this controller deletes itself.
pub const CONTROLLER_FINALIZER: &str = "kubernetes.io/pv-controller";
/// Finalizer of volumes that an external provisioner deletes.
pub const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Value of annotations of which only the presence matters.
pub const YES: &str = "yes";
/// Prefix of the names of provisioners that are or were compiled into Kubernetes.
pub const IN_TREE: &str = "kubernetes.io/";
/// Name of the host-path plugin.
pub const HOST_PATH: &str = "kubernetes.io/host-path";
/// Name of the NFS plugin.
pub const NFS: &str = "kubernetes.io/nfs";
