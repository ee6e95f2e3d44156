//! Alerts and dashboard query only metrics that running managers serve, and only labels that these metrics have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cluster_tests::programs::{CCM, KCM, Process, command};
use cluster_tests::{Bed, Space, eventually};
use control_plane::{Identity, Options};
use serde_json::Value;
use tokio::task::block_in_place;

const RULES: &str = include_str!("../../../../../deploy/monitoring/rules.yaml");
const DASHBOARD: &str = include_str!("../../../../../deploy/monitoring/dashboard.json");
const SCRAPE: &str = include_str!("../../../../../deploy/monitoring/scrape-rbac.yaml");
const CLOUD_RIGHTS: &str = include_str!("../../../../../deploy/ccm-rbac.yaml");

/// The metric and the labels that Prometheus adds itself.
const OF_PROMETHEUS: &str = "up";
const LABELS_OF_TARGETS: [&str; 2] = ["job", "instance"];

/// Prefixes of metrics that only upstream's manager has, with the reasons.
const LEFT_OUT: &[(&str, &str)] = &[
    ("aggregator_", "of API servers: always zero in a manager"),
    ("apiserver_audit_", "of API servers: always zero in a manager"),
    ("apiserver_cel_", "of libraries of API servers"),
    ("apiserver_client_certificate_expiration_", "of API servers: no samples without client certificates"),
    ("apiserver_envelope_", "of API servers"),
    ("apiserver_kube_aggregator_", "of API servers: certificates of webhooks"),
    ("apiserver_storage_", "of API servers"),
    ("apiserver_validation_", "of API servers"),
    ("apiserver_webhooks_", "of API servers"),
    ("go_", "of the Go runtime"),
    ("rest_client_exec_plugin_", "credential plugins run inside a library that does not report their calls"),
];

/// Returns the metrics that an expression queries, with the labels that select them.
fn queried(expression: &str) -> Vec<(String, BTreeSet<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut queries: Vec<(String, BTreeSet<String>)> = Vec::new();
    let (mut rest, mut previous) = (expression, "");
    while let Some(first) = rest.chars().next() {
        if first == '{' {
            // Values contain no brackets here; the text before each operator is a label.
            let (inside, after) = rest[1..].split_once('}').unwrap_or((&rest[1..], ""));
            let labels = inside.split('"').step_by(2).map(|part| part.trim_matches(|c| !is_name(c)));
            if let Some((_, of)) = queries.last_mut() {
                of.extend(labels.filter(|label| !label.is_empty()).map(str::to_owned));
            }
            rest = after;
        } else if first == '[' {
            rest = rest.split_once(']').map_or("", |(_, after)| after);
        } else if first == '(' && matches!(previous, "by" | "on" | "without" | "ignoring") {
            (rest, previous) = (rest.split_once(')').map_or("", |(_, after)| after), "");
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let words = ["by", "on", "without", "ignoring", "and", "or", "unless", "bool", "group_left", "group_right"];
            if !words.contains(&word) && !after.trim_start().starts_with('(') && !is_aggregation(word) {
                queries.push((word.to_owned(), BTreeSet::new()));
            }
            (rest, previous) = (after.trim_start(), word);
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    queries
}

/// Returns true if a word is an aggregation that may precede `by` without a bracket.
fn is_aggregation(word: &str) -> bool {
    ["sum", "max", "min", "avg", "count"].contains(&word)
}

/// Returns all expressions of the rules and the dashboard.
fn expressions() -> Result<Vec<String>> {
    let rules: Value = serde_saphyr::from_str(RULES).context("read the rules")?;
    let dashboard: Value = serde_json::from_str(DASHBOARD).context("read the dashboard")?;
    let mut found = Vec::new();
    collect(&rules, &mut found);
    let alerts = found.len();
    collect(&dashboard, &mut found);
    ensure!(alerts > 10 && found.len() > alerts + 10, "{alerts} alerts and {} expressions", found.len());
    Ok(found)
}

fn collect(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if name == "expr" => found.push(text.to_owned()),
                    _ => collect(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}

/// Returns the metrics of an exposition by the name that queries use, with all labels of their samples.
fn served(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut served: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|about| about.split_once(' ')) {
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            for suffix in suffixes {
                served.entry(format!("{name}{suffix}")).or_default();
            }
        } else if !line.starts_with('#') {
            let (name, labels) = line.split_once('{').unwrap_or((line, ""));
            let labels = labels.split('"').step_by(2).filter_map(|part| part.trim_start_matches(',').strip_suffix('='));
            let of = served.entry(name.split(' ').next().unwrap_or_default().to_owned()).or_default();
            of.extend(labels.map(str::to_owned));
        }
    }
    served
}

/// kcm, with kubeadm's selection of controllers, and ccm serve all metrics of each expression.
pub async fn alerts_and_panels_query_served_metrics(_: Space) -> Result<()> {
    let reading =
        queried("sum by (a) (rate(m_total{b=\"x\", c!~\"y|z\"}[5m])) / on (j) group_left max(n) > 2 and deriv(o[1m])");
    let names: Vec<String> = reading.iter().map(|(name, labels)| format!("{name} {labels:?}")).collect();
    ensure!(names == ["m_total {\"b\", \"c\"}", "n {}", "o {}"], "expressions are parsed incorrectly: {names:?}");
    let bed = Bed::without_accounts(Options { nodes: 1, ..Options::default() }).await?;
    let cluster = &bed.cluster;
    for rights in [SCRAPE, CLOUD_RIGHTS] {
        block_in_place(|| cluster.kubectl_with_input(&["apply", "-f", "-"], rights))?;
    }
    let token = ["--namespace=kube-system", "create", "token", "controller-manager-metrics"];
    let token = block_in_place(|| cluster.kubectl(&token))?.trim_end().to_owned();
    let cloud = Identity::User { name: "system:cloud-controller-manager".into(), groups: Vec::new() };
    let managers = [
        (KCM, Identity::ControllerManager, &["--controllers=*,bootstrapsigner,tokencleaner"][..]),
        (CCM, cloud, &["--cloud-provider=mock", "--configure-cloud-routes=false"][..]),
    ];
    let expressions = expressions()?;
    for (name, identity, flags) in managers {
        let kubeconfig = cluster.kubeconfig(identity)?.display().to_string();
        let credentials = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"];
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        let arguments = credentials.map(|flag| format!("--{flag}={kubeconfig}")).into_iter().chain(flags);
        let arguments: Vec<String> = arguments.chain(["--use-service-account-credentials".to_owned()]).collect();
        let process = Process::start(cluster, name, &command(cluster, name)?, &arguments)?;
        process.until_healthy(cluster, "/healthz").await?;
        let metrics = eventually(format!("{name} leads and serves metrics"), || async {
            let text = process.get("/metrics", Some(&token)).await?;
            let leads = |line: &str| line.starts_with("leader_election_master_status{") && line.contains("} 1");
            ensure!(text.lines().any(leads), "it does not lead");
            ensure!(text.contains("rest_client_requests_total{"));
            Ok(served(&text))
        })
        .await?;
        for expression in &expressions {
            let metrics_of = queried(expression);
            ensure!(!metrics_of.is_empty(), "no metric was found in {expression}");
            for (metric, labels) in metrics_of.into_iter().filter(|(metric, _)| metric != OF_PROMETHEUS) {
                let there = metrics.get(&metric);
                let there = there.with_context(|| format!("{name} has no {metric}, of {expression}"))?;
                let unknown: Vec<_> =
                    labels.iter().filter(|label| !LABELS_OF_TARGETS.contains(&label.as_str())).collect();
                // A metric without samples has no labels yet.
                ensure!(
                    there.is_empty() || unknown.iter().all(|label| there.contains(*label)),
                    "{metric} of {name} has the labels {there:?}, and {expression} needs {unknown:?}"
                );
            }
        }
        process.stop(cluster).await?;
    }
    Ok(())
}

/// Returns the families of an exposition, with their types.
fn types(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect()
}

/// Returns true if an upstream family belongs to a library that kcm does not have (see docs/differences.md).
fn is_left_out(name: &str) -> bool {
    LEFT_OUT.iter().any(|(beginning, _)| name.starts_with(beginning))
}

/// Objects for most controllers: a controller's metrics have samples only after it has reconciled an object.
const WORK: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: 'example.com/web:1'}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: shop}
spec:
  ttlSecondsAfterFinished: 1
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: 'example.com/once:1'}]}
";

/// Starts a manager, creates and deletes some objects, and returns its metrics.
async fn exposition(bed: &Bed, name: &str, program: &Path, token: &str) -> Result<String> {
    let cluster = &bed.cluster;
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?.display().to_string();
    let credentials = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"];
    let arguments = credentials.map(|flag| format!("--{flag}={kubeconfig}")).into_iter();
    let flags = ["--use-service-account-credentials", "--controllers=*,bootstrapsigner,tokencleaner"];
    let arguments: Vec<String> = arguments.chain(flags.map(str::to_owned)).collect();
    let process = Process::start(cluster, name, program, &arguments)?;
    process.until_healthy(cluster, "/healthz").await?;
    let kubectl = |words: &str| block_in_place(|| cluster.kubectl(&words.split(' ').collect::<Vec<_>>()));
    eventually(format!("{name} leads and pods can be created"), || async {
        block_in_place(|| cluster.kubectl_with_input(&["apply", "-f", "-"], WORK)).map(drop)
    })
    .await?;
    kubectl("rollout status deployment/web --namespace shop --timeout=180s")?;
    kubectl("wait --for=delete job/once --namespace shop --timeout=180s")?;
    let text = process.get("/metrics", Some(token)).await?;
    kubectl("delete namespace shop --timeout=180s")?;
    process.stop(cluster).await?;
    Ok(text)
}

/// Each family with its type and the labels of its samples, without the bounds of buckets.
type Families = BTreeMap<String, (String, BTreeSet<String>)>;

/// Returns the families of an exposition that upstream and kcm share.
fn families(text: &str) -> Families {
    let labels = served(text);
    let labels_of = |name: &str| {
        let samples = [name.to_owned(), format!("{name}_bucket")];
        let all = samples.iter().filter_map(|sample| labels.get(sample)).flatten();
        all.filter(|label| *label != "le").cloned().collect()
    };
    let shared = types(text).into_iter().filter(|(name, _)| !is_left_out(name));
    shared.map(|(name, kind)| (name.to_owned(), (kind.to_owned(), labels_of(name)))).collect()
}

/// Returns one line per family: its name, its type, and its labels, separated by commas.
fn as_list(families: &Families) -> String {
    let line = |(name, (kind, labels)): (&String, &(String, BTreeSet<String>))| {
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        [&**name, &**kind, &*labels.join(",")].join(" ").trim_end().to_owned() + "\n"
    };
    families.iter().map(line).collect()
}

fn from_list(list: &str) -> Families {
    let line = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let (name, kind, labels) = (words.next()?, words.next()?, words.next().unwrap_or_default());
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(str::to_owned).collect();
        Some((name, (kind, labels)))
    };
    list.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect()
}

/// Returns the differences of upstream's families from ours. A family without samples has no labels yet.
fn differences(theirs: &Families, ours: &Families) -> Vec<String> {
    let mut found = Vec::new();
    for (name, (kind, labels)) in theirs {
        match ours.get(name) {
            None => found.push(format!("{name} ({kind}) is missing")),
            Some((own, _)) if own != kind => found.push(format!("{name} is a {own}, not a {kind}")),
            Some((_, own)) if own != labels && !own.is_empty() && !labels.is_empty() => {
                found.push(format!("{name} has the labels {own:?} instead of {labels:?}"));
            }
            Some(_) => {}
        }
    }
    found
}

/// Starts a control plane; returns it with a token that may read metrics.
async fn scraped() -> Result<(Bed, String)> {
    let bed = Bed::without_accounts(Options { nodes: 1, ..Options::default() }).await?;
    block_in_place(|| bed.cluster.kubectl_with_input(&["apply", "-f", "-"], SCRAPE))?;
    let token = ["--namespace=kube-system", "create", "token", "controller-manager-metrics"];
    let token = block_in_place(|| bed.cluster.kubectl(&token))?.trim_end().to_owned();
    Ok((bed, token))
}

/// The recorded list of upstream's families.
const UPSTREAM_LIST: &str = include_str!("../../../data/upstream-metrics.txt");

/// Families that upstream serves are served here by the same names, types and labels.
pub async fn metrics_equal_upstreams_list(_: Space) -> Result<()> {
    let theirs = from_list(UPSTREAM_LIST);
    ensure!(from_list(&as_list(&theirs)) == theirs && theirs.len() > 50, "{} families", theirs.len());
    let (bed, token) = scraped().await?;
    let ours = families(&exposition(&bed, KCM, &command(&bed.cluster, KCM)?, &token).await?);
    let found = differences(&theirs, &ours);
    ensure!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
    Ok(())
}

/// The list equals upstream's metrics; with `UPDATE_METRICS`, it is written. Ignored by default: it needs upstream's
/// manager.
pub async fn upstreams_list_is_current(_: Space) -> Result<()> {
    let (bed, token) = scraped().await?;
    let upstream = block_in_place(|| bed.cluster.assets().upstream_manager())?;
    let text = exposition(&bed, "upstream", &upstream, &token).await?;
    let theirs = families(&text);
    ensure!(theirs.len() > 50, "only {} families", theirs.len());
    let all = types(&text);
    let is_unused = |beginning: &str| !all.keys().any(|name| name.starts_with(beginning));
    let unused: Vec<_> = LEFT_OUT.iter().filter(|(beginning, _)| is_unused(beginning)).collect();
    ensure!(unused.is_empty(), "no upstream metric begins with {unused:?}");
    if std::env::var_os("UPDATE_METRICS").is_some() {
        let head =
            "# Families of kube-controller-manager 1.37: name, type, labels. Written by upstreams_list_is_current.\n";
        let path = format!("{}/data/upstream-metrics.txt", env!("CARGO_MANIFEST_DIR"));
        return Ok(std::fs::write(path, head.to_owned() + &as_list(&theirs))?);
    }
    let found = differences(&theirs, &from_list(UPSTREAM_LIST));
    ensure!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
    Ok(())
}

/// Prometheus' parser accepts each rule, and its engine fires each alert when it should, and only then. Ignored by
/// default: the needed parts of Prometheus are built once, which takes some minutes.
pub async fn alerts_fire_when_they_should(space: Space) -> Result<()> {
    let program = block_in_place(|| space.bed.cluster.assets().rules())?;
    let file = |path: &str| format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    let (rules, cases) = (file("../../deploy/monitoring/rules.yaml"), file("data/alerts.yaml"));
    for arguments in [vec!["check", &rules], vec!["test", &rules, &cases]] {
        let output = block_in_place(|| Command::new(&program).args(&arguments).output())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}:\n{stderr}");
    }
    let broken = space.bed.cluster.folder().join("broken-rules.yaml");
    std::fs::write(
        &broken,
        RULES.replacen("absent(", "absent((", 1).replacen("{{ $labels.name }}", "{{ $labels.name", 1),
    )?;
    let output = block_in_place(|| Command::new(&program).arg("check").arg(&broken).output())?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    for broken in ["ControllerManagerAbsent", "ControllerManagerWithoutLeader"] {
        ensure!(!output.status.success() && stderr.contains(broken), "{broken} is accepted: {stderr}");
    }
    Ok(())
}
