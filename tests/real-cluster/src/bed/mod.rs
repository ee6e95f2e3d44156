//! A cluster's claim on this machine: an index, and a folder with the list of things to remove if its owner is killed.

mod choice;
mod footprint;

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use control_plane::FileLock;

use crate::address::Addresses;
use crate::cgroups::{self, Layout};
use crate::command;
use crate::occupied;
use crate::requirements::is_root;

pub use footprint::Footprint;

/// The folder of all claims.
const ROOT: &str = "/run/kcm-cluster";

/// Locked by the process that owns the cluster.
const OWNER: &str = "owner";

/// Locked by the process that cleans up after the owner.
const KEEPER: &str = "keeper";

/// The cluster's folder with data and logs.
const DATA: &str = "data";

/// The socket on which a running cluster takes commands.
const CONTROL: &str = "control";

/// The kubeconfig of the user who started the cluster.
const KUBECONFIG: &str = "kubeconfig";

/// The file, in the folder of all claims, with the controllers of cgroup v2 to disable after the last cluster.
const CONTROLLERS: &str = "controllers";

/// A claim. It ends with the process that holds it.
#[derive(Debug)]
pub struct Bed {
    /// The cluster's index on this machine.
    pub index: u8,
    /// A sentence about the route of this machine that the cluster partly hides, if there is one.
    pub hides: Option<String>,
    owner: FileLock,
}

impl Bed {
    /// Claims a free index whose addresses are not in use, and removes the remains of all clusters whose owners and
    /// keepers were killed.
    ///
    /// # Errors
    /// When no index is usable; the error has the reasons.
    pub fn claim() -> Result<Self> {
        make_folder(Path::new(ROOT))?;
        let (unusable, mut reasons): (Vec<u8>, Vec<String>) = remove_dead().into_iter().unzip();
        control_plane::remove_abandoned();
        let choice = choice::choose(&occupied::of_machine()?);
        for (index, hides) in choice.usable.into_iter().filter(|(index, _)| !unusable.contains(index)) {
            make_folder(&folder(index))?;
            let Some((owner, keeper)) = lock_both(index)? else {
                reasons.push(format!("cluster {index} is running"));
                continue;
            };
            enable_controllers(index).inspect_err(|_| drop(remove_leaked(index).and_then(|()| forget(index))))?;
            drop(keeper);
            return Ok(Self { index, hides, owner });
        }
        reasons.extend(choice.conflicts);
        bail!("no addresses are left for a cluster on this machine:\n- {}", reasons.join("\n- "))
    }

    /// Returns the socket on which this cluster takes commands.
    pub fn control(&self) -> PathBuf {
        control(self.index)
    }

    /// Writes the kubeconfig for the user who started the cluster: only root can read the folder with data.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_kubeconfig(&self, content: &[u8]) -> Result<PathBuf> {
        let path = folder(self.index).join(KUBECONFIG);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(content));
        written.with_context(|| format!("write {}", path.display()))?;
        Ok(path)
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

impl Drop for Bed {
    /// Cleans up after a cluster that never had a keeper, or whose keeper was killed.
    fn drop(&mut self) {
        let is_own = is_current(self.owner.file(), &folder(self.index).join(OWNER));
        if is_own && let Ok(Some(_keeper)) = lock(self.index, KEEPER) {
            // An entry that cannot be removed stays recorded for the next claim.
            let _ = remove_leaked(self.index).and_then(|()| forget(self.index));
        }
    }
}

/// Returns the socket on which a cluster takes commands.
pub fn control(index: u8) -> PathBuf {
    folder(index).join(CONTROL)
}

/// Returns the indexes of clusters that take commands. Only root can determine whether their owners still run.
pub fn running() -> Vec<u8> {
    let takes_commands = |index: &u8| control(*index).exists() && (!is_root() || is_claimed(*index));
    (0..Addresses::CLUSTERS).filter(takes_commands).collect()
}

/// Returns the reason why this machine has no addresses for one more cluster, or `None`.
///
/// # Errors
/// When the addresses of the machine cannot be read.
pub fn address_conflicts() -> Result<Option<String>> {
    let choice = choice::choose(&occupied::of_machine()?);
    Ok(choice.usable.is_empty().then(|| choice.conflicts.join("; ")))
}

/// Returns the name of a cluster's branch in cgroup hierarchies.
pub fn branch(index: u8) -> String {
    format!("kcm-cluster-{index}")
}

/// Returns the name of the machine's network device for a cluster.
pub fn device(index: u8) -> String {
    format!("kcm{index}")
}

/// Takes the keeper's lock.
///
/// # Errors
/// When another keeper holds it.
pub fn keep(index: u8) -> Result<FileLock> {
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
    for name in [DATA, CONTROL, KUBECONFIG] {
        match fs::remove_file(folder(index).join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("remove a record"),
            _ => {}
        }
    }
    Ok(())
}

/// Removes the leaked resources of clusters whose owners and keepers were killed. Returns the index and a sentence for
/// each cluster whose resources cannot be removed: they and their record stay for the next attempt.
fn remove_dead() -> Vec<(u8, String)> {
    let mut failures = Vec::new();
    for index in (0..Addresses::CLUSTERS).filter(|index| folder(*index).exists()) {
        let Ok(Some(_locks)) = lock_both(index) else { continue };
        if let Err(error) = remove_leaked(index).and_then(|()| forget(index)) {
            failures.push((index, format!("the remains of cluster {index} cannot be removed: {error:#}")));
        }
    }
    failures
}

/// Makes a folder that other users can traverse but not open: if they locked it, no cluster could start.
fn make_folder(path: &Path) -> Result<()> {
    const MODE: u32 = 0o711;
    let made = DirBuilder::new().mode(MODE).recursive(true).create(path);
    // Root's umask may be stricter.
    let made = made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(MODE)));
    made.with_context(|| format!("make {}", path.display()))
}

/// Makes the controllers of cgroup v2 that kubelets need available to a cluster, and records those that were not enabled
/// before.
fn enable_controllers(index: u8) -> Result<()> {
    let layout = Layout::of_machine()?;
    if layout != Layout::V2 {
        return Ok(());
    }
    let _lock = lock_all()?;
    let missing = cgroups::not_enabled(&layout)?;
    if !missing.is_empty() {
        // They are recorded first: then they are disabled even if this process is killed after it has enabled them.
        let path = Path::new(ROOT).join(CONTROLLERS);
        let recorded = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, format!("{recorded}{}\n", missing.join("\n")))
            .with_context(|| format!("write {}", path.display()))?;
    }
    cgroups::enable(&branch(index)).context("make cgroup controllers available to nodes")
}

/// Disables the controllers that were enabled for clusters, after the last one.
fn disable_controllers() {
    let path = Path::new(ROOT).join(CONTROLLERS);
    let Ok(recorded) = fs::read_to_string(&path) else { return };
    for controller in recorded.lines() {
        if let Err(error) = cgroups::disable(&[controller]) {
            eprintln!("cluster: the cgroup controller {controller} stays enabled, as others use it: {error:#}");
        }
    }
    let _ = fs::remove_file(path);
}

/// Releases the index: removes the folder of the claim.
///
/// # Errors
/// When the folder cannot be removed.
pub fn forget(index: u8) -> Result<()> {
    let _lock = lock_all()?;
    fs::remove_dir_all(folder(index)).with_context(|| format!("remove {}", folder(index).display()))?;
    if !(0..Addresses::CLUSTERS).any(|other| folder(other).exists()) {
        disable_controllers();
        // This fails, as it should, if another process has just created the folder of its claim.
        let _ = fs::remove_dir(ROOT);
    }
    Ok(())
}

/// Takes the lock for changes of resources that all clusters share.
fn lock_all() -> Result<FileLock> {
    let folder = File::open(ROOT).with_context(|| format!("open {ROOT}"))?;
    FileLock::lock(folder).with_context(|| format!("lock {ROOT}"))
}

/// Returns true if another process has claimed the index.
fn is_claimed(index: u8) -> bool {
    folder(index).exists() && matches!(lock(index, OWNER), Ok(None))
}

/// Removes a folder that another process may be removing too.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
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

/// Takes the locks of the owner and of the keeper, or returns `None` if another process has one of them. The keeper's
/// lock is tried only after the owner's was taken: otherwise a keeper that starts at this moment could fail to take it.
fn lock_both(index: u8) -> Result<Option<(FileLock, FileLock)>> {
    let Some(owner) = lock(index, OWNER)? else { return Ok(None) };
    Ok(lock(index, KEEPER)?.map(|keeper| (owner, keeper)))
}

/// Takes a lock, or returns `None` if another process has it.
fn lock(index: u8, name: &str) -> Result<Option<FileLock>> {
    let path = folder(index).join(name);
    // Other users must not be able to lock it.
    let file = match File::options().write(true).create(true).truncate(true).mode(0o600).open(&path) {
        // Another process has just released the index.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("open {}", path.display()))?,
    };
    let Some(lock) = FileLock::try_lock(file).with_context(|| format!("lock {}", path.display()))? else {
        return Ok(None);
    };
    // A lock on a file that was removed in the meantime excludes no other process.
    Ok(is_current(lock.file(), &path).then_some(lock))
}

/// Returns true if a path still names an open file.
fn is_current(file: &File, path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|now| file.metadata().is_ok_and(|own| own.ino() == now.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_claims_can_be_traversed_when_it_was_made_for_root_only() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("kcm-cluster");
        // As with root's umask 077.
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        make_folder(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o711);
    }
}
