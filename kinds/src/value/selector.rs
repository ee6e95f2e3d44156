//! Label selectors, decoded once and matched often (apimachinery, LabelSelectorAsSelector).

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::label_rules::LabelRules;
pub use super::requirement::Requirement;
use crate::intern::{Interner, Str};
use crate::wire::schema::{label_selector, label_selector_requirement as requirement};
use crate::wire::{WireError, fields, map_entry};

/// The label selector of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Selector {
    /// No selector at all: matches nothing.
    #[default]
    Nothing,
    /// All requirements must hold; an empty list matches everything.
    All(Requirements),
    /// Invalid; the text is the reason.
    Invalid(String),
}

/// A selector with more requirements and values is compared by its [`LabelRules`].
const MAX_SCANNED: usize = 32;

/// The requirements of a selector.
#[derive(Debug, Clone, Default)]
pub struct Requirements {
    list: Vec<Requirement>,
    /// The same requirements, grouped by key at the first comparison; `None` if they are few enough to scan.
    rules: Option<Arc<OnceLock<LabelRules>>>,
}

impl Requirements {
    fn match_labels(&self, labels: &[(Str, Str)]) -> bool {
        match &self.rules {
            Some(rules) => rules.get_or_init(|| LabelRules::of(&self.list)).match_labels(labels),
            None => self.list.iter().all(|requirement| requirement.matches(labels)),
        }
    }
}

impl PartialEq for Requirements {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for Requirements {}

impl Deref for Requirements {
    type Target = [Requirement];

    fn deref(&self) -> &[Requirement] {
        &self.list
    }
}

impl From<Vec<Requirement>> for Requirements {
    fn from(list: Vec<Requirement>) -> Self {
        let scanned: usize = list.iter().map(Requirement::scanned).sum();
        Self { list, rules: (scanned > MAX_SCANNED).then(Arc::default) }
    }
}

impl FromIterator<Requirement> for Requirements {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Self {
        requirements.into_iter().collect::<Vec<_>>().into()
    }
}

impl Selector {
    /// Reads a `LabelSelector` message that is present.
    ///
    /// # Errors
    /// When `message` is not well-formed.
    pub fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut requirements = Vec::new();
        for field in fields(message) {
            let field = field?;
            match field.number {
                label_selector::MATCH_LABELS => {
                    let (key, value) = map_entry(field.value.bytes())?;
                    requirements.push(Requirement::Equals(interner.str(key), interner.str(value)));
                }
                label_selector::MATCH_EXPRESSIONS => match expression(interner, field.value.bytes())? {
                    Ok(requirement) => requirements.push(requirement),
                    Err(problem) => return Ok(Self::Invalid(problem)),
                },
                _ => {}
            }
        }
        Ok(Self::sorted(requirements))
    }

    /// Returns a selector of objects with all these labels.
    pub fn of_labels<'a>(interner: &Interner, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let is = |(key, value)| Requirement::Equals(interner.str(key), interner.str(value));
        Self::sorted(labels.into_iter().map(is).collect())
    }

    /// Returns a selector of these requirements, sorted by key as upstream sorts them. Upstream:
    /// apimachinery/pkg/labels, ByKey.
    pub(super) fn sorted(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key().cmp(b.key()));
        Self::All(requirements.into())
    }

    /// Returns true if a label set satisfies the selector.
    pub fn matches(&self, labels: &[(Str, Str)]) -> bool {
        match self {
            Self::All(requirements) => requirements.match_labels(labels),
            Self::Nothing | Self::Invalid(_) => false,
        }
    }

    /// Returns the selector as the `labelSelector` of a list request, formatted as upstream does; `None` for
    /// [`Selector::Nothing`] and [`Selector::Invalid`]. Upstream: apimachinery/pkg/labels, Requirement.String.
    pub fn query(&self) -> Option<String> {
        let Self::All(requirements) = self else { return None };
        Some(requirements.iter().map(Requirement::query).collect::<Vec<_>>().join(","))
    }

    /// Returns true if the selector is present and matches everything.
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }
}

fn expression(interner: &Interner, message: &[u8]) -> Result<Result<Requirement, String>, WireError> {
    let mut key = "";
    let mut operator = "";
    let mut values = Vec::new();
    for field in fields(message) {
        let field = field?;
        match field.number {
            requirement::KEY => key = field.value.str(),
            requirement::OPERATOR => operator = field.value.str(),
            requirement::VALUES => values.push(interner.str(field.value.str())),
            _ => {}
        }
    }
    let name = interner.str(key);
    Ok(match (operator, values.is_empty()) {
        ("In", false) => Ok(Requirement::In(name, values)),
        ("NotIn", false) => Ok(Requirement::NotIn(name, values)),
        ("Exists", true) => Ok(Requirement::Exists(name)),
        ("DoesNotExist", true) => Ok(Requirement::DoesNotExist(name)),
        ("In" | "NotIn", true) => Err(format!("{key}: for 'in', 'notin' operators, values set can't be empty")),
        ("Exists" | "DoesNotExist", false) => {
            Err(format!("{key}: values set must be empty for exists and does not exist"))
        }
        _ => Err(format!("{operator:?} is not a valid label selector operator")),
    })
}

/// Formats a `LabelSelector` message as Go does, for events. Upstream: apimachinery/pkg/apis/meta/v1,
/// LabelSelector.String.
pub fn format_like_go(message: &[u8]) -> String {
    let (mut labels, mut expressions) = (Vec::new(), String::new());
    for field in fields(message).flatten() {
        match field.number {
            label_selector::MATCH_LABELS => labels.extend(map_entry(field.value.bytes())),
            label_selector::MATCH_EXPRESSIONS => expressions += &expression_as_go_prints(field.value.bytes()),
            _ => {}
        }
    }
    labels.sort_unstable();
    let labels: String = labels.into_iter().map(|(key, value)| format!("{key}: {value},")).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

fn expression_as_go_prints(message: &[u8]) -> String {
    let mut key = "";
    let mut operator = "";
    let mut values = Vec::new();
    for field in fields(message).flatten() {
        match field.number {
            requirement::KEY => key = field.value.str(),
            requirement::OPERATOR => operator = field.value.str(),
            requirement::VALUES => values.push(field.value.str()),
            _ => {}
        }
    }
    format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},", values.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    fn selector(labels: &[(&str, &str)], expressions: &[(&str, &str, &[&str])]) -> Selector {
        let mut message = Vec::new();
        for (key, value) in labels {
            message.put_entry(label_selector::MATCH_LABELS, key, value);
        }
        for (key, operator, values) in expressions {
            message.put_message(label_selector::MATCH_EXPRESSIONS, |expression| {
                expression.put_str(requirement::KEY, key);
                expression.put_str(requirement::OPERATOR, operator);
                for value in *values {
                    expression.put_str(requirement::VALUES, value);
                }
            });
        }
        Selector::decode(&Interner::default(), &message).expect("well-formed")
    }

    fn labels(pairs: &[(&str, &str)]) -> Vec<(Str, Str)> {
        pairs.iter().map(|(key, value)| (Str::from(*key), Str::from(*value))).collect()
    }

    #[test]
    fn matching_follows_the_api() {
        let web = labels(&[("app", "web"), ("tier", "front")]);
        for (selector, expected) in [
            (selector(&[], &[]), true),
            (selector(&[("app", "web")], &[]), true),
            (selector(&[("app", "db")], &[]), false),
            (selector(&[("app", "web"), ("zone", "a")], &[]), false),
            (selector(&[], &[("app", "In", &["db", "web"])]), true),
            (selector(&[], &[("zone", "In", &["a"])]), false),
            (selector(&[], &[("app", "NotIn", &["web"])]), false),
            (selector(&[], &[("zone", "NotIn", &["a"])]), true),
            (selector(&[], &[("tier", "Exists", &[])]), true),
            (selector(&[], &[("zone", "Exists", &[])]), false),
            (selector(&[], &[("zone", "DoesNotExist", &[])]), true),
            (selector(&[], &[("tier", "DoesNotExist", &[])]), false),
            (Selector::Nothing, false),
        ] {
            assert_eq!(selector.matches(&web), expected, "{selector:?}");
        }
    }

    #[test]
    fn query_is_formatted_as_upstream() {
        let rows = [
            (
                "labels are equalities",
                selector(&[("scaledobject.keda.sh/name", "x")], &[]),
                "scaledobject.keda.sh/name=x",
            ),
            ("keys are sorted", selector(&[("b", "2"), ("a", "1")], &[("ab", "Exists", &[])]), "a=1,ab,b=2"),
            ("one value of an expression stays a set", selector(&[], &[("a", "In", &["1"])]), "a in (1)"),
            ("values are sorted", selector(&[], &[("a", "NotIn", &["3", "2"])]), "a notin (2,3)"),
            ("an absent label", selector(&[], &[("d", "DoesNotExist", &[])]), "!d"),
            ("everything", selector(&[], &[]), ""),
        ];
        for (name, selector, query) in rows {
            assert_eq!(selector.query().as_deref(), Some(query), "{name}");
        }
        assert_eq!(Selector::Nothing.query(), None);
    }

    #[test]
    fn invalid_selectors_match_nothing_and_name_the_reason() {
        for (operator, values) in [("In", &[][..]), ("Exists", &["a"][..]), ("Near", &["a"][..])] {
            let selector = selector(&[], &[("app", operator, values)]);
            assert!(matches!(&selector, Selector::Invalid(why) if !why.is_empty()), "{selector:?}");
            assert!(!selector.matches(&[]));
        }
        assert!(selector(&[], &[]).is_everything() && !Selector::Nothing.is_everything());
    }

    #[test]
    fn cost_of_a_match_grows_with_the_sum_of_labels_and_requirements() {
        let interner = Interner::default();
        let labels =
            interner.labels((0..20_000).map(|at| (interner.str(&format!("a{at:05}")), interner.str(""))).collect());
        let absent = (0..30_000).map(|at| Requirement::DoesNotExist(interner.str(&format!("b{at:05}"))));
        let selector = Selector::sorted(absent.collect());
        let started = std::time::Instant::now();
        assert!(selector.matches(&labels));
        assert!(started.elapsed().as_secs() < 2, "comparing each label with each requirement takes tens of seconds");
    }

    /// With a scan of the requirements for each object this takes minutes.
    #[test]
    fn huge_selectors_are_compared_with_many_objects_in_linear_time() {
        const MANY: usize = 30_000;
        let text = |number: usize| Str::from(format!("some-rather-long-value-of-a-label-{number:08}"));
        let values: Vec<Str> = (0..MANY).map(text).collect();
        let refusing = Requirement::NotIn("disk".into(), values.clone());
        let allowing = Requirement::In("app".into(), values);
        let each = (0..MANY).map(|number| Requirement::NotEquals("disk".into(), text(number)));
        let absent = (0..MANY).map(|number| Requirement::DoesNotExist(text(number)));
        let selector = Selector::All([refusing, allowing].into_iter().chain(each).chain(absent).collect());
        let labels = [("app".into(), text(MANY - 1)), ("disk".into(), text(MANY))];
        let start = std::time::Instant::now();
        assert!((0..MANY).all(|_| selector.matches(&labels)));
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
