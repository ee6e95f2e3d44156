//! The command line by upstream's rules. Every flag is parsed; those that the binaries' common code
//! reads are fields of [`Options`].

pub mod common;
mod component;
pub mod controllers;
mod flag_error;
pub mod gate_table;
pub mod gates;
pub mod help;
pub mod nearest;
pub mod pflag;
mod print;
pub mod rules;
pub mod table;
pub mod value;
mod values;

use std::net::IpAddr;
use std::time::Duration;

pub use self::component::Component;
pub use self::flag_error::FlagError;
pub use self::gates::Gates;
use self::rules::Violations;
use self::table::Effect;
pub use self::values::Values;
use controllers::{Selection, UpstreamController};

/// All errors of a command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", summary(.0))]
pub struct FlagErrors(pub Vec<FlagError>);

/// Returns the text of the only error, or a list of all of them.
fn summary(errors: &[FlagError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match lines.as_slice() {
        [line] => line.clone(),
        _ => format!("{} errors on the command line:\n  {}", lines.len(), lines.join("\n  ")),
    }
}

/// The action that the command line requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    /// Run the manager.
    Run(Box<Options>),
    /// Print [`help::text`] and exit with 0.
    Help,
    /// Print the version and exit with 0; `raw` requests all of its parts.
    Version {
        /// `--version=raw` was given.
        raw: bool,
    },
}

/// The default of `--controller-shutdown-timeout`.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElect {
    /// `--leader-elect`.
    pub enabled: bool,
    /// `--leader-elect-lease-duration`.
    pub lease_duration: Duration,
    /// `--leader-elect-renew-deadline`.
    pub renew_deadline: Duration,
    /// `--leader-elect-retry-period`.
    pub retry_period: Duration,
    /// `--leader-elect-resource-lock`.
    pub resource_lock: String,
    /// `--leader-elect-resource-name`.
    pub resource_name: String,
    /// `--leader-elect-resource-namespace`.
    pub resource_namespace: String,
}

/// A validated command line. The fields are the flags that the binaries' common code reads; the others are read by name
/// through [`Options::values`].
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The binary.
    pub component: &'static Component,
    /// `--kubeconfig`; empty when not given.
    pub kubeconfig: String,
    /// `--master`; empty when not given.
    pub master: String,
    /// `--kube-api-qps`, requests per second.
    pub kube_api_qps: f32,
    /// `--kube-api-burst`, requests.
    pub kube_api_burst: i32,
    /// `--leader-elect` and all `--leader-elect-…` flags.
    pub leader_elect: LeaderElect,
    /// `--controllers`, with aliases replaced by names.
    pub controllers: Vec<String>,
    /// `--use-service-account-credentials`.
    pub use_service_account_credentials: bool,
    /// `--controller-shutdown-timeout`; zero waits forever. For binaries without this flag, its default.
    pub controller_shutdown_timeout: Duration,
    /// `--bind-address`.
    pub bind_address: IpAddr,
    /// `--secure-port`; zero disables serving.
    pub secure_port: u16,
    /// `--v`.
    pub verbosity: u32,
    /// `--vmodule`, as pattern and verbosity.
    pub vmodule: Vec<(String, u32)>,
    /// `--logging-format`: `text` or `json`.
    pub logging_format: String,
    /// The version to report: that of `--version=vX.Y.Z...`, or upstream's version whose behaviour the binary has.
    pub reported_version: String,
    /// `--feature-gates`, at `--emulated-version` and `--min-compatibility-version`.
    pub gates: Gates,
    /// Every flag by name.
    pub values: Values,
}

/// Parses and validates a binary's command line, without the program's name.
///
/// The order is upstream's (cobra, Command.execute): parse errors first, then `--help`, then stray arguments and gates,
/// then `--version`, then the rules of options.Validate.
///
/// # Errors
/// All errors: parse errors, and violated rules. A rule about a flag whose value could not be parsed is not checked.
pub fn parse(
    component: &'static Component,
    arguments: impl IntoIterator<Item = String>,
) -> Result<Invocation, FlagErrors> {
    let arguments: Vec<String> = arguments.into_iter().collect();
    let parsed = pflag::parse(component, &arguments);
    let values = Values::of(component.flags, &parsed.values);
    let is_positional = |error: &FlagError| matches!(error, FlagError::Positional { .. });
    if values.get_bool("help") && parsed.errors.iter().all(is_positional) {
        return Ok(Invocation::Help);
    }
    let mut errors = parsed.errors;
    let versions = |name: &str| if values.has(name) { values.get_strings(name) } else { &[] };
    let gates = Gates::resolve(
        component.gates,
        values.get_strings("feature-gates"),
        versions("emulated-version"),
        versions("min-compatibility-version"),
    );
    let gates = gates.unwrap_or_else(|wrong| {
        errors.extend(wrong.iter().map(|error| FlagError::Validate {
            flags: &["feature-gates", "emulated-version", "min-compatibility-version"],
            message: error.to_string(),
        }));
        Gates::of(component.gates)
    });
    let version = values.get_str("version");
    if errors.is_empty() && matches!(version, "true" | "raw") {
        return Ok(Invocation::Version { raw: version == "raw" });
    }
    let refused = |name: &&'static str| parsed.refused.contains(name);
    let mut rules = Violations::default();
    (component.rules)(&values, &gates, &mut rules);
    errors.extend(rules.into_errors().into_iter().filter(|error| {
        // A rule about a value that could not be parsed would check the default instead.
        !matches!(error, FlagError::Validate { flags, .. } if flags.iter().any(&refused))
    }));
    if !errors.is_empty() {
        return Err(FlagErrors(errors));
    }
    Ok(Invocation::Run(Box::new(Options::of(component, values, gates))))
}

impl Options {
    fn of(component: &'static Component, values: Values, gates: Gates) -> Options {
        let text = |name: &str| values.get_str(name).to_owned();
        let controllers =
            Selection::parse(component.controllers, values.get_strings("controllers")).unwrap_or_default();
        let version = values.get_str("version");
        Options {
            component,
            kubeconfig: text("kubeconfig"),
            master: text("master"),
            kube_api_qps: values.get_f64("kube-api-qps") as f32,
            kube_api_burst: values.get_i32("kube-api-burst"),
            leader_elect: LeaderElect {
                enabled: values.get_bool("leader-elect"),
                lease_duration: values.get_duration("leader-elect-lease-duration"),
                renew_deadline: values.get_duration("leader-elect-renew-deadline"),
                retry_period: values.get_duration("leader-elect-retry-period"),
                resource_lock: text("leader-elect-resource-lock"),
                resource_name: text("leader-elect-resource-name"),
                resource_namespace: text("leader-elect-resource-namespace"),
            },
            controllers: controllers.into_items(),
            use_service_account_credentials: values.get_bool("use-service-account-credentials"),
            controller_shutdown_timeout: if values.has("controller-shutdown-timeout") {
                values.get_duration("controller-shutdown-timeout")
            } else {
                SHUTDOWN_TIMEOUT
            },
            bind_address: values.get_ip("bind-address"),
            secure_port: u16::try_from(values.get_i64("secure-port")).unwrap_or(0),
            verbosity: u32::try_from(values.get_i64("v")).unwrap_or(0),
            vmodule: values.get_vmodule("vmodule").to_vec(),
            logging_format: text("logging-format"),
            reported_version: if version.starts_with('v') {
                version.to_owned()
            } else {
                value::KUBE_VERSION.to_owned()
            },
            gates,
            values,
        }
    }

    /// Returns the given flags that have no effect, in the order of `--help`.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let ineffective = self.component.flags.iter().filter(|flag| flag.effect == Effect::NoEffect);
        let names = ineffective.filter(|flag| self.values.is_set(flag.name));
        names.map(|flag| flag.name).collect()
    }

    /// Returns a line for each given deprecated flag. Upstream: pflag, FlagSet.Set.
    pub fn deprecations(&self) -> Vec<String> {
        let given = self.component.flags.iter().filter(|flag| self.values.is_set(flag.name));
        given.filter_map(|flag| Some(format!("flag --{} is deprecated: {}", flag.name, flag.deprecated?))).collect()
    }

    /// Returns the controllers that upstream would run.
    pub fn enabled(&self) -> impl Iterator<Item = &'static UpstreamController> {
        controllers::enabled_upstream(self.component.controllers, &self.controllers, &self.gates)
    }

    /// Returns the number of workers of a flag; less than one counts as one.
    pub fn workers(&self, flag: &str) -> usize {
        usize::try_from(self.values.get_i64(flag)).unwrap_or(0).max(1)
    }
}
