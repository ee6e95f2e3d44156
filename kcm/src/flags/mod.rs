//! The command line of kube-controller-manager 1.37, as tables and rules.

pub mod controllers;
mod gate_effects;
mod gate_table;
pub mod table;
mod validate;

#[cfg(test)]
mod tests;

use component::Component;
use component::flags::gates::GateTable;
pub use component::flags::{FlagErrors, Gates, Invocation, LeaderElect, Options, Values, value};

use crate::flags::controllers::UPSTREAM;

/// Every feature gate of the manager.
pub static GATES: GateTable = GateTable {
    gates: gate_table::GATES,
    dependencies: gate_table::DEPENDENCIES,
    versioned: true,
    fixed: gate_effects::fixed,
};

/// The manager, as data.
pub static COMPONENT: Component = Component {
    name: "kube-controller-manager",
    binary: "kcm",
    about: "Runs the control loops of Kubernetes: each watches objects through the API server and\n\
            works to bring the observed state closer to the desired state.\n",
    config_group: "kubecontrollermanager.config.k8s.io",
    flags: table::FLAGS,
    gates: &GATES,
    controllers: UPSTREAM,
    zpages: true,
    running_as: &[("nodeipam", "node-ipam-controller")],
    rules: validate::rules,
};

/// Reads and checks the manager's command line, without the program's name.
///
/// # Errors
/// All errors: parse errors, and violated rules. A rule about a flag whose value could not be
/// parsed is not checked.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Invocation, FlagErrors> {
    component::flags::parse(&COMPONENT, arguments)
}
