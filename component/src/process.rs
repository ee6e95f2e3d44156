//! The process around a manager: log, signals, serving, and exit code.

use std::process::ExitCode;

use anyhow::{Context, bail};
use runtime::client::ConnectOptions;
use runtime::election::{ElectionConfig, Versions, unique_identity};
use runtime::manager::{ExitReason, ManagerOptions};
use runtime::serve::{Server, SetVerbosity};
use runtime::telemetry::PLATFORM;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::assembly::Assembly;
use crate::flags::Component;
use crate::flags::gates::BINARY_MINOR;
use crate::flags::{self, Invocation, Options};
use crate::threads::{Threads, in_runtime};
use crate::{log, restrictions, serving};

/// Runs a binary according to its command line, until it exits. `build` creates the manager.
pub fn main<F>(
    component: &'static Component,
    arguments: impl IntoIterator<Item = String>,
    build: impl FnOnce(Options, ConnectOptions) -> F,
) -> ExitCode
where
    F: Future<Output = anyhow::Result<Assembly>>,
{
    let (options, set_verbosity, threads) = match prepare(component, arguments) {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    let ended = threads.block_on(run(component, options, set_verbosity, threads.workers(), build));
    // An exec plugin that hangs, or a controller that blocks its thread, must not keep the process alive.
    threads.shutdown_background();
    match ended {
        Ok(ExitReason::Shutdown) => {
            info!("shut down");
            ExitCode::SUCCESS
        }
        Ok(ExitReason::LeaseLost(lost)) => {
            tracing::error!(%lost, "leaderelection lost");
            ExitCode::FAILURE
        }
        Ok(ExitReason::WatchEnded | ExitReason::Stalled) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a single action with the options of a binary's command line, and returns the exit code.
pub fn run_once<F>(
    component: &'static Component,
    arguments: impl IntoIterator<Item = String>,
    act: impl FnOnce(Options) -> F,
) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    let (options, _, threads) = match prepare(component, arguments) {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    match threads.workers().block_on(act(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", component.binary);
            ExitCode::FAILURE
        }
    }
}

/// Parses the command line and starts the log and the threads. After `--help`, `--version` or an error, returns the
/// exit code.
fn prepare(
    component: &'static Component,
    arguments: impl IntoIterator<Item = String>,
) -> Result<(Options, SetVerbosity, Threads), ExitCode> {
    let binary = component.binary;
    let options = match flags::parse(component, arguments) {
        Ok(Invocation::Run(options)) => *options,
        Ok(Invocation::Help) => {
            print!("{}", flags::help::text(component, flags::help::width()));
            return Err(ExitCode::SUCCESS);
        }
        Ok(Invocation::Version { raw }) => {
            println!("{}", version(binary, raw));
            return Err(ExitCode::SUCCESS);
        }
        Err(errors) => {
            eprintln!("{binary}: {errors}\nSee '{binary} --help'.");
            return Err(ExitCode::FAILURE);
        }
    };
    let set_verbosity = log::start(binary, &options);
    match Threads::start() {
        Ok(threads) => Ok((options, set_verbosity, threads)),
        Err(error) => {
            tracing::error!("cannot start threads: {error}");
            Err(ExitCode::FAILURE)
        }
    }
}

/// Returns the text of `--version`, or of `--version=raw` with upstream's names for the parts.
fn version(binary: &str, raw: bool) -> String {
    let own = env!("CARGO_PKG_VERSION");
    let version = flags::value::KUBE_VERSION;
    if !raw {
        return format!("Kubernetes {version} ({binary} {own})");
    }
    let parts = [
        ("Major", "1"),
        ("Minor", &BINARY_MINOR.to_string()),
        ("GitVersion", version),
        ("Compiler", "rustc"),
        ("Platform", PLATFORM),
        ("Binary", binary),
        ("BinaryVersion", own),
    ];
    let parts = parts.map(|(name, value)| format!("{name}:{value:?}"));
    format!("version.Info{{{}}}", parts.join(", "))
}

/// Builds and runs the manager. This future runs on the control thread, so that signals, Lease and HTTPS server do not
/// depend on the controllers' threads. `build` runs in the controllers' runtime.
async fn run<F>(
    component: &'static Component,
    options: Options,
    set_verbosity: SetVerbosity,
    workers: &Handle,
    build: impl FnOnce(Options, ConnectOptions) -> F,
) -> anyhow::Result<ExitReason>
where
    F: Future<Output = anyhow::Result<Assembly>>,
{
    let mut signals = Signals::listen()?;
    info!(version = env!("CARGO_PKG_VERSION"), "starting {}", component.binary);
    log_ineffective_settings(&options);
    let restrictions = restrictions::read(&options.values)?;
    // The user agent, from which the API server derives the field manager's name.
    let user_agent = format!("{}/v{} ({})", component.name, env!("CARGO_PKG_VERSION"), component.binary);
    let connection = ConnectOptions {
        kubeconfig: non_empty(&options.kubeconfig).map(Into::into),
        master: non_empty(&options.master),
        user_agent: user_agent.clone(),
        control_runtime: Some(Handle::current()),
        ..ConnectOptions::default()
    };
    let start = async {
        let built = in_runtime(workers, build(options.clone(), connection)).await?;
        let server = match serving::serve_options(&options, &user_agent) {
            Some(serve) => {
                let served_content = serving::served_content(&options, &built, set_verbosity, restrictions);
                Some(Server::start(serve, served_content).await?)
            }
            None => None,
        };
        Ok((built, server))
    };
    let Some((built, server)) = signals.run_unless_signalled(start).await? else { return Ok(ExitReason::Shutdown) };
    let (stop, stopped) = oneshot::channel();
    let second_signal = async move {
        let signal = signals.next().await;
        info!("{signal}: finishing running work");
        // The manager may have exited on its own.
        let _ = stop.send(());
        signals.next().await;
    };
    let work = async {
        let ended = built.manager.run(async { _ = stopped.await }).await;
        if let Some(server) = server.filter(|_| ended == ExitReason::Shutdown) {
            server.stop().await;
        }
        ended
    };
    tokio::select! {
        ended = work => Ok(ended),
        () = second_signal => bail!("second signal: exiting immediately"),
    }
}

/// Logs flags and gates that are deprecated or have no effect.
fn log_ineffective_settings(options: &Options) {
    for note in options.deprecations() {
        warn!("{note}");
    }
    let ineffective = options.without_effect();
    if !ineffective.is_empty() {
        warn!(flags = ineffective.join(","), "these flags have no effect in this version");
    }
    for (gate, fixed) in options.gates.ignored_defaults() {
        let value = if fixed.value { "on" } else { "off" };
        warn!(gate, reason = fixed.reason, "this feature gate is always {value} in this version");
    }
    let unchanged = options.gates.fixed_despite_stage();
    if !unchanged.is_empty() {
        warn!(gates = unchanged.join(","), "AllAlpha and AllBeta do not change these feature gates in this version");
    }
}

/// The signals that request the end of the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Replaces the default actions of the signals, which would end the process immediately.
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    /// Waits for a signal, and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Runs `start`. If a signal arrives before `start` ends, drops `start` and returns `None`. A start may wait for
    /// APIs that are not served yet, and for credentials of a plugin that hangs.
    async fn run_unless_signalled<T>(
        &mut self,
        start: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Option<T>> {
        tokio::select! {
            started = start => started.map(Some),
            signal = self.next() => {
                info!("{signal}: stopping before the start is complete");
                Ok(None)
            }
        }
    }
}

/// Returns the options of a manager from its command line; `namespace`: the only namespace with objects to reconcile.
pub fn manager_options(options: &Options, namespace: Option<String>) -> ManagerOptions {
    let elect = &options.leader_elect;
    let election = elect.enabled.then(|| {
        let identity = unique_identity(&hostname());
        ElectionConfig {
            lease_duration: elect.lease_duration,
            renew_deadline: elect.renew_deadline,
            retry_period: elect.retry_period,
            coordinated: options.gates.enabled("CoordinatedLeaderElection").then(|| Versions {
                binary: format!("1.{BINARY_MINOR}.0"),
                emulation: format!("1.{}.0", options.gates.emulated_minor()),
            }),
            ..ElectionConfig::new(&elect.resource_namespace, &elect.resource_name, identity)
        }
    });
    ManagerOptions {
        namespace,
        election,
        service_accounts: options.use_service_account_credentials,
        qps: options.kube_api_qps,
        burst: u32::try_from(options.kube_api_burst).unwrap_or(0),
        start_interval: options.values.get_duration("controller-start-interval"),
        shutdown_timeout: options.controller_shutdown_timeout,
    }
}

/// Returns the value of a text flag; `None` if it is empty.
fn non_empty(flag: &str) -> Option<String> {
    (!flag.is_empty()).then(|| flag.to_owned())
}

/// Returns the host's name, or `localhost` if it cannot be read.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::process::Command;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{Signals, version};

    /// Sends a signal to this process.
    fn send(signal: &str) {
        let kill = format!("kill -{signal} {}", std::process::id());
        let sent = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
        assert!(sent.success(), "{kill}: {sent}");
    }

    #[tokio::test]
    async fn start_ends_at_a_signal() {
        let mut signals = Signals::listen().expect("signals");
        for signal in ["TERM", "INT"] {
            let hanging_start = async {
                send(signal);
                pending::<anyhow::Result<()>>().await
            };
            let ended = timeout(Duration::from_secs(30), signals.run_unless_signalled(hanging_start)).await;
            assert_eq!(ended.expect("the signal was ignored").expect("no error"), None, "SIG{signal}");
        }
        let started = signals.run_unless_signalled(async { Ok("manager") }).await;
        assert_eq!(started.expect("no error"), Some("manager"));
        signals
            .run_unless_signalled(async { Err::<(), _>(anyhow::anyhow!("no credentials")) })
            .await
            .expect_err("the error is lost");
    }

    #[test]
    fn raw_version_has_all_parts() {
        assert!(version("kcm", false).starts_with("Kubernetes v1.37.0 (kcm "));
        let raw = version("kcm", true);
        assert!(raw.starts_with("version.Info{Major:\"1\", Minor:\"37\", GitVersion:\"v1.37.0\", "), "{raw}");
        assert!(raw.contains("Platform:\"linux/") && raw.contains("Binary:\"kcm\""), "{raw}");
    }
}
