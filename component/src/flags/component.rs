//! The parts of a command line in which the binaries differ.

use super::controllers::UpstreamController;
use super::gates::{GateTable, Gates};
use super::rules::Violations;
use super::table::{self, Flag};
use super::values::Values;

/// A binary, described as data.
#[derive(Debug)]
pub struct Component {
    /// Upstream's name of the binary, as used in events about the Lease, in metrics, in the certificate's file name and
    /// in `--help`.
    pub name: &'static str,
    /// The name of our binary, for its own messages.
    pub binary: &'static str,
    /// The description at the top of `--help`; ends with a line break.
    pub about: &'static str,
    /// The group of the configuration in `/configz`.
    pub config_group: &'static str,
    /// Every flag, in the order of `--help`.
    pub flags: &'static [Flag],
    /// Every feature gate.
    pub gates: &'static GateTable,
    /// All controllers of upstream's binary.
    pub controllers: &'static [UpstreamController],
    /// Upstream's binary serves `/flagz` and `/statusz`, behind the gates `ComponentFlagz` and
    /// `ComponentStatusz`.
    pub zpages: bool,
    /// Pairs of the name in upstream's metric `running_managed_controllers` and [`UpstreamController::name`], for
    /// controllers whose names differ.
    pub running_as: &'static [(&'static str, &'static str)],
    /// Checks single values, and combinations of values and gates; records each violated rule.
    pub rules: fn(&Values, &Gates, &mut Violations),
}

impl Component {
    /// Returns the index of the flag with this name in [`Component::flags`].
    pub fn position(&self, name: &str) -> Option<usize> {
        table::position(self.flags, name)
    }
}

/// Two values are equal if they have the same name.
impl PartialEq for Component {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
