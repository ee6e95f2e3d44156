//! The command line by upstream's rules. Every flag is parsed; those that all binaries use are fields of [`Options`].

pub mod common;
mod component;
pub mod controllers;
pub mod gate_table;
pub mod gates;
pub mod help;
pub mod nearest;
pub mod pflag;
mod print;
pub mod rules;
pub mod table;
pub mod value;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

pub use self::component::Component;
pub use self::gates::Gates;
pub use self::pflag::FlagError;
use self::rules::Violations;
use self::table::{Effect, Flag};
use self::value::Value;
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

/// A validated command line. The fields are the flags with an effect; all others are read by name through
/// [`Options::values`].
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
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
    /// The version to report instead of the binary's own, from `--version=vX.Y.Z...`.
    pub reported_version: String,
    /// `--feature-gates`, at `--emulated-version` and `--min-compatibility-version`.
    pub gates: Gates,
    /// Every flag by name.
    pub values: Values,
}

/// The value of every flag by name, whether it has an effect or not.
///
/// The getters take the literal name of a flag in the table, without dashes. They panic if there is none of that name
/// or its type is another, which is a defect of the program and not of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    component: &'static Component,
    values: Vec<Value>,
    set: Vec<bool>,
}

impl Values {
    fn of(component: &'static Component, given: &[Option<Value>]) -> Values {
        let value = |(flag, given): (&Flag, &Option<Value>)| {
            let default = || flag.kind.default(flag.default);
            let value = given.clone().or_else(default);
            value.unwrap_or_else(|| panic!("the default of --{} is not of its type", flag.name))
        };
        Values {
            component,
            values: component.flags.iter().zip(given).map(value).collect(),
            set: given.iter().map(Option::is_some).collect(),
        }
    }

    /// Returns the binary of the flags.
    pub fn component(&self) -> &'static Component {
        self.component
    }

    /// Returns true if the binary has a flag of this name; needed only for flags that not every binary has.
    pub fn has(&self, name: &str) -> bool {
        self.component.position(name).is_some()
    }

    fn index(&self, name: &str) -> usize {
        self.component.position(name).unwrap_or_else(|| panic!("there is no flag --{name}"))
    }

    fn value(&self, name: &str) -> &Value {
        &self.values[self.index(name)]
    }

    /// Returns true if the flag was on the command line, even with its default value.
    pub fn is_set(&self, name: &str) -> bool {
        self.set[self.index(name)]
    }

    /// Returns the value of a flag of type Text, Version or Quantity, as written.
    pub fn get_str(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(text) => text,
            other => wrong_type(name, other),
        }
    }

    /// Returns a switch.
    pub fn get_bool(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(on) => *on,
            other => wrong_type(name, other),
        }
    }

    /// Returns a whole number.
    pub fn get_i64(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(number) => *number,
            other => wrong_type(name, other),
        }
    }

    /// Returns a 32-bit whole number.
    pub fn get_i32(&self, name: &str) -> i32 {
        let number = self.get_i64(name);
        i32::try_from(number).unwrap_or_else(|_| wrong_type(name, &Value::Int(number)))
    }

    /// Returns a number.
    pub fn get_f64(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Float(number) => *number,
            other => wrong_type(name, other),
        }
    }

    /// Returns a duration; a negative one, which upstream's timers treat as none, is zero.
    pub fn get_duration(&self, name: &str) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos(name)).unwrap_or(0))
    }

    /// Returns a duration in nanoseconds, which may be negative.
    pub fn nanos(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Nanos(nanos) => *nanos,
            other => wrong_type(name, other),
        }
    }

    /// Returns a list of texts.
    pub fn get_strings(&self, name: &str) -> &[String] {
        match self.value(name) {
            Value::Strings(items) => items,
            other => wrong_type(name, other),
        }
    }

    /// Returns a list of whole numbers.
    pub fn get_int32s(&self, name: &str) -> &[i32] {
        match self.value(name) {
            Value::Int32s(items) => items,
            other => wrong_type(name, other),
        }
    }

    /// Returns a map of texts.
    pub fn get_map(&self, name: &str) -> &BTreeMap<String, String> {
        match self.value(name) {
            Value::Map(map) => map,
            other => wrong_type(name, other),
        }
    }

    /// Returns an IP address.
    pub fn get_ip(&self, name: &str) -> IpAddr {
        match self.value(name) {
            Value::Ip(address) => *address,
            other => wrong_type(name, other),
        }
    }

    /// Returns patterns of source files with their verbosity.
    pub fn get_vmodule(&self, name: &str) -> &[(String, u32)] {
        match self.value(name) {
            Value::VModule(patterns) => patterns,
            other => wrong_type(name, other),
        }
    }
}

fn wrong_type(name: &str, value: &Value) -> ! {
    panic!("--{name} is read as a type that it does not have: it is {value:?}")
}

/// Parses and validates a binary's command line, without the program's name.
///
/// The order is upstream's (cobra, Command.execute): parse errors first, then `--help`, then stray arguments and gates,
/// then `--version`, then the rules of options.Validate.
///
/// # Errors
/// All errors: parse errors, and violated rules about the other flags.
pub fn parse(
    component: &'static Component,
    arguments: impl IntoIterator<Item = String>,
) -> Result<Invocation, FlagErrors> {
    let arguments: Vec<String> = arguments.into_iter().collect();
    let parsed = pflag::parse(component, &arguments);
    let values = Values::of(component, &parsed.values);
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
    Ok(Invocation::Run(Box::new(Options::of(values, gates))))
}

impl Options {
    fn of(values: Values, gates: Gates) -> Options {
        let text = |name: &str| values.get_str(name).to_owned();
        let known = values.component.controllers;
        let controllers = Selection::parse(known, values.get_strings("controllers")).unwrap_or_default();
        let version = values.get_str("version");
        Options {
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

    /// Returns the given flags that have no effect yet, in the order of `--help`.
    pub fn no_effect_yet(&self) -> Vec<&'static str> {
        let ineffective = self.values.component.flags.iter().filter(|flag| flag.effect == Effect::NoEffectYet);
        let names = ineffective.filter(|flag| self.values.is_set(flag.name));
        names.map(|flag| flag.name).collect()
    }

    /// Returns a line for each given deprecated flag. Upstream: pflag, FlagSet.Set.
    pub fn deprecations(&self) -> Vec<String> {
        let given = self.values.component.flags.iter().filter(|flag| self.values.is_set(flag.name));
        given.filter_map(|flag| Some(format!("flag --{} is deprecated: {}", flag.name, flag.deprecated?))).collect()
    }

    /// Returns the controllers that upstream would run.
    pub fn enabled(&self) -> impl Iterator<Item = &'static UpstreamController> {
        controllers::enabled_upstream(self.values.component.controllers, &self.controllers, &self.gates)
    }

    /// Returns the number of workers of a flag; less than one counts as one.
    pub fn workers(&self, flag: &str) -> usize {
        usize::try_from(self.values.get_i64(flag)).unwrap_or(0).max(1)
    }
}
