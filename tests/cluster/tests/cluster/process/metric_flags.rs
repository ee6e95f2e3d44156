//! The flags that restrict metrics, in text and protobuf, and a comparison with upstream's manager.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::programs::KCM;
use cluster_tests::{Space, eventually};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;

use super::serving::{Credentials, ManagerProcess, bare_control_plane};
use crate::gates::native_histograms::{admin, scrape, upstreams_port};
use crate::gates::refusal;

/// Controllers with restricted families.
const CONTROLLERS: &str = "--controllers=serviceaccount-controller,persistentvolume-binder-controller";

/// A family that upstream registers with its controller, one that it registers before it applies flags, one of
/// `/metrics/slis`, and one that does not exist.
const DISABLED: &str = "--disabled-metrics=retroactive_storageclass_total,workqueue_adds_total,\
                        kubernetes_healthcheck,nothing_total";

const SHOWS_HIDDEN: &str = "--show-hidden-metrics-for-version=1.36";

const CONSTRAINED: &str = "rest_client_requests_total";
const ALLOWED: &str = "rest_client_requests_total,method";

/// A family that upstream counts only after it has applied the flags: requests to the manager's own server.
const LATE: &str = "authenticated_user_requests";
const LATE_LABEL: &str = "username";

/// Returns the sums of a family's counters by the value of a label.
fn counts(family: &MetricFamily, label: &str) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for metric in &family.metric {
        let value = metric.label.iter().find(|pair| pair.name == label).map(|pair| pair.value.clone());
        let count = metric.counter.as_ref().map_or(0.0, |counter| counter.value);
        *counts.entry(value.unwrap_or_default()).or_default() += count;
    }
    counts
}

/// Returns the only value of a counter without labels.
fn single(families: &BTreeMap<String, MetricFamily>, name: &str) -> Result<f64> {
    let family = families.get(name).with_context(|| format!("no {name}"))?;
    counts(family, "").get("").copied().with_context(|| format!("{name} has no value"))
}

/// Returns the numbers of disabled and of hidden families.
fn not_served(families: &BTreeMap<String, MetricFamily>) -> Result<(f64, f64)> {
    Ok((single(families, "disabled_metrics_total")?, single(families, "hidden_metrics_total")?))
}

/// Checks that the values of the constrained label are the allowed one, and the one that replaces all others.
fn check_constrained(families: &BTreeMap<String, MetricFamily>) -> Result<()> {
    let methods = counts(families.get(CONSTRAINED).context("no requests")?, "method");
    ensure!(methods.keys().eq(["GET", "unexpected"]), "{methods:?}");
    Ok(())
}

/// Checks the metrics of kcm in both formats.
async fn check(kcm: &ManagerProcess, admin: &Credentials) -> Result<()> {
    let families = scrape(kcm.port(), admin).await?;
    check_constrained(&families)?;
    let text = kcm.request(admin, "GET", "/metrics", "").await?.body;
    let requests: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{CONSTRAINED}{{"))).collect();
    let has = |method: &str| requests.iter().any(|line| line.contains(&format!("method=\"{method}\"")));
    ensure!(has("GET") && has("unexpected") && !has("PUT") && !has("POST"), "{requests:?}");
    let unexpected = single(&families, "cardinality_enforcement_unexpected_categorizations_total")?;
    ensure!(unexpected > 0.0, "no unexpected values are counted");
    Ok(())
}

/// Disabled families are not served, other values of a label are replaced, and hidden families are counted.
pub async fn metrics_are_restricted_by_flags(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let admin = admin(&cluster)?;
    let allowed = format!("--allow-metric-labels={ALLOWED}=GET");
    let flags = [CONTROLLERS, DISABLED, SHOWS_HIDDEN, &allowed].map(str::to_owned);
    let kcm = ManagerProcess::start(&cluster, KCM, &flags).await?;
    eventually("metrics are restricted", || check(&kcm, &admin)).await?;
    let families = scrape(kcm.port(), &admin).await?;
    let text = kcm.request(&admin, "GET", "/metrics", "").await?.body;
    for name in ["retroactive_storageclass_total", "workqueue_adds_total"] {
        ensure!(!families.contains_key(name) && !text.contains(name), "{name} is served");
    }
    ensure!(families.contains_key("workqueue_depth") && text.contains("# TYPE workqueue_depth gauge"));
    let registered = counts(&families["registered_metrics_total"], "deprecated_version");
    ensure!(registered.get("1.36.0") == Some(&1.0), "{registered:?}");
    let numbers = not_served(&families)?;
    ensure!(numbers == (4.0, 2.0), "{numbers:?}");
    let slis = kcm.request(&admin, "GET", "/metrics/slis", "").await?.body;
    ensure!(slis.contains("kubernetes_healthchecks_total{") && !slis.contains("kubernetes_healthcheck{"), "{slis}");
    kcm.terminate().await?;

    let manifest = cluster.folder().join("allowed-labels.yaml");
    let flag = format!("--allow-metric-labels-manifest={}", manifest.display());
    for (text, reason) in [(None, "cannot be read"), (Some("method: GET\n"), "must have keys metric,label")] {
        if let Some(text) = text {
            std::fs::write(&manifest, text)?;
        }
        let refused = refusal(&cluster, &[CONTROLLERS.to_owned(), flag.clone()]).await?;
        ensure!(refused.contains(reason), "{text:?}: {refused}");
    }
    std::fs::write(&manifest, format!("\"{ALLOWED}\": \"GET\"\n"))?;
    let kcm = ManagerProcess::start(&cluster, KCM, &[CONTROLLERS.to_owned(), flag]).await?;
    eventually("metrics are restricted by the manifest", || check(&kcm, &admin)).await?;
    let families = scrape(kcm.port(), &admin).await?;
    let numbers = not_served(&families)?;
    ensure!(numbers == (0.0, 1.0), "{numbers:?}");
    kcm.terminate().await
}

/// Upstream's manager has the same metrics with the same flags, apart from families that it registers before it applies
/// them. Ignored by default: it needs upstream's manager.
pub async fn metrics_are_restricted_as_in_upstream(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let admin = admin(&cluster)?;
    let early = format!("--allow-metric-labels={ALLOWED}=GET");
    let late = format!("--allow-metric-labels={LATE},{LATE_LABEL}=nobody");
    let port = upstreams_port(&cluster, &[CONTROLLERS, DISABLED, SHOWS_HIDDEN, &early, &late])?;
    let started = || async {
        let families = scrape(&port, &admin).await?;
        let registered = counts(&families["registered_metrics_total"], "deprecated_version");
        ensure!(registered.get("1.36.0") == Some(&1.0), "{registered:?}");
        ensure!(families.contains_key("workqueue_queue_duration_seconds"), "no controller runs yet");
        ensure!(families.contains_key(LATE), "no request was counted yet");
        Ok(families)
    };
    let families = eventually("upstream's manager has started its controllers", started).await?;
    ensure!(!families.contains_key("retroactive_storageclass_total"), "retroactive_storageclass_total is not disabled");
    ensure!(
        families.contains_key("workqueue_adds_total"),
        "workqueue_adds_total is disabled now: correct docs/differences.md"
    );
    let numbers = not_served(&families)?;
    ensure!(numbers == (4.0, 2.0), "{numbers:?}");
    ensure!(check_constrained(&families).is_err(), "{CONSTRAINED} is constrained now: correct docs/differences.md");
    let users = counts(&families[LATE], LATE_LABEL);
    ensure!(users.keys().eq(["unexpected"]), "{users:?}");
    let unexpected = single(&families, "cardinality_enforcement_unexpected_categorizations_total")?;
    ensure!(unexpected >= users["unexpected"], "{unexpected} and {users:?}");
    Ok(())
}
