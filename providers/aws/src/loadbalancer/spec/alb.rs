//! An Application Load Balancer as the target of a Service's listeners: fixed addresses or PrivateLink in front of it.

use providers::{LoadBalancerSpec, Protocol as Transport};

use crate::loadbalancer::spec::annotation_reader::Reading;
use crate::loadbalancer::spec::settings::Alb;

/// The annotation, without its prefix.
pub(crate) const SUFFIX: &str = "application-load-balancer";

/// Annotations about targets and TLS, which do not fit an Application Load Balancer.
const OF_TARGETS: [&str; 6] = [
    "multi-cluster-target-group",
    "nlb-target-type",
    "quic-enabled-ports",
    "ssl-cert",
    "ssl-domains",
    "target-node-labels",
];

/// Returns the Application Load Balancer that the Service names.
pub(super) fn read(spec: &LoadBalancerSpec, reading: &mut Reading<'_>) -> Option<Alb> {
    let name = reading.text(SUFFIX)?;
    let is_arn = name.starts_with("arn:") && name.contains(":loadbalancer/app/");
    let is_name = name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_arn && !is_name {
        reading.refuse(SUFFIX, name, "use the name or the ARN of an Application Load Balancer");
    }
    for suffix in OF_TARGETS {
        if let Some(value) = reading.text(suffix).filter(|value| *value != "false") {
            let fix = "leave it out: targets and certificates are configured on the Application Load Balancer";
            reading.refuse(suffix, value, fix);
        }
    }
    for port in spec.ports.iter().filter(|port| port.protocol != Transport::Tcp) {
        let fix = "use TCP, the only protocol of traffic to an Application Load Balancer";
        reading.refuse_field("spec.ports[].protocol", port.protocol, fix);
    }
    let probe_is_set = reading.text("healthcheck-protocol").is_some();
    Some(Alb { name: name.to_owned(), arn: String::new(), probe_is_set })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;
    use crate::loadbalancer::spec::annotations;
    use crate::loadbalancer::spec::settings::{Policy, Settings};
    use crate::loadbalancer::types::{Probe, TargetType};

    fn read(annotations: &[(&str, &str)], transport: Transport) -> Result<Settings, String> {
        let mut spec = samples::spec(annotations);
        spec.ports = vec![samples::port(transport, 443)];
        let (_, settings) = annotations::read(&spec, &Policy::default()).map_err(|error| error.message)?;
        Ok(settings.expect("this provider serves the Service"))
    }

    #[test]
    fn listener_leads_to_the_same_port_of_the_application_load_balancer() {
        let settings = read(&[(SUFFIX, "web")], Transport::Tcp).unwrap();
        let group = &settings.listeners[0].group;
        assert_eq!((settings.target_type, group.port, group.health.protocol), (TargetType::Alb, 443, Probe::Http));
        assert!(!settings.node_rules && group.preserves_client);
    }

    #[test]
    fn settings_that_do_not_fit_are_refused_with_the_fix() {
        let arn = "arn:aws:elasticloadbalancing:r:1:loadbalancer/net/web/1";
        for (annotations, transport, expected) in [
            (&[(SUFFIX, arn)][..], Transport::Tcp, "the ARN of an Application Load Balancer"),
            (&[(SUFFIX, "web"), ("nlb-target-type", "ip")], Transport::Tcp, "targets and certificates are"),
            (&[(SUFFIX, "web"), ("ssl-cert", "arn:x")], Transport::Tcp, "certificates are configured"),
            (&[(SUFFIX, "web"), ("healthcheck-protocol", "tcp")], Transport::Tcp, "use HTTP or HTTPS"),
            (&[(SUFFIX, "web")], Transport::Udp, "use TCP"),
        ] {
            let error = read(annotations, transport).expect_err(expected);
            assert!(error.contains(expected), "{annotations:?}: {error}");
        }
    }
}
