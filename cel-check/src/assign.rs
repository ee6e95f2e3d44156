//! Assignability of types, and the inference of type variables.

use std::collections::HashMap;

use crate::types::{Constructor, Simple, Type};

/// Maximum number of types that are visited in the check of one expression.
const MAX_STEPS: u32 = 2_000_000;

/// The type variables of one expression, with the types inferred for them.
#[derive(Debug, Default)]
pub struct Substitutions {
    values: HashMap<u32, Type>,
    /// Each change with the previous value, so that a failed attempt can be undone.
    trail: Vec<(u32, Option<Type>)>,
    variables: u32,
    steps: u32,
}

impl Substitutions {
    /// Creates a type variable without a value.
    pub fn fresh(&mut self) -> Type {
        self.variables += 1;
        Type::Param(self.variables - 1)
    }

    /// Returns true if the check has exceeded its limit of steps. All results are invalid in this case.
    pub fn is_exhausted(&self) -> bool {
        self.steps > MAX_STEPS
    }

    fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        !self.is_exhausted()
    }

    /// Returns true if two types agree: a value of one may be used as the other. If so, records the inferred types of
    /// variables. The order of the arguments matters only between two variables, because one of them gets a value. Each
    /// caller uses cel-go's order.
    pub fn is_assignable(&mut self, a: &Type, b: &Type) -> bool {
        self.are_assignable(std::slice::from_ref(a), std::slice::from_ref(b))
    }

    /// Like `is_assignable`, for lists of types: all pairs must be assignable.
    pub fn are_assignable(&mut self, a: &[Type], b: &[Type]) -> bool {
        self.trail.clear();
        let holds = self.all_agree(a, b);
        if !holds {
            while let Some((variable, before)) = self.trail.pop() {
                match before {
                    Some(value) => self.values.insert(variable, value),
                    None => self.values.remove(&variable),
                };
            }
        }
        holds
    }

    fn all_agree(&mut self, a: &[Type], b: &[Type]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.agree(a, b))
    }

    /// Like `is_assignable`, for one pair. If the result is false, types of variables may have been recorded, which the
    /// caller undoes.
    fn agree(&mut self, a: &Type, b: &Type) -> bool {
        if !self.step() {
            return false;
        }
        if let Type::Param(variable) = b {
            match self.try_assign(a, *variable, b) {
                Assignment::Yes => return true,
                Assignment::Refused => return false,
                Assignment::Circular => {}
            }
        }
        if let Type::Param(variable) = a {
            return matches!(self.try_assign(b, *variable, a), Assignment::Yes);
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Simple(Simple::Null), other) | (other, Type::Simple(Simple::Null)) => other.is_nullable(),
            (Type::Simple(Simple::Type), other) | (other, Type::Simple(Simple::Type)) => is_type(other),
            (Type::Simple(a), Type::Simple(b)) => a == b,
            (Type::Object(a), Type::Object(b)) => a.is_same(b),
            (Type::Composite(Constructor::Type, _), other) => is_type(other),
            (Type::Composite(one, _), Type::Composite(other, _)) => {
                one == other && self.all_agree(a.parts(), b.parts())
            }
            _ => false,
        }
    }

    /// Assigns the type `candidate` to a variable, if possible. `variable_type` is the variable as a type. If the
    /// variable already has a type, the more general one is kept.
    fn try_assign(&mut self, candidate: &Type, variable: u32, variable_type: &Type) -> Assignment {
        if candidate.is_exact(variable_type) {
            return Assignment::Yes;
        }
        let Some(value) = self.values.get(&variable).cloned() else {
            if self.contains(candidate, variable) {
                return Assignment::Circular;
            }
            self.set(variable, candidate.clone());
            return Assignment::Yes;
        };
        if candidate.is_exact(&value) {
            return Assignment::Yes;
        }
        if !self.agree(candidate, &value) {
            return Assignment::Refused;
        }
        let general = most_general(candidate, &value);
        if !self.contains(general, variable) {
            self.set(variable, general.clone());
        }
        Assignment::Yes
    }

    fn set(&mut self, variable: u32, value: Type) {
        let before = self.values.insert(variable, value);
        self.trail.push((variable, before));
    }

    /// Returns true if a type contains a variable, directly or through the values of other variables.
    fn contains(&mut self, within: &Type, variable: u32) -> bool {
        if !self.step() {
            return true;
        }
        match within {
            Type::Param(number) if *number == variable => true,
            Type::Param(number) => match self.values.get(number).cloned() {
                Some(value) => self.contains(&value, variable),
                None => false,
            },
            _ => within.parts().iter().any(|part| self.contains(part, variable)),
        }
    }

    /// Replaces variables by their values. Variables without a value stay.
    pub fn resolve(&mut self, given: &Type) -> Type {
        self.replace(given, false)
    }

    /// Replaces variables by their values, and those without a value by dyn.
    pub fn resolve_fully(&mut self, given: &Type) -> Type {
        self.replace(given, true)
    }

    fn replace(&mut self, given: &Type, is_final: bool) -> Type {
        if !self.step() {
            return Type::DYN;
        }
        match given {
            Type::Param(variable) => match self.values.get(variable).cloned() {
                Some(value) => self.replace(&value, is_final),
                None if is_final => Type::DYN,
                None => given.clone(),
            },
            Type::Composite(constructor, _) => {
                let parts = given.parts().iter().map(|part| self.replace(part, is_final)).collect();
                Type::composite(*constructor, parts)
            }
            _ => given.clone(),
        }
    }
}

/// The result of assigning a type to a variable.
enum Assignment {
    /// The variable now has the type, or a more general one.
    Yes,
    /// The variable already has a type, to which the new one is not assignable.
    Refused,
    /// The type contains the variable.
    Circular,
}

fn is_type(given: &Type) -> bool {
    matches!(given, Type::Simple(Simple::Type) | Type::Composite(Constructor::Type, _))
}

/// Returns the more general one of two types that agree.
pub fn most_general<'a>(a: &'a Type, b: &'a Type) -> &'a Type {
    if is_at_least_as_general(a, b) { a } else { b }
}

fn is_at_least_as_general(a: &Type, b: &Type) -> bool {
    if a.is_dyn() || matches!(a, Type::Param(_)) {
        return true;
    }
    if b.is_dyn() || matches!(b, Type::Param(_)) {
        return false;
    }
    match (a, b) {
        (Type::Composite(Constructor::Type, _) | Type::Simple(Simple::Type), _) => is_type(b),
        (Type::Composite(one, _), Type::Composite(other, _)) => {
            one == other && a.parts().iter().zip(b.parts()).all(|(a, b)| is_at_least_as_general(a, b))
        }
        _ => a.is_exact(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_attempt_is_undone() {
        let mut values = Substitutions::default();
        let variable = values.fresh();
        assert!(!values.are_assignable(&[variable.clone(), Type::INT], &[Type::STRING, Type::STRING]));
        assert!(matches!(values.resolve(&variable), Type::Param(0)));
        assert!(values.is_assignable(&variable, &Type::STRING));
        assert!(values.resolve(&variable).is_exact(&Type::STRING));
        assert!(!values.is_assignable(&variable, &Type::INT));
    }

    #[test]
    fn variable_takes_the_more_general_type() {
        let mut values = Substitutions::default();
        let variable = values.fresh();
        assert!(values.is_assignable(&variable, &Type::list(Type::INT)));
        assert!(values.is_assignable(&variable, &Type::list(Type::DYN)));
        assert_eq!(values.resolve(&variable).to_string(), "list(dyn)");
    }

    #[test]
    fn type_that_contains_the_variable_is_not_assigned_to_it() {
        let mut values = Substitutions::default();
        let variable = values.fresh();
        assert!(!values.is_assignable(&variable, &Type::list(variable.clone())));
    }

    #[test]
    fn only_some_types_allow_null() {
        let mut values = Substitutions::default();
        let null = Type::Simple(Simple::Null);
        for (given, expected) in [
            (Type::INT, false),
            (Type::list(Type::INT), false),
            (Type::Simple(Simple::Duration), true),
            (Type::optional(Type::INT), true),
            (Type::unregistered("kubernetes.URL"), true),
        ] {
            assert_eq!(values.is_assignable(&given, &null), expected, "{given}");
            assert_eq!(values.is_assignable(&null, &given), expected, "{given}");
        }
    }
}
