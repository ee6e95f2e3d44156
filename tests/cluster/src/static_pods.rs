//! Static pods of managers, run as a kubelet does: each file of a folder is a process, which is restarted when the file
//! changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use control_plane::ControlPlane;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::programs::{KCM, Process, command};

/// The images that a manifest may name: upstream's manager and ours.
const UPSTREAM: &str = "registry.k8s.io/kube-controller-manager:";
const OURS: &str = "localhost/kcm:";

/// A kubelet of one node, limited to static pods of managers.
pub struct StaticPods<'a> {
    cluster: &'a ControlPlane,
    folder: PathBuf,
    /// The text of each manifest and its process, by file name.
    running: BTreeMap<String, (String, Process)>,
    started: usize,
}

impl<'a> StaticPods<'a> {
    /// Creates the folder `manifests` in the control plane's folder, and a kubelet that reads it.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(cluster: &'a ControlPlane) -> Result<Self> {
        let folder = cluster.folder().join("manifests");
        fs::create_dir(&folder)?;
        Ok(Self { cluster, folder, running: BTreeMap::new(), started: 0 })
    }

    /// Returns the folder of manifests.
    pub fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// Stops the processes of changed and deleted manifests, starts those of changed and new ones, and waits for their
    /// startup probes.
    ///
    /// # Errors
    /// If a manifest cannot be read, or its process does not end or does not become healthy.
    pub async fn sync(&mut self) -> Result<()> {
        let mut wanted = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            wanted.insert(entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?);
        }
        let old: Vec<String> = self.running.keys().cloned().collect();
        for file in old {
            if wanted.get(&file) != self.running.get(&file).map(|(text, _)| text) {
                let (_, process) = self.running.remove(&file).context("no process runs for the manifest")?;
                process.stop(self.cluster).await?;
            }
        }
        for (file, text) in wanted {
            if !self.running.contains_key(&file) {
                let process = self.start(&text).await.with_context(|| format!("start {file}"))?;
                self.running.insert(file, (text, process));
            }
        }
        Ok(())
    }

    /// Returns the process of a manifest.
    ///
    /// # Errors
    /// If none runs.
    pub fn process(&self, file: &str) -> Result<&Process> {
        self.running.get(file).map(|(_, process)| process).with_context(|| format!("no process of {file}"))
    }

    async fn start(&mut self, manifest: &str) -> Result<Process> {
        let pod: Pod = serde_saphyr::from_str(manifest).context("read the manifest")?;
        let spec = pod.spec.context("a pod without a spec")?;
        let [container] = spec.containers.as_slice() else {
            bail!("{} containers instead of one", spec.containers.len())
        };
        let program = self.program(container)?;
        let arguments = container.command.as_deref().unwrap_or_default();
        ensure!(arguments.first().map(String::as_str) == Some(KCM), "the command is not {KCM}: {arguments:?}");
        self.started += 1;
        let name = format!("{}-{}", pod.metadata.name.context("a pod without a name")?, self.started);
        let process = Process::start(self.cluster, &name, &program, &arguments[1..])?;
        let probe = container.startup_probe.as_ref().and_then(|probe| probe.http_get.as_ref()?.path.clone());
        process.until_healthy(self.cluster, &probe.context("a container without a startup probe")?).await?;
        Ok(process)
    }

    /// Returns the program of a container's image. Fails if kcm does not run as root: its image has an unprivileged
    /// user, which cannot read kubeadm's files.
    fn program(&self, container: &Container) -> Result<PathBuf> {
        let image = container.image.as_deref().unwrap_or_default();
        if image.starts_with(UPSTREAM) {
            return self.cluster.assets().upstream_manager();
        }
        ensure!(image.starts_with(OURS), "the image {image:?} is neither upstream's nor ours");
        let user = container.security_context.as_ref().and_then(|context| context.run_as_user);
        ensure!(user == Some(0), "the user {user:?} cannot read files that only root may read");
        command(self.cluster, KCM)
    }
}
