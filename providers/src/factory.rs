//! Factories of providers: a binary's main lists them, and `--cloud-provider` selects one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::provider::CloudProvider;

/// The input of a factory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildContext {
    /// `--cluster-name`.
    pub cluster_name: String,
    /// `--cloud-config`, for messages; `None` if it was not given.
    pub config_path: Option<PathBuf>,
    /// The content of that file; empty if none was given.
    pub config: Vec<u8>,
    /// `--load-balancer-class`: Services of these classes belong to the provider, even if other controllers support
    /// them.
    pub load_balancer_classes: Vec<String>,
    /// `--load-balancers-without-class=false`: Services without a class belong to another controller.
    pub only_classes: bool,
    /// `--default-tags`: tags of everything that is created for Services, which Services cannot override.
    pub default_tags: BTreeMap<String, String>,
    /// `--external-managed-tags`: keys of tags that another program sets and removes.
    pub external_tags: Vec<String>,
    /// `--max-targets-per-target-group`; `None`: unlimited.
    pub max_targets: Option<usize>,
}

impl BuildContext {
    /// Returns the configuration file's name for messages.
    pub fn config_name(&self) -> String {
        self.config_path.as_ref().map_or_else(|| "--cloud-config".into(), |path| path.display().to_string())
    }
}

/// The reason why no provider could be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// `--cloud-provider` names no provider of the binary.
    #[error("--cloud-provider is {given:?}: use one of {known}")]
    UnknownProvider {
        /// The value of the flag.
        given: String,
        /// The names of the binary's providers.
        known: String,
    },
    /// The configuration cannot be parsed.
    #[error("{file}: {message}")]
    Unreadable {
        /// The file.
        file: String,
        /// The position and the problem.
        message: String,
    },
    /// A setting that can't work.
    #[error("{file}: {field} is {value:?}: {fix}")]
    Invalid {
        /// The file.
        file: String,
        /// The setting.
        field: String,
        /// The value of the setting.
        value: String,
        /// The fix.
        fix: String,
    },
}

/// The factory of a provider.
#[derive(Debug, Clone, Copy)]
pub struct Factory {
    /// The provider's name in `--cloud-provider`.
    pub name: &'static str,
    /// Builds the provider. It parses the whole configuration and makes no calls, because it also runs on standbys, and
    /// before the configuration is known to be usable.
    pub build: fn(&BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError>,
}

/// Builds the provider that `--cloud-provider` names.
///
/// # Errors
/// `UnknownProvider` if no factory has this name, and any error of the factory about the configuration.
pub fn build(factories: &[Factory], name: &str, context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    match factories.iter().find(|factory| factory.name == name) {
        Some(factory) => (factory.build)(context),
        None => {
            let known = factories.iter().map(|factory| factory.name).collect::<Vec<_>>().join(", ");
            Err(ConfigError::UnknownProvider { given: name.into(), known })
        }
    }
}

/// Parses a configuration with `parse` (such as `serde_json::from_slice`); an empty or absent file means all defaults.
///
/// # Errors
/// `Unreadable` with the file's name and the message of `parse`, which should name line and field.
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
    fn unknown_name_is_refused_with_the_known_ones() {
        assert_eq!(message("three", &BuildContext::default()), "--cloud-provider is \"three\": use one of one, two");
        assert_eq!(message("", &BuildContext::default()), "--cloud-provider is \"\": use one of one, two");
    }

    #[test]
    fn configuration_is_parsed_or_the_file_is_reported() {
        let mut context = BuildContext::default();
        assert_eq!(message("one", &context), "--cloud-config: number is \"0\": use another");
        context.config_path = Some("/etc/cloud.json".into());
        context.config = b" 7\n".to_vec();
        assert_eq!(message("two", &context), "/etc/cloud.json: number is \"7\": use another");
        context.config = b"seven".to_vec();
        assert_eq!(message("one", &context), "/etc/cloud.json: expected value at line 1 column 1");
    }
}
