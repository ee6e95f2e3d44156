//! What is known of a feature gate, and the form of a table of gates.

/// How ripe a feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Switched by AllAlpha.
    Alpha,
    /// Switched by AllBeta.
    Beta,
    /// Generally available.
    Ga,
    /// On its way out.
    Deprecated,
}

impl Stage {
    /// Returns the stage as metrics spell it (component-base featuregate, PreRelease).
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// What a gate is from one version on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The 1.x version from which this holds; 0 for as long as can be emulated.
    pub since: u16,
    /// The smallest 1.x minimum compatibility version under which this holds.
    pub min_compatibility: u16,
    /// How ripe the feature is.
    pub stage: Stage,
    /// Whether it is on when nothing is said.
    pub default: bool,
    /// Whether saying the opposite is refused.
    pub locked: bool,
}

/// One gate: its name and what it is, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct GateRow {
    /// The name, as in `--feature-gates`.
    pub name: &'static str,
    /// What it is by version, in rising order.
    pub specs: &'static [Spec],
}

/// The gates of a binary.
#[derive(Debug)]
pub struct GateTable {
    /// Every gate, by name.
    pub gates: &'static [GateRow],
    /// Each gate and the gates that must be on when it is (component-base featuregate, AddDependencies).
    pub dependencies: &'static [(&'static str, &'static [&'static str])],
    /// Whether `--feature-gates` takes `kube:` in front of a gate, as binaries with `--emulated-version` do.
    pub versioned: bool,
}

impl GateTable {
    pub(super) fn row(&self, name: &str) -> Option<&'static GateRow> {
        self.gates.iter().find(|row| row.name == name)
    }
}

/// Makes `GATES`, the gates of a binary by name: each as `"Name": since min_compatibility Stage on|off [locked], ...;`.
#[macro_export]
macro_rules! gates {
    ($($name:literal: $($since:literal $min:literal $stage:ident $switch:ident $($locked:ident)?),+;)*) => {
        /// Every gate, by name.
        pub static GATES: &[$crate::flags::gates::GateRow] = &[$($crate::flags::gates::GateRow {
            name: $name,
            specs: &[$($crate::flags::gates::Spec {
                since: $since,
                min_compatibility: $min,
                stage: $crate::flags::gates::Stage::$stage,
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
