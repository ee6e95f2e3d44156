//! Maintenance of existing Classic Load Balancers, and the move of a Service to a Network Load Balancer. No IO.

use std::collections::BTreeSet;
use std::time::Duration;

use providers::{Forecast, PlannedChange, Targets};

use crate::loadbalancer::observed::classic::Classic;
use crate::loadbalancer::observed::network::instance_id;
use crate::loadbalancer::observed::stack::ObservedBalancer;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::Settings;

/// The stage of a Service's move from its Classic Load Balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The Classic Load Balancer serves, and nothing is created.
    Keep,
    /// There is a Network Load Balancer, and no annotation requests the deletion of the Classic one. Its address is
    /// published once it serves.
    Both,
    /// The Network Load Balancer is created next to the Classic one, whose address is published.
    Prepare,
    /// The address of the Network Load Balancer is published; the Classic one serves clients that still have its
    /// address.
    Drain { left: Duration },
    /// The time that clients have to switch is over.
    Delete,
}

/// Returns the stage of a Service.
///
/// `requested` is the time that clients have to switch, if the annotation requests the move. `network` is true if there
/// is a Network Load Balancer, and `replaced` is the time at which its address was published. `replaced` and `now` are
/// in seconds since 1970.
pub(crate) fn stage(requested: Option<Duration>, network: bool, replaced: Option<u64>, now: u64) -> Stage {
    let Some(time) = requested else { return if network { Stage::Both } else { Stage::Keep } };
    let Some(replaced) = replaced else { return Stage::Prepare };
    // A clock that was set back must not extend the time beyond the requested one.
    let left = replaced.saturating_add(time.as_secs()).saturating_sub(now);
    match left {
        0 => Stage::Delete,
        left => Stage::Drain { left: Duration::from_secs(left).min(time.max(Duration::from_secs(1))) },
    }
}

/// Instances to register and to deregister.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registration {
    pub add: BTreeSet<String>,
    pub remove: BTreeSet<String>,
}

/// Returns the instances of the nodes that a Service selects.
pub(crate) fn instances(settings: &Settings, targets: &Targets) -> BTreeSet<String> {
    let fit = targets.nodes.iter().filter(|node| settings.selects(node));
    fit.filter_map(|node| instance_id(node.provider_id.as_deref()?)).map(str::to_owned).collect()
}

/// Returns the changes from registered to wanted instances. Without complete targets nothing is deregistered.
pub(crate) fn registration(registered: &BTreeSet<String>, wanted: &BTreeSet<String>, incomplete: bool) -> Registration {
    let remove = if incomplete { BTreeSet::new() } else { registered.difference(wanted).cloned().collect() };
    Registration { add: wanted.difference(registered).cloned().collect(), remove }
}

/// Returns warnings for the owner of a Service about its Classic Load Balancer.
pub(crate) fn warnings(settings: &Settings, classic: &Classic, stage: Stage) -> Vec<String> {
    let mut warnings = Vec::new();
    match stage {
        Stage::Keep => warnings.push(format!(
            "the Classic Load Balancer {} serves this Service: its instances are kept current, and changes of ports, health \
             checks and annotations have no effect; annotation {PREFIX}replace-classic: \"true\" moves the Service to a \
             Network Load Balancer",
            classic.name
        )),
        Stage::Both => warnings.push(format!(
            "the Classic Load Balancer {} exists next to the Network Load Balancer of this Service; annotation \
             {PREFIX}replace-classic: \"true\" deletes it",
            classic.name
        )),
        Stage::Prepare | Stage::Drain { .. } | Stage::Delete => {}
    }
    if stage != Stage::Delete {
        warnings.extend(settings.listeners.iter().filter_map(|requested| {
            let port = requested.port;
            let node_port = requested.group.port;
            match classic.listeners.get(&port) {
                None => Some(format!("the Classic Load Balancer {} does not listen on port {port}", classic.name)),
                Some(at) if *at != node_port && settings.has_node_targets() => Some(format!(
                    "the Classic Load Balancer {} sends port {port} to node port {at}, and the Service has {node_port}",
                    classic.name
                )),
                Some(_) => None,
            }
        }));
    }
    warnings
}

/// Returns the actions of the next `ensure` for a Service whose ports all have target groups of the user.
pub(crate) fn forecast_without_stack(
    network: Option<&str>,
    classic: Option<&str>,
    registrations: Vec<String>,
) -> Forecast {
    let network = network.map(|name| format!("the Network Load Balancer {name} is deleted once these serve"));
    let classic = classic.map(|name| {
        format!(
            "the Classic Load Balancer {name} is deleted once these serve, whatever annotation {PREFIX}replace-classic \
             is: clients that still have its address are cut off"
        )
    });
    let is_replaced = network.is_some() || classic.is_some();
    let change = if is_replaced { PlannedChange::Replaced } else { PlannedChange::Kept };
    Forecast { change, reasons: registrations.into_iter().chain(network).chain(classic).collect() }
}

/// Returns the reason why the Network Load Balancers are replaced, if none of them has the requested scheme.
pub(crate) fn scheme_change(settings: &Settings, balancers: &[ObservedBalancer]) -> Option<String> {
    let requested = settings.scheme?;
    let first = balancers.first()?;
    let differ = balancers.iter().all(|balancer| balancer.scheme != requested);
    differ.then(|| {
        format!(
            "the Network Load Balancer {} is {}, and the annotations request one that is {}: it gets another address",
            first.name,
            first.scheme.as_str(),
            requested.as_str()
        )
    })
}

/// Returns the actions of the next `ensure` for a Service with these load balancers.
pub(crate) fn forecast(settings: &Settings, network: Option<&str>, classic: Option<&Classic>, now: u64) -> Forecast {
    let with = |change, reason: String| Forecast { change, reasons: vec![reason] };
    let Some(classic) = classic else {
        let forecast = match (&settings.classic_only, network) {
            (Some(error), _) => return with(PlannedChange::Refused, error.message.clone()),
            (None, Some(name)) => {
                with(PlannedChange::Kept, format!("the Network Load Balancer {name} has the Service's tags"))
            }
            (None, None) => with(PlannedChange::Created, "no load balancer has the Service's tags".to_owned()),
        };
        return with_warnings(forecast, settings);
    };
    let stage = stage(settings.replace_classic, network.is_some(), classic.replaced(), now);
    let name = &classic.name;
    let mut forecast = match stage {
        Stage::Keep | Stage::Both => Forecast { change: PlannedChange::Kept, reasons: Vec::new() },
        Stage::Prepare => {
            let time = settings.replace_classic.unwrap_or_default().as_secs();
            with(
                PlannedChange::Replaced,
                format!(
                    "annotation {PREFIX}replace-classic moves it from the Classic Load Balancer {name} to a Network Load \
                     Balancer; the Classic one is deleted {time} s after the address changed"
                ),
            )
        }
        Stage::Drain { left } => with(
            PlannedChange::Replaced,
            format!("the Classic Load Balancer {name} is deleted in {} s", left.as_secs()),
        ),
        Stage::Delete => with(PlannedChange::Replaced, format!("the Classic Load Balancer {name} is deleted now")),
    };
    forecast.reasons.extend(warnings(settings, classic, stage));
    // What annotations mean to a Network Load Balancer does not matter to a Service that has none.
    if stage == Stage::Keep { forecast } else { with_warnings(forecast, settings) }
}

/// Returns the forecast with the warnings about the Service's annotations, which its Events will contain, too.
pub(crate) fn with_warnings(mut forecast: Forecast, settings: &Settings) -> Forecast {
    forecast.reasons.extend(settings.warnings.iter().cloned());
    forecast
}

#[cfg(test)]
mod tests {
    use providers::CloudError;

    use super::*;
    use crate::loadbalancer::samples;
    use crate::loadbalancer::spec::annotations;
    use crate::loadbalancer::spec::settings::Policy;

    fn settings(annotations: &[(&str, &str)]) -> Result<Settings, CloudError> {
        annotations::read(&samples::spec(annotations), &Policy::default())
            .map(|(_, settings)| settings.expect("the Service belongs to another controller"))
    }

    #[test]
    fn forecast_names_what_happens_and_why() {
        let classic = Classic { name: "a1".into(), listeners: [(80, 30_080)].into(), ..Classic::default() };
        let replaced = Classic {
            tags: [(crate::loadbalancer::observed::classic::REPLACED.to_owned(), "100".to_owned())].into(),
            ..classic.clone()
        };
        let (extra, proxy) = (("extra-security-groups", "sg-1"), ("proxy-protocol", "*"));
        let idle = ("connection-idle-timeout", "3600");
        for (annotations, network, classic, change, reason) in [
            (&[][..], None, None, PlannedChange::Created, "no load balancer has the Service's tags"),
            (&[], Some("n1"), None, PlannedChange::Kept, "the Network Load Balancer n1"),
            (&[extra], None, None, PlannedChange::Refused, "extra-security-groups"),
            (&[extra], None, Some(&classic), PlannedChange::Kept, "the Classic Load Balancer a1 serves"),
            (&[("type", "clb")], None, Some(&classic), PlannedChange::Kept, "the Classic Load Balancer a1 serves"),
            (&[("type", "nlb")], None, Some(&classic), PlannedChange::Kept, "the Classic Load Balancer a1 serves"),
            (&[], Some("n1"), Some(&classic), PlannedChange::Kept, "exists next to"),
            (&[proxy], None, None, PlannedChange::Refused, "proxy-protocol is \"*\": a Classic Load Balancer sends"),
            (&[proxy], None, Some(&classic), PlannedChange::Kept, "the Classic Load Balancer a1 serves"),
            (&[idle], None, None, PlannedChange::Created, "connection-idle-timeout has no effect"),
            (
                &[idle],
                Some("n1"),
                None,
                PlannedChange::Kept,
                "use service.beta.kubernetes.io/aws-load-balancer-listener",
            ),
            (&[idle, ("replace-classic", "60")], None, Some(&classic), PlannedChange::Replaced, "idle-timeout has no"),
            (&[("replace-classic", "true")], None, Some(&classic), PlannedChange::Replaced, "deleted 3600 s after"),
            (&[("replace-classic", "60")], None, Some(&replaced), PlannedChange::Replaced, "is deleted in 10 s"),
            (
                &[("replace-classic", "false")],
                None,
                Some(&classic),
                PlannedChange::Kept,
                "the Classic Load Balancer a1 serves",
            ),
        ] {
            let settings = settings(annotations).expect("the annotations were refused");
            let forecast = forecast(&settings, network, classic, 150);
            let named = forecast.reasons.iter().any(|one| one.contains(reason));
            assert!(forecast.change == change && named, "{annotations:?} {network:?}: {forecast:?}");
        }
        let kept = forecast(&settings(&[idle]).expect("the annotation was refused"), None, Some(&classic), 150);
        assert_eq!(kept.reasons.len(), 1, "the annotation has an effect on the Classic Load Balancer: {kept:?}");
    }

    #[test]
    fn forecast_names_each_load_balancer_that_target_groups_of_users_replace() {
        for (network, classic, change, expected) in [
            (None, None, PlannedChange::Kept, &[][..]),
            (Some("n1"), None, PlannedChange::Replaced, &["the Network Load Balancer n1 is deleted"]),
            (None, Some("a1"), PlannedChange::Replaced, &["the Classic Load Balancer a1 is deleted"]),
            (
                Some("n1"),
                Some("a1"),
                PlannedChange::Replaced,
                &["the Network Load Balancer n1 is deleted", "the Classic Load Balancer a1 is deleted"],
            ),
        ] {
            let Forecast { change: found, reasons } = forecast_without_stack(network, classic, vec!["port 80".into()]);
            let are_named = reasons[1..].iter().zip(expected).all(|(reason, expected)| reason.contains(expected));
            assert!(
                found == change && reasons[0] == "port 80" && reasons.len() == 1 + expected.len() && are_named,
                "{network:?} {classic:?}: {found:?} {reasons:?}"
            );
        }
    }

    #[test]
    fn scheme_that_no_load_balancer_has_is_a_replacement() {
        let internal = samples::listed_balancer("web", &[]);
        for (annotations, balancers, expected) in [
            (&[("scheme", "internet-facing")][..], vec![internal.clone()], true),
            (&[], vec![internal.clone()], true),
            (&[("internal", "true")], vec![internal.clone()], false),
            (&[("scheme", "internet-facing")], Vec::new(), false),
            (&[("group", "web"), ("scheme", "internet-facing")], Vec::new(), false),
        ] {
            let reason = scheme_change(&settings(annotations).expect("the annotations were refused"), &balancers);
            assert_eq!(reason.is_some(), expected, "{annotations:?}: {reason:?}");
        }
    }

    #[test]
    fn annotations_of_classic_load_balancers_are_refused_with_a_move() {
        let moving = ("replace-classic", "true");
        let (proxy, certificate) = (("proxy-protocol", "*"), ("ssl-cert", "arn:a"));
        let (http, https) = (("backend-protocol", "http"), ("backend-protocol", "https"));
        let attribute = |value| ("target-group-attributes", value);
        for (annotations, expected) in [
            (&[("extra-security-groups", "sg-1")][..], Ok(())),
            (&[("extra-security-groups", "sg-1"), ("type", "nlb")], Err("security-groups")),
            (&[("extra-security-groups", "sg-1"), moving], Err("security-groups")),
            (&[("replace-classic", "59")], Err("from 60")),
            (&[("replace-classic", "soon")], Err("from 60")),
            (&[proxy], Ok(())),
            (&[proxy, ("replace-classic", "false")], Ok(())),
            (&[proxy, ("type", "nlb")], Ok(())),
            (&[proxy, moving], Err("attributes to proxy_protocol_v2.enabled=true if the backends accept version 2")),
            (&[proxy, ("type", "nlb"), moving], Err("proxy_protocol_v2.enabled=true")),
            (
                &[proxy, moving, attribute("deregistration_delay.timeout_seconds=5")],
                Err("proxy_protocol_v2.enabled=true"),
            ),
            (&[proxy, moving, attribute("proxy_protocol_v2.enabled=true")], Ok(())),
            (&[proxy, moving, attribute("proxy_protocol_v2.enabled=false")], Ok(())),
            (&[proxy, moving, ("proxy-protocol-per-target-group", "80")], Ok(())),
            (&[http], Ok(())),
            (&[http, moving], Err("use tcp")),
            (&[http, certificate, moving], Err("use tcp")),
            (&[https, certificate], Ok(())),
            (&[https, certificate, ("type", "nlb")], Ok(())),
            (&[https, certificate, moving], Err("backend-protocol is \"https\": use ssl")),
            (&[https, certificate, moving, ("ssl-ports", "443")], Ok(())),
            (&[("backend-protocol", "ssl"), certificate, moving], Ok(())),
            (&[("backend-protocol", "tcp"), certificate, moving], Ok(())),
            (&[("healthcheck-protocol", "SSL")], Ok(())),
            (&[("healthcheck-protocol", "SSL"), moving], Err("use TCP, HTTP or HTTPS")),
            (&[("healthcheck-protocol", "SSL"), ("type", "nlb")], Err("use TCP, HTTP or HTTPS")),
        ] {
            let found = settings(annotations).map(drop);
            let is_expected = match (&found, expected) {
                (Err(error), Err(words)) => error.is_invalid() && error.message.contains(words),
                (found, expected) => found.is_ok() == expected.is_ok(),
            };
            assert!(is_expected, "{annotations:?}: {found:?}");
        }
        let counts = |annotations: &[(&str, &str)]| settings(annotations).map(|one| one.classic_only.is_some());
        assert_eq!(counts(&[https, certificate]), Ok(true), "a new load balancer would not encrypt");
        assert_eq!(counts(&[http, certificate]), Ok(false));
    }

    #[test]
    fn ports_that_are_not_served_are_named() {
        let settings = settings(&[]).expect("the annotations were refused");
        let port = settings.listeners[0].port;
        let node_port = settings.listeners[0].group.port;
        for (listeners, expected) in [
            ([(port, node_port)], None),
            ([(port, 1)], Some("to node port 1, and the Service has")),
            ([(port + 1, node_port)], Some("does not listen on port")),
        ] {
            let classic = Classic { listeners: listeners.into(), ..Classic::default() };
            let reported = warnings(&settings, &classic, Stage::Drain { left: HOUR });
            let named = expected.is_none_or(|words| reported.iter().any(|one| one.contains(words)));
            assert!(named && (expected.is_some() || reported.is_empty()), "{listeners:?}: {reported:?}");
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn stage_follows_from_annotation_and_tag() {
        for (requested, network, replaced, now, expected) in [
            (None, false, None, 0, Stage::Keep),
            (None, true, None, 0, Stage::Both),
            // The annotation was removed after the move: nothing is deleted.
            (None, true, Some(10), 99_999, Stage::Both),
            (Some(HOUR), false, None, 0, Stage::Prepare),
            (Some(HOUR), true, None, 99_999, Stage::Prepare),
            (Some(HOUR), true, Some(1000), 1000, Stage::Drain { left: HOUR }),
            (Some(HOUR), true, Some(1000), 4599, Stage::Drain { left: Duration::from_secs(1) }),
            (Some(HOUR), true, Some(1000), 4600, Stage::Delete),
            // The clock was set back.
            (Some(HOUR), true, Some(9000), 1000, Stage::Drain { left: HOUR }),
            (Some(HOUR), true, Some(u64::MAX), 1000, Stage::Drain { left: HOUR }),
        ] {
            assert_eq!(
                stage(requested, network, replaced, now),
                expected,
                "{requested:?} {network} {replaced:?} {now}"
            );
        }
    }

    #[test]
    fn incomplete_targets_deregister_nothing() {
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let registered = set(&["i-1", "i-2"]);
        let wanted = set(&["i-2", "i-3"]);
        let complete = registration(&registered, &wanted, false);
        assert_eq!((complete.add, complete.remove), (set(&["i-3"]), set(&["i-1"])));
        let incomplete = registration(&registered, &wanted, true);
        assert_eq!((incomplete.add, incomplete.remove), (set(&["i-3"]), set(&[])));
    }
}
