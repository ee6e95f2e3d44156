//! Expansion of macros: calls that the parser replaces by other expressions.
//!
//! Issues in new nodes are reported at the opening parenthesis of the call, issues in the arguments at their position.

use super::SyntaxError;
use super::builder::{ACCUMULATOR, Builder};
use crate::ast::{Comprehension, Expr, ExprKind, Literal};

/// The accumulator's name in older versions of cel-go. Loop variables must not have this name.
const OLD_ACCUMULATOR: &str = "__result__";
/// A variable that no expression reads.
const UNUSED: &str = "#unused";
/// The variable that holds the list in an expanded `sortBy`.
const SORT_INPUT: &str = "@__sortBy_input__";

/// A call of a function or a macro.
pub struct Call {
    /// The name of the function.
    pub function: String,
    /// The receiver.
    pub target: Option<Expr>,
    /// The arguments.
    pub arguments: Vec<Expr>,
    /// The offset of the opening parenthesis.
    pub offset: u32,
}

/// Returns the expansion of a macro, or the call itself if the function is not a macro.
pub fn expand(builder: &mut Builder, call: Call) -> Result<Expr, SyntaxError> {
    let Call { function, target, mut arguments, offset } = call;
    let Some(target) = target else {
        if function == "has" && arguments.len() == 1 {
            return has(builder, offset, arguments.remove(0));
        }
        return builder.call(offset, &function, arguments);
    };
    let mut expansion = Expansion { builder, offset };
    match (function.as_str(), arguments.len()) {
        ("all", 2 | 3) => expansion.quantifier(Quantifier::All, target, arguments),
        ("exists", 2 | 3) => expansion.quantifier(Quantifier::Exists, target, arguments),
        ("exists_one", 2 | 3) | ("existsOne", 3) => expansion.quantifier(Quantifier::ExistsOne, target, arguments),
        ("map", 2 | 3) => expansion.map(target, arguments),
        ("filter", 2) => expansion.filter(target, arguments),
        ("optMap", 2) => expansion.opt_map(target, arguments, true),
        ("optFlatMap", 2) => expansion.opt_map(target, arguments, false),
        ("sortBy", 2) => expansion.sort_by(target, arguments),
        ("transformList", 3 | 4) => expansion.transform(Transform::List, target, arguments),
        ("transformMap", 3 | 4) => expansion.transform(Transform::Map, target, arguments),
        ("transformMapEntry", 3 | 4) => expansion.transform(Transform::MapEntry, target, arguments),
        _ => builder.member_call(offset, target, &function, arguments),
    }
}

fn has(builder: &mut Builder, offset: u32, argument: Expr) -> Result<Expr, SyntaxError> {
    match argument.kind {
        ExprKind::Select { operand, field, is_test: false } => {
            builder.node(offset, ExprKind::Select { operand, field, is_test: true })
        }
        _ => Err(SyntaxError {
            offset: builder.offsets[argument.id],
            message: "invalid argument to has() macro".to_owned(),
        }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transform {
    List,
    Map,
    MapEntry,
}

/// The variables of a loop.
struct LoopVariables {
    first: String,
    second: Option<String>,
}

/// The parts of a loop that differ between macros.
struct LoopParts {
    initial: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

struct Expansion<'a> {
    builder: &'a mut Builder,
    offset: u32,
}

type Expanded = Result<Expr, SyntaxError>;

impl Expansion<'_> {
    fn call(&mut self, function: &str, arguments: Vec<Expr>) -> Expanded {
        self.builder.call(self.offset, function, arguments)
    }

    fn accumulator(&mut self) -> Expanded {
        self.builder.accumulator(self.offset)
    }

    fn literal(&mut self, value: Literal) -> Expanded {
        self.builder.literal(self.offset, value)
    }

    fn error(&self, at: &Expr, message: &str) -> SyntaxError {
        SyntaxError { offset: self.builder.offsets[at.id], message: message.to_owned() }
    }

    /// Returns the name of the loop variable that an argument declares.
    fn name(&self, expr: &Expr) -> Result<String, SyntaxError> {
        match &expr.kind {
            ExprKind::Ident(name) if name != ACCUMULATOR && name != OLD_ACCUMULATOR => Ok(name.clone()),
            ExprKind::Ident(_) => Err(self.error(expr, "iteration variable overwrites accumulator variable")),
            _ => Err(self.error(expr, "argument must be a simple name")),
        }
    }

    fn two_names(&self, arguments: &[Expr]) -> Result<LoopVariables, SyntaxError> {
        let (first, second) = (self.name(&arguments[0])?, self.name(&arguments[1])?);
        if first == second {
            return Err(self.error(&arguments[1], "duplicate variable name"));
        }
        Ok(LoopVariables { first, second: Some(second) })
    }

    fn comprehension(&mut self, range: Expr, variables: LoopVariables, parts: LoopParts) -> Expanded {
        let LoopParts { initial, condition, step, result } = parts;
        let LoopVariables { first: variable, second } = variables;
        let accumulator = ACCUMULATOR.to_owned();
        let comprehension = Comprehension { range, variable, second, accumulator, initial, condition, step, result };
        self.builder.node(self.offset, ExprKind::Comprehension(Box::new(comprehension)))
    }

    fn quantifier(&mut self, quantifier: Quantifier, target: Expr, mut arguments: Vec<Expr>) -> Expanded {
        let variables = match arguments.len() {
            2 => LoopVariables { first: self.name(&arguments[0])?, second: None },
            _ => self.two_names(&arguments)?,
        };
        let predicate = arguments.pop().expect("two or three arguments");
        let accumulator = self.accumulator()?;
        let parts = match quantifier {
            Quantifier::All => LoopParts {
                initial: self.literal(Literal::Bool)?,
                condition: self.call("@not_strictly_false", vec![accumulator])?,
                step: {
                    let before = self.accumulator()?;
                    self.call("_&&_", vec![before, predicate])?
                },
                result: self.accumulator()?,
            },
            Quantifier::Exists => LoopParts {
                initial: self.literal(Literal::Bool)?,
                condition: {
                    let negated = self.call("!_", vec![accumulator])?;
                    self.call("@not_strictly_false", vec![negated])?
                },
                step: {
                    let before = self.accumulator()?;
                    self.call("_||_", vec![before, predicate])?
                },
                result: self.accumulator()?,
            },
            Quantifier::ExistsOne => self.exists_one(accumulator, predicate)?,
        };
        self.comprehension(target, variables, parts)
    }

    fn exists_one(&mut self, accumulator: Expr, predicate: Expr) -> Result<LoopParts, SyntaxError> {
        let one = self.literal(Literal::Int)?;
        let more = self.call("_+_", vec![accumulator, one])?;
        let same = self.accumulator()?;
        let result = self.accumulator()?;
        let one = self.literal(Literal::Int)?;
        Ok(LoopParts {
            initial: self.literal(Literal::Int)?,
            condition: self.literal(Literal::Bool)?,
            step: self.call("_?_:_", vec![predicate, more, same])?,
            result: self.call("_==_", vec![result, one])?,
        })
    }

    /// Returns the parts of a loop that appends `element` to a list in each step in which `filter` is true or absent.
    fn collect(&mut self, element: Expr, filter: Option<Expr>) -> Result<LoopParts, SyntaxError> {
        let before = self.accumulator()?;
        let element = self.builder.list(self.offset, vec![element])?;
        let step = self.call("_+_", vec![before, element])?;
        let initial = self.builder.list(self.offset, Vec::new())?;
        self.filtered(initial, step, filter)
    }

    /// Returns the parts of a loop whose step is skipped if there is a `filter` and it is false.
    fn filtered(&mut self, initial: Expr, step: Expr, filter: Option<Expr>) -> Result<LoopParts, SyntaxError> {
        let step = match filter {
            Some(filter) => {
                let same = self.accumulator()?;
                self.call("_?_:_", vec![filter, step, same])?
            }
            None => step,
        };
        Ok(LoopParts { initial, condition: self.literal(Literal::Bool)?, step, result: self.accumulator()? })
    }

    fn map(&mut self, target: Expr, mut arguments: Vec<Expr>) -> Expanded {
        let variables = LoopVariables { first: self.name(&arguments[0])?, second: None };
        let element = arguments.pop().expect("two or three arguments");
        let filter = (arguments.len() == 2).then(|| arguments.remove(1));
        let parts = self.collect(element, filter)?;
        self.comprehension(target, variables, parts)
    }

    fn filter(&mut self, target: Expr, mut arguments: Vec<Expr>) -> Expanded {
        let variables = LoopVariables { first: self.name(&arguments[0])?, second: None };
        let filter = arguments.remove(1);
        // The element is the loop variable itself, so the argument that declares the variable is also the element.
        let parts = self.collect(arguments.remove(0), Some(filter))?;
        self.comprehension(target, variables, parts)
    }

    fn transform(&mut self, transform: Transform, target: Expr, mut arguments: Vec<Expr>) -> Expanded {
        let variables = self.two_names(&arguments)?;
        let value = arguments.pop().expect("three or four arguments");
        let filter = (arguments.len() == 3).then(|| arguments.remove(2));
        if transform == Transform::List {
            let parts = self.collect(value, filter)?;
            return self.comprehension(target, variables, parts);
        }
        let mut inserted = vec![self.accumulator()?];
        if transform == Transform::Map {
            inserted.push(self.builder.ident(self.offset, &variables.first)?);
        }
        inserted.push(value);
        let step = self.call("cel.@mapInsert", inserted)?;
        let initial = self.builder.node(self.offset, ExprKind::Map(Vec::new()))?;
        let parts = self.filtered(initial, step, filter)?;
        self.comprehension(target, variables, parts)
    }

    /// Returns `result`, in which `name` stands for `value`: a loop over an empty list, whose accumulator is called
    /// `name` and keeps its initial value.
    fn bind(&mut self, name: &str, value: Expr, result: Expr) -> Expanded {
        let comprehension = Comprehension {
            range: self.builder.list(self.offset, Vec::new())?,
            variable: UNUSED.to_owned(),
            second: None,
            accumulator: name.to_owned(),
            initial: value,
            condition: self.literal(Literal::Bool)?,
            step: self.builder.ident(self.offset, name)?,
            result,
        };
        self.builder.node(self.offset, ExprKind::Comprehension(Box::new(comprehension)))
    }

    /// Expands `optMap`, which wraps the result into an optional value (`is_wrapped`), and `optFlatMap`.
    fn opt_map(&mut self, target: Expr, mut arguments: Vec<Expr>, is_wrapped: bool) -> Expanded {
        let ExprKind::Ident(name) = &arguments[0].kind else {
            return Err(self.error(&arguments[0], "variable name must be a simple identifier"));
        };
        let name = name.clone();
        let copy = self.builder.copy(&target)?;
        let value = self.builder.member_call(self.offset, copy, "value", Vec::new())?;
        let mut mapped = self.bind(&name, value, arguments.remove(1))?;
        if is_wrapped {
            mapped = self.call("optional.of", vec![mapped])?;
        }
        let condition = self.builder.member_call(self.offset, target, "hasValue", Vec::new())?;
        let none = self.call("optional.none", Vec::new())?;
        self.call("_?_:_", vec![condition, mapped, none])
    }

    fn sort_by(&mut self, target: Expr, arguments: Vec<Expr>) -> Expanded {
        if matches!(target.kind, ExprKind::Literal(_) | ExprKind::Map(_) | ExprKind::Message(_)) {
            return Err(self.error(&target, "sortBy cannot be applied to this expression"));
        }
        let input = self.builder.ident(self.offset, SORT_INPUT)?;
        let keys = self.map(input, arguments)?;
        let input = self.builder.ident(self.offset, SORT_INPUT)?;
        let sorted = self.builder.member_call(self.offset, input, "@sortByAssociatedKeys", vec![keys])?;
        self.bind(SORT_INPUT, target, sorted)
    }
}
