//! `--cloud-config`: cloud-provider-kubevirt's YAML, read completely before the first call.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kinds::names::{is_dns_label, is_label_key, is_label_value};
use providers::ConfigError;
use serde::Deserialize;

/// The interval between two reads of a load balancer without an address. Upstream:
/// defaultLoadBalancerCreatePollInterval.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The age at which a load balancer without an address is reported. Upstream: defaultLoadBalancerCreatePollTimeout.
const POLL_TIMEOUT: Duration = Duration::from_secs(300);

/// The settings of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The kubeconfig of the infrastructure cluster; `None`: the pod's own service account, in the infrastructure
    /// cluster.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the virtual machines and Services; `None`: the namespace of the kubeconfig's context, or of the
    /// pod.
    pub namespace: Option<String>,
    /// Additional labels of created Services.
    pub infra_labels: BTreeMap<String, String>,
    /// Load balancers; `None`: not supported, so the controller does not start.
    pub load_balancer: Option<LoadBalancerConfig>,
    /// Nodes are virtual machines, so the node controllers start.
    pub instances: bool,
    /// Nodes get the zone and region labels of the infrastructure node that their virtual machine runs on.
    pub zones: bool,
}

/// The settings of load balancers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancerConfig {
    /// The interval between two reads of a Service that is being created or deleted.
    pub poll_interval: Duration,
    /// The age at which a Service without an address is reported to the user.
    pub poll_timeout: Duration,
    /// The selection of targets.
    pub targets: Targets,
}

/// The selection of a load balancer's virtual machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targets {
    /// By labels of the virtual machines: the infrastructure cluster follows live migrations immediately, and nodes
    /// that are excluded or drained in the tenant cluster still get traffic (upstream's default).
    Selector,
    /// The nodes that the controller selects, listed in EndpointSlices.
    Nodes,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespace: None,
            infra_labels: BTreeMap::new(),
            load_balancer: Some(LoadBalancerConfig::default()),
            instances: true,
            zones: true,
        }
    }
}

impl Default for LoadBalancerConfig {
    fn default() -> Self {
        Self { poll_interval: POLL_INTERVAL, poll_timeout: POLL_TIMEOUT, targets: Targets::Selector }
    }
}

/// A setting that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingError {
    /// The setting; empty if the file cannot be parsed.
    pub field: String,
    /// The value of the setting.
    pub value: String,
    /// The fix, or the parser's message.
    pub fix: String,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.fix),
            field => write!(f, "{field} is {:?}: {}", self.value, self.fix),
        }
    }
}

impl std::error::Error for SettingError {}

impl SettingError {
    fn new(field: &str, value: impl ToString, fix: impl Into<String>) -> Self {
        Self { field: field.into(), value: value.to_string(), fix: fix.into() }
    }

    /// Converts the error to a factory's error, with the file's name.
    pub(crate) fn in_file(self, file: String) -> ConfigError {
        match self.field.as_str() {
            "" => ConfigError::Unreadable { file, message: self.fix },
            _ => ConfigError::Invalid { file, field: self.field, value: self.value, fix: self.fix },
        }
    }
}

/// The file, with upstream's names and some fields that upstream lacks.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct File {
    kubeconfig: Option<String>,
    namespace: Option<String>,
    infra_labels: BTreeMap<String, String>,
    load_balancer: LoadBalancerFile,
    #[serde(rename = "instancesV2")]
    instances: InstancesFile,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct LoadBalancerFile {
    enabled: Option<bool>,
    creation_poll_interval: Option<i64>,
    creation_poll_timeout: Option<i64>,
    selectorless: Option<bool>,
    #[serde(rename = "enableEPSController")]
    eps_controller: Option<bool>,
    targets: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct InstancesFile {
    enabled: Option<bool>,
    zone_and_region_enabled: Option<bool>,
}

impl Config {
    /// Reads the configuration; an empty one means all defaults.
    ///
    /// # Errors
    /// With the field, its value and the fix.
    pub fn parse(bytes: &[u8]) -> Result<Self, SettingError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| SettingError::new("", "", format!("not UTF-8 at byte {}", error.valid_up_to())))?;
        let file = match text.trim() {
            "" => File::default(),
            text => serde_saphyr::from_str(text)
                .map_err(|error| SettingError::new("", "", error.to_string().lines().next().unwrap_or_default()))?,
        };
        let given = |value: Option<String>| value.filter(|text| !text.is_empty());
        let namespace = given(file.namespace);
        if let Some(name) = &namespace
            && !is_dns_label(name)
        {
            return Err(SettingError::new(
                "namespace",
                name,
                "use the name of a namespace of the infrastructure cluster",
            ));
        }
        for (key, value) in &file.infra_labels {
            let name = format!("infraLabels[{key:?}]");
            if !is_label_key(key) {
                let fix = "the key of a label is letters, digits, '-', '_' and '.', at most 63 characters, after an optional \
                           domain and '/'";
                return Err(SettingError::new(&name, value, fix));
            }
            if !is_label_value(value) {
                let fix = "use letters, digits, '-', '_' and '.', at most 63 characters";
                return Err(SettingError::new(&name, value, fix));
            }
        }
        Ok(Self {
            kubeconfig: given(file.kubeconfig).map(PathBuf::from),
            namespace,
            infra_labels: file.infra_labels,
            load_balancer: load_balancer(&file.load_balancer)?,
            instances: file.instances.enabled.unwrap_or(true),
            zones: file.instances.zone_and_region_enabled.unwrap_or(true),
        })
    }
}

fn load_balancer(file: &LoadBalancerFile) -> Result<Option<LoadBalancerConfig>, SettingError> {
    if file.selectorless == Some(true) {
        let fix = "another program would have to choose the targets; remove it, or set loadBalancer.targets to Nodes";
        return Err(SettingError::new("loadBalancer.selectorless", true, fix));
    }
    if file.eps_controller == Some(true) {
        let fix = "remove it, and set loadBalancer.targets to Nodes, which does the same for all Services";
        return Err(SettingError::new("loadBalancer.enableEPSController", true, fix));
    }
    let targets = match file.targets.as_deref() {
        None | Some("Selector") => Targets::Selector,
        Some("Nodes") => Targets::Nodes,
        Some(other) => return Err(SettingError::new("loadBalancer.targets", other, "use Selector or Nodes")),
    };
    let config = LoadBalancerConfig {
        poll_interval: seconds("creationPollInterval", file.creation_poll_interval, POLL_INTERVAL)?,
        poll_timeout: seconds("creationPollTimeout", file.creation_poll_timeout, POLL_TIMEOUT)?,
        targets,
    };
    Ok(file.enabled.unwrap_or(true).then_some(config))
}

fn seconds(field: &str, value: Option<i64>, default: Duration) -> Result<Duration, SettingError> {
    let Some(value) = value else { return Ok(default) };
    match u32::try_from(value) {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds.into())),
        _ => Err(SettingError::new(&format!("loadBalancer.{field}"), value, "use a number of seconds above 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_file_means_upstreams_defaults() {
        for text in ["", "\n", "{}"] {
            assert_eq!(Config::parse(text.as_bytes()), Ok(Config::default()), "{text:?}");
        }
        let balancers = Config::default().load_balancer.expect("enabled");
        assert_eq!((balancers.poll_interval.as_secs(), balancers.poll_timeout.as_secs()), (5, 300));
    }

    #[test]
    fn upstreams_configuration_is_read() {
        let text = "kubeconfig: /etc/infra/kubeconfig\nnamespace: kvcluster\ninfraLabels:\n  team: a\n\
                    loadBalancer:\n  enabled: true\n  creationPollInterval: 3\n  creationPollTimeout: 60\n  \
                    selectorless: false\ninstancesV2:\n  enabled: true\n  zoneAndRegionEnabled: false\n";
        let config = Config::parse(text.as_bytes()).expect("valid");
        assert_eq!(config.kubeconfig, Some("/etc/infra/kubeconfig".into()));
        assert_eq!(config.namespace.as_deref(), Some("kvcluster"));
        assert_eq!(config.infra_labels, BTreeMap::from([("team".into(), "a".into())]));
        assert!(config.instances && !config.zones);
        let balancers = config.load_balancer.expect("enabled");
        assert_eq!((balancers.poll_interval.as_secs(), balancers.poll_timeout.as_secs()), (3, 60));
        assert_eq!(balancers.targets, Targets::Selector);
        let off = Config::parse(b"loadBalancer: {enabled: false}\ninstancesV2: {enabled: false}").expect("valid");
        assert_eq!((off.load_balancer, off.instances), (None, false));
    }

    #[test]
    fn invalid_setting_is_reported_with_field_value_and_fix() {
        for (text, expected) in [
            ("namespace: Tenant_1", "namespace is \"Tenant_1\": use the name of a namespace"),
            ("infraLabels: {team: 'a b'}", "infraLabels[\"team\"] is \"a b\": use letters"),
            ("loadBalancer: {creationPollInterval: 0}", "loadBalancer.creationPollInterval is \"0\": use a number"),
            ("loadBalancer: {creationPollTimeout: -1}", "loadBalancer.creationPollTimeout is \"-1\": use a number"),
            ("loadBalancer: {selectorless: true}", "loadBalancer.selectorless is \"true\": another program"),
            ("loadBalancer: {enableEPSController: true}", "loadBalancer.enableEPSController is \"true\": remove it"),
            ("loadBalancer: {targets: Pods}", "loadBalancer.targets is \"Pods\": use Selector or Nodes"),
        ] {
            let message = Config::parse(text.as_bytes()).expect_err(text).to_string();
            assert!(message.starts_with(expected), "{text}: {message}");
        }
        for text in ["names: a", "kubeconfig: [", "- a"] {
            let error = Config::parse(text.as_bytes()).expect_err(text);
            assert!(error.field.is_empty() && !error.fix.is_empty() && !error.fix.contains('\n'), "{text}: {error}");
        }
        assert!(Config::parse(b"\xff").is_err());
    }

    #[test]
    fn keys_of_labels_are_checked() {
        for (key, valid) in [("team", true), ("example.com/team", true), ("te am", false), ("a/b/c", false)] {
            let text = format!("infraLabels:\n  {key:?}: a\n");
            let error = Config::parse(text.as_bytes()).err().map(|error| error.field);
            assert_eq!(error, (!valid).then(|| format!("infraLabels[{key:?}]")), "{key}");
        }
    }
}
