//! DeviceTaintRule: a taint that an administrator adds to devices, and the progress of the eviction that it causes.

use crate::decode::{Decode, DecodeError};
use crate::intern::{Interner, Str};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::scheduling::taint::Taint;
use crate::value::time::Time;
use crate::wire::schema::{
    condition, device_taint_rule as object, device_taint_rule_spec as spec, device_taint_rule_status as status,
    device_taint_selector as selector,
};
use crate::wire::{WireError, fields, find};

/// The condition that reports the progress of eviction.
pub const EVICTION_IN_PROGRESS: &str = "EvictionInProgress";

/// A DeviceTaintRule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTaintRule {
    /// Metadata.
    pub meta: Meta,
    /// Selector of devices; `None`: no device.
    pub selector: Option<DeviceSelector>,
    /// The taint of the selected devices.
    pub taint: Taint,
    /// The condition [`EVICTION_IN_PROGRESS`], if it is set.
    pub progress: Option<Progress>,
}

/// A selector of devices; unset fields match all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSelector {
    /// Name of the driver.
    pub driver: Option<Str>,
    /// Name of the pool.
    pub pool: Option<Str>,
    /// Name of the device.
    pub device: Option<Str>,
}

/// The progress of eviction, as reported by a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// `True` while eviction is in progress, otherwise `False`.
    pub status: Str,
    /// The reason.
    pub reason: Str,
    /// The human-readable message.
    pub message: Box<str>,
    /// The generation of the rule that it refers to.
    pub generation: i64,
    /// Time of the last transition.
    pub since: Time,
}

impl DeviceTaintRule {
    /// Returns true if the rule selects the device. Upstream: pkg/controller/devicetainteviction, ruleMatchesDevice.
    pub fn selects(&self, driver: &str, pool: &str, device: &str) -> bool {
        let matches = |wanted: &Option<Str>, name: &str| wanted.as_ref().is_none_or(|wanted| **wanted == *name);
        self.selector.as_ref().is_some_and(|selector| {
            matches(&selector.driver, driver) && matches(&selector.pool, pool) && matches(&selector.device, device)
        })
    }
}

impl DeviceSelector {
    fn read(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                selector::DRIVER => read.driver = Some(interner.str(field.value.str())),
                selector::POOL => read.pool = Some(interner.str(field.value.str())),
                selector::DEVICE => read.device = Some(interner.str(field.value.str())),
                _ => {}
            }
        }
        Ok(read)
    }
}

impl Progress {
    fn read(interner: &Interner, message: &[u8]) -> Result<Option<Self>, WireError> {
        let empty = interner.str("");
        let mut is_found = false;
        let mut read = Self {
            status: empty.clone(),
            reason: empty,
            message: Box::default(),
            generation: 0,
            since: Time::default(),
        };
        for field in fields(message) {
            let field = field?;
            match field.number {
                condition::TYPE => is_found = field.value.str() == EVICTION_IN_PROGRESS,
                condition::STATUS => read.status = interner.str(field.value.str()),
                condition::REASON => read.reason = interner.str(field.value.str()),
                condition::MESSAGE => read.message = field.value.str().into(),
                condition::OBSERVED_GENERATION => read.generation = field.value.i64(),
                condition::LAST_TRANSITION_TIME => read.since = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(is_found.then_some(read))
    }
}

impl Kind for DeviceTaintRule {
    const RESOURCE: Resource = Resource {
        group: "resource.k8s.io",
        version: "v1",
        kind: "DeviceTaintRule",
        plural: "devicetaintrules",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let mut selector = None;
        let mut taint = &[][..];
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            match field.number {
                spec::DEVICE_SELECTOR => selector = Some(DeviceSelector::read(interner, field.value.bytes())?),
                spec::TAINT => taint = field.value.bytes(),
                _ => {}
            }
        }
        let mut progress = None;
        for field in fields(find(object, object::STATUS)) {
            let field = field?;
            if field.number == status::CONDITIONS {
                progress = Progress::read(interner, field.value.bytes())?.or(progress);
            }
        }
        Ok(Self {
            meta: Meta::decode(interner, find(object, object::METADATA), |_, _| {})?,
            selector,
            // Taints of devices have the same encoding as those of nodes.
            taint: Taint::decode(interner, taint)?,
            progress,
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::Sections;
    use crate::wire::Put;
    use crate::wire::schema::{device_taint, object_meta};

    #[test]
    fn rule_matches_devices_of_its_selector() {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let rule = |fields: Option<&[(u32, &str)]>| {
            let mut object = Vec::new();
            object.put_message(object::METADATA, |meta| {
                meta.put_str(object_meta::NAME, "rule");
                meta.put_str(object_meta::RESOURCE_VERSION, "1");
            });
            object.put_message(object::SPEC, |spec| {
                if let Some(fields) = fields {
                    spec.put_message(spec::DEVICE_SELECTOR, |message| {
                        fields.iter().for_each(|(number, text)| message.put_str(*number, text));
                    });
                }
                spec.put_message(spec::TAINT, |message| message.put_str(device_taint::EFFECT, "NoExecute"));
            });
            DeviceTaintRule::decode(&context, &object).expect("well-formed")
        };
        for (fields, expected) in [
            (None, [false, false]),
            (Some(&[][..]), [true, true]),
            (Some(&[(selector::DRIVER, "d")]), [true, true]),
            (Some(&[(selector::DRIVER, "e")]), [false, false]),
            (Some(&[(selector::POOL, "p"), (selector::DEVICE, "a")]), [true, false]),
        ] {
            let rule = rule(fields);
            assert_eq!([rule.selects("d", "p", "a"), rule.selects("d", "p", "b")], expected, "{fields:?}");
            assert_eq!((&*rule.taint.effect, rule.progress), ("NoExecute", None));
        }
    }
}
