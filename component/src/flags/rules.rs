//! Rules about the flags that the binaries share. Each binary checks those that upstream's binary checks.

use super::controllers::{self, Selection, UpstreamController};
use super::flag_error::FlagError;
use super::gates::Gates;
use super::value::{KUBE_VERSION, quantity_is_zero};
use super::values::Values;

/// The renew deadline must be longer than the retry period times this factor. Upstream: client-go,
/// tools/leaderelection, JitterFactor.
const JITTER_FACTOR: f64 = 1.2;

/// The inclusive bounds of a number.
#[derive(Debug)]
pub struct Range {
    /// The flag, as the list of one flag that [`Violations::add_if`] takes.
    flag: [&'static str; 1],
    low: i64,
    high: i64,
}

/// Returns the bounds of a flag whose number must be at least one.
pub const fn at_least_one(flag: &'static str) -> Range {
    Range { flag: [flag], low: 1, high: i32::MAX as i64 }
}

/// Returns the inclusive bounds of a flag's number.
pub const fn between(flag: &'static str, low: i64, high: i64) -> Range {
    Range { flag: [flag], low, high }
}

/// The violated rules of a command line, in the order in which they were checked.
#[derive(Debug, Default)]
pub struct Violations(Vec<FlagError>);

impl Violations {
    /// Returns the errors.
    pub fn into_errors(self) -> Vec<FlagError> {
        self.0
    }

    /// Records a rule about `flags` if it is violated; the message names field, value and fix.
    pub fn add_if(&mut self, wrong: bool, flags: &'static [&'static str], message: impl FnOnce() -> String) {
        if wrong {
            let message = message();
            self.0.push(FlagError::Validate { flags, message });
        }
    }
}

/// Checks numbers against their bounds. Upstream: each controller's options; apiserver pkg/server/options,
/// SecureServingOptions.Validate.
pub fn ranges(ranges: &'static [Range], values: &Values, violations: &mut Violations) {
    for Range { flag, low, high } in ranges {
        let number = values.get_i64(flag[0]);
        violations.add_if(number < *low, flag, || format!("{} must not be less than {low}, but got {number}", flag[0]));
        violations
            .add_if(number > *high, flag, || format!("{} must not be more than {high}, but got {number}", flag[0]));
    }
}

/// Checks the names in `--controllers`. Upstream: controller-manager options,
/// GenericControllerManagerConfigurationOptions.Validate.
pub fn controllers(known: &'static [UpstreamController], values: &Values, violations: &mut Violations) {
    if let Err(unknown) = Selection::parse(known, values.get_strings("controllers")) {
        for wrong in unknown {
            violations.add_if(true, &["controllers"], || format!("controllers: {wrong}"));
        }
        let names = || format!("controllers: the known ones are {}", controllers::all_names(known).join(", "));
        violations.add_if(true, &["controllers"], names);
    }
}

/// Checks the lock and the times of leader election. Upstream checks the times only when the election starts. Upstream:
/// controller-manager options (the lock); client-go tools/leaderelection, NewLeaderElector (the times).
pub fn leader_election(values: &Values, violations: &mut Violations) {
    if !values.get_bool("leader-elect") {
        return;
    }
    let lock = values.get_str("leader-elect-resource-lock");
    violations.add_if(lock != "leases", &["leader-elect-resource-lock"], || {
        format!("leader-elect-resource-lock (resourceLock) must be \"leases\", but got {lock:?}")
    });
    let name = values.get_str("leader-elect-resource-name");
    violations.add_if(name.is_empty(), &["leader-elect-resource-name"], || {
        "leader-elect-resource-name (resourceName) must not be empty".to_owned()
    });
    let namespace = values.get_str("leader-elect-resource-namespace");
    violations.add_if(namespace.is_empty(), &["leader-elect-resource-namespace"], || {
        "leader-elect-resource-namespace (resourceNamespace) must not be empty".to_owned()
    });
    let lease = values.nanos("leader-elect-lease-duration");
    let renew = values.nanos("leader-elect-renew-deadline");
    let retry = values.nanos("leader-elect-retry-period");
    let seconds = |nanos: i64| format!("{}s", nanos as f64 / 1e9);
    violations.add_if(lease <= renew, &["leader-elect-lease-duration", "leader-elect-renew-deadline"], || {
        format!(
            "leader-elect-lease-duration (leaseDuration) must be greater than leader-elect-renew-deadline (renewDeadline), but got {} and {}",
            seconds(lease),
            seconds(renew)
        )
    });
    let min_renew_nanos = (JITTER_FACTOR * retry as f64) as i64;
    violations.add_if(renew <= min_renew_nanos, &["leader-elect-renew-deadline", "leader-elect-retry-period"], || {
        format!(
            "leader-elect-renew-deadline (renewDeadline) must be greater than 1.2 times leader-elect-retry-period (retryPeriod), but got {} and {}",
            seconds(renew),
            seconds(retry)
        )
    });
    violations.add_if(retry < 1, &["leader-elect-retry-period"], || {
        format!("leader-elect-retry-period (retryPeriod) must be greater than zero, but got {}", seconds(retry))
    });
}

/// Checks the headers of front proxies. Upstream: apiserver pkg/server/options,
/// RequestHeaderAuthenticationOptions.Validate.
pub fn request_headers(values: &Values, gates: &Gates, violations: &mut Violations) {
    // Each element is the list of flags that `add_if` takes.
    static FLAGS_OF_HEADERS: [[&str; 1]; 5] = [
        ["requestheader-username-headers"],
        ["requestheader-group-headers"],
        ["requestheader-extra-headers-prefix"],
        ["requestheader-allowed-names"],
        ["requestheader-uid-headers"],
    ];
    for flag in &FLAGS_OF_HEADERS {
        let blank = values.get_strings(flag[0]).iter().any(|item| item.trim().is_empty());
        violations.add_if(blank, flag, || format!("{} must not contain an empty item", flag[0]));
    }
    let uids = values.get_strings("requestheader-uid-headers");
    let gate = gates.enabled("RemoteRequestHeaderUID");
    violations.add_if(!uids.is_empty() && !gate, &["requestheader-uid-headers"], || {
        "requestheader-uid-headers requires the feature gate RemoteRequestHeaderUID".to_owned()
    });
    let standard = uids.iter().any(|header| header.eq_ignore_ascii_case("X-Remote-Uid"));
    violations.add_if(!uids.is_empty() && gate && !standard, &["requestheader-uid-headers"], || {
        format!("requestheader-uid-headers must contain X-Remote-Uid, but got {uids:?}")
    });
}

/// Refuses a fixed gate that `--feature-gates` sets by name to a value that is neither its fixed value nor its default:
/// the value would be ignored. The values that AllAlpha, AllBeta or an emulated version give to gates are not refused.
pub fn fixed_gates(gates: &Gates, violations: &mut Violations) {
    for (gate, fixed) in gates.ignored_requests() {
        let refused = if fixed.value { "off" } else { "on" };
        violations.add_if(true, &["feature-gates"], || {
            format!("feature-gates: {gate} cannot be switched {refused}: {}; remove it", fixed.reason)
        });
    }
}

/// Checks the flags of metrics, except for the content of the manifest, which is checked when the file is read.
/// Upstream: component-base metrics/api/v1, Validate.
pub fn metrics(values: &Values, violations: &mut Violations) {
    let version = values.get_str("show-hidden-metrics-for-version");
    let wanted = format!("1.{}", super::gates::BINARY_MINOR - 1);
    violations.add_if(!version.is_empty() && version != wanted, &["show-hidden-metrics-for-version"], || {
        format!("show-hidden-metrics-for-version (showHiddenMetricsForVersion) must be empty or {wanted}, the minor version before {KUBE_VERSION}, but got {version:?}")
    });
    for name in values.get_strings("disabled-metrics") {
        violations.add_if(!is_metric_name(name, true), &["disabled-metrics"], || {
            format!("disabled-metrics (disabledMetrics) must be full metric names, but got {name:?}")
        });
    }
    let labels = values.get_map("allow-metric-labels");
    for key in labels.keys() {
        violations.add_if(!is_metric_label(key), &["allow-metric-labels"], || {
            format!("allow-metric-labels (allowListMapping) must have keys metric,label, but got {key:?}")
        });
    }
    let manifest = values.is_set("allow-metric-labels") && !values.get_str("allow-metric-labels-manifest").is_empty();
    violations.add_if(manifest, &["allow-metric-labels", "allow-metric-labels-manifest"], || {
        "allow-metric-labels and allow-metric-labels-manifest are mutually exclusive; give one".to_owned()
    });
}

/// Returns true for `metric,label`: the full name of a metric, and the name of one of its labels.
pub fn is_metric_label(key: &str) -> bool {
    let pair = key.split_once(',');
    pair.is_some_and(|(metric, label)| is_metric_name(metric, true) && is_metric_name(label, false))
}

fn is_metric_name(name: &str, colon: bool) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || (colon && byte == b':');
    let mut bytes = name.bytes();
    bytes.next().is_some_and(letter) && bytes.all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// Checks the flags of logs. Upstream: component-base logs/api/v1, Validate.
pub fn logs(values: &Values, gates: &Gates, violations: &mut Violations) {
    let format = values.get_str("logging-format");
    violations.add_if(!matches!(format, "text" | "json"), &["logging-format"], || {
        format!("logging-format (format) must be text or json, but got {format:?}")
    });
    violations.add_if(format == "json" && !gates.enabled("LoggingBetaOptions"), &["logging-format"], || {
        "logging-format json requires the feature gate LoggingBetaOptions".to_owned()
    });
    let modules = !values.get_vmodule("vmodule").is_empty();
    violations.add_if(modules && format != "text", &["vmodule", "logging-format"], || {
        format!("vmodule works only with logging-format text, but that is {format:?}")
    });
    let flush = values.nanos("log-flush-frequency");
    violations.add_if(flush <= 0, &["log-flush-frequency"], || {
        "log-flush-frequency (flushFrequency) must be greater than zero".to_owned()
    });
    let alpha = gates.enabled("LoggingAlphaOptions");
    // Each element is the list of flags that `add_if` takes.
    static SPLITS: [[&str; 1]; 2] = [["log-text-split-stream"], ["log-json-split-stream"]];
    static SIZES: [[&str; 1]; 2] = [["log-text-info-buffer-size"], ["log-json-info-buffer-size"]];
    let split = |flag: &str| values.get_bool(flag);
    let sized = |flag: &str| !quantity_is_zero(values.get_str(flag));
    for flag in SPLITS.iter().filter(|flag| split(flag[0])).chain(SIZES.iter().filter(|flag| sized(flag[0]))) {
        violations.add_if(!alpha, flag, || format!("{} requires the feature gate LoggingAlphaOptions", flag[0]));
    }
}
