//! Typed settings of a Service from its fields and annotations, before any call: every annotation of cloud-provider-aws
//! and of the Load Balancer Controller under its own name.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use providers::{
    CloudError, IpFamily, IpFamilyPolicy, IpNet, LoadBalancerSpec, Protocol as Transport, SessionAffinity, Targeting,
};

use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::ownership;
use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};
use crate::loadbalancer::spec::ports::{domains, listeners};
use crate::loadbalancer::spec::settings::{Families, Policy, SecurityGroups, Settings};
use crate::loadbalancer::spec::{alb, classic, endpoint_service, group};
use crate::loadbalancer::types::{Attributes, ClassicGroups, Scheme, Tags, TargetType};

/// Default time for which a replaced Classic Load Balancer still serves clients: resolvers cache its address for
/// minutes, and long connections use it for longer.
const REPLACE_AFTER: Duration = Duration::from_secs(3600);

/// Maximum number of rules for the clients of a Service. AWS never allows more than 1000 rules for IPv4 and 1000 for
/// IPv6 in a security group.
const MAX_RULES: usize = 2_000;

/// Maximum number of tags of a resource in AWS.
const MAX_TAGS: usize = 50;

/// Returns the kind of targets and the settings of a Service; no settings if another controller creates its load
/// balancer.
///
/// # Errors
/// `Invalid` with every mistake, each with its annotation or field, value and fix.
pub(crate) fn read(spec: &LoadBalancerSpec, policy: &Policy) -> Result<(Targeting, Option<Settings>), CloudError> {
    let mut reading = Reading::new(spec);
    let Some(mut settings) = read_all(spec, policy, &mut reading) else { return Ok((Targeting::Elsewhere, None)) };
    reading.finish()?;
    settings.classic_only = reading.classic_only();
    if let Some(error) =
        settings.classic_only.clone().filter(|_| !settings.untyped || settings.replace_classic.is_some())
    {
        return Err(error);
    }
    settings.warnings = reading.take_warnings();
    let targeting = match settings.target_type {
        TargetType::Instance | TargetType::Alb => Targeting::Nodes,
        TargetType::Ip => Targeting::Endpoints,
    };
    Ok((targeting, Some(settings)))
}

/// Returns the settings of an invalid Service as if its mistakes were missing; `None` if another controller makes its
/// load balancer. They are not used to create or change a load balancer.
pub(crate) fn read_leniently(spec: &LoadBalancerSpec, policy: &Policy) -> Option<Settings> {
    read_all(spec, policy, &mut Reading::new(spec))
}

/// Returns all settings, and records mistakes; `None` if another controller makes the load balancer.
fn read_all(spec: &LoadBalancerSpec, policy: &Policy, reading: &mut Reading<'_>) -> Option<Settings> {
    let kind = reading.text("type");
    let flavour = match (spec.class.as_deref(), kind) {
        (Some(_), _) => Flavour::Controller,
        (None, Some("external" | "nlb-ip")) if !policy.controller_services => return None,
        (None, Some("external" | "nlb-ip")) => Flavour::Controller,
        (None, None | Some("nlb")) => Flavour::CloudProvider,
        (None, Some(other)) => {
            reading.refuse_network("type", other, "use nlb: no new Classic Load Balancers are created");
            Flavour::CloudProvider
        }
    };
    reading.check_size(spec.ports.len());
    let requested = target_type(reading);
    let alb = alb::read(spec, reading);
    let target_type = match kind {
        _ if alb.is_some() => TargetType::Alb,
        Some("nlb-ip") => TargetType::Ip,
        _ => requested,
    };
    let mut settings = read_settings(spec, policy, flavour, target_type, reading);
    settings.alb = alb;
    settings.untyped = flavour == Flavour::CloudProvider && kind != Some("nlb");
    classic::check(&settings, reading);
    Some(settings)
}

/// Returns the kind of targets; other words than `ip` mean instances. Upstream: Load Balancer Controller,
/// buildTargetType.
fn target_type(reading: &mut Reading<'_>) -> TargetType {
    match reading.text("nlb-target-type") {
        Some("ip") => TargetType::Ip,
        None | Some("instance") => TargetType::Instance,
        Some(other) => {
            reading.warn_of_value("nlb-target-type", other, "use instance or ip");
            TargetType::Instance
        }
    }
}

fn read_settings(
    spec: &LoadBalancerSpec,
    policy: &Policy,
    flavour: Flavour,
    target_type: TargetType,
    reading: &mut Reading<'_>,
) -> Settings {
    check_fields(spec, flavour, reading);
    let scheme = scheme(flavour, reading);
    let ipv6_targets = spec.ip_families.contains(&IpFamily::IPv6);
    let families = families(spec, reading);
    let security_groups = security_groups(reading);
    let (node_rules, classic_node_rules) = node_rules(policy, target_type, &security_groups, reading);
    check_ranges(spec, flavour, (&security_groups, node_rules), families, reading);
    let path_mtu = path_mtu(reading);
    let (listeners, user_groups) = listeners(spec, policy, flavour, target_type, reading);
    let source_nat = source_nat(families, reading);
    let (allocations, private_v4, v6) = addresses(scheme, families, reading);
    Settings {
        flavour,
        target_type,
        scheme,
        name: name(reading),
        families,
        ipv6_targets,
        subnets: Some(reading.owned("subnets")).filter(|subnets| !subnets.is_empty()),
        allocations,
        private_v4,
        v6,
        source_nat,
        nat_prefixes: reading.owned("source-nat-ipv6-prefixes"),
        security_groups,
        node_rules,
        // More ranges are refused above, but a lenient reading ignores that.
        ranges: spec.source_ranges.iter().take(MAX_RULES).map(IpNet::trunc).collect(),
        prefix_lists: reading.owned("security-group-prefix-lists"),
        private_link: reading.switch("inbound-sg-rules-on-private-link-traffic"),
        path_mtu,
        attributes: balancer_attributes(flavour, reading),
        capacity: capacity(reading),
        listeners,
        user_groups,
        domains: domains(reading),
        alb: None,
        tags: tags(policy, flavour, reading),
        common_tags: policy.tags.clone(),
        foreign_tags: policy.foreign_tags.clone(),
        max_targets: policy.max_targets,
        node_labels: reading.pairs("target-node-labels", flavour == Flavour::CloudProvider).into_iter().collect(),
        shared_groups: reading.boolean("multi-cluster-target-group").unwrap_or(false),
        untyped: false,
        existing: existing(reading),
        group: group::read(spec, policy, reading),
        endpoint_service: endpoint_service::read(reading),
        replace_classic: replace_classic(reading),
        classic_groups: classic_groups(reading),
        classic_node_rules,
        classic_only: None,
        warnings: Vec::new(),
    }
}

/// Returns true if rules for a Network Load Balancer are added to nodes' security groups, and true if rules for a
/// Classic one are. If users choose the security groups, cloud-provider-aws opens nodes nevertheless.
fn node_rules(
    policy: &Policy,
    target_type: TargetType,
    groups: &SecurityGroups,
    reading: &mut Reading<'_>,
) -> (bool, bool) {
    let named = matches!(groups, SecurityGroups::Named(_));
    let requested = reading.boolean("manage-backend-security-group-rules");
    let is_possible = !policy.no_node_rules && target_type != TargetType::Alb;
    (is_possible && requested.unwrap_or(!named), is_possible && requested.unwrap_or(true))
}

/// Returns true if clients may send ICMP for path MTU discovery. Other words than `on` mean `off`. Upstream: Load
/// Balancer Controller, buildManagedSecurityGroupIngressPermissions.
fn path_mtu(reading: &mut Reading<'_>) -> bool {
    let suffix = "enable-icmp-for-path-mtu-discovery";
    let value = reading.text(suffix);
    if let Some(other) = value.filter(|value| !["on", "off"].contains(value)) {
        reading.warn_of_value(suffix, other, "use on or off");
    }
    value == Some("on")
}

/// Returns true if the load balancer translates source addresses for UDP over IPv6.
fn source_nat(families: Families, reading: &mut Reading<'_>) -> bool {
    let requested = reading.switch("enable-prefix-for-ipv6-source-nat").unwrap_or(false);
    if requested && families == Families::Ipv4 {
        let fix = "set the annotation for ip-address-type to dualstack too, or leave this one out";
        reading.refuse("enable-prefix-for-ipv6-source-nat", "on", fix);
    }
    requested
}

/// Annotations about a load balancer itself, which have no effect on one that the user made.
const ABOUT_LOAD_BALANCER: [&str; 18] = [
    "access-log-enabled",
    "attributes",
    "cross-zone-load-balancing-enabled",
    "disable-nlb-sg",
    "eip-allocations",
    "enable-prefix-for-ipv6-source-nat",
    "inbound-sg-rules-on-private-link-traffic",
    "internal",
    "ip-address-type",
    "ipv6-addresses",
    "minimum-load-balancer-capacity",
    "name",
    "private-ipv4-addresses",
    "scheme",
    "security-group-prefix-lists",
    "security-groups",
    "source-nat-ipv6-prefixes",
    "subnets",
];

/// Returns the ARN of the load balancer that the user made.
fn existing(reading: &mut Reading<'_>) -> Option<String> {
    let arn = reading.text("arn")?;
    if !arn.starts_with("arn:") || !arn.contains(":loadbalancer/") {
        reading.refuse("arn", arn, "use the ARN of a Network Load Balancer");
    }
    for suffix in ["endpoint-service", "replace-classic"] {
        if let Some(value) = reading.text(suffix).filter(|value| *value != "false") {
            let fix = "leave it out, or leave out the annotation for arn: a load balancer of yours is not changed";
            reading.refuse(suffix, value, fix);
        }
    }
    for suffix in ABOUT_LOAD_BALANCER {
        if reading.text(suffix).is_some() {
            let message = format!("annotation {PREFIX}{suffix} has no effect together with {PREFIX}arn");
            reading.warnings.push(format!("{message}: a load balancer of yours is not changed"));
        }
    }
    Some(arn.to_owned())
}

/// Checks the address ranges of clients. Upstream: Load Balancer Controller, buildCIDRsFromSourceRanges, only for the
/// load balancer's own security group.
fn check_ranges(
    spec: &LoadBalancerSpec,
    flavour: Flavour,
    (groups, node_rules): (&SecurityGroups, bool),
    families: Families,
    reading: &mut Reading<'_>,
) {
    let named = matches!(groups, SecurityGroups::Named(_));
    if named && (!spec.source_ranges.is_empty() || reading.text("security-group-prefix-lists").is_some()) {
        let message = "source ranges and prefix lists have no effect together with annotation";
        reading.warnings.push(format!("{message} {PREFIX}security-groups: put rules into those groups"));
    }
    let sources = spec.source_ranges.len() + reading.list("security-group-prefix-lists").len();
    // Despite named groups, an existing load balancer without security groups has rules for ranges in nodes' groups.
    if (!named || node_rules) && sources.saturating_mul(spec.ports.len()) > MAX_RULES {
        let value = format!("{sources} ranges for {} ports", spec.ports.len());
        let fix = "use fewer ranges, or a prefix list: AWS allows 1000 rules per address family in a security group, \
                   one for each range and port";
        reading.refuse_field("spec.loadBalancerSourceRanges", value, fix);
    }
    let becomes_rules = !named && (*groups == SecurityGroups::Own || flavour == Flavour::CloudProvider);
    if families == Families::Ipv4 && becomes_rules {
        for range in spec.source_ranges.iter().filter(|range| range.addr().is_ipv6()) {
            let fix = "set annotation service.beta.kubernetes.io/aws-load-balancer-ip-address-type to dualstack, or \
                       use IPv4 ranges";
            reading.refuse_field("spec.loadBalancerSourceRanges", range, fix);
        }
    }
}

/// Returns the time for which a Classic Load Balancer serves its clients after it was replaced; `None` if it is kept.
fn replace_classic(reading: &mut Reading<'_>) -> Option<Duration> {
    match reading.text("replace-classic")? {
        "false" => None,
        "true" => Some(REPLACE_AFTER),
        _ => reading.number("replace-classic", 60, 30 * 24 * 3600).map(|seconds| Duration::from_secs(seconds.into())),
    }
}

/// Records unsupported fields, and warns about annotations without an effect.
fn check_fields(spec: &LoadBalancerSpec, flavour: Flavour, reading: &mut Reading<'_>) {
    if flavour == Flavour::CloudProvider {
        if spec.session_affinity != SessionAffinity::None {
            reading.refuse_field("spec.sessionAffinity", "ClientIP", "use None: no other value is supported");
        }
        if let Some(address) = &spec.requested_address {
            let fix = "leave it empty, and use annotation service.beta.kubernetes.io/aws-load-balancer-eip-allocations \
                       or aws-load-balancer-private-ipv4-addresses";
            reading.refuse_field("spec.loadBalancerIP", address, fix);
        }
        if let Some(groups) = reading.text("extra-security-groups") {
            let fix = "use the annotation for security-groups: a Network Load Balancer has no extra ones";
            reading.refuse_network("extra-security-groups", groups, fix);
        }
        let instead = format!("; use {PREFIX}target-group-attributes with proxy_protocol_v2.enabled=true");
        reading.warn_without_effect("proxy-protocol", &instead);
    }
    let draining = format!("; use {PREFIX}target-group-attributes with deregistration_delay.timeout_seconds");
    let idle = format!("; use {PREFIX}listener-attributes.TCP-<port> with tcp.idle_timeout.seconds");
    for (suffix, instead) in [
        ("connection-draining-enabled", &*draining),
        ("connection-draining-timeout", &draining),
        ("connection-idle-timeout", &idle),
        ("access-log-emit-interval", ", which writes logs every five minutes"),
    ] {
        reading.warn_without_effect(suffix, instead);
    }
    if spec.ports.is_empty() {
        reading.refuse_field("spec.ports", "empty", "list at least one port");
    }
    for port in spec.ports.iter().filter(|port| port.protocol == Transport::Sctp) {
        reading.refuse_field("spec.ports[].protocol", port.protocol, "use TCP or UDP");
    }
}

fn scheme(flavour: Flavour, reading: &mut Reading<'_>) -> Option<Scheme> {
    let words = [("internal", Scheme::Internal), ("internet-facing", Scheme::InternetFacing)];
    let requested = reading.choice("scheme", &words);
    let of = |internal| if internal { Scheme::Internal } else { Scheme::InternetFacing };
    match (requested, flavour) {
        (Some(scheme), _) => Some(scheme),
        (None, Flavour::Controller) => reading.boolean("internal").map(of),
        // In cloud-provider-aws any non-empty value except false means internal.
        (None, Flavour::CloudProvider) => Some(of(reading.text("internal").is_some_and(|word| word != "false"))),
    }
}

fn families(spec: &LoadBalancerSpec, reading: &mut Reading<'_>) -> Families {
    let words = [("ipv4", Families::Ipv4), ("dualstack", Families::Dualstack)];
    let ipv6 = spec.ip_families.contains(&IpFamily::IPv6);
    match reading.choice("ip-address-type", &words) {
        Some(Families::Ipv4) if ipv6 => {
            let fix = "use dualstack, or leave IPv6 out of spec.ipFamilies";
            reading.refuse("ip-address-type", "ipv4", fix);
            Families::Ipv4
        }
        Some(requested) => requested,
        None if !ipv6 => Families::Ipv4,
        None if spec.ip_family_policy == IpFamilyPolicy::PreferDualStack => Families::PreferDualstack,
        None => Families::Dualstack,
    }
}

fn security_groups(reading: &mut Reading<'_>) -> SecurityGroups {
    let named = reading.owned("security-groups");
    match (reading.boolean("disable-nlb-sg").unwrap_or(false), named.is_empty()) {
        (true, false) => {
            let message = "security-groups has no effect together with";
            reading.warnings.push(format!("annotation {PREFIX}{message} {PREFIX}disable-nlb-sg"));
            SecurityGroups::Off
        }
        (true, true) => SecurityGroups::Off,
        (false, false) => SecurityGroups::Named(named),
        (false, true) => SecurityGroups::Own,
    }
}

fn classic_groups(reading: &Reading<'_>) -> ClassicGroups {
    ClassicGroups { instead: reading.owned("security-groups"), extra: reading.owned("extra-security-groups") }
}

fn name(reading: &mut Reading<'_>) -> Option<String> {
    let name = reading.text("name")?;
    let fits = name.len() <= 32
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.starts_with("internal-");
    if !fits {
        let fix = "use at most 32 letters, digits and hyphens, with no hyphen at either end and no internal- in front";
        reading.refuse("name", name, fix);
    }
    Some(name.to_owned())
}

fn addresses(
    scheme: Option<Scheme>,
    families: Families,
    reading: &mut Reading<'_>,
) -> (Vec<String>, Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let allocations = reading.owned("eip-allocations");
    let private = reading.parsed("private-ipv4-addresses", "use IPv4 addresses with commas between them");
    let v6 = reading.parsed("ipv6-addresses", "use IPv6 addresses with commas between them");
    if let Some(Misfit { suffix, value, fix }) = scheme.and_then(|scheme| misfit(scheme, &allocations, &private)) {
        reading.refuse(suffix, &value, fix);
    }
    if families == Families::Ipv4 && !v6.is_empty() {
        let fix = "set the annotation for ip-address-type to dualstack too";
        let given = reading.text("ipv6-addresses").unwrap_or_default();
        reading.refuse("ipv6-addresses", given, fix);
    }
    (allocations, private, v6)
}

/// Addresses that a load balancer with the requested scheme cannot have: the annotation, its value, and the fix.
pub(crate) struct Misfit {
    pub suffix: &'static str,
    pub value: String,
    pub fix: &'static str,
}

/// Returns addresses that do not fit the scheme of a load balancer.
pub(crate) fn misfit(scheme: Scheme, allocations: &[String], private: &[Ipv4Addr]) -> Option<Misfit> {
    match scheme {
        Scheme::Internal if !allocations.is_empty() => Some(Misfit {
            suffix: "eip-allocations",
            value: allocations.join(","),
            fix: "make the load balancer internet-facing, or leave this out: an internal one has no Elastic IPs",
        }),
        Scheme::InternetFacing if !private.is_empty() => Some(Misfit {
            suffix: "private-ipv4-addresses",
            value: private.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            fix: "make the load balancer internal, or leave this out: AWS chooses the addresses of an internet-facing \
                  one",
        }),
        _ => None,
    }
}

fn balancer_attributes(flavour: Flavour, reading: &mut Reading<'_>) -> Attributes {
    let mut attributes = reading.pairs("attributes", false);
    let routing = "dns_record.client_routing_policy";
    let words = ["any_availability_zone", "partial_availability_zone_affinity", "availability_zone_affinity"];
    if let Some(value) = attributes.get(routing).filter(|value| !words.contains(&value.as_str())) {
        let value = format!("{routing}={value}");
        reading.refuse("attributes", &value, &format!("use {}", words.join(", ")));
    }
    let upstreams = flavour == Flavour::CloudProvider;
    let cross_zone = reading.boolean("cross-zone-load-balancing-enabled");
    let key = "load_balancing.cross_zone.enabled";
    match cross_zone {
        Some(on) => drop(attributes.insert(key.into(), on.to_string())),
        // cloud-provider-aws turns off features that are not requested.
        None if upstreams => drop(attributes.entry(key.into()).or_insert_with(|| "false".into())),
        None => {}
    }
    let logs = reading.boolean("access-log-enabled");
    let key = "access_logs.s3.enabled";
    match logs {
        Some(true) => {
            attributes.insert(key.into(), "true".into());
            match reading.text("access-log-s3-bucket-name") {
                Some(bucket) => drop(attributes.insert("access_logs.s3.bucket".into(), bucket.into())),
                None if !attributes.contains_key("access_logs.s3.bucket") => {
                    let fix = "name a bucket in the annotation for access-log-s3-bucket-name too";
                    reading.refuse("access-log-enabled", "true", fix);
                }
                None => {}
            }
            if let Some(prefix) = reading.text("access-log-s3-bucket-prefix") {
                attributes.insert("access_logs.s3.prefix".into(), prefix.into());
            }
        }
        Some(false) => drop(attributes.insert(key.into(), "false".into())),
        None if upstreams => drop(attributes.entry(key.into()).or_insert_with(|| "false".into())),
        None => {}
    }
    attributes
}

/// Returns the tags. The cluster-wide tags override those of the Service.
fn tags(policy: &Policy, flavour: Flavour, reading: &mut Reading<'_>) -> Tags {
    let mut tags = reading.pairs("additional-resource-tags", flavour == Flavour::CloudProvider);
    if tags.len() > MAX_TAGS {
        let value = format!("{} tags", tags.len());
        reading.refuse("additional-resource-tags", &value, &format!("use at most {MAX_TAGS}, as AWS allows no more"));
        tags.clear();
    }
    for key in policy.foreign_tags.iter().filter(|key| tags.contains_key(*key)) {
        let fix = "leave it out: according to --external-managed-tags another client sets it";
        reading.refuse("additional-resource-tags", key, fix);
    }
    for key in tags.keys().filter(|key| ownership::is_reserved(key)) {
        let annotation = format!("{PREFIX}additional-resource-tags");
        reading
            .warnings
            .push(format!("the tag {key} of annotation {annotation} has no effect: it identifies the owner"));
    }
    tags.retain(|key, _| !ownership::is_reserved(key));
    tags.extend(policy.tags.clone());
    tags
}

fn capacity(reading: &mut Reading<'_>) -> Option<i32> {
    let pairs = reading.pairs("minimum-load-balancer-capacity", false);
    let text = reading.text("minimum-load-balancer-capacity")?;
    let units = pairs.get("CapacityUnits").and_then(|units| units.parse().ok());
    if units.is_none() || pairs.len() != 1 {
        reading.refuse("minimum-load-balancer-capacity", text, "use CapacityUnits= and a number");
    }
    units
}
