//! From the command line to running controllers over the provider that it names.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use component::process::{self, Built, manager_options, warn_of_missing};
use jiff::Timestamp;
use providers::{BuildContext, CloudProvider, Factory};
use runtime::client::{ConnectOptions, connect};
use runtime::manager::Manager;
use runtime::watch::Builder;
use tracing::{info, warn};

use crate::cloud::Cloud;
use crate::controllers::{CONTROLLERS, Clock, Descriptor, Settings, Work};
use crate::flags::{COMPONENT, Options};
use crate::service;

/// Runs the manager as its command line says; the process's whole life.
pub fn main(arguments: impl IntoIterator<Item = String>, factories: &[Factory]) -> ExitCode {
    process::main(&COMPONENT, arguments, async |options, connection| {
        let provider = provider(&options, factories).await?;
        let missing = enabled(&options).1;
        Ok(Built { manager: manager_over(provider, options, &connection).await?, missing })
    })
}

/// The provider that the command line names, built and not initialised.
pub(crate) async fn provider(options: &Options, factories: &[Factory]) -> anyhow::Result<Arc<dyn CloudProvider>> {
    let path = options.values.get_str("cloud-config");
    let config_path = Some(path).filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = match &config_path {
        Some(path) => {
            tokio::fs::read(path).await.with_context(|| format!("--cloud-config: cannot read {}", path.display()))?
        }
        None => Vec::new(),
    };
    let cluster_name = options.values.get_str("cluster-name").to_owned();
    let context = BuildContext {
        cluster_name,
        config_path,
        config,
        load_balancer_classes: options.values.get_strings("load-balancer-class").to_vec(),
        only_classes: !options.values.get_bool("load-balancers-without-class"),
        default_tags: options.values.get_map("default-tags").clone(),
        external_tags: options.values.get_strings("external-managed-tags").to_vec(),
        max_targets: usize::try_from(options.values.get_i64("max-targets-per-target-group"))
            .ok()
            .filter(|most| *most > 0),
    };
    Ok(providers::build(factories, options.values.get_str("cloud-provider"), &context)?)
}

/// The controllers that are switched on: those of the table, and the names of those that are not in it yet.
fn enabled(options: &Options) -> (Vec<&'static Descriptor>, Vec<&'static str>) {
    let (mut enabled, mut missing) = (Vec::new(), Vec::new());
    for wanted in options.enabled() {
        match CONTROLLERS.iter().find(|descriptor| descriptor.controller.name == wanted.name) {
            Some(descriptor) => enabled.push(descriptor),
            None => missing.push(wanted.name),
        }
    }
    (enabled, missing)
}

/// A manager with the controllers that the options switch on, over this provider, connected but not yet running.
///
/// # Errors
/// When the API server's address or credentials cannot be read, the options contradict each other, or the provider
/// does not know its cluster and was not allowed to.
pub async fn manager_over(
    provider: Arc<dyn CloudProvider>,
    options: Options,
    connection: &ConnectOptions,
) -> anyhow::Result<Manager> {
    manager_at(provider, options, connection, Arc::new(Timestamp::now)).await
}

/// As [`manager_over`], with a time of day of the caller's.
///
/// # Errors
/// As [`manager_over`].
pub async fn manager_at(
    provider: Arc<dyn CloudProvider>,
    options: Options,
    connection: &ConnectOptions,
    clock: Clock,
) -> anyhow::Result<Manager> {
    let untagged = options.values.get_bool("allow-untagged-cloud");
    if !provider.has_cluster_id() {
        if !untagged {
            bail!("{}", crate::cloud::no_cluster_id(&*provider));
        }
        warn!(provider = provider.name(), "detected a cluster without a ClusterID; one will be required in the future");
    }
    let (descriptors, missing) = enabled(&options);
    warn_of_missing(&missing);
    let settings = Settings { options, cloud: Cloud::new(provider, untagged), clock };
    let descriptors = with_work(descriptors, &settings)?;
    let clients = Arc::new(connect(connection).await?);
    let mut needs = Builder::default();
    for descriptor in &descriptors {
        (descriptor.controller.needs)(&mut needs);
    }
    if descriptors.iter().any(|descriptor| descriptor.controller.name == service::DESCRIPTOR.controller.name) {
        service::needs_of(&settings, &mut needs);
    }
    let mut manager = Manager::new(clients, needs.build(), manager_options(&settings.options, None))?;
    let cloud = settings.cloud.clone();
    manager.metrics().append(move || cloud.provider().metrics());
    manager.record_leadership(COMPONENT.name);
    for descriptor in descriptors {
        info!(controller = descriptor.controller.name, "starting controller");
        (descriptor.controller.start)(&mut manager, &settings);
    }
    Ok(manager)
}

/// Those controllers that have something to do here; says why the others don't.
fn with_work(descriptors: Vec<&'static Descriptor>, settings: &Settings) -> anyhow::Result<Vec<&'static Descriptor>> {
    let mut kept = Vec::new();
    for descriptor in descriptors {
        let controller = descriptor.controller.name;
        match (descriptor.work)(settings).with_context(|| format!("cannot start {controller}"))? {
            Work::Here => kept.push(descriptor),
            Work::None(why) => info!(controller, why, "skipping controller"),
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use providers::{CloudProvider, ConfigError, MockCloudProvider};

    use super::*;
    use crate::flags::{Invocation, parse};

    fn build(context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
        let mut provider = MockCloudProvider::new();
        let known = !context.config.is_empty();
        provider.expect_has_cluster_id().returning(move || known);
        provider.expect_name().return_const("acme");
        Ok(Arc::new(provider))
    }

    const FACTORIES: [Factory; 2] = [Factory { name: "acme", build }, Factory { name: "other", build }];

    fn options(flags: &[&str]) -> Options {
        match parse(flags.iter().map(|flag| (*flag).to_owned())) {
            Ok(Invocation::Run(options)) => *options,
            other => panic!("{flags:?} gives {other:?}"),
        }
    }

    async fn refused(flags: &[&str]) -> String {
        let options = options(flags);
        let built = match provider(&options, &FACTORIES).await {
            Ok(provider) => manager_over(provider, options, &ConnectOptions::default()).await.map(drop),
            Err(error) => Err(error),
        };
        format!("{:#}", built.expect_err("it cannot run"))
    }

    #[tokio::test]
    async fn the_provider_is_one_of_the_binarys_and_knows_its_cluster() {
        assert_eq!(refused(&["--cloud-provider=amce"]).await, "--cloud-provider is \"amce\": use one of acme, other");
        let missing = refused(&["--cloud-provider=acme", "--cloud-config=/does/not/exist"]).await;
        assert!(missing.starts_with("--cloud-config: cannot read /does/not/exist"), "{missing}");
        let untagged = refused(&["--cloud-provider=acme"]).await;
        assert!(untagged.starts_with("no ClusterID found: the cloud provider acme"), "{untagged}");
    }
}
