//! Policy: the kinds that the rules of a policy match.
//!
//! A rule matches each combination of its groups, versions and resources. Lists of a few thousand names have billions
//! of combinations; only those that the API server serves are visited.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use cel_check::schema::GroupVersionKind;
use kinds::Resource;
use kinds::validating_admission_policy::ResourceRule;

/// Maximum number of matched kinds of one rule, including repetitions. A rule that reaches it is the last one of its
/// policy, as in upstream. The kinds of all rules together may be more.
const MAX_KINDS: usize = 10;

/// The kinds of a policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MatchedKinds {
    /// The kinds in order, without duplicates.
    pub kinds: BTreeSet<GroupVersionKind>,
    /// The API server serves no kind for one of the combinations of group, version and resource. Only the combinations
    /// before the limit [`MAX_KINDS`] is reached count.
    pub has_unknown: bool,
}

/// Returns the kinds among `served` that a policy matches.
///
/// Upstream: apiserver/pkg/admission/plugin/policy/validating, typesToCheck.
pub fn matched_kinds(rules: &[ResourceRule], served: impl Iterator<Item = Resource>) -> MatchedKinds {
    let rules: Vec<Combinations> = rules.iter().filter_map(Combinations::new).collect();
    let served = by_group(served, &rules);
    let mut matched = MatchedKinds::default();
    for rule in &rules {
        // A kind that occurs twice counts twice.
        let mut count = 0;
        let mut next = 0;
        for Match { position, kinds } in rule.matches(&served) {
            matched.has_unknown |= position != next;
            next = position + 1;
            for kind in kinds {
                matched.kinds.insert(gvk(kind));
                count += 1;
                if count == MAX_KINDS {
                    return matched;
                }
            }
        }
        matched.has_unknown |= next != rule.len();
    }
    matched
}

fn gvk(kind: &Resource) -> GroupVersionKind {
    let Resource { group, version, kind, .. } = *kind;
    GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
}

type ByResource = BTreeMap<&'static str, Vec<Resource>>;
type ByVersion = BTreeMap<&'static str, ByResource>;
type ByGroup = BTreeMap<&'static str, ByVersion>;

/// Returns the served kinds whose resource is in a rule, by group. The empty group has the kinds of all groups, because
/// upstream's mapper does not distinguish the core group from an absent one. Upstream: apimachinery/pkg/api/meta,
/// DefaultRESTMapper.KindsFor.
fn by_group(served: impl Iterator<Item = Resource>, rules: &[Combinations]) -> ByGroup {
    let wanted: HashSet<&str> =
        rules.iter().flat_map(|rule| rule.resources.positions.keys().map(|name| &**name)).collect();
    let mut kinds: Vec<Resource> = served.filter(|kind| wanted.contains(kind.plural)).collect();
    kinds.sort_by_key(|kind| (kind.group, kind.kind));
    let mut groups = ByGroup::new();
    for kind in kinds {
        let is_core = kind.group.is_empty();
        for group in [""].into_iter().chain((!is_core).then_some(kind.group)) {
            groups
                .entry(group)
                .or_default()
                .entry(kind.version)
                .or_default()
                .entry(kind.plural)
                .or_default()
                .push(kind);
        }
    }
    groups
}

/// A combination of a rule for which the API server serves kinds.
#[derive(Clone, Copy)]
struct Match<'a> {
    /// The number of combinations before it.
    position: u128,
    /// The kinds; not empty.
    kinds: &'a [Resource],
}

/// The combinations of a rule: each group with each version with each resource, in this order.
struct Combinations<'a> {
    groups: Names<'a>,
    versions: Names<'a>,
    resources: Names<'a>,
}

impl<'a> Combinations<'a> {
    /// Returns the combinations without wildcards and subresources; `None` if the rule matches all groups or versions.
    fn new(rule: &'a ResourceRule) -> Option<Self> {
        if has_wildcard(&rule.groups) || has_wildcard(&rule.versions) {
            return None;
        }
        let whole = rule.resources.iter().filter(|resource| !resource.contains(['*', '/']));
        Some(Self {
            groups: rule.groups.iter().map(|group| Cow::Borrowed(&**group)).collect(),
            versions: rule.versions.iter().map(|version| Cow::Borrowed(&**version)).collect(),
            // Upstream's mapper ignores the case of resources.
            resources: whole.map(|resource| lowercase(resource)).collect(),
        })
    }

    /// Returns the number of combinations.
    fn len(&self) -> u128 {
        self.groups.len() * self.versions.len() * self.resources.len()
    }

    /// Returns the first matches, in order. Each match has at least one kind, so [`MAX_KINDS`] matches are enough.
    fn matches<'s>(&self, served: &'s ByGroup) -> Vec<Match<'s>> {
        let of_resource = |kinds: &'s Vec<Resource>| vec![Match { position: 0, kinds }];
        let of_version = |resources: &'s ByResource| self.resources.matches(resources, 1, of_resource);
        let of_group = |versions: &'s ByVersion| self.versions.matches(versions, self.resources.len(), of_version);
        self.groups.matches(served, self.versions.len() * self.resources.len(), of_group)
    }
}

fn has_wildcard(names: &[String]) -> bool {
    names.iter().any(|name| name.contains('*'))
}

/// Returns the name in lower case; borrowed if the name has only lower-case ASCII.
fn lowercase(name: &str) -> Cow<'_, str> {
    let is_lowercase = name.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
    if is_lowercase { Cow::Borrowed(name) } else { Cow::Owned(name.to_lowercase()) }
}

/// A sorted list of names, which may repeat.
struct Names<'a> {
    positions: BTreeMap<Cow<'a, str>, Range<usize>>,
}

impl<'a> FromIterator<Cow<'a, str>> for Names<'a> {
    fn from_iter<I: IntoIterator<Item = Cow<'a, str>>>(names: I) -> Self {
        let mut positions = BTreeMap::<_, Range<usize>>::new();
        for name in names {
            positions.entry(name).or_insert(0..0).end += 1;
        }
        let mut next = 0;
        for range in positions.values_mut() {
            *range = next..next + range.end;
            next = range.end;
        }
        Self { positions }
    }
}

impl Names<'_> {
    fn len(&self) -> u128 {
        self.positions.last_key_value().map_or(0, |(_, range)| range.end as u128)
    }

    /// Returns the first matches of the served names, in order. Each name stands for `size` combinations; `inner`
    /// returns the matches among the served entries below it.
    fn matches<'s, T>(
        &self,
        served: &'s BTreeMap<&'static str, T>,
        size: u128,
        inner: impl Fn(&'s T) -> Vec<Match<'s>>,
    ) -> Vec<Match<'s>> {
        let mut matches = Vec::new();
        for (positions, below) in self.served(served) {
            let found = inner(below);
            if found.is_empty() {
                continue;
            }
            for position in positions {
                let start = position as u128 * size;
                matches.extend(found.iter().map(|one| Match { position: start + one.position, ..*one }));
                if matches.len() >= MAX_KINDS {
                    return matches;
                }
            }
        }
        matches
    }

    /// Returns the names that are served. Searches each entry of the smaller list in the larger one, so that neither
    /// many names nor many kinds make the search slow.
    fn served<'s, T>(&self, served: &'s BTreeMap<&'static str, T>) -> Vec<(Range<usize>, &'s T)> {
        if self.positions.len() < served.len() {
            let names = self.positions.iter();
            return names.filter_map(|(name, range)| Some((range.clone(), served.get(&**name)?))).collect();
        }
        served.iter().filter_map(|(name, below)| Some((self.positions.get(*name)?.clone(), below))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use runtime::testing::CpuTime;

    use super::*;

    const fn resource(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Resource {
        Resource { group, version, kind, plural, namespaced: true }
    }

    fn rule(groups: &[&str], versions: &[&str], resources: &[&str]) -> ResourceRule {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        ResourceRule { groups: owned(groups), versions: owned(versions), resources: owned(resources) }
    }

    fn names(matched: &MatchedKinds) -> Vec<String> {
        matched.kinds.iter().map(ToString::to_string).collect()
    }

    /// Names with static lifetime, as discovery has them.
    fn numbered(prefix: &str, count: usize) -> Vec<&'static str> {
        (0..count).map(|number| &*format!("{prefix}{number:04}").leak()).collect()
    }

    #[test]
    fn kinds_are_those_of_resources_without_wildcards() {
        let served = [
            resource("", "v1", "Pod", "pods"),
            resource("", "v1", "Event", "events"),
            resource("events.k8s.io", "v1", "Event", "events"),
            resource("a", "v1", "X", "xs"),
            resource("a", "v1", "Y", "ys"),
            resource("b", "v1", "X", "xs"),
        ];
        for (name, rules, expected, has_unknown) in [
            ("sorted", vec![rule(&["b", "a"], &["v1"], &["xs"])], vec!["a/v1, Kind=X", "b/v1, Kind=X"], false),
            ("core", vec![rule(&[""], &["v1"], &["pods"])], vec!["/v1, Kind=Pod"], false),
            (
                "core matches all groups",
                vec![rule(&[""], &["v1"], &["Events"])],
                vec!["/v1, Kind=Event", "events.k8s.io/v1, Kind=Event"],
                false,
            ),
            ("case", vec![rule(&["a"], &["v1"], &["Xs"])], vec!["a/v1, Kind=X"], false),
            ("any group", vec![rule(&["*"], &["v1"], &["xs"])], vec![], false),
            ("any version", vec![rule(&["a"], &["v1", "*"], &["xs"])], vec![], false),
            (
                "other rule",
                vec![rule(&["*"], &["v1"], &["xs"]), rule(&["a"], &["v1"], &["xs"])],
                vec!["a/v1, Kind=X"],
                false,
            ),
            ("subresource", vec![rule(&["a"], &["v1"], &["xs/status", "*", "ys"])], vec!["a/v1, Kind=Y"], false),
            ("unknown resource", vec![rule(&["a"], &["v1"], &["unknown", "xs"])], vec!["a/v1, Kind=X"], true),
            ("unknown group", vec![rule(&["a", "z"], &["v1"], &["xs"])], vec!["a/v1, Kind=X"], true),
            ("unknown version", vec![rule(&["a"], &["v1", "v2"], &["xs"])], vec!["a/v1, Kind=X"], true),
            ("empty list", vec![rule(&["a"], &[], &["xs"])], vec![], false),
            ("none", vec![], vec![], false),
        ] {
            let found = matched_kinds(&rules, served.into_iter());
            assert_eq!(
                (names(&found), found.has_unknown),
                (expected.iter().map(ToString::to_string).collect(), has_unknown),
                "{name}"
            );
        }
    }

    #[test]
    fn tenth_kind_of_a_rule_is_the_last_one() {
        let many = numbered("r", 20);
        let mut served: Vec<Resource> = many.iter().map(|name| resource("a", "v1", name, name)).collect();
        served.push(resource("z", "v1", "X", "xs"));
        let last = rule(&["z"], &["v1"], &["xs"]);
        let limited = matched_kinds(&[rule(&["a"], &["v1"], &many), last.clone()], served.iter().copied());
        assert_eq!(names(&limited).last().expect("a kind"), "a/v1, Kind=r0009");
        let below = matched_kinds(&[rule(&["a"], &["v1"], &many[..9]), last.clone()], served.iter().copied());
        assert_eq!(names(&below).last().expect("a kind"), "z/v1, Kind=X");
        let repeated = matched_kinds(&[rule(&["a"], &["v1"], &["r0000"; 10]), last], served.iter().copied());
        assert_eq!(names(&repeated), ["a/v1, Kind=r0000"]);
    }

    /// Returns the expected kinds: searches each combination in the list of served kinds.
    fn product(rules: &[ResourceRule], served: &[Resource]) -> MatchedKinds {
        let sorted = |names: &[String]| {
            let mut names: Vec<String> = names.to_vec();
            names.sort();
            names
        };
        let mut matched = MatchedKinds::default();
        for rule in rules.iter().filter(|rule| !has_wildcard(&rule.groups) && !has_wildcard(&rule.versions)) {
            let mut count = 0;
            for group in sorted(&rule.groups) {
                for version in sorted(&rule.versions) {
                    for plural in sorted(&rule.resources).iter().filter(|name| !name.contains(['*', '/'])) {
                        let is_group = |kind: &Resource| group.is_empty() || kind.group == group;
                        let is_match =
                            |kind: &&Resource| is_group(kind) && kind.version == version && kind.plural == plural;
                        let mut found: Vec<&Resource> = served.iter().filter(is_match).collect();
                        found.sort_by_key(|kind| (kind.group, kind.kind));
                        matched.has_unknown |= found.is_empty();
                        for kind in found {
                            matched.kinds.insert(gvk(kind));
                            count += 1;
                            if count == MAX_KINDS {
                                return matched;
                            }
                        }
                    }
                }
            }
        }
        matched
    }

    fn list(names: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(prop::sample::select(names).prop_map(str::to_owned), 0..5)
    }

    proptest! {
        #[test]
        fn kinds_are_those_of_the_product(
            lists in prop::collection::vec(
                (list(&["", "a", "b", "c", "z"]), list(&["v1", "v2", "v3"]), list(&["xs", "ys", "zs", "ws", "xs/status"])),
                0..4,
            ),
            served in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        ) {
            let rules: Vec<_> = lists
                .into_iter()
                .map(|(groups, versions, resources)| ResourceRule { groups, versions, resources })
                .collect();
            let mut possible = Vec::new();
            for group in ["", "a", "b", "c"] {
                for version in ["v1", "v2"] {
                    for (kind, plural) in [("X", "xs"), ("Y", "ys"), ("Z", "zs"), ("Zz", "zs")] {
                        possible.push(resource(group, version, kind, plural));
                    }
                }
            }
            let chosen: BTreeSet<usize> = served.iter().map(|index| index.index(possible.len())).collect();
            let served: Vec<Resource> = chosen.into_iter().map(|index| possible[index]).collect();
            prop_assert_eq!(matched_kinds(&rules, served.iter().copied()), product(&rules, &served));
        }
    }

    #[test]
    fn kinds_of_long_lists_are_found_in_time() {
        let (groups, versions, resources) = (numbered("g", 2_000), numbered("v", 2_000), numbered("r", 2_000));
        let served: Vec<Resource> = (0..2_000).map(|n| resource(groups[n], "v1", "K", resources[n])).collect();
        let mut found = served.clone();
        found.push(resource(groups[1_999], versions[1_999], "Last", resources[1_999]));
        let long = rule(&groups, &versions, &resources);
        let started = CpuTime::now();
        for (name, rules, expected) in [
            ("long lists", vec![long.clone()], vec!["g1999/v1999, Kind=Last"]),
            ("long lists twice", vec![long.clone(), long], vec!["g1999/v1999, Kind=Last"]),
            (
                "repeated names that are not served",
                vec![rule(&["g"; 100_000], &["v"; 100_000], &["r"; 100_000])],
                vec![],
            ),
            (
                "repeated names without a match",
                vec![rule(&["g0000"; 100_000], &["v1"; 100_000], &["r0001"; 100_000])],
                vec![],
            ),
            (
                "repeated names",
                vec![rule(&["g0000"; 100_000], &["v1"; 100_000], &["r0000"; 100_000])],
                vec!["g0000/v1, Kind=K"],
            ),
            ("many rules", vec![rule(&["g0001"], &["v1"], &["r0000"]); 30_000], vec![]),
        ] {
            let matched = matched_kinds(&rules, found.iter().copied());
            assert_eq!(names(&matched), expected, "{name}");
            assert_eq!(matched.has_unknown, name != "repeated names", "{name}");
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
}
