//! Kinds of the API group `rbac.authorization.k8s.io`.

pub mod cluster_role;
