//! Endpoints: the addresses behind a Service, in subsets of equal ports.

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Labels, Str, label};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::metadata_edit::NewMetadata;
use crate::networking::endpoint::{Port, PortFields, Target};
use crate::template::raw_object::annotated_meta;
use crate::value::ip::Ip;
use crate::wire::schema::{endpoint_address, endpoint_subset, endpoints as object, subset_port};
use crate::wire::{Put, WireError, copy_fields, fields, push, splice};

/// Annotation of an object that omits addresses because there are too many (core/v1, EndpointsOverCapacity).
pub const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Annotation with the holder of a leader election lock. Upstream: client-go, LeaderElectionRecordAnnotationKey.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

const PORT: PortFields = PortFields {
    name: subset_port::NAME,
    protocol: subset_port::PROTOCOL,
    number: subset_port::PORT,
    app_protocol: subset_port::APP_PROTOCOL,
};

/// An Endpoints object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// Metadata.
    pub meta: Meta,
    /// Annotations, except the one that `kubectl apply` sets.
    pub annotations: Labels,
    /// Addresses, by ports.
    pub subsets: Box<[Subset]>,
    /// The object without managed fields and subsets; only with section [`Endpoints::WHOLE`].
    raw: Box<[u8]>,
}

/// Addresses that have the same ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subset {
    /// Ready addresses.
    pub ready: Vec<Address>,
    /// Addresses that are not ready.
    pub not_ready: Vec<Address>,
    /// Ports of all these addresses.
    pub ports: Vec<Port>,
}

/// An address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address itself.
    pub ip: Ip,
    /// Name in DNS; empty if it has none.
    pub hostname: Str,
    /// The node that it is on.
    pub node: Option<Str>,
    /// The object behind it.
    pub target: Option<Target>,
}

impl Endpoints {
    /// Section: the raw object for a PUT.
    pub const WHOLE: Sections = Sections(1);

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        label(&self.annotations, key)
    }

    /// Returns the object for a PUT with new metadata and subsets. `None` without [`Endpoints::WHOLE`].
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn update(&self, metadata: &NewMetadata<'_>, subsets: &[Subset]) -> Option<Result<Vec<u8>, WireError>> {
        (!self.raw.is_empty()).then(|| {
            let mut object = metadata.rewrite(&self.raw)?;
            copy_fields(&self.raw, &mut object, |field| field.number != object::METADATA)?;
            subsets.iter().for_each(|subset| subset.put(&mut object));
            Ok(object)
        })
    }

    /// Returns the object for a POST.
    pub fn create(namespace: &str, name: &str, metadata: &NewMetadata<'_>, subsets: &[Subset]) -> Vec<u8> {
        let mut object = metadata.create(namespace, name);
        subsets.iter().for_each(|subset| subset.put(&mut object));
        object
    }
}

impl Subset {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut subset = Self::default();
        for field in fields(message) {
            let field = field?;
            let bytes = field.value.bytes();
            match field.number {
                endpoint_subset::ADDRESSES => push(&mut subset.ready, Address::decode(interner, bytes)?, message)?,
                endpoint_subset::NOT_READY_ADDRESSES => {
                    push(&mut subset.not_ready, Address::decode(interner, bytes)?, message)?
                }
                endpoint_subset::PORTS => subset.ports.push(Port::decode(interner, PORT, bytes)?),
                _ => {}
            }
        }
        for list in [&mut subset.ready, &mut subset.not_ready] {
            list.shrink_to_fit();
        }
        Ok(subset)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_message(object::SUBSETS, |message| {
            self.ready.iter().for_each(|address| address.put(message, endpoint_subset::ADDRESSES));
            self.not_ready.iter().for_each(|address| address.put(message, endpoint_subset::NOT_READY_ADDRESSES));
            self.ports.iter().for_each(|port| port.put(message, endpoint_subset::PORTS, PORT));
        });
    }
}

impl Address {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut address = Self { ip: Ip::parse(""), hostname: interner.str(""), node: None, target: None };
        for field in fields(message) {
            let field = field?;
            match field.number {
                endpoint_address::IP => address.ip = Ip::parse(field.value.str()),
                endpoint_address::HOSTNAME => address.hostname = interner.str(field.value.str()),
                endpoint_address::NODE_NAME => address.node = Some(interner.str(field.value.str())),
                endpoint_address::TARGET_REF => address.target = Some(Target::decode(interner, field.value.bytes())?),
                _ => {}
            }
        }
        Ok(address)
    }

    fn put(&self, out: &mut Vec<u8>, number: u32) {
        out.put_message(number, |message| {
            message.put_str(endpoint_address::IP, &self.ip.to_string());
            if let Some(target) = &self.target {
                target.put(message, endpoint_address::TARGET_REF);
            }
            message.put_str(endpoint_address::HOSTNAME, &self.hostname);
            if let Some(node) = &self.node {
                message.put_str(endpoint_address::NODE_NAME, node);
            }
        });
    }
}

impl Kind for Endpoints {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "Endpoints", plural: "endpoints", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut meta = &[][..];
        let mut subsets = Vec::new();
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::METADATA => meta = field.value.bytes(),
                object::SUBSETS => subsets.push(Subset::decode(&context.interner, field.value.bytes())?),
                _ => {}
            }
        }
        let (meta, annotations) = annotated_meta(&context.interner, meta)?;
        let whole = context.sections.contains(Self::WHOLE);
        let raw = if whole {
            splice::edited(object, &[], |field| field.number != object::SUBSETS, |_| {})?
        } else {
            Vec::new()
        };
        Ok(Self { meta, annotations, subsets: subsets.into(), raw: raw.into() })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metadata_edit::Annotations;
    use crate::wire::schema::object_meta;

    #[test]
    fn endpoints_round_trip_and_keep_unknown_fields() {
        let context = Decode { interner: Arc::default(), sections: Endpoints::WHOLE };
        let labels: Labels = Arc::new([("app".into(), "web".into())]);
        let port =
            Port { name: "http".into(), protocol: "TCP".into(), number: Some(80), app_protocol: Some("h2c".into()) };
        let target = Target::Pod { namespace: "ns".into(), name: "web-1".into(), uid: crate::meta::Uid::parse("x") };
        let address = |ip: &str| Address {
            ip: Ip::parse(ip),
            hostname: "a".into(),
            node: Some("n".into()),
            target: Some(target.clone()),
        };
        let subsets =
            [Subset { ready: vec![address("10.0.0.1")], not_ready: vec![address("10.0.0.2")], ports: vec![port] }];
        let metadata =
            NewMetadata { labels: &labels, annotations: Annotations::Edited(&[("why", Some("because"))]), owner: None };
        let mut created = Vec::new();
        created.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.extend(crate::wire::find(&Endpoints::create("ns", "web", &metadata, &subsets), object::METADATA));
            meta.put_str(99, "unknown");
        });
        created.put_str(77, "unknown too");
        let read = Endpoints::decode(&context, &created).expect("well-formed");
        assert_eq!((read.annotation("why"), &read.meta.labels), (Some("because"), &labels));
        let edits = [("why", None), ("what", Some("this"))];
        let empty: Labels = Arc::new([]);
        let metadata = NewMetadata { labels: &empty, annotations: Annotations::Edited(&edits), owner: None };
        let updated = read.update(&metadata, &subsets).expect("whole").expect("well-formed");
        let again = Endpoints::decode(&context, &updated).expect("well-formed");
        assert_eq!((again.annotation("why"), again.annotation("what")), (None, Some("this")));
        assert_eq!((&*again.subsets, again.meta.labels.len(), again.meta.version), (&subsets[..], 0, 7));
        let meta = crate::wire::find(&updated, object::METADATA);
        assert_eq!(
            (crate::wire::find(meta, 99), crate::wire::find(&updated, 77)),
            (&b"unknown"[..], &b"unknown too"[..])
        );
    }
}
