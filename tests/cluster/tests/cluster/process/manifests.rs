//! The charts and manifests of `deploy`: Helm accepts the charts, the API server the objects, the binaries their flags.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::{Faults, Manager, Space, eventually};
use control_plane::assets::Program;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Container;
use kube::Api;
use serde_json::Value;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
const KUBEADM: &str = include_str!("../../../data/kube-controller-manager.yaml");
const CLOUD_RIGHTS: &str = include_str!("../../../../../deploy/ccm-rbac.yaml");
const TARGETS_RIGHTS: &str = include_str!("../../../../../deploy/ccm-targets-rbac.yaml");

/// Each chart without values, then with each of its files of values.
const CHARTS: [(&str, &[&str]); 5] = [
    ("kcm", &[]),
    ("kcm", &["values-example.yaml"]),
    ("ccm", &[]),
    ("ccm", &["values-self-managed.yaml"]),
    ("ccm", &["values-eks.yaml", "../../../tests/cluster/data/values-eks-cluster.yaml"]),
];

fn chart(name: &str) -> String {
    format!("{DEPLOY}/charts/{name}")
}

/// Runs a program in the folder of manifests; returns its output.
fn output_of(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).current_dir(DEPLOY).output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} {arguments:?}: {complaint}", program.display());
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the documents of a YAML stream.
fn documents(text: &str) -> Result<Vec<Value>> {
    let parts = text.split("\n---\n").map(|part| part.trim_start_matches("---\n"));
    let parts = parts.filter(|part| part.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')));
    parts.map(|part| serde_saphyr::from_str(part).with_context(|| format!("read {part}"))).collect()
}

/// Fails unless the binary accepts the command line of a manager's container.
fn check_command_line(container: &Container) -> Result<()> {
    let [program, flags @ ..] = container.command.as_deref().unwrap_or_default() else { bail!("no command") };
    match program.as_str() {
        "kube-controller-manager" => drop(kcm::flags::parse(flags.iter().cloned())?),
        "cloud-controller-manager" => drop(ccm::flags::parse(flags.iter().cloned())?),
        other => bail!("{other:?} is in no image"),
    }
    Ok(())
}

/// Returns the rules of all roles, cluster-wide ones first.
fn rules(documents: &[Value]) -> Vec<(&str, &Value)> {
    let mut rules: Vec<_> =
        documents.iter().filter_map(|document| Some((document["kind"].as_str()?, document.get("rules")?))).collect();
    rules.sort_by_key(|(kind, _)| *kind);
    rules
}

/// Lints and renders each chart with each file of values in [`CHARTS`], and applies the objects to a namespace, where
/// their pods are created.
pub async fn charts_are_accepted_by_helm_and_the_api_server(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let charts = space.bed.cluster.assets().charts()?;
    for (number, (name, values)) in CHARTS.into_iter().enumerate() {
        let folder = chart(name);
        let values: Vec<String> = values.iter().map(|file| format!("{folder}/{file}")).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let remarks = output_of(&charts, &[&["lint", &*folder], &*values].concat())?;
        ensure!(remarks.lines().all(|remark| remark.contains("icon is recommended")), "{name} {values:?}: {remarks}");
        // The release contains the namespace's name: cluster-wide objects of other tests must have other names.
        let release = format!("r{number}-{}", space.namespace);
        let text = output_of(&charts, &[&["template", &*folder, &*release, &*space.namespace], &*values].concat())?;
        let documents = documents(&text)?;
        let manifests = text.clone();
        let bed = space.bed.clone();
        let applied = tokio::task::spawn_blocking(move || {
            bed.cluster.kubectl_with_input(&["apply", "--validate=strict", "--filename=-"], &manifests)
        });
        applied.await?.with_context(|| format!("apply {name} with {values:?}"))?;

        let of_deployment = documents.iter().find(|document| document["kind"] == "Deployment");
        let deployment: Deployment = serde_json::from_value(of_deployment.context("no Deployment")?.clone())?;
        let full_name = deployment.metadata.name.context("a Deployment without a name")?;
        let pod = deployment.spec.template.spec.context("a Deployment without pods")?;
        let [container] = pod.containers.as_slice() else { bail!("{} containers", pod.containers.len()) };
        check_command_line(container).with_context(|| format!("{name} with {values:?}"))?;
        if name == "ccm" {
            let (ours, theirs) = (rules(&documents), self::documents(CLOUD_RIGHTS)?);
            let expected = serde_json::to_string(&rules(&theirs))?;
            // With the values for EKS, the Lease is called "ccm".
            let expected = if values.iter().any(|file| file.ends_with("eks.yaml")) {
                expected.replace("\"cloud-controller-manager\"", "\"ccm\"")
            } else {
                expected
            };
            ensure!(
                serde_json::to_string(&ours)? == expected,
                "the permissions differ from deploy/ccm-rbac.yaml: {ours:?}"
            );
        }
        let deployments: Api<Deployment> = space.api();
        eventually(format!("{full_name} has its pods"), || async {
            let status = deployments.get(&full_name).await?.status.unwrap_or_default();
            // Fake kubelets run all scheduled pods, but no node has the label of the control plane.
            let schedulable = pod.node_selector.as_ref().is_none_or(|labels| labels.is_empty());
            let seen = if schedulable { status.available_replicas } else { status.replicas };
            ensure!(seen >= Some(1), "{status:?}");
            Ok(())
        })
        .await?;
    }
    readiness_gates_have_their_permissions(&charts, &space)?;
    eks_values_need_a_cluster_and_accept_one_class(&charts)?;
    unknown_values_are_refused(&charts, &space)
}

/// Checks that a chart refuses an unknown value.
fn unknown_values_are_refused(charts: &Path, space: &Space) -> Result<()> {
    let wrong = std::env::temp_dir().join(format!("{}.yaml", space.namespace));
    std::fs::write(&wrong, "replica: 3\n")?;
    let refused = output_of(charts, &["template", &chart("kcm"), "r", "n", &wrong.display().to_string()]);
    std::fs::remove_file(&wrong)?;
    let refused = format!("{:#}", refused.err().context("an unknown value is accepted")?);
    ensure!(refused.contains("replica"), "{refused}");
    Ok(())
}

/// Checks that the values for EKS select no Service of another controller, and that the installation fails without a
/// description of the cluster.
fn eks_values_need_a_cluster_and_accept_one_class(charts: &Path) -> Result<()> {
    let folder = chart("ccm");
    let (eks, cluster) = (format!("{folder}/values-eks.yaml"), format!("{folder}/{}", CHARTS[4].1[1]));
    let refused = output_of(charts, &["template", &folder, "r", "n", &eks]);
    let refused = format!("{:#}", refused.err().context("the chart is rendered without a description of the cluster")?);
    ensure!(refused.contains("set Region in the section [Global] of cloudConfig"), "{refused}");
    let text = output_of(charts, &["template", &folder, "r", "n", &eks, &cluster])?;
    for flag in
        ["--load-balancer-class=ccm/nlb", "--load-balancers-without-class=false", "--controllers=service-lb-controller"]
    {
        ensure!(text.contains(flag), "{flag} is missing: {text}");
    }
    Ok(())
}

/// Checks the additional permissions if the values enable readiness gates.
fn readiness_gates_have_their_permissions(charts: &Path, space: &Space) -> Result<()> {
    let values = std::env::temp_dir().join(format!("{}-gates.yaml", space.namespace));
    std::fs::write(&values, "loadBalancers: {readinessGates: true}\n")?;
    let text = output_of(charts, &["template", &chart("ccm"), "r", &space.namespace, &values.display().to_string()]);
    std::fs::remove_file(&values)?;
    let documents = documents(&text?)?;
    let wanted = [self::documents(CLOUD_RIGHTS)?, self::documents(TARGETS_RIGHTS)?].concat();
    let sorted = |documents: &[Value]| {
        let mut rules: Vec<String> =
            rules(documents).into_iter().map(|(kind, rule)| format!("{kind} {rule}")).collect();
        rules.sort();
        rules
    };
    ensure!(sorted(&documents) == sorted(&wanted), "the permissions differ: {:?}", sorted(&documents));
    let of_deployment = documents.into_iter().find(|document| document["kind"] == "Deployment");
    let deployment: Deployment = serde_json::from_value(of_deployment.context("no Deployment")?)?;
    let pod = deployment.spec.template.spec.context("a Deployment without pods")?;
    let flags = pod.containers[0].command.clone().unwrap_or_default();
    ensure!(flags.iter().any(|flag| flag == "--load-balancer-readiness-gates=true"), "{flags:?}");
    check_command_line(&pod.containers[0])
}

/// The patches of kubeadm's manifest, applied as kubeadm applies them, result in pods that the API server accepts.
pub async fn kubeadm_patches_change_only_what_they_should(space: Space) -> Result<()> {
    let folder = space.bed.cluster.folder().join(&space.namespace);
    std::fs::create_dir_all(&folder)?;
    let before = folder.join("kube-controller-manager.yaml");
    std::fs::write(&before, KUBEADM)?;
    let kubectl = space.bed.cluster.assets().path(Program::Kubectl)?.to_owned();
    let patched = |kind: &str, patch: &str| -> Result<Value> {
        let before = before.display().to_string();
        let flags = ["patch", "--local", "--output=json", "--type", kind, "--patch-file", patch, "--filename", &before];
        Ok(serde_json::from_str(&output_of(&kubectl, &flags)?)?)
    };
    let original: Value = serde_saphyr::from_str(KUBEADM)?;
    let whole = patched("strategic", "kubeadm/replace/kube-controller-manager+strategic.yaml")?;
    let shared = patched("json", "kubeadm/share/kube-controller-manager+json.yaml")?;
    let of = |pod: &Value, field: &str| pod["spec"]["containers"][0][field].clone();
    for same in ["command", "livenessProbe", "startupProbe", "volumeMounts", "ports", "name"] {
        ensure!(of(&whole, same) == of(&original, same), "{same} was changed");
    }
    ensure!(of(&whole, "image").as_str().is_some_and(|image| image.starts_with("localhost/kcm:")));
    ensure!(of(&whole, "securityContext")["runAsUser"] == 0, "{whole}");
    ensure!(of(&shared, "image") == of(&original, "image"), "the image of upstream's manager was changed");

    // The controllers that one manager no longer runs are those of the other one.
    let additional: Value = serde_saphyr::from_str(&std::fs::read_to_string(format!("{DEPLOY}/kubeadm/kcm.yaml"))?)?;
    let enabled = |pod: &Value| -> Result<Vec<&'static str>> {
        let container: Container = serde_json::from_value(pod["spec"]["containers"][0].clone())?;
        let flags = container.command.unwrap_or_default().into_iter().skip(1);
        match kcm::flags::parse(flags)? {
            kcm::flags::Invocation::Run(options) => Ok(options.enabled().map(|controller| controller.name).collect()),
            other => bail!("the flags start no manager: {other:?}"),
        }
    };
    let (all, rest, ours) = (enabled(&original)?, enabled(&shared)?, enabled(&additional)?);
    ensure!(!ours.is_empty() && ours.iter().all(|name| !rest.contains(name)), "both run {ours:?}");
    ensure!(ours.len() + rest.len() == all.len(), "{all:?} are not {rest:?} and {ours:?}");
    ensure!(enabled(&whole)? == all);
    for pod in [&whole, &shared, &additional] {
        let text = pod.to_string();
        let bed = space.bed.clone();
        let checks = ["create", "--dry-run=server", "--validate=strict", "--filename=-"];
        tokio::task::spawn_blocking(move || bed.cluster.kubectl_with_input(&checks, &text)).await??;
    }
    for manifest in ["lease-rbac.yaml", "ccm-rbac.yaml", "ccm-targets-rbac.yaml", "monitoring/scrape-rbac.yaml"] {
        let path = format!("{DEPLOY}/{manifest}");
        let bed = space.bed.clone();
        tokio::task::spawn_blocking(move || {
            bed.cluster.kubectl(&["apply", "--dry-run=server", "--validate=strict", "--filename", &path])
        })
        .await?
        .with_context(|| manifest.to_owned())?;
    }
    Ok(())
}
