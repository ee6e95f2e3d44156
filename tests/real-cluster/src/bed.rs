//! A cluster's claim on this machine: an index, and a folder that lists what to remove if its owner is killed.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

use crate::cgroups::{self, Layout};
use crate::command;

/// The folder of all claims.
const ROOT: &str = "/run/kcm-cluster";

/// The largest number of clusters on one machine.
const CLUSTERS: u8 = 16;

/// Locked by the process that owns the cluster.
const OWNER: &str = "owner";

/// Locked by the process that cleans up after the owner.
const KEEPER: &str = "keeper";

/// The cluster's folder with data and logs.
const DATA: &str = "data";

/// The socket on which a running cluster takes commands.
const CONTROL: &str = "control";

/// A claim. It ends with the process that holds it.
#[derive(Debug)]
pub struct Bed {
    /// The cluster's index on this machine.
    pub index: u8,
    _owner: File,
}

impl Bed {
    /// Claims the first free index, and removes the remains of a cluster whose owner and keeper were killed.
    ///
    /// # Errors
    /// When there are too many clusters already, or a leaked one cannot be removed.
    pub fn claim() -> Result<Self> {
        for index in 0..CLUSTERS {
            fs::create_dir_all(folder(index)).with_context(|| format!("make {}", folder(index).display()))?;
            let (Some(owner), Some(keeper)) = (lock(index, OWNER)?, lock(index, KEEPER)?) else { continue };
            remove_leaked(index).with_context(|| format!("remove what is left of cluster {index}"))?;
            drop(keeper);
            return Ok(Self { index, _owner: owner });
        }
        bail!("{CLUSTERS} clusters are running on this machine already: end one of them")
    }

    /// The socket on which this cluster takes commands.
    pub fn control(&self) -> PathBuf {
        control(self.index)
    }

    /// Records the folder that is to be removed with the cluster.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn record_data(&self, data: &Path) -> Result<()> {
        let path = folder(self.index).join(DATA);
        fs::write(&path, data.as_os_str().as_encoded_bytes()).with_context(|| format!("write {}", path.display()))
    }
}

/// The socket on which a cluster takes commands.
pub fn control(index: u8) -> PathBuf {
    folder(index).join(CONTROL)
}

/// The indexes of clusters that take commands.
pub fn running() -> Vec<u8> {
    (0..CLUSTERS).filter(|index| control(*index).exists()).collect()
}

/// The name of a cluster's branch in cgroup hierarchies.
pub fn branch(index: u8) -> String {
    format!("kcm-cluster-{index}")
}

/// The name of the machine's network device to a cluster.
pub fn device(index: u8) -> String {
    format!("kcm{index}")
}

/// Holds the keeper's lock.
///
/// # Errors
/// When another keeper holds it.
pub fn keep(index: u8) -> Result<File> {
    lock(index, KEEPER)?.with_context(|| format!("cluster {index} has a keeper already"))
}

/// Removes everything of a cluster that outlives its processes: cgroups, the network device, folders.
///
/// # Errors
/// When something cannot be removed.
pub fn remove_leaked(index: u8) -> Result<()> {
    cgroups::remove(&Layout::of_machine()?, &branch(index))?;
    // Usually it was deleted with the network namespace of its other end.
    let _ = command::run("ip", &["link", "delete", &device(index)]);
    if let Ok(data) = fs::read_to_string(folder(index).join(DATA)) {
        remove_folder(Path::new(&data))?;
    }
    for name in [DATA, CONTROL] {
        match fs::remove_file(folder(index).join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("remove a record"),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the remains of a cluster, one line for each; none after it has ended.
pub fn leaks(index: u8) -> Vec<String> {
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

/// Releases the index: removes the folder of the claim.
///
/// # Errors
/// When the folder cannot be removed.
pub fn forget(index: u8) -> Result<()> {
    fs::remove_dir_all(folder(index)).with_context(|| format!("remove {}", folder(index).display()))?;
    // The last cluster's folder is the last in it.
    let _ = fs::remove_dir(ROOT);
    Ok(())
}

/// Removes a folder that another process may be removing too.
fn remove_folder(path: &Path) -> Result<()> {
    for _ in 0..100 {
        match fs::remove_dir_all(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound && !path.exists() => return Ok(()),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
        }
    }
    fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))
}

fn folder(index: u8) -> PathBuf {
    Path::new(ROOT).join(index.to_string())
}

/// Takes a lock that lasts as long as the file is open, or returns `None` if another process has it.
fn lock(index: u8, name: &str) -> Result<Option<File>> {
    let path = folder(index).join(name);
    let file = match File::create(&path) {
        // Another process has just released the index.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("open {}", path.display()))?,
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // A lock on a file that was removed meanwhile excludes no other process.
    let is_current = fs::metadata(&path).is_ok_and(|now| file.metadata().is_ok_and(|own| own.ino() == now.ino()));
    Ok(is_current.then_some(file))
}
