//! `cargo xtask differential aws`: upstream's AWS manager and ours get the same cluster, and their effects on AWS and
//! the cluster are compared after each step.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use moto::{Element, Service};
use serde_json::json;

use super::bed::{Bed, Manager};
use super::cases::{ANNOTATIONS, Case, SHAPES};
use super::intended::{INTENDED, Side, Verdict, classify};
use super::inventory::inventory;
use super::{OURS, UPSTREAM, ours, upstream};

/// Time without an AWS call after which a manager is done: longer than upstream's delay before its first retry.
const REST: Duration = Duration::from_secs(7);

/// The facts after each step, by the step's name.
type Steps = Vec<(String, BTreeSet<String>)>;

/// Compares both managers. Fails if a difference is not listed, or does not occur although it is listed for every run.
pub fn differential(ccm: Option<&Path>) -> Result<()> {
    let (own, theirs) = (ours(ccm, false)?, upstream()?);
    let runtime = tokio::runtime::Runtime::new().context("start threads")?;
    let (own, theirs) = runtime.block_on(futures::future::try_join(run_scenario(&own), run_scenario(&theirs)))?;
    let found = differences(&own, &theirs);
    let Verdict { unexpected, occurred } = classify(&found);
    for (intended, _) in INTENDED.iter().zip(&occurred).filter(|(_, occurred)| **occurred) {
        println!(
            "differs on purpose: {}: {}; {}: {} ({})",
            UPSTREAM, intended.upstream, OURS, intended.here, intended.why
        );
    }
    let idle = INTENDED.iter().zip(&occurred).filter(|(intended, occurred)| intended.always && !**occurred);
    let idle: Vec<&str> = idle.map(|(intended, _)| intended.here).collect();
    ensure!(unexpected.is_empty(), "{} facts differ that should not:\n{}", unexpected.len(), unexpected.join("\n"));
    ensure!(idle.is_empty(), "listed as different, but the same: {}", idle.join("; "));
    let facts: usize = own.iter().map(|(_, facts)| facts.len()).sum();
    println!("{} steps with {facts} facts: there are no other differences", own.len());
    Ok(())
}

/// Returns the facts that only one of the managers has after the same step.
fn differences(ours: &Steps, upstream: &Steps) -> Vec<(Side, String, String)> {
    let only = |side, step: &str, here: &BTreeSet<String>, there: &BTreeSet<String>| {
        here.difference(there).map(|fact| (side, step.to_owned(), fact.clone())).collect::<Vec<_>>()
    };
    let steps = ours.iter().zip(upstream);
    steps
        .flat_map(|((step, own), (_, theirs))| {
            [only(Side::Ours, step, own, theirs), only(Side::Upstream, step, theirs, own)].concat()
        })
        .collect()
}

async fn run_scenario(manager: &Manager) -> Result<Steps> {
    let mut bed = Bed::start(false).await?;
    let result = steps(&mut bed, manager).await;
    if result.is_err() {
        let log = std::env::temp_dir().join(format!("differential-aws-{}.log", manager.name));
        std::fs::copy(bed.cluster.log(manager.name), &log)?;
        eprintln!("the log of manager {} is kept as {}", manager.name, log.display());
    }
    result.with_context(|| format!("manager {}", manager.name))
}

async fn steps(bed: &mut Bed, manager: &Manager) -> Result<Steps> {
    let mut steps = Steps::new();
    bed.join(3).await?;
    label(bed, 0, "pool", "blue").await?;
    bed.run(manager)?;
    bed.until_initialized().await?;
    record_step(bed, manager.name, &mut steps, "nodes join").await?;
    let ids = ids(bed).await?;
    for (title, cases) in [("shapes", &SHAPES[..]), ("annotations", &ANNOTATIONS)] {
        for case in cases {
            create(bed, case, &ids).await.with_context(|| format!("create {}", case.name))?;
        }
        record_step(bed, manager.name, &mut steps, &format!("{title} created")).await?;
        for case in cases {
            if let Some(change) = case.changed(&ids) {
                let merged = Patch::Merge(&change);
                bed.services().patch(case.name, &PatchParams::default(), &merged).await.context(case.name)?;
            }
        }
        record_step(bed, manager.name, &mut steps, &format!("{title} changed")).await?;
        if title == "shapes" {
            bed.join(1).await?;
            bed.until_initialized().await?;
            record_step(bed, manager.name, &mut steps, "a node joins").await?;
            label(bed, 1, "node.kubernetes.io/exclude-from-external-load-balancers", "").await?;
            record_step(bed, manager.name, &mut steps, "a node is excluded").await?;
            terminate_instance(bed, 2).await?;
            record_step(bed, manager.name, &mut steps, "an instance is terminated").await?;
        }
        bed.services().delete_collection(&DeleteParams::default(), &ListParams::default().labels("!component")).await?;
        bed.until(|| async {
            let left = bed.services().list(&ListParams::default().labels("!component")).await?.items;
            Ok((!left.is_empty()).then(|| format!("{} Services are left", left.len())))
        })
        .await?;
        record_step(bed, manager.name, &mut steps, &format!("{title} deleted")).await?;
    }
    Ok(steps)
}

/// Waits until AWS gets no calls for [`REST`], and records the facts.
async fn record_step(bed: &Bed, name: &str, steps: &mut Steps, step: &str) -> Result<()> {
    eprintln!("{name}: {step}");
    bed.until_quiet(REST).await?;
    steps.push((step.to_owned(), inventory(bed).await?));
    Ok(())
}

async fn create(bed: &Bed, case: &Case, ids: &super::cases::Ids) -> Result<()> {
    let service: KubeService = serde_json::from_value(case.service(ids))?;
    bed.services().create(&PostParams::default(), &service).await?;
    Ok(())
}

async fn label(bed: &Bed, instance: usize, key: &str, value: &str) -> Result<()> {
    let patch = json!({"metadata": {"labels": {key: value}}});
    let name = &bed.instances[instance].name;
    bed.nodes().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

/// Terminates an instance, whose kubelet becomes unresponsive; waits until its Node and its route no longer exist.
async fn terminate_instance(bed: &Bed, instance: usize) -> Result<()> {
    let instance = &bed.instances[instance];
    bed.moto.terminate(&instance.id).await?;
    bed.set_ready_condition(&instance.name, "Unknown").await?;
    bed.until(|| async {
        let there = bed.nodes().get_opt(&instance.name).await?.is_some();
        Ok(there.then(|| format!("the Node {} still exists", instance.name)))
    })
    .await?;
    bed.until(|| async {
        let routes = bed.moto.routes(&bed.moto.network.table).await?;
        let there = routes.iter().any(|(_, id)| *id == instance.id);
        Ok(there.then(|| format!("the route to {} still exists", instance.name)))
    })
    .await?;
    Ok(())
}

/// Returns the IDs that cases refer to: of the subnets, and of addresses and certificates, which are created here.
async fn ids(bed: &Bed) -> Result<Vec<(String, String)>> {
    let aws = &bed.moto.aws;
    let subnets = (1..).zip(&bed.moto.network.subnets).map(|(number, id)| (format!("$subnet{number}"), id.clone()));
    let mut ids: Vec<(String, String)> = subnets.collect();
    for number in 1..=3 {
        let response = aws.call(Service::Ec2, "AllocateAddress", &[("Domain", "vpc")]).await?;
        ids.push((format!("$address{number}"), Element::parse(&response)?.text("allocationId").to_owned()));
    }
    for number in 1..=2 {
        let name = format!("certificate-{number}");
        let parts = [("ServerCertificateName", &*name), ("CertificateBody", "body"), ("PrivateKey", "key")];
        let response = aws.call(Service::Iam, "UploadServerCertificate", &parts).await?;
        let path = "UploadServerCertificateResult/ServerCertificateMetadata/Arn";
        ids.push((format!("$certificate{number}"), Element::parse(&response)?.text(path).to_owned()));
    }
    ensure!(ids.iter().all(|(_, id)| !id.is_empty()), "moto returned empty ids: {ids:?}");
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_is_reported_with_its_step() {
        let steps = |facts: &[&str]| vec![("a".to_owned(), facts.iter().map(|fact| (*fact).to_owned()).collect())];
        let found = differences(&steps(&["x", "y"]), &steps(&["x", "z"]));
        let fact = |side, text: &str| (side, "a".to_owned(), text.to_owned());
        assert_eq!(found, [fact(Side::Ours, "y"), fact(Side::Upstream, "z")]);
        assert!(differences(&steps(&["x"]), &steps(&["x"])).is_empty());
    }
}
