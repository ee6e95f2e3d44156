//! What AWS has: reads, and what this process remembers of them.

pub(super) mod balancer_state;
pub(super) mod convert;
pub(super) mod inventory;
pub(super) mod network;
pub(super) mod report;
pub(super) mod stack;
