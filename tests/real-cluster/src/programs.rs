//! The programs of nodes: built once with Go from the modules in `go/`, and cached outside the checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control_plane::assets::cache_root;
use control_plane::assets::go::{self, LINKER_FLAGS, Recipe};

use crate::command;

/// All inputs of the build; their hash is the version in the cache.
const SOURCES: [&str; 15] = [
    include_str!("../go/cni/go.mod"),
    include_str!("../go/cni/go.sum"),
    include_str!("../go/containerd/go.mod"),
    include_str!("../go/containerd/go.sum"),
    include_str!("../go/coredns/go.mod"),
    include_str!("../go/coredns/go.sum"),
    include_str!("../go/coredns/main.go"),
    include_str!("../go/kubernetes/go.mod"),
    include_str!("../go/kubernetes/go.sum"),
    include_str!("../go/kubernetes/node/main.go"),
    include_str!("../go/kubernetes/pause/main.go"),
    include_str!("../go/runc/go.mod"),
    include_str!("../go/runc/go.sum"),
    CONTAINERD_FLAGS,
    LINKER_FLAGS,
];

const CONTAINERD_FLAGS: &str = "-s -w -X github.com/containerd/containerd/v2/version.Version=v2.3.7";

/// containerd without file systems that nodes do not use, some of which need C libraries.
const CONTAINERD_TAGS: &str = "no_btrfs,no_devmapper,no_zfs";

/// A Go package and the program that is built from it.
#[derive(Clone, Copy, Debug)]
struct Part {
    binary: &'static str,
    links: &'static [&'static str],
    /// The folder of its module in `go/`.
    module: &'static str,
    package: &'static str,
    build: Build,
}

/// The kind of a build, which decides its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    Plain,
    /// With the version of Kubernetes.
    Kubernetes,
    Containerd,
    /// With a C compiler and libseccomp.
    Runc,
    /// A test program.
    Test,
}

const fn part(binary: &'static str, module: &'static str, package: &'static str, build: Build) -> Part {
    Part { binary, links: &[], module, package, build }
}

const RUNC: Part = part("runc", "runc", "github.com/opencontainers/runc", Build::Runc);

/// The programs of nodes and of the images that every cluster has. Programs whose build is short, or often fails, come
/// first.
const NODE: [Part; 12] = [
    RUNC,
    part("containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd", Build::Containerd),
    part(
        "containerd-shim-runc-v2",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        Build::Containerd,
    ),
    part("ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr", Build::Containerd),
    part("host-local", "cni", "github.com/containernetworking/plugins/plugins/ipam/host-local", Build::Plain),
    part("ptp", "cni", "github.com/containernetworking/plugins/plugins/main/ptp", Build::Plain),
    part("loopback", "cni", "github.com/containernetworking/plugins/plugins/main/loopback", Build::Plain),
    part("portmap", "cni", "github.com/containernetworking/plugins/plugins/meta/portmap", Build::Plain),
    Part { links: &["kubelet", "kube-proxy"], ..part("node", "kubernetes", "./node", Build::Kubernetes) },
    part("pause", "kubernetes", "./pause", Build::Plain),
    part("coredns", "coredns", ".", Build::Plain),
    part("agnhost", "kubernetes", "k8s.io/kubernetes/test/images/agnhost", Build::Kubernetes),
];

/// The programs of upstream's conformance suite and of its images.
const CONFORMANCE: [Part; 5] = [
    part("nonewprivs", "kubernetes", "k8s.io/kubernetes/test/images/nonewprivs", Build::Plain),
    part("regression-issue-74839", "kubernetes", "k8s.io/kubernetes/test/images/regression-issue-74839", Build::Plain),
    part("sample-apiserver", "kubernetes", "k8s.io/sample-apiserver", Build::Kubernetes),
    part("ginkgo", "kubernetes", "github.com/onsi/ginkgo/v2/ginkgo", Build::Plain),
    part("e2e.test", "kubernetes", "k8s.io/kubernetes/test/e2e", Build::Test),
];

/// The certificate and key of the HTTPS server `porter` in upstream's source; the image of the suite contains them.
pub const PORTER: [&str; 2] = ["localhost.crt", "localhost.key"];

/// The folder with the programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Its path.
    pub folder: PathBuf,
}

impl Programs {
    /// Returns the folder; it may be empty.
    ///
    /// # Errors
    /// If the environment names no folder for it.
    pub fn locate() -> Result<Self> {
        Ok(Self { folder: cache_root()?.join(go::version(&SOURCES)) })
    }

    /// Returns true if all programs of nodes exist.
    pub fn are_built(&self) -> bool {
        NODE.iter().all(|part| self.has(part))
    }

    /// Returns true if the build of missing programs needs a C compiler and libseccomp.
    pub fn need_c(&self) -> bool {
        !self.has(&RUNC)
    }

    /// Returns the path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Builds missing programs of nodes. Blocks, for about fifteen minutes the first time.
    ///
    /// # Errors
    /// When Go is missing or fails, or the disk is full.
    pub fn build(&self) -> Result<()> {
        self.build_all(&NODE)
    }

    /// Builds missing programs of the conformance suite.
    ///
    /// # Errors
    /// As [`Programs::build`].
    pub fn build_conformance(&self) -> Result<()> {
        self.build_all(&CONFORMANCE)?;
        self.copy_porter()
    }

    /// Returns true if everything that [`Programs::build_conformance`] makes exists.
    pub fn are_built_for_conformance(&self) -> bool {
        CONFORMANCE.iter().all(|part| self.has(part)) && PORTER.iter().all(|name| self.path(name).is_file())
    }

    /// Copies the files of `porter` from upstream's source, so that Go is not needed when root creates images.
    fn copy_porter(&self) -> Result<()> {
        if PORTER.iter().all(|name| self.path(name).is_file()) {
            return Ok(());
        }
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/kubernetes").display().to_string();
        let output = command::run("go", &["-C", &module, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"])?;
        let folder = Path::new(output.trim()).join("test/images/agnhost/porter");
        for name in PORTER {
            let (from, to) = (folder.join(name), self.path(name));
            let content = fs::read(&from).with_context(|| format!("read {}", from.display()))?;
            fs::write(&to, content).with_context(|| format!("write {}", to.display()))?;
        }
        Ok(())
    }

    fn has(&self, part: &Part) -> bool {
        part.links.iter().chain([&part.binary]).all(|name| self.folder.join(name).is_file())
    }

    fn build_all(&self, parts: &[Part]) -> Result<()> {
        for part in parts.iter().filter(|part| !self.has(part)) {
            let recipe = Recipe {
                title: part.binary,
                binary: part.binary,
                links: part.links,
                module: Path::new(env!("CARGO_MANIFEST_DIR")).join("go").join(part.module),
                arguments: part.arguments(&go::folder(&self.folder).join(part.binary)),
                cgo: part.build == Build::Runc,
                space: match part.build {
                    Build::Kubernetes | Build::Test => go::LARGE_BUILD_BYTES,
                    Build::Plain | Build::Containerd | Build::Runc => go::SMALL_BUILD_BYTES,
                },
            };
            go::build(&recipe, &self.folder).with_context(|| format!("get {}", part.binary))?;
        }
        Ok(())
    }
}

impl Part {
    /// Returns the arguments with which Go writes the program to `output`.
    fn arguments(&self, output: &Path) -> Vec<String> {
        let (command, flags, more): (&[&str], &str, &[&str]) = match self.build {
            Build::Plain => (&["build"], "-s -w", &[]),
            Build::Kubernetes => (&["build"], LINKER_FLAGS, &[]),
            Build::Containerd => (&["build"], CONTAINERD_FLAGS, &["-tags", CONTAINERD_TAGS]),
            Build::Runc => (&["build"], "-s -w", &["-tags", "seccomp"]),
            Build::Test => (&["test", "-c", "-vet=off"], LINKER_FLAGS, &[]),
        };
        let output = output.display().to_string();
        let common = ["-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", &output];
        command.iter().chain(&common).chain(more).chain([&self.package]).map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_count_as_built_when_all_names_exist() {
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs { folder: folder.path().to_owned() };
        assert!(!programs.are_built() && programs.need_c());
        for part in NODE {
            part.links.iter().chain([&part.binary]).for_each(|name| std::fs::write(programs.path(name), "").unwrap());
        }
        assert!(programs.are_built() && !programs.need_c());
        std::fs::remove_file(programs.path("kubelet")).unwrap();
        assert!(!programs.are_built());
    }

    #[test]
    fn test_program_is_compiled_without_being_run() {
        let arguments = CONFORMANCE[4].arguments(Path::new("/out"));
        assert_eq!(arguments[..3], ["test", "-c", "-vet=off"]);
        assert_eq!(arguments.last().map(String::as_str), Some("k8s.io/kubernetes/test/e2e"));
    }
}
