//! Resolution of all feature gates from flags and the emulated version, by upstream's rules.

use std::collections::BTreeMap;

pub use super::gate_table::{Fixed, GateRow, GateTable, Spec, Stage};
use super::nearest::{hint, nearest};
use super::value::parse_bool;

/// The 1.x minor version of this manager.
pub const BINARY_MINOR: u16 = 37;
/// The oldest 1.x minor version that can be emulated.
pub const FLOOR_MINOR: u16 = 34;

/// Errors of gates or versions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// A version that cannot be parsed.
    #[error("--{flag}: {value:?} is not a version; give major.minor, such as 1.36 or kube=1.36")]
    Version {
        /// The flag.
        flag: &'static str,
        /// The text.
        value: String,
    },
    /// A version that is given twice.
    #[error("--{flag}: {value:?} is a second version for kube; give one")]
    DuplicateVersion {
        /// The flag.
        flag: &'static str,
        /// The text.
        value: String,
    },
    /// A version outside of the supported range.
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
    /// Gates with and without the prefix `kube:`.
    #[error("--feature-gates: only some gates have the prefix kube:; write it before all of them or before none")]
    MixedPrefix,
    /// A gate without a value.
    #[error("--feature-gates: missing bool value for {gate}; write {gate}=true or {gate}=false")]
    MissingValue {
        /// The gate.
        gate: String,
    },
    /// A gate with a value that is not a bool.
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
        /// The most similar gate.
        nearest: Option<&'static str>,
    },
    /// The gate can no longer be changed.
    #[error("--feature-gates: cannot set feature gate {gate} to {value}, feature is locked to {locked}; remove it")]
    Locked {
        /// The gate.
        gate: &'static str,
        /// The given value.
        value: bool,
        /// The locked value.
        locked: bool,
    },
    /// The gate did not exist in the emulated version.
    #[error(
        "--feature-gates: cannot set feature gate {gate} to {value}, it does not exist yet at emulated version 1.{emulated}"
    )]
    TooEarly {
        /// The gate.
        gate: &'static str,
        /// The given value.
        value: bool,
        /// The emulated minor version.
        emulated: u16,
    },
    /// A gate is on, but gates that it depends on are off.
    #[error("--feature-gates: {gate} is enabled, but depends on features that are disabled: {}", .missing.join(", "))]
    Dependency {
        /// The gate.
        gate: &'static str,
        /// The gates that it depends on and that are off.
        missing: Vec<&'static str>,
    },
}

/// The resolved gates.
#[derive(Clone, Debug)]
pub struct Gates {
    table: &'static GateTable,
    emulated: u16,
    min_compatibility: u16,
    /// All values from the command line: set by name, or by AllAlpha or AllBeta.
    set: BTreeMap<&'static str, bool>,
    /// The gates that `--feature-gates` sets by name, without those that only AllAlpha or AllBeta sets.
    named: BTreeMap<&'static str, bool>,
}

/// Only gates of the same binary are compared.
impl PartialEq for Gates {
    fn eq(&self, other: &Self) -> bool {
        let parts = |gates: &Gates| (gates.emulated, gates.min_compatibility, gates.set.clone());
        parts(self) == parts(other)
    }
}

impl Gates {
    /// Returns all gates of `table` with their defaults in the newest version.
    pub fn of(table: &'static GateTable) -> Self {
        Gates {
            table,
            emulated: BINARY_MINOR,
            min_compatibility: BINARY_MINOR - 1,
            set: BTreeMap::new(),
            named: BTreeMap::new(),
        }
    }

    /// Returns true if the gate is on: for a fixed gate its fixed value.
    ///
    /// # Panics
    /// If the table has no gate with that name, which is a defect of the program: the names are literals. Upstream:
    /// component-base featuregate, Enabled.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(row) = self.table.row(name) else {
            panic!("feature gate {name:?} is not in the table of gates");
        };
        self.is_effective(row)
    }

    /// Returns the fixed gates that `--feature-gates` sets by name to a value that is neither their fixed value nor
    /// their default.
    pub fn ignored_requests(&self) -> impl Iterator<Item = (&'static str, Fixed)> {
        self.overridden_by_fixed_value().filter(|(gate, _)| !self.is_named_as_default(gate))
    }

    /// Returns the fixed gates that `--feature-gates` sets by name to their default, which is not their fixed value.
    /// Such flags are valid for upstream's manager and change nothing there.
    pub fn ignored_defaults(&self) -> impl Iterator<Item = (&'static str, Fixed)> {
        self.overridden_by_fixed_value().filter(|(gate, _)| self.is_named_as_default(gate))
    }

    /// Returns the fixed gates that AllAlpha or AllBeta sets to another value than their fixed one.
    pub fn fixed_despite_stage(&self) -> Vec<&'static str> {
        let is_unchanged = |gate: &str, value: bool| {
            !self.named.contains_key(gate) && (self.table.fixed)(gate).is_some_and(|fixed| fixed.value != value)
        };
        self.set.iter().filter(|(gate, value)| is_unchanged(gate, **value)).map(|(gate, _)| *gate).collect()
    }

    fn overridden_by_fixed_value(&self) -> impl Iterator<Item = (&'static str, Fixed)> {
        let fixed = |(gate, value): (&&'static str, &bool)| {
            let fixed = (self.table.fixed)(gate).filter(|fixed| fixed.value != *value)?;
            Some((*gate, fixed))
        };
        self.named.iter().filter_map(fixed)
    }

    fn is_named_as_default(&self, gate: &str) -> bool {
        let default = self.table.row(gate).and_then(|row| self.spec(row)).map(|spec| spec.default);
        default.is_some() && default == self.named.get(gate).copied()
    }

    /// Returns the 1.x minor version whose behaviour is emulated.
    pub fn emulated_minor(&self) -> u16 {
        self.emulated
    }

    /// Returns the oldest 1.x minor version to stay compatible with.
    pub fn min_compatibility_minor(&self) -> u16 {
        self.min_compatibility
    }

    /// Returns each gate of the emulated version: name, stage in that version, and true if it is on, as for
    /// [`Gates::enabled`].
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        self.table.gates.iter().filter_map(|row| Some((row.name, self.spec(row)?.stage, self.is_effective(row))))
    }

    fn is_effective(&self, row: &GateRow) -> bool {
        (self.table.fixed)(row.name).map_or_else(|| self.is_requested(row), |fixed| fixed.value)
    }

    /// Returns true if flags and defaults switch the gate on, regardless of its fixed value. Dependencies are checked
    /// with this value, as in upstream.
    fn is_requested(&self, row: &GateRow) -> bool {
        let default = || self.spec(row).is_some_and(|spec| spec.default);
        self.set.get(row.name).copied().unwrap_or_else(default)
    }

    fn spec(&self, row: &GateRow) -> Option<&'static Spec> {
        row.specs
            .iter()
            .rev()
            .find(|spec| spec.since <= self.emulated && spec.min_compatibility <= self.min_compatibility)
    }

    /// Resolves the gates of `table` from the lists of `--feature-gates`, `--emulated-version` and
    /// `--min-compatibility-version`. Upstream: component-base compatibility, registry.Set and Validate; featuregate,
    /// SetFromMap.
    ///
    /// # Errors
    /// Returns every error, not only the first.
    pub fn resolve(
        table: &'static GateTable,
        gates: &[String],
        emulated: &[String],
        min_compatibility: &[String],
    ) -> Result<Gates, Vec<GateError>> {
        let mut errors = Vec::new();
        let mut resolved = Gates::of(table);
        match minor_version("emulated-version", emulated, FLOOR_MINOR, BINARY_MINOR) {
            Ok(None) => {}
            Ok(Some(minor)) => {
                resolved.emulated = minor;
                resolved.min_compatibility = FLOOR_MINOR.max(minor - 1);
            }
            Err(wrong) => errors.extend(wrong),
        }
        let ceiling = resolved.emulated;
        match minor_version("min-compatibility-version", min_compatibility, FLOOR_MINOR, ceiling) {
            Ok(None) => {}
            Ok(Some(minor)) => resolved.min_compatibility = minor,
            Err(wrong) => errors.extend(wrong),
        }
        let requested = requested_gates(table.versioned, gates, &mut errors);
        resolved.apply(&requested, &mut errors);
        if errors.is_empty() { Ok(resolved) } else { Err(errors) }
    }

    fn apply(&mut self, requested: &BTreeMap<String, bool>, errors: &mut Vec<GateError>) {
        let before = errors.len();
        for (gate, value) in requested {
            let value = *value;
            let Some(row) = self.table.row(gate) else {
                let nearest = nearest(gate, self.table.gates.iter().map(|row| row.name));
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
                    self.named.insert(gate, value);
                }
            }
        }
        self.apply_all_of("AllAlpha", Stage::Alpha);
        self.apply_all_of("AllBeta", Stage::Beta);
        if errors.len() == before {
            errors.extend(self.missing_dependencies());
        }
    }

    /// Sets each gate of a stage, unless it was named, to the value of AllAlpha or AllBeta.
    fn apply_all_of(&mut self, every: &str, stage: Stage) {
        let Some(value) = self.set.get(every).copied() else {
            return;
        };
        for row in self.table.gates.iter().filter(|row| !matches!(row.name, "AllAlpha" | "AllBeta")) {
            if self.spec(row).is_some_and(|spec| spec.stage == stage) {
                self.set.entry(row.name).or_insert(value);
            }
        }
    }

    fn missing_dependencies(&self) -> Vec<GateError> {
        let on = |name: &&'static str| self.table.row(name).is_some_and(|row| self.is_requested(row));
        let enabled = self.table.dependencies.iter().filter(|(gate, _)| on(gate));
        enabled
            .map(|(gate, needs)| {
                let missing = needs.iter().copied().filter(|need| !on(need)).collect();
                GateError::Dependency { gate, missing }
            })
            .filter(|error| !matches!(error, GateError::Dependency { missing, .. } if missing.is_empty()))
            .collect()
    }
}

/// Returns the lines in `--help` for the alpha and beta gates. Upstream: component-base featuregate, KnownFeatures.
pub fn help_lines(table: &'static GateTable) -> Vec<String> {
    let gates = Gates::of(table);
    let component = if table.versioned { "kube:" } else { "" };
    let help_line = |row: &GateRow| {
        let spec = gates.spec(row)?;
        let stage = match spec.stage {
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
            Stage::Ga | Stage::Deprecated => return None,
        };
        Some(format!("{component}{}=true|false ({stage} - default={})", row.name, spec.default))
    };
    table.gates.iter().filter_map(help_line).collect()
}

fn requested_gates(versioned: bool, gates: &[String], errors: &mut Vec<GateError>) -> BTreeMap<String, bool> {
    let mut requested = BTreeMap::new();
    let prefixed = gates.iter().filter(|pair| pair.contains(':')).count();
    if versioned && prefixed != 0 && prefixed != gates.len() {
        errors.push(GateError::MixedPrefix);
    }
    for pair in gates {
        let (component, switch) = match pair.split_once(':') {
            Some(parts) if versioned => parts,
            _ => ("kube", pair.as_str()),
        };
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
                requested.insert(gate, on);
            }
            None => errors.push(GateError::Value { gate, value: value.to_owned() }),
        }
    }
    requested
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

/// Parses `1.36`, `v1.36` or `1.36.0`. Ignores anything after the numbers, and refuses a patch other than 0. Upstream:
/// apimachinery util/version, Parse; component-base compatibility, toVersionMap.
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
