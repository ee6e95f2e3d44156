//! Services whose backends would get other data from a Network Load Balancer than from a Classic one. Health checks succeed
//! nevertheless, so nothing else would prevent a move to it.

use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};
use crate::loadbalancer::spec::settings::Settings;
use crate::loadbalancer::spec::target_group::PROXY;
use crate::loadbalancer::types::Protocol;

/// Refuses annotations that mean something else to a Network Load Balancer than to the Classic one that
/// cloud-provider-aws creates for the Service. With other annotations, the user decides.
pub(super) fn check(settings: &Settings, reading: &mut Reading<'_>) {
    let moves = settings.replace_classic.is_some();
    if settings.flavour == Flavour::CloudProvider && (settings.untyped || moves) {
        check_proxy_protocol(settings, reading);
        check_backend_protocol(settings, moves, reading);
    }
}

/// Refuses the proxy protocol, unless the attributes of each target group contain it.
fn check_proxy_protocol(settings: &Settings, reading: &mut Reading<'_>) {
    let Some(value) = reading.text("proxy-protocol") else { return };
    let mut with_tcp = settings.listeners.iter().filter(|one| one.group.protocol.transports().contains(&"tcp"));
    if with_tcp.any(|one| !one.group.attributes.contains_key(PROXY)) {
        let fix = format!(
            "a Classic Load Balancer sends version 1 of the header, and a Network Load Balancer only version 2: set annotation \
             {PREFIX}target-group-attributes to {PROXY}=true if the backends accept version 2, or to {PROXY}=false if they \
             accept connections without the header"
        );
        reading.refuse_network("proxy-protocol", value, &fix);
    }
}

/// Refuses HTTPS to targets, which a Network Load Balancer would replace by unencrypted traffic. A Service that moves is also
/// refused HTTP, because clients' addresses are in a header that only a Classic Load Balancer adds.
fn check_backend_protocol(settings: &Settings, moves: bool, reading: &mut Reading<'_>) {
    let no_header =
        "a Network Load Balancer adds no X-Forwarded-For header and keeps clients' addresses in packets instead";
    match reading.text("backend-protocol") {
        Some("https") if settings.listeners.iter().any(|one| one.protocol == Protocol::Tls) => {
            let fix = format!("use ssl, if the backends do not need the header: {no_header}");
            reading.refuse_network("backend-protocol", "https", &fix);
        }
        Some("http") if moves && !settings.listeners.is_empty() => {
            let fix = format!("use tcp, if the backends do not need the header: {no_header}");
            reading.refuse_network("backend-protocol", "http", &fix);
        }
        Some("http") => {
            reading.warnings.push(format!("annotation {PREFIX}backend-protocol: http has no effect: {no_header}"));
        }
        _ => {}
    }
}
