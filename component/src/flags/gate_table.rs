//! Feature gates, and the format of a table of gates.

/// The stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Controlled by AllAlpha.
    Alpha,
    /// Controlled by AllBeta.
    Beta,
    /// Generally available.
    Ga,
    /// Deprecated.
    Deprecated,
}

impl Stage {
    /// Returns the stage as in metrics. Upstream: component-base featuregate, PreRelease.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// The specification of a gate since a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The 1.x version from which the specification applies; 0 for all versions that can be emulated.
    pub since: u16,
    /// The specification applies if the minimum compatibility version is this 1.x version or a later one.
    pub min_compatibility: u16,
    /// The stage of the feature.
    pub stage: Stage,
    /// The gate is on by default.
    pub default: bool,
    /// The gate cannot be changed from its default.
    pub locked: bool,
}

/// A gate: its name and its specifications, the oldest first.
#[derive(Clone, Copy, Debug)]
pub struct GateRow {
    /// The name, as in `--feature-gates`.
    pub name: &'static str,
    /// Its specifications in ascending order of versions.
    pub specs: &'static [Spec],
}

/// A value that a gate always has, because the binary has only this behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The value.
    pub value: bool,
    /// The reason, for the message when the other value is requested.
    pub reason: &'static str,
}

/// The gates of a binary.
#[derive(Debug)]
pub struct GateTable {
    /// Every gate, by name.
    pub gates: &'static [GateRow],
    /// Dependencies: a gate, and the gates that must be on if it is on. Upstream: component-base featuregate,
    /// AddDependencies.
    pub dependencies: &'static [(&'static str, &'static [&'static str])],
    /// `--feature-gates` accepts `kube:` before a gate, as binaries with `--emulated-version` do.
    pub versioned: bool,
    /// Returns the value that a gate has in this binary regardless of the flags; `None` if the flags decide.
    pub fixed: fn(&str) -> Option<Fixed>,
}

impl GateTable {
    pub(super) fn row(&self, name: &str) -> Option<&'static GateRow> {
        self.gates.iter().find(|row| row.name == name)
    }
}

/// Defines `GATES`, the gates of a binary by name: each as `"Name": since min_compatibility Stage on|off [locked],
/// ...;`.
#[macro_export]
macro_rules! gates {
    ($($name:literal: $($since:literal $min:literal $stage:ident $switch:ident $($locked:ident)?),+;)*) => {
        /// Every gate, by name.
        pub static GATES: &[$crate::flags::gate_table::GateRow] = &[$($crate::flags::gate_table::GateRow {
            name: $name,
            specs: &[$($crate::flags::gate_table::Spec {
                since: $since,
                min_compatibility: $min,
                stage: $crate::flags::gate_table::Stage::$stage,
                default: $crate::gates!(@ $switch),
                locked: $crate::gates!(@ $($locked)?),
            }),+],
        }),*];
    };
    (@ on) => { true };
    (@ off) => { false };
    (@ locked) => { true };
    (@) => { false };
}
