//! EndpointSlice: a part of the endpoints behind a Service, of one address type and with one set of ports.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Labels, Str, label};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::metadata_edit::NewMetadata;
use crate::networking::endpoint::{Port, PortFields, Target};
use crate::value::ip::{Family, Ip};
use crate::wire::schema::{
    endpoint, endpoint_conditions, endpoint_hints, endpoint_slice as object, for_node, for_zone, slice_port,
};
use crate::wire::{Put, WireError, fields, find_str, push, splice};

/// Label: the Service that a slice belongs to (discovery/v1, LabelServiceName).
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label: the controller of a slice (discovery/v1, LabelManagedBy).
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// [`MANAGED_BY`] of slices for a Service's pods.
pub const FROM_PODS: &str = "endpointslice-controller.k8s.io";
/// [`MANAGED_BY`] of slices that mirror Endpoints.
pub const MIRRORED: &str = "endpointslicemirroring-controller.k8s.io";

const PORT: PortFields = PortFields {
    name: slice_port::NAME,
    protocol: slice_port::PROTOCOL,
    number: slice_port::PORT,
    app_protocol: slice_port::APP_PROTOCOL,
};

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Metadata.
    pub meta: Meta,
    /// Its contents. Without a section that selects the slice, only the family.
    pub contents: Contents,
    /// All annotations of a [`MIRRORED`] slice, with section [`EndpointSlice::CONTENTS`]; empty for other slices.
    pub annotations: Labels,
    /// The object without managed fields, endpoints, ports and address type; empty for slices that are not written.
    raw: Box<[u8]>,
}

/// The contents of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The family of its addresses; `None` for names.
    pub family: Option<Family>,
    /// Its ports.
    pub ports: Arc<[Port]>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Addresses, all of the slice's family; nearly always one.
    pub addresses: Box<[Ip]>,
    /// Its conditions.
    pub conditions: Conditions,
    /// Name in DNS, if it has one.
    pub hostname: Option<Str>,
    /// The object behind it.
    pub target: Option<Target>,
    /// The node that it is on.
    pub node: Option<Str>,
    /// The zone that it is in.
    pub zone: Option<Str>,
    /// Zones and nodes whose clients should use it.
    pub hints: Option<Box<Hints>>,
}

/// `conditions` of an endpoint; each may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions {
    /// Traffic should be sent to it.
    pub ready: Option<bool>,
    /// It can take traffic, even while it terminates.
    pub serving: Option<bool>,
    /// It is terminating.
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// Zones whose traffic it should take.
    pub zones: Vec<Str>,
    /// Nodes whose traffic it should take.
    pub nodes: Vec<Str>,
}

impl EndpointSlice {
    /// Section: ports, endpoints and the parts for a PUT, of slices that are [`FROM_PODS`] or [`MIRRORED`].
    pub const CONTENTS: Sections = Sections(1);
    /// Section: ports and endpoints of all slices, of any controller.
    pub const TARGETS: Sections = Sections(2);

    /// Returns the Service that the slice belongs to.
    pub fn service(&self) -> Option<&str> {
        label(&self.meta.labels, SERVICE_NAME).filter(|name| !name.is_empty())
    }

    /// Returns the controller of the slice.
    pub fn manager(&self) -> Option<&str> {
        label(&self.meta.labels, MANAGED_BY)
    }

    /// Returns the object for a PUT with other metadata and contents.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn update(&self, metadata: &NewMetadata<'_>, contents: &Contents) -> Result<Vec<u8>, WireError> {
        let mut object = metadata.rewrite(&self.raw)?;
        crate::wire::copy_fields(&self.raw, &mut object, |field| field.number != object::METADATA)?;
        contents.put(&mut object);
        Ok(object)
    }
}

impl Contents {
    /// Returns a new slice for a POST. The API server appends a random suffix to a `prefix` that ends with `-`.
    pub fn create(&self, namespace: &str, prefix: &str, metadata: &NewMetadata<'_>) -> Vec<u8> {
        let mut object = metadata.create(namespace, prefix);
        self.put(&mut object);
        object
    }

    fn put(&self, out: &mut Vec<u8>) {
        if let Some(family) = self.family {
            out.put_str(object::ADDRESS_TYPE, family.name());
        }
        self.endpoints.iter().for_each(|endpoint| endpoint.put(out));
        self.ports.iter().for_each(|port| port.put(out, object::PORTS, PORT));
    }
}

impl Endpoint {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut addresses = Vec::with_capacity(1);
        let mut endpoint = Self {
            addresses: Box::default(),
            conditions: Conditions::default(),
            hostname: None,
            target: None,
            node: None,
            zone: None,
            hints: None,
        };
        for field in fields(message) {
            let field = field?;
            match field.number {
                endpoint::ADDRESSES => addresses.push(Ip::parse(field.value.str())),
                endpoint::CONDITIONS => endpoint.conditions = Conditions::decode(field.value.bytes())?,
                endpoint::HOSTNAME => endpoint.hostname = Some(interner.str(field.value.str())),
                endpoint::TARGET_REF => endpoint.target = Some(Target::decode(interner, field.value.bytes())?),
                endpoint::NODE_NAME => endpoint.node = Some(interner.str(field.value.str())),
                endpoint::ZONE => endpoint.zone = Some(interner.str(field.value.str())),
                endpoint::HINTS => endpoint.hints = Some(Box::new(Hints::decode(interner, field.value.bytes())?)),
                _ => {}
            }
        }
        endpoint.addresses = addresses.into();
        Ok(endpoint)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_message(object::ENDPOINTS, |message| {
            self.addresses.iter().for_each(|address| message.put_str(endpoint::ADDRESSES, &address.to_string()));
            message.put_message(endpoint::CONDITIONS, |conditions| self.conditions.put(conditions));
            if let Some(hostname) = &self.hostname {
                message.put_str(endpoint::HOSTNAME, hostname);
            }
            if let Some(target) = &self.target {
                target.put(message, endpoint::TARGET_REF);
            }
            if let Some(node) = &self.node {
                message.put_str(endpoint::NODE_NAME, node);
            }
            if let Some(zone) = &self.zone {
                message.put_str(endpoint::ZONE, zone);
            }
            if let Some(hints) = &self.hints {
                message.put_message(endpoint::HINTS, |message| hints.put(message));
            }
        });
    }
}

impl Conditions {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut conditions = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                endpoint_conditions::READY => conditions.ready = Some(field.value.bool()),
                endpoint_conditions::SERVING => conditions.serving = Some(field.value.bool()),
                endpoint_conditions::TERMINATING => conditions.terminating = Some(field.value.bool()),
                _ => {}
            }
        }
        Ok(conditions)
    }

    fn put(self, out: &mut Vec<u8>) {
        for (number, value) in [
            (endpoint_conditions::READY, self.ready),
            (endpoint_conditions::SERVING, self.serving),
            (endpoint_conditions::TERMINATING, self.terminating),
        ] {
            if let Some(value) = value {
                out.put_bool(number, value);
            }
        }
    }
}

impl Hints {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut hints = Self::default();
        let name = |message, number| interner.str(find_str(message, number));
        for field in fields(message) {
            let field = field?;
            match field.number {
                endpoint_hints::FOR_ZONES => hints.zones.push(name(field.value.bytes(), for_zone::NAME)),
                endpoint_hints::FOR_NODES => hints.nodes.push(name(field.value.bytes(), for_node::NAME)),
                _ => {}
            }
        }
        Ok(hints)
    }

    fn put(&self, out: &mut Vec<u8>) {
        for zone in &self.zones {
            out.put_message(endpoint_hints::FOR_ZONES, |message| message.put_str(for_zone::NAME, zone));
        }
        for node in &self.nodes {
            out.put_message(endpoint_hints::FOR_NODES, |message| message.put_str(for_node::NAME, node));
        }
    }
}

impl Kind for EndpointSlice {
    const RESOURCE: Resource = Resource {
        group: "discovery.k8s.io",
        version: "v1",
        kind: "EndpointSlice",
        plural: "endpointslices",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let mut meta = &[][..];
        let mut family = None;
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::METADATA => meta = field.value.bytes(),
                object::ADDRESS_TYPE => family = Family::parse(field.value.str()),
                _ => {}
            }
        }
        let (meta, message) = (Meta::decode(interner, meta, |_, _| {})?, meta);
        let mut slice = Self {
            meta,
            contents: Contents { family, ports: interner.ports(&[]), endpoints: Vec::new() },
            annotations: interner.labels(Vec::new()),
            raw: Box::default(),
        };
        let manager = slice.manager();
        let mirrored = manager == Some(MIRRORED);
        let written = context.sections.contains(Self::CONTENTS) && (mirrored || manager == Some(FROM_PODS));
        if !written && !context.sections.contains(Self::TARGETS) {
            return Ok(slice);
        }
        let mut ports = Vec::new();
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::PORTS => ports.push(Port::decode(interner, PORT, field.value.bytes())?),
                object::ENDPOINTS => {
                    let endpoint = Endpoint::decode(interner, field.value.bytes())?;
                    push(&mut slice.contents.endpoints, endpoint, object)?;
                }
                _ => {}
            }
        }
        slice.contents.ports = interner.ports(&ports);
        slice.contents.endpoints.shrink_to_fit();
        if !written {
            return Ok(slice);
        }
        if mirrored {
            // All annotations are kept, because the controller removes those that the Endpoints do not have.
            let mut annotations = Vec::new();
            Meta::decode(interner, message, |key, value| annotations.push((interner.str(key), interner.str(value))))?;
            slice.annotations = interner.labels(annotations);
        }
        let keep = |field: &crate::wire::Field<'_>| {
            !matches!(field.number, object::PORTS | object::ENDPOINTS | object::ADDRESS_TYPE)
        };
        slice.raw = splice::edited(object, &[], keep, |_| {})?.into();
        Ok(slice)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata_edit::Annotations;
    use crate::wire::find;
    use crate::wire::schema::object_meta;

    fn endpoint() -> Endpoint {
        Endpoint {
            addresses: [Ip::parse("10.0.0.1")].into(),
            conditions: Conditions { ready: Some(true), serving: None, terminating: Some(false) },
            hostname: Some("web-0".into()),
            target: Some(Target::Pod {
                namespace: "ns".into(),
                name: "web-0".into(),
                uid: crate::meta::Uid::parse("x"),
            }),
            node: Some("node".into()),
            zone: Some("zone".into()),
            hints: Some(Box::new(Hints { zones: vec!["zone".into()], nodes: vec!["node".into()] })),
        }
    }

    fn decode(manager: &str, sections: Sections) -> EndpointSlice {
        let context = Decode { interner: Arc::default(), sections };
        let port = Port { name: "".into(), protocol: "UDP".into(), number: Some(53), app_protocol: None };
        let labels: Labels = Arc::new([(MANAGED_BY.into(), manager.into()), (SERVICE_NAME.into(), "dns".into())]);
        let contents = Contents { family: Some(Family::V6), ports: Arc::new([port]), endpoints: vec![endpoint()] };
        let metadata =
            NewMetadata { labels: &labels, annotations: Annotations::Edited(&[("why", Some("because"))]), owner: None };
        let created = contents.create("ns", "dns-1", &metadata);
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.extend(find(&created, object::METADATA));
        });
        crate::wire::copy_fields(&created, &mut object, |field| field.number != object::METADATA).expect("well-formed");
        object.put_str(99, "unknown");
        EndpointSlice::decode(&context, &object).expect("well-formed")
    }

    #[test]
    fn slices_of_other_controllers_are_decoded_when_selected() {
        let theirs = decode("example.com/them", EndpointSlice::CONTENTS);
        assert!(theirs.contents.endpoints.is_empty() && theirs.contents.ports.is_empty());
        for manager in ["example.com/them", FROM_PODS] {
            let slice = decode(manager, EndpointSlice::TARGETS);
            assert_eq!((slice.contents.endpoints.len(), slice.contents.ports.len()), (1, 1), "{manager}");
            assert!(slice.raw.is_empty(), "it is never written");
        }
    }

    #[test]
    fn encoded_fields_decode_to_themselves() {
        let slice = decode(FROM_PODS, EndpointSlice::CONTENTS);
        assert_eq!((slice.service(), slice.contents.family), (Some("dns"), Some(Family::V6)));
        assert_eq!(slice.contents.endpoints, [endpoint()]);
        let empty = Contents { endpoints: Vec::new(), ..slice.contents.clone() };
        let metadata = NewMetadata { labels: &slice.meta.labels, annotations: Annotations::Edited(&[]), owner: None };
        let updated = slice.update(&metadata, &empty).expect("well-formed");
        let context = Decode { interner: Arc::default(), sections: EndpointSlice::CONTENTS };
        let again = EndpointSlice::decode(&context, &updated).expect("well-formed");
        assert_eq!((again.contents, again.meta.version), (empty, 7));
        assert_eq!(find(&updated, 99), b"unknown");
    }

    #[test]
    fn contents_are_kept_only_for_selected_controllers() {
        for (manager, sections, endpoints, annotations) in [
            (FROM_PODS, EndpointSlice::CONTENTS, 1, 0),
            (MIRRORED, EndpointSlice::CONTENTS, 1, 1),
            ("example.com/them", EndpointSlice::CONTENTS, 0, 0),
            (FROM_PODS, Sections::default(), 0, 0),
        ] {
            let slice = decode(manager, sections);
            assert_eq!(
                (slice.contents.endpoints.len(), slice.annotations.len()),
                (endpoints, annotations),
                "{manager}"
            );
        }
    }
}
