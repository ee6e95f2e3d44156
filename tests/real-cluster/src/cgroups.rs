//! The cgroups of a cluster: one branch in each hierarchy, with a branch for each node.
//!
//! Both layouts are supported: the single hierarchy of cgroup v2, and the hierarchies of v1, one for each controller.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::command;

/// The mount point at which programs expect cgroups.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Controllers without which a kubelet does not start.
pub const NEEDED: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];

/// Maximum time until killed processes leave their cgroup.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(60);

/// The layout of cgroups on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One hierarchy at [`ROOT`].
    V2,
    /// A hierarchy for each set of controllers, and named hierarchies without controllers, such as systemd's.
    V1(Vec<Hierarchy>),
}

/// A hierarchy of cgroup v1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub mount: PathBuf,
    /// The mount options that name the hierarchy, such as `cpu,cpuacct` or `none,name=systemd`.
    pub options: String,
}

impl Layout {
    /// Reads the layout of this machine.
    ///
    /// # Errors
    /// When the list of mounts cannot be read.
    pub fn of_machine() -> Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?))
    }

    /// Parses the layout from a list of mounts in the format of `/proc/self/mountinfo`.
    fn parse(mounts: &str) -> Self {
        let mut hierarchies = Vec::new();
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let (Some(mount), mut right) = (left.split(' ').nth(4), right.split(' ')) else { continue };
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) if mount == ROOT => return Self::V2,
                (Some("cgroup"), Some(options)) => {
                    hierarchies.push(Hierarchy { mount: mount.into(), options: name_of_hierarchy(options) });
                }
                _ => {}
            }
        }
        Self::V1(one_mount_each(hierarchies))
    }

    /// Returns controllers of [`NEEDED`] that this machine lacks.
    pub fn missing(&self) -> Vec<&'static str> {
        let offered: Vec<String> = match self {
            Self::V2 => {
                let text = fs::read_to_string(Path::new(ROOT).join("cgroup.controllers")).unwrap_or_default();
                text.split_whitespace().map(String::from).collect()
            }
            Self::V1(hierarchies) => {
                hierarchies.iter().flat_map(|one| one.options.split(',')).map(String::from).collect()
            }
        };
        NEEDED.into_iter().filter(|needed| !offered.iter().any(|offered| offered == needed)).collect()
    }

    fn mounts(&self) -> Vec<&Path> {
        match self {
            Self::V2 => vec![Path::new(ROOT)],
            Self::V1(hierarchies) => hierarchies.iter().map(|one| one.mount.as_path()).collect(),
        }
    }

    /// Returns a cluster's branches that exist.
    pub fn branches(&self, cluster: &str) -> Vec<PathBuf> {
        let branches = self.mounts().into_iter().map(|mount| mount.join(cluster));
        branches.filter(|branch| branch.exists()).collect()
    }

    /// Makes a node's branch, `<cluster>/<node>`, and moves this process into it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn join(&self, cluster: &str, node: &str) -> Result<()> {
        for mount in self.mounts() {
            let (parent, branch) = (mount.join(cluster), mount.join(cluster).join(node));
            fs::create_dir_all(&branch).with_context(|| format!("make the cgroup {}", branch.display()))?;
            match self {
                Self::V2 => delegate(&parent)?,
                Self::V1(_) => {
                    inherit_cpus(mount, &parent)?;
                    inherit_cpus(&parent, &branch)?;
                }
            }
            write(&branch.join("cgroup.procs"), "0")?;
        }
        Ok(())
    }
}

/// The branch of a cluster's processes outside nodes.
const PROGRAMS: &str = "control-plane";

/// The controller of v1 whose hierarchy contains the branch [`PROGRAMS`]. The branch only lists processes; it has no
/// limits.
const PROGRAMS_CONTROLLER: &str = "pids";

impl Layout {
    /// Makes the branch of a cluster's processes outside nodes. The branch lists the processes even when both the
    /// cluster's owner and its keeper (see `keeper`) are dead. Returns the file that moves a process into the branch
    /// when the process ID is written to it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn make_programs_branch(&self, cluster: &str) -> Result<PathBuf> {
        let mount = match self {
            Self::V2 => Path::new(ROOT),
            Self::V1(hierarchies) => {
                let mut with_pids =
                    hierarchies.iter().filter(|one| one.options.split(',').any(|name| name == PROGRAMS_CONTROLLER));
                &with_pids.next().context("this machine lacks the cgroup controller pids")?.mount
            }
        };
        let branch = mount.join(cluster).join(PROGRAMS);
        fs::create_dir_all(&branch).with_context(|| format!("make the cgroup {}", branch.display()))?;
        Ok(branch.join("cgroup.procs"))
    }
}

/// Returns controllers of [`NEEDED`] that groups directly below the root do not have yet; none in v1.
pub fn not_enabled(layout: &Layout) -> Result<Vec<&'static str>> {
    match layout {
        Layout::V2 => not_enabled_in(Path::new(ROOT)),
        Layout::V1(_) => Ok(Vec::new()),
    }
}

fn not_enabled_in(root: &Path) -> Result<Vec<&'static str>> {
    let path = root.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(NEEDED.into_iter().filter(|needed| !enabled.split_whitespace().any(|name| name == *needed)).collect())
}

/// Maximum number of attempts to make controllers available to a cluster.
const ATTEMPTS: usize = 10;

/// Makes the branch of a cluster in cgroup v2, and makes controllers available to groups in it. The branch keeps them
/// available: systemd disables controllers of the root that no group passes on to its children, for instance when
/// its configuration is reloaded.
///
/// # Errors
/// When the kernel refuses, as it does in a container whose root has processes.
pub fn enable(cluster: &str) -> Result<()> {
    let (root, branch) = (Path::new(ROOT), Path::new(ROOT).join(cluster));
    fs::create_dir_all(&branch).with_context(|| format!("make the cgroup {}", branch.display()))?;
    until_enabled(|| {
        switch(root, '+', &not_enabled_in(root)?)?;
        delegate(&branch)?;
        not_enabled_in(&branch)
    })
}

/// Repeats an attempt that returns the controllers that are not available yet: another process can disable some before
/// the branch uses them, and writing the name of a disabled one is an error.
fn until_enabled(mut attempt: impl FnMut() -> Result<Vec<&'static str>>) -> Result<()> {
    let mut last = Ok(());
    for _ in 0..ATTEMPTS {
        last = match attempt() {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) => Err(anyhow!("another process disables the cgroup controllers {}", missing.join(", "))),
            Err(error) => Err(error),
        };
    }
    last
}

/// Disables controllers of cgroup v2 for groups directly below the root.
///
/// # Errors
/// When the kernel refuses, as it does while another group uses one of them.
pub fn disable(controllers: &[&str]) -> Result<()> {
    switch(Path::new(ROOT), '-', controllers)
}

fn switch(group: &Path, sign: char, controllers: &[&str]) -> Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = controllers.iter().map(|name| format!("{sign}{name}")).collect();
    write(&group.join("cgroup.subtree_control"), &all.join(" "))
}

/// The prefix of the names of branches that are tried out; the process id follows.
const TRIAL: &str = "kcm-cluster-trial-";

/// Moves a process into new branches, and removes the branches. Also removes branches of earlier trials that were
/// killed.
///
/// # Errors
/// When the kernel refuses something, or would refuse to enable controllers.
pub fn try_out(layout: &Layout) -> Result<()> {
    for mount in layout.mounts() {
        remove_dead_trials(mount);
    }
    // A group that has this file is not the root of the whole machine, so it cannot have both processes and children.
    let root = Path::new(ROOT);
    if *layout == Layout::V2 && root.join("cgroup.events").exists() && !not_enabled(layout)?.is_empty() {
        let members = fs::read_to_string(root.join("cgroup.procs")).context("read the members of the root cgroup")?;
        ensure!(members.trim().is_empty(), "the root of the container's cgroups has processes");
    }
    let name = format!("{TRIAL}{}", std::process::id());
    let joined = join_all(layout, &name);
    remove(layout, &name)?;
    joined
}

/// Removes the branches of trials whose processes are dead. The kernel refuses to remove branches with processes.
fn remove_dead_trials(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(TRIAL).and_then(|id| id.parse::<u32>().ok());
        if process.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Makes a branch in each hierarchy, and moves a process into all of them.
fn join_all(layout: &Layout, name: &str) -> Result<()> {
    const JOIN: &str = r#"for group; do echo $$ > "$group/cgroup.procs" || exit 1; done"#;
    let mut arguments = vec!["-c".to_owned(), JOIN.to_owned(), "join".to_owned()];
    for mount in layout.mounts() {
        let branch = mount.join(name);
        fs::create_dir(&branch).with_context(|| format!("make the cgroup {}", branch.display()))?;
        if *layout != Layout::V2 {
            inherit_cpus(mount, &branch)?;
        }
        arguments.push(branch.display().to_string());
    }
    command::run("sh", &arguments).map(drop)
}

/// Makes all of a group's controllers available to its children.
///
/// # Errors
/// When the kernel refuses, as it does for a group with processes that is not the root.
pub fn delegate(group: &Path) -> Result<()> {
    let path = group.join("cgroup.controllers");
    let controllers = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    switch(group, '+', &controllers.split_whitespace().collect::<Vec<_>>())
}

/// Kills all processes in a cluster's branches, and removes the branches.
///
/// # Errors
/// When a branch still exists after [`REMOVAL_DEADLINE`].
pub fn remove(layout: &Layout, cluster: &str) -> Result<()> {
    let deadline = Instant::now() + REMOVAL_DEADLINE;
    for branch in layout.mounts().into_iter().map(|mount| mount.join(cluster)) {
        while branch.exists() {
            match remove_branch(&branch) {
                Err(error) if Instant::now() > deadline => {
                    return Err(error).with_context(|| format!("remove the cgroup {}", branch.display()));
                }
                _ => sleep(Duration::from_millis(50)),
            }
        }
    }
    Ok(())
}

fn remove_branch(branch: &Path) -> std::io::Result<()> {
    let members = fs::read_to_string(branch.join("cgroup.procs")).unwrap_or_default();
    for process in members.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let _ = kill_process(process, Signal::KILL);
    }
    for entry in fs::read_dir(branch)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            // An error needs no report here: the removal of the parent fails, too.
            let _ = remove_branch(&entry.path());
        }
    }
    fs::remove_dir(branch)
}

/// Gives a group of v1 the processors of its parent: a new cpuset is empty, and accepts no process.
fn inherit_cpus(from: &Path, to: &Path) -> Result<()> {
    if from.join("cpuset.cpus").exists() {
        inherit(from, to, "cpuset.cpus")?;
        inherit(from, to, "cpuset.mems")?;
    }
    Ok(())
}

fn inherit(from: &Path, to: &Path, file: &str) -> Result<()> {
    let path = from.join(file);
    let value = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    write(&to.join(file), value.trim())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {text:?} to {}", path.display()))
}

/// Returns one mount for each hierarchy of v1: the one below [`ROOT`], or the first. A hierarchy can have additional
/// mounts, for instance in a chroot.
fn one_mount_each(mut mounts: Vec<Hierarchy>) -> Vec<Hierarchy> {
    mounts.sort_by_key(|hierarchy| !hierarchy.mount.starts_with(ROOT));
    let mut names = BTreeSet::new();
    mounts.retain(|hierarchy| names.insert(hierarchy.options.clone()));
    mounts
}

/// Returns the mount options that identify a hierarchy of v1, without those of the file system.
fn name_of_hierarchy(options: &str) -> String {
    let named = options.split(',').filter(|option| {
        !matches!(*option, "rw" | "ro" | "xattr" | "clone_children" | "noprefix")
            && !option.starts_with("release_agent=")
    });
    let named = named.collect::<Vec<_>>().join(",");
    if named.starts_with("name=") { format!("none,{named}") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_v2_when_its_root_is_mounted_as_v2() {
        let mounts =
            "24 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(Layout::parse(mounts), Layout::V2);
    }

    #[test]
    fn only_missing_controllers_of_the_root_are_switched_and_the_rest_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("cgroup.subtree_control");
        fs::write(&file, "cpu memory io\n").unwrap();
        let missing = not_enabled_in(root.path()).unwrap();
        assert_eq!(missing, ["cpuset", "pids"]);
        switch(root.path(), '+', &missing).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "+cpuset +pids");
        switch(root.path(), '-', &missing).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "-cpuset -pids");
        fs::write(&file, "cpuset cpu memory pids hugetlb\n").unwrap();
        assert!(not_enabled_in(root.path()).unwrap().is_empty());
        switch(root.path(), '+', &[]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "cpuset cpu memory pids hugetlb\n");
    }

    #[test]
    fn controllers_that_another_process_disables_are_enabled_again() {
        let attempts = |results: &[Result<&[&'static str], &str>]| {
            let mut left = results.iter();
            let done = until_enabled(|| match left.next().unwrap_or(&Err("always")) {
                Ok(missing) => Ok(missing.to_vec()),
                Err(error) => Err(anyhow!("{error}")),
            });
            (done.map_err(|error| error.to_string()), left.count())
        };
        assert_eq!(attempts(&[Ok(&[]), Ok(&[])]), (Ok(()), 1));
        assert_eq!(attempts(&[Ok(&["cpu", "cpuset"]), Err("no such controller"), Ok(&[])]), (Ok(()), 0));
        assert_eq!(attempts(&[Err("refused")]), (Err("always".into()), 0), "the last reason is reported");
        let (failed, left) = attempts(&[Ok(&["cpu"][..]); ATTEMPTS + 1]);
        assert_eq!((failed.unwrap_err().as_str(), left), ("another process disables the cgroup controllers cpu", 1));
    }

    #[test]
    fn programs_branch_is_in_the_hierarchy_of_pids() {
        let root = tempfile::tempdir().unwrap();
        let hierarchy = |name: &str| Hierarchy { mount: root.path().join(name), options: name.into() };
        let layout = Layout::V1(["cpu,cpuacct", "pids", "memory"].map(hierarchy).into());
        let file = layout.make_programs_branch("kcm-cluster-255").unwrap();
        assert_eq!(file, root.path().join("pids/kcm-cluster-255/control-plane/cgroup.procs"));
        assert_eq!(layout.branches("kcm-cluster-255"), [root.path().join("pids/kcm-cluster-255")]);
        assert!(Layout::V1(Vec::new()).make_programs_branch("kcm-cluster-255").is_err());
    }

    #[test]
    fn layout_lists_hierarchies_of_v1_with_their_identifying_options() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let expected = [("/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"), ("/sys/fs/cgroup/systemd", "none,name=systemd")];
        let expected = expected.map(|(mount, options)| Hierarchy { mount: mount.into(), options: options.into() });
        assert_eq!(Layout::parse(mounts), Layout::V1(expected.to_vec()));
        assert_eq!(Layout::parse(mounts).missing(), ["cpuset", "memory", "pids"]);
    }

    #[test]
    fn hierarchy_with_several_mounts_is_listed_once_at_the_usual_place() {
        let mounts = "29 1 0:27 / /srv/chroot/sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 30 0:28 / /mnt/pids rw - cgroup cgroup rw,pids";
        let expected = [("/sys/fs/cgroup/memory", "memory"), ("/mnt/pids", "pids")];
        let expected = expected.map(|(mount, options)| Hierarchy { mount: mount.into(), options: options.into() });
        assert_eq!(Layout::parse(mounts), Layout::V1(expected.to_vec()));
    }

    #[test]
    fn branches_of_killed_trials_are_removed() {
        let mount = tempfile::tempdir().unwrap();
        let own = format!("{TRIAL}{}", std::process::id());
        // No process has a number above the kernel's limit of 2^22.
        let dead = format!("{TRIAL}4194305");
        for name in [&own, &dead, "kcm-cluster-0", "kcm-cluster-trial-x"] {
            fs::create_dir(mount.path().join(name)).unwrap();
        }
        remove_dead_trials(mount.path());
        assert!(!mount.path().join(dead).exists());
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 3);
    }
}
