//! Desired settings of a Service: its fields and annotations, read and checked before any call.

pub(super) mod actions;
pub(super) mod alb;
pub(super) mod annotation_reader;
pub(super) mod annotations;
pub(super) mod backends;
mod classic;
pub(super) mod endpoint_service;
mod group;
pub(super) mod ports;
pub(super) mod settings;
pub(super) mod target_group;
pub(super) mod user_groups;
