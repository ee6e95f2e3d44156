//! File systems for programs, images and the data of a cluster: their free space, and whether they allow programs to be
//! executed. Needs on the same disk are added up.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use control_plane::assets::go;
use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::building::Space;
use super::demand::Demand;
use crate::programs::Programs;

const MIB: u64 = 1 << 20;

/// Bytes of etcd, logs and the copies of managers.
const CONTROL_PLANE: u64 = 1 << 30;

/// Bytes of a node: its images and logs.
const NODE: u64 = 512 * MIB;

/// Bytes of the conformance suite's images in a node, packed and unpacked.
const SUITE_IMAGES: u64 = 800 * MIB;

/// The types of file systems whose files are in memory: tmpfs and ramfs.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Space that is needed in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    folder: PathBuf,
    bytes: u64,
}

/// The file system of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileSystem {
    device: u64,
    free: u64,
    is_in_memory: bool,
    /// Programs on the file system are not executed.
    is_noexec: bool,
}

/// Returns the bytes of the data of the smallest cluster.
#[cfg(test)]
pub(crate) fn smallest_cluster_bytes() -> u64 {
    cluster_bytes(&Demand::of_cluster(1, false))
}

fn cluster_bytes(demand: &Demand) -> u64 {
    let images = if demand.has_suite { SUITE_IMAGES } else { 0 };
    CONTROL_PLANE + u64::from(demand.nodes) * (NODE + images)
}

/// Returns the needs of a command with these builds.
pub(super) fn needs(programs: &Programs, demand: &Demand, build: Space) -> Vec<Need> {
    let mut needs = vec![
        Need { folder: env::temp_dir(), bytes: cluster_bytes(demand) },
        Need { folder: programs.folder.clone(), bytes: build.programs },
    ];
    // `caches` fails without Go, which is reported as a missing requirement.
    if build.cache > 0
        && let Ok([cache, modules]) = go::caches()
    {
        needs.push(Need { folder: cache, bytes: build.cache });
        needs.push(Need { folder: modules, bytes: build.modules });
    }
    needs.extend(demand.cargo.clone().map(|(folder, bytes)| Need { folder, bytes }));
    needs
}

/// Returns a sentence for each disk that has too little free space, and for each file system that executes no programs.
pub(super) fn missing(needs: &[Need], programs: &Programs, find: impl Fn(&Path) -> Option<FileSystem>) -> Vec<String> {
    let mut missing = shortages(needs, &find);
    let places = [(env::temp_dir(), "TMPDIR"), (programs.folder.clone(), "KCM_TEST_ASSETS")];
    missing.extend(places.iter().filter_map(|(folder, variable)| noexec(folder, variable, find(folder)?)));
    missing
}

/// Returns the needs in folders whose files are in memory.
pub(super) fn in_memory(needs: &[Need], find: impl Fn(&Path) -> Option<FileSystem>) -> Vec<(PathBuf, u64)> {
    let needs = needs.iter().filter(|need| need.bytes > 0);
    let in_memory = needs.filter(|need| find(&need.folder).is_some_and(|system| system.is_in_memory));
    in_memory.map(|need| (need.folder.clone(), need.bytes)).collect()
}

/// Returns the file system of a folder, which need not exist yet.
pub(super) fn file_system(folder: &Path) -> Option<FileSystem> {
    let existing = folder.ancestors().find(|path| path.is_dir())?;
    let space = statvfs(existing).ok()?;
    Some(FileSystem {
        device: fs::metadata(existing).ok()?.dev(),
        free: space.f_bavail.saturating_mul(space.f_frsize),
        is_in_memory: statfs(existing).is_ok_and(|system| IN_MEMORY.contains(&system.f_type)),
        is_noexec: space.f_flag.contains(StatVfsMountFlags::NOEXEC),
    })
}

/// Returns a sentence if a folder is on a file system that is mounted with `noexec`. Managers, CSI drivers and programs
/// in volumes of pods are executed in the folder for temporary files.
fn noexec(folder: &Path, variable: &str, system: FileSystem) -> Option<String> {
    system.is_noexec.then(|| {
        format!(
            "a file system that executes programs, for {}, which is mounted with noexec: set {variable} to another folder",
            folder.display()
        )
    })
}

/// Returns a sentence for each file system with less free space than the needs on it. Folders that cannot be read are
/// left out: a later write to them fails with the reason.
fn shortages(needs: &[Need], find: impl Fn(&Path) -> Option<FileSystem>) -> Vec<String> {
    let mut disks: BTreeMap<u64, (u64, u64, Vec<String>)> = BTreeMap::new();
    for need in needs.iter().filter(|need| need.bytes > 0) {
        let Some(system) = find(&need.folder) else { continue };
        let (sum, least, folders) = disks.entry(system.device).or_insert((0, system.free, Vec::new()));
        *sum += need.bytes;
        *least = system.free.min(*least);
        folders.push(need.folder.display().to_string());
    }
    let short = disks.into_values().filter(|(sum, free, _)| free < sum);
    short
        .map(|(sum, free, folders)| {
            format!(
                "{} MiB of free disk space for {}, where {} MiB are free: free some, or set TMPDIR, KCM_TEST_ASSETS, \
                 GOCACHE, GOMODCACHE or CARGO_TARGET_DIR to other disks",
                sum / MIB,
                folders.join(" and "),
                free / MIB
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(folder: &str, mib: u64) -> Need {
        Need { folder: folder.into(), bytes: mib * MIB }
    }

    #[test]
    fn needs_on_the_same_disk_are_added_up() {
        let needs = [need("/tmp", 600), need("/cache", 600)];
        for (name, same, free, expected) in [
            ("one disk with space for one of them", true, 1000, 1),
            ("one disk with space for both", true, 1200, 0),
            ("two disks with space for one each", false, 1000, 0),
            ("two disks that are full", false, 10, 2),
        ] {
            let disk = |folder: &Path| {
                let device = if same || folder == Path::new("/tmp") { 1 } else { 2 };
                Some(FileSystem { device, free: free * MIB, ..FileSystem::default() })
            };
            assert_eq!(shortages(&needs, disk).len(), expected, "{name}");
        }
        let text = shortages(&needs, |_| Some(FileSystem { device: 1, free: 1000 * MIB, ..FileSystem::default() }));
        assert!(text[0].starts_with("1200 MiB of free disk space for /tmp and /cache, where 1000 MiB"), "{text:?}");
        assert!(shortages(&needs, |_| None).is_empty());
    }

    #[test]
    fn space_of_a_cluster_grows_with_its_nodes_and_images() {
        assert_eq!(cluster_bytes(&Demand::of_cluster(2, true)), 2 << 30);
        assert_eq!(cluster_bytes(&Demand::of_cluster(20, true)), 11 << 30);
        let suite = Demand { has_suite: true, ..Demand::of_cluster(2, false) };
        assert_eq!(cluster_bytes(&suite), (2 << 30) + 1600 * MIB);
    }

    #[test]
    fn only_needs_on_tmpfs_are_in_memory() {
        let find =
            |folder: &Path| Some(FileSystem { is_in_memory: folder == Path::new("/tmp"), ..FileSystem::default() });
        let needs = [need("/tmp", 2048), need("/cache", 100), need("/tmp", 0)];
        assert_eq!(in_memory(&needs, find), [(PathBuf::from("/tmp"), 2048 * MIB)]);
    }

    #[test]
    fn noexec_is_reported_with_the_variable_to_set() {
        let system = FileSystem { is_noexec: true, ..FileSystem::default() };
        let text = noexec(Path::new("/tmp"), "TMPDIR", system).unwrap();
        assert!(text.contains("for /tmp, which is mounted with noexec: set TMPDIR"), "{text}");
        assert_eq!(noexec(Path::new("/tmp"), "TMPDIR", FileSystem::default()), None);
    }
}
