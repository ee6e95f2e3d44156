//! validatingadmissionpolicy-status-controller: checks the types of the expressions of ValidatingAdmissionPolicies and
//! writes warnings to their statuses.
//!
//! A policy is checked once per generation. Schemas and kinds that appear later do not lead to another check. Upstream:
//! pkg/controller/validatingadmissionpolicystatus.

mod decide;
mod rules;
mod schemas;
mod sync;

use std::sync::Arc;

use kinds::{Kind, Sections, ValidatingAdmissionPolicy};
use runtime::manager::Manager;
use runtime::openapi::OpenApi;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use schemas::Schemas;
use sync::TypeChecker;

const QUEUE: &str = "validatingadmissionpolicy-status";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "validatingadmissionpolicy-status-controller",
    service_account: "validatingadmissionpolicy-status-controller",
    requires: &[ValidatingAdmissionPolicy::RESOURCE],
    watches,
    writes: &[Write {
        verb: Verb::Patch,
        group: "admissionregistration.k8s.io",
        resource: "validatingadmissionpolicies/status",
    }],
    queues: &[QueueKeys::of(QUEUE, "ValidatingAdmissionPolicy")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<ValidatingAdmissionPolicy>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let policies = manager.registry().store::<ValidatingAdmissionPolicy>();
    let queue = Queue::new(QueueOptions::named(QUEUE));
    let changed = queue.clone();
    policies.subscribe(move |change| {
        if let Some(policy) = change.new
            && policy.meta.generation > policy.observed_generation
        {
            changed.add(policy.meta.key());
        }
    });
    let workers = context.workers("concurrent-validating-admission-policy-status-syncs");
    let checker = TypeChecker {
        writer: manager.writer(DESCRIPTOR.service_account),
        discovery: manager.discovery(),
        schemas: Schemas::new(OpenApi::new(Arc::new(manager.clients().clone()))),
        policies,
    };
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, Arc::new(checker));
}
