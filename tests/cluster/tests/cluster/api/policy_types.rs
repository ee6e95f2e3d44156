//! Type checking of ValidatingAdmissionPolicies on a real API server, compared with upstream's manager.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Bed, Effect, Faults, Manager, Rule, Space, Verb, eventually, write_failures};
use control_plane::{ControlPlane, CustomKind, Options};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::upstream::manager::{UPSTREAM, start_upstream};

const CONTROLLER: &str = "validatingadmissionpolicy-status-controller";

/// The kinds in the policies of these tests, as they occur in names of types in warnings.
const KINDS: [&str; 12] = [
    "Deployment",
    "StatefulSet",
    "PersistentVolumeClaim",
    "Pod",
    "Event",
    "Widget",
    "Setting",
    "ConfigMap",
    "Service",
    "CustomResourceDefinition",
    "CronJob",
    "Ingress",
];

/// Returns a custom kind with fields of many types.
fn widgets() -> CustomKind {
    let fields = json!({
        "count": {"type": "integer"}, "ratio": {"type": "number"}, "name": {"type": "string"},
        "when": {"type": "string", "format": "date-time"}, "data": {"type": "string", "format": "byte"},
        "names": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "port": {"x-kubernetes-int-or-string": true},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true},
        "dashed-name": {"type": "string"},
    });
    let spec = json!({"type": "object", "properties": fields});
    CustomKind::new("example.com", "Widget").with_schema(json!({"type": "object", "properties": {"spec": spec}}))
}

/// Returns the policies: name, resources as group/version/plural, parameters, variables, expressions.
fn policies() -> Vec<Value> {
    let widgets = &["example.com/v1/widgets"][..];
    let deployments = &["apps/v1/deployments"][..];
    let variables_of = |variables: &[(&str, &str)]| {
        let named = variables.iter().map(|(name, expression)| json!({"name": name, "expression": expression}));
        named.collect::<Vec<_>>()
    };
    vec![
        policy("right", deployments, None, vec![], &["object.spec.replicas <= 5", "has(object.spec.paused)"]),
        policy(
            "wrong-fields",
            deployments,
            None,
            vec![],
            &[
                "object.spec.replica <= 5",
                "object.spec.template.spec.containers.all(c, c.imgae != '')",
                "object.spec.replicas > '1'",
                "object.spec.selector.matchLabels.app == 1 && object.metadata.name == 2",
                "object.spec.template.spec.containers.all(c, has(c.resources.limits))",
            ],
        ),
        policy(
            "several-kinds",
            &[
                "apps/v1/deployments",
                "/v1/pods",
                "apps/v1/statefulsets",
                "/v1/events",
                "/v1/nodes/status",
                "unknown/v1/things",
            ],
            None,
            vec![],
            &["object.spec.replicas > 1", "object.metadata.name == 1", "object.foo == 1"],
        ),
        policy(
            "custom",
            widgets,
            None,
            vec![],
            &[
                "object.spec.count > 1 && object.spec.name != ''",
                "object.spec.count == 'x' || object.spec.missing",
                "object.spec.port == 1 || object.spec.port == 'x'",
                "object.spec.free.anything == 1",
                "object.spec.template.metadata.name == 1",
                "object.spec.template.metadata.labels.x == 'x'",
                "object.spec.when > object.metadata.creationTimestamp && object.spec.data == b'x'",
                "object.spec.dashed__dash__name == 1",
                "object.spec.?labels[?'a'].orValue(1) > 0",
                "object.spec.names.sortBy(n, n.size())[0] == 1",
                "object.metadata.labels.exists(k, v, v == 1)",
                "'%d'.format([object.spec.name])",
                "authorizer.requestResource.check('get').allowed()",
                "namespaceObject.metadata.name == object.spec.count",
            ],
        ),
        policy(
            "params",
            widgets,
            Some(("v1", "ConfigMap")),
            variables_of(&[
                ("limit", "int(params.data['limit'])"),
                ("names", "object.spec.names"),
                ("bad", "object.spec.bad"),
            ]),
            &[
                "object.spec.count < variables.limit",
                "object.spec.name < variables.limit",
                "variables.names.all(n, n == 1)",
                "variables.bad.x == 1",
                "params.data.limit == 1",
                "params.spec == 1",
            ],
        ),
        policy("wildcard", &["*/*/*"], None, vec![], &["object.foo.bar == 1"]),
        policy("unknown", &["nothing.example.com/v1/things"], None, vec![], &["object.foo.bar == 1"]),
    ]
}

/// Returns a policy: name, resources as group/version/plural, parameters as version and kind, variables, expressions.
pub fn policy(
    name: &str,
    resources: &[&str],
    params: Option<(&str, &str)>,
    variables: Vec<Value>,
    checks: &[&str],
) -> Value {
    let rules = resources.iter().map(|resource| {
        let mut parts = resource.splitn(3, '/');
        let mut next = || [parts.next().unwrap_or_default()];
        json!({"apiGroups": next(), "apiVersions": next(), "resources": next(), "operations": ["CREATE"]})
    });
    let is_message = |check: &str| check.starts_with("'%d'");
    let validations = checks.iter().map(|check| {
        if is_message(check) {
            // Expressions must be of type bool, message expressions of type string.
            json!({"expression": "true", "messageExpression": check})
        } else {
            json!({"expression": check, "message": "no"})
        }
    });
    let mut spec = json!({
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": rules.collect::<Vec<_>>()},
        "variables": variables,
        "validations": validations.collect::<Vec<_>>(),
    });
    if let Some((version, kind)) = params {
        spec["paramKind"] = json!({"apiVersion": version, "kind": kind});
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// Waits until all policies are checked in this generation; returns the type checking of each, with the field manager
/// that wrote it.
async fn until_checked(cluster: &ControlPlane, generation: i64) -> Result<BTreeMap<String, Value>> {
    eventually(format!("all policies are checked in generation {generation}"), || async {
        let listed: Value = serde_json::from_str(&cluster.kubectl(&[
            "get",
            "validatingadmissionpolicies",
            "-o",
            "json",
            "--show-managed-fields",
        ])?)?;
        let mut found = BTreeMap::new();
        for policy in listed["items"].as_array().context("no list")? {
            let name = policy["metadata"]["name"].as_str().context("a policy without a name")?;
            ensure!(policy["metadata"]["generation"] == generation, "{name}: {}", policy["metadata"]["generation"]);
            ensure!(policy["status"]["observedGeneration"] == generation, "{name}: {}", policy["status"]);
            let fields = policy["metadata"]["managedFields"].as_array().context("no managed fields")?;
            let owners = fields.iter().filter(|fields| fields["subresource"] == "status");
            let owners: Vec<Value> =
                owners.map(|fields| json!([fields["manager"], fields["operation"], fields["fieldsV1"]])).collect();
            let checking = without_numbers(&policy["status"]["typeChecking"].to_string());
            let checking: Value = serde_json::from_str(&checking)?;
            found.insert(name.to_owned(), json!({"checking": checking, "owners": owners}));
        }
        ensure!(found.len() == policies().len(), "{} policies", found.len());
        Ok(found)
    })
    .await
}

/// Removes the number that upstream appends to a kind to make the name of its type unique.
pub fn without_numbers(text: &str) -> String {
    let mut out = text.to_owned();
    for kind in KINDS {
        let parts: Vec<&str> = text_parts(&out, kind);
        out = parts.join(kind);
    }
    out
}

/// Splits a text at a word and the digits that follow it.
fn text_parts<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let mut parts = text.split(word);
    let first = parts.next().unwrap_or_default();
    std::iter::once(first)
        .chain(parts.map(|part| part.trim_start_matches(|digit: char| digit.is_ascii_digit())))
        .collect()
}

/// Creates a separate control plane: managers of other tests would check the policies too.
pub async fn separate_space() -> Result<Space> {
    let bed = Bed::without_accounts(Options { kwok: false, scheduler: false, ..Options::default() }).await?;
    Arc::new(bed).space("types").await
}

/// Waits until the API server has published schemas of example.com/v1 with these texts.
pub async fn until_schemas_contain(cluster: &ControlPlane, texts: &[&str]) -> Result<()> {
    eventually("the API server has the schemas", || async {
        let document = cluster.kubectl(&["get", "--raw", "/openapi/v3/apis/example.com/v1"])?;
        ensure!(texts.iter().all(|text| document.contains(text)), "a schema is missing");
        Ok(())
    })
    .await
}

/// Checks all policies with upstream's manager, changes each of them, and checks them again with ours. Returns the
/// results of `until_checked` for the policies' generation under upstream's manager and under ours.
pub async fn checked_by_both<R, F: Future<Output = Result<R>>>(
    space: &Space,
    upstreams_flags: &[&str],
    until_checked: impl Fn(i64) -> F,
) -> Result<(R, R)> {
    let cluster = &space.bed.cluster;
    start_upstream(cluster, CONTROLLER, upstreams_flags)?;
    let upstream = until_checked(1).await.context("upstream")?;
    cluster.kill(UPSTREAM)?;
    let api: Api<ValidatingAdmissionPolicy> = Api::all(space.bed.client.clone());
    let other = Patch::Merge(json!({"spec": {"failurePolicy": "Fail"}}));
    for policy in api.list(&ListParams::default()).await? {
        api.patch(&policy.name_any(), &PatchParams::default(), &other).await?;
    }
    let flags = format!("--controllers={CONTROLLER}");
    let manager = Manager::start_cluster_wide(space, &Faults::default(), &[&flags]).await?;
    let ours = until_checked(2).await.context("ours")?;
    manager.stop().await?;
    Ok((upstream, ours))
}

/// Our manager writes the same statuses as upstream's, with the same field owner.
pub async fn warnings_equal_those_of_upstream(_: Space) -> Result<()> {
    let space = separate_space().await?;
    let cluster = &space.bed.cluster;
    space.define(widgets()).await?;
    until_schemas_contain(cluster, &["dashed-name"]).await?;
    for policy in policies() {
        cluster.kubectl_with_input(&["create", "-f", "-"], &policy.to_string())?;
    }
    let (upstream, ours) = checked_by_both(&space, &[], |generation| until_checked(cluster, generation)).await?;
    for (name, expected) in &upstream {
        let found = &ours[name];
        ensure!(found == expected, "{name}\nupstream: {expected:#}\nours: {found:#}");
    }
    let warnings = |name: &str| upstream[name]["checking"]["expressionWarnings"].as_array().map_or(0, Vec::len);
    ensure!(warnings("right") == 0 && warnings("wildcard") == 0 && warnings("unknown") == 0, "{upstream:?}");
    ensure!(warnings("wrong-fields") == 5 && warnings("several-kinds") == 3 && warnings("custom") > 5, "{upstream:?}");
    Ok(())
}

/// The status is correct after a failure of any write, and after a crash.
pub async fn each_failed_write_is_repeated(_: Space) -> Result<()> {
    let space = separate_space().await?;
    let crashes = [("crash after", Effect::CrashAfter), ("crash before the response", Effect::CrashBeforeResponse)];
    for (number, (way, effect)) in write_failures().into_iter().chain(crashes).enumerate() {
        write_fails_once(&space, &format!("types-{number}"), effect).await.context(way)?;
    }
    Ok(())
}

async fn write_fails_once(space: &Space, name: &str, effect: Effect) -> Result<()> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(space.bed.client.clone());
    let object = policy(name, &["apps/v1/deployments"], None, vec![], &["object.spec.replica > 1"]);
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    let is_crash = matches!(effect, Effect::CrashAfter | Effect::CrashBeforeResponse);
    let faults = Faults::script([Rule::on(Verb::Patch, "validatingadmissionpolicies/status", effect)]);
    let flags = format!("--controllers={CONTROLLER}");
    let mut manager = Manager::start_cluster_wide(space, &faults, &[&flags]).await?;
    if is_crash {
        faults.crashes().await;
        manager.crash().await;
        manager = Manager::start_cluster_wide(space, &Faults::default(), &[&flags]).await?;
    }
    let warnings = warnings_of(&api, name, 1).await?;
    ensure!(warnings.len() == 1 && warnings[0].contains("undefined field 'replica'"), "{warnings:?}");
    ensure!(faults.unmet() == 0, "the write did not fail");
    let right = json!({"spec": {"validations": [{"expression": "object.spec.replicas > 1"}]}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(right)).await?;
    ensure!(warnings_of(&api, name, 2).await?.is_empty(), "warnings remain after the correction");
    manager.stop().await?;
    api.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until a generation of a policy is checked, and returns the warnings.
async fn warnings_of(api: &Api<ValidatingAdmissionPolicy>, name: &str, generation: i64) -> Result<Vec<String>> {
    eventually(format!("generation {generation} of {name} is checked"), || async {
        let status = api.get(name).await?.status.unwrap_or_default();
        ensure!(status.observed_generation == Some(generation), "{status:?}");
        let warnings = status.type_checking.and_then(|checking| checking.expression_warnings).unwrap_or_default();
        Ok(warnings.into_iter().map(|warning| warning.warning).collect())
    })
    .await
}
