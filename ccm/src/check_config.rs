//! `ccm check-config`: checks a configuration before it is used.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use component::process;
use kinds::{Decode, Kind as _, Service};
use providers::{CloudProvider, Factory};
use runtime::client::rate::TokenBucket;
use runtime::client::{ConnectOptions, Identity, connect};
use runtime::fence::Fence;
use runtime::write::Writer;

use crate::app;
use crate::cloud::no_cluster_id;
use crate::cloud::secrets::{ApiSecrets, Secrets};
use crate::controllers::service::forecast;
use crate::flags::{COMPONENT, Options};

/// The subcommand: the first word on the command line.
pub const COMMAND: &str = "check-config";

/// The flag for a check that reads only files and does not call the cloud.
const FILES_ONLY: &str = "--files-only";

/// The flag that also lists what would happen to the load balancer of each Service.
const SERVICES: &str = "--services";

/// The text of `--help`.
const HELP: &str = "\
Checks the configuration of cloud-controller-manager before it is used, and changes nothing: reads the
file of --cloud-config, makes the provider's first calls to the cloud, and reports the first problem.

Usage:
  ccm check-config [--files-only | --services] [flags]

      --files-only   Read only files, and do not call the cloud
      --services     Also list what would happen to the load balancer of each Service; requires
                     --kubeconfig, --master or a pod's service account

All flags of the manager are accepted, so that its command line can be copied: see 'ccm --help'.
";

/// Limits of requests to the API server. Listing the Services page by page stays far below them.
const READS_PER_SECOND: f32 = 20.0;
const READ_BURST: u32 = 30;

/// Maximum time for the cloud's first responses.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(120);

/// Reads a manager's command line, which may be copied unchanged, and the configuration that the command line names.
/// Then makes the provider's first calls, unless `--files-only` is given: they show whether the cloud is reachable and
/// accepts this cluster. Returns success, or prints the first problem and returns a failure.
pub fn main(arguments: impl IntoIterator<Item = String>, factories: &[Factory]) -> ExitCode {
    let is_word = |argument: &String| [FILES_ONLY, SERVICES].contains(&argument.as_str());
    let (words, flags): (Vec<_>, Vec<_>) = arguments.into_iter().partition(is_word);
    if flags.iter().any(|flag| matches!(flag.as_str(), "--help" | "-h")) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let has = |word: &str| words.iter().any(|one| one == word);
    let (calls, services) = (!has(FILES_ONLY), has(SERVICES));
    process::run_once(&COMPONENT, flags, async |options| {
        if services && !calls {
            bail!("{SERVICES} calls the cloud, and {FILES_ONLY} forbids that: use one of them");
        }
        let provider = app::provider(&options, factories).await?;
        if calls && !provider.secrets().is_empty() {
            let secrets = Secrets::new(provider.secrets(), Box::new(ApiSecrets { writer: reader(&options).await? }));
            secrets.load(&*provider).await.context("the provider's Secrets cannot be used")?;
        }
        let summary = check(&options, &*provider, calls).await?;
        println!("{summary}");
        if services {
            for forecast in forecasts(&options, &*provider).await? {
                println!("{forecast}");
            }
        }
        Ok(())
    })
}

/// Returns a client that reads from the API server.
async fn reader(options: &Options) -> anyhow::Result<Writer> {
    let connection = ConnectOptions {
        kubeconfig: Some(options.kubeconfig.clone()).filter(|path| !path.is_empty()).map(Into::into),
        master: Some(options.master.clone()).filter(|address| !address.is_empty()),
        ..ConnectOptions::default()
    };
    let clients = Arc::new(connect(&connection).await?);
    let pace = Arc::new(TokenBucket::new(READS_PER_SECOND, READ_BURST));
    Ok(Writer::new(clients, Identity::Own, pace, Fence::open()))
}

/// Reads all Services and returns what would happen to the load balancer of each.
async fn forecasts(options: &Options, provider: &dyn CloudProvider) -> anyhow::Result<Vec<String>> {
    let cloud = provider.load_balancers().with_context(|| format!("{} has no load balancers", provider.name()))?;
    let reader = reader(options).await?;
    let decode = Decode { interner: Arc::default(), sections: Service::BALANCING };
    let mut services = Vec::new();
    let read = reader.list_each(&Service::RESOURCE, "", |object| services.push(Service::decode(&decode, object))).await;
    read.context("cannot list Services")?;
    let services = services.into_iter().collect::<Result<Vec<_>, _>>().context("cannot read a Service")?;
    Ok(forecast::lines(&services, options.values.get_str("cluster-name"), &*cloud).await)
}

async fn check(options: &Options, provider: &dyn CloudProvider, calls: bool) -> anyhow::Result<String> {
    let name = provider.name();
    if calls {
        let reached = tokio::time::timeout(CLOUD_TIMEOUT, provider.initialize()).await;
        let reached =
            reached.with_context(|| format!("the cloud did not respond within {} s", CLOUD_TIMEOUT.as_secs()))?;
        reached.with_context(|| format!("the configuration of {name} is readable, but the cloud cannot be used"))?;
    }
    if !provider.has_cluster_id() && !options.values.get_bool("allow-untagged-cloud") {
        bail!("{}", no_cluster_id(provider));
    }
    Ok(if calls {
        format!("the configuration of {name} is valid, and the cloud responds")
    } else {
        format!("the configuration of {name} can be read; the cloud was not called")
    })
}

#[cfg(test)]
mod tests {
    use providers::{BuildContext, CloudError, ConfigError, ErrorKind, MockCloudProvider};

    use super::*;
    use crate::flags::{Invocation, parse};

    fn acme(has_id: bool, responds: bool) -> Arc<dyn CloudProvider> {
        let mut provider = MockCloudProvider::new();
        provider.expect_name().return_const("acme");
        provider.expect_has_cluster_id().return_const(has_id);
        let denied = CloudError::new(ErrorKind::Denied, "DescribeNetwork", "no such key");
        provider.expect_initialize().returning(move || if responds { Ok(()) } else { Err(denied.clone()) });
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

    async fn result(provider: &str, more: &[&str], calls: bool) -> String {
        let flags = std::iter::once(format!("--cloud-provider={provider}"));
        let options = match parse(flags.chain(more.iter().map(|flag| (*flag).to_owned()))) {
            Ok(Invocation::Run(options)) => *options,
            other => panic!("{provider} gives {other:?}"),
        };
        let checked = match app::provider(&options, &FACTORIES).await {
            Ok(provider) => check(&options, &*provider, calls).await,
            Err(error) => Err(error),
        };
        checked.unwrap_or_else(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn check_reports_problems_or_success() {
        let closed =
            "the configuration of acme is readable, but the cloud cannot be used: DescribeNetwork: no such key";
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
            ("absent", &[], true, "--cloud-provider is \"absent\": use one of good, closed, untagged, unread"),
        ] {
            let result = result(provider, flags, calls).await;
            assert!(result.starts_with(expected), "{provider} {flags:?} {calls}: {result}");
        }
    }
}
