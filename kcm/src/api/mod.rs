//! Objects of any kind: garbage, namespaces, quotas.

pub mod garbage_collector;
pub mod namespace;
pub mod resourcequota;
pub mod storage_version_migrator;
pub mod storageversion_garbage_collector;
pub mod validating_admission_policy_status;
