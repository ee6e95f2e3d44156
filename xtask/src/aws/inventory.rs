//! The resources of an account and a cluster, as comparable lines: IDs that change from run to run are replaced by
//! descriptions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Node, Service as KubeService};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use moto::{Element, Instance, Moto, Service};

use super::bed::Bed;

/// The tag with the Service that a resource belongs to.
const SERVICE_TAG: &str = "kubernetes.io/service-name";

/// Returns all resources, one fact per line, in order.
pub async fn inventory(bed: &Bed) -> Result<BTreeSet<String>> {
    let services = bed.services().list(&ListParams::default()).await.context("list the Services")?.items;
    let nodes = bed.nodes().list(&ListParams::default()).await.context("list the nodes")?.items;
    let events = Api::<Event>::all(bed.client.clone()).list(&ListParams::default()).await.context("list the events")?;
    let mut names = Names::new(&bed.moto, &bed.instances);
    services.iter().for_each(|service| names.service(service));
    for (number, address) in (1..).zip(list(&bed.moto, "DescribeAddresses", "addressesSet").await?) {
        names.add(address.text("allocationId"), &format!("<address {number}>"));
    }
    let groups = list(&bed.moto, "DescribeSecurityGroups", "securityGroupInfo").await?;
    for group in &groups {
        names.add(group.text("groupId"), &format!("<group {}>", without_hash(group.text("groupName"))));
    }
    let mut lines = Lines::default();
    balancers(&bed.moto, &names, &mut lines).await?;
    target_groups(&bed.moto, &names, &mut lines).await?;
    security_groups(&bed.moto, &groups, &names, &mut lines).await?;
    instances(&bed.moto, &names, &mut lines).await?;
    services.iter().for_each(|service| lines.service(service, &names));
    nodes.iter().for_each(|node| lines.node(node, &names));
    events.items.iter().for_each(|event| lines.event(event));
    Ok(lines.0)
}

/// IDs and their descriptions.
struct Names(Vec<(String, String)>);

impl Names {
    fn new(moto: &Moto, instances: &[Instance]) -> Self {
        let mut names = Self(Vec::new());
        names.add(&moto.network.vpc, "<network>");
        names.add(&moto.network.table, "<table>");
        names.add(moto.proxy.account(), "<account>");
        for (number, subnet) in (1..).zip(&moto.network.subnets) {
            names.add(subnet, &format!("<subnet {number}>"));
        }
        for instance in instances {
            names.add(&instance.id, &format!("<{}>", instance.name));
        }
        names
    }

    fn add(&mut self, id: &str, name: &str) {
        self.0.push((id.to_owned(), name.to_owned()));
    }

    /// Adds a Service's uid, and the load balancer name derived from it.
    fn service(&mut self, service: &KubeService) {
        let (name, uid) = (service.name_any(), service.uid().unwrap_or_default());
        let plain = format!("a{}", uid.replace('-', ""));
        self.add(&uid, &format!("<uid of {name}>"));
        self.add(plain.get(..32).unwrap_or(&plain), &format!("<name of {name}>"));
    }

    fn describe(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (id, name)| text.replace(id, name))
    }
}

/// Returns the name with the digest at its end replaced, if it has one.
fn without_hash(name: &str) -> String {
    match name.rsplit_once('-') {
        Some((rest, hash)) if hash.len() == 10 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{rest}-<hash>")
        }
        _ => name.to_owned(),
    }
}

#[derive(Default)]
struct Lines(BTreeSet<String>);

impl Lines {
    fn add(&mut self, subject: &str, fact: &str, value: &str) {
        if !value.is_empty() {
            self.0.insert(format!("{subject}: {fact} {value}"));
        }
    }

    fn add_all<'a>(&mut self, subject: &str, fact: &str, values: impl IntoIterator<Item = &'a str>, names: &Names) {
        values.into_iter().for_each(|value| self.add(subject, fact, &names.describe(value)));
    }

    fn service(&mut self, service: &KubeService, names: &Names) {
        let subject = format!("Service {}", service.name_any());
        self.add_all(&subject, "finalizer", service.finalizers().iter().map(String::as_str), names);
        let status = service.status.iter().flat_map(|status| &status.load_balancer);
        for ingress in status.flat_map(|status| &status.ingress).flatten() {
            self.add(
                &subject,
                "address",
                &names.describe(ingress.hostname.as_deref().or(ingress.ip.as_deref()).unwrap_or("?")),
            );
        }
    }

    fn node(&mut self, node: &Node, names: &Names) {
        let subject = format!("Node {}", node.name_any());
        for (key, value) in node.labels() {
            self.add(&subject, "label", &names.describe(&format!("{key}={value}")));
        }
        if let Some(spec) = &node.spec {
            self.add_all(&subject, "provider id", spec.provider_id.as_deref(), names);
            for taint in spec.taints.iter().flatten() {
                self.add(&subject, "taint", &format!("{}:{}", taint.key, taint.effect));
            }
        }
        let status = node.status.iter();
        let addresses = status.clone().flat_map(|status| &status.addresses).flatten();
        let addresses: Vec<String> = addresses.map(|one| format!("{} {}", one.type_, one.address)).collect();
        self.add(&subject, "addresses", &addresses.join(", "));
        for condition in status.flat_map(|status| &status.conditions).flatten() {
            let reason = condition.reason.as_deref().unwrap_or_default();
            self.add(&subject, "condition", &format!("{} {} {reason}", condition.type_, condition.status));
        }
    }

    fn event(&mut self, event: &Event) {
        let source = event.source.iter().find_map(|source| source.component.clone()).unwrap_or_default();
        let object = &event.involved_object;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        // Events about other objects are not compared.
        if ["Node", "Service"].contains(&text(&object.kind).as_str()) {
            let subject = format!("{} {}", text(&object.kind), text(&object.name));
            self.add(&subject, "event", &format!("{source} {} {}", text(&event.type_), text(&event.reason)));
        }
    }
}

async fn list(moto: &Moto, action: &str, list: &str) -> Result<Vec<Element>> {
    let service = if list.starts_with(char::is_uppercase) { Service::Elb } else { Service::Ec2 };
    moto.aws.list(service, action, &[], list).await
}

/// Returns the tags of a resource in ELB.
async fn tags(moto: &Moto, arn: &str) -> Result<BTreeMap<String, String>> {
    let described =
        moto.aws.list(Service::Elb, "DescribeTags", &[("ResourceArns.member.1", arn)], "TagDescriptions").await?;
    let tags = described.iter().flat_map(|one| one.all("Tags/member"));
    Ok(tags.map(|tag| (tag.text("Key").to_owned(), tag.text("Value").to_owned())).collect())
}

fn owner(tags: &BTreeMap<String, String>) -> &str {
    tags.get(SERVICE_TAG).map_or("(no Service)", |name| name.trim_start_matches("default/"))
}

async fn balancers(moto: &Moto, names: &Names, lines: &mut Lines) -> Result<()> {
    for balancer in list(moto, "DescribeLoadBalancers", "LoadBalancers").await? {
        let arn = balancer.text("LoadBalancerArn");
        let tags = tags(moto, arn).await?;
        let subject = format!("load balancer of {}", owner(&tags));
        for (fact, path) in [
            ("name", "LoadBalancerName"),
            ("type", "Type"),
            ("scheme", "Scheme"),
            ("address type", "IpAddressType"),
            ("subnet", "AvailabilityZones/member/SubnetId"),
            ("security group", "SecurityGroups/member"),
        ] {
            lines.add_all(&subject, fact, balancer.texts(path), names);
        }
        add_tags(lines, &subject, &tags, names);
        let about = [("LoadBalancerArn", arn)];
        let elb = |action, list| moto.aws.list(Service::Elb, action, &about, list);
        attributes(lines, &subject, &elb("DescribeLoadBalancerAttributes", "Attributes").await?);
        for listener in elb("DescribeListeners", "Listeners").await? {
            let subject =
                format!("listener {}:{} of {}", listener.text("Protocol"), listener.text("Port"), owner(&tags));
            for (fact, path) in [
                ("certificate", "Certificates/member/CertificateArn"),
                ("policy", "SslPolicy"),
                ("ALPN", "AlpnPolicy/member"),
            ] {
                lines.add_all(&subject, fact, listener.texts(path), names);
            }
            let to = listener.text("DefaultActions/member/TargetGroupArn");
            lines.add(&subject, "forwards to", &protocol_and_port(moto, to).await?);
            add_tags(lines, &subject, &self::tags(moto, listener.text("ListenerArn")).await?, names);
        }
    }
    for request in moto.proxy.requests("CreateLoadBalancer") {
        let value = |name: &str| request.iter().find(|(parameter, _)| parameter == name).map_or("", |(_, value)| value);
        // moto accepts these settings but does not return them. Requests for load balancers of deleted Services do not
        // count: their names are not among the known ones.
        let balancer = names.describe(value("Name"));
        if balancer == value("Name") {
            continue;
        }
        for part in ["AllocationId", "PrivateIPv4Address"] {
            for number in 1..=3 {
                let given = value(&format!("SubnetMappings.member.{number}.{part}"));
                lines.add(&format!("load balancer {balancer}"), part, &names.describe(given));
            }
        }
    }
    Ok(())
}

/// Returns protocol and port of a target group instead of its name, which contains a hash and differs between managers.
async fn protocol_and_port(moto: &Moto, arn: &str) -> Result<String> {
    let about = [("TargetGroupArns.member.1", arn)];
    let groups = moto.aws.list(Service::Elb, "DescribeTargetGroups", &about, "TargetGroups").await?;
    Ok(groups
        .first()
        .map_or("(no target group)".to_owned(), |group| format!("{}:{}", group.text("Protocol"), group.text("Port"))))
}

async fn target_groups(moto: &Moto, names: &Names, lines: &mut Lines) -> Result<()> {
    for group in list(moto, "DescribeTargetGroups", "TargetGroups").await? {
        let arn = group.text("TargetGroupArn");
        let tags = tags(moto, arn).await?;
        let subject = format!("target group {}:{} of {}", group.text("Protocol"), group.text("Port"), owner(&tags));
        lines.add(&subject, "name", &without_hash(group.text("TargetGroupName")));
        for (fact, path) in [
            ("type", "TargetType"),
            ("health protocol", "HealthCheckProtocol"),
            ("health port", "HealthCheckPort"),
            ("health path", "HealthCheckPath"),
            ("health interval", "HealthCheckIntervalSeconds"),
            ("health timeout", "HealthCheckTimeoutSeconds"),
            ("healthy after", "HealthyThresholdCount"),
            ("unhealthy after", "UnhealthyThresholdCount"),
            ("healthy codes", "Matcher/HttpCode"),
        ] {
            lines.add(&subject, fact, group.text(path));
        }
        add_tags(lines, &subject, &tags, names);
        let about = [("TargetGroupArn", arn)];
        let elb = |action, list| moto.aws.list(Service::Elb, action, &about, list);
        attributes(lines, &subject, &elb("DescribeTargetGroupAttributes", "Attributes").await?);
        for target in elb("DescribeTargetHealth", "TargetHealthDescriptions").await? {
            let target = format!("{}:{}", target.text("Target/Id"), target.text("Target/Port"));
            lines.add(&subject, "target", &names.describe(&target));
        }
    }
    Ok(())
}

fn add_tags(lines: &mut Lines, subject: &str, tags: &BTreeMap<String, String>, names: &Names) {
    for (key, value) in tags {
        lines.add(subject, "tag", &names.describe(&format!("{key}={value}")));
    }
}

fn attributes(lines: &mut Lines, subject: &str, attributes: &[Element]) {
    for attribute in attributes {
        lines.add(subject, "attribute", &format!("{}={}", attribute.text("Key"), attribute.text("Value")));
    }
}

async fn security_groups(moto: &Moto, groups: &[Element], names: &Names, lines: &mut Lines) -> Result<()> {
    for group in groups.iter().filter(|group| group.text("groupName") != "default") {
        let subject = format!("security group {}", without_hash(group.text("groupName")));
        lines.add(&subject, "description", group.text("groupDescription"));
        for tag in group.all("tagSet/item") {
            lines.add(&subject, "tag", &names.describe(&format!("{}={}", tag.text("key"), tag.text("value"))));
        }
    }
    for rule in list(moto, "DescribeSecurityGroupRules", "securityGroupRuleSet").await? {
        let group = names.describe(rule.text("groupId"));
        let from = [rule.text("cidrIpv4"), rule.text("cidrIpv6"), rule.text("referencedGroupInfo/groupId")].concat();
        if rule.text("isEgress") == "true" || group.starts_with("<group default>") {
            continue;
        }
        let ports = format!("{} {}-{}", rule.text("ipProtocol"), rule.text("fromPort"), rule.text("toPort"));
        let fact = format!("{ports} from {}: {}", names.describe(&from), names.describe(rule.text("description")));
        lines.add(
            &format!(
                "security group {}",
                group.strip_prefix("<group ").and_then(|name| name.strip_suffix('>')).unwrap_or(&group)
            ),
            "allows",
            &fact,
        );
    }
    Ok(())
}

async fn instances(moto: &Moto, names: &Names, lines: &mut Lines) -> Result<()> {
    for reservation in list(moto, "DescribeInstances", "reservationSet").await? {
        for instance in reservation.all("instancesSet/item") {
            let subject = format!("instance {}", names.describe(instance.text("instanceId")));
            lines.add(&subject, "source/destination check", instance.text("sourceDestCheck"));
            for tag in instance.all("tagSet/item") {
                lines.add(&subject, "tag", &format!("{}={}", tag.text("key"), tag.text("value")));
            }
        }
    }
    for (network, instance) in moto.routes(&moto.network.table).await? {
        lines.add("route", &network, &names.describe(&instance));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_at_the_end_are_replaced() {
        for (name, expected) in [
            ("k8s-default-web-0123456789", "k8s-default-web-<hash>"),
            ("k8s-default-web-01234567", "k8s-default-web-01234567"),
            ("k8s-default-web-abcdefghij", "k8s-default-web-abcdefghij"),
            ("nodes", "nodes"),
        ] {
            assert_eq!(without_hash(name), expected);
        }
    }

    #[test]
    fn ids_are_replaced_by_descriptions() {
        let mut names = Names(Vec::new());
        names.add("i-0a", "<n>");
        names.service(
            &serde_json::from_value(serde_json::json!({
                "metadata": {"name": "web", "uid": "01234567-89ab-cdef-0123-456789abcdef"},
            }))
            .unwrap(),
        );
        assert_eq!(names.describe("aws:///z/i-0a"), "aws:///z/<n>");
        assert_eq!(names.describe("uid=01234567-89ab-cdef-0123-456789abcdef"), "uid=<uid of web>");
        assert_eq!(names.describe("a0123456789abcdef0123456789abcde-1.elb"), "<name of web>-1.elb");
    }
}
