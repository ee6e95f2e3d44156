//! Target groups that users made: which Services may register targets in one, which groups fit, and which listeners are
//! kept until a group serves. No IO.

use std::borrow::Cow;

use std::collections::BTreeSet;

use providers::LoadBalancerId;

use crate::loadbalancer::names::ALLOWED;
use crate::loadbalancer::observed::stack::{ObservedStack, ObservedTargetGroup};
use crate::loadbalancer::ownership;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::{Settings, UserGroup};
use crate::loadbalancer::types::{Protocol, Target, TargetType};
use crate::tags::ClusterTags;

/// Returns true if the tags of a target group name a Service: its owner lets the Service register targets.
///
/// Only then do the Service's records of targets count: users who can write ConfigMaps can write records, too.
pub(crate) fn is_allowed(group: &ObservedTargetGroup, id: &LoadBalancerId, cluster: &ClusterTags) -> bool {
    ownership::is_shared(&group.tags, cluster)
        && !ownership::is_of_a_service(&group.tags)
        && ownership::names_service(&group.tags, id) == Some(true)
}

/// Returns the targets that a Service may deregister in a group: those on its record if the group's tags name it.
/// Otherwise only `own` ones count, which this process registered, or which evidently are the Service's. Kubernetes may
/// delete the record, a dependent of the Service, before the targets are deregistered.
pub(crate) fn removable(record: Option<BTreeSet<Target>>, own: BTreeSet<Target>, is_allowed: bool) -> BTreeSet<Target> {
    match record {
        Some(record) if is_allowed => record,
        Some(record) => &record & &own,
        None => own,
    }
}

/// Returns the fix if a Service may not register its targets in a group, or if they do not fit.
///
/// Traffic of the group goes to each of its targets: without the owner's consent, a user of the cluster could receive
/// the traffic of another one.
pub(crate) fn refusal(
    group: &ObservedTargetGroup,
    wanted: &UserGroup,
    settings: &Settings,
    id: &LoadBalancerId,
    cluster: &ClusterTags,
) -> Option<String> {
    if ownership::is_of_a_service(&group.tags) {
        return Some("use a target group that you made: this one was made for a Service and is deleted with it".into());
    }
    if !ownership::is_shared(&group.tags, cluster) {
        let key = cluster.key();
        return Some(format!("put the tag {key}=shared on it, so that this cluster may use it"));
    }
    if ownership::names_service(&group.tags, id) != Some(true) {
        return Some(format!(
            "put {id} into its tag {ALLOWED}, or {} for all Services of the namespace; separate several entries by spaces",
            id.namespace
        ));
    }
    if group.target_type == TargetType::Alb {
        return Some("use a target group of type instance or ip: this one is for an Application Load Balancer".into());
    }
    if group.target_type != settings.target_type {
        let kind = group.target_type.as_str();
        return Some(format!("set annotation {PREFIX}nlb-target-type to {kind}, the type of this target group"));
    }
    if !takes(group.protocol, wanted.group.protocol) {
        let has = group.protocol.as_str();
        let needs = transports(wanted.group.protocol);
        return Some(format!(
            "use a target group for {needs}, the protocol of port {}: the protocol of this one is {has}",
            wanted.port
        ));
    }
    None
}

/// Returns the settings with the former listeners of ports that have target groups of the user, unless all of these
/// groups `serve`.
pub(crate) fn with_former_listeners(settings: &Settings, serve: bool) -> Cow<'_, Settings> {
    if serve || settings.user_groups.is_empty() {
        return Cow::Borrowed(settings);
    }
    let mut settings = settings.clone();
    settings.listeners.extend(settings.user_groups.iter().map(|group| group.former.clone()));
    Cow::Owned(settings)
}

/// Drops former listeners that no load balancer of the Service has. Listeners are kept, but not created, except if the
/// Service changes its load balancer at the same time: the ports of the listeners that it abandons are unknown.
pub(crate) fn drop_missing_listeners(settings: &mut Settings, observed: &ObservedStack) {
    let exists = |port: u16| {
        let mut listeners = observed.balancers.iter().flat_map(|balancer| &balancer.listeners);
        !observed.abandoned_listeners.is_empty() || listeners.any(|listener| listener.port == port)
    };
    let groups = &settings.user_groups;
    settings.listeners.retain(|listener| exists(listener.port) || !groups.iter().any(|one| one.port == listener.port));
}

/// Returns true if the settings contain former listeners.
pub(crate) fn has_former_listeners(settings: &Settings) -> bool {
    let mut groups = settings.user_groups.iter();
    groups.any(|group| settings.listeners.iter().any(|listener| listener.port == group.port))
}

/// Returns true if a target group takes all traffic of a port.
fn takes(group: Protocol, port: Protocol) -> bool {
    port.transports().iter().all(|transport| group.transports().contains(transport))
}

fn transports(protocol: Protocol) -> String {
    protocol.transports().join(" and ").to_uppercase()
}

#[cfg(test)]
mod tests {
    use providers::Protocol as Transport;

    use super::*;
    use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedListener};
    use crate::loadbalancer::samples;
    use crate::loadbalancer::spec::annotations;
    use crate::loadbalancer::spec::settings::Policy;

    const ARN: &str = "arn:aws:elasticloadbalancing:r:1:targetgroup/one/1";
    const SHARED: (&str, &str) = ("kubernetes.io/cluster/c", "shared");
    const ALLOWED_WEB: (&str, &str) = (ALLOWED, "other/api default/web");

    fn settings(transport: Transport, target_type: &str) -> Settings {
        let mut spec = samples::spec(&[("target-group-arn.80", ARN), ("nlb-target-type", target_type)]);
        spec.ports = vec![samples::port(transport, 80)];
        annotations::read(&spec, &Policy::default()).expect("it is valid").1.expect("this provider serves the Service")
    }

    fn listener(port: u16) -> ObservedListener {
        ObservedListener {
            arn: format!("arn:listener/{port}"),
            port,
            protocol: Protocol::Tcp,
            certificates: Vec::new(),
            policy: None,
            alpn: None,
            attributes: Default::default(),
            tags: Default::default(),
            forwards: Vec::new(),
            sticky: false,
        }
    }

    #[test]
    fn listener_of_a_moved_port_stays_until_the_target_groups_serve() {
        let mut spec = samples::spec(&[("target-group-arn.80", ARN)]);
        spec.ports = [80, 443].map(|port| samples::port(Transport::Tcp, port)).into();
        let settings = annotations::read(&spec, &Policy::default()).expect("it is valid").1.expect("it is served");
        let observed = |ports: &[u16], abandoned: &[&str]| {
            let listeners = ports.iter().map(|port| listener(*port)).collect();
            let balancer = ObservedBalancer { listeners, ..samples::listed_balancer("web", &[]) };
            let abandoned_listeners = abandoned.iter().map(|arn| (*arn).to_owned()).collect();
            ObservedStack { balancers: vec![balancer], abandoned_listeners, ..ObservedStack::default() }
        };
        for (serve, ports, abandoned, expected) in [
            (false, &[80, 443][..], &[][..], &[80, 443][..]),
            (true, &[80, 443], &[], &[443]),
            // It is not created again.
            (false, &[443], &[], &[443]),
            (false, &[], &[], &[443]),
            // The former load balancer may have the listener.
            (false, &[443], &["arn:listener"], &[80, 443]),
        ] {
            let mut kept = with_former_listeners(&settings, serve).into_owned();
            drop_missing_listeners(&mut kept, &observed(ports, abandoned));
            let mut found: Vec<u16> = kept.listeners.iter().map(|one| one.port).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{serve} {ports:?} {abandoned:?}");
            assert_eq!(has_former_listeners(&kept), expected.contains(&80), "{serve} {ports:?} {abandoned:?}");
        }
    }

    #[test]
    fn record_counts_only_with_the_consent_of_the_groups_owner() {
        let cluster = ClusterTags::new("c", false);
        for (tags, expected) in [
            (&[SHARED, ALLOWED_WEB][..], true),
            (&[SHARED, (ALLOWED, "default")], true),
            (&[SHARED, (ALLOWED, "other default/api")], false),
            (&[SHARED], false),
            (&[ALLOWED_WEB], false),
            (&[SHARED, ALLOWED_WEB, ("kubernetes.io/service-name", "default/web")], false),
        ] {
            assert_eq!(is_allowed(&samples::listed_group(ARN, tags), &samples::id(), &cluster), expected, "{tags:?}");
        }
        let set = |names: &str| -> BTreeSet<Target> {
            names.chars().map(|name| Target { id: name.into(), port: 80 }).collect()
        };
        for (record, own, is_allowed, expected) in [
            (Some("ab"), "a", true, "ab"),
            (Some("abx"), "ac", false, "a"),
            (Some("x"), "", false, ""),
            (None, "ab", true, "ab"),
            (None, "ab", false, "ab"),
        ] {
            let found = removable(record.map(set), set(own), is_allowed);
            assert_eq!(found, set(expected), "{record:?}, {own}, {is_allowed}");
        }
    }

    #[test]
    fn target_group_is_used_only_with_consent_and_if_it_fits() {
        let consent = &[SHARED, ALLOWED_WEB][..];
        let made_for_a_service = &[SHARED, ALLOWED_WEB, ("kubernetes.io/service-name", "default/web")][..];
        for (name, tags, transport, target_type, group, expected) in [
            ("usable", consent, Transport::Tcp, "instance", Protocol::Tcp, None),
            ("for TLS", consent, Transport::Tcp, "instance", Protocol::Tls, None),
            ("for both transports", consent, Transport::Udp, "instance", Protocol::TcpUdp, None),
            (
                "untagged",
                &[],
                Transport::Tcp,
                "instance",
                Protocol::Tcp,
                Some("put the tag kubernetes.io/cluster/c=shared on it"),
            ),
            (
                "owned",
                &[("kubernetes.io/cluster/c", "owned")],
                Transport::Tcp,
                "instance",
                Protocol::Tcp,
                Some("shared"),
            ),
            ("for no Service", &[SHARED], Transport::Tcp, "instance", Protocol::Tcp, Some("put default/web into")),
            (
                "for another Service",
                &[SHARED, (ALLOWED, "default/api")],
                Transport::Tcp,
                "instance",
                Protocol::Tcp,
                Some("put default/web into"),
            ),
            ("of a Service", made_for_a_service, Transport::Tcp, "instance", Protocol::Tcp, Some("made for a Service")),
            ("of another type", consent, Transport::Tcp, "ip", Protocol::Tcp, Some("nlb-target-type to instance")),
            (
                "of another protocol",
                consent,
                Transport::Udp,
                "instance",
                Protocol::Tcp,
                Some("for UDP, the protocol of port 80: the protocol of this one is TCP"),
            ),
        ] {
            let observed = ObservedTargetGroup { protocol: group, ..samples::listed_group(ARN, tags) };
            let settings = settings(transport, target_type);
            let cluster = ClusterTags::new("c", false);
            let found = refusal(&observed, &settings.user_groups[0], &settings, &samples::id(), &cluster);
            match (found, expected) {
                (None, None) => {}
                (Some(found), Some(expected)) => assert!(found.contains(expected), "{name}: {found}"),
                (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
            }
        }
    }
}
