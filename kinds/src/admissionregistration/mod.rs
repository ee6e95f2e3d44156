//! Kinds of the API group `admissionregistration.k8s.io`.

pub mod validating_admission_policy;
