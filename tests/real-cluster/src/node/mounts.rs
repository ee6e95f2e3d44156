//! The file systems of a node. It has its own `/run`, `/tmp`, `/var/lib`, `/var/log` and cgroups, and an overlay over
//! the machine's `/etc`. All other folders are the machine's.
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
    // These may be in folders that the following mounts hide. An open folder can still be mounted.
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
