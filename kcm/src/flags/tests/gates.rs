//! Resolution of feature gates, compared with upstream's.

use component::flags::gates::GateError;

use super::gate_table::DEPENDENCIES;
use super::*;

fn resolve(gates: &str, emulated: &str, compatible: &str) -> Result<Gates, Vec<String>> {
    let list =
        |text: &str| -> Vec<String> { text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect() };
    let texts = |errors: Vec<GateError>| errors.iter().map(ToString::to_string).collect();
    Gates::resolve(&super::GATES, &list(gates), &list(emulated), &list(compatible)).map_err(texts)
}

#[test]
fn gates_are_resolved_like_upstreams() {
    for (gates, emulated, compatible, gate, want) in [
        ("", "", "", "DeploymentReplicaSetTerminatingReplicas", true),
        ("", "1.34", "", "DeploymentReplicaSetTerminatingReplicas", false),
        ("DeploymentReplicaSetTerminatingReplicas=false", "", "", "DeploymentReplicaSetTerminatingReplicas", false),
        ("kube:GenericWorkload=T", "", "", "GenericWorkload", true),
        ("AllBeta=false", "", "", "PodDeletionCost", false),
        ("PodDeletionCost=true,AllBeta=false", "", "", "PodDeletionCost", true),
        ("", "", "", "DRAFractionalCapacityRange", false),
        ("", "", "1.37", "DRAFractionalCapacityRange", true),
        ("", "kube=v1.36", "", "AllAlpha", false),
    ] {
        let resolved = resolve(gates, emulated, compatible).unwrap();
        assert_eq!(resolved.enabled(gate), want, "{gates:?} {emulated:?} {compatible:?} {gate}");
    }
}

#[test]
fn minimum_compatibility_follows_the_emulated_version() {
    for (emulated, compatible, want) in
        [("", "", (37, 36)), ("1.36", "", (36, 35)), ("1.34", "", (34, 34)), ("1.36", "1.34", (36, 34))]
    {
        let gates = resolve("", emulated, compatible).unwrap();
        assert_eq!((gates.emulated_minor(), gates.min_compatibility_minor()), want);
    }
}

#[test]
fn wrong_gates_and_versions_are_refused() {
    for (gates, emulated, compatible, want) in [
        ("Nope=true", "", "", "--feature-gates: unrecognized feature gate: Nope"),
        (
            "PodDeletionCosts=true",
            "",
            "",
            "--feature-gates: unrecognized feature gate: PodDeletionCosts (did you mean PodDeletionCost?)",
        ),
        (
            "PodDeletionCost",
            "",
            "",
            "--feature-gates: missing bool value for PodDeletionCost; write PodDeletionCost=true or PodDeletionCost=false",
        ),
        ("PodDeletionCost=on", "", "", "--feature-gates: invalid value of PodDeletionCost=on; give true or false"),
        (
            "AggregatedDiscoveryRemoveBetaType=false",
            "",
            "",
            "--feature-gates: cannot set feature gate AggregatedDiscoveryRemoveBetaType to false, feature is locked to true; remove it",
        ),
        (
            "APIServerWebhookAuthenticationToken=true",
            "1.36",
            "",
            "--feature-gates: cannot set feature gate APIServerWebhookAuthenticationToken to true, it does not exist yet at emulated version 1.36",
        ),
        (
            "WorkloadWithJob=true",
            "",
            "",
            "--feature-gates: WorkloadWithJob is enabled, but depends on features that are disabled: GenericWorkload",
        ),
        ("wardle:X=true", "", "", "--feature-gates: component not registered: wardle; this manager has only kube"),
        (
            "kube:AllAlpha=false,AllBeta=true",
            "",
            "",
            "--feature-gates: only some gates have the prefix kube:; write it before all of them or before none",
        ),
        ("", "1.20", "", "--emulated-version: version 1.20 is not between 1.34 and 1.37"),
        ("", "2.36", "", "--emulated-version: version 2.36 is not between 1.34 and 1.37"),
        (
            "",
            "1.36.1",
            "",
            "--emulated-version: \"1.36.1\" is not a version; give major.minor, such as 1.36 or kube=1.36",
        ),
        ("", "1.36,kube=1.35", "", "--emulated-version: \"1.35\" is a second version for kube; give one"),
        ("", "wardle=1.2", "", "--emulated-version: component not registered: wardle; this manager has only kube"),
        ("", "1.35", "1.36", "--min-compatibility-version: version 1.36 is not between 1.34 and 1.35"),
    ] {
        let errors = resolve(gates, emulated, compatible).unwrap_err();
        assert_eq!(errors, [want], "{gates:?} {emulated:?} {compatible:?}");
    }
}

#[test]
fn a_locked_gate_may_be_given_its_own_value() {
    assert!(resolve("AggregatedDiscoveryRemoveBetaType=true", "", "").is_ok());
    assert!(resolve("AggregatedDiscoveryRemoveBetaType=false", "1.34", "").is_ok());
}

#[test]
fn the_table_is_in_order_and_its_dependencies_exist() {
    assert!(gate_table::GATES.is_sorted_by_key(|row| row.name));
    for row in gate_table::GATES {
        assert!(row.specs.is_sorted_by_key(|spec| (spec.since, spec.min_compatibility)), "{}", row.name);
    }
    let gates = Gates::of(&super::GATES);
    for (gate, needs) in DEPENDENCIES {
        for name in needs.iter().chain([gate]) {
            gates.enabled(name);
        }
    }
}

#[test]
#[should_panic(expected = "not in the table")]
fn reading_an_unknown_gate_is_a_defect() {
    Gates::of(&super::GATES).enabled("NoSuchGate");
}
