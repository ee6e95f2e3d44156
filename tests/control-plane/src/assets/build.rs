//! The parts that contain the control plane's programs: Go builds each part by one call.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Program;
use super::go::{self, LINKER_FLAGS, Recipe};

/// The folder of the Go module.
const MODULE: &str = env!("CARGO_MANIFEST_DIR");

/// The inputs of the builds of the API server (with scheduler and kubectl), etcd, kwok and upstream's controller
/// manager.
const SOURCES: [&str; 7] = [
    include_str!("../../go.mod"),
    include_str!("../../go.sum"),
    include_str!("../../kube/main.go"),
    include_str!("../../etcd/main.go"),
    include_str!("../../upstream/main.go"),
    KWOK,
    LINKER_FLAGS,
];

/// The inputs of the cloud manager's build. They are separate, because few tests need that program: other programs are
/// not rebuilt after a change of `cloud/main.go`.
const CLOUD_SOURCES: [&str; 4] =
    [include_str!("../../go.mod"), include_str!("../../go.sum"), include_str!("../../cloud/main.go"), LINKER_FLAGS];

/// Like [`SOURCES`], for the module that renders charts. It is a separate module, so that Helm's dependencies do not
/// affect the API server's build.
const CHART_SOURCES: [&str; 3] =
    [include_str!("../../charts/go.mod"), include_str!("../../charts/go.sum"), include_str!("../../charts/main.go")];

/// Like [`CHART_SOURCES`], for the module that tests alerts.
const RULE_SOURCES: [&str; 3] =
    [include_str!("../../rules/go.mod"), include_str!("../../rules/go.sum"), include_str!("../../rules/main.go")];

/// Like [`CHART_SOURCES`], for the module with the CSI driver for tests, csi-attacher and csi-resizer. They are built
/// with Kubernetes' libraries of 1.37, but with other versions of further dependencies than the API server.
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

/// The AWS Load Balancer Controller.
const AWS_LOAD_BALANCERS: &str = "sigs.k8s.io/aws-load-balancer-controller/v3@v3.5.0";

/// The result of one call of Go: a binary and its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Kube,
    Etcd,
    Kwok,
    Upstream,
    Cloud,
    Aws,
    AwsLoadBalancers,
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
            Program::AwsLoadBalancerController => Part::AwsLoadBalancers,
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
            Part::AwsLoadBalancers => "aws-load-balancer-controller",
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
            Part::Etcd | Part::Kwok | Part::Aws | Part::AwsLoadBalancers | Part::Charts | Part::Rules => &[],
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
            Part::AwsLoadBalancers => "the AWS Load Balancer Controller",
            Part::Charts => "the program that renders charts",
            Part::Rules => "the program that tests alerts",
            Part::CsiDriver => "the CSI driver for tests",
            Part::CsiProvisioner => "csi-provisioner",
            Part::CsiAttacher => "csi-attacher",
            Part::CsiResizer => "csi-resizer",
        }
    }

    /// Returns the folder of the Go module that the part is built from.
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
            Part::AwsLoadBalancers => &["install", "-trimpath", "-ldflags", "-s -w", AWS_LOAD_BALANCERS],
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

/// Returns the version of a part: a hash of its inputs, the name of its folder in the cache.
pub(super) fn version(part: Part) -> String {
    let sources: &[&str] = match part {
        Part::Cloud => &CLOUD_SOURCES,
        Part::Charts => &CHART_SOURCES,
        Part::Rules => &RULE_SOURCES,
        Part::Aws => &[AWS],
        Part::AwsLoadBalancers => &[AWS_LOAD_BALANCERS],
        Part::CsiDriver | Part::CsiAttacher | Part::CsiResizer => &CSI_SOURCES,
        Part::CsiProvisioner => &CSI_PROVISIONER_SOURCES,
        Part::Kube | Part::Etcd | Part::Kwok | Part::Upstream => &SOURCES,
    };
    go::version(sources)
}

/// Builds a part into the cache, unless another process has just done so.
pub(super) fn build(part: Part, cache: &Path) -> Result<()> {
    let recipe = Recipe {
        title: part.title(),
        binary: part.binary(),
        links: part.links(),
        module: part.module(),
        arguments: part.arguments(&go::folder(cache)),
        cgo: false,
        space: if part == Part::Etcd { go::SMALL_BUILD_BYTES } else { go::LARGE_BUILD_BYTES },
    };
    go::build(&recipe, cache)
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
            Program::UpstreamCloudManager,
            Program::UpstreamAwsManager,
            Program::AwsLoadBalancerController,
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
}
