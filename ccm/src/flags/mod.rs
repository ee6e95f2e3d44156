//! The command line of cloud-controller-manager 1.37, as tables and rules.

pub mod controllers;
mod gate_table;
mod rules;
pub mod table;

#[cfg(test)]
mod tests;

use component::Component;
use component::flags::gates::{Fixed, GateTable};
pub use component::flags::{FlagErrors, Gates, Invocation, Options, Values};

use crate::flags::controllers::UPSTREAM;

/// Every feature gate of the manager.
pub static GATES: GateTable =
    GateTable { gates: gate_table::GATES, dependencies: gate_table::DEPENDENCIES, versioned: false, fixed };

/// Returns the value that a gate always has. The reasons are the same as in kcm.
fn fixed(gate: &str) -> Option<Fixed> {
    let (value, reason) = match gate {
        "ContextualLogging" => (true, "log lines always name their object"),
        "ControllerManagerReleaseLeaderElectionLockOnExit" => (true, "the Lease is always released at a clean exit"),
        // Upstream's manager reads the gate, but does not pass it to its metrics.
        "NativeHistograms" => (false, "histograms are classic, as those of upstream's cloud-controller-manager"),
        _ => return None,
    };
    Some(Fixed { value, reason })
}

/// The manager, described as data.
pub static COMPONENT: Component = Component {
    name: "cloud-controller-manager",
    binary: "ccm",
    about: "Runs the control loops that connect a Kubernetes cluster with its cloud: instances and\n\
            Nodes, load balancers and Services, routes and pod networks.\n\n\
            'ccm check-config' checks a configuration before it is used; see its --help.\n",
    config_group: "cloudcontrollermanager.config.k8s.io",
    flags: table::FLAGS,
    gates: &GATES,
    controllers: UPSTREAM,
    zpages: false,
    running_as: &[
        ("cloud-node", "cloud-node-controller"),
        ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
        ("route", "node-route-controller"),
        ("service", "service-lb-controller"),
    ],
    rules: rules::rules,
};

/// Parses and validates the manager's command line, without the program's name.
///
/// # Errors
/// All errors: parse errors, and violated rules. A rule about a flag whose value could not be parsed is not checked.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Invocation, FlagErrors> {
    component::flags::parse(&COMPONENT, arguments)
}
