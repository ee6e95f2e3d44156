//! The table of gate effects, and the documentation page that is generated from it.

use std::fmt::Write as _;
use std::path::Path;

use component::flags::gates::{FLOOR_MINOR, GateRow, Spec, Stage};

use super::super::gate_effects::{EFFECTS, Effect, effect, fixed};
use super::*;

fn row(gate: &str) -> &'static GateRow {
    super::GATES.gates.iter().find(|row| row.name == gate).unwrap_or_else(|| panic!("{gate} is not in the gate table"))
}

fn problems(flag: &str) -> String {
    problems_of(&[flag.to_owned()])
}

fn problems_of(flags: &[String]) -> String {
    parse(flags.to_vec()).err().map(|problems| problems.to_string()).unwrap_or_default()
}

/// The minor version since which a gate is locked; `None` if it is not.
fn locked_since(gate: &GateRow) -> Option<u16> {
    let locked: Vec<&Spec> = gate.specs.iter().rev().take_while(|spec| spec.locked).collect();
    locked.last().map(|spec| spec.since)
}

/// The newest emulated version in which a gate that is locked now could be changed, if it can be emulated.
fn last_unlocked(gate: &GateRow) -> Option<u16> {
    locked_since(gate).and_then(|since| since.checked_sub(1)).filter(|minor| *minor >= FLOOR_MINOR)
}

/// The table of gates with an effect, in Markdown.
fn page() -> String {
    let mut page = String::from("| feature gate | stage, default | effect |\n| --- | --- | --- |\n");
    for (gate, effect) in EFFECTS {
        let spec = row(gate).specs.last().expect("a specification");
        let stage = match spec.stage {
            Stage::Alpha => "alpha",
            Stage::Beta => "beta",
            Stage::Ga => "GA",
            Stage::Deprecated => "deprecated",
        };
        let default = if spec.default { "on" } else { "off" };
        let locked = match (last_unlocked(row(gate)), spec.locked) {
            (Some(minor), _) => format!(", locked since 1.{}", minor + 1),
            (None, true) => ", locked".to_owned(),
            (None, false) => String::new(),
        };
        let effect = match effect {
            Effect::Switches(subject) if locked == ", locked" => {
                format!("{subject}; `{gate}=false` is refused as in upstream, in all versions that can be emulated")
            }
            Effect::Switches(subject) => (*subject).to_owned(),
            Effect::AlwaysOn(reason) if spec.default => {
                format!("always on, `{gate}=false` is refused: {reason}")
            }
            Effect::AlwaysOff(reason) if !spec.default => {
                format!("always off, `{gate}=true` is refused: {reason}")
            }
            Effect::AlwaysOn(reason) => format!("always on, also with `{gate}=false`: {reason}"),
            Effect::AlwaysOff(reason) => format!("always off, also with `{gate}=true`: {reason}"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {gate} | {stage}, {default}{locked} | {effect} |");
    }
    page
}

#[test]
fn status_page_of_feature_gates_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/feature-gates.md");
    component::status::check(&file, "kcm", &page()).expect("up to date");
}

#[test]
fn effects_are_sorted_and_of_existing_gates() {
    assert!(EFFECTS.is_sorted_by_key(|(gate, _)| *gate));
    for (gate, _) in EFFECTS {
        row(gate);
    }
    assert_eq!(effect("KubeletPSI"), None, "a gate of another component");
}

#[test]
fn fixed_gate_is_refused_when_a_value_other_than_its_own_and_its_default_is_named() {
    for (gate, effect) in EFFECTS {
        let spec = row(gate).specs.last().expect("a specification");
        for value in [true, false] {
            let is_fixed = match effect {
                Effect::Switches(_) => false,
                Effect::AlwaysOn(_) => !value,
                Effect::AlwaysOff(_) => value,
            };
            assert_eq!(fixed(gate).is_some_and(|fixed| fixed.value != value), is_fixed, "{gate}={value}");
            if spec.locked {
                continue;
            }
            let text = problems(&format!("--feature-gates={gate}={value}"));
            // A gate that others depend on is refused for that reason, as in upstream.
            let is_needed = text.contains(&format!("depends on features that are disabled: {gate}"));
            let is_refused = text.contains(&format!("{gate} cannot be switched"));
            // A command line that names upstream's default is accepted.
            let expected = is_fixed && value != spec.default;
            assert_eq!(is_refused || expected && is_needed, expected, "{gate}={value}: {text}");
        }
    }
}

#[test]
fn fixed_gates_are_reported_with_their_fixed_value() {
    for flags in [&[][..], &["--feature-gates=AllAlpha=true,AllBeta=true"], &["--emulated-version=1.34"]] {
        let options = options(flags);
        for (gate, effect) in EFFECTS {
            let fixed = match effect {
                Effect::Switches(_) => continue,
                Effect::AlwaysOn(_) => true,
                Effect::AlwaysOff(_) => false,
            };
            assert_eq!(options.gates.enabled(gate), fixed, "{gate} with {flags:?}");
            let reported = options.gates.all().find(|(name, ..)| name == gate);
            assert!(reported.is_none_or(|(_, _, is_on)| is_on == fixed), "{gate} with {flags:?}: {reported:?}");
        }
        assert_eq!(options.gates.ignored_defaults().count(), 0, "{flags:?}");
    }
}

#[test]
fn gates_that_a_stage_does_not_change_are_listed() {
    for (flags, expected) in [
        (&[][..], &[][..]),
        (
            &["--feature-gates=AllAlpha=true,AllBeta=true"],
            &["CBORServingAndStorage", "ClientsAllowCBOR", "ClientsPreferCBOR"],
        ),
        (
            &["--feature-gates=AllAlpha=true,AllBeta=true,CBORServingAndStorage=false"],
            &["ClientsAllowCBOR", "ClientsPreferCBOR"],
        ),
        (&["--feature-gates=AllAlpha=false"], &["ControllerManagerReleaseLeaderElectionLockOnExit"]),
    ] {
        assert_eq!(options(flags).gates.fixed_despite_stage(), expected, "{flags:?}");
    }
    let beta = options(&["--feature-gates=AllBeta=false"]).gates.fixed_despite_stage();
    assert!(beta.contains(&"ContextualLogging") && !beta.contains(&"NativeHistograms"), "{beta:?}");
}

#[test]
fn locked_gate_is_refused_as_in_upstream_unless_an_older_version_is_emulated() {
    for (gate, _) in EFFECTS {
        let Some(spec) = row(gate).specs.last().filter(|spec| spec.locked) else { continue };
        let other = format!("--feature-gates={gate}={}", !spec.default);
        let locked =
            format!("cannot set feature gate {gate} to {}, feature is locked to {}", !spec.default, spec.default);
        assert!(problems(&other).contains(&locked), "{gate}");
        let oldest = format!("--emulated-version=1.{FLOOR_MINOR}");
        let in_the_oldest = problems_of(&[oldest, other.clone()]);
        assert_eq!(in_the_oldest.contains(&locked), last_unlocked(row(gate)).is_none(), "{gate}: {in_the_oldest}");
    }
}

#[test]
fn gate_that_an_older_version_unlocks_is_switched_or_refused_with_the_reason() {
    let mut unlocked = Vec::new();
    for (gate, effect) in EFFECTS {
        let Some(minor) = last_unlocked(row(gate)) else { continue };
        let flags = [format!("--emulated-version=1.{minor}"), format!("--feature-gates={gate}=false")];
        let text = problems_of(&flags);
        match effect {
            Effect::Switches(_) => {
                assert_eq!(text, "", "{flags:?}");
                unlocked.push(*gate);
            }
            Effect::AlwaysOff(_) => panic!("{gate} is locked to on"),
            Effect::AlwaysOn(reason) => {
                let is_needed = text.contains(&format!("depends on features that are disabled: {gate}"));
                assert!(text.contains(reason) && text.contains("cannot be switched") || is_needed, "{flags:?}: {text}");
            }
        }
        let same = [flags[0].clone(), format!("--feature-gates={gate}=true")];
        assert_eq!(problems_of(&same), "", "{same:?}");
    }
    assert_eq!(unlocked, ["DRAAdminAccess", "DRAPrioritizedList", "HPAConfigurableTolerance", "SELinuxChangePolicy"]);
}

#[test]
fn gates_that_are_not_named_are_never_refused() {
    for flag in ["--feature-gates=AllAlpha=false", "--feature-gates=AllBeta=false", "--emulated-version=1.34"] {
        assert!(!problems(flag).contains("cannot be switched"), "{flag}");
    }
    for value in [true, false] {
        let all = problems(&format!("--feature-gates=AllAlpha={value},AllBeta={value}"));
        assert_eq!(all, "", "all gates may be {value}");
    }
}
