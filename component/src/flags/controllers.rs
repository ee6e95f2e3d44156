//! Upstream's controllers, and the rules of `--controllers`.

use super::gates::Gates;
use super::nearest::{hint, nearest};

/// The effect of `*` on a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByDefault {
    /// The controller is included.
    On,
    /// The controller runs only if it is named.
    Off,
}

/// The position of a controller in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOrder {
    /// Before all others, with the root client (upstream's RequiresSpecialHandling).
    First,
    /// In any order.
    AnyOrder,
}

/// A controller of upstream 1.37.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamController {
    /// The name for `--controllers`.
    pub name: &'static str,
    /// Older names for `--controllers`.
    pub aliases: &'static [&'static str],
    /// The effect of `*` on the controller.
    pub by_default: ByDefault,
    /// The feature gates that must all be on.
    pub gates: &'static [&'static str],
    /// Its position in the order of creation.
    pub start: StartOrder,
}

/// Defines `UPSTREAM`, the controllers of a binary: each as `"name", ["alias"], On|Off, ["Gate", ...],
/// First|AnyOrder;`.
#[macro_export]
macro_rules! controllers {
    ($($name:literal, [$($alias:literal)?], $default:ident, [$($gate:literal),*], $start:ident;)*) => {
        /// All of upstream's controllers, by name.
        pub static UPSTREAM: &[$crate::flags::controllers::UpstreamController] = &[$($crate::flags::controllers::UpstreamController {
            name: $name,
            aliases: &[$($alias)?],
            by_default: $crate::flags::controllers::ByDefault::$default,
            gates: &[$($gate),*],
            start: $crate::flags::controllers::StartOrder::$start,
        }),*];
    };
}

/// A name in `--controllers` that matches no controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not in the list of known controllers{}", hint(.nearest.as_deref(), ""))]
pub struct UnknownController {
    /// The name as given, without a leading dash.
    pub name: String,
    /// The most similar name or alias.
    pub nearest: Option<&'static str>,
}

/// A validated `--controllers`, with aliases replaced by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(Vec<String>);

impl Selection {
    /// Validates the items of `--controllers` against `known` and replaces aliases. Upstream: controller-manager
    /// options, GenericControllerManagerConfigurationOptions.Validate and ApplyTo.
    ///
    /// # Errors
    /// Every name that matches no controller.
    pub fn parse(known: &'static [UpstreamController], items: &[String]) -> Result<Selection, Vec<UnknownController>> {
        let mut unknown = Vec::new();
        let mut names = Vec::new();
        for item in items {
            let (dash, name) = item.strip_prefix('-').map_or(("", item.as_str()), |name| ("-", name));
            match find(known, name) {
                Some(controller) => names.push(format!("{dash}{}", controller.name)),
                None if item == "*" => names.push(item.clone()),
                None => unknown.push(UnknownController {
                    name: name.to_owned(),
                    nearest: nearest(name, known.iter().flat_map(spellings)),
                }),
            }
        }
        if unknown.is_empty() { Ok(Selection(names)) } else { Err(unknown) }
    }

    /// Returns the items, with names in place of aliases.
    pub fn into_items(self) -> Vec<String> {
        self.0
    }
}

impl UpstreamController {
    /// Returns true if `controllers` selects this controller. The list has names in place of aliases, as in
    /// `Options::controllers`. The first item that names the controller decides; otherwise `*` selects the
    /// controllers that are on by default. Upstream: controller-manager app, IsControllerEnabled.
    pub fn is_selected(&self, controllers: &[String]) -> bool {
        let named = controllers.iter().find_map(|item| match item.strip_prefix('-') {
            Some(off) => (off == self.name).then_some(false),
            None => (item == self.name).then_some(true),
        });
        let has_star = || controllers.iter().any(|item| item == "*");
        named.unwrap_or_else(|| self.by_default == ByDefault::On && has_star())
    }

    /// Returns true if upstream runs this controller: it is selected and its gates are on. Upstream:
    /// cmd/kube-controller-manager/app, ControllerDescriptor.BuildController.
    pub fn enabled(&self, controllers: &[String], gates: &Gates) -> bool {
        self.is_selected(controllers) && self.gates.iter().all(|gate| gates.enabled(gate))
    }
}

/// Returns the controller with that name or alias.
pub fn find(known: &'static [UpstreamController], name: &str) -> Option<&'static UpstreamController> {
    known.iter().find(|controller| spellings(controller).any(|spelling| spelling == name))
}

/// Returns the controllers that upstream would run.
pub fn enabled_upstream<'a>(
    known: &'static [UpstreamController],
    controllers: &'a [String],
    gates: &'a Gates,
) -> impl Iterator<Item = &'static UpstreamController> + 'a {
    known.iter().filter(move |controller| controller.enabled(controllers, gates))
}

/// Returns the names of all controllers.
pub fn all_names(known: &'static [UpstreamController]) -> Vec<&'static str> {
    known.iter().map(|controller| controller.name).collect()
}

/// Returns the names of the controllers that `*` does not include.
pub fn off_by_default(known: &'static [UpstreamController]) -> Vec<&'static str> {
    let off = known.iter().filter(|controller| controller.by_default == ByDefault::Off);
    off.map(|controller| controller.name).collect()
}

fn spellings(controller: &'static UpstreamController) -> impl Iterator<Item = &'static str> {
    std::iter::once(controller.name).chain(controller.aliases.iter().copied())
}
