//! Taints of nodes, and the tolerations of pods.

use std::sync::Arc;

use crate::intern::{Interner, Str};
use crate::value::time::Time;
use crate::wire::schema::{pod_spec, taint, toleration};
use crate::wire::{Put, WireError, copy_fields, fields};

/// The effect that prevents the scheduling of new pods.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// The effect that also evicts running pods.
pub const NO_EXECUTE: &str = "NoExecute";

/// One entry of a node's `spec.taints`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Key of the taint.
    pub key: Str,
    /// Value; often empty.
    pub value: Str,
    /// Effect, such as [`NO_SCHEDULE`].
    pub effect: Str,
    /// Time at which it was added; zero if not recorded.
    pub added: Time,
}

impl Taint {
    /// Reads a `Taint` message.
    ///
    /// # Errors
    /// When it is not well-formed.
    pub fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let empty = interner.str("");
        let mut read = Self { key: empty.clone(), value: empty.clone(), effect: empty, added: Time::default() };
        for field in fields(message) {
            let field = field?;
            match field.number {
                taint::KEY => read.key = interner.str(field.value.str()),
                taint::VALUE => read.value = interner.str(field.value.str()),
                taint::EFFECT => read.effect = interner.str(field.value.str()),
                taint::TIME_ADDED => read.added = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(read)
    }

    /// Returns true if the taint has this key and effect.
    pub fn is(&self, key: &str, effect: &str) -> bool {
        &*self.key == key && &*self.effect == effect
    }
}

/// One entry of a pod's `spec.tolerations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toleration<'a> {
    /// Key; empty matches all keys.
    pub key: &'a str,
    /// Operator; empty means `Equal`.
    pub operator: &'a str,
    /// Value to compare with the taint's.
    pub value: &'a str,
    /// Effect; empty matches all effects.
    pub effect: &'a str,
    /// Seconds for which the taint is tolerated; `None`: forever.
    pub seconds: Option<i64>,
}

impl<'a> Toleration<'a> {
    /// Reads a `Toleration` message.
    ///
    /// # Errors
    /// When it is not well-formed.
    pub fn decode(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self { key: "", operator: "", value: "", effect: "", seconds: None };
        for field in fields(message) {
            let field = field?;
            match field.number {
                toleration::KEY => read.key = field.value.str(),
                toleration::OPERATOR => read.operator = field.value.str(),
                toleration::VALUE => read.value = field.value.str(),
                toleration::EFFECT => read.effect = field.value.str(),
                toleration::TOLERATION_SECONDS => read.seconds = Some(field.value.i64()),
                _ => {}
            }
        }
        Ok(read)
    }

    /// Returns a toleration of all taints of this key and effect, without a time limit.
    pub const fn of(key: &'a str, effect: &'a str) -> Self {
        Self { key, operator: "Exists", value: "", effect, seconds: None }
    }

    /// Appends the toleration as field `number`.
    pub fn put(&self, out: &mut Vec<u8>, number: u32) {
        out.put_message(number, |message| {
            message.put_str(toleration::KEY, self.key);
            message.put_str(toleration::OPERATOR, self.operator);
            message.put_str(toleration::VALUE, self.value);
            message.put_str(toleration::EFFECT, self.effect);
            if let Some(seconds) = self.seconds {
                message.put_int(toleration::TOLERATION_SECONDS, seconds);
            }
        });
    }

    /// Returns true if key, operator, value and effect of both tolerations are equal; their seconds may differ.
    /// Upstream: api/core/v1, Toleration.MatchToleration.
    pub fn same_taints(&self, other: &Toleration<'_>) -> bool {
        (self.key, self.operator, self.value, self.effect) == (other.key, other.operator, other.value, other.effect)
    }

    /// Returns true if the toleration matches a taint. `compares_numbers` enables the operators `Lt` and `Gt`.
    /// Upstream: api/core/v1, Toleration.ToleratesTaint.
    pub fn tolerates(&self, taint: &Taint, compares_numbers: bool) -> bool {
        if !self.effect.is_empty() && self.effect != &*taint.effect || !self.key.is_empty() && self.key != &*taint.key {
            return false;
        }
        match self.operator {
            "" | "Equal" => self.value == &*taint.value,
            "Exists" => true,
            "Lt" | "Gt" if compares_numbers => match (decimal(&taint.value), decimal(self.value)) {
                (Some(taint), Some(limit)) if self.operator == "Lt" => taint < limit,
                (Some(taint), Some(limit)) => taint > limit,
                _ => false,
            },
            _ => false,
        }
    }
}

/// Parses a whole number in its canonical spelling: no plus, no leading zeros, no negative zero.
fn decimal(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}

/// Tolerations of a pod in their encoded form; pods of one template share one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tolerations(Arc<[u8]>);

impl Tolerations {
    /// Returns the tolerations of a pod's spec that can match a taint of this effect.
    ///
    /// # Errors
    /// When the spec is not well-formed.
    pub fn keep(interner: &Interner, spec: &[u8], effect: &str) -> Result<Self, WireError> {
        let mut kept = Vec::new();
        for field in fields(spec) {
            let field = field?;
            if field.number == pod_spec::TOLERATIONS {
                let toleration = Toleration::decode(field.value.bytes())?;
                if toleration.effect.is_empty() || toleration.effect == effect {
                    kept.put_bytes(field.number, field.value.bytes());
                }
            }
        }
        Ok(Self(interner.blob(&kept)))
    }

    /// Returns all tolerations of a pod's spec.
    ///
    /// # Errors
    /// When the spec is not well-formed.
    pub fn all(interner: &Interner, spec: &[u8]) -> Result<Self, WireError> {
        let mut kept = Vec::new();
        copy_fields(spec, &mut kept, |field| field.number == pod_spec::TOLERATIONS)?;
        fields(&kept).try_for_each(|field| Toleration::decode(field?.value.bytes()).map(drop))?;
        Ok(Self(interner.blob(&kept)))
    }

    /// Returns the tolerations, in the pod's order.
    pub fn iter(&self) -> impl Iterator<Item = Toleration<'_>> {
        // The tolerations were decoded before, so they are well-formed.
        fields(&self.0).flatten().filter_map(|field| Toleration::decode(field.value.bytes()).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: value.into(), effect: effect.into(), added: Time::default() }
    }

    #[test]
    fn toleration_matches_taints_as_upstream() {
        for (toleration, tainted, compares_numbers, expected) in [
            (("k", "Exists", "", ""), ("k", "v", "NoExecute"), false, true),
            (("k", "Exists", "", "NoExecute"), ("k", "v", "NoExecute"), false, true),
            (("k", "Exists", "", "NoSchedule"), ("k", "v", "NoExecute"), false, false),
            (("", "Exists", "", ""), ("any", "v", "NoExecute"), false, true),
            (("k", "", "v", ""), ("k", "v", "NoExecute"), false, true),
            (("k", "Equal", "v", ""), ("k", "w", "NoExecute"), false, false),
            (("k", "Equal", "v", ""), ("l", "v", "NoExecute"), false, false),
            (("k", "In", "v", ""), ("k", "v", "NoExecute"), false, false),
            (("k", "Lt", "10", ""), ("k", "9", "NoExecute"), true, true),
            (("k", "Lt", "10", ""), ("k", "9", "NoExecute"), false, false),
            (("k", "Lt", "10", ""), ("k", "10", "NoExecute"), true, false),
            (("k", "Gt", "10", ""), ("k", "11", "NoExecute"), true, true),
            (("k", "Gt", "-10", ""), ("k", "-9", "NoExecute"), true, true),
            (("k", "Gt", "010", ""), ("k", "11", "NoExecute"), true, false),
            (("k", "Gt", "1", ""), ("k", "+2", "NoExecute"), true, false),
            (("k", "Gt", "x", ""), ("k", "2", "NoExecute"), true, false),
        ] {
            let (key, operator, value, effect) = toleration;
            let read = Toleration { key, operator, value, effect, seconds: None };
            let (key, value, effect) = tainted;
            assert_eq!(
                read.tolerates(&taint(key, value, effect), compares_numbers),
                expected,
                "{toleration:?} {tainted:?}"
            );
        }
    }

    #[test]
    fn only_relevant_tolerations_are_kept() {
        let mut spec = Vec::new();
        for (key, effect, seconds) in [("a", "NoExecute", Some(5)), ("b", "NoSchedule", None), ("c", "", Some(-1))] {
            spec.put_message(pod_spec::TOLERATIONS, |message| {
                message.put_str(toleration::KEY, key);
                message.put_str(toleration::EFFECT, effect);
                if let Some(seconds) = seconds {
                    message.put_int(toleration::TOLERATION_SECONDS, seconds);
                }
            });
        }
        let interner = Interner::default();
        let kept = Tolerations::keep(&interner, &spec, NO_EXECUTE).expect("well-formed");
        let read: Vec<_> = kept.iter().map(|toleration| (toleration.key, toleration.seconds)).collect();
        assert_eq!(read, [("a", Some(5)), ("c", Some(-1))]);
        let again = Tolerations::keep(&interner, &spec, NO_EXECUTE).expect("well-formed");
        assert!(Arc::ptr_eq(&kept.0, &again.0));
    }

    #[test]
    fn toleration_round_trips() {
        for seconds in [None, Some(0), Some(300)] {
            let written = Toleration { key: "k", operator: "Equal", value: "v", effect: NO_EXECUTE, seconds };
            let mut spec = Vec::new();
            written.put(&mut spec, pod_spec::TOLERATIONS);
            Toleration::of("other", NO_SCHEDULE).put(&mut spec, pod_spec::TOLERATIONS);
            let all = Tolerations::all(&Interner::default(), &spec).expect("well-formed");
            assert_eq!(all.iter().collect::<Vec<_>>(), [written, Toleration::of("other", NO_SCHEDULE)]);
            assert!(written.same_taints(&Toleration { seconds: None, ..written }));
            assert!(!written.same_taints(&Toleration { value: "w", ..written }));
        }
    }
}
