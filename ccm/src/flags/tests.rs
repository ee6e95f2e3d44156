//! Whole command lines: their values, their errors, and their equality with upstream's.

use std::collections::BTreeMap;

use component::flags::help;

use super::*;

fn read(line: &str) -> Result<Options, Vec<String>> {
    let words = line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
    match parse(words) {
        Ok(Invocation::Run(options)) => Ok(*options),
        Ok(other) => panic!("{line:?} gives {other:?}"),
        Err(errors) => Err(errors.0.iter().map(ToString::to_string).collect()),
    }
}

#[test]
fn defaults_are_those_of_upstream() {
    let options = read("--cloud-provider=mock").expect("refused");
    assert_eq!(options.secure_port, 10258);
    assert_eq!(options.leader_elect.resource_name, "cloud-controller-manager");
    assert_eq!(options.leader_elect.resource_namespace, "kube-system");
    assert_eq!(options.controllers, ["*"]);
    assert_eq!(options.values.get_duration("node-monitor-period").as_secs(), 5);
    assert_eq!(options.values.get_duration("node-status-update-frequency").as_secs(), 300);
    assert_eq!(options.values.get_str("cluster-name"), "kubernetes");
    assert_eq!(options.controller_shutdown_timeout.as_secs(), 10);
}

#[test]
fn controller_aliases_are_accepted() {
    let options = read("--cloud-provider=mock --controllers=*,-service,-route,cloud-node").expect("refused");
    let enabled: Vec<_> = options.enabled().map(|controller| controller.name).collect();
    assert_eq!(enabled, ["cloud-node-controller", "cloud-node-lifecycle-controller"]);
}

#[test]
fn each_violated_rule_is_reported_with_its_reason() {
    for (line, want) in [
        ("", "cloud-provider cannot be empty; name the provider of this cluster's cloud"),
        (
            "--cloud-provider=mock --concurrent-node-lifecycle-syncs=0",
            "concurrent-node-lifecycle-syncs must not be less than 1, but got 0",
        ),
        (
            "--cloud-provider=mock --webhook-secure-port=10258",
            "webhook-secure-port must not be the same as secure-port, but both are 10258",
        ),
        (
            "--cloud-provider=mock --webhooks=a",
            "webhooks: \"a\" is not in the list of known webhooks, which is empty; leave it out",
        ),
        ("--cloud-provider=mock --feature-gates=Nope=true", "--feature-gates: unrecognized feature gate: Nope"),
        (
            "--cloud-provider=mock --feature-gates=kube:ContextualLogging=true",
            "--feature-gates: unrecognized feature gate: kube:ContextualLogging (did you mean ContextualLogging?)",
        ),
        (
            "--cloud-provider=mock --feature-gates=ContextualLogging=false",
            "feature-gates: ContextualLogging cannot be switched off: log lines always name their object; remove it",
        ),
        (
            "--cloud-provider=mock stray",
            "cloud-controller-manager does not take any arguments, got [\"stray\"]; flags begin with --",
        ),
    ] {
        assert_eq!(read(line).expect_err(line), [want], "{line}");
    }
    let controllers = read("--cloud-provider=mock --controllers=servce").expect_err("misspelt");
    assert_eq!(
        controllers[0],
        "controllers: \"servce\" is not in the list of known controllers (did you mean service?)"
    );
}

#[test]
fn gates_are_those_of_cloud_controller_manager() {
    let options = read("--cloud-provider=mock --feature-gates=CloudControllerManagerWebhook=true").expect("refused");
    assert!(options.gates.enabled("CloudControllerManagerWebhook"));
    assert!(!options.gates.enabled("CloudControllerManagerWatchBasedRoutesReconciliation"));
    let default = read("--cloud-provider=mock --feature-gates=NativeHistograms=true").expect("refused");
    assert!(!default.gates.enabled("NativeHistograms"));
    assert_eq!(default.gates.ignored_defaults().map(|(gate, _)| gate).collect::<Vec<_>>(), ["NativeHistograms"]);
    let all = read("--cloud-provider=mock --feature-gates=AllAlpha=true,AllBeta=true").expect("refused");
    let reported = all.gates.all().find(|(gate, ..)| *gate == "NativeHistograms");
    assert!(reported.is_some_and(|(.., is_on)| !is_on), "{reported:?}");
}

#[test]
fn tables_are_sorted_without_duplicates_and_have_valid_defaults() {
    let mut names: Vec<&str> = table::FLAGS.iter().map(|flag| flag.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), table::FLAGS.len());
    for flag in table::FLAGS {
        assert!(flag.kind.default(flag.default).is_some(), "{}", flag.name);
    }
    assert!(gate_table::GATES.is_sorted_by_key(|row| row.name));
    assert!(UPSTREAM.is_sorted_by_key(|controller| controller.name));
}

/// Returns name and type of each flag, and each gate with its default, from a text of `--help`.
fn entries(help: &str) -> BTreeMap<String, String> {
    let flags = help.lines().filter_map(|line| {
        let head = line.trim_start();
        let indent = line.len() - head.len();
        let flag = head.starts_with('-') && indent <= 6;
        let name = head.split("--").nth(1).filter(|_| flag)?;
        let (name, rest) = name.split_once(' ').unwrap_or((name, ""));
        let kind = rest.split("  ").next().unwrap_or_default();
        Some((name.to_owned(), kind.trim().to_owned()))
    });
    let gates = help.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once("=true|false (")?;
        Some((name.rsplit(' ').next()?.to_owned(), rest.trim_end_matches(')').to_owned()))
    });
    flags.chain(gates).collect()
}

/// Runs only if `UPSTREAM_CLOUD_MANAGER` names upstream's sample cloud-controller-manager 1.37.
#[test]
fn flags_types_and_gates_equal_those_of_upstream() {
    let Some(upstream) = std::env::var_os("UPSTREAM_CLOUD_MANAGER") else {
        return;
    };
    let output = std::process::Command::new(upstream).arg("--help").output().expect("the program did not start");
    let theirs = entries(&String::from_utf8(output.stdout).expect("text"));
    assert!(theirs.len() > 120, "{theirs:?}");
    let mut ours = entries(&help::text(&COMPONENT, None));
    // Flags of upstream's AWS provider, which upstream's sample does not contain.
    ours.retain(|name, _| !name.starts_with("tagging-controller-") && !["tags", "resources"].contains(&&**name));
    // Flags that only this manager has, and flags of the AWS Load Balancer Controller, whose Services are supported
    // here, too.
    let own_flags =
        ["collect-leaked-load-balancers", "default-tags", "external-managed-tags", "max-targets-per-target-group"];
    ours.retain(|name, _| !name.starts_with("load-balancer") && !own_flags.contains(&&**name));
    assert_eq!(ours, theirs);
}
