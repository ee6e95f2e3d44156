//! Settles every feature gate from the flags and the emulated version, by upstream's rules.

use std::collections::BTreeMap;

use super::gate_table::{DEPENDENCIES, GATES, GateRow, Spec, Stage};
use super::nearest::{hint, nearest};
use super::value::parse_bool;

/// The 1.x minor version of this manager.
pub const BINARY_MINOR: u16 = 37;
/// The oldest 1.x minor version that can be emulated.
pub const FLOOR_MINOR: u16 = 34;

/// What is wrong with the gates or the versions asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// A version that cannot be read.
    #[error("--{flag}: {value:?} is not a version; give major.minor, as 1.36 or kube=1.36")]
    Version {
        /// The flag.
        flag: &'static str,
        /// The text.
        value: String,
    },
    /// A version given twice.
    #[error("--{flag}: {value:?} is a second version for kube; give one")]
    DuplicateVersion {
        /// The flag.
        flag: &'static str,
        /// The text.
        value: String,
    },
    /// A version outside of what can be emulated or kept compatible with.
    #[error("--{flag}: version {value} is not between 1.{floor} and {ceiling}")]
    VersionRange {
        /// The flag.
        flag: &'static str,
        /// The version.
        value: String,
        /// The lowest minor version.
        floor: u16,
        /// The highest version.
        ceiling: String,
    },
    /// A component other than kube.
    #[error("--{flag}: component not registered: {component}; this manager has only kube")]
    Component {
        /// The flag.
        flag: &'static str,
        /// The component.
        component: String,
    },
    /// Gates with and without `kube:` in front.
    #[error("--feature-gates: write kube: in front of all gates or of none, not of some")]
    MixedPrefix,
    /// A gate without a value.
    #[error("--feature-gates: missing bool value for {gate}; write {gate}=true or {gate}=false")]
    MissingValue {
        /// The gate.
        gate: String,
    },
    /// A gate with a value that is no bool.
    #[error("--feature-gates: invalid value of {gate}={value}; give true or false")]
    Value {
        /// The gate.
        gate: String,
        /// The value.
        value: String,
    },
    /// No gate has this name.
    #[error("--feature-gates: unrecognized feature gate: {gate}{}", hint(.nearest.as_deref(), ""))]
    Unknown {
        /// The gate.
        gate: String,
        /// The gate most likely meant.
        nearest: Option<&'static str>,
    },
    /// The gate can no longer be changed.
    #[error("--feature-gates: cannot set feature gate {gate} to {value}, feature is locked to {locked}; remove it")]
    Locked {
        /// The gate.
        gate: &'static str,
        /// The value asked for.
        value: bool,
        /// The value that it has for good.
        locked: bool,
    },
    /// The gate did not exist in the emulated version.
    #[error(
        "--feature-gates: cannot set feature gate {gate} to {value}, it does not exist yet at emulated version 1.{emulated}"
    )]
    TooEarly {
        /// The gate.
        gate: &'static str,
        /// The value asked for.
        value: bool,
        /// The emulated minor version.
        emulated: u16,
    },
    /// A gate is on without those that it needs.
    #[error("--feature-gates: {gate} is enabled, but depends on features that are disabled: {}", .missing.join(", "))]
    Dependency {
        /// The gate.
        gate: &'static str,
        /// Those that it needs and that are off.
        missing: Vec<&'static str>,
    },
}

/// The settled gates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gates {
    emulated: u16,
    min_compatibility: u16,
    set: BTreeMap<&'static str, bool>,
}

impl Default for Gates {
    /// All gates as they are by default in the newest version.
    fn default() -> Self {
        Gates { emulated: BINARY_MINOR, min_compatibility: BINARY_MINOR - 1, set: BTreeMap::new() }
    }
}

impl Gates {
    /// Whether the gate is on.
    ///
    /// # Panics
    /// When no gate of upstream's 1.37 has that name, as upstream's featuregate, Enabled does:
    /// the names asked for are literals in the program.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(row) = row(name) else {
            panic!("feature gate {name:?} is not in the table of gates");
        };
        self.is_on(row)
    }

    /// The 1.x minor version whose behaviour is emulated.
    pub fn emulated_minor(&self) -> u16 {
        self.emulated
    }

    /// The oldest 1.x minor version to stay compatible with.
    pub fn min_compatibility_minor(&self) -> u16 {
        self.min_compatibility
    }

    fn is_on(&self, row: &GateRow) -> bool {
        let default = || self.spec(row).is_some_and(|spec| spec.default);
        self.set.get(row.name).copied().unwrap_or_else(default)
    }

    fn spec(&self, row: &GateRow) -> Option<&'static Spec> {
        row.specs
            .iter()
            .rev()
            .find(|spec| spec.since <= self.emulated && spec.min_compatibility <= self.min_compatibility)
    }

    /// Settles the gates from the lists of `--feature-gates`, `--emulated-version` and
    /// `--min-compatibility-version` (component-base compatibility, registry.Set and Validate;
    /// featuregate, SetFromMap).
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn settle(
        gates: &[String],
        emulated: &[String],
        min_compatibility: &[String],
    ) -> Result<Gates, Vec<GateError>> {
        let mut errors = Vec::new();
        let mut settled = Gates::default();
        match minor_version("emulated-version", emulated, FLOOR_MINOR, BINARY_MINOR) {
            Ok(None) => {}
            Ok(Some(minor)) => {
                settled.emulated = minor;
                settled.min_compatibility = FLOOR_MINOR.max(minor - 1);
            }
            Err(wrong) => errors.extend(wrong),
        }
        let ceiling = settled.emulated;
        match minor_version("min-compatibility-version", min_compatibility, FLOOR_MINOR, ceiling) {
            Ok(None) => {}
            Ok(Some(minor)) => settled.min_compatibility = minor,
            Err(wrong) => errors.extend(wrong),
        }
        let asked = asked_gates(gates, &mut errors);
        settled.apply(&asked, &mut errors);
        if errors.is_empty() { Ok(settled) } else { Err(errors) }
    }

    fn apply(&mut self, asked: &BTreeMap<String, bool>, errors: &mut Vec<GateError>) {
        let before = errors.len();
        for (gate, value) in asked {
            let value = *value;
            let Some(row) = row(gate) else {
                let nearest = nearest(gate, GATES.iter().map(|row| row.name));
                let gate = gate.clone();
                errors.push(GateError::Unknown { gate, nearest });
                continue;
            };
            let (gate, emulated) = (row.name, self.emulated);
            match self.spec(row) {
                Some(spec) if spec.locked && spec.default != value => {
                    let locked = spec.default;
                    errors.push(GateError::Locked { gate, value, locked });
                }
                None => errors.push(GateError::TooEarly { gate, value, emulated }),
                Some(_) => {
                    self.set.insert(gate, value);
                }
            }
        }
        self.apply_all_of("AllAlpha", Stage::Alpha);
        self.apply_all_of("AllBeta", Stage::Beta);
        if errors.len() == before {
            errors.extend(self.missing_dependencies());
        }
    }

    /// Gives all gates of a stage that were not named the value of AllAlpha or AllBeta.
    fn apply_all_of(&mut self, every: &str, stage: Stage) {
        let Some(value) = self.set.get(every).copied() else {
            return;
        };
        for row in GATES.iter().filter(|row| !matches!(row.name, "AllAlpha" | "AllBeta")) {
            if self.spec(row).is_some_and(|spec| spec.stage == stage) {
                self.set.entry(row.name).or_insert(value);
            }
        }
    }

    fn missing_dependencies(&self) -> Vec<GateError> {
        let on = |name: &&'static str| self.enabled(name);
        let enabled = DEPENDENCIES.iter().filter(|(gate, _)| on(gate));
        enabled
            .map(|(gate, needs)| {
                let missing = needs.iter().copied().filter(|need| !on(need)).collect();
                GateError::Dependency { gate, missing }
            })
            .filter(|error| !matches!(error, GateError::Dependency { missing, .. } if missing.is_empty()))
            .collect()
    }
}

/// The lines `--help` has for the gates that can be switched: all but those generally available
/// or deprecated (component-base featuregate, KnownFeatures).
pub fn help_lines() -> Vec<String> {
    let gates = Gates::default();
    let line = |row: &GateRow| {
        let spec = gates.spec(row)?;
        let stage = match spec.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga | Stage::Deprecated => return None,
        };
        Some(format!("kube:{}=true|false ({stage} - default={})", row.name, spec.default))
    };
    GATES.iter().filter_map(line).collect()
}

fn row(name: &str) -> Option<&'static GateRow> {
    GATES.iter().find(|row| row.name == name)
}

fn asked_gates(gates: &[String], errors: &mut Vec<GateError>) -> BTreeMap<String, bool> {
    let mut asked = BTreeMap::new();
    let prefixed = gates.iter().filter(|pair| pair.contains(':')).count();
    if prefixed != 0 && prefixed != gates.len() {
        errors.push(GateError::MixedPrefix);
    }
    for pair in gates {
        let (component, switch) = pair.split_once(':').unwrap_or(("kube", pair));
        if component.trim() != "kube" {
            errors.push(GateError::Component { flag: "feature-gates", component: component.trim().to_owned() });
            continue;
        }
        let Some((gate, value)) = switch.split_once('=') else {
            let gate = switch.trim().to_owned();
            errors.push(GateError::MissingValue { gate });
            continue;
        };
        let (gate, value) = (gate.trim().to_owned(), value.trim());
        match parse_bool(value) {
            Some(on) => {
                asked.insert(gate, on);
            }
            None => errors.push(GateError::Value { gate, value: value.to_owned() }),
        }
    }
    asked
}

fn minor_version(
    flag: &'static str,
    entries: &[String],
    floor: u16,
    ceiling: u16,
) -> Result<Option<u16>, Vec<GateError>> {
    let mut found = None;
    let mut errors = Vec::new();
    for entry in entries {
        let (component, text) = entry.split_once('=').unwrap_or(("kube", entry));
        let value = text.trim().to_owned();
        let component = component.trim().to_owned();
        match major_minor(&value) {
            _ if component != "kube" => errors.push(GateError::Component { flag, component }),
            None => errors.push(GateError::Version { flag, value }),
            Some(_) if found.is_some() => errors.push(GateError::DuplicateVersion { flag, value }),
            Some((1, minor)) if (floor..=ceiling).contains(&minor) => found = Some(minor),
            Some(_) => {
                let ceiling = format!("1.{ceiling}");
                errors.push(GateError::VersionRange { flag, value, floor, ceiling });
            }
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// Reads `1.36`, `v1.36` or `1.36.0`, and like apimachinery's util/version, Parse, passes over
/// whatever follows the numbers; a patch other than 0 is refused (compatibility, toVersionMap).
fn major_minor(text: &str) -> Option<(u16, u16)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let numeric = |letter: char| letter.is_ascii_digit() || letter == '.';
    let end = text.find(|letter| !numeric(letter)).unwrap_or(text.len());
    let numbers = text[..end].split('.').map_while(|part| part.parse::<u16>().ok());
    match numbers.collect::<Vec<_>>()[..] {
        [major, minor] | [major, minor, 0, ..] => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(gates: &str, emulated: &str, compatible: &str) -> Result<Gates, Vec<String>> {
        let list = |text: &str| -> Vec<String> {
            text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect()
        };
        let told = |errors: Vec<GateError>| errors.iter().map(ToString::to_string).collect();
        Gates::settle(&list(gates), &list(emulated), &list(compatible)).map_err(told)
    }

    #[test]
    fn gates_are_settled_as_upstream_settles_them() {
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
            let settled = settle(gates, emulated, compatible).unwrap();
            assert_eq!(settled.enabled(gate), want, "{gates:?} {emulated:?} {compatible:?} {gate}");
        }
    }

    #[test]
    fn the_minimum_compatibility_follows_the_emulated_version() {
        for (emulated, compatible, want) in
            [("", "", (37, 36)), ("1.36", "", (36, 35)), ("1.34", "", (34, 34)), ("1.36", "1.34", (36, 34))]
        {
            let gates = settle("", emulated, compatible).unwrap();
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
                "--feature-gates: write kube: in front of all gates or of none, not of some",
            ),
            ("", "1.20", "", "--emulated-version: version 1.20 is not between 1.34 and 1.37"),
            ("", "2.36", "", "--emulated-version: version 2.36 is not between 1.34 and 1.37"),
            (
                "",
                "1.36.1",
                "",
                "--emulated-version: \"1.36.1\" is not a version; give major.minor, as 1.36 or kube=1.36",
            ),
            ("", "1.36,kube=1.35", "", "--emulated-version: \"1.35\" is a second version for kube; give one"),
            ("", "wardle=1.2", "", "--emulated-version: component not registered: wardle; this manager has only kube"),
            ("", "1.35", "1.36", "--min-compatibility-version: version 1.36 is not between 1.34 and 1.35"),
        ] {
            let errors = settle(gates, emulated, compatible).unwrap_err();
            assert_eq!(errors, [want], "{gates:?} {emulated:?} {compatible:?}");
        }
    }

    #[test]
    fn a_locked_gate_may_be_given_its_own_value() {
        assert!(settle("AggregatedDiscoveryRemoveBetaType=true", "", "").is_ok());
        assert!(settle("AggregatedDiscoveryRemoveBetaType=false", "1.34", "").is_ok());
    }

    #[test]
    fn the_table_is_in_order_and_its_dependencies_exist() {
        assert!(GATES.is_sorted_by_key(|row| row.name));
        for row in GATES {
            assert!(row.specs.is_sorted_by_key(|spec| (spec.since, spec.min_compatibility)), "{}", row.name);
        }
        let gates = Gates::default();
        for (gate, needs) in DEPENDENCIES {
            for name in needs.iter().chain([gate]) {
                gates.enabled(name);
            }
        }
        assert_eq!(gates.missing_dependencies(), []);
    }

    #[test]
    #[should_panic(expected = "not in the table")]
    fn asking_for_a_gate_that_does_not_exist_is_a_defect() {
        Gates::default().enabled("NoSuchGate");
    }
}
