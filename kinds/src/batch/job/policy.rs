//! A Job's policies for failures and success.

use crate::intern::{Interner, Str};
use crate::wire::schema::{
    on_exit_codes, on_pod_conditions, pod_failure_policy, pod_failure_policy_rule as rule, success_policy,
    success_policy_rule,
};
use crate::wire::{Value, WireError, fields};

/// The action of a rule for a failed pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The whole Job fails.
    FailJob,
    /// The pod's index fails.
    FailIndex,
    /// The failure is not counted.
    Ignore,
    /// The failure is counted as usual.
    Count,
    /// An action of a later version, or none: the rule is skipped.
    Unknown,
}

/// The exit codes that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExitCodes {
    /// The container; `None`: any.
    pub container: Option<Str>,
    /// True for `In`, false for `NotIn`, `None` for anything else.
    pub within: Option<bool>,
    /// The codes.
    pub values: Vec<i32>,
}

/// The condition of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleCondition {
    /// Exit codes of containers.
    ExitCodes(ExitCodes),
    /// Conditions of the pod, by type and status; one is enough.
    Conditions(Vec<(Str, Str)>),
}

/// A rule of a failure policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureRule {
    /// The action.
    pub action: Action,
    /// The condition.
    pub on: RuleCondition,
}

/// `spec.podFailurePolicy`: the first rule that matches a pod decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailurePolicy {
    /// Its rules.
    pub rules: Vec<FailureRule>,
}

/// A rule of a success policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SuccessRule {
    /// The indexes that the rule considers, such as `1,3-5`. `None`: all.
    pub indexes: Option<Box<str>>,
    /// Number of these indexes that must have succeeded. `None`: all.
    pub count: Option<i32>,
}

impl FailurePolicy {
    pub(super) fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut rules = Vec::new();
        for field in fields(message) {
            let field = field?;
            if field.number == pod_failure_policy::RULES {
                rules.push(failure_rule(interner, field.value.bytes())?);
            }
        }
        Ok(Self { rules })
    }
}

fn failure_rule(interner: &Interner, message: &[u8]) -> Result<FailureRule, WireError> {
    let mut action = Action::Unknown;
    let mut codes = None;
    let mut conditions = Vec::new();
    for field in fields(message) {
        let field = field?;
        match field.number {
            rule::ACTION => {
                action = match field.value.str() {
                    "FailJob" => Action::FailJob,
                    "FailIndex" => Action::FailIndex,
                    "Ignore" => Action::Ignore,
                    "Count" => Action::Count,
                    _ => Action::Unknown,
                }
            }
            rule::ON_EXIT_CODES => codes = Some(exit_codes(interner, field.value.bytes())?),
            rule::ON_POD_CONDITIONS => {
                let (mut kind, mut status) = (interner.str(""), interner.str(""));
                for field in fields(field.value.bytes()) {
                    let field = field?;
                    match field.number {
                        on_pod_conditions::TYPE => kind = interner.str(field.value.str()),
                        on_pod_conditions::STATUS => status = interner.str(field.value.str()),
                        _ => {}
                    }
                }
                conditions.push((kind, status));
            }
            _ => {}
        }
    }
    Ok(FailureRule { action, on: codes.map_or(RuleCondition::Conditions(conditions), RuleCondition::ExitCodes) })
}

fn exit_codes(interner: &Interner, message: &[u8]) -> Result<ExitCodes, WireError> {
    let mut codes = ExitCodes::default();
    for field in fields(message) {
        let field = field?;
        match field.number {
            on_exit_codes::CONTAINER_NAME => codes.container = Some(interner.str(field.value.str())),
            on_exit_codes::OPERATOR => {
                codes.within = match field.value.str() {
                    "In" => Some(true),
                    "NotIn" => Some(false),
                    _ => None,
                }
            }
            // Repeated numbers may also be packed into one field.
            on_exit_codes::VALUES => match field.value {
                Value::Bytes(packed) => codes.values.extend(unpacked(packed)),
                value => codes.values.push(value.i32()),
            },
            _ => {}
        }
    }
    Ok(codes)
}

/// Decodes a packed list of varints; a truncated last one is omitted.
fn unpacked(bytes: &[u8]) -> Vec<i32> {
    let mut values = Vec::new();
    let mut value = 0u64;
    let mut shift = 0;
    for byte in bytes {
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if byte & 0x80 == 0 {
            values.push(value as i32);
            (value, shift) = (0, 0);
        }
    }
    values
}

/// Decodes the rules of a `SuccessPolicy` message.
pub(super) fn success_rules(message: &[u8]) -> Result<Vec<SuccessRule>, WireError> {
    let mut rules = Vec::new();
    for field in fields(message) {
        let field = field?;
        if field.number == success_policy::RULES {
            let mut rule = SuccessRule::default();
            for field in fields(field.value.bytes()) {
                let field = field?;
                match field.number {
                    success_policy_rule::SUCCEEDED_INDEXES => rule.indexes = Some(field.value.str().into()),
                    success_policy_rule::SUCCEEDED_COUNT => rule.count = Some(field.value.i32()),
                    _ => {}
                }
            }
            rules.push(rule);
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    #[test]
    fn rules_are_decoded() {
        let mut message = Vec::new();
        message.put_message(pod_failure_policy::RULES, |message| {
            message.put_str(rule::ACTION, "FailJob");
            message.put_message(rule::ON_EXIT_CODES, |codes| {
                codes.put_str(on_exit_codes::CONTAINER_NAME, "main");
                codes.put_str(on_exit_codes::OPERATOR, "In");
                codes.put_int(on_exit_codes::VALUES, 42);
                codes.put_bytes(on_exit_codes::VALUES, &[1, 0xac, 0x02]);
            });
        });
        message.put_message(pod_failure_policy::RULES, |message| {
            message.put_str(rule::ACTION, "Ignore");
            message.put_message(rule::ON_POD_CONDITIONS, |condition| {
                condition.put_str(on_pod_conditions::TYPE, "DisruptionTarget");
                condition.put_str(on_pod_conditions::STATUS, "True");
            });
        });
        let policy = FailurePolicy::decode(&Interner::default(), &message).expect("well-formed");
        let codes = ExitCodes { container: Some("main".into()), within: Some(true), values: vec![42, 1, 300] };
        let conditions = vec![("DisruptionTarget".into(), "True".into())];
        assert_eq!(
            policy.rules,
            [
                FailureRule { action: Action::FailJob, on: RuleCondition::ExitCodes(codes) },
                FailureRule { action: Action::Ignore, on: RuleCondition::Conditions(conditions) },
            ]
        );
    }
}
