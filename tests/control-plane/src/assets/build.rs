//! Builds one part of the programs with Go: under a lock, in a separate folder, and moved into the cache by a rename,
//! so that the cache is always consistent.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;

use super::Program;
use crate::processes::last_lines;

/// The folder of the Go module.
const MODULE: &str = env!("CARGO_MANIFEST_DIR");

/// The inputs of a build.
const SOURCES: [&str; 7] = [
    include_str!("../../go.mod"),
    include_str!("../../go.sum"),
    include_str!("../../kube/main.go"),
    include_str!("../../etcd/main.go"),
    include_str!("../../upstream/main.go"),
    KWOK,
    LINKER_FLAGS,
];

/// The inputs of the cloud manager's build, which few tests need: a change rebuilds nothing else.
const CLOUD_SOURCES: [&str; 4] =
    [include_str!("../../go.mod"), include_str!("../../go.sum"), include_str!("../../cloud/main.go"), LINKER_FLAGS];

/// Like [`SOURCES`], for the module that renders charts. It is a separate module, so that Helm's dependencies do not
/// affect the API server's build.
const CHART_SOURCES: [&str; 3] =
    [include_str!("../../charts/go.mod"), include_str!("../../charts/go.sum"), include_str!("../../charts/main.go")];

/// Like [`CHART_SOURCES`], for the module that tests alerts.
const RULE_SOURCES: [&str; 3] =
    [include_str!("../../rules/go.mod"), include_str!("../../rules/go.sum"), include_str!("../../rules/main.go")];

/// Like [`CHART_SOURCES`], for the modules with the CSI driver for tests, csi-attacher and csi-resizer. They are built
/// with Kubernetes' libraries of 1.37, and with other versions of their dependencies than an API server.
const CSI_SOURCES: [&str; 3] =
    [include_str!("../../csi/go.mod"), include_str!("../../csi/go.sum"), include_str!("../../csi/driver/main.go")];

/// Like [`CSI_SOURCES`], for csi-provisioner, whose last release needs Kubernetes' libraries of 1.36.
const CSI_PROVISIONER_SOURCES: [&str; 2] =
    [include_str!("../../csi/provisioner/go.mod"), include_str!("../../csi/provisioner/go.sum")];

const CSI_PROVISIONER: &str = "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner";
const CSI_ATTACHER: &str = "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher";
const CSI_RESIZER: &str = "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer";

const KWOK: &str = "sigs.k8s.io/kwok/cmd/kwok@v0.8.0";

/// Upstream's cloud controller manager for AWS.
const AWS: &str = "k8s.io/cloud-provider-aws/cmd/aws-cloud-controller-manager@v1.37.0";

/// Without a version the scheduler and kwok refuse the API server's.
const LINKER_FLAGS: &str = "-s -w \
    -X k8s.io/component-base/version.gitVersion=v1.37.0 \
    -X k8s.io/component-base/version.gitMajor=1 \
    -X k8s.io/component-base/version.gitMinor=37 \
    -X k8s.io/component-base/version.gitTreeState=clean \
    -X k8s.io/component-base/version.gitCommit=0000000000000000000000000000000000000000 \
    -X k8s.io/component-base/version.buildDate=2026-08-26T00:00:00Z";

/// Free bytes that a first build needs, most of them in Go's own caches.
const SPACE: u64 = 6 << 30;

const PROGRESS: Duration = Duration::from_secs(5);

/// The result of one call of Go: a binary and its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Kube,
    Etcd,
    Kwok,
    Upstream,
    Cloud,
    Aws,
    Charts,
    Rules,
    CsiDriver,
    CsiProvisioner,
    CsiAttacher,
    CsiResizer,
}

impl Part {
    pub(super) fn of(program: Program) -> Self {
        match program {
            Program::KubeApiserver | Program::KubeScheduler | Program::Kubectl => Part::Kube,
            Program::Etcd => Part::Etcd,
            Program::Kwok => Part::Kwok,
            Program::UpstreamManager => Part::Upstream,
            Program::UpstreamCloudManager => Part::Cloud,
            Program::UpstreamAwsManager => Part::Aws,
            Program::Charts => Part::Charts,
            Program::Rules => Part::Rules,
            Program::CsiDriver => Part::CsiDriver,
            Program::CsiProvisioner => Part::CsiProvisioner,
            Program::CsiAttacher => Part::CsiAttacher,
            Program::CsiResizer => Part::CsiResizer,
        }
    }

    /// Returns the file that Go creates.
    fn binary(self) -> &'static str {
        match self {
            Part::Kube => "kube",
            Part::Etcd => "etcd",
            Part::Kwok => "kwok",
            Part::Upstream => "upstream",
            Part::Cloud => "cloud",
            Part::Aws => "aws-cloud-controller-manager",
            Part::Charts => "charts",
            Part::Rules => "rules",
            Part::CsiDriver => "csi-driver",
            Part::CsiProvisioner => "csi-provisioner",
            Part::CsiAttacher => "csi-attacher",
            Part::CsiResizer => "csi-resizer",
        }
    }

    /// Returns additional names of the binary in the cache.
    fn links(self) -> &'static [&'static str] {
        match self {
            Part::Kube => &["kube-apiserver", "kube-scheduler", "kubectl"],
            Part::Etcd | Part::Kwok | Part::Aws | Part::Charts | Part::Rules => &[],
            Part::CsiDriver | Part::CsiProvisioner | Part::CsiAttacher | Part::CsiResizer => &[],
            Part::Upstream => &["kube-controller-manager"],
            Part::Cloud => &["cloud-controller-manager"],
        }
    }

    fn title(self) -> &'static str {
        match self {
            Part::Kube => "kube-apiserver, kube-scheduler and kubectl",
            Part::Etcd => "etcd",
            Part::Kwok => "kwok",
            Part::Upstream => "upstream's kube-controller-manager",
            Part::Cloud => "upstream's cloud-controller-manager",
            Part::Aws => "upstream's cloud-controller-manager for AWS",
            Part::Charts => "what renders charts",
            Part::Rules => "what tries alerts",
            Part::CsiDriver => "the CSI driver for tests",
            Part::CsiProvisioner => "csi-provisioner",
            Part::CsiAttacher => "csi-attacher",
            Part::CsiResizer => "csi-resizer",
        }
    }

    /// Returns the folder of the Go module that it is built from.
    fn module(self) -> PathBuf {
        match self {
            Part::Charts | Part::Rules => Path::new(MODULE).join(self.binary()),
            Part::CsiDriver | Part::CsiAttacher | Part::CsiResizer => Path::new(MODULE).join("csi"),
            Part::CsiProvisioner => Path::new(MODULE).join("csi/provisioner"),
            _ => PathBuf::from(MODULE),
        }
    }

    /// Returns the Go package of a CSI program, relative to its module.
    fn csi_package(self) -> &'static str {
        match self {
            Part::CsiProvisioner => CSI_PROVISIONER,
            Part::CsiAttacher => CSI_ATTACHER,
            Part::CsiResizer => CSI_RESIZER,
            _ => "./driver",
        }
    }

    /// Returns the arguments of Go, which leave the binary in `folder`.
    fn arguments(self, folder: &Path) -> Vec<String> {
        let output = folder.join(self.binary()).display().to_string();
        let arguments: &[&str] = match self {
            Part::Kwok => &["install", "-trimpath", "-ldflags", "-s -w", KWOK],
            Part::Charts | Part::Rules => {
                &["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", &output, "."]
            }
            Part::CsiDriver | Part::CsiProvisioner | Part::CsiAttacher | Part::CsiResizer => {
                &["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", &output, self.csi_package()]
            }
            Part::Aws => &["install", "-trimpath", "-ldflags", "-s -w", AWS],
            _ => &[
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags",
                LINKER_FLAGS,
                "-o",
                &output,
                &format!("./{}", self.binary()),
            ],
        };
        arguments.iter().map(ToString::to_string).collect()
    }
}

/// Returns the name of a part's version: a hash (FNV-1a) of all inputs of the build, and the platform.
pub(super) fn version(part: Part) -> String {
    let machine = [std::env::consts::OS, std::env::consts::ARCH];
    let sources: &[&str] = match part {
        Part::Cloud => &CLOUD_SOURCES,
        Part::Charts => &CHART_SOURCES,
        Part::Rules => &RULE_SOURCES,
        Part::Aws => &[AWS],
        Part::CsiDriver | Part::CsiAttacher | Part::CsiResizer => &CSI_SOURCES,
        Part::CsiProvisioner => &CSI_PROVISIONER_SOURCES,
        Part::Kube | Part::Etcd | Part::Kwok | Part::Upstream => &SOURCES,
    };
    let bytes = sources.iter().chain(&machine).flat_map(|text| text.bytes().chain([0]));
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

/// Builds a part into the cache, unless another process has just done so.
pub(super) fn build(part: Part, cache: &Path) -> Result<()> {
    fs::create_dir_all(cache).with_context(|| format!("make the folder {}", cache.display()))?;
    let _lock = lock(&cache.join("lock"))?;
    if cache.join(part.binary()).is_file() {
        return link(part, cache);
    }
    let go_cache = go_cache()?;
    for place in [cache, &go_cache] {
        let free = free_space(place)?;
        if free < SPACE {
            bail!(
                "building {} needs {} GB of free disk space, and {} has {:.1}: free some, or set KCM_TEST_ASSETS and GOCACHE to another disk",
                part.title(),
                SPACE >> 30,
                place.display(),
                free as f64 / f64::from(1 << 30),
            );
        }
    }
    let folder = cache.join("building");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}, left by a build", folder.display()))?;
    }
    fs::create_dir(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
    run_go(part, &folder)?;
    fs::rename(folder.join(part.binary()), cache.join(part.binary()))
        .with_context(|| format!("move {} into {}", part.binary(), cache.display()))?;
    fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    link(part, cache)
}

fn link(part: Part, cache: &Path) -> Result<()> {
    for name in part.links() {
        match symlink(part.binary(), cache.join(name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("link {name} in {}", cache.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Takes a lock that lasts as long as the file is open, even if the process is killed.
fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("open {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            eprintln!("control-plane: another process builds the programs; waiting for it");
            flock(&file, FlockOperation::LockExclusive)
        }
        other => other,
    }
    .with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// Returns Go's build cache, or the nearest existing folder above it.
fn go_cache() -> Result<PathBuf> {
    let output = match Command::new("go").args(["env", "GOCACHE"]).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "the control plane's programs are not there and Go is not installed to build them: install Go 1.26 or later (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with kube-apiserver, kube-scheduler, kubectl, etcd and kwok"
        ),
        output => output.context("run go env GOCACHE")?,
    };
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let there = path.ancestors().find(|path| path.is_dir());
    Ok(there.unwrap_or(Path::new("/")).to_owned())
}

fn free_space(place: &Path) -> Result<u64> {
    let disk = statvfs(place).with_context(|| format!("look for free disk space at {}", place.display()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Runs Go to its end and prints the elapsed time every few seconds.
fn run_go(part: Part, folder: &Path) -> Result<()> {
    let log = folder.join("go.log");
    let output = File::create(&log).with_context(|| format!("open {}", log.display()))?;
    let mut go = Command::new("go")
        .args(part.arguments(folder))
        .current_dir(part.module())
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly")
        .env("GOBIN", folder)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("run go")?;
    let title = part.title();
    eprintln!("control-plane: building {title} with Go (once; the first build takes some ten minutes)");
    let start = Instant::now();
    let mut said = start;
    let status = loop {
        if let Some(status) = go.try_wait().context("wait for go")? {
            break status;
        }
        if said.elapsed() >= PROGRESS {
            said = Instant::now();
            eprintln!("control-plane: building {title}: {} s", start.elapsed().as_secs());
        }
        sleep(Duration::from_millis(100));
    };
    if !status.success() {
        bail!("go could not build {title} ({status}); its last lines:\n{}", last_lines(&log));
    }
    eprintln!("control-plane: built {title} in {} s", start.elapsed().as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_belongs_to_a_part() {
        for program in [
            Program::Etcd,
            Program::KubeApiserver,
            Program::KubeScheduler,
            Program::Kubectl,
            Program::Kwok,
            Program::UpstreamManager,
            Program::UpstreamAwsManager,
            Program::Charts,
            Program::Rules,
            Program::CsiDriver,
            Program::CsiProvisioner,
            Program::CsiAttacher,
            Program::CsiResizer,
        ] {
            let part = Part::of(program);
            let name = program.file_name();
            assert!(part.binary() == name || part.links().contains(&name), "{name}");
        }
    }

    #[test]
    fn lock_excludes_others_until_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let attempt = || flock(File::create(&path).unwrap(), FlockOperation::NonBlockingLockExclusive);
        let held = lock(&path).unwrap();
        assert_eq!(attempt(), Err(Errno::WOULDBLOCK));
        drop(held);
        assert_eq!(attempt(), Ok(()));
    }

    #[test]
    fn linking_again_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kube"), "program").unwrap();
        for _ in 0..2 {
            link(Part::Kube, folder.path()).unwrap();
        }
        assert_eq!(fs::read_to_string(folder.path().join("kubectl")).unwrap(), "program");
    }
}
