//! What a mock cloud is like at its start: read from `--cloud-config` as JSON, or built in code.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ipnet::{Ipv4Net, Ipv6Net};
use providers::{Address, AddressKind};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// The whole configuration; every field may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockConfig {
    /// Decides which calls a fault with a probability hits.
    pub seed: u64,
    /// The region of machines that name none.
    pub region: String,
    /// The zones that machines that name none are spread over.
    pub zones: Vec<String>,
    /// The machines that are there.
    pub instances: Vec<InstanceConfig>,
    /// Every Node that is asked for gets a machine, unless it had one that was removed.
    pub auto_instances: bool,
    /// Where balancers get their IPv4 addresses from.
    pub balancer_network: Ipv4Net,
    /// Where balancers get their IPv6 addresses from.
    pub balancer_network_v6: Ipv6Net,
    /// How long a new balancer takes to work, in milliseconds.
    pub provisioning_millis: u64,
    /// How long a balancer takes to go, in milliseconds.
    pub deletion_millis: u64,
    /// How long a new target takes to be found healthy, in milliseconds.
    pub health_millis: u64,
    /// The account's limits.
    pub quotas: Quotas,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Where to serve state, calls, faults and machines over HTTP; `None`: nowhere. Anybody who can connect may change
    /// anything, so keep it on a loopback address.
    pub listen: Option<SocketAddr>,
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            region: "mock-1".into(),
            zones: vec!["mock-1a".into(), "mock-1b".into(), "mock-1c".into()],
            instances: Vec::new(),
            auto_instances: false,
            balancer_network: Ipv4Net::new_assert([198, 18, 0, 0].into(), 15),
            balancer_network_v6: Ipv6Net::new_assert([0x2001, 0xdb8, 0, 1, 0, 0, 0, 0].into(), 64),
            provisioning_millis: 0,
            deletion_millis: 0,
            health_millis: 0,
            quotas: Quotas::default(),
            faults: Vec::new(),
            listen: None,
        }
    }
}

/// Limits; `None`: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Balancers that are there at the same time.
    pub balancers: Option<usize>,
    /// Addresses that balancers hold at the same time.
    pub addresses: Option<usize>,
    /// Targets of one balancer.
    pub targets: Option<usize>,
    /// Routes, foreign ones too.
    pub routes: Option<usize>,
}

/// A machine, as asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceConfig {
    /// Its name, which is its Node's.
    pub name: String,
    /// `mock://<region>/<name>` if left out. Another cloud's scheme is allowed, for Nodes that came with an id.
    pub provider_id: Option<String>,
    /// What a Node's system UUID is compared with, if it has no provider id.
    pub system_uuid: Option<String>,
    /// `mock.small` if left out.
    pub instance_type: Option<String>,
    /// One of the cloud's, by the name, if left out.
    pub zone: Option<String>,
    /// The cloud's if left out.
    pub region: Option<String>,
    /// Its own name and an address in 10.0.0.0/8 made from the name, if left out.
    pub addresses: Vec<Address>,
    /// More labels for its Node.
    pub labels: BTreeMap<String, String>,
    /// It is there and does not run.
    pub stopped: bool,
    /// How long the cloud does not see it yet, in milliseconds.
    pub visible_after_millis: u64,
}

impl InstanceConfig {
    /// A machine of which only the name matters.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The machine as the cloud describes it, with everything that was left out filled in, the same each time.
    pub(crate) fn complete(&self, cloud: &MockConfig) -> providers::Instance {
        let hash = fnv(&self.name);
        let region = self.region.clone().unwrap_or_else(|| cloud.region.clone());
        let zone = || match cloud.zones.len() {
            0 => String::new(),
            count => cloud.zones[(hash % count as u64) as usize].clone(),
        };
        let addresses = || {
            let [.., a, b, c] = hash.to_be_bytes();
            vec![
                Address { kind: AddressKind::InternalIP, address: format!("10.{a}.{b}.{c}") },
                Address { kind: AddressKind::Hostname, address: self.name.clone() },
            ]
        };
        providers::Instance {
            provider_id: self.provider_id.clone().unwrap_or_else(|| format!("mock://{region}/{}", self.name)),
            instance_type: self.instance_type.clone().unwrap_or_else(|| "mock.small".into()),
            zone: self.zone.clone().unwrap_or_else(zone),
            region,
            addresses: if self.addresses.is_empty() { addresses() } else { self.addresses.clone() },
            labels: self.labels.clone(),
        }
    }
}

/// FNV-1a: the same on every run and machine, which `std`'s hashers do not promise.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_filled_in_the_same_each_time() {
        let cloud = MockConfig::default();
        let one = InstanceConfig::named("node-1").complete(&cloud);
        assert_eq!(one, InstanceConfig::named("node-1").complete(&cloud));
        assert_eq!(one.provider_id, "mock://mock-1/node-1");
        assert!(cloud.zones.contains(&one.zone), "{}", one.zone);
        assert_eq!(one.addresses[1].address, "node-1");
        assert_ne!(one.addresses[0], InstanceConfig::named("node-2").complete(&cloud).addresses[0]);
        let zoneless = MockConfig { zones: Vec::new(), ..cloud };
        assert_eq!(InstanceConfig::named("node-1").complete(&zoneless).zone, "");
    }

    #[test]
    fn a_misspelt_field_is_named() {
        let error = serde_json::from_str::<MockConfig>(r#"{"auto_instance": true}"#).unwrap_err().to_string();
        assert!(error.contains("auto_instance") && error.contains("auto_instances"), "{error}");
        let config: MockConfig = serde_json::from_str(
            r#"{"instances": [{"name": "a", "stopped": true}], "quotas": {"routes": 3},
                "faults": [{"operation": "CreateBalancer", "nth": 2, "effect": "answer_lost"}]}"#,
        )
        .unwrap();
        assert!(config.instances[0].stopped);
        assert_eq!(config.quotas.routes, Some(3));
        assert_eq!(config.faults.len(), 1);
    }
}
