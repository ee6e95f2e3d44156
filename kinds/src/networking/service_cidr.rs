//! ServiceCIDR: address ranges of Services.

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::value::condition::{Condition, ConditionFields};
use crate::wire::fields;
use crate::wire::schema::{condition, service_cidr_spec as spec, service_cidr_status as status};

const CONDITION: ConditionFields = ConditionFields {
    kind: condition::TYPE,
    status: condition::STATUS,
    reason: condition::REASON,
    message: condition::MESSAGE,
    last_update: None,
    last_transition: condition::LAST_TRANSITION_TIME,
};

/// A ServiceCIDR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Metadata.
    pub meta: Meta,
    /// `spec.cidrs`, as written: at most one per family.
    pub cidrs: Box<[Str]>,
    /// The status's conditions.
    pub conditions: Box<[Condition]>,
}

impl Kind for ServiceCidr {
    const RESOURCE: Resource = Resource {
        group: "networking.k8s.io",
        version: "v1",
        kind: "ServiceCIDR",
        plural: "servicecidrs",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let strings = &context.interner;
        let Parts { meta, spec, status } = Parts::read(object)?;
        let (mut cidrs, mut conditions) = (Vec::new(), Vec::new());
        for field in fields(spec) {
            let field = field?;
            if field.number == spec::CIDRS {
                cidrs.push(strings.str(field.value.str()));
            }
        }
        for field in fields(status) {
            let field = field?;
            if field.number == status::CONDITIONS {
                conditions.push(Condition::decode(strings, &CONDITION, field.value.bytes())?);
            }
        }
        Ok(Self { meta: Meta::decode(strings, meta, |_, _| {})?, cidrs: cidrs.into(), conditions: conditions.into() })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
