//! The corpus of expressions that `cel-check` is tested with, type checked by upstream's manager and by ours.
//!
//! The verdicts of the corpus were recorded from upstream's type checker. Here upstream's whole manager confirms them
//! as far as the API server accepts the expressions: it refuses most errors that do not depend on a schema.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Space, eventually};
use control_plane::CustomKind;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::{Api, ListParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

use super::policy_types::{checked_by_both, policy, separate_space, until_schemas_contain, without_numbers};

const VERDICTS: &str = include_str!("../../../../../cel-check/tests/corpus/verdicts.json");
const CUSTOM: &str = include_str!("../../../../../cel-check/tests/corpus/custom/apis__example.com__v1.json");
const KINDS: &str = include_str!("../../../../../cel-check/tests/corpus/kinds.json");

/// Number of expressions of a policy.
const PER_POLICY: usize = 30;
/// Number of concurrent requests.
const CONCURRENT: usize = 16;
/// Minimum number of expressions that the API server has to accept unchanged, and in any form.
const MIN_UNCHANGED: usize = 300;
const MIN_COMPARED: usize = 1_000;
/// Minimum number of warnings.
const MIN_WARNINGS: usize = 300;

/// The common properties of expressions that may be in one policy: resources, parameters, variables.
type Scope = (Vec<String>, String, Value);

#[derive(Clone, Deserialize)]
struct Case {
    resources: Vec<String>,
    #[serde(default)]
    params: String,
    #[serde(default)]
    variables: Value,
    expression: String,
    #[serde(default)]
    warning: String,
}

/// An expression that the API server accepts, and the recorded warning, if it accepts the expression unchanged.
#[derive(Clone)]
struct Accepted {
    expression: String,
    recorded: Option<String>,
}

/// Both managers report the same warnings about all expressions that the API server accepts. If the API server accepts
/// an expression unchanged, they also equal the recorded warning.
///
/// The API server accepts an expression of type bool unchanged; one of another type is compared with null.
pub async fn expressions_of_the_corpus_are_checked_as_in_upstream(_: Space) -> Result<()> {
    let space = separate_space().await?;
    create_kinds(&space).await?;
    let api: Api<ValidatingAdmissionPolicy> = Api::all(space.bed.client.clone());
    let scopes = accepted(&api).await?;
    let policies = create_policies(&api, &scopes).await?;

    let fast = ["--kube-api-qps=200", "--kube-api-burst=200"];
    let (upstream, ours) = checked_by_both(&space, &fast, |generation| until_checked(&api, generation)).await?;
    let differences = differences(&policies, &upstream, &ours);
    let warnings = upstream.values().flatten().filter(|warning| !warning.is_empty()).count();
    println!("{warnings} warnings");
    ensure!(warnings >= MIN_WARNINGS, "upstream reported only {warnings} warnings");
    ensure!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    Ok(())
}

/// Returns the differences between the recorded warnings, upstream's and ours, by policy and expression.
fn differences(
    policies: &BTreeMap<String, Vec<Accepted>>,
    upstream: &BTreeMap<String, Vec<String>>,
    ours: &BTreeMap<String, Vec<String>>,
) -> Vec<String> {
    let mut differences = Vec::new();
    for (name, expressions) in policies {
        for (number, Accepted { expression, recorded }) in expressions.iter().enumerate() {
            let (theirs, found) = (&upstream[name][number], &ours[name][number]);
            if theirs != found {
                differences.push(format!("{expression}\nupstream: {theirs}\nours: {found}"));
            }
            if let Some(recorded) = recorded.as_ref().filter(|recorded| *recorded != theirs) {
                differences.push(format!("{expression}\nupstream: {theirs}\nrecorded: {recorded}"));
            }
        }
    }
    differences
}

/// Creates the custom kinds of the corpus from its OpenAPI document.
async fn create_kinds(space: &Space) -> Result<()> {
    let document: Value = serde_json::from_str(CUSTOM)?;
    for kind in ["Widget", "Setting"] {
        let mut schema = document["components"]["schemas"][format!("com.example.v1.{kind}")].clone();
        let fields = schema.as_object_mut().context("a schema")?;
        fields.remove("x-kubernetes-group-version-kind");
        let properties = fields.get_mut("properties").and_then(Value::as_object_mut).context("properties")?;
        properties.retain(|name, _| !["apiVersion", "kind", "metadata"].contains(&&**name));
        space.define(CustomKind::new("example.com", kind).with_schema(schema)).await?;
    }
    until_schemas_contain(&space.bed.cluster, &["under__score", "prefix"]).await
}

/// Returns the expressions that the API server accepts in a policy, by scope.
async fn accepted(api: &Api<ValidatingAdmissionPolicy>) -> Result<BTreeMap<String, (Scope, Vec<Accepted>)>> {
    let cases: Vec<Case> = serde_json::from_str(VERDICTS)?;
    let is_served = |case: &Case| !case.resources.iter().any(|resource| resource.ends_with("/shapeless"));
    let tried = stream::iter(cases.into_iter().filter(is_served).map(|case| async move {
        let scope = (case.resources.clone(), case.params.clone(), case.variables.clone());
        if is_accepted(api, &scope, &case.expression).await? {
            let recorded = Some(without_numbers(&case.warning));
            return anyhow::Ok(Some((scope, Accepted { expression: case.expression, recorded })));
        }
        let expression = format!("dyn({}) == null", case.expression);
        let is_accepted = is_accepted(api, &scope, &expression).await?;
        Ok(is_accepted.then_some((scope, Accepted { expression, recorded: None })))
    }));
    let tried: Vec<_> = tried.buffered(CONCURRENT).collect().await;
    let mut scopes = BTreeMap::<String, (Scope, Vec<Accepted>)>::new();
    let (mut unchanged, mut compared) = (0, 0);
    for result in tried {
        let Some((scope, expression)) = result? else { continue };
        unchanged += usize::from(expression.recorded.is_some());
        compared += 1;
        let key = format!("{scope:?}");
        scopes.entry(key).or_insert_with(|| (scope, Vec::new())).1.push(expression);
    }
    println!("{compared} expressions are compared, {unchanged} of them unchanged");
    ensure!(unchanged >= MIN_UNCHANGED && compared >= MIN_COMPARED, "{compared} compared, {unchanged} unchanged");
    Ok(scopes)
}

/// Returns true if the API server accepts the expression. It ends the connection if its own checker panics.
async fn is_accepted(api: &Api<ValidatingAdmissionPolicy>, scope: &Scope, expression: &str) -> Result<bool> {
    let object = serde_json::from_value(policy_of("tried", scope, &[expression])?)?;
    match api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 422 => Ok(false),
        Err(kube::Error::Service(error)) => {
            println!("left out, no response: {expression}: {error}");
            Ok(false)
        }
        Err(error) => Err(error).with_context(|| expression.to_owned()),
    }
}

/// Creates the policies; returns the expressions of each.
async fn create_policies(
    api: &Api<ValidatingAdmissionPolicy>,
    scopes: &BTreeMap<String, (Scope, Vec<Accepted>)>,
) -> Result<BTreeMap<String, Vec<Accepted>>> {
    let mut policies = BTreeMap::new();
    for (scope, expressions) in scopes.values() {
        for chunk in expressions.chunks(PER_POLICY) {
            let name = format!("corpus-{}", policies.len());
            let checks: Vec<&str> = chunk.iter().map(|accepted| &*accepted.expression).collect();
            let object = serde_json::from_value(policy_of(&name, scope, &checks)?)?;
            api.create(&PostParams::default(), &object).await.with_context(|| name.clone())?;
            policies.insert(name, chunk.to_vec());
        }
    }
    Ok(policies)
}

fn policy_of(name: &str, (resources, params, variables): &Scope, checks: &[&str]) -> Result<Value> {
    let resources: Vec<&str> = resources.iter().map(String::as_str).collect();
    let kinds: BTreeMap<String, String> = serde_json::from_str(KINDS)?;
    let params = params.rsplit_once('/').map(|(version, _)| (version.trim_start_matches('/'), kinds[params].as_str()));
    let variables = variables.as_array().cloned().unwrap_or_default();
    let mut object = policy(name, &resources, params, variables, &[]);
    let validations = checks.iter().map(|check| json!({"expression": check, "message": "no"}));
    object["spec"]["validations"] = validations.collect();
    Ok(object)
}

/// Waits until all policies are checked in this generation; returns the warning about each of their expressions.
async fn until_checked(api: &Api<ValidatingAdmissionPolicy>, generation: i64) -> Result<BTreeMap<String, Vec<String>>> {
    eventually(format!("all policies are checked in generation {generation}"), || async {
        let mut found = BTreeMap::new();
        for policy in api.list(&ListParams::default()).await?.items {
            let name = policy.metadata.name.context("a policy without a name")?;
            let status = policy.status.unwrap_or_default();
            ensure!(status.observed_generation == Some(generation), "{name}: {:?}", status.observed_generation);
            let validations = policy.spec.and_then(|spec| spec.validations).unwrap_or_default().len();
            let mut warnings = vec![String::new(); validations];
            let checking = status.type_checking.and_then(|checking| checking.expression_warnings).unwrap_or_default();
            for warning in checking {
                let number = warning.field_ref.split(['[', ']']).nth(1).and_then(|number| number.parse::<usize>().ok());
                let number = number.with_context(|| warning.field_ref.clone())?;
                warnings[number] = without_numbers(&warning.warning);
            }
            found.insert(name, warnings);
        }
        Ok(found)
    })
    .await
}
