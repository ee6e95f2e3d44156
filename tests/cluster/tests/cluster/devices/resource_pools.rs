//! Requests for the state of device pools on a real API server.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Bed, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use control_plane::Options;
use serde_json::{Value, json};

use crate::gates::flag;
use crate::robustness::invariants::only_declared;

const NAME: &str = "resourcepoolstatusrequest-controller";
const GATE: &str = "--feature-gates=DRAResourcePoolStatus=true";

fn apply(bed: &Bed, object: &Value) -> Result<()> {
    bed.cluster.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &object.to_string())?;
    Ok(())
}

fn slice(number: usize, devices: &[&str], taints: Value) -> Value {
    let devices: Vec<Value> = devices.iter().map(|name| json!({"name": name, "taints": taints})).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("slice-{number}")},
        "spec": {
            "driver": "gpu.example.com", "nodeName": "node-a", "devices": devices,
            "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 2},
        },
    })
}

fn request(name: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest",
        "metadata": {"name": name}, "spec": {"driver": "gpu.example.com"},
    })
}

fn status(bed: &Bed, name: &str) -> Result<Value> {
    let request = bed.cluster.kubectl(&["get", "resourcepoolstatusrequest", name, "-o", "json"])?;
    Ok(serde_json::from_str::<Value>(&request)?["status"].take())
}

/// Creates a claim in the test's namespace to which this device is allocated.
fn create_claim(bed: &Bed, space: &Space, device: &str) -> Result<()> {
    let requests = json!([{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]);
    apply(
        bed,
        &json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": "claim", "namespace": space.namespace}, "spec": {"devices": {"requests": requests}},
        }),
    )?;
    let result = json!({"request": "gpu", "driver": "gpu.example.com", "pool": "pool", "device": device});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}}).to_string();
    let of = ["-n", &space.namespace, "resourceclaim", "claim"];
    bed.cluster.kubectl(&[&["patch"], &of[..], &["--subresource=status", "--type=merge", "-p", &status]].concat())?;
    Ok(())
}

/// Starts a control plane that serves requests for the state of pools.
async fn serving() -> Result<Arc<Bed>> {
    let flags = [GATE, "--runtime-config=resource.k8s.io/v1alpha3=true"].map(str::to_owned).to_vec();
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags: flags, ..Options::default() };
    Ok(Arc::new(Bed::without_accounts(options).await?))
}

async fn until_completed(bed: &Bed, name: &str) -> Result<Value> {
    eventually(format!("{name} has a status"), || async {
        let status = status(bed, name)?;
        ensure!(!status.is_null(), "no status");
        Ok(status)
    })
    .await
}

pub async fn request_is_completed_once_all_slices_are_published(_: Space) -> Result<()> {
    let bed = serving().await?;
    let space = bed.space("pools").await?;
    create_claim(&bed, &space, "a")?;
    apply(&bed, &slice(0, &["a", "b"], json!([])))?;
    let is_status = "resourcepoolstatusrequests/status";
    let faults = Faults::script([Rule::on(Verb::Update, is_status, Effect::LostAfter)]);
    let manager = Manager::start_cluster_wide(&space, &faults, &[GATE, &format!("--controllers={NAME}")]).await?;
    apply(&bed, &request("first"))?;
    during(QUIET, "a request waits for the second slice", || async {
        let status = status(&bed, "first")?;
        ensure!(status.is_null(), "{status}");
        Ok(())
    })
    .await?;
    apply(&bed, &slice(1, &["c", "d"], json!([{"key": "broken", "effect": "NoSchedule"}])))?;
    let completed = until_completed(&bed, "first").await?;
    let expected = json!({
        "driver": "gpu.example.com", "poolName": "pool", "generation": 1, "nodeName": "node-a", "resourceSliceCount": 2,
        "totalDevices": 4, "allocatedDevices": 1, "availableDevices": 1, "unavailableDevices": 2,
    });
    ensure!(completed["pools"] == json!([expected]) && completed["poolCount"] == 1, "{completed}");
    let complete = &completed["conditions"][0];
    let text = |field: &str| complete[field].as_str().context("no text").map(str::to_owned);
    ensure!((text("type")?, text("reason")?) == ("Complete".into(), "CalculationComplete".into()), "{complete}");
    ensure!(text("message")? == "Calculated status for 1 pools", "{complete}");
    // The lost response led to no second write, and later changes lead to none.
    bed.cluster.kubectl(&["delete", "resourceslice", "slice-0"])?;
    during(QUIET, "the status stays", || async {
        ensure!(status(&bed, "first")? == completed);
        Ok(())
    })
    .await?;
    let writes = faults.count(|call| call.verb == Verb::Update && call.resource == is_status);
    ensure!(writes <= 2, "{:?}", faults.requests());
    manager.stop().await?;
    only_declared(&faults, &[NAME])
}

pub async fn taint_rules_count_only_with_their_gate(_: Space) -> Result<()> {
    let bed = serving().await?;
    let space = bed.space("rules").await?;
    apply(&bed, &slice(0, &["a", "b"], json!([])))?;
    apply(&bed, &slice(1, &["c", "d"], json!([])))?;
    apply(
        &bed,
        &json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "broken"},
            "spec": {
                "deviceSelector": {"driver": "gpu.example.com", "device": "a"},
                "taint": {"key": "example.com/broken", "effect": "NoSchedule"},
            },
        }),
    )?;
    for (name, is_on) in [("with-rules", true), ("without-rules", false)] {
        let gate = flag(&["DRADeviceTaintRules"], is_on);
        let flags = [GATE, &gate, &format!("--controllers={NAME}")];
        let manager = Manager::start_cluster_wide(&space, &Faults::default(), &flags).await?;
        apply(&bed, &request(name))?;
        let completed = until_completed(&bed, name).await?;
        let count = |field: &str| completed["pools"][0][field].as_i64().unwrap_or(0);
        let counts = [count("totalDevices"), count("availableDevices"), count("unavailableDevices")];
        ensure!(counts == if is_on { [4, 3, 1] } else { [4, 4, 0] }, "{gate}: {completed}");
        manager.stop().await?;
    }
    Ok(())
}
