//! Conversion of responses of ELB and EC2 to this provider's types, and of these to parts of requests.

use aws_sdk_ec2::types as ec2;
use aws_sdk_elasticloadbalancingv2::types as elb;

use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedListener, ObservedTargetGroup, State};
use crate::loadbalancer::types::{
    AddressType, Attributes, HealthCheck, Mapping, ObservedRule, Probe, Protocol, Rule, Scheme, Source, Tags, Target,
    TargetHealth, TargetType,
};

fn text(value: Option<&str>) -> String {
    value.unwrap_or_default().to_owned()
}

/// Converts a port of ELB; 0 if it is missing.
fn port(number: Option<i32>) -> u16 {
    number.and_then(|number| u16::try_from(number).ok()).unwrap_or_default()
}

/// Converts a load balancer, without the details of other calls; `None` if it is not a Network Load Balancer.
pub(crate) fn balancer(from: &elb::LoadBalancer) -> Option<ObservedBalancer> {
    if from.r#type() != Some(&elb::LoadBalancerTypeEnum::Network) {
        return None;
    }
    let state = match from.state().and_then(|state| state.code()).map(|code| code.as_str()) {
        Some("provisioning") => State::Provisioning,
        Some("failed") => State::Failed,
        _ => State::Active,
    };
    Some(ObservedBalancer {
        arn: text(from.load_balancer_arn()),
        name: text(from.load_balancer_name()),
        dns: text(from.dns_name()).to_ascii_lowercase(),
        state,
        reason: from.state().and_then(|state| state.reason()).unwrap_or_default().to_owned(),
        scheme: from.scheme().and_then(|scheme| Scheme::parse(scheme.as_str())).unwrap_or(Scheme::InternetFacing),
        address_type: from
            .ip_address_type()
            .and_then(|kind| AddressType::parse(kind.as_str()))
            .unwrap_or(AddressType::Ipv4),
        subnets: from.availability_zones().iter().map(mapping).collect(),
        security_groups: from.security_groups().to_vec(),
        private_link: from
            .enforce_security_group_inbound_rules_on_private_link_traffic()
            .map(|word| word.eq_ignore_ascii_case("on")),
        source_nat: from.enable_prefix_for_ipv6_source_nat() == Some(&elb::EnablePrefixForIpv6SourceNatEnum::On),
        attributes: Attributes::new(),
        capacity: None,
        tags: Tags::new(),
        listeners: Vec::new(),
        shared: false,
        leads: false,
        taken: Default::default(),
    })
}

fn mapping(zone: &elb::AvailabilityZone) -> Mapping {
    let address = zone.load_balancer_addresses().first();
    Mapping {
        subnet: text(zone.subnet_id()),
        zone: text(zone.zone_name()),
        allocation: address.and_then(|address| address.allocation_id()).map(str::to_owned),
        private_v4: address.and_then(|address| address.private_ipv4_address()).map(str::to_owned),
        v6: address.and_then(|address| address.ipv6_address()).map(str::to_owned),
        nat_prefix: zone.source_nat_ipv6_prefixes().first().cloned(),
    }
}

/// Converts a target group, without the details of other calls; `None` if this provider creates none of that kind.
pub(crate) fn target_group(from: &elb::TargetGroup) -> Option<ObservedTargetGroup> {
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok()).unwrap_or_default();
    let health = HealthCheck {
        protocol: from.health_check_protocol().and_then(|word| Probe::parse(word.as_str())).unwrap_or(Probe::Tcp),
        port: text(from.health_check_port()),
        path: from.health_check_path().map(str::to_owned),
        codes: from.matcher().and_then(|matcher| matcher.http_code()).map(str::to_owned),
        interval: number(from.health_check_interval_seconds()),
        timeout: Some(number(from.health_check_timeout_seconds())),
        healthy: number(from.healthy_threshold_count()),
        unhealthy: number(from.unhealthy_threshold_count()),
    };
    Some(ObservedTargetGroup {
        arn: text(from.target_group_arn()),
        name: text(from.target_group_name()),
        target_type: TargetType::parse(from.target_type()?.as_str())?,
        protocol: Protocol::parse(from.protocol()?.as_str())?,
        port: port(from.port()),
        ipv6: from.ip_address_type() == Some(&elb::TargetGroupIpAddressTypeEnum::Ipv6),
        health,
        attributes: Attributes::new(),
        tags: Tags::new(),
        targets: Default::default(),
        recorded: None,
    })
}

/// Converts a listener; `None` if this provider creates none of that kind.
pub(crate) fn listener(from: &elb::Listener) -> Option<ObservedListener> {
    let action = from.default_actions().first();
    let weighted = action.and_then(|action| action.forward_config()).map(|forward| forward.target_groups());
    let mut forwards: Vec<(String, i32)> = weighted
        .unwrap_or_default()
        .iter()
        .map(|group| (text(group.target_group_arn()), group.weight().unwrap_or(1)))
        .collect();
    if forwards.is_empty() {
        forwards.extend(action.and_then(|action| action.target_group_arn()).map(|arn| (arn.to_owned(), 1)));
    }
    let stickiness = action.and_then(|action| action.forward_config()?.target_group_stickiness_config());
    Some(ObservedListener {
        arn: text(from.listener_arn()),
        port: port(from.port()),
        protocol: Protocol::parse(from.protocol()?.as_str())?,
        certificates: from.certificates().iter().map(|one| text(one.certificate_arn())).collect(),
        policy: from.ssl_policy().filter(|policy| !policy.is_empty()).map(str::to_owned),
        alpn: from.alpn_policy().first().cloned(),
        attributes: Attributes::new(),
        tags: Tags::new(),
        forwards,
        sticky: stickiness.and_then(|config| config.enabled()) == Some(true),
    })
}

/// Converts a target and its health.
pub(crate) fn health(from: &elb::TargetHealthDescription) -> Option<(Target, TargetHealth)> {
    let target = from.target()?;
    let state = from.target_health().and_then(|health| health.state()).map(|state| state.as_str());
    let health = match state {
        Some("healthy") => TargetHealth::Healthy,
        Some("unhealthy") => TargetHealth::Unhealthy,
        Some("initial") => TargetHealth::Initial,
        Some("unused") => TargetHealth::Unused,
        Some("draining" | "unhealthy.draining") => TargetHealth::Draining,
        _ => TargetHealth::Unknown,
    };
    Some((Target { id: text(target.id()), port: port(target.port()) }, health))
}

/// Converts an ingress rule; `None` for an egress rule, and for a source of an unknown kind.
pub(crate) fn rule(from: &ec2::SecurityGroupRule) -> Option<ObservedRule> {
    if from.is_egress() == Some(true) {
        return None;
    }
    let range = |text: &str| text.parse().ok().map(Source::Range);
    let group = from.referenced_group_info().and_then(|group| group.group_id());
    let source = from
        .cidr_ipv4()
        .and_then(range)
        .or_else(|| from.cidr_ipv6().and_then(range))
        .or_else(|| from.prefix_list_id().map(|id| Source::PrefixList(id.to_owned())))
        .or_else(|| group.map(|id| Source::Group(id.to_owned())))?;
    let rule = Rule {
        protocol: text(from.ip_protocol()),
        from: from.from_port().unwrap_or(-1),
        to: from.to_port().unwrap_or(-1),
        source,
        description: text(from.description()),
    };
    Some(ObservedRule { id: text(from.security_group_rule_id()), rule })
}

/// Converts a rule to the permission of a request that adds it.
pub(crate) fn permission(rule: &Rule) -> ec2::IpPermission {
    let permission = ec2::IpPermission::builder().ip_protocol(&rule.protocol).from_port(rule.from).to_port(rule.to);
    let description = Some(rule.description.clone()).filter(|text| !text.is_empty());
    match &rule.source {
        Source::Range(range) if range.addr().is_ipv4() => permission
            .ip_ranges(ec2::IpRange::builder().cidr_ip(range.to_string()).set_description(description).build()),
        Source::Range(range) => permission
            .ipv6_ranges(ec2::Ipv6Range::builder().cidr_ipv6(range.to_string()).set_description(description).build()),
        Source::PrefixList(id) => permission
            .prefix_list_ids(ec2::PrefixListId::builder().prefix_list_id(id).set_description(description).build()),
        Source::Group(id) => permission
            .user_id_group_pairs(ec2::UserIdGroupPair::builder().group_id(id).set_description(description).build()),
    }
    .build()
}

/// Converts a rule to the update of a request that changes it.
pub(crate) fn changed_rule(id: &str, rule: &Rule) -> ec2::SecurityGroupRuleUpdate {
    let description = Some(rule.description.clone()).filter(|text| !text.is_empty());
    let request = ec2::SecurityGroupRuleRequest::builder()
        .ip_protocol(&rule.protocol)
        .from_port(rule.from)
        .to_port(rule.to)
        .set_description(description);
    let request = match &rule.source {
        Source::Range(range) if range.addr().is_ipv4() => request.cidr_ipv4(range.to_string()),
        Source::Range(range) => request.cidr_ipv6(range.to_string()),
        Source::PrefixList(id) => request.prefix_list_id(id),
        Source::Group(id) => request.referenced_group_id(id),
    };
    ec2::SecurityGroupRuleUpdate::builder().security_group_rule_id(id).security_group_rule(request.build()).build()
}

/// Converts tags for ELB; `None` if there are none.
pub(crate) fn elb_tags(tags: &Tags) -> Option<Vec<elb::Tag>> {
    let tags = tags.iter().map(|(key, value)| elb::Tag::builder().key(key).value(value).build());
    Some(tags.collect::<Vec<_>>()).filter(|tags| !tags.is_empty())
}

/// Converts tags for EC2, for the security group that the same call creates.
pub(crate) fn ec2_tags(tags: &Tags) -> ec2::TagSpecification {
    ec2_tags_of(ec2::ResourceType::SecurityGroup, tags)
}

/// Converts tags for EC2, for the resource that the same call creates.
pub(crate) fn ec2_tags_of(kind: ec2::ResourceType, tags: &Tags) -> ec2::TagSpecification {
    let tags = tags.iter().map(|(key, value)| ec2::Tag::builder().key(key).value(value).build()).collect();
    ec2::TagSpecification::builder().resource_type(kind).set_tags(Some(tags)).build()
}

/// Converts the destinations of a listener's traffic to the action of a request.
pub(crate) fn forward(forwards: &[(String, i32)], sticky: bool) -> elb::Action {
    let action = elb::Action::builder().r#type(elb::ActionTypeEnum::Forward);
    match forwards {
        [(arn, _)] => action.target_group_arn(arn),
        several => {
            let group = |(arn, weight): &(String, i32)| {
                elb::TargetGroupTuple::builder().target_group_arn(arn).weight(*weight).build()
            };
            let groups = several.iter().map(group).collect();
            let sticky = sticky.then(|| elb::TargetGroupStickinessConfig::builder().enabled(true).build());
            let config = elb::ForwardActionConfig::builder().set_target_groups(Some(groups));
            action.forward_config(config.set_target_group_stickiness_config(sticky).build())
        }
    }
    .build()
}

/// Converts a subnet with its addresses for a request.
pub(crate) fn subnet_mapping(mapping: &Mapping) -> elb::SubnetMapping {
    elb::SubnetMapping::builder()
        .subnet_id(&mapping.subnet)
        .set_allocation_id(mapping.allocation.clone())
        .set_private_ipv4_address(mapping.private_v4.clone())
        .set_ipv6_address(mapping.v6.clone())
        .set_source_nat_ipv6_prefix(mapping.nat_prefix.clone())
        .build()
}

/// Converts the protocol of probes.
pub(crate) fn probe(probe: Probe) -> elb::ProtocolEnum {
    elb::ProtocolEnum::from(probe.as_str())
}
