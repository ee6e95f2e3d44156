//! The clusters and programs of a command, from which its requirements follow.

use std::path::PathBuf;

use anyhow::Result;
use control_plane::assets::{Assets, Program};

use crate::programs::Programs;
use crate::{images, metrics, storage};

/// The programs of the control plane.
const CONTROL_PLANE: [Program; 4] = [Program::Etcd, Program::KubeApiserver, Program::KubeScheduler, Program::Kubectl];

/// The cluster of a command, and everything that is built for it. Several clusters run one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The number of nodes.
    pub nodes: u8,
    /// The cluster has a CSI driver and its sidecars.
    pub has_volumes: bool,
    /// The images and programs of upstream's conformance suite.
    pub has_suite: bool,
    /// Programs of metrics-server and of its load, for specs of the suite.
    pub has_metrics: bool,
    /// Upstream's controller manager.
    pub has_upstream: bool,
    /// The folder in which cargo builds our managers, and the bytes that it writes, if it has to.
    pub cargo: Option<(PathBuf, u64)>,
}

/// Groups of programs and images that exist already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BuiltGroups {
    pub(super) control_plane: bool,
    pub(super) upstream: bool,
    pub(super) nodes: bool,
    pub(super) storage: bool,
    pub(super) suite: bool,
    pub(super) suite_storage: bool,
    pub(super) metrics: bool,
    pub(super) images: bool,
    pub(super) suite_images: bool,
}

impl Demand {
    /// Returns the demand of a cluster alone.
    pub fn of_cluster(nodes: u8, has_volumes: bool) -> Self {
        Self { nodes, has_volumes, ..Self::default() }
    }

    /// Returns true if specs of the suite need volumes.
    pub(super) fn has_suite_volumes(&self) -> bool {
        self.has_suite && self.has_volumes
    }

    /// Builds all programs, and the images that need no root rights. Blocks, for about fifteen minutes the first time.
    ///
    /// # Errors
    /// When Go is missing or fails, or the disk is full.
    pub fn build(&self, programs: &Programs) -> Result<()> {
        programs.build()?;
        images::file(programs)?;
        Assets::of(&CONTROL_PLANE)?;
        if self.has_volumes {
            storage::build()?;
        }
        if self.has_upstream {
            Assets::of(&[])?.upstream_manager()?;
        }
        if self.has_suite {
            programs.build_conformance()?;
        }
        if self.has_suite_volumes() {
            storage::SUITE.build()?;
        }
        if self.has_metrics {
            metrics::PARTS.build()?;
        }
        Ok(())
    }

    /// Returns true if [`Demand::build`] has nothing to do.
    ///
    /// # Errors
    /// When the environment names no place for programs.
    pub fn is_built(&self, programs: &Programs) -> Result<bool> {
        let built = BuiltGroups::now(programs)?;
        Ok(built.control_plane
            && built.nodes
            && built.images
            && (built.storage || !self.has_volumes)
            && (built.upstream || !self.has_upstream)
            && (built.suite || !self.has_suite)
            && (built.suite_storage || !self.has_suite_volumes())
            && (built.metrics || !self.has_metrics))
    }
}

impl BuiltGroups {
    /// Returns the groups that exist on this machine.
    pub(super) fn now(programs: &Programs) -> Result<Self> {
        Ok(Self {
            control_plane: Assets::are_built(&CONTROL_PLANE)?,
            upstream: Assets::are_built(&[Program::UpstreamManager])?,
            nodes: programs.are_built(),
            storage: storage::are_built()?,
            suite: programs.are_built_for_conformance(),
            suite_storage: storage::SUITE.are_built()?,
            metrics: metrics::PARTS.are_built()?,
            images: programs.path(images::FILE).is_file(),
            suite_images: programs.path(images::suite::FILE).is_file(),
        })
    }
}
