//! The library of the cluster tests: whole managers inside the test process, with one real API server.
//!
//! Most tests of a binary share one control plane; each of them has a [`Space`]: a namespace, to which most managers of
//! the test are limited. A [`Manager`] runs under the real identities of kcm or ccm, so that a missing permission fails
//! a test. [`Faults`] intercepts the requests of a manager: it counts, delays, refuses and drops them. Tests wait for
//! states with [`eventually`], not for fixed times, except where the time itself matters.
//!
//! With the environment variable [`all_gates::VARIABLE`], API servers, schedulers and kcm have every alpha and beta
//! feature gate on, except those that a test sets. A process whose test sets any gate gets none of the others.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

pub mod all_gates;
mod call;
pub mod certificates;
mod cloud;
mod custom_objects;
mod faults;
pub mod handover;
mod harness;
pub mod kubevirt;
mod manager;
pub mod metrics;
pub mod objects;
mod observer;
pub mod pace;
mod port;
pub mod programs;
mod report;
mod space;
mod space_manager;
mod static_pods;
pub mod traces;
mod wait;

pub use call::{Call, Verb};
pub use cloud::CloudBed;
pub use custom_objects::CustomObjects;
pub use faults::{Effect, Faults, RecordedRequest, Rule, write_failures};
pub use harness::{Case, Run, Tier, run, variants};
pub use manager::{Manager, restart_after_crashes};
pub use observer::{Observer, View};
pub use port::ReservedPort;
pub use space::{Bed, Namespaced, Space};
pub use static_pods::StaticPods;
pub use wait::{DEADLINE, QUIET, during, eventually};
