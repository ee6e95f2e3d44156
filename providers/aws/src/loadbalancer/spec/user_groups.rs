//! Target groups that users made, by port: the Service's targets are registered there, and no listener is created.

use providers::LoadBalancerSpec;

use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};
use crate::loadbalancer::spec::settings::{ListenerSettings, UserGroup};
use crate::loadbalancer::types::Protocol;

/// The annotation, without its prefix; a port of the Service follows.
pub(crate) const SUFFIX: &str = "target-group-arn.";

/// Returns the ARNs of the target groups that a Service names, also if it is invalid.
pub(crate) fn named(spec: &LoadBalancerSpec) -> impl Iterator<Item = &str> {
    let is_named = |key: &str| key.strip_prefix(PREFIX).is_some_and(|suffix| suffix.starts_with(SUFFIX));
    spec.annotations.iter().filter(move |(key, _)| is_named(key)).map(|(_, arn)| arn.trim())
}

/// Moves the listeners of ports for which the user names a target group to the second list.
pub(super) fn separate(
    listeners: Vec<ListenerSettings>,
    reading: &mut Reading<'_>,
) -> (Vec<ListenerSettings>, Vec<UserGroup>) {
    let known: Vec<String> = listeners.iter().map(|listener| listener.port.to_string()).collect();
    for port in reading.continued(SUFFIX) {
        if !known.iter().any(|known| known == port) {
            let arn = reading.text(&format!("{SUFFIX}{port}")).unwrap_or_default();
            reading.refuse(
                &format!("{SUFFIX}{port}"),
                arn,
                &format!("use a port of the Service: {}", known.join(", ")),
            );
        }
    }
    let mut own = Vec::new();
    let mut groups = Vec::<UserGroup>::new();
    for listener in listeners {
        let suffix = format!("{SUFFIX}{}", listener.port);
        let Some(arn) = reading.text(&suffix) else {
            own.push(listener);
            continue;
        };
        if !arn.starts_with("arn:") || !arn.contains(":targetgroup/") {
            reading.refuse(&suffix, arn, "use the ARN of a target group");
        }
        if groups.iter().any(|group| group.arn == arn) {
            let fix =
                "use each target group for one port only: a target group does not show which port a target belongs to";
            reading.refuse(&suffix, arn, fix);
        }
        if listener.spread.is_some() {
            let fix = format!("leave out the forward action of port {}: the listener is yours, too", listener.port);
            reading.refuse(&suffix, arn, &fix);
        }
        if listener.protocol == Protocol::Tls {
            let message =
                format!("the certificates of port {} have no effect while {PREFIX}{suffix} is set", listener.port);
            reading.warnings.push(format!("{message}: the listener is yours, too"));
        }
        groups.push(UserGroup {
            arn: arn.to_owned(),
            port: listener.port,
            group: listener.group.clone(),
            former: listener,
        });
    }
    if own.is_empty()
        && let Some(value) = reading.text("endpoint-service").filter(|value| *value != "false")
    {
        let fix = "leave it out: all ports have target groups of yours, so that no load balancer is created";
        reading.refuse("endpoint-service", value, fix);
    }
    (own, groups)
}

#[cfg(test)]
mod tests {
    use providers::Protocol as Transport;

    use crate::loadbalancer::samples;
    use crate::loadbalancer::spec::annotations;
    use crate::loadbalancer::spec::settings::{Policy, Settings};

    const ONE: &str = "arn:aws:elasticloadbalancing:r:1:targetgroup/one/1";

    fn read(annotations: &[(&str, &str)]) -> Result<Settings, String> {
        let mut spec = samples::spec(annotations);
        spec.ports.push(samples::port(Transport::Tcp, 443));
        let (_, settings) = annotations::read(&spec, &Policy::default()).map_err(|error| error.message)?;
        Ok(settings.expect("this provider serves the Service"))
    }

    #[test]
    fn port_with_a_target_group_of_the_user_has_no_listener() {
        let settings = read(&[("target-group-arn.80", ONE)]).unwrap();
        let listeners: Vec<u16> = settings.listeners.iter().map(|listener| listener.port).collect();
        let groups: Vec<_> = settings.user_groups.iter().map(|one| (one.port, &*one.arn, one.group.port)).collect();
        assert_eq!((listeners, groups), (vec![443], vec![(80, ONE, 30_080)]));
        assert_eq!(settings.warnings, Vec::<String>::new());
    }

    #[test]
    fn mistakes_about_target_groups_are_refused_with_the_fix() {
        for (annotations, expected) in [
            (&[("target-group-arn.81", ONE)][..], "use a port of the Service: 80, 443"),
            (&[("target-group-arn.http", ONE)], "use a port of the Service: 80, 443"),
            (&[("target-group-arn.80", "one")], "use the ARN of a target group"),
            (&[("target-group-arn.80", ONE), ("target-group-arn.443", ONE)], "use each target group for one port only"),
            (
                &[
                    ("target-group-arn.80", ONE),
                    ("target-group-arn.443", "arn:aws:elasticloadbalancing:r:1:targetgroup/two/2"),
                    ("endpoint-service", "true"),
                ],
                "no load balancer is created",
            ),
        ] {
            let error = read(annotations).expect_err(expected);
            assert!(error.contains(expected), "{annotations:?}: {error}");
        }
    }
}
