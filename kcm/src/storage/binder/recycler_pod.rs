//! Pods that wipe volumes: their templates, and the fields that depend on the volume.
//!
//! Upstream: pkg/volume, NewPersistentVolumeRecyclerPodTemplate; and the Recycle functions of pkg/volume/hostpath and
//! nfs.

use anyhow::Context as _;
use component::flags::Values;
use kinds::resource_list::Amount;
use serde_json::{Value, json};

use super::decide_volume::RecyclePlugin;

/// The image of the built-in template.
const IMAGE: &str = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6";
/// Shell command that empties the volume. The command fails if there is no volume, or if any file remains.
const SCRIPT: &str = r#"test -e /scrub && find /scrub -mindepth 1 -delete && test -z "$(ls -A /scrub)""#;
const NAME_PREFIX: &str = "recycler-for-";
const GIB: i64 = 1 << 30;

/// Template and deadline of the pods that wipe the volumes of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Recycler {
    template: Value,
    minimum_seconds: i64,
    seconds_per_gib: i64,
}

/// The recyclers of all plugins.
#[derive(Debug, Clone, PartialEq)]
pub struct Recyclers {
    host_path: Recycler,
    nfs: Recycler,
}

impl Recyclers {
    /// Reads the flags and the template files that they name.
    ///
    /// # Errors
    /// When a file cannot be read or is not a pod with a volume.
    pub fn read(values: &Values) -> anyhow::Result<Self> {
        let recycler = |file: &str, minimum: &str, increment: &str| {
            anyhow::Ok(Recycler {
                template: template(file, values.get_str(file))?,
                minimum_seconds: values.get_i32(minimum).into(),
                seconds_per_gib: values.get_i32(increment).into(),
            })
        };
        Ok(Self {
            host_path: recycler(
                "pv-recycler-pod-template-filepath-hostpath",
                "pv-recycler-minimum-timeout-hostpath",
                "pv-recycler-timeout-increment-hostpath",
            )?,
            nfs: recycler(
                "pv-recycler-pod-template-filepath-nfs",
                "pv-recycler-minimum-timeout-nfs",
                "pv-recycler-increment-timeout-nfs",
            )?,
        })
    }

    /// Returns the recycler of a plugin.
    pub fn of(&self, plugin: RecyclePlugin) -> &Recycler {
        match plugin {
            RecyclePlugin::HostPath => &self.host_path,
            RecyclePlugin::Nfs => &self.nfs,
        }
    }
}

fn template(flag: &str, path: &str) -> anyhow::Result<Value> {
    if path.is_empty() {
        return Ok(built_in());
    }
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("--{flag}={path}: cannot be read; correct the path or the file's permissions"))?;
    parse(&text).with_context(|| format!("--{flag}={path}"))
}

/// Reads a pod, as YAML or JSON.
fn parse(text: &str) -> anyhow::Result<Value> {
    let mut pod: Value = serde_saphyr::from_str(text).context("is neither YAML nor JSON; give a file with a Pod")?;
    let is_pod = pod["kind"] == "Pod" && pod["apiVersion"] == "v1";
    anyhow::ensure!(is_pod, "is not a Pod of apiVersion v1; give a file with a Pod");
    let has_volume = pod["spec"]["volumes"].as_array().is_some_and(|volumes| !volumes.is_empty());
    anyhow::ensure!(has_volume, "pod specification does not contain any volume(s); add one, its source is replaced");
    // Upstream sends requests without a namespace, which fail.
    if pod["metadata"]["namespace"].as_str().is_none_or(str::is_empty) {
        pod["metadata"]["namespace"] = "default".into();
    }
    Ok(pod)
}

fn built_in() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{"name": "vol"}],
            "containers": [{
                "name": "pv-recycler", "image": IMAGE, "command": ["/bin/sh"], "args": ["-c", SCRIPT],
                "volumeMounts": [{"name": "vol", "mountPath": "/scrub"}],
            }],
        },
    })
}

/// Returns the name of the pod that wipes a volume.
pub fn pod_name(volume: &str) -> String {
    format!("{NAME_PREFIX}{volume}")
}

/// Returns the volume that a pod with this name wipes.
pub fn volume_of(pod: &str) -> Option<&str> {
    pod.strip_prefix(NAME_PREFIX)
}

impl Recycler {
    /// Returns the namespace of the pods.
    pub fn namespace(&self) -> &str {
        self.template["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    /// Returns the pod that wipes a volume with this `source`, such as `{"hostPath": {"path": ...}}`.
    ///
    /// Each volume gets a copy of the template: a template that is changed in place could wipe another volume.
    pub fn pod(&self, volume: &str, source: &Value, capacity: Option<Amount>) -> Value {
        let mut pod = self.template.clone();
        let name = pod["spec"]["volumes"][0]["name"].take();
        let mut wiped = json!({ "name": name });
        if let (Some(wiped), Some(source)) = (wiped.as_object_mut(), source.as_object()) {
            wiped.extend(source.clone());
        }
        pod["spec"]["volumes"][0] = wiped;
        pod["spec"]["activeDeadlineSeconds"] = self.deadline_seconds(capacity).into();
        if let Some(metadata) = pod["metadata"].as_object_mut() {
            metadata.remove("generateName");
        }
        pod["metadata"]["name"] = pod_name(volume).into();
        pod
    }

    fn deadline_seconds(&self, capacity: Option<Amount>) -> i64 {
        let bytes = capacity.map_or(0, Amount::whole);
        (bytes / GIB).saturating_mul(self.seconds_per_gib).max(self.minimum_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recycler(template: Value) -> Recycler {
        Recycler { template, minimum_seconds: 60, seconds_per_gib: 30 }
    }

    #[test]
    fn pod_wipes_its_volume_and_keeps_the_rest_of_the_template() {
        let template = parse(
            "apiVersion: v1\nkind: Pod\nmetadata: {namespace: ops, generateName: wipe-}\nspec:\n  \
             volumes: [{name: data, emptyDir: {}}, {name: other, emptyDir: {}}]\n  containers: [{name: wipe}]\n",
        );
        let recycler = recycler(template.expect("a pod"));
        let pod = recycler.pod("pv-1", &json!({"hostPath": {"path": "/tmp/a"}}), Amount::parse("1Gi"));
        assert_eq!(recycler.namespace(), "ops");
        assert_eq!(pod["metadata"], json!({"namespace": "ops", "name": "recycler-for-pv-1"}));
        assert_eq!(pod["spec"]["volumes"][0], json!({"name": "data", "hostPath": {"path": "/tmp/a"}}));
        assert_eq!(pod["spec"]["volumes"][1], json!({"name": "other", "emptyDir": {}}));
        let other = recycler.pod("pv-2", &json!({"nfs": {"server": "nas", "path": "/b"}}), None);
        assert_eq!(other["spec"]["volumes"][0], json!({"name": "data", "nfs": {"server": "nas", "path": "/b"}}));
        assert_eq!(volume_of("recycler-for-pv-1"), Some("pv-1"));
    }

    #[test]
    fn deadline_grows_with_the_capacity() {
        let recycler = recycler(built_in());
        for (capacity, seconds) in [("1Gi", 60), ("3Gi", 90), ("3500Mi", 90), ("100", 60), ("1Ti", 30_720)] {
            assert_eq!(recycler.deadline_seconds(Amount::parse(capacity)), seconds, "{capacity}");
        }
        assert!(recycler.deadline_seconds(Amount::parse("100E")) > 60, "a huge size does not overflow");
        assert_eq!(recycler.deadline_seconds(None), 60);
    }

    #[test]
    fn template_without_a_volume_is_refused() {
        for text in
            ["", "kind: Pod", "apiVersion: v1\nkind: Pod\nspec: {volumes: []}", "apiVersion: v1\nkind: Service", "{"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
