//! The published IAM policy allows the actions that the code calls, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

const POLICY: &str = include_str!("../../../deploy/aws-iam-policy.json");

/// Actions that Elastic Load Balancing performs with the caller's permissions: it creates its service-linked role with
/// the first load balancer of an account.
const BY_AWS: [&str; 1] = ["iam:CreateServiceLinkedRole"];

/// Statements without the cluster's tag. They are harmless, because each of their calls also needs another statement,
/// which requires the tag.
const OF_ANY: [&str; 2] = ["MakeSecurityGroupsInAnyNetwork", "UntaggedRulesOfTaggedGroups"];

/// Returns the actions of the calls in a source file: the text after the class of each call, with the service's prefix.
fn calls(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let named = code.split("Class::").skip(1).filter_map(|rest| {
        let (class, rest) = rest.split_once(',')?;
        let service = match class {
            "Ec2Read" | "Ec2Change" => "ec2",
            "ElbRead" | "ElbChange" => "elasticloadbalancing",
            "AcmRead" => "acm",
            _ => return None,
        };
        let action = rest.trim_start().strip_prefix('"')?.split_once('"')?.0;
        Some(format!("{service}:{action}"))
    });
    named.collect()
}

fn calls_below(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("the sources are there") {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            found.extend(calls_below(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(calls(&fs::read_to_string(&path).expect("a source can be read")));
        }
    }
    found
}

fn statements() -> Vec<Value> {
    let policy: Value = serde_json::from_str(POLICY).expect("the policy is JSON");
    policy["Statement"].as_array().expect("statements").clone()
}

fn actions(statement: &Value) -> BTreeSet<String> {
    let actions = statement["Action"].as_array().expect("actions are a list");
    actions.iter().map(|action| action.as_str().expect("an action is a text").to_owned()).collect()
}

fn reads(action: &str) -> bool {
    let starts = |action: &str| ["Describe", "Get", "List"].iter().any(|start| action.starts_with(start));
    action.split(':').nth(1).is_some_and(starts)
}

#[test]
fn policy_allows_called_actions_and_no_others() {
    let called = calls_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(called.contains("ec2:DescribeInstances") && called.contains("ec2:CreateRoute"), "{called:?}");
    let allowed: BTreeSet<String> =
        statements().iter().flat_map(actions).filter(|action| !BY_AWS.contains(&action.as_str())).collect();
    let missing: Vec<_> = called.difference(&allowed).collect();
    let needless: Vec<_> = allowed.difference(&called).collect();
    assert!(missing.is_empty() && needless.is_empty(), "missing: {missing:?}; needless: {needless:?}");
}

#[test]
fn changes_are_allowed_for_resources_of_the_cluster_only() {
    for statement in statements() {
        let changes: Vec<_> = actions(&statement).into_iter().filter(|action| !reads(action)).collect();
        let tagged = statement["Condition"].to_string().contains("kubernetes.io/cluster/CLUSTER");
        let excepted = OF_ANY.iter().any(|sid| statement["Sid"] == *sid)
            || changes.iter().all(|action| BY_AWS.contains(&action.as_str()));
        assert!(changes.is_empty() || tagged || excepted, "{changes:?} are allowed without the cluster's tag");
    }
}

#[test]
fn calls_are_found_in_any_layout_of_the_source() {
    let found = calls(
        "api.read(Class::Ec2Read, \"DescribeA\", x)\napi.change(\n  Class::ElbChange,\n  \"DeleteB\",\n y)\n\
         #[cfg(test)] Class::Ec2Read, \"DescribeTest\"",
    );
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["ec2:DescribeA", "elasticloadbalancing:DeleteB"]);
}
