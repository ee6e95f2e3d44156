//! Addresses, DNS name and named ports of a pod.

use std::sync::Arc;

use crate::intern::{Interner, Str};
use crate::value::ip::Ip;
use crate::wire::schema::{container, container_port, pod_ip, pod_spec, pod_status};
use crate::wire::{WireError, fields, find};

/// The parts of a pod that the controllers of Services read in addition to readiness.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// Addresses, the primary one first.
    pub ips: Box<[Ip]>,
    /// `hostname` and `subdomain`, if one of them is given.
    pub host: Option<Box<(Str, Str)>>,
    /// Ports with a name: those of containers, then those of sidecars. Shared by the pods of a template.
    pub ports: Arc<[NamedPort]>,
}

/// A port of a container that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedPort {
    /// Name of the port.
    pub name: Str,
    /// Protocol, such as `TCP`.
    pub protocol: Str,
    /// The port number.
    pub number: i32,
}

impl Interner {
    /// Returns the shared copy of a list of containers' ports.
    pub fn named_ports(&self, named_ports: &[NamedPort]) -> Arc<[NamedPort]> {
        self.records(named_ports)
    }
}

impl Network {
    pub(super) fn read(interner: &Interner, spec: &[u8], status: &[u8]) -> Result<Self, WireError> {
        let (mut hostname, mut subdomain) = ("", "");
        let (mut ports, mut sidecars) = (Vec::new(), Vec::new());
        for field in fields(spec) {
            let field = field?;
            match field.number {
                pod_spec::HOSTNAME => hostname = field.value.str(),
                pod_spec::SUBDOMAIN => subdomain = field.value.str(),
                pod_spec::CONTAINERS => named_ports(interner, field.value.bytes(), &mut ports)?,
                pod_spec::INIT_CONTAINERS if find(field.value.bytes(), container::RESTART_POLICY) == b"Always" => {
                    named_ports(interner, field.value.bytes(), &mut sidecars)?;
                }
                _ => {}
            }
        }
        ports.append(&mut sidecars);
        let mut primary = "";
        let mut ips = Vec::new();
        for field in fields(status) {
            let field = field?;
            match field.number {
                pod_status::POD_IP => primary = field.value.str(),
                pod_status::POD_IPS => {
                    let ip = find(field.value.bytes(), pod_ip::IP);
                    ips.push(Ip::parse(std::str::from_utf8(ip).unwrap_or_default()));
                }
                _ => {}
            }
        }
        if ips.is_empty() && !primary.is_empty() {
            ips.push(Ip::parse(primary));
        }
        let named = !hostname.is_empty() || !subdomain.is_empty();
        Ok(Self {
            ips: ips.into(),
            host: named.then(|| Box::new((interner.str(hostname), interner.str(subdomain)))),
            ports: interner.named_ports(&ports),
        })
    }
}

fn named_ports(interner: &Interner, container: &[u8], ports: &mut Vec<NamedPort>) -> Result<(), WireError> {
    for field in fields(container) {
        let field = field?;
        if field.number != container::PORTS {
            continue;
        }
        let (mut name, mut protocol, mut number) = ("", "TCP", 0);
        for field in fields(field.value.bytes()) {
            let field = field?;
            match field.number {
                container_port::NAME => name = field.value.str(),
                container_port::PROTOCOL => protocol = field.value.str(),
                container_port::CONTAINER_PORT => number = field.value.i32(),
                _ => {}
            }
        }
        if !name.is_empty() {
            ports.push(NamedPort { name: interner.str(name), protocol: interner.str(protocol), number });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    fn put_container(spec: &mut Vec<u8>, number: u32, policy: &str, name: &str, port: i64) {
        spec.put_message(number, |message| {
            message.put_message(container::PORTS, |message| {
                message.put_str(container_port::NAME, name);
                message.put_int(container_port::CONTAINER_PORT, port);
                message.put_str(container_port::PROTOCOL, "TCP");
            });
            message.put_str(container::RESTART_POLICY, policy);
        });
    }

    #[test]
    fn named_ports_are_those_of_containers_then_those_of_sidecars() {
        let interner = Interner::default();
        let (mut spec, mut status) = (Vec::new(), Vec::new());
        put_container(&mut spec, pod_spec::INIT_CONTAINERS, "", "init", 1);
        put_container(&mut spec, pod_spec::INIT_CONTAINERS, "Always", "http", 2);
        put_container(&mut spec, pod_spec::CONTAINERS, "", "http", 3);
        put_container(&mut spec, pod_spec::CONTAINERS, "", "", 4);
        status.put_str(pod_status::POD_IP, "10.0.0.1");
        let network = Network::read(&interner, &spec, &status).expect("well-formed");
        assert_eq!(network.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [3, 2]);
        assert_eq!((&*network.ips, &network.host), (&[Ip::parse("10.0.0.1")][..], &None));
        for ip in ["10.0.0.1", "fd00::1"] {
            status.put_message(pod_status::POD_IPS, |message| message.put_str(pod_ip::IP, ip));
        }
        spec.put_str(pod_spec::SUBDOMAIN, "web");
        let again = Network::read(&interner, &spec, &status).expect("well-formed");
        assert_eq!(again.ips.len(), 2);
        assert_eq!(again.host, Some(Box::new(("".into(), "web".into()))));
        assert!(Arc::ptr_eq(&network.ports, &again.ports), "shared");
    }
}
