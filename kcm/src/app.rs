//! From the command line to running controllers, and out again.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use kinds::{ClusterTrustBundle, Kind};
use runtime::client::{Clients, ConnectOptions, connect};
use runtime::election::{ElectionConfig, unique_identity};
use runtime::manager::{Ended, Manager, ManagerOptions};
use runtime::serve::{Server, SetVerbosity};
use runtime::watch::{Builder, serves};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};
use tracing_subscriber::{EnvFilter, reload};

use crate::controllers::{CONTROLLERS, Descriptor, Settings};
use crate::credentials::Credentials;
use crate::flags::{self, Invocation, Options};
use crate::names;
use crate::surface;
use crate::trust_bundle_publisher;

/// What the API server sees as the client, and takes the field manager's name from.
const USER_AGENT: &str = concat!("kube-controller-manager/v", env!("CARGO_PKG_VERSION"), " (kcm)");

/// Runs the manager as its command line says; the process's whole life.
pub fn main(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let options = match flags::parse(arguments) {
        Ok(Invocation::Run(options)) => *options,
        Ok(Invocation::Help) => {
            print!("{}", flags::help::text(flags::help::width()));
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Version { .. }) => {
            println!("Kubernetes v1.37.0 (kcm {})", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Err(errors) => {
            eprintln!("kcm: {errors}\nSee 'kcm --help'.");
            return ExitCode::FAILURE;
        }
    };
    let set_verbosity = log_to_stderr(&options);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKER_THREADS).enable_all().build();
    let ended =
        runtime.context("cannot start threads").and_then(|runtime| runtime.block_on(run(options, set_verbosity)));
    match ended {
        Ok(Ended::Shutdown) => {
            info!("ended as asked");
            ExitCode::SUCCESS
        }
        Ok(Ended::LeaseLost(lost)) => {
            tracing::error!(%lost, "leaderelection lost");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The work waits for the API server nearly all the time; more threads would only cost memory.
const WORKER_THREADS: usize = 2;

/// Logs as the options say; answers what changes the verbosity later.
fn log_to_stderr(options: &Options) -> SetVerbosity {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter(options.verbosity))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if options.logging_format == "json" {
        let subscriber = subscriber.json().with_filter_reloading();
        let handle = subscriber.reload_handle();
        subscriber.init();
        verbosity(move |filter| handle.reload(filter))
    } else {
        let subscriber = subscriber.with_filter_reloading();
        let handle = subscriber.reload_handle();
        subscriber.init();
        verbosity(move |filter| handle.reload(filter))
    }
}

fn filter(verbosity: u32) -> EnvFilter {
    EnvFilter::new(match verbosity {
        0..=1 => "info",
        2..=4 => "info,kcm=debug,runtime=debug",
        5..=7 => "debug,hyper=info,h2=info,tower=info,rustls=info",
        _ => "trace",
    })
}

fn verbosity(reload: impl Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync + 'static) -> SetVerbosity {
    Arc::new(move |text| {
        let level = text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))?;
        reload(filter(level)).map_err(|error| error.to_string())
    })
}

/// The controllers that are switched on: those of the table, and the names of those that are not in it yet.
fn enabled(options: &Options) -> (Vec<&'static Descriptor>, Vec<&'static str>) {
    let (mut enabled, mut missing) = (Vec::new(), Vec::new());
    let switched_off = |name: &str| match name {
        "garbage-collector-controller" => !options.values.get_bool("enable-garbage-collector"),
        _ => false,
    };
    let upstream = names::enabled_upstream(&options.controllers, &options.gates);
    for wanted in upstream.filter(|wanted| !switched_off(wanted.name)) {
        match CONTROLLERS.iter().find(|descriptor| descriptor.name == wanted.name) {
            Some(descriptor) => enabled.push(descriptor),
            None => missing.push(wanted.name),
        }
    }
    (enabled, missing)
}

async fn run(options: Options, set_verbosity: SetVerbosity) -> anyhow::Result<Ended> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    info!(version = env!("CARGO_PKG_VERSION"), "starting kcm");
    for note in options.deprecations() {
        warn!("{note}");
    }
    let idle = options.no_effect_yet();
    if !idle.is_empty() {
        warn!(flags = idle.join(","), "these flags have no effect in this version");
    }
    let connection = ConnectOptions {
        kubeconfig: given(&options.kubeconfig).map(Into::into),
        master: given(&options.master),
        user_agent: USER_AGENT.into(),
        ..ConnectOptions::default()
    };
    let manager = manager(options.clone(), &connection).await?;
    let server = match surface::serve_options(&options, USER_AGENT) {
        Some(serve) => {
            let surface = surface::surface(&options, &manager, enabled(&options).1, set_verbosity);
            Some(Server::start(serve, surface).await?)
        }
        None => None,
    };
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: finishing what is under way"),
            _ = interrupt.recv() => info!("SIGINT: finishing what is under way"),
        }
    };
    let ended = manager.run(shutdown).await;
    if let Some(server) = server.filter(|_| ended == Ended::Shutdown) {
        server.stop().await;
    }
    Ok(ended)
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
    if !missing.is_empty() {
        warn!(
            count = missing.len(),
            controllers = missing.join(","),
            "THESE CONTROLLERS ARE ENABLED BUT NOT IN THIS BINARY YET: nobody does their work unless another manager does"
        );
    }
    let credentials = Credentials::read(&options, connection, |name| descriptors.iter().any(|d| d.name == name))?;
    let clients = Arc::new(connect(connection).await?);
    let descriptors = with_work(descriptors, &credentials, &clients).await?;
    let mut needs = Builder::default();
    for descriptor in &descriptors {
        (descriptor.needs)(&mut needs);
    }
    let mut manager = Manager::new(clients, needs.build(), manager_options(&options, namespace))?;
    manager.record_leadership("kube-controller-manager");
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
        }
    }
    for (controller, why) in &idle {
        info!(controller, why, "skipping controller");
    }
    descriptors.retain(|descriptor| idle.iter().all(|(name, _)| *name != descriptor.name));
    Ok(descriptors)
}

fn manager_options(options: &Options, namespace: Option<String>) -> ManagerOptions {
    let elect = &options.leader_elect;
    let election = elect.enabled.then(|| {
        let identity = unique_identity(&hostname());
        ElectionConfig {
            lease_duration: elect.lease_duration,
            renew_deadline: elect.renew_deadline,
            retry_period: elect.retry_period,
            ..ElectionConfig::new(&elect.resource_namespace, &elect.resource_name, identity)
        }
    });
    ManagerOptions {
        namespace,
        election,
        service_accounts: options.use_service_account_credentials,
        qps: options.kube_api_qps,
        burst: u32::try_from(options.kube_api_burst).unwrap_or(0),
        shutdown_timeout: options.controller_shutdown_timeout,
    }
}

fn given(flag: &str) -> Option<String> {
    (!flag.is_empty()).then(|| flag.to_owned())
}

/// The machine's name; the kernel always has one.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}
