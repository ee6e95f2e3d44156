//! Kinds of the API group `storage.k8s.io`.

pub mod csi_driver;
pub mod csi_node;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;
