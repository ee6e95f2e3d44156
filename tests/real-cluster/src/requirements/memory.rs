//! The machine's memory, and the kernel's limit of inotify instances.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Memory that the control plane and the managers need, in KiB.
const CONTROL_PLANE_KIB: u64 = 1 << 20;

/// Memory that a node needs, in KiB.
const NODE_KIB: u64 = 512 << 10;

/// Instances of inotify that the control plane and the managers open.
const CONTROL_PLANE_INSTANCES: u64 = 20;

/// Instances of inotify that a node's programs open.
const NODE_INSTANCES: u64 = 16;

const INSTANCES_LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";

/// Returns a sentence if this number of nodes needs more memory than is available. `files` are the bytes of a cluster in
/// folders whose files are in memory.
pub(super) fn missing(nodes: u8, files: &[(PathBuf, u64)]) -> Option<String> {
    memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), nodes, files)
}

/// Returns a sentence if nodes need more instances of inotify than are free. Only root can count those in use.
pub(super) fn missing_instances(nodes: u8) -> Option<String> {
    let limit = fs::read_to_string(INSTANCES_LIMIT).unwrap_or_default();
    instances(limit.trim().parse().ok(), used_instances(), nodes)
}

/// Returns a sentence if the available memory, from a text in the format of `/proc/meminfo`, is too small. A text
/// without `MemAvailable` meets the requirement.
fn memory(text: &str, nodes: u8, files: &[(PathBuf, u64)]) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available: u64 = line.split_whitespace().next()?.parse().ok()?;
    let of_files: u64 = files.iter().map(|(_, bytes)| bytes >> 10).sum();
    let needed = CONTROL_PLANE_KIB + u64::from(nodes) * NODE_KIB + of_files;
    let folders: Vec<String> = files.iter().map(|(folder, _)| folder.display().to_string()).collect();
    let (needed, available) = (needed >> 10, available >> 10);
    if available >= needed {
        return None;
    }
    let shortage = format!("{needed} MiB of available memory for {nodes} nodes");
    if folders.is_empty() {
        return Some(format!("{shortage}; {available} MiB are available"));
    }
    Some(format!(
        "{shortage}, and for files in {}, which are in memory; {available} MiB are available: set TMPDIR to a folder on a disk, \
         such as /var/tmp",
        folders.join(" and ")
    ))
}

/// Returns a sentence if root may open fewer instances of inotify than nodes need. An unknown limit meets the
/// requirement.
fn instances(limit: Option<u64>, used: u64, nodes: u8) -> Option<String> {
    let limit = limit?;
    let needed = CONTROL_PLANE_INSTANCES + u64::from(nodes) * NODE_INSTANCES;
    let free = limit.saturating_sub(used);
    (free < needed).then(|| {
        format!(
            "{needed} free instances of inotify for {nodes} nodes; {free} are free: sysctl fs.inotify.max_user_instances={}",
            (used + needed).next_power_of_two()
        )
    })
}

/// Returns the number of instances that processes of root have.
fn used_instances() -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let of_root = processes.filter(|process| fs::metadata(process).is_ok_and(|data| data.uid() == 0));
    of_root.map(|process| instances_of(&process)).sum()
}

fn instances_of(process: &Path) -> u64 {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    targets.filter(|target| target == Path::new("anon_inode:inotify")).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_nodes_and_with_files_in_memory() {
        let text = |mib: u64| format!("MemTotal: 9999999 kB\nMemAvailable:   {} kB\n", mib << 10);
        let tmpfs = [(PathBuf::from("/tmp"), 2 << 30)];
        for (name, mib, nodes, files, expected) in [
            ("two nodes", 2048, 2, &[][..], false),
            ("less than two nodes", 2047, 2, &[], true),
            ("twenty nodes on a laptop", 2150, 20, &[], true),
            ("twenty nodes", 11 << 10, 20, &[], false),
            ("two nodes with files in memory", 2150, 2, &tmpfs, true),
            ("enough for nodes and files", 4096, 2, &tmpfs, false),
        ] {
            assert_eq!(memory(&text(mib), nodes, files).is_some(), expected, "{name}");
        }
        let sentence = memory(&text(1024), 2, &tmpfs).unwrap();
        let expected =
            "4096 MiB of available memory for 2 nodes, and for files in /tmp, which are in memory; 1024 MiB are";
        assert!(sentence.starts_with(expected), "{sentence}");
        assert_eq!(memory("MemTotal: 1 kB\n", 2, &[]), None);
    }

    #[test]
    fn free_inotify_instances_are_those_that_are_not_in_use() {
        assert_eq!(instances(Some(128), 0, 2), None);
        let sentence = instances(Some(128), 100, 2).unwrap();
        assert_eq!(
            sentence,
            "52 free instances of inotify for 2 nodes; 28 are free: sysctl fs.inotify.max_user_instances=256"
        );
        assert!(instances(Some(128), 0, 20).unwrap().ends_with("max_user_instances=512"));
        assert_eq!(instances(None, 0, 50), None);
    }
}
