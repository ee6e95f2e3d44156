//! Flags, and the format of a table of flags.

use super::value::Type;

/// The implementation status of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The value is used. Or no code has to read it, because for every valid value the process behaves as upstream.
    Effective,
    /// The value is validated, stored and shown in `/configz` and `/flagz`, but nothing depends on it. Either upstream
    /// ignores it too, or it belongs to a feature that does not exist here, or the behaviour here is fixed.
    NoEffect,
}

/// One flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its group heading in `--help`.
    pub group: &'static str,
    /// Its name, without leading dashes.
    pub name: &'static str,
    /// The type of its value.
    pub kind: Type,
    /// Upstream's default, in pflag's format.
    pub default: &'static str,
    /// Its implementation status.
    pub effect: Effect,
    /// One line of help.
    pub help: &'static str,
    /// The reason not to use the flag; such a flag is hidden in `--help`. Upstream: pflag, MarkDeprecated.
    pub deprecated: Option<&'static str>,
}

impl Flag {
    /// Returns the flag's one-letter name.
    pub fn shorthand(&self) -> Option<char> {
        match self.name {
            "v" => Some('v'),
            "help" => Some('h'),
            _ => None,
        }
    }
}

/// Returns the index of the flag with this name; underscores count as dashes. Upstream: component-base cli/flag,
/// WordSepNormalizeFunc.
pub(super) fn position(flags: &[Flag], name: &str) -> Option<usize> {
    let normal = name.replace('_', "-");
    flags.iter().position(|flag| flag.name == normal)
}

/// Concatenates parts of a table.
///
/// # Panics
/// If the parts do not have `N` flags in total. In a constant, this is a compile error.
#[must_use]
pub const fn joined<const N: usize>(parts: &[&[Flag]]) -> [Flag; N] {
    let mut all = [parts[0][0]; N];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            all[at] = parts[part][index];
            at += 1;
            index += 1;
        }
        part += 1;
    }
    assert!(at == N, "the number of flags in the table is not N");
    all
}

/// Defines a constant with a part of a table: by group, each flag as `"name": Type = "default", Effect, "help";`,
/// optionally followed by `deprecated "why"` after the help.
#[macro_export]
macro_rules! flags {
    ($(#[$about:meta])* $vis:vis const $part:ident; $($group:literal { $($name:literal: $kind:ident = $default:literal, $effect:ident, $help:literal $(deprecated $why:literal)?;)* })*) => {
        $(#[$about])*
        $vis const $part: &[$crate::flags::table::Flag] = &[$($($crate::flags::table::Flag {
            group: $group,
            name: $name,
            kind: $crate::flags::value::Type::$kind,
            default: $default,
            effect: $crate::flags::table::Effect::$effect,
            help: $help,
            deprecated: $crate::flags!(@why $($why)?),
        },)*)*];
    };
    (@why) => { None };
    (@why $why:literal) => { Some($why) };
}
