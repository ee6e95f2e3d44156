//! A whole manager inside the test process, mostly kcm for one namespace, that can be stopped or crashed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use control_plane::{ControlPlane, Identity};
use kcm::flags::{Invocation, parse};
use runtime::client::ConnectOptions;
use runtime::manager::{self, ExitReason};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use crate::all_gates;
use crate::faults::Faults;

/// A manager with this controller and without the garbage collector does not start.
pub(crate) const NEEDS_GARBAGE_COLLECTOR: &str = "storage-version-migrator-controller";

/// A running manager. Dropping it is a crash.
pub struct Manager {
    task: JoinHandle<ExitReason>,
    stop: oneshot::Sender<()>,
    dead: Arc<AtomicBool>,
    faults: Faults,
}

impl Manager {
    /// Starts the controller of default service accounts, for the whole cluster.
    pub(crate) async fn start_accounts(cluster: &ControlPlane) -> Result<Self> {
        let flags = ["--controllers=serviceaccount-controller"];
        Self::start_in(cluster, "kube-system", &Faults::default(), &flags, None).await
    }

    /// Starts kcm for the objects of `namespace`, or of all namespaces without one. The Lease, if flags turn on leader
    /// election, is in the namespace `home`.
    pub(crate) async fn start_in(
        cluster: &ControlPlane,
        home: &str,
        faults: &Faults,
        flags: &[&str],
        namespace: Option<String>,
    ) -> Result<Self> {
        let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
        let mut arguments = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--use-service-account-credentials".to_owned(),
            "--leader-elect=false".to_owned(),
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            // The garbage collector would delete objects of other tests, and it watches every kind.
            "--enable-garbage-collector=false".to_owned(),
            // The role permits only one name of a Lease, so the managers of tests need Leases in separate namespaces.
            format!("--leader-elect-resource-namespace={home}"),
        ];
        let selects = |flag: &str| flag.starts_with("--controllers") || flag == "--enable-garbage-collector=true";
        if !flags.iter().any(|flag| selects(flag)) {
            arguments.push(format!("--controllers=*,-{NEEDS_GARBAGE_COLLECTOR}"));
        }
        arguments.extend(all_gates::of_manager());
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let options = match parse(arguments)? {
            Invocation::Run(options) => *options,
            other => bail!("the flags {flags:?} do not run a manager: {other:?}"),
        };
        let span = tracing::info_span!("manager", home);
        let run = Self::run(kubeconfig, "kube-controller-manager/test", faults, async |connection| {
            kcm::app::manager_in(options, &connection, namespace).await
        });
        run.instrument(span).await
    }

    /// Runs the manager that `build` creates with a connection through `faults`.
    pub(crate) async fn run<F: Future<Output = Result<manager::Manager>>>(
        kubeconfig: PathBuf,
        user_agent: &str,
        faults: &Faults,
        build: impl FnOnce(ConnectOptions) -> F,
    ) -> Result<Self> {
        let dead = Arc::new(AtomicBool::new(false));
        let connection = ConnectOptions {
            kubeconfig: Some(kubeconfig),
            user_agent: user_agent.into(),
            layer: Some(faults.layer(dead.clone())),
            ..ConnectOptions::default()
        };
        let manager = build(connection).await?;
        let (stop, stopped) = oneshot::channel();
        let run = manager.run(async {
            if stopped.await.is_err() {
                // A dropped sender is not a request to stop.
                std::future::pending::<()>().await;
            }
        });
        let task = tokio::spawn(run.in_current_span());
        Ok(Self { task, stop, dead, faults: faults.clone() })
    }

    /// Crashes the manager. When this returns, the manager has ended, and the server has responded to all writes that
    /// were sent.
    pub async fn crash(mut self) {
        self.dead.store(true, Ordering::SeqCst);
        self.task.abort();
        // The task was cancelled, or ended on its own.
        let _ = (&mut self.task).await;
        self.faults.settled().await;
    }

    /// Stops the manager, and waits until it has ended.
    pub async fn stop(mut self) -> Result<ExitReason> {
        let (stop, _) = oneshot::channel();
        let _ = std::mem::replace(&mut self.stop, stop).send(());
        (&mut self.task).await.context("the manager panicked")
    }

    /// Waits until the manager ends by itself.
    pub async fn until_ended(mut self) -> Result<ExitReason> {
        (&mut self.task).await.context("the manager panicked")
    }
}

/// Runs managers one after the other: each is replaced when it crashes. Ends only if one cannot be started.
///
/// # Errors
/// The error of the start.
pub async fn restart_after_crashes<F>(faults: &Faults, start: impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<Manager>>,
{
    loop {
        let manager = start().await?;
        faults.crashes().await;
        manager.crash().await;
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.dead.store(true, Ordering::SeqCst);
        self.task.abort();
    }
}
