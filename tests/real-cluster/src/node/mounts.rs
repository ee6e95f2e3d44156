//! The file systems of a node. It has its own `/proc`, `/sys` with cgroups, `/run`, `/tmp`, `/var/lib` and `/var/log`,
//! and an overlay over the machine's `/etc`. All other folders are the machine's.
//!
//! Everything is mounted in the node's mount namespace, which the kernel removes with its last process.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change, unmount,
};

use super::config::{NodeConfig, OWN, PROGRAMS, VOLUMES};
use crate::cgroups::{self, Layout};

/// Kernel settings that kubelet and kube-proxy require. The node gets files with these values over those of
/// `/proc/sys`, and the machine's settings do not change.
const SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Folders that the node has for itself: the path, the folder in [`OWN`] that is mounted there, and its mode.
const OWN_FOLDERS: [(&str, &str, u32); 3] =
    [("/var/lib", "lib", 0o755), ("/var/log", "log", 0o755), ("/tmp", "tmp", 0o1777)];

/// Mounts everything.
pub(super) fn set_up(node: &NodeConfig) -> Result<()> {
    let layout = Layout::of_machine()?;
    mount_fs("proc", "/proc")?;
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC).context("share mounts of /")?;
    mount_cgroups(&layout)?;
    mount_own_folders(node)?;
    mount_settings()
}

/// Mounts the node's cgroups, and `/sys` again: sysfs has the network devices of the namespace in which it was mounted.
fn mount_cgroups(layout: &Layout) -> Result<()> {
    unmount(cgroups::ROOT, UnmountFlags::DETACH).context("unmount the machine's cgroups")?;
    mount_fs("sysfs", "/sys")?;
    let root = Path::new(cgroups::ROOT);
    let hierarchies = match layout {
        Layout::V2 => {
            mount_fs("cgroup2", cgroups::ROOT)?;
            // A group with processes cannot have children with controllers, so all processes go to a child.
            let own = root.join("node");
            fs::create_dir_all(&own).context("make the cgroup of the node's processes")?;
            fs::write(own.join("cgroup.procs"), "0").context("join the cgroup of the node's processes")?;
            return cgroups::delegate(root);
        }
        Layout::V1(hierarchies) => hierarchies,
    };
    mount_fs("tmpfs", cgroups::ROOT)?;
    for hierarchy in hierarchies {
        let name = hierarchy.mount.file_name().context("a hierarchy without a folder")?;
        let target = root.join(name);
        fs::create_dir(&target).with_context(|| format!("make {}", target.display()))?;
        let options = CString::new(hierarchy.options.as_str())?;
        mount("cgroup", &target, "cgroup", MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("mount the cgroups of {}", hierarchy.options))?;
        // Programs look for each controller of a combined hierarchy (`cpu,cpuacct`) by its own name, too.
        for controller in hierarchy.options.split(',').filter(|option| *option != "none" && !option.contains('=')) {
            if !root.join(controller).exists() {
                symlink(name, root.join(controller)).with_context(|| format!("link {controller}"))?;
            }
        }
    }
    Ok(())
}

fn mount_own_folders(node: &NodeConfig) -> Result<()> {
    // The mounts below may hide these folders. An open folder can still be mounted.
    let mut folders = vec![(open(&node.folder)?, OWN), (open(&node.programs)?, PROGRAMS)];
    if let Some(volumes) = &node.volumes {
        folders.push((open(volumes)?, VOLUMES));
    }
    mount_fs("tmpfs", "/run")?;
    for (folder, target) in &folders {
        fs::create_dir_all(target).with_context(|| format!("make {target}"))?;
        bind(&format!("/proc/self/fd/{}", folder.as_raw_fd()), target)?;
    }
    for (target, name, mode) in OWN_FOLDERS {
        let source = Path::new(OWN).join(name);
        fs::create_dir_all(&source).with_context(|| format!("make {}", source.display()))?;
        fs::set_permissions(&source, PermissionsExt::from_mode(mode)).context("set permissions")?;
        mount_bind_recursive(&source, target).with_context(|| format!("mount {target}"))?;
    }
    let etc = Path::new(OWN).join("etc");
    let (upper, work) = (etc.join("upper"), etc.join("work"));
    for folder in [&upper, &work] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let options = format!("lowerdir=/etc,upperdir={},workdir={}", upper.display(), work.display());
    let options = CString::new(options)?;
    mount("overlay", "/etc", "overlay", MountFlags::empty(), options.as_c_str()).context("mount /etc")
}

fn mount_settings() -> Result<()> {
    let folder = Path::new("/run/bed/settings");
    fs::create_dir_all(folder).context("make the folder of kernel settings")?;
    for (name, value) in SETTINGS {
        let (file, setting) = (folder.join(name.replace('/', ".")), Path::new("/proc/sys").join(name));
        if setting.exists() {
            fs::write(&file, format!("{value}\n")).with_context(|| format!("write {}", file.display()))?;
            mount_bind(&file, &setting).with_context(|| format!("mount {}", setting.display()))?;
        }
    }
    Ok(())
}

fn open(folder: &Path) -> Result<File> {
    File::open(folder).with_context(|| format!("open {}", folder.display()))
}

fn bind(source: &str, target: &str) -> Result<()> {
    mount_bind(source, target).with_context(|| format!("mount {target}"))
}

/// Mounts a file system of the kernel over a folder.
fn mount_fs(kind: &str, target: &str) -> Result<()> {
    mount(kind, target, kind, MountFlags::empty(), None).with_context(|| format!("mount {kind} at {target}"))
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// The variable with the step that a process of the test executes.
    const STEP: &str = "REAL_CLUSTER_TEST_STEP";

    /// The cgroup that stands for a cluster's.
    const CLUSTER: &str = "kcm-cluster-test-v2";

    /// Mounts cgroup v2, even on a machine with v1, and starts the other steps one after the other.
    const STEPS: &str = r#"
mount -t cgroup2 cgroup2 /sys/fs/cgroup && mkdir /sys/fs/cgroup/kcm-cluster-test-v2 || exit 77
status=0
REAL_CLUSTER_TEST_STEP=join "$@" || status=1
REAL_CLUSTER_TEST_STEP=remove "$@" || status=1
exit "$status"
"#;

    /// With cgroup v1, the kernel's v2 has only the controllers that v1 does not use.
    #[test]
    fn node_divides_its_own_cgroup_when_the_machine_has_v2() {
        const NAME: &str = "node::mounts::tests::node_divides_its_own_cgroup_when_the_machine_has_v2";
        let own = [env::current_exe().unwrap().display().to_string(), "--exact".into(), NAME.into()];
        match env::var(STEP).as_deref() {
            Ok("join") => {
                let layout = Layout::of_machine().unwrap();
                layout.join(CLUSTER, "node-1").unwrap();
                let namespaces = ["--cgroup", "--mount", "--net", "--propagation=private", "--"];
                let error = Command::new("unshare").args(namespaces).args(own).env(STEP, "mount").exec();
                panic!("{error}");
            }
            Ok("mount") => {
                mount_cgroups(&Layout::V2).unwrap();
                let read = |name: &str| fs::read_to_string(Path::new(cgroups::ROOT).join(name)).unwrap();
                assert_eq!(read("cgroup.procs"), "");
                assert!(read("node/cgroup.procs").lines().any(|id| id == std::process::id().to_string()));
                let words = |text: String| text.split_whitespace().map(String::from).collect::<Vec<_>>();
                assert_eq!(words(read("cgroup.subtree_control")), words(read("cgroup.controllers")));
                fs::create_dir(Path::new(cgroups::ROOT).join("kubepods")).unwrap();
                // Killed with the cluster, in the next step.
                let started = Command::new("sh").args(["-c", "sleep 60 > /dev/null 2>&1 &"]).status().unwrap();
                assert!(started.success());
            }
            Ok(_) => {
                let layout = Layout::of_machine().unwrap();
                assert_eq!(layout.branches(CLUSTER).len(), 1);
                cgroups::remove(&layout, CLUSTER).unwrap();
                assert!(layout.branches(CLUSTER).is_empty());
            }
            Err(_) => {
                let arguments = ["--mount", "--propagation=private", "--", "sh", "-c", STEPS, "steps"];
                let output = Command::new("unshare").args(arguments).args(own).output().unwrap();
                let text = [output.stdout, output.stderr].concat();
                match output.status.code() {
                    Some(0) => {}
                    // Only the first steps may be left out for lack of rights.
                    Some(1) if !String::from_utf8_lossy(&text).contains("running 1 test") => {
                        println!("left out: this process may not make namespaces");
                    }
                    Some(77) => println!("left out: this process may not divide cgroup v2"),
                    _ => panic!("{}", String::from_utf8_lossy(&text)),
                }
            }
        }
    }
}
