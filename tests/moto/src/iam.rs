//! The part of IAM that our policies need: a call is allowed or denied by its action, its resources and their tags, and
//! the tags in the request.
//!
//! References: the IAM user guide, "Policy evaluation logic" and "Condition operators"; the service authorization
//! reference of Amazon EC2 and of Elastic Load Balancing V2, for resources and condition keys of each action. A call
//! that creates something with tags also needs the action that sets tags, with the condition key `CreateAction`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Tags by key.
pub type Tags = BTreeMap<String, String>;

/// A resource that a call names or creates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resource {
    /// Its ARN, or an example of one if the call creates it.
    pub arn: String,
    /// The tags that it has before the call.
    pub tags: Tags,
}

/// One action on some resources. All of them must be allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The action with its service, such as `ec2:CreateTags`.
    pub action: String,
    /// The resources; none for actions without resources.
    pub resources: Vec<Resource>,
    /// Condition keys and values of the request.
    pub context: BTreeMap<String, String>,
}

/// The statements of policies. Only those that allow something have an effect: our policies have no others.
#[derive(Debug, Clone, Default)]
pub struct Policy(Vec<Value>);

impl Policy {
    /// Parses policies, with these values for their placeholders.
    ///
    /// # Errors
    /// If one is not JSON.
    pub fn parse(texts: &[&str], placeholders: &[(&str, &str)]) -> Result<Self> {
        let mut statements = Vec::new();
        for text in texts {
            let filled = placeholders.iter().fold((*text).to_owned(), |text, (from, to)| text.replace(from, to));
            let policy: Value = serde_json::from_str(&filled).context("parse a policy as JSON")?;
            statements.extend(policy["Statement"].as_array().cloned().unwrap_or_default());
        }
        Ok(Self(statements))
    }

    /// Returns the first resource for which the access is not allowed, if any.
    pub fn denies(&self, access: &Access) -> Option<String> {
        let any = [Resource { arn: "*".into(), tags: Tags::new() }];
        let resources = if access.resources.is_empty() { &any[..] } else { &access.resources };
        let allowed = |resource: &Resource| self.0.iter().any(|statement| allows(statement, access, resource));
        resources.iter().find(|resource| !allowed(resource)).map(|resource| resource.arn.clone())
    }
}

fn allows(statement: &Value, access: &Access, resource: &Resource) -> bool {
    let texts = |value: &Value| -> Vec<String> {
        match value {
            Value::Array(all) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
            one => one.as_str().map(str::to_owned).into_iter().collect(),
        }
    };
    let matches = |patterns: &Value, text: &str| texts(patterns).iter().any(|pattern| matches_pattern(pattern, text));
    let value = |key: &str| match key.strip_prefix("aws:ResourceTag/") {
        Some(tag) => resource.tags.get(tag).cloned(),
        None => access.context.get(key).cloned(),
    };
    let met = |operator: &str, key: &str, wanted: &Value| match (operator, value(key)) {
        ("Null", found) => texts(wanted) == [found.is_none().to_string()],
        ("StringEquals", Some(found)) => texts(wanted).contains(&found),
        ("StringLike", Some(found)) => matches(wanted, &found),
        _ => false,
    };
    let conditions = statement["Condition"].as_object().cloned().unwrap_or_default();
    statement["Effect"] == "Allow"
        && matches(&statement["Action"], &access.action)
        && matches(&statement["Resource"], &resource.arn)
        && conditions.iter().all(|(operator, keys)| {
            keys.as_object().into_iter().flatten().all(|(key, wanted)| met(operator, key, wanted))
        })
}

/// Returns true if a text matches a pattern, in which `*` stands for any text.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => {
            let Some(tail) = text.strip_prefix(start) else { return false };
            (0..=tail.len()).filter(|at| tail.is_char_boundary(*at)).any(|at| matches_pattern(rest, &tail[at..]))
        }
    }
}

/// The parameters of a call.
pub type Pairs = [(String, String)];

fn value<'a>(pairs: &'a Pairs, name: &str) -> &'a str {
    pairs.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
}

/// Returns the values of a list, such as `ResourceId.1`, `ResourceId.2`.
fn list(pairs: &Pairs, name: &str) -> Vec<String> {
    (1..)
        .map(|number| value(pairs, &format!("{name}.{number}")))
        .take_while(|one| !one.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns the tags below a name, such as `TagSpecification.1.Tag`.
fn tags(pairs: &Pairs, name: &str) -> Tags {
    (1..)
        .map(|number| (value(pairs, &format!("{name}.{number}.Key")), value(pairs, &format!("{name}.{number}.Value"))))
        .take_while(|(key, _)| !key.is_empty())
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn requested(tags: &Tags) -> BTreeMap<String, String> {
    tags.iter().map(|(key, value)| (format!("aws:RequestTag/{key}"), value.clone())).collect()
}

/// Returns the ARN for an id of EC2.
pub fn arn_of(id: &str) -> String {
    let kind = match id.split('-').next() {
        Some("i") => "instance",
        Some("sg") => "security-group",
        Some("sgr") => "security-group-rule",
        Some("eni") => "network-interface",
        Some("rtb") => "route-table",
        Some("vpc") => "vpc",
        Some("subnet") => "subnet",
        Some("vpce") => "vpc-endpoint-service",
        _ => "unknown",
    };
    format!("arn:aws:ec2:eu-west-1:123456789012:{kind}/{id}")
}

/// Returns the ARN of a Classic Load Balancer.
pub fn classic_arn(name: &str) -> String {
    format!("arn:aws:elasticloadbalancing:eu-west-1:123456789012:loadbalancer/{name}")
}

/// Returns the name in the ARN of a Classic Load Balancer, which has no type.
pub fn classic_name(arn: &str) -> Option<&str> {
    let (_, name) = arn.split_once(":loadbalancer/")?;
    (!name.contains('/')).then_some(name)
}

/// Returns the ids and ARNs of the resources whose tags the decision about a call depends on.
pub fn checked_ids(action: &str, pairs: &Pairs) -> Vec<String> {
    let one =
        |name: &str| Some(value(pairs, name).to_owned()).filter(|id| !id.is_empty()).into_iter().collect::<Vec<_>>();
    let classic = one("LoadBalancerName").into_iter().chain(list(pairs, "LoadBalancerNames.member"));
    let classic: Vec<String> = classic.map(|name| classic_arn(&name)).collect();
    match action {
        _ if !classic.is_empty() => classic,
        "CreateTags" | "DeleteTags" => list(pairs, "ResourceId"),
        "CreateSecurityGroup" => one("VpcId"),
        "CreateRoute" | "DeleteRoute" | "ReplaceRoute" => one("RouteTableId"),
        "ModifyInstanceAttribute" => one("InstanceId"),
        "ModifyNetworkInterfaceAttribute" => one("NetworkInterfaceId"),
        "ModifySecurityGroupRules" => {
            let rules = (1..).map(|number| value(pairs, &format!("SecurityGroupRule.{number}.SecurityGroupRuleId")));
            one("GroupId").into_iter().chain(rules.take_while(|rule| !rule.is_empty()).map(str::to_owned)).collect()
        }
        "AuthorizeSecurityGroupIngress" | "RevokeSecurityGroupIngress" | "DeleteSecurityGroup" => one("GroupId"),
        "AddTags" | "RemoveTags" => list(pairs, "ResourceArns.member"),
        "RegisterTargets"
        | "DeregisterTargets"
        | "ModifyTargetGroup"
        | "ModifyTargetGroupAttributes"
        | "DeleteTargetGroup" => one("TargetGroupArn"),
        "ModifyListener"
        | "DeleteListener"
        | "ModifyListenerAttributes"
        | "AddListenerCertificates"
        | "RemoveListenerCertificates" => one("ListenerArn"),
        "ModifyVpcEndpointServiceConfiguration" | "ModifyVpcEndpointServicePermissions" => one("ServiceId"),
        "DeleteVpcEndpointServiceConfigurations" => list(pairs, "ServiceId"),
        "CreateLoadBalancer" | "CreateTargetGroup" | "CreateListener" | "CreateVpcEndpointServiceConfiguration" => {
            Vec::new()
        }
        _ => one("LoadBalancerArn"),
    }
}

/// Returns the accesses that a call needs; `known` are the tags of the resources that it names.
pub fn accesses(ec2: bool, action: &str, pairs: &Pairs, known: &BTreeMap<String, Tags>) -> Vec<Access> {
    let service = if ec2 { "ec2" } else { "elasticloadbalancing" };
    let qualified_action = format!("{service}:{action}");
    if action.starts_with("Describe") || action.starts_with("Get") {
        return vec![Access { action: qualified_action, ..Access::default() }];
    }
    let resource = |id: &String| Resource {
        arn: if id.starts_with("arn:") { id.clone() } else { arn_of(id) },
        tags: known.get(id).cloned().unwrap_or_default(),
    };
    let mut resources: Vec<Resource> = checked_ids(action, pairs).iter().map(resource).collect();
    let given = match (ec2, action) {
        (true, "CreateTags") => tags(pairs, "Tag"),
        (true, _) => tags(pairs, "TagSpecification.1.Tag"),
        (false, _) => tags(pairs, "Tags.member"),
    };
    let mut context = requested(&given);
    if pairs.iter().any(|(name, _)| name.starts_with("SourceDestCheck")) {
        context.insert("ec2:Attribute/SourceDestCheck".into(), value(pairs, "SourceDestCheck.Value").into());
    }
    let created = match action {
        "CreateSecurityGroup" => Some(arn_of("sg-new")),
        "CreateVpcEndpointServiceConfiguration" => Some(arn_of("vpce-svc-new")),
        "CreateLoadBalancer" => {
            Some("arn:aws:elasticloadbalancing:eu-west-1:123456789012:loadbalancer/net/new/1".into())
        }
        "CreateTargetGroup" => Some("arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/new/1".into()),
        "CreateListener" => Some("arn:aws:elasticloadbalancing:eu-west-1:123456789012:listener/net/new/1/2".into()),
        _ => None,
    };
    let mut all = Vec::new();
    if let Some(arn) = created {
        let new = Resource { arn, tags: Tags::new() };
        resources.push(new.clone());
        if !given.is_empty() {
            let tagging = if ec2 { "CreateTags" } else { "AddTags" };
            let mut context = requested(&given);
            context.insert(format!("{service}:CreateAction"), action.to_owned());
            all.push(Access { action: format!("{service}:{tagging}"), resources: vec![new], context });
        }
    }
    all.push(Access { action: qualified_action, resources, context });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = include_str!("../../../deploy/aws-iam-policy.json");
    const ADOPTION: &str = include_str!("../../../deploy/aws-iam-policy-adoption.json");
    const OWN: &str = "kubernetes.io/cluster/c";
    const GROUP: &str = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/x/1";

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn allowed(
        policy: &Policy,
        ec2: bool,
        action: &str,
        parameters: &[(&str, &str)],
        tags_by_id: &[(&str, &[(&str, &str)])],
    ) -> bool {
        let known = tags_by_id.iter().map(|(id, tags)| ((*id).to_owned(), pairs(tags).into_iter().collect())).collect();
        accesses(ec2, action, &pairs(parameters), &known).iter().all(|access| policy.denies(access).is_none())
    }

    #[test]
    fn patterns_match_as_in_policies() {
        for (pattern, text, expected) in [
            ("arn:*:ec2:*:*:vpc/*", "arn:aws-cn:ec2:r:1:vpc/vpc-1", true),
            ("arn:*:ec2:*:*:vpc/*", "arn:aws:ec2:r:1:instance/i-1", false),
            ("*", "", true),
            ("a*c", "abcc", true),
            ("a*c", "abcd", false),
            ("a", "ab", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }

    /// A name and its value: of a parameter, or of a tag.
    type Pair = (&'static str, &'static str);

    const OWNED: &[Pair] = &[(OWN, "owned")];
    const SHARED: &[Pair] = &[(OWN, "shared")];
    const FOREIGN: &[Pair] = &[("kubernetes.io/cluster/d", "owned")];
    const CLUSTER_TAG_EC2: [Pair; 2] =
        [("TagSpecification.1.Tag.1.Key", OWN), ("TagSpecification.1.Tag.1.Value", "owned")];
    const CLUSTER_TAG_ELB: [Pair; 2] = [("Tags.member.1.Key", OWN), ("Tags.member.1.Value", "owned")];
    const RULE: Pair = ("SecurityGroupRule.1.SecurityGroupRuleId", "sgr-1");

    /// A call and the decision of the published policy.
    struct Row {
        name: &'static str,
        action: &'static str,
        parameters: &'static [Pair],
        /// The tags of existing resources, by id or ARN.
        tags: &'static [(&'static str, &'static [Pair])],
        allowed: bool,
    }

    const EC2_ROWS: &[Row] = &[
        Row { name: "reads", action: "DescribeInstances", parameters: &[], tags: &[], allowed: true },
        Row {
            name: "a group in a network without tags",
            action: "CreateSecurityGroup",
            parameters: &[("VpcId", "vpc-1"), CLUSTER_TAG_EC2[0], CLUSTER_TAG_EC2[1]],
            tags: &[],
            allowed: true,
        },
        Row {
            name: "a group without tags",
            action: "CreateSecurityGroup",
            parameters: &[("VpcId", "vpc-1")],
            tags: &[],
            allowed: false,
        },
        Row {
            name: "rules of nodes",
            action: "AuthorizeSecurityGroupIngress",
            parameters: &[("GroupId", "sg-1")],
            tags: &[("sg-1", SHARED)],
            allowed: true,
        },
        Row {
            name: "rules of others",
            action: "AuthorizeSecurityGroupIngress",
            parameters: &[("GroupId", "sg-1")],
            tags: &[("sg-1", FOREIGN)],
            allowed: false,
        },
        Row {
            name: "a rule, which has no tags",
            action: "ModifySecurityGroupRules",
            parameters: &[("GroupId", "sg-1"), RULE],
            tags: &[("sg-1", OWNED)],
            allowed: true,
        },
        Row {
            name: "a rule of others",
            action: "ModifySecurityGroupRules",
            parameters: &[("GroupId", "sg-1"), RULE],
            tags: &[],
            allowed: false,
        },
        Row {
            name: "an endpoint service",
            action: "CreateVpcEndpointServiceConfiguration",
            parameters: &[CLUSTER_TAG_EC2[0], CLUSTER_TAG_EC2[1]],
            tags: &[],
            allowed: true,
        },
        Row {
            name: "an endpoint service without tags",
            action: "CreateVpcEndpointServiceConfiguration",
            parameters: &[],
            tags: &[],
            allowed: false,
        },
        Row {
            name: "deletes the cluster's endpoint service",
            action: "DeleteVpcEndpointServiceConfigurations",
            parameters: &[("ServiceId.1", "vpce-svc-1")],
            tags: &[("vpce-svc-1", OWNED)],
            allowed: true,
        },
        Row {
            name: "principals of others",
            action: "ModifyVpcEndpointServicePermissions",
            parameters: &[("ServiceId", "vpce-svc-1")],
            tags: &[("vpce-svc-1", SHARED)],
            allowed: false,
        },
        Row {
            name: "deletes the cluster's group",
            action: "DeleteSecurityGroup",
            parameters: &[("GroupId", "sg-1")],
            tags: &[("sg-1", OWNED)],
            allowed: true,
        },
        Row {
            name: "deletes the nodes' group",
            action: "DeleteSecurityGroup",
            parameters: &[("GroupId", "sg-1")],
            tags: &[("sg-1", SHARED)],
            allowed: false,
        },
        Row {
            name: "tags the cluster's group",
            action: "CreateTags",
            parameters: &[("ResourceId.1", "sg-1"), ("Tag.1.Key", OWN), ("Tag.1.Value", "owned")],
            tags: &[("sg-1", OWNED)],
            allowed: true,
        },
        Row {
            name: "tags a group of another cluster as its own",
            action: "CreateTags",
            parameters: &[("ResourceId.1", "sg-1"), ("Tag.1.Key", OWN), ("Tag.1.Value", "owned")],
            tags: &[("sg-1", FOREIGN)],
            allowed: false,
        },
        Row {
            name: "disables the source/destination check of a node",
            action: "ModifyInstanceAttribute",
            parameters: &[("InstanceId", "i-1"), ("SourceDestCheck.Value", "false")],
            tags: &[("i-1", SHARED)],
            allowed: true,
        },
        Row {
            name: "disables the source/destination check of a node's interface",
            action: "ModifyNetworkInterfaceAttribute",
            parameters: &[("NetworkInterfaceId", "eni-1"), ("SourceDestCheck.Value", "false")],
            tags: &[("eni-1", SHARED)],
            allowed: true,
        },
        Row {
            name: "disables the source/destination check of an interface without the tag",
            action: "ModifyNetworkInterfaceAttribute",
            parameters: &[("NetworkInterfaceId", "eni-1"), ("SourceDestCheck.Value", "false")],
            tags: &[("eni-1", FOREIGN)],
            allowed: false,
        },
        Row {
            name: "changes the security groups of a node's interface",
            action: "ModifyNetworkInterfaceAttribute",
            parameters: &[("NetworkInterfaceId", "eni-1"), ("SecurityGroupId.1", "sg-1")],
            tags: &[("eni-1", OWNED)],
            allowed: false,
        },
        Row {
            name: "changes the user data of a node",
            action: "ModifyInstanceAttribute",
            parameters: &[("InstanceId", "i-1"), ("UserData.Value", "x")],
            tags: &[("i-1", OWNED)],
            allowed: false,
        },
    ];

    const ELB_ROWS: &[Row] = &[
        Row {
            name: "creates a target group",
            action: "CreateTargetGroup",
            parameters: &[CLUSTER_TAG_ELB[0], CLUSTER_TAG_ELB[1]],
            tags: &[],
            allowed: true,
        },
        Row {
            name: "creates a target group without the tag",
            action: "CreateTargetGroup",
            parameters: &[],
            tags: &[],
            allowed: false,
        },
        Row {
            name: "tags a target group of another cluster as its own",
            action: "AddTags",
            parameters: &[("ResourceArns.member.1", GROUP), CLUSTER_TAG_ELB[0], CLUSTER_TAG_ELB[1]],
            tags: &[(GROUP, FOREIGN)],
            allowed: false,
        },
        Row {
            name: "tags the cluster's target group",
            action: "AddTags",
            parameters: &[("ResourceArns.member.1", GROUP), CLUSTER_TAG_ELB[0], CLUSTER_TAG_ELB[1]],
            tags: &[(GROUP, OWNED)],
            allowed: true,
        },
        Row {
            name: "registers targets in a target group of a user",
            action: "RegisterTargets",
            parameters: &[("TargetGroupArn", GROUP)],
            tags: &[(GROUP, SHARED)],
            allowed: true,
        },
        Row {
            name: "registers targets in a target group of another cluster",
            action: "RegisterTargets",
            parameters: &[("TargetGroupArn", GROUP)],
            tags: &[(GROUP, FOREIGN)],
            allowed: false,
        },
        Row {
            name: "changes a target group of a user",
            action: "ModifyTargetGroup",
            parameters: &[("TargetGroupArn", GROUP)],
            tags: &[(GROUP, SHARED)],
            allowed: false,
        },
        Row {
            name: "deletes the cluster's target group",
            action: "DeleteTargetGroup",
            parameters: &[("TargetGroupArn", GROUP)],
            tags: &[(GROUP, OWNED)],
            allowed: true,
        },
        Row {
            name: "deletes a target group of another cluster",
            action: "DeleteTargetGroup",
            parameters: &[("TargetGroupArn", GROUP)],
            tags: &[(GROUP, FOREIGN)],
            allowed: false,
        },
    ];

    #[test]
    fn published_policy_allows_only_resources_of_the_cluster() {
        let policy = Policy::parse(&[POLICY], &[("CLUSTER", "c")]).unwrap();
        for (ec2, rows) in [(true, EC2_ROWS), (false, ELB_ROWS)] {
            for row in rows {
                let found = allowed(&policy, ec2, row.action, row.parameters, row.tags);
                assert_eq!(found, row.allowed, "{}", row.name);
            }
        }
        let linked = |service: &str| Access {
            action: "iam:CreateServiceLinkedRole".into(),
            context: [("iam:AWSServiceName".to_owned(), service.to_owned())].into(),
            ..Access::default()
        };
        assert_eq!(policy.denies(&linked("elasticloadbalancing.amazonaws.com")), None);
        assert!(policy.denies(&linked("ec2.amazonaws.com")).is_some());
    }

    #[test]
    fn adoption_policy_allows_tags_on_stacks_of_services_only() {
        let placeholders = [("CLUSTERNAME", "prod"), ("CLUSTER", "c")];
        let (without, with) = (
            Policy::parse(&[POLICY], &placeholders).unwrap(),
            Policy::parse(&[POLICY, ADOPTION], &placeholders).unwrap(),
        );
        let add = [("ResourceArns.member.1", GROUP), ("Tags.member.1.Key", OWN), ("Tags.member.1.Value", "owned")];
        let cluster = ("elbv2.k8s.aws/cluster", "prod");
        let stack: &[(&str, &str)] = &[cluster, ("service.k8s.aws/stack", "default/web")];
        let ingress: &[(&str, &str)] = &[cluster, ("ingress.k8s.aws/stack", "default/web")];
        let other: &[(&str, &str)] = &[("elbv2.k8s.aws/cluster", "test"), ("service.k8s.aws/stack", "default/web")];
        for (tags, expected) in [(stack, true), (ingress, false), (other, false)] {
            assert_eq!(allowed(&with, false, "AddTags", &add, &[(GROUP, tags)]), expected, "{tags:?}");
            assert!(!allowed(&without, false, "AddTags", &add, &[(GROUP, tags)]), "{tags:?}");
        }
    }
}
