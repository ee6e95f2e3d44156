//! Assembly of a manager from a registry of controllers and a command line.

use anyhow::Context as _;
use runtime::client::Clients;
use runtime::diagnostics::FinalizerOwner;
use runtime::manager::Manager;
use runtime::watch::{Builder, WatchError, serves};
use tracing::{info, warn};

use crate::descriptor::{Descriptor, Start};
use crate::flags::Options;

/// A manager that is connected and not yet running.
pub struct Assembly {
    /// The manager.
    pub manager: Manager,
    /// The names of queues, with the kind of their keys.
    pub key_kinds: Vec<(&'static str, &'static str)>,
    /// The finalizers on the diagnostics page, with the programs that remove them.
    pub finalizers: Vec<FinalizerOwner>,
}

/// The descriptors of some controllers.
pub type Descriptors<C> = Vec<&'static Descriptor<C>>;

/// Returns the controllers of a registry that the options enable.
pub fn enabled<C>(registry: &'static [Descriptor<C>], options: &Options) -> Descriptors<C> {
    let descriptor = |name: &str| registry.iter().find(|descriptor| descriptor.name == name);
    options.enabled().filter_map(|wanted| descriptor(wanted.name)).collect()
}

/// Prepares the controllers and returns those that run; logs the reason why the others are skipped.
///
/// # Errors
/// Fails if flags contradict each other, or if a file cannot be used.
pub fn prepare<C>(descriptors: Descriptors<C>, context: &mut C) -> anyhow::Result<Descriptors<C>> {
    let mut kept = Vec::new();
    for descriptor in descriptors {
        let controller = descriptor.name;
        match (descriptor.prepare)(context).with_context(|| format!("cannot start {controller}"))? {
            Start::Run => kept.push(descriptor),
            Start::Skip(reason) => info!(controller, reason, "skipping controller"),
        }
    }
    Ok(kept)
}

/// Returns the controllers whose required API resources are served, and those for which API discovery is refused.
/// Logs the first missing resource of each other controller.
///
/// # Errors
/// Fails if the API server cannot be reached, or if its discovery documents cannot be decoded.
pub async fn with_served_apis<C>(descriptors: Descriptors<C>, clients: &Clients) -> anyhow::Result<Descriptors<C>> {
    let mut kept = Vec::new();
    'descriptors: for descriptor in descriptors {
        for resource in descriptor.requires {
            let (controller, api) = (descriptor.name, format!("{} {}", resource.api_version(), resource.plural));
            match serves(clients, resource).await {
                Ok(true) => {}
                Ok(false) => {
                    info!(controller, missing = api, "skipping controller: the API is not served");
                    continue 'descriptors;
                }
                // An API group that fails must not end the process: the controller waits until the kind can be
                // listed.
                Err(WatchError::Refused(status)) => warn!(controller, api, %status, "API discovery was refused"),
                Err(error) => return Err(error).context("cannot read the resources that the API server serves"),
            }
        }
        kept.push(descriptor);
    }
    Ok(kept)
}

/// Returns the declaration of everything that the controllers read.
pub fn watches<C>(descriptors: &[&'static Descriptor<C>], context: &C) -> Builder {
    let mut builder = Builder::default();
    for descriptor in descriptors {
        (descriptor.watches)(&mut builder, context);
    }
    builder
}

/// Adds the controllers to a manager. Each waits only for the kinds that it reads itself.
pub fn start<C>(descriptors: &[&'static Descriptor<C>], manager: &mut Manager, context: &C) {
    for descriptor in descriptors {
        info!(controller = descriptor.name, "starting controller");
        let mut builder = Builder::default();
        (descriptor.watches)(&mut builder, context);
        manager.add_with_reads(builder.reads(), |manager| (descriptor.start)(manager, context));
    }
}

/// Maps the names of queues to the kind of their keys, for the diagnostics page. Queues without such a kind are
/// left out.
pub fn key_kinds<C>(registry: &'static [Descriptor<C>]) -> Vec<(&'static str, &'static str)> {
    let queues = registry.iter().flat_map(|descriptor| descriptor.queues);
    queues.filter_map(|keys| Some((keys.queue, keys.kind?))).collect()
}
