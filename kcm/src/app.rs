//! From the command line to running controllers.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use component::process::{self, Built, manager_options, warn_of_missing};
use jiff::Timestamp;
use kinds::{ClusterTrustBundle, Kind, PodCertificateRequest};
use runtime::client::{Clients, ConnectOptions, connect};
use runtime::manager::Manager;
use runtime::watch::{Builder, serves};
use tracing::info;

use crate::controllers::{CONTROLLERS, Descriptor, Settings};
use crate::credentials::Credentials;
use crate::flags::{COMPONENT, Options};
use crate::nodeipam;
use crate::pod_certificate_cleaning;
use crate::trust_bundle_publisher;

/// Runs the manager as its command line says; the process's whole life.
pub fn main(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    process::main(&COMPONENT, arguments, async |options, connection| {
        let missing = enabled(&options).1;
        Ok(Built { manager: manager(options, &connection).await?, missing })
    })
}

/// The controllers that are switched on: those of the table, and the names of those that are not in it yet.
fn enabled(options: &Options) -> (Vec<&'static Descriptor>, Vec<&'static str>) {
    let (mut enabled, mut missing) = (Vec::new(), Vec::new());
    let switched_off = |name: &str| match name {
        "garbage-collector-controller" => !options.values.get_bool("enable-garbage-collector"),
        _ => false,
    };
    for wanted in options.enabled().filter(|wanted| !switched_off(wanted.name)) {
        match CONTROLLERS.iter().find(|descriptor| descriptor.name == wanted.name) {
            Some(descriptor) => enabled.push(descriptor),
            None => missing.push(wanted.name),
        }
    }
    (enabled, missing)
}

/// A manager with the controllers that the options switch on, connected but not yet running.
///
/// # Errors
/// When the API server's address or credentials cannot be read, or the options contradict each other.
pub async fn manager(options: Options, connection: &ConnectOptions) -> anyhow::Result<Manager> {
    manager_in(options, connection, None).await
}

/// As [`manager`], for the objects of one namespace only.
///
/// # Errors
/// As [`manager`].
pub async fn manager_in(
    options: Options,
    connection: &ConnectOptions,
    namespace: Option<String>,
) -> anyhow::Result<Manager> {
    let (descriptors, missing) = enabled(&options);
    warn_of_missing(&missing);
    let credentials = Credentials::read(&options, connection, |name| descriptors.iter().any(|d| d.name == name))?;
    let clients = Arc::new(connect(connection).await?);
    let descriptors = with_work(descriptors, &options, &credentials, &clients).await?;
    let mut needs = Builder::default();
    for descriptor in &descriptors {
        (descriptor.needs)(&mut needs);
    }
    let mut manager = Manager::new(clients, needs.build(), manager_options(&options, namespace))?;
    manager.record_leadership(COMPONENT.name);
    let settings = Settings { options, credentials, clock: Arc::new(Timestamp::now) };
    for descriptor in descriptors {
        info!(controller = descriptor.name, "starting controller");
        (descriptor.start)(&mut manager, &settings);
    }
    Ok(manager)
}

/// Those controllers that have something to do here; says why the others don't.
async fn with_work(
    mut descriptors: Vec<&'static Descriptor>,
    options: &Options,
    credentials: &Credentials,
    clients: &Clients,
) -> anyhow::Result<Vec<&'static Descriptor>> {
    let mut idle: Vec<(&'static str, &'static str)> = Vec::new();
    for descriptor in &descriptors {
        if let Some(why) = credentials.idle(descriptor.name) {
            idle.push((descriptor.name, why));
        } else if descriptor.name == trust_bundle_publisher::DESCRIPTOR.name
            && !serves(clients, &ClusterTrustBundle::RESOURCE).await.context("cannot ask what the API server serves")?
        {
            idle.push((descriptor.name, "the API server does not serve certificates.k8s.io/v1 ClusterTrustBundles"));
        } else if descriptor.name == pod_certificate_cleaning::DESCRIPTOR.name
            && !serves(clients, &PodCertificateRequest::RESOURCE)
                .await
                .context("cannot ask what the API server serves")?
        {
            idle.push((descriptor.name, "the API server does not serve certificates.k8s.io/v1 PodCertificateRequests"));
        } else if descriptor.name == nodeipam::DESCRIPTOR.name && nodeipam::config::read(&options.values)?.is_none() {
            idle.push((descriptor.name, "nodes are to get no ranges (--allocate-node-cidrs)"));
        }
    }
    for (controller, why) in &idle {
        info!(controller, why, "skipping controller");
    }
    descriptors.retain(|descriptor| idle.iter().all(|(name, _)| *name != descriptor.name));
    Ok(descriptors)
}
