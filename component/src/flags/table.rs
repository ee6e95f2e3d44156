//! What is known of a flag, and the form of a table of flags.

use super::value::Type;

/// Whether a flag changes anything yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The value is acted upon.
    Effective,
    /// The value is checked and kept, and nothing reads it yet.
    NoEffectYet,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// The heading of `--help` that it stands under.
    pub group: &'static str,
    /// Its name, without dashes in front.
    pub name: &'static str,
    /// What it accepts.
    pub kind: Type,
    /// Upstream's default, as pflag prints it.
    pub default: &'static str,
    /// Whether it changes anything yet.
    pub effect: Effect,
    /// One line of help.
    pub help: &'static str,
    /// Why it should not be used; such a flag is left out of `--help` (pflag, MarkDeprecated).
    pub deprecated: Option<&'static str>,
}

impl Flag {
    /// Returns the letter that may stand for the name behind one dash.
    pub fn shorthand(&self) -> Option<char> {
        match self.name {
            "v" => Some('v'),
            "help" => Some('h'),
            _ => None,
        }
    }
}

/// Puts parts of a table one after the other.
///
/// # Panics
/// When they are not `N` flags together: at compile time, in a constant.
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
    assert!(at == N, "the table has another number of flags");
    all
}

/// Makes a constant, a part of a table: by group, each flag as `"name": Type = "default", Effect, "help";` with
/// `deprecated "why"` behind the help where that is so.
#[macro_export]
macro_rules! flags {
    ($(#[$about:meta])* $seen:vis const $part:ident; $($group:literal { $($name:literal: $kind:ident = $default:literal, $effect:ident, $help:literal $(deprecated $why:literal)?;)* })*) => {
        $(#[$about])*
        $seen const $part: &[$crate::flags::table::Flag] = &[$($($crate::flags::table::Flag {
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
