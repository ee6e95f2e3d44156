//! ResourceQuota: limits, scopes and use of a namespace.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError};
use crate::intern::{Interner, Str};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::value::resource_list::named_text;
use crate::wire::schema::{
    quantity, resource_quota as object, resource_quota_spec as spec, resource_quota_status as status, scope_selector,
    scoped_resource_selector_requirement as requirement,
};
use crate::wire::splice::edited;
use crate::wire::{self, Put, WireError, fields, find};

/// Names of resources and quantities as text, sorted by name.
pub type Quantities = Vec<(Str, Str)>;

/// One condition on the objects that a quota counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// `Terminating`, `BestEffort`, `PriorityClass`, ...
    pub name: Str,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`
    pub operator: Str,
    /// Values of the operator.
    pub values: Box<[Str]>,
}

/// A ResourceQuota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceQuota {
    /// Metadata.
    pub meta: Meta,
    /// The limits in the spec.
    pub hard: Quantities,
    /// Scopes, all of which must match. An entry of `spec.scopes` has the operator `Exists`.
    pub scopes: Vec<Scope>,
    /// The limits in the status, which admission enforces.
    pub status_hard: Quantities,
    /// Use in the status.
    pub status_used: Quantities,
    /// Metadata without managed fields, and status, for a PUT of the status.
    raw: Arc<[u8]>,
}

fn quantity(interner: &Interner, entry: &[u8]) -> Result<(Str, Str), WireError> {
    let (name, text) = named_text(entry)?;
    Ok((interner.str(name), interner.str(text)))
}

fn scope(interner: &Interner, message: &[u8]) -> Result<Scope, WireError> {
    let mut name = "";
    let mut operator = "";
    let mut values = Vec::new();
    for field in fields(message) {
        let field = field?;
        match field.number {
            requirement::SCOPE_NAME => name = field.value.str(),
            requirement::OPERATOR => operator = field.value.str(),
            requirement::VALUES => values.push(interner.str(field.value.str())),
            _ => {}
        }
    }
    Ok(Scope { name: interner.str(name), operator: interner.str(operator), values: values.into() })
}

fn put_quantities(out: &mut Vec<u8>, number: u32, quantities: &Quantities) {
    for (name, text) in quantities {
        out.put_message(number, |entry| {
            entry.put_str(1, name);
            entry.put_message(2, |message| message.put_str(quantity::STRING, text));
        });
    }
}

impl ResourceQuota {
    /// Returns the object for a PUT of a status with the limits of the spec and this use.
    pub fn status_update(&self, used: &Quantities) -> Vec<u8> {
        let mut status = Vec::new();
        // The object was decoded before, so it is well-formed.
        let copied = wire::copy_fields(find(&self.raw, object::STATUS), &mut status, |field| {
            !matches!(field.number, status::HARD | status::USED)
        });
        debug_assert!(copied.is_ok());
        put_quantities(&mut status, status::HARD, &self.hard);
        put_quantities(&mut status, status::USED, used);
        let keep = |field: &wire::Field<'_>| field.number != object::STATUS;
        edited(&self.raw, &[], keep, |object| object.put_bytes(object::STATUS, &status)).unwrap_or_default()
    }
}

impl Kind for ResourceQuota {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "ResourceQuota", plural: "resourcequotas", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let mut quota = Self {
            meta: Meta::decode(interner, find(object, object::METADATA), |_, _| {})?,
            hard: Vec::new(),
            scopes: Vec::new(),
            status_hard: Vec::new(),
            status_used: Vec::new(),
            raw: edited(object, &[], |field| field.number == object::STATUS, |_| {})?.into(),
        };
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            match field.number {
                spec::HARD => quota.hard.push(quantity(interner, field.value.bytes())?),
                spec::SCOPES => quota.scopes.push(Scope {
                    name: interner.str(field.value.str()),
                    operator: interner.str("Exists"),
                    values: Box::default(),
                }),
                spec::SCOPE_SELECTOR => {
                    for field in fields(field.value.bytes()) {
                        let field = field?;
                        if field.number == scope_selector::MATCH_EXPRESSIONS {
                            quota.scopes.push(scope(interner, field.value.bytes())?);
                        }
                    }
                }
                _ => {}
            }
        }
        for field in fields(find(object, object::STATUS)) {
            let field = field?;
            match field.number {
                status::HARD => quota.status_hard.push(quantity(interner, field.value.bytes())?),
                status::USED => quota.status_used.push(quantity(interner, field.value.bytes())?),
                _ => {}
            }
        }
        for list in [&mut quota.hard, &mut quota.status_hard, &mut quota.status_used] {
            list.sort_unstable();
        }
        Ok(quota)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Sections;
    use crate::wire::schema::object_meta;

    fn decode(object: &[u8]) -> ResourceQuota {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        ResourceQuota::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn status_update_has_the_limits_of_the_spec() {
        let pair = |name: &str, text: &str| (Str::from(name), Str::from(text));
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "few");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::SPEC, |spec| {
            put_quantities(spec, spec::HARD, &vec![pair("pods", "3"), pair("cpu", "2")]);
            spec.put_str(spec::SCOPES, "BestEffort");
            spec.put_message(spec::SCOPE_SELECTOR, |selector| {
                selector.put_message(scope_selector::MATCH_EXPRESSIONS, |message| {
                    message.put_str(requirement::SCOPE_NAME, "PriorityClass");
                    message.put_str(requirement::OPERATOR, "In");
                    message.put_str(requirement::VALUES, "high");
                });
            });
        });
        object.put_message(object::STATUS, |status| {
            put_quantities(status, status::HARD, &vec![pair("pods", "1")]);
            status.put_str(99, "unknown");
        });
        let quota = decode(&object);
        assert_eq!(quota.hard, [pair("cpu", "2"), pair("pods", "3")]);
        let scopes: Vec<_> = quota.scopes.iter().map(|scope| (&*scope.name, &*scope.operator)).collect();
        assert_eq!(scopes, [("BestEffort", "Exists"), ("PriorityClass", "In")]);

        let written = quota.status_update(&vec![pair("pods", "2")]);
        let read = decode(&written);
        assert_eq!((read.status_hard, read.status_used), (quota.hard, vec![pair("pods", "2")]));
        assert_eq!(find(find(&written, object::STATUS), 99), b"unknown");
    }
}
