//! Free space for programs, images and the data of a cluster. Places on the same disk are added up.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::images;
use crate::programs::Programs;

const MIB: u64 = 1 << 20;

/// Bytes of the built programs, and of Go's caches while it builds them.
const BUILD: u64 = 6 << 30;

/// Bytes of the file with the images of all clusters.
const IMAGES: u64 = 200 * MIB;

/// Bytes of a cluster with two nodes: the images in each node, etcd and logs.
const CLUSTER: u64 = 2 << 30;

/// Space that is needed in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Need {
    folder: PathBuf,
    bytes: u64,
}

/// Returns a sentence for each disk that has too little free space.
pub(super) fn missing(programs: &Programs) -> Vec<String> {
    let mut needs = vec![Need { folder: env::temp_dir(), bytes: CLUSTER }];
    let mut build = 0;
    if !programs.are_built() {
        build += BUILD;
    }
    if !programs.path(images::FILE).is_file() {
        build += IMAGES;
    }
    needs.push(Need { folder: programs.folder.clone(), bytes: build });
    shortages(&needs, |folder| {
        let existing = folder.ancestors().find(|path| path.is_dir())?;
        let space = statvfs(existing).ok()?;
        Some((fs::metadata(existing).ok()?.dev(), space.f_bavail.saturating_mul(space.f_frsize)))
    })
}

/// Compares needs with `disk`, which returns a folder's disk and its free bytes. Folders that cannot be read are left
/// out: writing to them reports the reason.
fn shortages(needs: &[Need], disk: impl Fn(&Path) -> Option<(u64, u64)>) -> Vec<String> {
    let mut disks: BTreeMap<u64, (u64, u64, Vec<String>)> = BTreeMap::new();
    for need in needs.iter().filter(|need| need.bytes > 0) {
        let Some((id, free)) = disk(&need.folder) else { continue };
        let (sum, least, folders) = disks.entry(id).or_insert((0, free, Vec::new()));
        *sum += need.bytes;
        *least = free.min(*least);
        folders.push(need.folder.display().to_string());
    }
    let short = disks.into_values().filter(|(sum, free, _)| free < sum);
    short
        .map(|(sum, free, folders)| {
            format!(
                "{} MiB of free disk space for {}, where {} MiB are free: free some, or set TMPDIR and KCM_TEST_ASSETS to other disks",
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

    #[test]
    fn needs_on_the_same_disk_are_added_up() {
        let need = |folder: &str, mib: u64| Need { folder: folder.into(), bytes: mib * MIB };
        let needs = [need("/tmp", 600), need("/cache", 600)];
        for (name, same, free, expected) in [
            ("one disk with space for one of them", true, 1000, 1),
            ("one disk with space for both", true, 1200, 0),
            ("two disks with space for one each", false, 1000, 0),
            ("two disks that are full", false, 10, 2),
        ] {
            let disk = |folder: &Path| Some((if same || folder == Path::new("/tmp") { 1 } else { 2 }, free * MIB));
            assert_eq!(shortages(&needs, disk).len(), expected, "{name}");
        }
        let text = shortages(&needs, |_| Some((1, 1000 * MIB)));
        assert!(text[0].starts_with("1200 MiB of free disk space for /tmp and /cache, where 1000 MiB"), "{text:?}");
        assert!(shortages(&needs, |_| None).is_empty());
    }
}
