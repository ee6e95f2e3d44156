//! Rules about flags that only cloud-controller-manager checks, and the order of all rules.

use component::flags::rules::{self, Range, Violations, at_least_one, between};

use super::controllers::UPSTREAM;
use super::{Gates, Values};

/// The numeric flags that upstream limits. Upstream does not check the other worker counts.
static RANGES: [Range; 3] = [
    at_least_one("concurrent-node-lifecycle-syncs"),
    between("secure-port", 0, 65535),
    between("webhook-secure-port", 0, 65535),
];

/// Checks all rules about `values`, in upstream's order. `gates` are the resolved ones.
pub fn rules(values: &Values, gates: &Gates, violations: &mut Violations) {
    rules::controllers(UPSTREAM, values, violations);
    rules::leader_election(values, violations);
    rules::ranges(&RANGES, values, violations);
    rules::request_headers(values, gates, violations);
    webhooks(values, violations);
    rules::logs(values, gates, violations);
    rules::fixed_gates(gates, violations);
    let provider = values.get_str("cloud-provider");
    violations.add_if(provider.is_empty(), &["cloud-provider"], || {
        "cloud-provider cannot be empty; name the provider of this cluster's cloud".to_owned()
    });
}

/// Checks the flags of webhooks. Upstream: cloud-provider options, WebhookOptions.Validate and
/// CloudControllerManagerOptions.Validate.
fn webhooks(values: &Values, violations: &mut Violations) {
    for webhook in values.get_strings("webhooks").iter().filter(|webhook| *webhook != "*") {
        let name = webhook.strip_prefix('-').unwrap_or(webhook);
        violations.add_if(true, &["webhooks"], || {
            format!("webhooks: {name:?} is not in the list of known webhooks, which is empty; leave it out")
        });
    }
    let port = values.get_i64("webhook-secure-port");
    violations.add_if(
        port != 0 && port == values.get_i64("secure-port"),
        &["webhook-secure-port", "secure-port"],
        || format!("webhook-secure-port must not be the same as secure-port, but both are {port}"),
    );
}
