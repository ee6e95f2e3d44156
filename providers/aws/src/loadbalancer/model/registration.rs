//! The calls that register targets in a target group. AWS refuses a whole call because of one of its targets, so refused
//! batches are halved: the other targets are registered, and the refused ones are known.

use crate::loadbalancer::types::Target;

/// Maximum number of targets in one call.
pub(crate) const TARGETS_PER_CALL: usize = 200;
/// Maximum number of halvings because of a quota, in one attempt for a target group. A zone may be full while another
/// one has room.
const MAX_HALVINGS_OF_FULL: u32 = 12;

/// The batches of targets that are not sent yet.
#[derive(Debug)]
pub(crate) struct Batches<'a> {
    waiting: Vec<&'a [&'a Target]>,
    /// Remaining halvings because of a quota.
    halvings_of_full: u32,
}

impl<'a> Batches<'a> {
    pub(crate) fn new(targets: &'a [&'a Target]) -> Self {
        let waiting = targets.chunks(TARGETS_PER_CALL).rev().collect();
        Self { waiting, halvings_of_full: MAX_HALVINGS_OF_FULL }
    }

    /// Returns the next batch.
    pub(crate) fn take(&mut self) -> Option<&'a [&'a Target]> {
        self.waiting.pop()
    }

    /// Halves a batch with a refused target. Returns false if it is a single target, or if no more `halvings` are
    /// allowed.
    pub(crate) fn halve(&mut self, batch: &'a [&'a Target], halvings: &mut u32) -> bool {
        if batch.len() < 2 || *halvings == 0 {
            return false;
        }
        *halvings -= 1;
        let (first, second) = batch.split_at(batch.len() / 2);
        self.waiting.extend([second, first]);
        true
    }

    /// Halves a batch that exceeds a quota. Returns false if it is not sent again.
    pub(crate) fn halve_full(&mut self, batch: &'a [&'a Target]) -> bool {
        let mut halvings = self.halvings_of_full;
        let is_halved = self.halve(batch, &mut halvings);
        self.halvings_of_full = halvings;
        is_halved
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::loadbalancer::observed::refused_targets::MAX_HALVINGS;

    fn targets(number: u16) -> BTreeSet<Target> {
        (1..=number).map(|port| Target { id: "10.0.0.1".into(), port }).collect()
    }

    /// The result of an attempt to register targets, which are distinguished by their ports.
    #[derive(Debug, Default)]
    struct Attempt {
        calls: usize,
        accepted: usize,
        alone: Vec<u16>,
        postponed: usize,
        full: usize,
    }

    /// Registers targets in a group that refuses some, and in which others exceed a quota.
    fn attempt(number: u16, refuses: impl Fn(u16) -> bool, exceeds: impl Fn(u16) -> bool) -> Attempt {
        let targets = targets(number);
        let all: Vec<&Target> = targets.iter().collect();
        let (mut batches, mut halvings) = (Batches::new(&all), MAX_HALVINGS);
        let mut attempt = Attempt::default();
        while let Some(batch) = batches.take() {
            attempt.calls += 1;
            assert!(batch.len() <= TARGETS_PER_CALL);
            if batch.iter().any(|target| refuses(target.port)) {
                if batches.halve(batch, &mut halvings) {
                    continue;
                }
                match batch {
                    [alone] => attempt.alone.push(alone.port),
                    _ => attempt.postponed += batch.len(),
                }
            } else if batch.iter().any(|target| exceeds(target.port)) {
                if !batches.halve_full(batch) {
                    attempt.full += batch.len();
                }
            } else {
                attempt.accepted += batch.len();
            }
        }
        attempt
    }

    #[test]
    fn refused_targets_do_not_affect_the_others() {
        let found = attempt(450, |port| [7, 8, 300].contains(&port), |_| false);
        assert_eq!((found.accepted, found.postponed, found.full), (447, 0, 0));
        assert_eq!(found.alone, [7, 8, 300]);
    }

    #[test]
    fn calls_are_limited_when_many_targets_are_refused() {
        let found = attempt(400, |port| port <= 390, |_| false);
        assert!(found.calls <= 2 + 2 * MAX_HALVINGS as usize, "{found:?}");
        assert!(!found.alone.is_empty(), "the next attempt leaves these out");
        assert_eq!(found.alone.len() + found.postponed + found.accepted, 400);
    }

    #[test]
    fn targets_of_a_zone_with_room_are_registered_although_another_zone_is_full() {
        let found = attempt(400, |_| false, |port| (50..=150).contains(&port));
        assert!(found.accepted >= 49 + 200, "{found:?}");
        let interleaved = attempt(8, |_| false, |port| port % 2 == 0);
        assert_eq!((interleaved.accepted, interleaved.full), (4, 4), "{interleaved:?}");
        let full = attempt(200, |_| false, |_| true);
        assert!(full.calls <= 1 + 2 * MAX_HALVINGS_OF_FULL as usize && full.full == 200, "{full:?}");
    }
}
