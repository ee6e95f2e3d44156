//! A small cluster for decisions: a Service, pods, nodes, and the resulting slices.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::endpoint_slice::{Contents, Endpoint};
use kinds::int_or_string::IntOrString;
use kinds::intern::Labels;
use kinds::ip::Ip;
use kinds::metadata_edit::{Annotations, NewMetadata};
use kinds::pod::{NamedPort, Network, Phase};
use kinds::schema::{endpoint_slice, object_meta};
use kinds::service::ServicePort;
use kinds::wire::{Put, copy_fields, find};
use kinds::{Decode, EndpointSlice, Interner, Kind, OwnerRef, Pod, Sections, Service, Str, Time};

use super::super::decide::{self, decide};
use super::super::decision::{Decision, View};
use super::super::desired::{Place, members};
use super::super::topology::Shares;
use crate::network::service_endpoints::slice_writes::Plan;

/// Returns an object in the namespace `ns`, with a name and the metadata that the API server sets.
fn read<K: Kind>(name: &str, sections: Sections) -> K {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        Time(1).put(meta, object_meta::CREATION_TIMESTAMP);
    });
    K::decode(&Decode { interner: Arc::default(), sections }, &object).expect("well-formed")
}

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    Interner::default().labels(pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
}

pub fn port(name: &str, target: IntOrString) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol: "TCP".into(),
        app_protocol: None,
        port: 80,
        target_port: target,
        node_port: 0,
    }
}

/// Returns a Service with an IPv4 address and port 80.
pub fn service() -> Service {
    let mut service = read::<Service>("web", Sections::default());
    service.meta.labels = labels(&[("app", "web")]);
    service.selector = labels(&[("app", "web")]);
    service.ports = vec![port("", IntOrString::Int(80))];
    service.cluster_ips = vec!["10.1.0.1".into()];
    service.ip_families = vec!["IPv4".into()];
    service
}

/// Returns a ready pod on `node`, with an IPv4 and an IPv6 address that end in its number.
pub fn pod(number: u8) -> Pod {
    let mut pod = read::<Pod>(&format!("web-{number}"), Pod::NETWORK);
    pod.node = "node".into();
    pod.phase = Phase::Running;
    pod.ready = true;
    pod.ready_since = Time(1);
    pod.network = Some(Box::new(Network {
        ips: [Ip::parse(&format!("10.0.0.{number}")), Ip::parse(&format!("fd00::{number}"))].into(),
        host: None,
        ports: Arc::new([]),
    }));
    pod
}

pub fn with_port(mut pod: Pod, name: &str, number: i32) -> Pod {
    let port = NamedPort { name: name.into(), protocol: "TCP".into(), number };
    pod.network.as_mut().expect("a network").ports = Arc::new([port]);
    pod
}

/// A Service, its pods and its slices.
pub struct Fixture {
    pub service: Service,
    pub pods: BTreeMap<u8, Pod>,
    pub slices: Vec<Arc<EndpointSlice>>,
    pub max_endpoints: usize,
    /// Zones of nodes.
    pub nodes: BTreeMap<Str, Option<Str>>,
    pub shares: Option<Shares>,
    pub was_allocated: bool,
    /// Names of existing pods that cannot be decoded.
    pub unreadable: Vec<Str>,
    created: usize,
}

impl Fixture {
    pub fn new(service: Service, pods: impl IntoIterator<Item = u8>) -> Self {
        Self {
            service,
            pods: pods.into_iter().map(|number| (number, pod(number))).collect(),
            slices: Vec::new(),
            max_endpoints: 100,
            nodes: [("node".into(), None)].into(),
            shares: None,
            was_allocated: false,
            unreadable: Vec::new(),
            created: 0,
        }
    }

    pub fn decide(&self) -> Decision {
        self.decide_in(self.pods.keys().copied().collect())
    }

    /// Returns a decision on the pods in this order.
    pub fn decide_in(&self, order: Vec<u8>) -> Decision {
        let pods: Vec<Arc<Pod>> = order.iter().map(|number| Arc::new(self.pods[number].clone())).collect();
        let place = |node: &Str| self.nodes.get(node).cloned().map_or(Place::Missing, Place::Known);
        decide(&View {
            service: &self.service,
            members: &members(&self.service, &pods, place),
            existing: &self.slices,
            labels: &decide::labels(&self.service),
            max_endpoints: self.max_endpoints,
            may_be_removed: &|endpoint| {
                endpoint.target.as_ref().is_none_or(|target| !self.unreadable.contains(target.name()))
            },
            shares: self.shares.as_ref(),
            was_allocated: self.was_allocated,
        })
    }

    pub fn apply(&mut self, plan: &Plan) {
        for contents in &plan.create {
            self.created += 1;
            let slice = self.slice(&format!("web-{:03}", self.created), contents);
            self.slices.push(slice);
        }
        for (slice, contents) in &plan.update {
            let updated = self.slice(&slice.meta.name, contents);
            let at = self.slices.iter().position(|known| known.meta.name == slice.meta.name).expect("the slice exists");
            self.slices[at] = updated;
        }
        for slice in &plan.delete {
            self.slices.retain(|known| known.meta.name != slice.meta.name);
        }
        self.slices.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    }

    /// Executes immediate and delayed writes. Returns their number.
    pub fn settle(&mut self) -> usize {
        let decision = self.decide();
        self.apply(&decision.now);
        self.apply(&decision.later);
        decision.now.writes() + decision.later.writes()
    }

    /// Returns a slice of the Service as the server would return it.
    pub fn slice(&self, name: &str, contents: &Contents) -> Arc<EndpointSlice> {
        slice_of(&self.service.controller_ref(), &decide::labels(&self.service), name, contents)
    }

    /// Returns the endpoints of all slices, by slice and as text.
    pub fn shown(&self) -> Vec<Vec<String>> {
        self.slices.iter().map(|slice| slice.contents.endpoints.iter().map(text).collect()).collect()
    }

    /// Returns the number of slices that the metrics report.
    pub fn counted(&self) -> usize {
        self.decide().tallies.values().map(|counts| counts.slices).sum()
    }

    pub fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.slices.iter().map(|slice| slice.contents.endpoints.len()).collect();
        sizes.sort_unstable();
        sizes
    }
}

pub fn slice_of(owner: &OwnerRef, labels: &Labels, name: &str, contents: &Contents) -> Arc<EndpointSlice> {
    let metadata = NewMetadata { labels, annotations: Annotations::Edited(&[]), owner: Some(owner) };
    let created = contents.create("ns", name, &metadata);
    let mut object = Vec::new();
    object.put_message(endpoint_slice::METADATA, |meta| {
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.put_str(object_meta::UID, name);
        meta.extend(find(&created, endpoint_slice::METADATA));
    });
    copy_fields(&created, &mut object, |field| field.number != endpoint_slice::METADATA).expect("well-formed");
    let context = Decode { interner: Arc::default(), sections: EndpointSlice::CONTENTS };
    Arc::new(EndpointSlice::decode(&context, &object).expect("a slice"))
}

/// Returns address, conditions and hints of an endpoint: `+` stands for true, `-` for false, `?` for a missing value.
pub fn text(endpoint: &Endpoint) -> String {
    let sign = |condition| match condition {
        Some(true) => '+',
        Some(false) => '-',
        None => '?',
    };
    let conditions = endpoint.conditions;
    let hints = endpoint.hints.as_ref().map(|hints| format!(" {}|{}", hints.zones.join(","), hints.nodes.join(",")));
    format!(
        "{} {}{}{}{}",
        endpoint.addresses[0],
        sign(conditions.ready),
        sign(conditions.serving),
        sign(conditions.terminating),
        hints.unwrap_or_default()
    )
}
