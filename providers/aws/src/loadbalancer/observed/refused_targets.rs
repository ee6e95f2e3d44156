//! Targets that AWS refused, with the time of the last attempt to register them.
//!
//! Targets change often during a rollout, and an attempt with refused targets costs several calls: batches are halved
//! until each refused target is alone. So refused targets are left out until a pause has passed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::loadbalancer::types::Target;

/// Time until the next attempt after the first one. It doubles with each further attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// Maximum time until the next attempt.
const MAX_PAUSE: Duration = Duration::from_secs(30 * 60);
/// Maximum number of halvings because of refused targets in one call of the provider. Each halving adds two calls, and
/// all Services share a rate limit of a few calls per second. The first refused target is found with at most eight
/// halvings.
pub(crate) const MAX_HALVINGS: u32 = 30;
/// Maximum number of targets that a warning names.
const MAX_NAMES: usize = 5;

/// The reason of targets that were not tried alone, because AWS refused too many others.
pub(crate) const POSTPONED: &str = "AWS refuses a call with this target and others; it is tried again soon";

/// Refused targets of one call, with the ARN of the target group, and the reason of AWS.
pub(crate) type Refused = BTreeMap<(String, Target), String>;

/// Returns the refusal of each target.
pub(crate) fn texts(refused: &Refused) -> Vec<String> {
    refused.iter().map(|((_, target), reason)| format!("target {} gets no traffic: {reason}", target.id)).collect()
}

/// Returns one warning about all refused targets, if there are any: with the names of the first, and one reason.
pub(crate) fn warning(refused: &Refused) -> Option<String> {
    let reason = refused.values().find(|reason| *reason != POSTPONED).or(refused.values().next())?;
    let ids: BTreeSet<&str> = refused.keys().map(|(_, target)| target.id.as_str()).collect();
    let named = ids.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    Some(match ids.len() {
        1 => format!("target {named} gets no traffic: {reason}"),
        number if number > MAX_NAMES => {
            format!("targets {named} and {} more get no traffic: {reason}", number - MAX_NAMES)
        }
        _ => format!("targets {named} get no traffic: {reason}"),
    })
}

#[derive(Debug)]
struct Refusal {
    reason: String,
    /// Time of the last attempt.
    at: Instant,
    /// Number of consecutive attempts.
    attempts: u32,
    /// The current call tries the target again, whatever the time.
    is_due: bool,
}

impl Refusal {
    /// Returns the time of the next attempt.
    fn next(&self) -> Instant {
        let pause = FIRST_PAUSE * 2_u32.pow(self.attempts.saturating_sub(1).min(16));
        self.at + pause.min(MAX_PAUSE)
    }
}

/// The refused targets of one Service.
#[derive(Debug)]
pub(crate) struct RefusedTargets {
    /// By the ARN of the target group.
    groups: BTreeMap<String, BTreeMap<Target, Refusal>>,
    /// The last call left out some targets, because AWS refused too many others.
    has_postponed: bool,
    /// Remaining halvings of batches with refused targets in the current call.
    pub halvings: u32,
}

impl Default for RefusedTargets {
    fn default() -> Self {
        Self { groups: BTreeMap::new(), has_postponed: false, halvings: MAX_HALVINGS }
    }
}

impl RefusedTargets {
    /// Begins a call; `tries_all`: the caller has waited, and the call tries each refused target once more. If the last
    /// call postponed some targets, these are tried first.
    pub(crate) fn begin(&mut self, tries_all: bool) {
        self.halvings = MAX_HALVINGS;
        let continues = std::mem::take(&mut self.has_postponed);
        for refusal in self.groups.values_mut().flat_map(BTreeMap::values_mut) {
            refusal.is_due = tries_all && !continues;
        }
    }

    /// Records that targets are left to the next call.
    pub(crate) fn postpone(&mut self) {
        self.has_postponed = true;
    }

    /// Returns true if the current call left targets to the next one.
    pub(crate) fn has_postponed(&self) -> bool {
        self.has_postponed
    }

    /// Returns the refused targets of a group.
    pub(crate) fn of(&self, group: &str) -> impl Iterator<Item = &Target> {
        self.groups.get(group).into_iter().flat_map(BTreeMap::keys)
    }

    /// Forgets targets that AWS accepted.
    pub(crate) fn accept(&mut self, group: &str, targets: &[&Target]) {
        if let Some(refused) = self.groups.get_mut(group) {
            refused.retain(|target, _| !targets.contains(&target));
        }
    }

    /// Removes from the targets to register in a group those whose next attempt is not due yet, and returns their
    /// refusals. Forgets refused targets that are not to be registered.
    pub(crate) fn withhold(&mut self, group: &str, register: &mut BTreeSet<Target>, now: Instant) -> Refused {
        let Some(refused) = self.groups.get_mut(group) else { return Refused::new() };
        refused.retain(|target, _| register.contains(target));
        let withheld = refused.iter().filter(|(_, refusal)| !refusal.is_due && now < refusal.next());
        let withheld = withheld.map(|(target, refusal)| ((group.to_owned(), target.clone()), refusal.reason.clone()));
        let withheld: Refused = withheld.collect();
        register.retain(|target| !withheld.contains_key(&(group.to_owned(), target.clone())));
        withheld
    }

    /// Records refused targets.
    pub(crate) fn record(&mut self, refused: &Refused, now: Instant) {
        for ((group, target), reason) in refused {
            let group = self.groups.entry(group.clone()).or_default();
            let attempts = group.get(target).map_or(0, |refusal| refusal.attempts).saturating_add(1);
            group.insert(target.clone(), Refusal { reason: reason.clone(), at: now, attempts, is_due: false });
        }
        // Old entries belong to target groups that no longer exist.
        self.groups.retain(|_, refused| {
            refused.retain(|_, refusal| now < refusal.at + 2 * MAX_PAUSE);
            !refused.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(id: &str) -> Target {
        Target { id: id.into(), port: 80 }
    }

    fn set(ids: &[&str]) -> BTreeSet<Target> {
        ids.iter().copied().map(target).collect()
    }

    fn refused(group: &str, ids: &[&str]) -> Refused {
        ids.iter().map(|id| ((group.to_owned(), target(id)), "not running".to_owned())).collect()
    }

    /// Returns the targets that a call to register all of these would send.
    fn sent(targets: &mut RefusedTargets, ids: &[&str], now: Instant) -> BTreeSet<Target> {
        let mut register = set(ids);
        targets.withhold("a", &mut register, now);
        register
    }

    #[test]
    fn refused_target_is_left_out_for_pauses_that_double() {
        let (mut targets, mut now) = (RefusedTargets::default(), Instant::now());
        for pause in [60, 120, 240, 480, 960, 1800, 1800] {
            targets.record(&refused("a", &["x"]), now);
            now += Duration::from_secs(pause - 1);
            assert_eq!(sent(&mut targets, &["x", "y"], now), set(&["y"]), "a second before {pause} s");
            now += Duration::from_secs(1);
            assert_eq!(sent(&mut targets, &["x", "y"], now), set(&["x", "y"]), "after {pause} s");
        }
    }

    #[test]
    fn refusal_is_returned_while_its_target_is_left_out() {
        let (mut targets, now) = (RefusedTargets::default(), Instant::now());
        targets.record(&refused("a", &["x"]), now);
        assert_eq!(targets.withhold("a", &mut set(&["x"]), now), refused("a", &["x"]));
        assert!(targets.withhold("b", &mut set(&["x"]), now).is_empty(), "another group accepts it");
        targets.begin(true);
        assert_eq!(sent(&mut targets, &["x"], now), set(&["x"]), "the call tries all targets");
        targets.begin(false);
        assert_eq!(sent(&mut targets, &["x"], now), set(&[]), "only that call");
    }

    #[test]
    fn call_tries_a_refused_target_once() {
        let (mut targets, now) = (RefusedTargets::default(), Instant::now());
        targets.record(&refused("a", &["x", "y"]), now);
        targets.begin(true);
        assert_eq!(sent(&mut targets, &["x", "y"], now), set(&["x", "y"]));
        targets.record(&refused("a", &["x"]), now);
        targets.accept("a", &[&target("y")]);
        assert_eq!(sent(&mut targets, &["x", "y"], now), set(&["y"]), "the target that was accepted is not recorded");
        assert_eq!(targets.of("a").collect::<Vec<_>>(), [&target("x")]);
    }

    #[test]
    fn postponed_targets_are_tried_before_refused_ones() {
        let (mut targets, now) = (RefusedTargets::default(), Instant::now());
        targets.begin(false);
        targets.record(&refused("a", &["x"]), now);
        targets.postpone();
        assert!(targets.has_postponed());
        targets.begin(true);
        assert_eq!(sent(&mut targets, &["x", "y"], now), set(&["y"]));
        assert!(!targets.has_postponed());
        targets.begin(true);
        assert_eq!(sent(&mut targets, &["x", "y"], now), set(&["x", "y"]));
        let mut both = Refused::from([(("a".to_owned(), target("w")), POSTPONED.to_owned())]);
        assert_eq!(warning(&both), Some(format!("target w gets no traffic: {POSTPONED}")));
        both.extend(refused("a", &["x"]));
        assert_eq!(warning(&both).as_deref(), Some("targets w, x get no traffic: not running"));
    }

    #[test]
    fn targets_that_are_no_longer_wanted_are_forgotten() {
        let (mut targets, now) = (RefusedTargets::default(), Instant::now());
        targets.record(&refused("a", &["x", "y"]), now);
        sent(&mut targets, &["y"], now);
        assert_eq!(targets.groups["a"].len(), 1);
        targets.record(&refused("b", &["z"]), now + 2 * MAX_PAUSE);
        assert_eq!(targets.groups.keys().collect::<Vec<_>>(), ["b"], "the group may not exist any longer");
    }

    #[test]
    fn one_warning_names_some_targets_and_the_number_of_all() {
        for (ids, expected) in [
            (&[][..], None),
            (&["a"], Some("target a gets no traffic: not running")),
            (&["a", "b"], Some("targets a, b get no traffic: not running")),
            (
                &["a", "b", "c", "d", "e", "f", "g"],
                Some("targets a, b, c, d, e and 2 more get no traffic: not running"),
            ),
        ] {
            let mut all = refused("arn:1", ids);
            all.extend(refused("arn:2", ids));
            assert_eq!(warning(&all).as_deref(), expected);
        }
    }
}
