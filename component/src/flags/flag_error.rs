//! The errors of a command line.

use super::nearest::hint;

/// Errors of a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No flag has this name.
    #[error("unknown flag: --{name}{}; see --help for all flags", hint(.nearest.as_deref(), "--"))]
    Unknown {
        /// The name as given.
        name: String,
        /// The most similar flag.
        nearest: Option<String>,
    },
    /// No flag has this letter.
    #[error("unknown shorthand flag: '{letter}' in -{argument}; only -v and -h exist")]
    UnknownShorthand {
        /// The letter.
        letter: char,
        /// The text after the dash.
        argument: String,
    },
    /// An argument that starts like a flag but is not one.
    #[error("bad flag syntax: {argument}; write --name=value")]
    Syntax {
        /// The argument.
        argument: String,
    },
    /// The last flag lacks its value.
    #[error("flag needs an argument: --{name}; give {accepted}")]
    MissingArgument {
        /// The flag.
        name: &'static str,
        /// The accepted values.
        accepted: &'static str,
    },
    /// A value that the flag does not accept.
    #[error("invalid argument {value:?} for --{name}: give {accepted}")]
    Value {
        /// The flag.
        name: &'static str,
        /// The value as given.
        value: String,
        /// The accepted values.
        accepted: &'static str,
    },
    /// Arguments that are not flags.
    #[error("{program} does not take any arguments, got {arguments:?}; flags begin with --")]
    Positional {
        /// The binary, as upstream names it.
        program: &'static str,
        /// The arguments.
        arguments: Vec<String>,
    },
    /// A well-formed value that is not allowed, alone or in combination with others.
    #[error("{message}")]
    Validate {
        /// The flags of the rule.
        flags: &'static [&'static str],
        /// The problem, with field, value and fix.
        message: String,
    },
}
