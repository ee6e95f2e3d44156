//! The requirements of building programs and images that a command needs and that do not exist yet.

use std::path::Path;
use std::process::{Command, Stdio};

use control_plane::assets::go;

use super::demand::{BuiltGroups, Demand};
use super::tools;
use crate::images::suite;
use crate::programs::Programs;

const MIB: u64 = 1 << 20;

/// The tools and libraries for a C program that uses libseccomp.
const C_TOOLS: [(&str, &str); 2] = [("gcc", "gcc libc6-dev"), ("pkg-config", "pkg-config")];

/// Bytes that a build writes: built programs and images, Go's build cache, and downloaded modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Space {
    pub(super) programs: u64,
    pub(super) cache: u64,
    pub(super) modules: u64,
}

const fn mib(programs: u64, cache: u64, modules: u64) -> Space {
    Space { programs: programs * MIB, cache: cache * MIB, modules: modules * MIB }
}

// Sizes of built programs are measured; those of Go's caches are estimated shares of the total size.
const CONTROL_PLANE: Space = mib(180, 900, 700);
const UPSTREAM: Space = mib(120, 400, 100);
const NODES: Space = mib(420, 1500, 800);
const STORAGE: Space = mib(250, 600, 400);
const SUITE: Space = mib(200, 1200, 300);
const SUITE_STORAGE: Space = mib(150, 200, 100);
const METRICS: Space = mib(200, 500, 300);
const IMAGES: Space = mib(150, 0, 0);
/// The Debian base, and the file that is made from it.
const SUITE_IMAGES: Space = mib(900, 0, 0);

/// Returns what this machine lacks to build programs that do not exist yet.
pub(super) fn missing(programs: &Programs, demand: &Demand, built: BuiltGroups) -> Vec<String> {
    let mut missing = Vec::new();
    if needs_go(demand, built) {
        missing.extend(go::obstacle(&Path::new(env!("CARGO_MANIFEST_DIR")).join("go/kubernetes")));
    }
    if programs.need_c() {
        missing.extend(tools(&C_TOOLS));
        missing.extend(seccomp());
    }
    if demand.has_suite {
        missing.extend(suite::missing(programs));
    }
    missing
}

/// Returns true if any program has to be built with Go.
fn needs_go(demand: &Demand, built: BuiltGroups) -> bool {
    space(demand, built).cache > 0
}

/// Returns the space for everything that is not built yet.
pub(super) fn space(demand: &Demand, built: BuiltGroups) -> Space {
    let groups = [
        (true, built.control_plane, CONTROL_PLANE),
        (true, built.nodes, NODES),
        (true, built.images, IMAGES),
        (demand.has_volumes, built.storage, STORAGE),
        (demand.has_upstream, built.upstream, UPSTREAM),
        (demand.has_suite, built.suite, SUITE),
        (demand.has_suite_volumes(), built.suite_storage, SUITE_STORAGE),
        (demand.has_metrics, built.metrics, METRICS),
        (demand.has_suite, built.suite_images, SUITE_IMAGES),
    ];
    let missing = groups.into_iter().filter(|(is_needed, is_built, _)| *is_needed && !is_built);
    missing.fold(Space::default(), |sum, (_, _, more)| Space {
        programs: sum.programs + more.programs,
        cache: sum.cache + more.cache,
        modules: sum.modules + more.modules,
    })
}

fn seccomp() -> Option<String> {
    let found = Command::new("pkg-config").args(["--exists", "libseccomp"]).stderr(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    (!is_there)
        .then(|| "the library libseccomp: install the Debian package libseccomp-dev, or an equivalent".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: BuiltGroups = BuiltGroups {
        control_plane: true,
        upstream: true,
        nodes: true,
        storage: true,
        suite: true,
        suite_storage: true,
        metrics: true,
        images: true,
        suite_images: true,
    };

    #[test]
    fn only_missing_programs_of_the_command_need_space_and_go() {
        let plain = Demand::of_cluster(2, false);
        let volumes = Demand::of_cluster(2, true);
        let suite = Demand { has_suite: true, has_upstream: true, ..plain.clone() };
        for (name, demand, built, expected, go) in [
            ("everything is built", &suite, ALL, Space::default(), false),
            ("volumes without a driver", &volumes, BuiltGroups { storage: false, ..ALL }, STORAGE, true),
            ("a driver that is not used", &plain, BuiltGroups { storage: false, ..ALL }, Space::default(), false),
            ("upstream's manager", &suite, BuiltGroups { upstream: false, ..ALL }, UPSTREAM, true),
            ("programs of the suite", &suite, BuiltGroups { suite: false, ..ALL }, SUITE, true),
            ("metrics that are not used", &suite, BuiltGroups { metrics: false, ..ALL }, Space::default(), false),
            ("images only", &suite, BuiltGroups { suite_images: false, ..ALL }, SUITE_IMAGES, false),
        ] {
            assert_eq!(space(demand, built), expected, "{name}");
            assert_eq!(needs_go(demand, built), go, "{name}");
        }
    }

    #[test]
    fn documented_space_is_sufficient_for_all_builds() {
        let sum = |demand: &Demand| {
            let Space { programs, cache, modules } = space(demand, BuiltGroups::default());
            programs + cache + modules
        };
        let volumes = Demand::of_cluster(2, true);
        let upstream = Demand { has_upstream: true, ..volumes.clone() };
        let suite = Demand { has_suite: true, has_upstream: true, ..Demand::of_cluster(2, false) };
        for (demand, page, gib) in [
            (&volumes, "real-cluster.md, by default", 6),
            (&upstream, "real-cluster.md, with upstream's manager", 7),
            (&suite, "conformance.md", 8),
        ] {
            let sum = sum(demand);
            assert!(((gib - 1) << 30..=gib << 30).contains(&sum), "{sum} bytes, and docs/{page} says {gib} GiB");
        }
    }
}
