//! How a provider gets into a binary: its main lists factories, and `--cloud-provider` names one of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::provider::CloudProvider;

/// What a provider is built from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildContext {
    /// `--cluster-name`.
    pub cluster_name: String,
    /// `--cloud-config`, for messages; `None` if it was not given.
    pub config_path: Option<PathBuf>,
    /// The content of that file; empty if none was given.
    pub config: Vec<u8>,
    /// `--load-balancer-class`: Services of these classes are the provider's, whoever else could make their balancers.
    pub load_balancer_classes: Vec<String>,
    /// `--load-balancers-without-class=false`: those without a class are somebody else's.
    pub only_classes: bool,
    /// `--default-tags`: what everything that is made for Services is tagged with, whatever they say themselves.
    pub default_tags: BTreeMap<String, String>,
    /// `--external-managed-tags`: keys of tags that somebody else sets and removes.
    pub external_tags: Vec<String>,
    /// `--max-targets-per-target-group`; `None`: as many as there are.
    pub max_targets: Option<usize>,
}

impl BuildContext {
    /// The configuration file's name for messages.
    pub fn config_name(&self) -> String {
        self.config_path.as_ref().map_or_else(|| "--cloud-config".into(), |path| path.display().to_string())
    }
}

/// Why no provider could be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// `--cloud-provider` names none of the binary's.
    #[error("--cloud-provider is {given:?}: use one of {known}")]
    UnknownProvider {
        /// What the flag says.
        given: String,
        /// The names that the binary knows.
        known: String,
    },
    /// The configuration can't be read.
    #[error("{file}: {message}")]
    Unreadable {
        /// The file.
        file: String,
        /// Where and why.
        message: String,
    },
    /// A setting that can't work.
    #[error("{file}: {field} is {value:?}: {fix}")]
    Invalid {
        /// The file.
        file: String,
        /// The setting.
        field: String,
        /// What it holds.
        value: String,
        /// What to write instead.
        fix: String,
    },
}

/// A provider that a binary can be told to use.
#[derive(Debug, Clone, Copy)]
pub struct Factory {
    /// What `--cloud-provider` calls it.
    pub name: &'static str,
    /// Builds it. Reads the configuration completely and calls nobody: it runs on standbys too, and before
    /// `--cloud-config` is known to be of any use.
    pub build: fn(&BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError>,
}

/// Builds the provider that `--cloud-provider` names.
///
/// # Errors
/// `UnknownProvider` if none of `factories` is called so, and whatever the factory says of the configuration.
pub fn build(factories: &[Factory], name: &str, context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    match factories.iter().find(|factory| factory.name == name) {
        Some(factory) => (factory.build)(context),
        None => {
            let known = factories.iter().map(|factory| factory.name).collect::<Vec<_>>().join(", ");
            Err(ConfigError::UnknownProvider { given: name.into(), known })
        }
    }
}

/// Reads a configuration with `parse` (`serde_json::from_slice` and the like); a file that is empty or not given means
/// all defaults.
///
/// # Errors
/// `Unreadable` with the file's name and what `parse` says, which should name line and field.
pub fn parse_config<T, E>(context: &BuildContext, parse: impl FnOnce(&[u8]) -> Result<T, E>) -> Result<T, ConfigError>
where
    T: DeserializeOwned + Default,
    E: std::fmt::Display,
{
    if context.config.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    parse(&context.config)
        .map_err(|error| ConfigError::Unreadable { file: context.config_name(), message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
        let number: u32 = parse_config(context, |bytes| serde_json::from_slice(bytes))?;
        Err(ConfigError::Invalid {
            file: context.config_name(),
            field: "number".into(),
            value: number.to_string(),
            fix: "use another".into(),
        })
    }

    fn message(name: &str, context: &BuildContext) -> String {
        let factories = [Factory { name: "one", build: refuse }, Factory { name: "two", build: refuse }];
        build(&factories, name, context).err().expect("nothing here builds").to_string()
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert_eq!(message("three", &BuildContext::default()), "--cloud-provider is \"three\": use one of one, two");
        assert_eq!(message("", &BuildContext::default()), "--cloud-provider is \"\": use one of one, two");
    }

    #[test]
    fn a_configuration_is_read_or_the_file_is_named() {
        let mut context = BuildContext::default();
        assert_eq!(message("one", &context), "--cloud-config: number is \"0\": use another");
        context.config_path = Some("/etc/cloud.json".into());
        context.config = b" 7\n".to_vec();
        assert_eq!(message("two", &context), "/etc/cloud.json: number is \"7\": use another");
        context.config = b"seven".to_vec();
        assert_eq!(message("one", &context), "/etc/cloud.json: expected value at line 1 column 1");
    }
}
