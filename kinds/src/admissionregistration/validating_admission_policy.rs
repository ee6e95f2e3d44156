//! ValidatingAdmissionPolicy: expressions that objects must satisfy.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::wire::schema::{
    match_resources, named_rule, param_kind, policy_spec as spec, policy_status as status, policy_variable, rule,
    rule_with_operations, validation,
};
use crate::wire::{WireError, fields, find};

/// A ValidatingAdmissionPolicy, without its expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatingAdmissionPolicy {
    /// Metadata.
    pub meta: Meta,
    /// `status.observedGeneration`.
    pub observed_generation: i64,
}

/// The parts of a policy's spec that type checking reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicySpec {
    /// `spec.paramKind`.
    pub param_kind: Option<ParamKind>,
    /// `spec.matchConstraints.resourceRules`.
    pub rules: Vec<ResourceRule>,
    /// `spec.validations`.
    pub validations: Vec<Validation>,
    /// `spec.variables`.
    pub variables: Vec<Variable>,
}

/// The kind of a policy's parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParamKind {
    /// The group and version.
    pub api_version: String,
    /// The kind.
    pub kind: String,
}

/// A rule that selects resources to which a policy applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceRule {
    /// API groups; `*` for all.
    pub groups: Vec<String>,
    /// Versions; `*` for all.
    pub versions: Vec<String>,
    /// Resources, and subresources such as `pods/log`; `*` for all resources without their subresources, `*/*` for
    /// both.
    pub resources: Vec<String>,
}

/// A validation of a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validation {
    /// The expression.
    pub expression: String,
    /// The expression of the message; empty if there is none.
    pub message_expression: String,
}

/// A named expression.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variable {
    /// The name.
    pub name: String,
    /// The expression.
    pub expression: String,
}

impl PolicySpec {
    /// Decodes the spec of a whole policy (the content of the envelope).
    ///
    /// # Errors
    /// When the object is not well-formed.
    pub fn decode(object: &[u8]) -> Result<Self, WireError> {
        let mut spec = Self::default();
        for field in fields(Parts::read(object)?.spec) {
            let field = field?;
            let bytes = field.value.bytes();
            match field.number {
                spec::PARAM_KIND => {
                    let (api_version, kind) = (text(bytes, param_kind::API_VERSION), text(bytes, param_kind::KIND));
                    spec.param_kind = Some(ParamKind { api_version, kind });
                }
                spec::MATCH_CONSTRAINTS => spec.rules = rules(bytes)?,
                spec::VALIDATIONS => spec.validations.push(Validation {
                    expression: text(bytes, validation::EXPRESSION),
                    message_expression: text(bytes, validation::MESSAGE_EXPRESSION),
                }),
                spec::VARIABLES => {
                    let (name, expression) =
                        (text(bytes, policy_variable::NAME), text(bytes, policy_variable::EXPRESSION));
                    spec.variables.push(Variable { name, expression });
                }
                _ => {}
            }
        }
        Ok(spec)
    }
}

fn rules(constraints: &[u8]) -> Result<Vec<ResourceRule>, WireError> {
    let mut rules = Vec::new();
    for field in fields(constraints) {
        let field = field?;
        if field.number == match_resources::RESOURCE_RULES {
            let named = find(field.value.bytes(), named_rule::RULE_WITH_OPERATIONS);
            rules.push(rule(find(named, rule_with_operations::RULE))?);
        }
    }
    Ok(rules)
}

fn rule(message: &[u8]) -> Result<ResourceRule, WireError> {
    let mut rule = ResourceRule::default();
    for field in fields(message) {
        let field = field?;
        match field.number {
            rule::API_GROUPS => rule.groups.push(field.value.str().to_owned()),
            rule::API_VERSIONS => rule.versions.push(field.value.str().to_owned()),
            rule::RESOURCES => rule.resources.push(field.value.str().to_owned()),
            _ => {}
        }
    }
    Ok(rule)
}

fn text(message: &[u8], number: u32) -> String {
    String::from_utf8_lossy(find(message, number)).into_owned()
}

impl Kind for ValidatingAdmissionPolicy {
    const RESOURCE: Resource = Resource {
        group: "admissionregistration.k8s.io",
        version: "v1",
        kind: "ValidatingAdmissionPolicy",
        plural: "validatingadmissionpolicies",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, status, .. } = Parts::read(object)?;
        let mut observed_generation = 0;
        for field in fields(status) {
            let field = field?;
            if field.number == status::OBSERVED_GENERATION {
                observed_generation = field.value.i64();
            }
        }
        Ok(Self { meta: Meta::decode(&context.interner, meta, |_, _| {})?, observed_generation })
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
    use crate::wire::schema::object_meta;

    fn policy() -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, "limits");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_int(object_meta::GENERATION, 3);
        });
        object.put_message(2, |spec| {
            spec.put_message(spec::PARAM_KIND, |kind| {
                kind.put_str(param_kind::API_VERSION, "v1");
                kind.put_str(param_kind::KIND, "ConfigMap");
            });
            spec.put_message(spec::MATCH_CONSTRAINTS, |constraints| {
                constraints.put_message(match_resources::RESOURCE_RULES, |named| {
                    named.put_message(named_rule::RULE_WITH_OPERATIONS, |rule| {
                        rule.put_message(rule_with_operations::RULE, |rule| {
                            rule.put_str(rule::API_GROUPS, "apps");
                            rule.put_str(rule::API_VERSIONS, "v1");
                            rule.put_str(rule::RESOURCES, "deployments");
                            rule.put_str(rule::RESOURCES, "statefulsets");
                        });
                    });
                });
            });
            spec.put_message(spec::VALIDATIONS, |validation| {
                validation.put_str(validation::EXPRESSION, "object.spec.replicas > 1");
                validation.put_str(validation::MESSAGE_EXPRESSION, "'too few'");
            });
            spec.put_message(spec::VARIABLES, |variable| {
                variable.put_str(policy_variable::NAME, "replicas");
                variable.put_str(policy_variable::EXPRESSION, "object.spec.replicas");
            });
        });
        object.put_message(3, |status| status.put_int(status::OBSERVED_GENERATION, 2));
        object
    }

    #[test]
    fn policy_has_its_generations_and_its_expressions() {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let read = ValidatingAdmissionPolicy::decode(&context, &policy()).expect("well-formed");
        assert_eq!((read.meta.generation, read.observed_generation), (3, 2));
        let spec = PolicySpec::decode(&policy()).expect("well-formed");
        assert_eq!(spec.param_kind, Some(ParamKind { api_version: "v1".to_owned(), kind: "ConfigMap".to_owned() }));
        assert_eq!(spec.rules.len(), 1);
        assert_eq!(spec.rules[0].resources, ["deployments", "statefulsets"]);
        assert_eq!(spec.validations[0].message_expression, "'too few'");
        assert_eq!(spec.variables[0].name, "replicas");
    }
}
