//! Pods of one Service become unready and ready again, one by one: the time until an EndpointSlice contains the change,
//! and the number of writes for it.
//!
//! Each manager has its own control plane. Every case is measured in short blocks, with one manager and the other in
//! turn. So a changing load of the machine affects both in the same way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control_plane::{ControlPlane, Identity, Options};
use futures::future::{self, Either};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::api;
use super::endpoint_churn::until_none;
use super::measure::{Case, Measurement, Metric, Scenario};
use super::report::Report;
use super::services;
use super::slices::SliceWatch;
use super::subject::{Binaries, ENDPOINTS, ManagerProcess, Mode, Subject};
use super::workload::App;

const NAMESPACE: &str = "lag";

/// Maximum number of endpoints in a slice.
const MAX_ENDPOINTS: u32 = 100;

/// Number of pods of the Service whose changes are the load.
const LOAD_PODS: u32 = 250;

/// Changes of these pods per second.
const LOAD_RATE: u32 = 50;

/// Maximum number of concurrent changes.
const CONCURRENT_CHANGES: usize = 24;

/// The distance between two pods that change in succession. A prime number reaches all pods; a large one separates pods
/// of the same slice.
const STRIDE: u32 = 7919;

/// The number of blocks of each case.
const BLOCKS: u32 = 5;

/// The time without a write of the slices after which a block is over: longer than upstream's first backoff.
const QUIET_TIME: Duration = Duration::from_millis(1200);

/// The cases: sizes of Services; changes per second, with the number of seconds; without and with load.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pods: &'static [u32],
    rates: &'static [(u32, u32)],
    loads: &'static [bool],
}

impl Size {
    /// The cases with goals.
    pub const WHOLE: Self =
        Self { pods: &[10, 250, 1000], rates: &[(1, 40), (2, 30), (20, 15), (100, 10)], loads: &[false, true] };
    /// A few short cases.
    pub const QUICK: Self = Self { pods: &[10, 250], rates: &[(2, 8), (20, 5), (100, 4)], loads: &[false] };

    fn cases(self) -> impl Iterator<Item = (Case, u32)> {
        let loads = self.loads.iter().flat_map(move |loaded| self.pods.iter().map(move |pods| (*loaded, *pods)));
        loads.flat_map(move |(loaded, pods)| {
            self.rates.iter().map(move |(rate, seconds)| (Case { loaded, pods, rate: *rate }, rate * seconds))
        })
    }

    /// Returns the Services; the last one is the load.
    fn apps(self) -> Vec<App> {
        self.pods.iter().map(|pods| app(&format!("size-{pods}"), *pods)).chain([app("load", LOAD_PODS)]).collect()
    }
}

fn app(name: &str, pods: u32) -> App {
    App { namespace: NAMESPACE.into(), name: name.into(), replicas: pods }
}

/// Measures all cases in one mode; alternates between the managers, in short blocks.
pub async fn measure(
    binaries: &Binaries,
    subjects: &[Subject],
    mode: Mode,
    size: Size,
    report: &Report,
) -> Result<Vec<Measurement>> {
    let mut planes = Vec::new();
    for subject in subjects {
        eprintln!("  a control plane for {}", subject.name());
        planes.push((*subject, FilledControlPlane::fill(size).await?));
    }
    let mut tracks = Vec::new();
    for (subject, plane) in &planes {
        tracks.push(Track::start(plane, binaries, *subject, mode, size).await?);
    }
    let measured = measure_cases(&mut tracks, mode, size).await;
    for track in tracks {
        let name = format!("{}-{}-{}", Scenario::EndpointLag.name(), mode.name(), track.subject.name());
        track.manager.keep_log(&report.log(&name))?;
        track.manager.end(&track.plane.client).await?;
    }
    measured
}

async fn measure_cases(tracks: &mut [Track<'_>], mode: Mode, size: Size) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (case, changes) in size.cases() {
        for track in &mut *tracks {
            track.begin(case)?;
        }
        for _ in 0..BLOCKS {
            for track in &mut *tracks {
                track.run_block(case, changes / BLOCKS).await?;
            }
            // The order alternates: the first manager of a pair changes the machine's state for the second one.
            tracks.reverse();
        }
        for track in &mut *tracks {
            let (subject, scenario) = (track.subject, Scenario::EndpointLag);
            let values = track.end(case)?;
            eprintln!("  {}: {case}: {values:?}", subject.name());
            let requests = BTreeMap::new();
            measurements.push(Measurement { subject, mode, scenario, case: Some(case), values, requests });
        }
    }
    Ok(measurements)
}

/// A control plane with Services and their pods.
struct FilledControlPlane {
    cluster: ControlPlane,
    client: Client,
}

impl FilledControlPlane {
    async fn fill(size: Size) -> Result<Self> {
        let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
        services::create_nodes(&client).await?;
        let mut first = 0;
        for app in size.apps() {
            services::create_service(&client, &app).await?;
            let pod = async |index| services::create_pod(&client, &app, index, first + index).await;
            api::each("pods created", 0..app.replicas, pod).await?;
            first += app.replicas;
        }
        Ok(Self { cluster, client })
    }
}

/// A manager that runs on a control plane, with a watch of the slices that it writes.
struct Track<'a> {
    subject: Subject,
    plane: &'a FilledControlPlane,
    manager: ManagerProcess<'a>,
    watch: SliceWatch,
    /// Readiness of the pods of each Service, by its size.
    services: BTreeMap<u32, Readiness>,
    load: Readiness,
    /// Writes of the measured Service's slices before the case.
    writes_before: u64,
}

impl<'a> Track<'a> {
    async fn start(
        plane: &'a FilledControlPlane,
        binaries: &Binaries,
        subject: Subject,
        mode: Mode,
        size: Size,
    ) -> Result<Self> {
        let manager = ManagerProcess::start(&plane.cluster, binaries, subject, mode, &[ENDPOINTS])?;
        manager.until_leader(&plane.client).await?;
        let slices: Api<EndpointSlice> = Api::namespaced(plane.client.clone(), NAMESPACE);
        let expected: u32 = size.apps().iter().map(|app| app.replicas.div_ceil(MAX_ENDPOINTS)).sum();
        until_none(&manager, "slices do not exist", async || {
            let existing = slices.list_metadata(&ListParams::default()).await?.items.len();
            Ok((expected as usize).saturating_sub(existing))
        })
        .await?;
        manager.until_quiet().await?;
        let watch = SliceWatch::start(&plane.client).await?;
        let mut apps = size.apps();
        let load = Readiness::new(apps.pop().context("no load")?);
        let services = apps.into_iter().map(|app| (app.replicas, Readiness::new(app))).collect();
        Ok(Self { subject, plane, manager, watch, services, load, writes_before: 0 })
    }

    fn writes(&self, case: Case) -> Result<u64> {
        let service = self.services.get(&case.pods).context("no Service of this size")?;
        Ok(self.watch.writes(&service.app.name))
    }

    fn begin(&mut self, case: Case) -> Result<()> {
        self.writes_before = self.writes(case)?;
        Ok(())
    }

    fn end(&self, case: Case) -> Result<BTreeMap<Metric, f64>> {
        let writes = self.writes(case)? - self.writes_before;
        let (median, p99) = self.watch.take_lags().context("no change appeared in an EndpointSlice")?;
        let values = [(Metric::LagMedian, median), (Metric::LagTail, p99), (Metric::SliceWrites, writes as f64)];
        Ok(values.into())
    }

    async fn run_block(&mut self, case: Case, changes: u32) -> Result<()> {
        let Self { plane, manager, watch, services, load, .. } = self;
        let service = services.get_mut(&case.pods).context("no Service of this size")?;
        let wait_for_changes = async {
            service.change(&plane.client, case.rate, Some(changes), Some(&*watch)).await?;
            until_none(manager, "changes are not in a slice", async || Ok(watch.pending())).await
        };
        if case.loaded {
            let load = load.change(&plane.client, LOAD_RATE, None, None);
            match future::select(Box::pin(wait_for_changes), Box::pin(load)).await {
                Either::Left((result, _)) => result?,
                Either::Right((load, _)) => return load.context("change the load's pods"),
            }
        } else {
            wait_for_changes.await?;
        }
        self.reach_steady_state().await;
        Ok(())
    }

    /// Waits until no slice has been written for [`QUIET_TIME`].
    async fn reach_steady_state(&self) {
        let all = || -> u64 {
            let apps = self.services.values().chain([&self.load]);
            apps.map(|service| self.watch.writes(&service.app.name)).sum()
        };
        let (mut last, mut since) = (all(), Instant::now());
        while since.elapsed() < QUIET_TIME {
            sleep(Duration::from_millis(50)).await;
            if all() != last {
                (last, since) = (all(), Instant::now());
            }
        }
    }
}

/// The pods of a Service, with their readiness.
struct Readiness {
    app: App,
    ready: Vec<bool>,
    /// The number of changes so far.
    changes_so_far: u32,
}

impl Readiness {
    fn new(app: App) -> Self {
        Self { ready: vec![true; app.replicas as usize], app, changes_so_far: 0 }
    }

    /// Changes the readiness of one pod after the other at a steady rate; without `changes`, until the future is
    /// dropped.
    async fn change(
        &mut self,
        client: &Client,
        rate: u32,
        changes: Option<u32>,
        watch: Option<&SliceWatch>,
    ) -> Result<()> {
        let mut ticks = interval(Duration::from_secs(1) / rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let namespace = self.app.namespace.clone();
        let pods = stream::unfold((self, ticks, 0), async |(pods, mut ticks, number)| {
            if changes.is_some_and(|changes| number == changes) {
                return None;
            }
            ticks.tick().await;
            let pod = pods.next(watch).await;
            Some((pod, (pods, ticks, number + 1)))
        });
        pods.map(|(pod, ready)| {
            let namespace = &namespace;
            async move { services::set_ready(client, namespace, &pod, ready).await }
        })
        .buffer_unordered(CONCURRENT_CHANGES)
        .try_collect()
        .await
    }

    /// Returns the next pod, with its new readiness. A pod whose last change is not in a slice yet is skipped, because
    /// a slice may then contain only the later one.
    async fn next(&mut self, watch: Option<&SliceWatch>) -> (String, bool) {
        loop {
            for _ in 0..self.app.replicas {
                let index = (u64::from(self.changes_so_far) * u64::from(STRIDE) % u64::from(self.app.replicas)) as u32;
                self.changes_so_far = self.changes_so_far.wrapping_add(1);
                let pod = self.app.pod_name(index);
                if watch.is_some_and(|watch| watch.is_pending(&pod)) {
                    continue;
                }
                let ready = &mut self.ready[index as usize];
                *ready = !*ready;
                if let Some(watch) = watch {
                    watch.expect(pod.clone(), *ready);
                }
                return (pod, *ready);
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test]
    async fn each_pod_changes_before_the_first_changes_again() {
        for pods in [10, 250, 1000] {
            let mut service = Readiness::new(app("a", pods));
            for expected in [false, true] {
                let mut seen = BTreeSet::new();
                for _ in 0..pods {
                    let (pod, ready) = service.next(None).await;
                    assert!(seen.insert(pod) && ready == expected);
                }
            }
        }
    }

    #[test]
    fn cases_are_all_sizes_at_all_rates_without_and_with_load() {
        let cases: Vec<Case> = Size::WHOLE.cases().map(|(case, _)| case).collect();
        assert_eq!(cases.len(), 24);
        assert_eq!(cases[23], Case { loaded: true, pods: 1000, rate: 100 });
    }
}
