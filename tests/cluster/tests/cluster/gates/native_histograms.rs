//! Metrics as protobuf: native buckets with their gate, and a comparison with upstream's metrics.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::certificates::inline_pair;
use cluster_tests::programs::KCM;
use cluster_tests::{ReservedPort, Space, eventually};
use control_plane::{ControlPlane, Identity};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{Histogram, MetricFamily};
use prost::Message as _;

use super::flag;
use crate::process::serving::{Credentials, ManagerProcess, Port, bare_control_plane};
use crate::upstream::manager::{UPSTREAM, start_upstream_with};

/// The `Accept` header of Prometheus with native histograms.
const ACCEPT: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                      application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3";

const PROTOBUF: &str = "content-type: application/vnd.google.protobuf; proto=io.prometheus.client.metricfamily; \
                        encoding=delimited; escaping=underscores\r\n";

const TEXT: &str = "content-type: text/plain; version=0.0.4; charset=utf-8; escaping=underscores\r\n";

/// Schema and width of the zero bucket in the native histograms of both managers.
const NATIVE: (i32, f64) = (3, 2.938735877055719e-39);

/// Controllers with histograms.
const CONTROLLERS: &str = "--controllers=serviceaccount-controller,job-controller,cronjob-controller,\
                           ttl-after-finished-controller,replicaset-controller,endpointslice-controller,\
                           node-lifecycle-controller,root-ca-certificate-publisher-controller";

/// Families that both managers serve with native buckets.
const NATIVE_IN_BOTH: [&str; 2] = ["authentication_duration_seconds", "authorization_duration_seconds"];

/// Families that upstream's manager creates before it applies the gate, and therefore serves with classic buckets only.
const CLASSIC_UPSTREAM: [&str; 5] = [
    "workqueue_queue_duration_seconds",
    "workqueue_work_duration_seconds",
    "rest_client_request_duration_seconds",
    "rest_client_request_size_bytes",
    "root_ca_cert_publisher_sync_duration_seconds",
];

/// Returns the credentials of an administrator.
pub fn admin(cluster: &ControlPlane) -> Result<Credentials> {
    Ok(Credentials::certificate(inline_pair(&cluster.kubeconfig(Identity::Admin)?)?))
}

/// Reads the metrics of a port as protobuf, by the names of their families.
pub async fn scrape(port: &Port, admin: &Credentials) -> Result<BTreeMap<String, MetricFamily>> {
    let admin = admin.clone().with("Accept", ACCEPT);
    let (status, head, body) = port.request(&admin, "GET", "/metrics", "").await?;
    ensure!(status == 200 && head.contains(PROTOBUF), "{head}");
    let body = unchunked(&head, body)?;
    let mut rest = body.as_slice();
    let mut families = BTreeMap::new();
    while !rest.is_empty() {
        let family = MetricFamily::decode_length_delimited(&mut rest)?;
        ensure!(!family.metric.is_empty(), "{} has no samples", family.name);
        let name = family.name.clone();
        ensure!(families.insert(name.clone(), family).is_none(), "{name} occurs twice");
    }
    Ok(families)
}

/// Returns a body whose chunks are joined.
fn unchunked(head: &str, body: Vec<u8>) -> Result<Vec<u8>> {
    if !head.contains("transfer-encoding: chunked") {
        return Ok(body);
    }
    let (mut rest, mut joined) = (body.as_slice(), Vec::new());
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n").context("no size of a chunk")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end])?, 16)?;
        if size == 0 {
            return Ok(joined);
        }
        joined.extend_from_slice(rest.get(end + 2..end + 2 + size).context("a chunk is cut off")?);
        rest = rest.get(end + 4 + size..).context("a chunk is cut off")?;
    }
}

fn histograms(family: &MetricFamily) -> impl Iterator<Item = &Histogram> {
    family.metric.iter().filter_map(|metric| metric.histogram.as_ref())
}

/// Returns schema and zero bucket of a histogram; `None` if it is classic.
fn native(histogram: &Histogram) -> Option<(i32, f64)> {
    let is_native = histogram.zero_threshold > 0.0 || !histogram.positive_span.is_empty();
    is_native.then_some((histogram.schema, histogram.zero_threshold))
}

/// Checks that native buckets count all values, and that classic ones are sorted and do not count more.
fn check_counts(histogram: &Histogram) -> Result<()> {
    ensure!(histogram.bucket.is_sorted_by_key(|bucket| bucket.upper_bound), "{histogram:?}");
    ensure!(histogram.bucket.last().is_some_and(|last| last.cumulative_count <= histogram.sample_count));
    if native(histogram).is_some() {
        let (mut count, mut sum) = (0, i64::try_from(histogram.zero_count)?);
        for delta in &histogram.positive_delta {
            count += delta;
            sum += count;
        }
        ensure!(u64::try_from(sum)? == histogram.sample_count, "{histogram:?}");
    }
    Ok(())
}

/// A scraper of protobuf gets native buckets with the gate, and classic ones without it; text is the same in both.
pub async fn native_buckets_are_served_in_protobuf_with_their_gate(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let admin = admin(&cluster)?;
    for is_on in [true, false] {
        let flags = ["--controllers=serviceaccount-controller".to_owned(), flag(&["NativeHistograms"], is_on)];
        let kcm = ManagerProcess::start(&cluster, KCM, &flags).await?;
        let families = scrape(kcm.port(), &admin).await?;
        let mut observed = 0;
        for histogram in families.values().flat_map(histograms) {
            ensure!(native(histogram) == is_on.then_some(NATIVE), "{is_on}: {histogram:?}");
            check_counts(histogram)?;
            observed += usize::from(histogram.sample_count > 0);
        }
        ensure!(observed > 2, "{observed} histograms with values");
        let text = kcm.request(&admin, "GET", "/metrics", "").await?;
        ensure!(text.head.contains(TEXT), "{}", text.head);
        // A family without samples is in the text only.
        let names = text.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let names: BTreeSet<&str> = names.collect();
        let unknown: Vec<&String> = families.keys().filter(|name| !names.contains(name.as_str())).collect();
        ensure!(unknown.is_empty(), "only in protobuf: {unknown:?}");
        let gate = format!("name=\"NativeHistograms\",stage=\"BETA\"}} {}.0", u8::from(is_on));
        ensure!(text.body.contains(&gate), "no {gate}");
        let slis = admin.clone().with("Accept", ACCEPT);
        let (status, head, body) = kcm.port().request(&slis, "GET", "/metrics/slis", "").await?;
        ensure!(status == 200 && head.contains(PROTOBUF), "{head}");
        MetricFamily::decode_length_delimited(body.as_slice()).context("results of health checks")?;
        kcm.terminate().await?;
    }
    Ok(())
}

/// The properties of a family that do not depend on its observations.
#[derive(Debug, PartialEq)]
struct Shape<'a> {
    r#type: i32,
    labels: BTreeSet<&'a str>,
    /// The bounds of classic buckets.
    bounds: Vec<f64>,
    /// Schema and width of the zero bucket of native buckets.
    native: Option<(i32, f64)>,
}

impl Shape<'_> {
    /// Returns true if both shapes are equal, apart from native buckets that `self` lacks.
    fn is_similar_to(&self, own: &Shape<'_>) -> bool {
        (self.r#type, &self.labels, &self.bounds) == (own.r#type, &own.labels, &own.bounds)
            && self.native.is_none_or(|native| own.native == Some(native))
    }
}

fn shape(family: &MetricFamily) -> Shape<'_> {
    let labels = family.metric.iter().flat_map(|metric| &metric.label).map(|label| label.name.as_str());
    let first = histograms(family).next();
    let bounds = first.iter().flat_map(|histogram| &histogram.bucket).map(|bucket| bucket.upper_bound);
    Shape { r#type: family.r#type, labels: labels.collect(), bounds: bounds.collect(), native: first.and_then(native) }
}

/// Runs upstream's manager with these flags, and returns its port.
pub fn upstreams_port(cluster: &ControlPlane, flags: &[&str]) -> Result<Port> {
    let folder = cluster.folder().join("serving-upstream");
    std::fs::create_dir_all(&folder)?;
    let reserved = ReservedPort::new()?;
    let [secure_port, sharing] = reserved.flags();
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?.display().to_string();
    let own = [
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        secure_port,
        sharing,
        format!("--cert-dir={}", folder.display()),
        "--bind-address=127.0.0.1".to_owned(),
    ];
    let all: Vec<&str> = own.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    start_upstream_with(cluster, &all)?;
    Ok(Port { reserved, certificates: folder.join(format!("{UPSTREAM}.crt")) })
}

/// Runs upstream's manager until it serves all common families, and returns its metrics.
async fn upstreams(cluster: &ControlPlane, admin: &Credentials) -> Result<BTreeMap<String, MetricFamily>> {
    let port = upstreams_port(cluster, &[CONTROLLERS])?;
    eventually("upstream's manager serves metrics", || async { complete(scrape(&port, admin).await?) }).await
}

/// Returns families if they contain all common ones.
fn complete(families: BTreeMap<String, MetricFamily>) -> Result<BTreeMap<String, MetricFamily>> {
    let common = NATIVE_IN_BOTH.into_iter().chain(CLASSIC_UPSTREAM);
    let missing: Vec<_> = common.filter(|name| !families.contains_key(*name)).collect();
    ensure!(missing.is_empty(), "no {missing:?}");
    Ok(families)
}

/// Histograms of both managers have the same labels and bounds. All of ours have native buckets, upstream's only where
/// they are created after the gate is applied.
pub async fn histograms_are_served_as_in_upstream(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let admin = admin(&cluster)?;
    let kcm = ManagerProcess::start(&cluster, KCM, &[CONTROLLERS.to_owned()]).await?;
    let ours = eventually("kcm serves metrics", || async { complete(scrape(kcm.port(), &admin).await?) }).await?;
    kcm.terminate().await?;
    let upstreams = upstreams(&cluster, &admin).await?;
    let mut different = Vec::new();
    for (name, own) in ours.iter().filter(|(_, family)| histograms(family).next().is_some()) {
        let own = shape(own);
        ensure!(own.native == Some(NATIVE), "{name}: {own:?}");
        let theirs = upstreams.get(name).map(shape);
        if let Some(theirs) = theirs.filter(|theirs| !theirs.is_similar_to(&own)) {
            different.push(format!("{name}: {own:?} instead of {theirs:?}"));
        }
    }
    ensure!(different.is_empty(), "{}", different.join("\n"));
    for (names, expected) in [(&NATIVE_IN_BOTH[..], Some(NATIVE)), (&CLASSIC_UPSTREAM, None)] {
        for name in names {
            let native = shape(&upstreams[*name]).native;
            ensure!(native == expected, "upstream's {name} is now {native:?}: correct docs/differences.md");
        }
    }
    Ok(())
}
