//! What makes one binary different from another, for its command line.

use super::controllers::UpstreamController;
use super::gates::GateTable;
use super::rules::Broken;
use super::table::Flag;
use super::{Gates, Values};

/// A binary, as data.
#[derive(Debug)]
pub struct Component {
    /// Upstream's name of it: in its Lease's events, its metrics, its certificate's file and its usage.
    pub name: &'static str,
    /// The name of our binary, for its own messages.
    pub binary: &'static str,
    /// What it does, for the head of `--help`; ends with a line break.
    pub about: &'static str,
    /// The group of the configuration in `/configz`.
    pub config_group: &'static str,
    /// Every flag, in the order of `--help`.
    pub flags: &'static [Flag],
    /// Every feature gate.
    pub gates: &'static GateTable,
    /// Every controller of upstream's.
    pub controllers: &'static [UpstreamController],
    /// Whether upstream's serves `/flagz` and `/statusz`, behind the gates `ComponentFlagz` and `ComponentStatusz`.
    pub zpages: bool,
    /// What upstream calls some controllers in `running_managed_controllers`, where it is not their name: name there
    /// and here.
    pub running_as: &'static [(&'static str, &'static str)],
    /// Records the rules that values break, alone and with one another and the settled gates.
    pub rules: fn(&Values, &Gates, &mut Broken),
}

impl Component {
    /// Returns the place in [`Component::flags`] of the flag of that name; underscores count as dashes, as in
    /// component-base cli/flag, WordSepNormalizeFunc.
    pub fn position(&self, name: &str) -> Option<usize> {
        let normal = name.replace('_', "-");
        self.flags.iter().position(|flag| flag.name == normal)
    }
}

/// Two values stand for the same binary if they have the same name.
impl PartialEq for Component {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
