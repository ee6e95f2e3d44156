//! Conditions of statuses, and the replacement of some fields of a status.

use crate::intern::{Interner, Str};
use crate::value::time::Time;
use crate::wire::{self, Put, WireError, fields};

/// One condition of a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Type, such as `Available`.
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    pub status: Str,
    /// Machine-readable reason.
    pub reason: Str,
    /// Human-readable message.
    pub message: Box<str>,
    /// `lastUpdateTime`: the last change of the condition, or the last progress of a rollout. For a Job,
    /// `lastProbeTime`. Zero for kinds with neither field.
    pub last_update: Time,
    /// Time of the last change of the status.
    pub last_transition: Time,
}

/// Field numbers of a kind's condition message.
#[derive(Debug, Clone, Copy)]
pub struct ConditionFields {
    /// `type`
    pub kind: u32,
    /// `status`
    pub status: u32,
    /// `reason`
    pub reason: u32,
    /// `message`
    pub message: u32,
    /// `lastUpdateTime`, or `lastProbeTime` of a Job; `None` for kinds with neither field.
    pub last_update: Option<u32>,
    /// `lastTransitionTime`
    pub last_transition: u32,
}

impl Condition {
    /// Reads a condition message.
    ///
    /// # Errors
    /// When `message` is not well-formed.
    pub fn decode(interner: &Interner, numbers: &ConditionFields, message: &[u8]) -> Result<Self, WireError> {
        let empty = interner.str("");
        let mut condition = Self {
            kind: empty.clone(),
            status: empty.clone(),
            reason: empty,
            message: Box::default(),
            last_update: Time::default(),
            last_transition: Time::default(),
        };
        for field in fields(message) {
            let field = field?;
            match field.number {
                n if n == numbers.kind => condition.kind = interner.str(field.value.str()),
                n if n == numbers.status => condition.status = interner.str(field.value.str()),
                n if n == numbers.reason => condition.reason = interner.str(field.value.str()),
                n if n == numbers.message => condition.message = field.value.str().into(),
                n if n == numbers.last_transition => condition.last_transition = Time::decode(field.value.bytes())?,
                n if Some(n) == numbers.last_update => condition.last_update = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(condition)
    }

    /// Appends the condition as field `number`.
    pub fn put(&self, out: &mut Vec<u8>, number: u32, numbers: &ConditionFields) {
        out.put_message(number, |message| {
            message.put_str(numbers.kind, &self.kind);
            message.put_str(numbers.status, &self.status);
            message.put_str(numbers.reason, &self.reason);
            message.put_str(numbers.message, &self.message);
            self.last_transition.put(message, numbers.last_transition);
            if let Some(number) = numbers.last_update {
                self.last_update.put(message, number);
            }
        });
    }
}

/// Returns a copy of the status `old` without the fields `ours`, and with the fields that `put` appends.
pub fn splice(old: &[u8], ours: &[u32], put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut status = Vec::with_capacity(old.len() + 128);
    // The status was decoded before, so it is well-formed.
    let copied = wire::copy_fields(old, &mut status, |field| !ours.contains(&field.number));
    debug_assert!(copied.is_ok());
    put(&mut status);
    status
}
