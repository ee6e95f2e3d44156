//! Type inference: determines the type of an expression, or the mistakes in it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use crate::assign::{Substitutions, most_general};
use crate::ast::{Ast, Comprehension, Element, Entry, Expr, ExprKind, Literal};
use crate::declarations::{Declarations, Overload};
use crate::keywords::is_keyword;
use crate::source::{IssueCollector, Issues};
use crate::stack::with_deep_stack;
use crate::syntax::{self, SyntaxError};
use crate::types::{Constructor, Fields, ObjectType, Simple, Type};
use crate::validate;

/// The reason why an expression could not be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The expression cannot be parsed.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The check needs too many steps, because types in the expression are too large.
    #[error("the types of the expression are too complex")]
    TooComplex,
    /// No thread could be started for the check.
    #[error("no thread could be started for the check")]
    NoThread,
}

/// The result of a check.
#[derive(Debug)]
pub enum Verdict {
    /// The expression has a type.
    Typed(Type),
    /// The expression has mistakes.
    Invalid(Issues),
    /// The expression could not be checked.
    CheckError(CheckError),
}

/// The variables that an expression may use.
#[derive(Debug, Default)]
pub struct Variables {
    /// Global variables, such as `object`.
    pub globals: HashMap<String, Type>,
    /// The fields of the global `variables`: the policy's own named expressions.
    pub composed: BTreeMap<String, Type>,
}

/// The global variable whose fields are the policy's own named expressions.
const COMPOSED: &str = "variables";

/// Checks an expression.
pub fn check(text: &str, declarations: &Declarations, variables: &Variables) -> Verdict {
    with_deep_stack(text, || check_on_this_stack(text, declarations, variables))
        .unwrap_or(Verdict::CheckError(CheckError::NoThread))
}

fn check_on_this_stack(text: &str, declarations: &Declarations, variables: &Variables) -> Verdict {
    let ast = match syntax::parse_on_this_stack(text) {
        Ok(ast) => ast,
        Err(error) => return Verdict::CheckError(error.into()),
    };
    let mut inference = Inference {
        ast: &ast,
        declarations,
        variables,
        locals: Vec::new(),
        types: vec![Type::DYN; ast.offsets.len()],
        substitutions: Substitutions::default(),
        issues: IssueCollector::default(),
    };
    let result = inference.expr(&ast.root);
    let result = inference.substitutions.resolve_fully(&result);
    let Inference { mut types, mut substitutions, mut issues, .. } = inference;
    if issues.is_empty() {
        for given in &mut types {
            *given = substitutions.resolve_fully(given);
        }
        validate::validate(&ast, &types, &mut issues);
    }
    if substitutions.is_exhausted() {
        return Verdict::CheckError(CheckError::TooComplex);
    }
    if issues.is_empty() { Verdict::Typed(result) } else { Verdict::Invalid(issues.into_issues(text)) }
}

/// The type of the global variable `variables`.
pub static COMPOSED_TYPE: LazyLock<Type> = LazyLock::new(|| {
    Type::Object(Arc::new(ObjectType { name: "kubernetes.variables".to_owned(), fields: Fields::Composed }))
});

/// The inference of the types in one expression.
struct Inference<'a> {
    ast: &'a Ast,
    declarations: &'a Declarations,
    variables: &'a Variables,
    /// The variables of the loops around the expression, the innermost last.
    locals: Vec<(&'a str, Type)>,
    /// The type of each node.
    types: Vec<Type>,
    substitutions: Substitutions,
    issues: IssueCollector,
}

impl<'a> Inference<'a> {
    fn report(&mut self, at: &Expr, message: String) {
        self.issues.add(self.ast.offsets[at.id], message);
    }

    fn report_mismatch(&mut self, at: &Expr, expected: &Type, found: &Type) {
        self.report(at, format!("expected type '{expected}' but found '{found}'"));
    }

    fn report_undeclared(&mut self, at: &Expr, name: &str) -> Type {
        self.report(at, format!("undeclared reference to '{name}' (in container '')"));
        Type::ERROR
    }

    /// Returns the type of an expression, and records it in `types`.
    fn expr(&mut self, expr: &'a Expr) -> Type {
        let found = match &expr.kind {
            ExprKind::Literal(value) => literal(value),
            ExprKind::Ident(name) => match self.lookup(name) {
                Some(found) => found,
                None => self.report_undeclared(expr, name),
            },
            ExprKind::Select { operand, field, is_test } => self.select(expr, operand, field, *is_test),
            ExprKind::Call { function, target, arguments } => self.call(expr, function, target.as_deref(), arguments),
            ExprKind::List(elements) => self.list(elements),
            ExprKind::Map(entries) => self.map(entries),
            ExprKind::Message(values) => {
                values.iter().for_each(|value| {
                    self.expr(value);
                });
                // Message types are not declared, so the result may have any type.
                Type::DYN
            }
            ExprKind::Comprehension(fold) => self.comprehension(fold),
        };
        self.types[expr.id] = found.clone();
        found
    }

    /// Returns the type of a variable. A name with a leading dot is never a loop variable.
    fn lookup(&self, name: &str) -> Option<Type> {
        if let Some((_, found)) = self.locals.iter().rev().find(|(local, _)| *local == name) {
            return Some(found.clone());
        }
        self.lookup_global(name)
    }

    fn lookup_global(&self, name: &str) -> Option<Type> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if name == COMPOSED {
            return Some(COMPOSED_TYPE.clone());
        }
        self.variables.globals.get(name).or_else(|| self.declarations.type_name(name)).cloned()
    }

    /// Returns the type of an expression that is a qualified name, such as that of a type: `google.protobuf.Duration`.
    fn lookup_qualified(&self, expr: &Expr) -> Option<Type> {
        let name = qualified_name(expr)?;
        let first = name.split('.').next().unwrap_or_default();
        let is_local = self.locals.iter().any(|(local, _)| *local == first);
        if is_local { None } else { self.lookup_global(&name) }
    }

    fn select(&mut self, expr: &'a Expr, operand: &'a Expr, field: &str, is_test: bool) -> Type {
        if !is_test && let Some(found) = self.lookup_qualified(expr) {
            return found;
        }
        let found = self.field(expr, operand, field, false);
        if is_test { Type::BOOL } else { self.substitutions.resolve(&found) }
    }

    /// Returns the type of a field. The type is optional if the operand is, or if the field is selected by `.?`.
    fn field(&mut self, expr: &'a Expr, operand: &'a Expr, field: &str, is_optional: bool) -> Type {
        let operand = self.expr(operand);
        let (target, was_optional) = self.substitutions.resolve(&operand).unwrap_optional();
        let found = match &target {
            Type::Composite(Constructor::Map, _) => target.parts()[1].clone(),
            Type::Object(object) if !matches!(object.fields, Fields::Opaque) => self.object_field(expr, object, field),
            Type::Param(_) => {
                // Records dyn as the type of the type variable.
                self.substitutions.is_assignable(&Type::DYN, &target);
                Type::DYN
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(expr, format!("type '{other}' does not support field selection"));
                }
                Type::DYN
            }
        };
        if is_optional || was_optional { Type::optional(found) } else { found }
    }

    fn object_field(&mut self, expr: &Expr, object: &ObjectType, field: &str) -> Type {
        let find = |name: &str| match &object.fields {
            Fields::Known(fields) => fields.get(name).cloned(),
            Fields::Lazy(fields) => fields.field(&object.name, name),
            Fields::Composed => self.variables.composed.get(name).cloned(),
            Fields::Unregistered | Fields::Opaque => None,
        };
        if matches!(object.fields, Fields::Unregistered) {
            self.report(expr, format!("unexpected failed resolution of '{}'", object.name));
            return Type::ERROR;
        }
        let keyword = || is_keyword(field).then(|| find(&format!("__{field}__"))).flatten();
        match find(field).or_else(keyword) {
            Some(found) => found,
            None => {
                self.report(expr, format!("undefined field '{field}'"));
                Type::ERROR
            }
        }
    }

    fn call(&mut self, expr: &'a Expr, function: &str, target: Option<&'a Expr>, arguments: &'a [Expr]) -> Type {
        if function == "_?._" {
            return self.optional_select(expr, arguments);
        }
        let mut types: Vec<Type> = arguments.iter().map(|argument| self.expr(argument)).collect();
        let declarations = self.declarations;
        let Some(target) = target else {
            // A leading dot means the global scope. The message about an undeclared function contains the dot, as in
            // cel-go.
            let name = function.strip_prefix('.').unwrap_or(function);
            return match declarations.function(name) {
                None => self.report_undeclared(expr, function),
                Some(_) if matches!(name, "_&&_" | "_||_") => self.logic(arguments, &types),
                Some(overloads) => self.resolve_overload(expr, name, overloads, &types, false),
            };
        };
        let qualified = qualified_name(target).map(|prefix| format!("{prefix}.{function}"));
        let namespaced = qualified.as_deref().map(|name| name.strip_prefix('.').unwrap_or(name));
        if let Some(name) = namespaced
            && let Some(overloads) = declarations.function(name)
        {
            return self.resolve_overload(expr, name, overloads, &types, false);
        }
        let target = self.expr(target);
        match declarations.function(function) {
            None => self.report_undeclared(expr, function),
            Some(overloads) => {
                types.insert(0, target);
                self.resolve_overload(expr, function, overloads, &types, true)
            }
        }
    }

    fn optional_select(&mut self, expr: &'a Expr, arguments: &'a [Expr]) -> Type {
        let [operand, Expr { kind: ExprKind::Literal(Literal::String(field)), .. }] = arguments else {
            return Type::DYN;
        };
        let found = self.field(expr, operand, field, true);
        self.substitutions.resolve(&found)
    }

    /// Checks the operands of `&&` and `||` one by one, so that an issue refers to a single operand.
    fn logic(&mut self, arguments: &[Expr], types: &[Type]) -> Type {
        let mut result = Type::BOOL;
        for (argument, found) in arguments.iter().zip(types) {
            if !self.substitutions.is_assignable(found, &Type::BOOL) {
                self.report_mismatch(argument, &Type::BOOL, found);
                result = Type::ERROR;
            }
        }
        result
    }

    /// Returns the type of a call: the result type of the matching overloads, or dyn if those differ.
    fn resolve_overload(
        &mut self,
        expr: &Expr,
        function: &str,
        overloads: &[Overload],
        arguments: &[Type],
        is_member: bool,
    ) -> Type {
        let mut result: Option<Type> = None;
        for overload in overloads.iter().filter(|overload| overload.is_member == is_member) {
            let variables: Vec<Type> = (0..overload.params).map(|_| self.substitutions.fresh()).collect();
            let expected: Vec<Type> = overload.arguments.iter().map(|given| instantiate(given, &variables)).collect();
            if !self.substitutions.are_assignable(arguments, &expected) {
                continue;
            }
            let found = self.substitutions.resolve(&instantiate(&overload.result, &variables));
            result = match result {
                None => Some(found),
                Some(before) if before.is_dyn() || found.is_exact(&before) => Some(before),
                Some(_) => Some(Type::DYN),
            };
        }
        result.unwrap_or_else(|| self.report_overload(expr, function, arguments, is_member))
    }

    fn report_overload(&mut self, expr: &Expr, function: &str, arguments: &[Type], is_member: bool) -> Type {
        let names: Vec<String> =
            arguments.iter().map(|given| self.substitutions.resolve_fully(given).to_string()).collect();
        let signature = match names.split_first() {
            Some((target, rest)) if is_member => format!("{target}.({})", rest.join(", ")),
            _ => format!("({})", names.join(", ")),
        };
        self.report(expr, format!("found no matching overload for '{function}' applied to '{signature}'"));
        Type::ERROR
    }

    fn list(&mut self, elements: &'a [Element]) -> Type {
        let mut joined = None;
        for Element { is_optional, value } in elements {
            let found = self.expr(value);
            let found = if *is_optional { self.unwrapped(value, &found) } else { found };
            joined = Some(self.join(joined, found));
        }
        let element = joined.unwrap_or_else(|| self.substitutions.fresh());
        Type::list(element)
    }

    fn map(&mut self, entries: &'a [Entry]) -> Type {
        let (mut keys, mut values) = (None, None);
        for Entry { is_optional, key, value } in entries {
            let found = self.expr(key);
            keys = Some(self.join(keys, found));
            let found = self.expr(value);
            let found = if *is_optional { self.unwrapped(value, &found) } else { found };
            values = Some(self.join(values, found));
        }
        let key = keys.unwrap_or_else(|| self.substitutions.fresh());
        let value = values.unwrap_or_else(|| self.substitutions.fresh());
        Type::map(key, value)
    }

    /// Returns the type of the value in an optional element.
    fn unwrapped(&mut self, at: &Expr, found: &Type) -> Type {
        let (value, is_optional) = found.unwrap_optional();
        if !is_optional && !value.is_dyn() {
            self.report_mismatch(at, &Type::optional(value.clone()), &value);
        }
        value
    }

    /// Returns the common type of the previous elements and one more. Elements of different types are not reported
    /// here, because the arguments of `format` may differ; `validate` reports all others.
    fn join(&mut self, before: Option<Type>, found: Type) -> Type {
        let Some(before) = before else { return found };
        if self.substitutions.is_assignable(&before, &found) {
            most_general(&before, &found).clone()
        } else {
            Type::DYN
        }
    }

    fn comprehension(&mut self, fold: &'a Comprehension) -> Type {
        let range = self.expr(&fold.range);
        let accumulated = self.expr(&fold.initial);
        let range = self.substitutions.resolve(&range);
        let (first, second) = self.loop_variable_types(fold, &range);
        let outer = self.locals.len();
        self.locals.push((&fold.accumulator, accumulated.clone()));
        let inner = self.locals.len();
        self.locals.push((&fold.variable, first));
        if let Some(name) = &fold.second {
            self.locals.push((name, second));
        }
        self.expect(&fold.condition, &Type::BOOL);
        self.expect(&fold.step, &accumulated);
        self.locals.truncate(inner);
        let result = self.expr(&fold.result);
        self.locals.truncate(outer);
        self.substitutions.resolve(&result)
    }

    /// Returns the types of the two loop variables.
    fn loop_variable_types(&mut self, fold: &Comprehension, range: &Type) -> (Type, Type) {
        let parts = range.parts();
        match range {
            Type::Composite(Constructor::List, _) if fold.second.is_some() => (Type::INT, parts[0].clone()),
            Type::Composite(Constructor::List, _) => (parts[0].clone(), Type::DYN),
            Type::Composite(Constructor::Map, _) => (parts[0].clone(), parts[1].clone()),
            Type::Simple(Simple::Dyn | Simple::Error) | Type::Param(_) => {
                // Records dyn as the type of a type variable.
                self.substitutions.is_assignable(&Type::DYN, range);
                (Type::DYN, Type::DYN)
            }
            other => {
                let message = "cannot be range of a comprehension (must be list, map, or dynamic)";
                self.report(&fold.range, format!("expression of type '{other}' {message}"));
                (Type::ERROR, Type::ERROR)
            }
        }
    }

    fn expect(&mut self, expr: &'a Expr, expected: &Type) {
        let found = self.expr(expr);
        if !self.substitutions.is_assignable(expected, &found) {
            self.report_mismatch(expr, expected, &found);
        }
    }
}

fn literal(value: &Literal) -> Type {
    Type::Simple(match value {
        Literal::Bool => Simple::Bool,
        Literal::Bytes => Simple::Bytes,
        Literal::Double => Simple::Double,
        Literal::Int => Simple::Int,
        Literal::Null => Simple::Null,
        Literal::String(_) => Simple::String,
        Literal::Uint => Simple::Uint,
    })
}

/// Replaces the type parameters of an overload by type variables.
fn instantiate(given: &Type, variables: &[Type]) -> Type {
    match given {
        Type::Param(number) => variables[*number as usize].clone(),
        Type::Composite(constructor, _) if !variables.is_empty() => {
            Type::composite(*constructor, given.parts().iter().map(|part| instantiate(part, variables)).collect())
        }
        other => other.clone(),
    }
}

/// Returns the qualified name `a.b.c` if the expression is a chain of selections from an identifier.
fn qualified_name(expr: &Expr) -> Option<String> {
    let mut fields = Vec::new();
    let mut at = expr;
    loop {
        match &at.kind {
            ExprKind::Select { operand, field, is_test: false } => {
                fields.push(field.as_str());
                at = operand;
            }
            ExprKind::Ident(name) => {
                fields.push(name);
                fields.reverse();
                return Some(fields.join("."));
            }
            _ => return None,
        }
    }
}
