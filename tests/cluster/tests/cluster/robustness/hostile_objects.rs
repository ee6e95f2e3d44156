//! Objects of a hostile tenant, at the limits of what the API server accepts: names, sizes, depths, counts and loops.

use control_plane::CustomKind;
use serde_json::{Value, json};

/// Number of owner references of one object. A reference and its entry in `managedFields` take 125 bytes of the 1.5 MiB
/// that etcd accepts in one request: 12,000 of them would be refused.
pub const OWNERS: usize = 10_000;
/// Number of environment variables of one container.
const VARIABLES: usize = 5_000;
/// Number of levels of a nested custom resource.
const LEVELS: usize = 2_000;
/// Number of labels of one pod.
const LABELS: usize = 20_000;
/// Number of requirements of one selector.
const REQUIREMENTS: usize = 30_000;
/// Number of named ports of one Service, and of one container.
const PORTS: usize = 10_000;
/// Number of subsets of one Endpoints object.
const SUBSETS: usize = 300;
/// Number of versions of the tenant's custom kind.
const VERSIONS: usize = 50;
/// Number of bytes of a text near the API server's limit for an object.
const LONG_TEXT: usize = 1 << 20;

/// Number of objects with the same finalizer, which no controller removes.
pub const STUCK: usize = 100;
/// The finalizer of these objects.
pub const FINALIZER: &str = "tenant.example.com/never";
/// The tenant's own API group.
pub const GROUP: &str = "tenant.example.com";

/// Names that no object can have.
const NAMES: [&str; 8] = [
    "?watch=true&timeoutSeconds=99999999",
    "a b",
    "kube-system/secrets?watch=true",
    "../../../namespaces/kube-system/secrets/x",
    "%2e%2e",
    "\u{8a9e}\u{202e}",
    "line\nbreak",
    "#",
];

/// Returns the definition of the tenant's custom kind, whose objects may have any content.
pub fn definition() -> Value {
    let others = (1..VERSIONS).map(|number| format!("v1alpha{number}"));
    let versions = ["v1".to_owned()].into_iter().chain(others);
    CustomKind::new(GROUP, "Thing").with_versions(versions, "v1").definition()
}

/// An object to create: its API version, the plural of its kind, and the object.
pub type Creation = (&'static str, &'static str, Value);

/// Returns everything that the tenant creates.
pub fn all(victim: &str) -> Vec<Creation> {
    let mut all = owners(victim);
    // These are created before the workloads, whose pods use up the quota.
    all.extend(expensive_pairs());
    all.extend(workloads());
    all.extend(custom());
    all.extend(named(victim));
    all
}

pub fn config_map(name: &str, metadata: Value) -> Creation {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    object["metadata"]["name"] = name.into();
    ("v1", "configmaps", object)
}

fn owner(kind: &str, name: &str, uid: usize) -> Value {
    let version = if kind == "Thing" { format!("{GROUP}/v1") } else { "v1".to_owned() };
    json!({"apiVersion": version, "kind": kind, "name": name, "uid": format!("00000000-0000-4000-8000-{uid:012}")})
}

/// Returns objects with references to many owners, to missing owners, and to objects of the victim's namespace; and
/// objects with a finalizer.
fn owners(victim: &str) -> Vec<Creation> {
    let many: Vec<Value> = (0..OWNERS).map(|n| owner("ConfigMap", &format!("owner-{n}"), n)).collect();
    let mut all = vec![
        config_map("many-owners", json!({"ownerReferences": many})),
        config_map("other-namespace", json!({"ownerReferences": [owner("Secret", "crown-jewels", 1)]})),
        config_map("victims-namespace", json!({"ownerReferences": [owner("Namespace", victim, 2)]})),
        config_map("unknown-kind", json!({"ownerReferences": [owner("Nothing", "x", 3)]})),
    ];
    for (number, name) in NAMES.iter().enumerate() {
        let references = json!([owner("ConfigMap", name, 10 + number), owner("Namespace", name, 30 + number)]);
        all.push(config_map(&format!("hostile-owner-{number}"), json!({"ownerReferences": references})));
    }
    for number in 0..STUCK {
        all.push(config_map(&format!("stuck-{number}"), json!({"finalizers": [FINALIZER]})));
    }
    all
}

fn template(app: &str, env: &[Value]) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": "example.com/image:1", "env": env}]},
    })
}

fn workload(kind: &str, name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template(name, &[])},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

/// Returns workloads with large templates, counts near the limits of their types, and expensive selectors.
fn workloads() -> Vec<Creation> {
    let env: Vec<Value> = (0..VARIABLES).map(|n| json!({"name": format!("V{n}"), "value": "x".repeat(100)})).collect();
    let text = [json!({"name": "LONG", "value": "x".repeat(LONG_TEXT)})];
    let expressions: Vec<Value> =
        (0..1_000).map(|n| json!({"key": format!("k{n}"), "operator": "NotIn", "values": ["a", "b", "c"]})).collect();
    let job = |name: &str, spec: Value| {
        let mut template = template(name, &[]);
        template["spec"]["restartPolicy"] = "Never".into();
        let mut object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}});
        for (field, value) in spec.as_object().into_iter().flatten() {
            object["spec"][field] = value.clone();
        }
        ("batch/v1", "jobs", object)
    };
    let schedule = |name: &str, schedule: &str| {
        let mut template = template(name, &[]);
        template["spec"]["restartPolicy"] = "Never".into();
        (
            "batch/v1",
            "cronjobs",
            json!({
                "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name},
                "spec": {"schedule": schedule, "jobTemplate": {"spec": {"template": template}}},
            }),
        )
    };
    let largest = i32::MAX;
    vec![
        (
            "apps/v1",
            "deployments",
            workload("Deployment", "many-variables", json!({"template": template("many-variables", &env)})),
        ),
        (
            "apps/v1",
            "deployments",
            workload("Deployment", "long-variable", json!({"template": template("long-variable", &text)})),
        ),
        ("apps/v1", "deployments", workload("Deployment", "largest", json!({"replicas": largest}))),
        (
            "apps/v1",
            "replicasets",
            workload("ReplicaSet", "largest", json!({"replicas": largest, "minReadySeconds": largest})),
        ),
        (
            "apps/v1",
            "statefulsets",
            workload(
                "StatefulSet",
                "largest",
                json!({
                    "replicas": largest, "podManagementPolicy": "Parallel", "serviceName": "x",
                }),
            ),
        ),
        job("largest", json!({"completions": largest, "parallelism": largest})),
        job(
            "indexed",
            json!({
                "completions": 100_000, "parallelism": 100_000, "completionMode": "Indexed",
                "backoffLimitPerIndex": 1, "maxFailedIndexes": 10_000,
            }),
        ),
        schedule("never", "0 0 31 2 *"),
        schedule("always", "* * * * *"),
        (
            "policy/v1",
            "poddisruptionbudgets",
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "expressions"},
                "spec": {"minAvailable": "100%", "selector": {"matchExpressions": expressions}},
            }),
        ),
        (
            "v1",
            "services",
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "everything"},
                "spec": {"selector": {"app": "largest"}, "clusterIP": "None",
                    "ports": (1..500).map(|n| json!({"name": format!("p{n}"), "port": n})).collect::<Vec<_>>()},
            }),
        ),
    ]
}

/// Returns pairs of objects for which a naive comparison of all parts of one with all parts of the other takes seconds:
/// labels and requirements of selectors, ports of Services and of pods; and many subsets, each of which becomes an
/// EndpointSlice.
fn expensive_pairs() -> Vec<Creation> {
    // No scheduler has this name: the pods need no node.
    let pod = |name: &str, labels: Value, ports: Vec<Value>| {
        let spec = json!({
            "schedulerName": "none",
            "containers": [{"name": "main", "image": "example.com/image:1", "ports": ports}],
        });
        let metadata = json!({"name": name, "labels": labels});
        ("v1", "pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    };
    let labels: serde_json::Map<_, _> = (0..LABELS).map(|n| (format!("a{n:05}"), Value::from(""))).collect();
    let named = |n: usize| json!({"name": format!("n{n:05}"), "containerPort": 1 + n});
    let mut all: Vec<_> =
        (0..4).map(|number| pod(&format!("many-labels-{number}"), json!(labels), Vec::new())).collect();
    all.extend((0..2).map(|number| {
        let ports = (0..PORTS).map(|n| named((n + number) % PORTS)).collect();
        pod(&format!("many-ports-{number}"), json!({"app": "many-ports"}), ports)
    }));
    // The pods satisfy all of these requirements. They lack only the label `zz`, whose key is the last one.
    let absent = |n: usize| json!({"key": format!("b{n:05}"), "operator": "DoesNotExist"});
    let requirements: Vec<Value> = (0..REQUIREMENTS).map(absent).collect();
    for number in 0..2 {
        let name = format!("many-requirements-{number}");
        let template = json!({
            "metadata": {"labels": {"zz": name}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/image:1"}]},
        });
        let selector = json!({"matchLabels": {"zz": name}, "matchExpressions": requirements});
        let spec = json!({"manualSelector": true, "selector": selector, "template": template});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
        all.push(("batch/v1", "jobs", job));
    }
    let ports =
        (0..PORTS).map(|n| json!({"name": format!("s{n:05}"), "port": 1 + n, "targetPort": format!("m{n:05}")}));
    let spec = json!({"clusterIP": "None", "selector": {"app": "many-ports"}, "ports": ports.collect::<Vec<_>>()});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "many-ports"}, "spec": spec});
    all.push(("v1", "services", service));
    let subset = |n: usize| json!({"addresses": [{"ip": format!("10.8.{}.{}", n / 250, 1 + n % 250)}], "ports": [{"port": 1 + n}]});
    let subsets: Vec<Value> = (0..SUBSETS).map(subset).collect();
    let metadata = json!({"name": "many-subsets"});
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets});
    all.push(("v1", "endpoints", endpoints));
    // Endpoints are mirrored only for a Service.
    for name in ["many-subsets", "mirrored"] {
        let spec = json!({"clusterIP": "None", "ports": [{"port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        all.push(("v1", "services", service));
    }
    all
}

/// Returns custom resources: one whose fields have other types than in built-in kinds, one with a long text, and a
/// plain one.
fn custom() -> Vec<Creation> {
    let thing = |name: &str, fields: Value| {
        let mut object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Thing", "metadata": {"name": name}});
        for (field, value) in fields.as_object().into_iter().flatten() {
            object[field] = value.clone();
        }
        ("tenant.example.com/v1", "things", object)
    };
    vec![
        thing("odd", json!({"code": "x", "reason": {}, "message": [1], "status": 7, "items": "none", "spec": []})),
        thing("long", json!({"spec": {"text": "x".repeat(LONG_TEXT)}})),
        thing("stuck", json!({})),
    ]
}

/// Returns objects with hostile names outside owner references: of accounts, scale targets and endpoints.
fn named(victim: &str) -> Vec<Creation> {
    let mut all = Vec::new();
    for (number, name) in NAMES.iter().chain([&"crown-jewels"]).enumerate() {
        all.push((
            "v1",
            "secrets",
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
                "metadata": {"name": format!("token-{number}"), "annotations": {
                    "kubernetes.io/service-account.name": name, "kubernetes.io/service-account.uid": victim,
                }},
            }),
        ));
    }
    all.push(("autoscaling/v2", "horizontalpodautoscalers", json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "elsewhere"},
        "spec": {"maxReplicas": 5, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web?x=y"}},
    })));
    all.push((
        "v1",
        "endpoints",
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "mirrored"},
            "subsets": [{"addresses": (1..255).map(|n| json!({"ip": format!("10.9.8.{n}"), "targetRef": {
                "kind": "Pod", "namespace": victim, "name": "web"}})).collect::<Vec<_>>(), "ports": [{"port": 80}]}],
        }),
    ));
    all
}

/// Returns a custom resource whose content is nested deeply, as text: values of that depth cannot be dropped on a small
/// stack.
pub fn nested() -> String {
    let (open, close) = ("{\"a\":".repeat(LEVELS), "}".repeat(LEVELS));
    format!(
        "{{\"apiVersion\":\"{GROUP}/v1\",\"kind\":\"Thing\",\"metadata\":{{\"name\":\"nested\"}},\"spec\":{open}1{close}}}"
    )
}
