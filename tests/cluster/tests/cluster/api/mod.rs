//! Controllers of the API itself: garbage collection, namespaces, quotas, and cluster-scoped objects.

pub mod cluster_scoped;
pub mod garbage_collector;
pub mod listed_kinds;
pub mod namespace;
pub mod owners;
pub mod policy_corpus;
pub mod policy_types;
pub mod resourcequota;
pub mod storage_migrations;
pub mod storage_versions;
