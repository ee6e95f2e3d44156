//! Common parts of Endpoints and EndpointSlices: ports, and the object behind an address.

use std::sync::Arc;

use crate::intern::{Interner, Str};
use crate::meta::Uid;
use crate::wire::schema::object_reference;
use crate::wire::{Put, WireError, fields};

/// Annotation: time of the change that caused the last update, for latency measurements (core/v1,
/// EndpointsLastChangeTriggerTime).
pub const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Label: marks objects of a headless Service (core/v1, IsHeadlessService).
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// A port of a subset or slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Name; may be empty if this is the only port.
    pub name: Str,
    /// Protocol, such as `TCP`.
    pub protocol: Str,
    /// Number; `None` means all.
    pub number: Option<i32>,
    /// Its application protocol.
    pub app_protocol: Option<Str>,
}

impl Interner {
    /// Returns the shared copy of a list of endpoints' ports.
    pub fn ports(&self, ports: &[Port]) -> Arc<[Port]> {
        self.records(ports)
    }
}

/// Field numbers of a kind's port message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortFields {
    pub name: u32,
    pub protocol: u32,
    pub number: u32,
    pub app_protocol: u32,
}

impl Port {
    pub(crate) fn decode(interner: &Interner, numbers: PortFields, message: &[u8]) -> Result<Self, WireError> {
        let mut port = Self { name: interner.str(""), protocol: interner.str("TCP"), number: None, app_protocol: None };
        for field in fields(message) {
            let field = field?;
            match field.number {
                n if n == numbers.name => port.name = interner.str(field.value.str()),
                n if n == numbers.protocol => port.protocol = interner.str(field.value.str()),
                n if n == numbers.number => port.number = Some(field.value.i32()),
                n if n == numbers.app_protocol => port.app_protocol = Some(interner.str(field.value.str())),
                _ => {}
            }
        }
        Ok(port)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>, number: u32, numbers: PortFields) {
        out.put_message(number, |message| {
            message.put_str(numbers.name, &self.name);
            message.put_str(numbers.protocol, &self.protocol);
            if let Some(number) = self.number {
                message.put_int(numbers.number, number.into());
            }
            if let Some(app_protocol) = &self.app_protocol {
                message.put_str(numbers.app_protocol, app_protocol);
            }
        });
    }
}

/// The object behind an address. Its resourceVersion is omitted, so that a record does not change with each update of
/// the object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// A pod, referred to only by its identity.
    Pod {
        /// Its namespace.
        namespace: Str,
        /// Its name.
        name: Str,
        /// Its uid.
        uid: Uid,
    },
    /// Any other reference.
    Other(Box<Reference>),
}

/// An `ObjectReference`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Reference {
    /// `kind`
    pub kind: Str,
    /// `namespace`
    pub namespace: Str,
    /// `name`
    pub name: Str,
    /// `uid`
    pub uid: Uid,
    /// `apiVersion`
    pub api_version: Str,
    /// `fieldPath`
    pub field_path: Str,
}

impl Target {
    /// Returns the namespace of the object.
    pub fn namespace(&self) -> &Str {
        match self {
            Self::Pod { namespace, .. } => namespace,
            Self::Other(reference) => &reference.namespace,
        }
    }

    /// Returns the name of the object.
    pub fn name(&self) -> &Str {
        match self {
            Self::Pod { name, .. } => name,
            Self::Other(reference) => &reference.name,
        }
    }

    /// Returns the uid of the object.
    pub fn uid(&self) -> &Uid {
        match self {
            Self::Pod { uid, .. } => uid,
            Self::Other(reference) => &reference.uid,
        }
    }

    pub(crate) fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut read = Reference::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                object_reference::KIND => read.kind = interner.str(field.value.str()),
                object_reference::NAMESPACE => read.namespace = interner.str(field.value.str()),
                object_reference::NAME => read.name = field.value.str().into(),
                object_reference::UID => read.uid = Uid::parse(field.value.str()),
                object_reference::API_VERSION => read.api_version = interner.str(field.value.str()),
                object_reference::FIELD_PATH => read.field_path = field.value.str().into(),
                _ => {}
            }
        }
        let plain = &*read.kind == "Pod" && read.api_version.is_empty() && read.field_path.is_empty();
        Ok(if plain {
            Self::Pod { namespace: read.namespace, name: read.name, uid: read.uid }
        } else {
            Self::Other(Box::new(read))
        })
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>, number: u32) {
        let kind = match self {
            Self::Pod { .. } => "Pod",
            Self::Other(reference) => &reference.kind,
        };
        out.put_message(number, |message| {
            message.put_str(object_reference::KIND, kind);
            message.put_str(object_reference::NAMESPACE, self.namespace());
            message.put_str(object_reference::NAME, self.name());
            message.put_str(object_reference::UID, &self.uid().to_string());
            if let Self::Other(reference) = self {
                message.put_str(object_reference::API_VERSION, &reference.api_version);
                message.put_str(object_reference::FIELD_PATH, &reference.field_path);
            }
        });
    }
}
