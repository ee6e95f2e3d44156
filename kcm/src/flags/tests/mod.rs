//! Whole command lines: their options, and the errors of those that are refused.

mod fuzz;
mod gate_effects;
mod gates;
mod help;
mod pflag;
mod surface;

use std::net::IpAddr;
use std::time::Duration;

use component::flags::table::Effect;

use super::table::FLAGS;
use super::*;

fn read(line: &[&str]) -> Result<Invocation, FlagErrors> {
    parse(line.iter().map(|word| (*word).to_owned()))
}

fn options(line: &[&str]) -> Options {
    match read(line) {
        Ok(Invocation::Run(options)) => *options,
        other => panic!("{line:?} gives {other:?}"),
    }
}

fn refusals(line: &[&str]) -> Vec<String> {
    match read(line) {
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
        Ok(other) => panic!("{line:?} gives {other:?}"),
    }
}

#[test]
fn defaults_are_those_of_upstream() {
    let options = options(&[]);
    let seconds = Duration::from_secs;
    assert_eq!(options.kube_api_qps, 20.0);
    assert_eq!(options.kube_api_burst, 30);
    assert_eq!(options.values.get_str("kube-api-content-type"), "application/vnd.kubernetes.protobuf");
    assert_eq!(
        options.leader_elect,
        LeaderElect {
            enabled: true,
            lease_duration: seconds(15),
            renew_deadline: seconds(10),
            retry_period: seconds(2),
            resource_lock: "leases".to_owned(),
            resource_name: "kube-controller-manager".to_owned(),
            resource_namespace: "kube-system".to_owned(),
        }
    );
    assert_eq!(options.controllers, ["*"]);
    assert!(!options.use_service_account_credentials);
    assert_eq!((options.workers("concurrent-deployment-syncs"), options.workers("concurrent-gc-syncs")), (5, 20));
    let of_devices = ["concurrent-device-taint-eviction-syncs", "concurrent-resourceclaim-syncs"];
    assert_eq!(of_devices.map(|flag| options.workers(flag)), [8, 50]);
    assert_eq!(options.workers("concurrent-validating-admission-policy-status-syncs"), 5);
    assert_eq!(options.values.get_duration("min-resync-period"), seconds(12 * 3600));
    assert_eq!(options.values.get_duration("controller-start-interval"), Duration::ZERO);
    assert_eq!(options.controller_shutdown_timeout, seconds(10));
    assert_eq!((options.bind_address, options.secure_port), ([0, 0, 0, 0].into(), 10257));
    assert_eq!((options.verbosity, options.vmodule.len()), (0, 0));
    assert_eq!(options.logging_format, "text");
    assert_eq!((&*options.reported_version, options.without_effect().len()), ("v1.37.0", 0));
    assert_eq!(options.gates, Gates::of(&GATES));
    assert_eq!(options.values.get_strings("authorization-always-allow-paths"), ["/healthz", "/readyz", "/livez"]);
    assert_eq!(options.values.get_f64("unhealthy-zone-threshold") as f32, 0.55);
}

#[test]
fn kubeadms_static_pod_parses_unchanged() {
    let options = options(&[
        "--allocate-node-cidrs=true",
        "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
        "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
        "--bind-address=127.0.0.1",
        "--client-ca-file=/etc/kubernetes/pki/ca.crt",
        "--cluster-cidr=10.244.0.0/16",
        "--cluster-name=kubernetes",
        "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
        "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
        "--controllers=*,bootstrapsigner,tokencleaner",
        "--kubeconfig=/etc/kubernetes/controller-manager.conf",
        "--leader-elect=true",
        "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
        "--root-ca-file=/etc/kubernetes/pki/ca.crt",
        "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
        "--service-cluster-ip-range=10.96.0.0/12",
        "--use-service-account-credentials=true",
    ]);
    assert_eq!(options.kubeconfig, "/etc/kubernetes/controller-manager.conf");
    assert_eq!(options.controllers, ["*", "bootstrap-signer-controller", "token-cleaner-controller"]);
    assert_eq!(options.bind_address, IpAddr::from([127, 0, 0, 1]));
    assert!(options.use_service_account_credentials && options.leader_elect.enabled);
    assert_eq!(options.values.get_str("cluster-cidr"), "10.244.0.0/16");
    assert!(options.values.get_bool("allocate-node-cidrs"));
    assert!(options.values.is_set("cluster-name") && !options.values.is_set("master"));
    let idle = options.without_effect();
    for flag in FLAGS {
        let given = options.values.is_set(flag.name);
        let listed = given && flag.effect == Effect::NoEffect;
        assert_eq!(idle.contains(&flag.name), listed, "{}", flag.name);
    }
}

#[test]
fn typed_and_named_values_come_from_the_line() {
    let options = options(&[
        "--kube-api-qps=2.5",
        "--leader-elect-lease-duration=60s",
        "--concurrent_deployment_syncs",
        "9",
        "--vmodule=a=1",
        "--vmodule=b*=2",
        "-v4",
        "--secure-port=0",
        "--version=v1.37.0-mine",
        "--feature-gates=PodDeletionCost=false",
        "--feature-gates=GenericWorkload=true",
        "--controller-start-interval=-1s",
        "--tls-curve-preferences=29,23",
        "--allow-metric-labels=m,l=x",
        "--node-sync-period=5s",
    ]);
    assert_eq!(options.kube_api_qps, 2.5);
    assert_eq!(options.leader_elect.lease_duration, Duration::from_secs(60));
    assert_eq!(options.workers("concurrent-deployment-syncs"), 9);
    assert_eq!(options.vmodule, [("a".to_owned(), 1), ("b*".to_owned(), 2)]);
    assert_eq!((options.verbosity, options.secure_port), (4, 0));
    assert_eq!(options.reported_version, "v1.37.0-mine");
    assert!(!options.gates.enabled("PodDeletionCost") && options.gates.enabled("GenericWorkload"));
    assert_eq!(options.values.get_duration("controller-start-interval"), Duration::ZERO);
    assert_eq!(options.values.get_int32s("tls-curve-preferences"), [29, 23]);
    assert_eq!(options.values.get_map("allow-metric-labels")["m,l"], "x");
    assert_eq!(options.deprecations(), ["flag --node-sync-period is deprecated: has no effect and will be removed"]);
}

#[test]
fn help_and_version_take_precedence_as_in_upstream() {
    for (line, want) in [
        (&["-h"][..], Some(Invocation::Help)),
        (&["--help", "stray"], Some(Invocation::Help)),
        (&["--help", "--max-endpoints-per-slice=0"], Some(Invocation::Help)),
        (&["--help", "--nope"], None),
        (&["--version"], Some(Invocation::Version { raw: false })),
        (&["--version=raw"], Some(Invocation::Version { raw: true })),
        (&["--version", "--max-endpoints-per-slice=0"], Some(Invocation::Version { raw: false })),
        (&["--version", "stray"], None),
        (&["--version", "--feature-gates=Nope=true"], None),
    ] {
        assert_eq!(read(line).ok(), want, "{line:?}");
    }
}

#[test]
fn each_violated_rule_is_reported_with_its_reason() {
    for (line, want) in [
        ("--max-endpoints-per-slice=0", "max-endpoints-per-slice must not be less than 1, but got 0"),
        ("--max-endpoints-per-slice=1001", "max-endpoints-per-slice must not be more than 1000, but got 1001"),
        (
            "--concurrent-service-endpoint-syncs=51",
            "concurrent-service-endpoint-syncs must not be more than 50, but got 51",
        ),
        ("--concurrent-job-syncs=0", "concurrent-job-syncs must not be less than 1, but got 0"),
        ("--secure-port=70000", "secure-port must not be more than 65535, but got 70000"),
        (
            "--leader-elect-resource-lock=endpoints",
            "leader-elect-resource-lock (resourceLock) must be \"leases\", but got \"endpoints\"",
        ),
        ("--leader-elect-resource-name=", "leader-elect-resource-name (resourceName) must not be empty"),
        ("--leader-elect-resource-namespace=", "leader-elect-resource-namespace (resourceNamespace) must not be empty"),
        (
            "--leader-elect-lease-duration=10s",
            "leader-elect-lease-duration (leaseDuration) must be greater than leader-elect-renew-deadline (renewDeadline), but got 10s and 10s",
        ),
        (
            "--leader-elect-renew-deadline=2.4s",
            "leader-elect-renew-deadline (renewDeadline) must be greater than 1.2 times leader-elect-retry-period (retryPeriod), but got 2.4s and 2s",
        ),
        (
            "--leader-elect-retry-period=0",
            "leader-elect-retry-period (retryPeriod) must be greater than zero, but got 0s",
        ),
        (
            "--cluster-signing-kubelet-client-key-file=k",
            "cluster-signing-kubelet-client-key-file is given without cluster-signing-kubelet-client-cert-file",
        ),
        (
            "--cluster-signing-legacy-unknown-cert-file=c",
            "cluster-signing-legacy-unknown-cert-file is given without cluster-signing-legacy-unknown-key-file",
        ),
        (
            "--cluster-signing-cert-file=c --cluster-signing-kubelet-serving-cert-file=c --cluster-signing-kubelet-serving-key-file=k",
            "cluster-signing-cert-file and cluster-signing-key-file cannot be combined with the flags of single signers (cluster-signing-*-cert-file, cluster-signing-*-key-file)",
        ),
        ("--cloud-provider=aws", "cloud-provider \"aws\" is no longer built in; use external, or leave it empty"),
        (
            "--cidr-allocator-type=CloudAllocator",
            "cidr-allocator-type \"CloudAllocator\" is not available; use RangeAllocator",
        ),
        (
            "--service-cluster-ip-range=a,b,c",
            "service-cluster-ip-range must not contain more than two ranges, but got \"a,b,c\"",
        ),
        ("--requestheader-group-headers=a,", "requestheader-group-headers must not contain an empty item"),
        ("--requestheader-uid-headers=a", "requestheader-uid-headers must contain X-Remote-Uid, but got [\"a\"]"),
        (
            "--requestheader-uid-headers=X-Remote-Uid --feature-gates=RemoteRequestHeaderUID=false",
            "requestheader-uid-headers requires the feature gate RemoteRequestHeaderUID",
        ),
        (
            "--show-hidden-metrics-for-version=1.35",
            "show-hidden-metrics-for-version (showHiddenMetricsForVersion) must be empty or 1.36, the minor version before v1.37.0, but got \"1.35\"",
        ),
        ("--disabled-metrics=a-b", "disabled-metrics (disabledMetrics) must be full metric names, but got \"a-b\""),
        (
            "--allow-metric-labels=m=x",
            "allow-metric-labels (allowListMapping) must have keys metric,label, but got \"m\"",
        ),
        (
            "--allow-metric-labels=m,l=x --allow-metric-labels-manifest=f",
            "allow-metric-labels and allow-metric-labels-manifest are mutually exclusive; give one",
        ),
        ("--logging-format=yaml", "logging-format (format) must be text or json, but got \"yaml\""),
        ("--logging-format=json --vmodule=a=1", "vmodule works only with logging-format text, but that is \"json\""),
        (
            "--logging-format=json --feature-gates=LoggingBetaOptions=false",
            "logging-format json requires the feature gate LoggingBetaOptions",
        ),
        ("--log-flush-frequency=0", "log-flush-frequency (flushFrequency) must be greater than zero"),
        ("--log-text-split-stream", "log-text-split-stream requires the feature gate LoggingAlphaOptions"),
        ("--log-json-info-buffer-size=2Ki", "log-json-info-buffer-size requires the feature gate LoggingAlphaOptions"),
        (
            "--attach-detach-reconcile-sync-period=999ms",
            "attach-detach-reconcile-sync-period must be at least one second",
        ),
        ("--feature-gates=Nope=true", "--feature-gates: unrecognized feature gate: Nope"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(refusals(&words), [want], "{line}");
    }
}

#[test]
fn values_that_upstream_accepts_are_accepted() {
    for line in [
        "--concurrent-deployment-syncs=0",
        "--leader-elect=false --leader-elect-resource-lock=endpoints --leader-elect-lease-duration=1s",
        "--cluster-signing-key-file=k",
        "--cloud-provider=external",
        "--show-hidden-metrics-for-version=1.36",
        "--log-text-split-stream --feature-gates=LoggingAlphaOptions=true",
        "--log-json-info-buffer-size=0Ki",
        "--terminated-pod-gc-threshold=-1",
        "--controllers=",
        "--logging-format=json",
        "--requestheader-uid-headers=X-Remote-Uid",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        options(&words);
    }
}

#[test]
fn errors_of_all_kinds_are_reported_together() {
    let errors = refusals(&["--nope=1", "--kube-api-qps=x", "--controllers=deploymnt", "--max-endpoints-per-slice=0"]);
    assert_eq!(errors.len(), 5, "{errors:?}");
    assert_eq!(errors[2], "max-endpoints-per-slice must not be less than 1, but got 0");
    assert!(errors[4].starts_with("controllers: the known ones are bootstrap-signer-controller, "));
    let text = read(&["--nope=1", "--v=x"]).unwrap_err().to_string();
    assert!(text.starts_with("2 errors on the command line:\n  unknown flag: --nope"), "{text}");
}

#[test]
fn flag_that_cannot_be_parsed_is_not_checked_by_other_rules() {
    let errors = refusals(&["--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=soon"]);
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn flag_table_has_unique_names_valid_defaults_and_help() {
    let mut names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FLAGS.len());
    assert_eq!(FLAGS.len(), 150);
    for flag in FLAGS {
        assert!(flag.kind.default(flag.default).is_some(), "{}", flag.name);
        assert!(!flag.help.is_empty() && !flag.help.contains('\n'), "{}", flag.name);
    }
}

#[test]
#[should_panic(expected = "there is no flag --nope")]
fn reading_a_flag_that_does_not_exist_is_a_defect() {
    options(&[]).values.get_str("nope");
}

#[test]
#[should_panic(expected = "read as a type that it does not have")]
fn reading_a_flag_as_another_type_is_a_defect() {
    options(&[]).values.get_bool("master");
}
