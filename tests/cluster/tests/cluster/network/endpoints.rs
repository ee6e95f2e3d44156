//! EndpointSlices and Endpoints of Services, as users and proxies observe them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{names, replica_set, uids, with};
use cluster_tests::{
    Bed, Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually, restart_after_crashes, variants,
};
use control_plane::behaviour::{BEHAVIOUR, TERMINATING, UNREADY};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::robustness::invariants::{only_declared, until_quiet};
use crate::upstream::manager::{UPSTREAM, start_upstream};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Returns a Service for pods with the label `app=<name>`, on their port `http`.
fn service(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "web", "port": 80, "targetPort": "http"}]},
    })
}

/// Returns a ReplicaSet of pods with a port `http` and with annotations.
fn pods(name: &str, replicas: i32, annotations: &Value) -> Value {
    let containers = json!([
        {"name": "main", "image": "example.com/image:1", "ports": [{"name": "http", "containerPort": 8080}]},
    ]);
    let template = json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers}});
    with(replica_set(name, replicas), json!({"spec": {"template": template}}))
}

async fn slices(space: &Space, service: &str) -> Result<Vec<EndpointSlice>> {
    let mut slices = space.list::<EndpointSlice>("").await?;
    slices.retain(|slice| slice.labels().get(SERVICE_NAME).is_some_and(|name| name == service));
    Ok(slices)
}

/// Returns the pod and the conditions of an endpoint: `+` stands for true, `-` for false.
fn text(endpoint: &Endpoint) -> String {
    let sign = |condition: Option<bool>| match condition {
        Some(true) => '+',
        Some(false) => '-',
        None => '?',
    };
    let name = endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let signs = [conditions.ready, conditions.serving, conditions.terminating].map(sign);
    format!("{} {}", name.unwrap_or_else(|| endpoint.addresses[0].clone()), String::from_iter(signs))
}

/// Returns the endpoints of all slices of a Service; fails if one is published twice.
async fn published(space: &Space, service: &str) -> Result<BTreeSet<String>> {
    let slices = slices(space, service).await?;
    let all: Vec<String> = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).map(text).collect();
    let unique: BTreeSet<String> = all.iter().cloned().collect();
    ensure!(unique.len() == all.len(), "an endpoint is published twice: {all:?}");
    Ok(unique)
}

/// Returns the addresses of the Endpoints object by their pods: ready ones, and others.
async fn addresses(space: &Space, service: &str) -> Result<[BTreeSet<String>; 2]> {
    let subsets = space.get::<Endpoints>(service).await?.subsets.unwrap_or_default();
    let mut found = [BTreeSet::new(), BTreeSet::new()];
    for subset in subsets {
        for (list, found) in [subset.addresses, subset.not_ready_addresses].into_iter().zip(&mut found) {
            let names = list.into_iter().flatten().map(|a| a.target_ref.and_then(|t| t.name).unwrap_or(a.ip));
            found.extend(names);
        }
    }
    Ok(found)
}

fn nothing() -> [BTreeSet<String>; 2] {
    [BTreeSet::new(), BTreeSet::new()]
}

fn each(names: &[String], signs: &str) -> BTreeSet<String> {
    names.iter().map(|name| format!("{name} {signs}")).collect()
}

/// Waits until slices and Endpoints list this many pods, all ready.
async fn all_ready(space: &Space, name: &str, count: usize) -> Result<()> {
    eventually(format!("{count} ready endpoints of {name}"), || async {
        let pods = names(&space.pods(name).await?);
        ensure!(pods.len() == count, "{pods:?}");
        let (published, addresses) = (published(space, name).await?, addresses(space, name).await?);
        ensure!(published == each(&pods, "++-"), "slices contain {published:?}");
        let expected = [pods.into_iter().collect(), BTreeSet::new()];
        ensure!(addresses == expected, "Endpoints contain {addresses:?}");
        Ok(())
    })
    .await
}

/// Checks ports, labels, owner and annotations of the slice and the Endpoints of a Service.
async fn check_metadata(space: &Space, service: &Service) -> Result<()> {
    let slice = slices(space, "web").await?.pop().context("no slice")?;
    let port = slice.ports.as_ref().and_then(|ports| ports.first()).context("no port")?;
    ensure!((port.name.as_deref(), port.port) == (Some("web"), Some(8080)), "{port:?}");
    ensure!(slice.name_any().starts_with("web-") && slice.address_type == "IPv4");
    let expected = [("app", "web"), (MANAGED_BY, "endpointslice-controller.k8s.io"), (SERVICE_NAME, "web")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    ensure!(*slice.labels() == expected.into(), "{:?}", slice.labels());
    let owner = slice.owner_references().first().context("no owner")?;
    ensure!(Some(&owner.uid) == service.uid().as_ref() && owner.controller == Some(true));
    ensure!(owner.block_owner_deletion == Some(true) && owner.kind == "Service");
    ensure!(slice.annotations().contains_key("endpoints.kubernetes.io/last-change-trigger-time"));
    let endpoints = space.get::<Endpoints>("web").await?;
    let manager_label = endpoints.labels().get("endpoints.kubernetes.io/managed-by");
    ensure!(manager_label.is_some_and(|name| name == "endpoint-controller"));
    Ok(())
}

pub async fn slices_and_endpoints_follow_pods(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    let made = space.create::<Service>(service("web")).await?;
    eventually("the Service has an empty slice", || async {
        ensure!(slices(&space, "web").await?.len() == 1 && addresses(&space, "web").await? == nothing());
        Ok(())
    })
    .await?;
    space.create::<ReplicaSet>(pods("web", 3, &json!({}))).await?;
    all_ready(&space, "web", 3).await?;

    check_metadata(&space, &made).await?;
    let victims = names(&space.pods("web").await?);
    let mark = |behaviour: &str| json!({"metadata": {"annotations": {BEHAVIOUR: behaviour}}});
    space.patch::<Pod>(&victims[0], mark(UNREADY)).await?;
    eventually("the unready pod is published", || async {
        let (published, addresses) = (published(&space, "web").await?, addresses(&space, "web").await?);
        ensure!(published.contains(&format!("{} ---", victims[0])), "{published:?}");
        ensure!(addresses[1].contains(&victims[0]) && addresses[0].len() == 2, "{addresses:?}");
        Ok(())
    })
    .await?;
    space.patch::<Pod>(&victims[1], mark(TERMINATING)).await?;
    space.delete::<Pod>(&victims[1]).await?;
    eventually("a terminating pod still serves", || async {
        let (published, addresses) = (published(&space, "web").await?, addresses(&space, "web").await?);
        ensure!(published.contains(&format!("{} -++", victims[1])) && published.len() == 4, "{published:?}");
        ensure!(!addresses[0].contains(&victims[1]) && addresses[0].len() == 2, "{addresses:?}");
        Ok(())
    })
    .await?;
    space.patch::<Service>("web", json!({"metadata": {"labels": {"tier": "front"}}})).await?;
    eventually("labels follow the Service", || async {
        let slices = slices(&space, "web").await?;
        ensure!(slices.iter().all(|slice| slice.labels().get("tier").is_some_and(|tier| tier == "front")));
        ensure!(space.get::<Endpoints>("web").await?.labels().contains_key("tier"));
        Ok(())
    })
    .await?;
    space.delete::<Service>("web").await?;
    eventually("the Endpoints are deleted with their Service", || async {
        ensure!(space.api::<Endpoints>().get_opt("web").await?.is_none());
        Ok(())
    })
    .await?;
    until_quiet(&faults).await?;
    manager.stop().await?;
    only_declared(&faults, &["endpointslice-controller", "endpoints-controller"])
}

pub async fn headless_service_publishes_all_pods(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let headless = json!({"spec": {"clusterIP": "None", "publishNotReadyAddresses": true}});
    space.create::<Service>(with(service("db"), headless)).await?;
    space.create::<ReplicaSet>(pods("db", 2, &json!({BEHAVIOUR: UNREADY}))).await?;
    eventually("pods that are not ready are published", || async {
        let pods = names(&space.pods("db").await?);
        let (published, addresses) = (published(&space, "db").await?, addresses(&space, "db").await?);
        ensure!(pods.len() == 2 && published == each(&pods, "+--"), "{published:?}");
        ensure!(addresses[0].len() == 2 && addresses[1].is_empty(), "{addresses:?}");
        let labelled = |labels: &std::collections::BTreeMap<String, String>| {
            labels.get("service.kubernetes.io/headless").is_some_and(String::is_empty)
        };
        ensure!(slices(&space, "db").await?.iter().all(|slice| labelled(slice.labels())));
        ensure!(labelled(space.get::<Endpoints>("db").await?.labels()));
        Ok(())
    })
    .await
}

pub async fn endpoints_created_by_users_are_mirrored(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    let bare = json!({"metadata": {"name": "out"}, "spec": {"ports": [{"port": 5432}]}});
    let subset = |ips: &[&str]| {
        let list: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"subsets": [{"addresses": list, "ports": [{"port": 5432}]}]})
    };
    let endpoints = json!({"metadata": {"name": "out", "labels": {"by": "hand"}, "annotations": {"why": "because"}}});
    space.create::<Endpoints>(with(endpoints, subset(&["192.0.2.1", "192.0.2.2"]))).await?;
    space.create::<Service>(bare).await?;
    let mirrored = |expected: &'static [&'static str]| {
        let space = space.clone();
        async move {
            eventually(format!("mirrored: {expected:?}"), || async {
                let published = published(&space, "out").await?;
                ensure!(published == expected.iter().map(|text| (*text).to_owned()).collect(), "{published:?}");
                Ok(())
            })
            .await
        }
    };
    mirrored(&["192.0.2.1 +??", "192.0.2.2 +??"]).await?;
    let slice = slices(&space, "out").await?.pop().context("no slice")?;
    ensure!(slice.labels().get(MANAGED_BY).is_some_and(|by| by == "endpointslicemirroring-controller.k8s.io"));
    ensure!(slice.labels().contains_key("by") && slice.annotations().contains_key("why"));
    ensure!(slice.owner_references()[0].kind == "Endpoints");
    space.patch::<Endpoints>("out", subset(&["192.0.2.3"])).await?;
    mirrored(&["192.0.2.3 +??"]).await?;
    ensure!(names(&slices(&space, "out").await?) == [slice.name_any()], "the slice was replaced");
    let skip = |value: Value| json!({"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": value}}});
    space.patch::<Endpoints>("out", skip("true".into())).await?;
    mirrored(&[]).await?;
    space.patch::<Endpoints>("out", skip(Value::Null)).await?;
    mirrored(&["192.0.2.3 +??"]).await?;
    space.patch::<Service>("out", json!({"spec": {"selector": {"app": "missing"}}})).await?;
    eventually("with a selector, only pods are published", || async {
        let slices = slices(&space, "out").await?;
        let by: Vec<_> = slices.iter().filter_map(|slice| slice.labels().get(MANAGED_BY)).collect();
        ensure!(by == ["endpointslice-controller.k8s.io"], "{by:?}");
        ensure!(addresses(&space, "out").await? == nothing());
        Ok(())
    })
    .await?;
    until_quiet(&faults).await?;
    manager.stop().await?;
    only_declared(&faults, &["endpointslice-mirroring-controller"])
}

pub async fn changes_of_slices_by_other_clients_are_repaired(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Service>(service("web")).await?;
    space.create::<ReplicaSet>(pods("web", 2, &json!({}))).await?;
    all_ready(&space, "web", 2).await?;
    let slice = names(&slices(&space, "web").await?).pop().context("no slice")?;
    space.patch::<EndpointSlice>(&slice, json!({"endpoints": []})).await?;
    all_ready(&space, "web", 2).await?;
    space.delete::<EndpointSlice>(&slice).await?;
    space.delete::<Endpoints>("web").await?;
    all_ready(&space, "web", 2).await
}

pub async fn frozen_watch_leads_to_no_second_slice(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<ReplicaSet>(pods("web", 2, &json!({}))).await?;
    eventually("two pods are ready", || async {
        ensure!(space.pods("web").await?.iter().filter(|pod| cluster_tests::objects::is_ready(pod)).count() == 2);
        Ok(())
    })
    .await?;
    faults.freeze("endpointslices");
    space.create::<Service>(service("web")).await?;
    let created = || faults.count(|call| call.to_string() == "create endpointslices");
    eventually("the slice is created", || async {
        ensure!(created() == 1);
        Ok(())
    })
    .await?;
    for turn in 0..3 {
        space.patch::<Service>("web", json!({"metadata": {"labels": {"turn": turn.to_string()}}})).await?;
        space.scale::<ReplicaSet>("web", 3 + turn).await?;
    }
    during(QUIET, "no other slice is created", || async {
        ensure!(created() == 1, "{} creations", created());
        Ok(())
    })
    .await?;
    faults.thaw("endpointslices");
    all_ready(&space, "web", 5).await
}

/// Creates a Service with pods, scales up, deletes a pod, and scales down.
async fn scenario(space: &Space) -> Result<()> {
    space.create::<Service>(service("web")).await?;
    space.create::<ReplicaSet>(pods("web", 3, &json!({}))).await?;
    all_ready(space, "web", 3).await?;
    space.scale::<ReplicaSet>("web", 5).await?;
    all_ready(space, "web", 5).await?;
    space.delete::<Pod>(&names(&space.pods("web").await?)[0]).await?;
    all_ready(space, "web", 5).await?;
    space.scale::<ReplicaSet>("web", 1).await?;
    all_ready(space, "web", 1).await
}

fn is_endpoint_write(call: &Call) -> bool {
    call.is_object_write() && matches!(&*call.resource, "endpoints" | "endpointslices")
}

async fn run_with_fault(space: Space, rule: Rule) -> Result<()> {
    let faults = Faults::script([rule]);
    tokio::select! {
        played = scenario(&space) => played?,
        ended = restart_after_crashes(&faults, || Manager::start(&space, &faults)) => ended?,
    }
    ensure!(faults.unmet() == 0, "the fault did not occur: the run tests nothing");
    let after = Faults::default();
    let _manager = Manager::start(&space, &after).await?;
    after.until_watching(&["endpointslices"]).await?;
    until_quiet(&after).await?;
    all_ready(&space, "web", 1).await?;
    ensure!(slices(&space, "web").await?.len() == 1);
    Ok(())
}

pub async fn crash_after_a_sample_of_writes(space: Space) -> Result<()> {
    let crashes = [
        (1, Effect::CrashAfter),
        (2, Effect::CrashBeforeResponse),
        (3, Effect::CrashAfter),
        (4, Effect::CrashBeforeResponse),
    ];
    let rule = |(n, effect): (usize, Effect)| {
        (format!("{effect:?} at write {n}"), Rule::new(is_endpoint_write, effect).nth(n))
    };
    variants(&space, crashes.map(rule).into(), run_with_fault).await
}

pub async fn slices_are_correct_after_each_failure_of_each_write(space: Space) -> Result<()> {
    let mut rules = Vec::new();
    for (verb, resource) in
        [(Verb::Create, "endpointslices"), (Verb::Update, "endpointslices"), (Verb::Update, "endpoints")]
    {
        for (how, effect) in cluster_tests::write_failures() {
            rules.push((format!("{verb:?} {resource}: {how}"), Rule::on(verb, resource, effect)));
        }
    }
    variants(&space, rules, run_with_fault).await
}

const CONTROLLERS: &str =
    "endpointslice-controller,endpoints-controller,endpointslice-mirroring-controller,replicaset-controller";

/// Each manager keeps the slices of the other one. Upstream's manager watches all namespaces, so this needs a separate
/// control plane.
pub async fn upstreams_slices_are_kept_after_a_takeover(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let space = bed.space("takeover").await?;
    start_upstream(&bed.cluster, CONTROLLERS, &[])?;
    space.create::<Service>(service("web")).await?;
    space.create::<Service>(with(service("db"), json!({"spec": {"clusterIP": "None"}}))).await?;
    space.create::<Service>(with(service("idle"), json!({"spec": {"trafficDistribution": "PreferSameNode"}}))).await?;
    space.create::<ReplicaSet>(pods("web", 3, &json!({}))).await?;
    space.create::<ReplicaSet>(pods("db", 2, &json!({BEHAVIOUR: UNREADY}))).await?;
    space.create::<Service>(json!({"metadata": {"name": "out"}, "spec": {"ports": [{"port": 5432}]}})).await?;
    let list = json!([{"addresses": [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}], "ports": [{"port": 5432}]}]);
    space.create::<Endpoints>(json!({"metadata": {"name": "out"}, "subsets": list})).await?;
    all_ready(&space, "web", 3).await?;
    eventually("upstream has published all endpoints", || async {
        let counts = [published(&space, "db").await?.len(), published(&space, "out").await?.len()];
        ensure!(counts == [2, 2] && slices(&space, "idle").await?.len() == 1, "{counts:?}");
        Ok(())
    })
    .await?;
    bed.cluster.kill(UPSTREAM)?;
    let before = space.list::<EndpointSlice>("").await?;

    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    faults.until_watching(&["endpointslices"]).await?;
    during(QUIET, "ours finds nothing to do", || async {
        ensure!(faults.count(is_endpoint_write) == 0, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    space.scale::<ReplicaSet>("web", 5).await?;
    all_ready(&space, "web", 5).await?;
    ensure!(uids(&space.list::<EndpointSlice>("").await?) == uids(&before), "slices were replaced");
    until_quiet(&faults).await?;
    manager.crash().await;

    let versions = |slices: &[EndpointSlice]| -> BTreeSet<Option<String>> {
        slices.iter().map(kube::ResourceExt::resource_version).collect()
    };
    let ours = versions(&space.list::<EndpointSlice>("").await?);
    start_upstream(&bed.cluster, CONTROLLERS, &[])?;
    during(3 * QUIET, "upstream finds nothing to do", || async {
        ensure!(versions(&space.list::<EndpointSlice>("").await?) == ours);
        Ok(())
    })
    .await?;
    space.scale::<ReplicaSet>("web", 2).await?;
    all_ready(&space, "web", 2).await
}
