//! Kinds of the API group `autoscaling`.

pub mod horizontal_pod_autoscaler;
