//! The rules for flag values that only kube-controller-manager has, and the order of all checks.

use component::flags::rules::{self, Range, Violations, at_least_one, between};

use super::controllers::UPSTREAM;
use super::{Gates, Values};

/// The ranges of numbers that upstream limits; other numbers of workers have no limit.
static RANGES: [Range; 14] = [
    at_least_one("concurrent-cron-job-syncs"),
    at_least_one("concurrent-daemonset-syncs"),
    at_least_one("concurrent-device-taint-eviction-syncs"),
    at_least_one("concurrent-ephemeralvolume-syncs"),
    at_least_one("concurrent-horizontal-pod-autoscaler-syncs"),
    at_least_one("concurrent-job-syncs"),
    at_least_one("concurrent-resourceclaim-syncs"),
    at_least_one("concurrent-statefulset-syncs"),
    at_least_one("concurrent-validating-admission-policy-status-syncs"),
    between("concurrent-service-endpoint-syncs", 1, 50),
    between("max-endpoints-per-slice", 1, 1000),
    between("mirroring-concurrent-service-endpoint-syncs", 1, 50),
    between("mirroring-max-endpoints-per-subset", 1, 1000),
    between("secure-port", 0, 65535),
];

/// The certificate and key flags of each signer.
static SIGNERS: [[&str; 2]; 4] = [
    ["cluster-signing-kubelet-serving-cert-file", "cluster-signing-kubelet-serving-key-file"],
    ["cluster-signing-kubelet-client-cert-file", "cluster-signing-kubelet-client-key-file"],
    ["cluster-signing-kube-apiserver-client-cert-file", "cluster-signing-kube-apiserver-client-key-file"],
    ["cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"],
];

/// Checks all rules, in upstream's order. `gates` are the resolved feature gates.
pub fn rules(values: &Values, gates: &Gates, violations: &mut Violations) {
    rules::ranges(&RANGES, values, violations);
    rules::controllers(UPSTREAM, values, violations);
    rules::leader_election(values, violations);
    check_signing(values, violations);
    check_cloud_and_ipam(values, violations);
    rules::request_headers(values, gates, violations);
    rules::metrics(values, violations);
    rules::logs(values, gates, violations);
    check_periods(values, violations);
    rules::fixed_gates(gates, violations);
}

/// Checks the flags of signers. Upstream: cmd/kube-controller-manager/app/options,
/// CSRSigningControllerOptions.Validate.
fn check_signing(values: &Values, violations: &mut Violations) {
    let given = |name: &str| !values.get_str(name).is_empty();
    for pair in &SIGNERS {
        let [cert, key] = *pair;
        violations.add_if(given(cert) && !given(key), pair, || format!("{cert} is given without {key}"));
        violations.add_if(given(key) && !given(cert), pair, || format!("{key} is given without {cert}"));
    }
    let shared = given("cluster-signing-cert-file") || given("cluster-signing-key-file");
    let own = SIGNERS.iter().flatten().any(|name| given(name));
    violations.add_if(shared && own, &["cluster-signing-cert-file", "cluster-signing-key-file"], || {
        "cluster-signing-cert-file and cluster-signing-key-file cannot be combined with the flags of single signers (cluster-signing-*-cert-file, cluster-signing-*-key-file)".to_owned()
    });
}

/// Checks the flags of the cloud provider and of address ranges. Upstream: cmd/kube-controller-manager/app/options,
/// KubeControllerManagerOptions.Validate and NodeIPAMControllerOptions.Validate.
fn check_cloud_and_ipam(values: &Values, violations: &mut Violations) {
    let provider = values.get_str("cloud-provider");
    violations.add_if(!matches!(provider, "" | "external"), &["cloud-provider"], || {
        format!("cloud-provider {provider:?} is no longer built in; use external, or leave it empty")
    });
    let allocator = values.get_str("cidr-allocator-type");
    violations.add_if(!matches!(allocator, "" | "RangeAllocator"), &["cidr-allocator-type"], || {
        format!("cidr-allocator-type {allocator:?} is not available; use RangeAllocator")
    });
    let ranges = values.get_str("service-cluster-ip-range");
    violations.add_if(ranges.split(',').count() > 2, &["service-cluster-ip-range"], || {
        format!("service-cluster-ip-range must not contain more than two ranges, but got {ranges:?}")
    });
}

/// Checks the flags of periods. Upstream: cmd/kube-controller-manager/app/options,
/// AttachDetachControllerOptions.Validate.
fn check_periods(values: &Values, violations: &mut Violations) {
    let period = values.nanos("attach-detach-reconcile-sync-period");
    violations.add_if(period < 1_000_000_000, &["attach-detach-reconcile-sync-period"], || {
        "attach-detach-reconcile-sync-period must be at least one second".to_owned()
    });
}
