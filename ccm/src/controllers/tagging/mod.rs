//! The tagging controller: adds the tags of the command line to the instances of Nodes, and removes them from the
//! instances of deleted Nodes.
//!
//! A label on each Node contains a checksum of its instance's tags, so that a restart with the same tags makes no
//! calls. New Nodes are processed in batches, with one call to the provider. Follows upstream cloud-provider-aws,
//! pkg/controllers/tagging.

mod metrics;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use kinds::Node;
use md5::{Digest, Md5};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use self::metrics::TaggingMetrics;
use self::sync::{Pending, Tagger};
use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "tagging",
    service_account: "node-controller",
    watches,
    writes: &[Write { verb: Verb::Patch, group: "", resource: "nodes" }],
    prepare,
    queues: &[QueueKeys::other("tagging-controller")],
    start,
    ..Descriptor::NONE
};

/// The only supported kind of resource.
const INSTANCE: &str = "instance";

/// Time over which Nodes are batched.
const BATCH_WINDOW: Duration = Duration::from_millis(200);

/// First and maximum delay after failures.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Checks the flags. As in upstream, a missing flag ends the process. Upstream: cloud-provider-aws,
/// TaggingControllerOptions.Validate.
fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    if context.cloud.provider().tagging().is_none() {
        return Ok(Start::Skip("the cloud provider does not support tags"));
    }
    if context.options.values.get_map("tags").is_empty() {
        bail!("--tags must not be empty and must be a form of key=value");
    }
    let resources = context.options.values.get_strings("resources");
    if resources.is_empty() {
        bail!("--resources must not be empty; use --resources={INSTANCE}");
    }
    if let Some(other) = resources.iter().find(|resource| *resource != INSTANCE) {
        bail!("--resources: {other} is not a supported resource; use {INSTANCE}");
    }
    Ok(Start::Run)
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Node>(Node::CLOUD, &[sync::BY_INSTANCE]);
}

/// Returns the checksum of tags for the label on Nodes.
///
/// The checksum equals upstream's, so that a takeover in either direction makes no calls.
fn checksum(tags: &BTreeMap<String, String>) -> String {
    let mut pairs: Vec<String> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    // MD5 is not used for security: the label must equal upstream's.
    let sum = Md5::digest(pairs.join(","));
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn start(manager: &mut Manager, context: &Context) {
    let Some(tagging) = context.cloud.provider().tagging() else { return };
    let (base_delay, max_delay) = RETRY_DELAYS;
    let queue = Queue::new(QueueOptions { base_delay, max_delay, ..QueueOptions::named("tagging-controller") });
    let nodes = manager.registry().store::<Node>();
    let tags = context.options.values.get_map("tags").clone();
    let pending = Arc::new(Pending::new(checksum(&tags), tagging.clone()));
    let (pending_changes, changed) = (pending.clone(), queue.clone());
    nodes.subscribe(move |change| {
        if pending_changes.apply(change) {
            changed.add_after(sync::Round, BATCH_WINDOW);
        }
    });
    let reconciler = Tagger {
        cloud: context.cloud.clone(),
        tagging,
        tags,
        pending,
        nodes,
        writer: manager.writer(DESCRIPTOR.service_account),
        metrics: TaggingMetrics::register(manager.metrics()),
        clock: context.clock.clone(),
    };
    let options = WorkOptions { name: DESCRIPTOR.name, workers: 1 };
    manager.add(options, queue, Arc::new(reconciler));
}
