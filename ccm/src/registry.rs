//! All cloud controllers. No other file lists them.

use crate::context::Descriptor;

/// All controllers, in the order in which they start.
pub const CONTROLLERS: &[Descriptor] = &[
    crate::node::DESCRIPTOR,
    crate::lifecycle::DESCRIPTOR,
    crate::route::DESCRIPTOR,
    crate::service::DESCRIPTOR,
    crate::tagging::DESCRIPTOR,
];
