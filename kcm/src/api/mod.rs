//! Controllers of all kinds of objects and of the API itself: garbage collection, namespaces, quotas, stored versions,
//! and the status of admission policies.

pub mod garbage_collector;
pub mod namespace;
pub mod resourcequota;
pub mod storage_version_migrator;
pub mod storageversion_garbage_collector;
pub mod validating_admission_policy_status;
