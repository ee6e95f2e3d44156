//! Claims at rest: bound, with their conditions set, and not changed while a manager is measured. The managers run one
//! after the other on the same API server.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use control_plane::{ControlPlane, Identity, Options};
use kube::Client;
use tokio::time::sleep;

use super::{NAMESPACE, VOLUMES, objects};
use crate::bench::api;
use crate::bench::measure::{Measurement, Scenario};
use crate::bench::subject::{Binaries, ManagerProcess, Mode, Subject};

/// A control plane with bound claims, for the scenario [`Scenario::ClaimsAtRest`].
pub struct ClaimsAtRest {
    cluster: ControlPlane,
    client: Client,
}

impl ClaimsAtRest {
    /// Starts a control plane and creates bound claims.
    pub async fn create(claims: u32) -> Result<Self> {
        let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
        objects::create_class(&client).await?;
        api::each("bound claims created", 0..claims, async |number| {
            objects::create_bound(&client, NAMESPACE, &objects::claim_name(number)).await
        })
        .await?;
        Ok(Self { cluster, client })
    }

    /// Lets a manager set the conditions of all claims, so that they exist for both measured managers.
    pub async fn reach_steady_state(&self, binaries: &Binaries, subject: Subject) -> Result<()> {
        eprintln!("  waiting until the manager no longer writes to the claims");
        let manager = ManagerProcess::start(&self.cluster, binaries, subject, Mode::Raised, &[VOLUMES])?;
        let at_rest = async {
            manager.until_leader(&self.client).await?;
            manager.until_quiet().await
        };
        let result = at_rest.await;
        let ended = manager.end(&self.client).await;
        result.and(ended)
    }

    /// Starts a manager, measures it while nothing changes, and ends it; its log is copied to `log`.
    pub async fn measure(
        &self,
        binaries: &Binaries,
        (subject, mode): (Subject, Mode),
        idle: Duration,
        log: &Path,
    ) -> Result<Measurement> {
        let manager = ManagerProcess::start(&self.cluster, binaries, subject, mode, &[VOLUMES])?;
        let measured = async {
            manager.until_leader(&self.client).await?;
            manager.until_quiet().await?;
            eprintln!("  {}: idle period of {} s", Scenario::ClaimsAtRest.name(), idle.as_secs());
            let from = manager.mark()?;
            sleep(idle).await;
            let to = manager.mark()?;
            let requests = manager.requests_since(&from)?;
            Ok(Measurement::new((subject, mode, Scenario::ClaimsAtRest), None, (&from, &to), requests))
        };
        let measured: Result<Measurement> = measured.await;
        let kept = manager.keep_log(log);
        let ended = manager.end(&self.client).await;
        let measured = measured?;
        ended?;
        kept?;
        Ok(measured)
    }
}
