//! The resources of a cluster, recorded while it runs and compared with the machine after it has ended.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{DATA, branch, device, folder, is_claimed};
use crate::cgroups::Layout;

/// Maximum time until the keeper of a killed owner has removed everything: more than the time that it waits for processes
/// to leave their cgroups.
const DEADLINE: Duration = Duration::from_secs(90);

/// Everything of a running cluster that must not outlive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    index: u8,
    /// The folder with data and logs, unless it is to be kept.
    data: Option<PathBuf>,
    /// The names of network namespaces, such as `net:[4026531840]`.
    networks: BTreeSet<String>,
}

impl Footprint {
    /// Records the footprint of a running cluster: its data, and the network namespaces of the router and of all
    /// processes that work in the data folder.
    ///
    /// # Errors
    /// When the router's namespace cannot be read.
    pub(crate) fn record(index: u8, data: &Path, keeps_data: bool, router: &Path) -> Result<Self> {
        let router = fs::read_link(router).context("read the router's network namespace")?;
        let mut networks = networks(data);
        networks.insert(router.display().to_string());
        Ok(Self { index, data: (!keeps_data).then(|| data.to_owned()), networks })
    }

    /// Records the footprint of a cluster that another process owns. Its control plane works in the data folder, and its
    /// network namespace is the router.
    ///
    /// # Errors
    /// When the cluster does not run, or its data is to be kept.
    pub fn of_running(index: u8) -> Result<Self> {
        let path = folder(index).join(DATA);
        let data = PathBuf::from(fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?);
        let networks = networks(&data);
        ensure!(!networks.is_empty(), "no process of cluster {index} works in {}", data.display());
        Ok(Self { index, data: Some(data), networks })
    }

    /// Returns the remains of the cluster, one line for each; none after it has ended.
    ///
    /// Waits for a moment for processes that were killed.
    pub fn leaks(&self) -> Vec<String> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let leaks = self.current_leaks();
            if leaks.is_empty() || Instant::now() > deadline {
                return leaks;
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn current_leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        for process in processes().iter().filter(|process| self.has(process)) {
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            leaks.push(format!("the process {} ({})", process.display(), command.trim_end()));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        leaks.extend(self.mounts(&mounts).map(|line| format!("the mount {line}")));
        leaks.extend(self.data.iter().filter(|data| data.exists()).map(|data| data.display().to_string()));
        // Another cluster may have the index now.
        if !is_claimed(self.index) {
            leaks.extend(leaks_of_index(self.index));
        }
        leaks
    }

    /// Returns true if a process of the machine was one of the cluster's.
    fn has(&self, process: &Path) -> bool {
        network(process).is_some_and(|network| self.networks.contains(&network))
            || self.data.as_ref().is_some_and(|data| works_in(process, data))
    }

    /// Returns the lines of `/proc/self/mountinfo` with one of the cluster's folders or namespaces.
    fn mounts<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let own: Vec<String> =
            self.data.iter().map(|data| data.display().to_string()).chain(self.networks.iter().cloned()).collect();
        text.lines().filter(move |line| own.iter().any(|name| line.contains(name.as_str())))
    }
}

/// Returns the network namespaces of processes that work in a folder, without the one of this process.
fn networks(data: &Path) -> BTreeSet<String> {
    let own = network(Path::new("/proc/self"));
    let processes = processes().into_iter().filter(|process| works_in(process, data));
    processes.filter_map(|process| network(&process)).filter(|network| Some(network) != own.as_ref()).collect()
}

fn leaks_of_index(index: u8) -> Vec<String> {
    let mut leaks = Vec::new();
    match Layout::of_machine() {
        Ok(layout) => leaks.extend(layout.branches(&branch(index)).iter().map(|path| path.display().to_string())),
        Err(error) => leaks.push(format!("cgroups, perhaps: {error:#}")),
    }
    let device = Path::new("/sys/class/net").join(device(index));
    let paths = [folder(index), device].into_iter().filter(|path| path.exists());
    leaks.extend(paths.map(|path| path.display().to_string()));
    leaks
}

/// Returns the folders of this machine's processes in `/proc`.
fn processes() -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered =
        entries.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
    numbered.map(|entry| entry.path()).collect()
}

/// Returns true if a process works in a folder, even if that was removed.
fn works_in(process: &Path, folder: &Path) -> bool {
    fs::read_link(process.join("cwd")).is_ok_and(|place| {
        // The kernel appends a word to the path of a folder that was removed.
        let place = place.to_string_lossy().into_owned();
        Path::new(place.trim_end_matches(" (deleted)")).starts_with(folder)
    })
}

fn network(process: &Path) -> Option<String> {
    fs::read_link(process.join("ns/net")).ok().map(|link| link.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Returns a footprint with an index that no cluster has.
    fn footprint(data: &Path) -> Footprint {
        Footprint { index: 255, data: Some(data.to_owned()), networks: BTreeSet::from(["net:[1]".to_owned()]) }
    }

    #[test]
    fn leaks_are_processes_mounts_and_the_data_folder() {
        let data = tempfile::tempdir().unwrap();
        let footprint = footprint(data.path());
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read line"]).current_dir(data.path());
        let mut reader = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // The first byte shows that the process has its command line. The shell then runs no other program: the command
        // line is empty for a moment while one replaces it.
        std::io::Read::read_exact(reader.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let leaks = footprint.current_leaks();
        assert!(leaks.iter().any(|leak| leak.starts_with("the process") && leak.contains("read line")), "{leaks:?}");
        assert!(leaks.contains(&data.path().display().to_string()), "{leaks:?}");

        let path = data.path().to_owned();
        drop(data);
        assert!(!path.exists());
        assert_eq!(footprint.current_leaks().len(), 1, "the process works in a folder that was removed");
        reader.kill().unwrap();
        reader.wait().unwrap();
        assert!(footprint.leaks().is_empty());

        let mounts = format!(
            "24 1 0:22 / /proc rw\n25 1 0:4 net:[1] /run/netns/x rw - nsfs nsfs rw\n26 1 0:9 / {} rw",
            path.display()
        );
        assert_eq!(footprint.mounts(&mounts).count(), 2);
    }

    #[test]
    fn kept_data_folder_is_not_a_leak() {
        let data = tempfile::tempdir().unwrap();
        let kept = Footprint { data: None, ..footprint(data.path()) };
        assert!(kept.current_leaks().is_empty(), "{:?}", kept.current_leaks());
    }
}
