//! `ccm check-config`: checks a configuration before it is used.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use component::process;
use providers::Factory;

use crate::app;
use crate::cloud::no_cluster_id;
use crate::flags::{COMPONENT, Options};

/// The first word on the command line.
pub const COMMAND: &str = "check-config";

/// Reads only files, and does not call the cloud.
const FILES_ONLY: &str = "--files-only";

/// Maximum time for the cloud's first responses.
const PATIENCE: Duration = Duration::from_secs(120);

/// Reads a manager's command line, which may be copied unchanged, and the configuration that it names. Then it makes
/// the provider's first calls, which show whether the cloud is reachable and accepts this cluster. Fails with the
/// problem.
pub fn main(arguments: impl IntoIterator<Item = String>, factories: &[Factory]) -> ExitCode {
    let (words, flags): (Vec<_>, Vec<_>) = arguments.into_iter().partition(|argument| argument == FILES_ONLY);
    process::run_once(&COMPONENT, flags, async |options| {
        let good = check(&options, factories, words.is_empty()).await?;
        println!("{good}");
        Ok(())
    })
}

async fn check(options: &Options, factories: &[Factory], calls: bool) -> anyhow::Result<String> {
    let provider = app::provider(options, factories).await?;
    let name = provider.name();
    if calls {
        let reached = tokio::time::timeout(PATIENCE, provider.initialize()).await;
        let reached = reached.with_context(|| format!("the cloud does not respond within {} s", PATIENCE.as_secs()))?;
        reached.with_context(|| format!("the configuration of {name} can be read, and the cloud cannot be used"))?;
    }
    if !provider.has_cluster_id() && !options.values.get_bool("allow-untagged-cloud") {
        bail!("{}", no_cluster_id(&*provider));
    }
    Ok(match calls {
        true => format!("the configuration of {name} is valid, and the cloud responds"),
        false => format!("the configuration of {name} can be read; the cloud was not called"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use providers::{BuildContext, CloudError, CloudProvider, ConfigError, ErrorKind, MockCloudProvider};

    use super::*;
    use crate::flags::{Invocation, parse};

    fn acme(knows: bool, answers: bool) -> Arc<dyn CloudProvider> {
        let mut provider = MockCloudProvider::new();
        provider.expect_name().return_const("acme");
        provider.expect_has_cluster_id().return_const(knows);
        let denied = CloudError::new(ErrorKind::Denied, "DescribeNetwork", "no such key");
        provider.expect_initialize().returning(move || if answers { Ok(()) } else { Err(denied.clone()) });
        Arc::new(provider)
    }

    const FACTORIES: [Factory; 4] = [
        Factory { name: "good", build: |_| Ok(acme(true, true)) },
        Factory { name: "closed", build: |_| Ok(acme(true, false)) },
        Factory { name: "untagged", build: |_| Ok(acme(false, true)) },
        Factory { name: "unread", build: unread },
    ];

    fn unread(context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
        Err(ConfigError::Unreadable { file: context.config_name(), message: "line 1: no".into() })
    }

    async fn said(provider: &str, more: &[&str], calls: bool) -> String {
        let flags = std::iter::once(format!("--cloud-provider={provider}"));
        let options = match parse(flags.chain(more.iter().map(|flag| (*flag).to_owned()))) {
            Ok(Invocation::Run(options)) => *options,
            other => panic!("{provider} gives {other:?}"),
        };
        check(&options, &FACTORIES, calls).await.unwrap_or_else(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn check_reports_problems_or_success() {
        let closed =
            "the configuration of acme can be read, and the cloud cannot be used: DescribeNetwork: no such key";
        let untagged = "no ClusterID found: the cloud provider acme";
        let good = "the configuration of acme is valid, and the cloud responds";
        for (provider, flags, calls, expected) in [
            ("good", &[][..], true, good),
            ("good", &[], false, "the configuration of acme can be read; the cloud was not called"),
            ("closed", &[], true, closed),
            ("closed", &[], false, "the configuration of acme can be read; the cloud was not called"),
            ("untagged", &[], true, untagged),
            ("untagged", &["--allow-untagged-cloud"], true, good),
            ("unread", &[], true, "--cloud-config: line 1: no"),
            ("nobody", &[], true, "--cloud-provider is \"nobody\": use one of good, closed, untagged, unread"),
        ] {
            let said = said(provider, flags, calls).await;
            assert!(said.starts_with(expected), "{provider} {flags:?} {calls}: {said}");
        }
    }
}
