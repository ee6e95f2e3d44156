//! The resources of an account and a cluster, as comparable lines: IDs that change from run to run are replaced by
//! descriptions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Node, Service as KubeService};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use moto::{Element, Machine, Moto, Service};

use super::bed::Bed;

/// The tag with the Service that a resource belongs to.
const FOR: &str = "kubernetes.io/service-name";

/// Returns all resources, one fact per line, in order.
pub async fn holdings(bed: &Bed) -> Result<BTreeSet<String>> {
    let services = bed.services().list(&ListParams::default()).await.context("list the Services")?.items;
    let nodes = bed.nodes().list(&ListParams::default()).await.context("list the nodes")?.items;
    let events = Api::<Event>::all(bed.client.clone()).list(&ListParams::default()).await.context("list the events")?;
    let mut names = Names::new(&bed.moto, &bed.machines);
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
    machines(&bed.moto, &names, &mut lines).await?;
    services.iter().for_each(|service| lines.service(service, &names));
    nodes.iter().for_each(|node| lines.node(node, &names));
    events.items.iter().for_each(|event| lines.event(event));
    Ok(lines.0)
}

/// IDs and their descriptions.
struct Names(Vec<(String, String)>);

impl Names {
    fn new(moto: &Moto, machines: &[Machine]) -> Self {
        let mut names = Self(Vec::new());
        names.add(&moto.network.vpc, "<network>");
        names.add(&moto.network.table, "<table>");
        names.add(moto.proxy.account(), "<account>");
        for (number, subnet) in (1..).zip(&moto.network.subnets) {
            names.add(subnet, &format!("<subnet {number}>"));
        }
        for machine in machines {
            names.add(&machine.id, &format!("<{}>", machine.name));
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

    fn of(&self, text: &str) -> String {
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
    fn add(&mut self, what: &str, fact: &str, value: &str) {
        if !value.is_empty() {
            self.0.insert(format!("{what}: {fact} {value}"));
        }
    }

    fn all<'a>(&mut self, what: &str, fact: &str, values: impl IntoIterator<Item = &'a str>, names: &Names) {
        values.into_iter().for_each(|value| self.add(what, fact, &names.of(value)));
    }

    fn service(&mut self, service: &KubeService, names: &Names) {
        let what = format!("Service {}", service.name_any());
        self.all(&what, "finalizer", service.finalizers().iter().map(String::as_str), names);
        let status = service.status.iter().flat_map(|status| &status.load_balancer);
        for ingress in status.flat_map(|status| &status.ingress).flatten() {
            self.add(&what, "way in", &names.of(ingress.hostname.as_deref().or(ingress.ip.as_deref()).unwrap_or("?")));
        }
    }

    fn node(&mut self, node: &Node, names: &Names) {
        let what = format!("Node {}", node.name_any());
        for (key, value) in node.labels() {
            self.add(&what, "label", &names.of(&format!("{key}={value}")));
        }
        if let Some(spec) = &node.spec {
            self.all(&what, "provider id", spec.provider_id.as_deref(), names);
            for taint in spec.taints.iter().flatten() {
                self.add(&what, "taint", &format!("{}:{}", taint.key, taint.effect));
            }
        }
        let status = node.status.iter();
        let addresses = status.clone().flat_map(|status| &status.addresses).flatten();
        let addresses: Vec<String> = addresses.map(|one| format!("{} {}", one.type_, one.address)).collect();
        self.add(&what, "addresses", &addresses.join(", "));
        for condition in status.flat_map(|status| &status.conditions).flatten() {
            let reason = condition.reason.as_deref().unwrap_or_default();
            self.add(&what, "condition", &format!("{} {} {reason}", condition.type_, condition.status));
        }
    }

    fn event(&mut self, event: &Event) {
        let source = event.source.iter().find_map(|source| source.component.clone()).unwrap_or_default();
        let object = &event.involved_object;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        // Events about other objects are not compared.
        if ["Node", "Service"].contains(&text(&object.kind).as_str()) {
            let what = format!("{} {}", text(&object.kind), text(&object.name));
            self.add(&what, "event", &format!("{source} {} {}", text(&event.type_), text(&event.reason)));
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
    tags.get(FOR).map_or("nobody", |name| name.trim_start_matches("default/"))
}

async fn balancers(moto: &Moto, names: &Names, lines: &mut Lines) -> Result<()> {
    for balancer in list(moto, "DescribeLoadBalancers", "LoadBalancers").await? {
        let arn = balancer.text("LoadBalancerArn");
        let tags = tags(moto, arn).await?;
        let what = format!("balancer of {}", owner(&tags));
        for (fact, path) in [
            ("name", "LoadBalancerName"),
            ("type", "Type"),
            ("scheme", "Scheme"),
            ("address type", "IpAddressType"),
            ("subnet", "AvailabilityZones/member/SubnetId"),
            ("security group", "SecurityGroups/member"),
        ] {
            lines.all(&what, fact, balancer.texts(path), names);
        }
        tagged(lines, &what, &tags, names);
        let about = [("LoadBalancerArn", arn)];
        let elb = |action, list| moto.aws.list(Service::Elb, action, &about, list);
        attributes(lines, &what, &elb("DescribeLoadBalancerAttributes", "Attributes").await?);
        for listener in elb("DescribeListeners", "Listeners").await? {
            let what = format!("listener {}:{} of {}", listener.text("Protocol"), listener.text("Port"), owner(&tags));
            for (fact, path) in [
                ("certificate", "Certificates/member/CertificateArn"),
                ("policy", "SslPolicy"),
                ("ALPN", "AlpnPolicy/member"),
            ] {
                lines.all(&what, fact, listener.texts(path), names);
            }
            let to = listener.text("DefaultActions/member/TargetGroupArn");
            lines.add(&what, "forwards to", &behind(moto, to).await?);
            tagged(lines, &what, &self::tags(moto, listener.text("ListenerArn")).await?, names);
        }
    }
    for asked in moto.proxy.asked("CreateLoadBalancer") {
        let value = |name: &str| asked.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
        // Settings that moto accepts but does not return, while the Service exists.
        let balancer = names.of(value("Name"));
        if balancer == value("Name") {
            continue;
        }
        for part in ["AllocationId", "PrivateIPv4Address"] {
            for number in 1..=3 {
                let given = value(&format!("SubnetMappings.member.{number}.{part}"));
                lines.add(&format!("balancer {balancer}"), part, &names.of(given));
            }
        }
    }
    Ok(())
}

/// Returns port and protocol of a target group, which identify a listener's group.
async fn behind(moto: &Moto, arn: &str) -> Result<String> {
    let about = [("TargetGroupArns.member.1", arn)];
    let groups = moto.aws.list(Service::Elb, "DescribeTargetGroups", &about, "TargetGroups").await?;
    Ok(groups
        .first()
        .map_or("nowhere".to_owned(), |group| format!("{}:{}", group.text("Protocol"), group.text("Port"))))
}

async fn target_groups(moto: &Moto, names: &Names, lines: &mut Lines) -> Result<()> {
    for group in list(moto, "DescribeTargetGroups", "TargetGroups").await? {
        let arn = group.text("TargetGroupArn");
        let tags = tags(moto, arn).await?;
        let what = format!("target group {}:{} of {}", group.text("Protocol"), group.text("Port"), owner(&tags));
        lines.add(&what, "name", &without_hash(group.text("TargetGroupName")));
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
            lines.add(&what, fact, group.text(path));
        }
        tagged(lines, &what, &tags, names);
        let about = [("TargetGroupArn", arn)];
        let elb = |action, list| moto.aws.list(Service::Elb, action, &about, list);
        attributes(lines, &what, &elb("DescribeTargetGroupAttributes", "Attributes").await?);
        for target in elb("DescribeTargetHealth", "TargetHealthDescriptions").await? {
            let target = format!("{}:{}", target.text("Target/Id"), target.text("Target/Port"));
            lines.add(&what, "target", &names.of(&target));
        }
    }
    Ok(())
}

fn tagged(lines: &mut Lines, what: &str, tags: &BTreeMap<String, String>, names: &Names) {
    for (key, value) in tags {
        lines.add(what, "tag", &names.of(&format!("{key}={value}")));
    }
}

fn attributes(lines: &mut Lines, what: &str, attributes: &[Element]) {
    for attribute in attributes {
        lines.add(what, "attribute", &format!("{}={}", attribute.text("Key"), attribute.text("Value")));
    }
}

async fn security_groups(moto: &Moto, groups: &[Element], names: &Names, lines: &mut Lines) -> Result<()> {
    for group in groups.iter().filter(|group| group.text("groupName") != "default") {
        let what = format!("security group {}", without_hash(group.text("groupName")));
        lines.add(&what, "says", group.text("groupDescription"));
        for tag in group.all("tagSet/item") {
            lines.add(&what, "tag", &names.of(&format!("{}={}", tag.text("key"), tag.text("value"))));
        }
    }
    for rule in list(moto, "DescribeSecurityGroupRules", "securityGroupRuleSet").await? {
        let group = names.of(rule.text("groupId"));
        let from = [rule.text("cidrIpv4"), rule.text("cidrIpv6"), rule.text("referencedGroupInfo/groupId")].concat();
        if rule.text("isEgress") == "true" || group.starts_with("<group default>") {
            continue;
        }
        let ports = format!("{} {}-{}", rule.text("ipProtocol"), rule.text("fromPort"), rule.text("toPort"));
        let fact = format!("{ports} from {}: {}", names.of(&from), names.of(rule.text("description")));
        lines.add(
            &format!(
                "security group {}",
                group.strip_prefix("<group ").and_then(|name| name.strip_suffix('>')).unwrap_or(&group)
            ),
            "lets in",
            &fact,
        );
    }
    Ok(())
}

async fn machines(moto: &Moto, names: &Names, lines: &mut Lines) -> Result<()> {
    for reservation in list(moto, "DescribeInstances", "reservationSet").await? {
        for machine in reservation.all("instancesSet/item") {
            let what = format!("machine {}", names.of(machine.text("instanceId")));
            lines.add(&what, "source/destination check", machine.text("sourceDestCheck"));
            for tag in machine.all("tagSet/item") {
                lines.add(&what, "tag", &format!("{}={}", tag.text("key"), tag.text("value")));
            }
        }
    }
    for (network, machine) in moto.routes(&moto.network.table).await? {
        lines.add("route", &network, &names.of(&machine));
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
        assert_eq!(names.of("aws:///z/i-0a"), "aws:///z/<n>");
        assert_eq!(names.of("uid=01234567-89ab-cdef-0123-456789abcdef"), "uid=<uid of web>");
        assert_eq!(names.of("a0123456789abcdef0123456789abcde-1.elb"), "<name of web>-1.elb");
    }
}
