//! Assembly of the controllers from the command line and the cloud provider that it names.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use component::assembly::{self, Assembly};
use component::finalizers;
use component::process::{self, manager_options};
use jiff::Timestamp;
use providers::{BuildContext, CloudProvider, Factory};
use runtime::client::{ConnectOptions, connect};
use runtime::manager::Manager;
use tracing::warn;

use crate::cloud::Cloud;
use crate::cloud::secrets::ApiSecrets;
use crate::context::{Clock, Context};
use crate::flags::{COMPONENT, Options};
use crate::registry::CONTROLLERS;

/// Runs the manager according to its command line, until it exits.
pub fn main(arguments: impl IntoIterator<Item = String>, factories: &[Factory]) -> ExitCode {
    process::main(&COMPONENT, arguments, async |options, connection| {
        let provider = provider(&options, factories).await?;
        let manager = manager_over(provider, options, &connection).await?;
        Ok(Assembly {
            manager,
            key_kinds: assembly::key_kinds(CONTROLLERS),
            finalizers: finalizers::owners(CONTROLLERS),
        })
    })
}

/// Returns the provider of the command line, built and not initialized.
pub(crate) async fn provider(options: &Options, factories: &[Factory]) -> anyhow::Result<Arc<dyn CloudProvider>> {
    let path = options.values.get_str("cloud-config");
    let config_path = Some(path).filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = match &config_path {
        Some(path) => {
            tokio::fs::read(path).await.with_context(|| format!("--cloud-config: cannot read {}", path.display()))?
        }
        None => Vec::new(),
    };
    let context = build_context(options, config_path, config);
    Ok(providers::build(factories, options.values.get_str("cloud-provider"), &context)?)
}

/// Returns the inputs of a provider from the command line and the content of `--cloud-config`.
pub fn build_context(options: &Options, config_path: Option<PathBuf>, config: Vec<u8>) -> BuildContext {
    BuildContext {
        cluster_name: options.values.get_str("cluster-name").to_owned(),
        config_path,
        config,
        load_balancer_classes: options.values.get_strings("load-balancer-class").to_vec(),
        only_classes: !options.values.get_bool("load-balancers-without-class"),
        default_tags: options.values.get_map("default-tags").clone(),
        external_tags: options.values.get_strings("external-managed-tags").to_vec(),
        max_targets: usize::try_from(options.values.get_i64("max-targets-per-target-group"))
            .ok()
            .filter(|max| *max > 0),
    }
}

/// Returns a manager with the enabled controllers over this provider, connected but not yet running.
///
/// # Errors
/// When the API server's address or credentials cannot be read, a controller rejects the options, or the provider
/// has no cluster ID and `--allow-untagged-cloud` is not set.
pub async fn manager_over(
    provider: Arc<dyn CloudProvider>,
    options: Options,
    connection: &ConnectOptions,
) -> anyhow::Result<Manager> {
    manager_with_clock(provider, options, connection, Arc::new(Timestamp::now)).await
}

/// Like [`manager_over`], with a given clock.
///
/// # Errors
/// Same as [`manager_over`].
pub async fn manager_with_clock(
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
    let enabled = assembly::enabled(CONTROLLERS, &options);
    let mut context = Context { options, cloud: Cloud::new(provider, untagged), clock };
    let prepared = assembly::prepare(enabled, &mut context)?;
    let clients = Arc::new(connect(connection).await?);
    let controllers = assembly::with_served_apis(prepared, &clients).await?;
    let watches = assembly::watches(&controllers, &context)
        .resyncing(context.options.values.get_duration("min-resync-period"))
        .build();
    let mut manager = Manager::new(clients, watches, manager_options(&context.options, None))?;
    context.cloud.read_secrets(Box::new(ApiSecrets { writer: manager.own_writer() }));
    let cloud = context.cloud.clone();
    manager.metrics().append(move || cloud.provider().metrics());
    manager.record_leadership(COMPONENT.name);
    assembly::start(&controllers, &mut manager, &context);
    Ok(manager)
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
    async fn unknown_provider_unreadable_config_and_missing_cluster_id_are_refused() {
        assert_eq!(refused(&["--cloud-provider=amce"]).await, "--cloud-provider is \"amce\": use one of acme, other");
        let missing = refused(&["--cloud-provider=acme", "--cloud-config=/does/not/exist"]).await;
        assert!(missing.starts_with("--cloud-config: cannot read /does/not/exist"), "{missing}");
        let untagged = refused(&["--cloud-provider=acme"]).await;
        assert!(untagged.starts_with("no ClusterID found: the cloud provider acme"), "{untagged}");
    }
}
