//! Single flags, parsed by the rules of pflag, and the message of each error.

use component::flags::pflag::{Parsed, parse};
use component::flags::value::Value;

use super::*;

fn read(line: &[&str]) -> Parsed {
    parse(&COMPONENT, &line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
}

fn value(line: &[&str], name: &str) -> Value {
    let parsed = read(line);
    assert_eq!(parsed.errors, [], "{line:?}");
    parsed.values[COMPONENT.position(name).unwrap()].clone().unwrap()
}

fn texts(items: &[&str]) -> Value {
    Value::Strings(items.iter().map(|item| (*item).to_owned()).collect())
}

#[test]
fn flags_are_parsed_by_the_rules_of_pflag() {
    let text = |text: &str| Value::Text(text.to_owned());
    for (line, name, want) in [
        (&["--master=a"][..], "master", text("a")),
        (&["--master", "a"], "master", text("a")),
        (&["--master", "--x"], "master", text("--x")),
        (&["--master="], "master", text("")),
        (&["--master=a=b"], "master", text("a=b")),
        (&["--master=a", "--master", "b"], "master", text("b")),
        (&["--leader-elect"], "leader-elect", Value::Bool(true)),
        (&["--leader-elect=F"], "leader-elect", Value::Bool(false)),
        (&["--leader_elect=false"], "leader-elect", Value::Bool(false)),
        (&["--concurrent_rc_syncs", "7"], "concurrent-rc-syncs", Value::Int(7)),
        (&["-v", "2"], "v", Value::Int(2)),
        (&["-v=2"], "v", Value::Int(2)),
        (&["-v2"], "v", Value::Int(2)),
        (&["--v=2"], "v", Value::Int(2)),
        (&["-hv4"], "v", Value::Int(4)),
        (&["-hv4"], "help", Value::Bool(true)),
        (&["-h"], "help", Value::Bool(true)),
        (&["-h=false"], "help", Value::Bool(false)),
        (&["--version"], "version", text("true")),
        (&["--version=raw"], "version", text("raw")),
        (&["--controllers=a,b", "--controllers", "-c"], "controllers", texts(&["a", "b", "-c"])),
        (&["--tls-sni-cert-key=a,b:c,d", "--tls-sni-cert-key=e,f"], "tls-sni-cert-key", texts(&["a,b:c,d", "e,f"])),
        (&["--bind-address="], "bind-address", Value::Ip([0, 0, 0, 0].into())),
        (&["--bind-address=127.0.0.1", "--bind-address="], "bind-address", Value::Ip([127, 0, 0, 1].into())),
        (&["--master=a", "", "--"], "master", text("a")),
    ] {
        assert_eq!(value(line, name), want, "{line:?}");
    }
}

#[test]
fn each_mistake_has_its_message() {
    for (line, want) in [
        (
            &["--leader-elct=true"][..],
            "unknown flag: --leader-elct (did you mean --leader-elect?); see --help for all flags",
        ),
        (&["--qqqqqqqqqqq", "x"], "unknown flag: --qqqqqqqqqqq; see --help for all flags"),
        (&["-x"], "unknown shorthand flag: 'x' in -x; only -v and -h exist"),
        (&["-hx"], "unknown shorthand flag: 'x' in -hx; only -v and -h exist"),
        (&["---x"], "bad flag syntax: ---x; write --name=value"),
        (&["--=3"], "bad flag syntax: --=3; write --name=value"),
        (&["--master"], "flag needs an argument: --master; give any text"),
        (&["-v"], "flag needs an argument: --v; give a whole number between 0 and 2147483647"),
        (&["-v=x"], "invalid argument \"x\" for --v: give a whole number between 0 and 2147483647"),
        (
            &["--profiling=maybe"],
            "invalid argument \"maybe\" for --profiling: give true or false (also 1, t, T, TRUE, True, 0, f, F, FALSE, False)",
        ),
        (&["foo"], "kube-controller-manager does not take any arguments, got [\"foo\"]; flags begin with --"),
        (
            &["--leader-elect", "false"],
            "kube-controller-manager does not take any arguments, got [\"false\"]; flags begin with --",
        ),
        (&["--", "--v=2"], "kube-controller-manager does not take any arguments, got [\"--v=2\"]; flags begin with --"),
        (&["-"], "kube-controller-manager does not take any arguments, got [\"-\"]; flags begin with --"),
    ] {
        let errors = read(line).errors;
        let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(messages, [want], "{line:?}");
    }
}

#[test]
fn all_errors_are_reported_together() {
    let parsed = read(&["--nope", "x", "--v=a", "stray", "--kube-api-qps", "b", "--master"]);
    assert_eq!(parsed.errors.len(), 5, "{:?}", parsed.errors);
    assert_eq!(parsed.refused, ["v", "kube-api-qps", "master"]);
}
