//! The list of attached volumes in a node's status: which entries a write adds and removes, and when it is sent.
//!
//! A volume that moves alone with its pod is not delayed, unless the status of one of its nodes was written shortly
//! before. Between its release by one kubelet and its mount by the next one are only four writes (list, deletion,
//! attachment, list), their watch events, and the calls of the driver. If further changes of a node are expected, the
//! node's next write waits for them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use kinds::Str;
use kinds::node_volumes::AttachedVolume;
use tokio::time::Instant;

use crate::storage::lost_write::REQUEST_TIMEOUT;

/// Minimum time between two writes of a node, as a multiple of the duration of the last one: a slow API server gets
/// fewer and larger writes. If a pod waits, the multiple is the number of nodes whose list has to be written, up to this
/// one, as if one node was written after the other. That is upstream's order: there, a node of a larger cluster waits
/// longer.
const PAUSE_FACTOR: u32 = 20;
/// Time for which a pod may wait on any API server so that the changes of several volumes share a write. Upstream
/// writes the nodes in passes with this pause.
const PASS: Duration = Duration::from_millis(100);
/// Maximum time between two writes of a node while no further change is expected.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Maximum time between two writes of a node while further changes are expected. The time exceeds [`MAX_PAUSE`] only if
/// a write takes more than 100 ms.
const MAX_BATCH_PAUSE: Duration = Duration::from_secs(4);
/// Shortest time between two writes of a node, if no pod waits for the second one and further changes are expected. It
/// is short, because the deletion of a volume or of a node waits for the detachment.
const RELAXED_PAUSE: Duration = Duration::from_millis(500);
/// Time for which the response to a write is used to show that a kubelet does not use a volume.
const RELEASE_LIFETIME: Duration = Duration::from_secs(5);

/// Decision about an entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decision {
    is_listed: bool,
    /// A pod waits for the write.
    is_awaited: bool,
}

/// Decisions about the entries of a node's list, and the write that is under way.
#[derive(Debug, Default)]
pub struct NodeList {
    /// Volumes that the list must have or must not have. Entries without a decision stay as they are.
    decisions: HashMap<Str, Decision>,
    /// Volumes whose entry will change soon: the driver attaches them, or the kubelet unmounts them.
    expected: HashSet<Str>,
    /// Volumes in the list that was sent last, until the cache contains it or the write has certainly failed.
    writing: BTreeSet<Str>,
    /// The time at which a write ended without a response, and the list that it replaces.
    lost: Option<(Instant, Vec<AttachedVolume>)>,
    /// The end and the duration of the last successful write.
    last_write: Option<(Instant, Duration)>,
    /// Volumes that were removed from the list while the kubelet did not use them, with the time of the removal.
    released: HashMap<Str, Instant>,
}

impl NodeList {
    /// Stores the decision whether the list has to contain a volume, and whether a pod waits for the write. Returns
    /// true if the node has to be reconciled.
    pub fn decide(&mut self, volume: &Str, is_listed: bool, is_awaited: bool) -> bool {
        if is_listed {
            self.released.remove(volume);
        }
        let before = self.decisions.insert(volume.clone(), Decision { is_listed, is_awaited });
        before.is_none_or(|before| before.is_listed != is_listed || (is_awaited && !before.is_awaited))
    }

    /// Records that the entry of a volume will change soon.
    pub fn expect_change(&mut self, volume: &Str) {
        self.expected.insert(volume.clone());
    }

    /// Records that a change of a volume's entry is no longer expected. Returns true if it was the last one: a write
    /// that waits need not wait longer.
    pub fn expect_no_change(&mut self, volume: &str) -> bool {
        self.expected.remove(volume) && self.expected.is_empty()
    }

    /// Removes the decisions about a volume that the node no longer uses. Returns true if the last expected change was
    /// that of this volume.
    pub fn forget(&mut self, volume: &str) -> bool {
        self.decisions.remove(volume);
        self.released.remove(volume);
        self.expect_no_change(volume)
    }

    /// Returns true if there is no decision, expected change, write or release to remember.
    pub fn is_empty(&self) -> bool {
        let has_write = !self.writing.is_empty() || self.lost.is_some();
        self.decisions.is_empty() && self.expected.is_empty() && !has_write && self.released.is_empty()
    }

    /// Returns true if a write that lists a volume may be under way.
    pub fn may_be_writing(&self, volume: &str) -> bool {
        self.writing.contains(volume)
    }

    /// Returns the list to be written; `None` if the current one is up to date. New entries follow the existing ones,
    /// sorted by name, so that equal states give equal lists.
    pub fn plan(&self, current: &[AttachedVolume]) -> Option<Vec<AttachedVolume>> {
        let stays = |entry: &&AttachedVolume| self.decisions.get(&entry.name).is_none_or(|decision| decision.is_listed);
        let mut planned: Vec<AttachedVolume> = current.iter().filter(stays).cloned().collect();
        let listed = names(current);
        let wanted = self.decisions.iter().filter(|(name, decision)| decision.is_listed && !listed.contains(&***name));
        let mut added: Vec<&Str> = wanted.map(|(name, _)| name).collect();
        if added.is_empty() && planned.len() == current.len() {
            return None;
        }
        added.sort_unstable();
        planned.extend(added.into_iter().map(|name| AttachedVolume { name: name.clone(), device_path: "".into() }));
        Some(planned)
    }

    /// Returns the time until the list should be written. Zero after a quiet time, so that single changes never wait.
    /// `due` is the number of nodes whose list has to be written, with this one.
    pub fn pause(&self, current: &[AttachedVolume], due: usize, now: Instant) -> Duration {
        let Some((end, took)) = self.last_write else { return Duration::ZERO };
        let pause = took.saturating_mul(PAUSE_FACTOR);
        let is_awaited = self.is_awaited(current);
        let pause = if is_awaited {
            let turn = took.saturating_mul(u32::try_from(due).unwrap_or(u32::MAX));
            pause.min(turn.max(PASS))
        } else {
            pause
        };
        let pause = if self.expected.is_empty() {
            pause.min(MAX_PAUSE)
        } else if is_awaited {
            pause.min(MAX_BATCH_PAUSE)
        } else {
            pause.clamp(RELAXED_PAUSE, MAX_BATCH_PAUSE)
        };
        (end + pause).saturating_duration_since(now)
    }

    /// Returns true if a pod waits for a change of the current list.
    fn is_awaited(&self, current: &[AttachedVolume]) -> bool {
        let listed = names(current);
        let mut awaited = self.decisions.iter().filter(|(_, decision)| decision.is_awaited);
        awaited.any(|(name, decision)| decision.is_listed != listed.contains(&**name))
    }

    /// Records the start of a write of this list. The volumes of an earlier write without a response are kept.
    pub fn begin_write(&mut self, list: &[AttachedVolume]) {
        if self.lost.is_none() {
            self.writing.clear();
        }
        self.writing.extend(list.iter().map(|entry| entry.name.clone()));
    }

    /// Records that a write over the `current` list ended without a response. The API server may still make it.
    pub fn lose_write(&mut self, current: &[AttachedVolume], now: Instant) {
        self.lost = Some((now, current.to_vec()));
    }

    /// Returns the time for which the API server may still make a write without a response, as long as the list does
    /// not change; zero if there is none.
    pub fn time_to_fail(&self, now: Instant) -> Duration {
        self.lost.as_ref().map_or(Duration::ZERO, |(lost, _)| (*lost + REQUEST_TIMEOUT).saturating_duration_since(now))
    }

    /// Records that the cache contains the result of the last write, or that the write certainly failed, unless the API
    /// server may still make an earlier one. Returns the volumes of those writes that are not in the current list.
    pub fn end_write(&mut self, current: &[AttachedVolume], now: Instant) -> Vec<Str> {
        // A write is refused after the list has changed.
        if !self.time_to_fail(now).is_zero() && self.lost.as_ref().is_some_and(|(_, replaced)| *replaced == *current) {
            return Vec::new();
        }
        self.lost = None;
        let mut written = std::mem::take(&mut self.writing);
        current.iter().for_each(|entry| {
            written.remove(&entry.name);
        });
        written.into_iter().collect()
    }

    /// Records a write that succeeded at `now`, its duration `took`, and the removed volumes that the kubelet did not
    /// use according to the response.
    pub fn written(&mut self, now: Instant, took: Duration, released: Vec<Str>) {
        self.last_write = Some((now, took));
        self.released.extend(released.into_iter().map(|volume| (volume, now)));
    }

    /// Returns true, once, if the kubelet did not use a volume when it was removed from the list a short time ago. A
    /// kubelet first reports a volume as in use, and mounts it only if the list then contains it.
    pub fn take_release(&mut self, volume: &str, now: Instant) -> bool {
        let since = self.released.remove(volume);
        since.is_some_and(|since| now.saturating_duration_since(since) < RELEASE_LIFETIME)
    }
}

/// Returns the volumes of the first list that the second one lacks.
pub fn removed(current: &[AttachedVolume], list: &[AttachedVolume]) -> Vec<Str> {
    let kept = names(list);
    current.iter().filter(|entry| !kept.contains(&*entry.name)).map(|entry| entry.name.clone()).collect()
}

fn names(list: &[AttachedVolume]) -> HashSet<&str> {
    list.iter().map(|entry| &*entry.name).collect()
}

#[cfg(test)]
mod tests {
    use runtime::testing::CpuTime;

    use super::*;

    fn entries(names: &[&str]) -> Vec<AttachedVolume> {
        names.iter().map(|name| AttachedVolume { name: (*name).into(), device_path: "".into() }).collect()
    }

    #[test]
    fn only_entries_with_a_decision_change() {
        for (name, current, decisions, expected) in [
            ("nothing decided", &["a"][..], &[][..], None),
            ("as decided", &["a"], &[("a", true), ("b", false)], None),
            ("added", &["z"], &[("b", true), ("a", true)], Some(&["z", "a", "b"][..])),
            ("removed", &["a", "b"], &[("a", false)], Some(&["b"])),
            ("last one removed", &["a"], &[("a", false)], Some(&[])),
            ("both", &["a"], &[("a", false), ("b", true)], Some(&["b"])),
        ] {
            let mut list = NodeList::default();
            decisions.iter().for_each(|(volume, is_listed)| {
                list.decide(&Str::from(*volume), *is_listed, true);
            });
            assert_eq!(list.plan(&entries(current)), expected.map(entries), "{name}");
        }
    }

    #[test]
    fn entry_that_stays_keeps_its_device_path() {
        let mut list = NodeList::default();
        list.decide(&"b".into(), true, true);
        let current = [AttachedVolume { name: "a".into(), device_path: "/dev/sdb".into() }];
        assert_eq!(&*list.plan(&current).expect("it changes")[0].device_path, "/dev/sdb");
    }

    #[test]
    fn written_volume_counts_as_listed_until_the_write_has_ended() {
        let mut list = NodeList::default();
        assert!(list.decide(&"a".into(), true, true) && !list.decide(&"a".into(), true, true));
        let planned = list.plan(&[]).expect("it changes");
        list.begin_write(&planned);
        assert!(list.decide(&"a".into(), false, true) && list.may_be_writing("a"));
        assert_eq!(list.end_write(&[], Instant::now()), ["a".into()]);
        assert!(!list.may_be_writing("a"));
        assert!(!list.forget("a") && list.is_empty());
        list.begin_write(&planned);
        assert!(list.end_write(&planned, Instant::now()).is_empty(), "the current list has it");
    }

    #[tokio::test(start_paused = true)]
    async fn write_without_a_response_counts_until_the_list_has_changed_or_the_request_has_ended() {
        let (second, lost) = (Duration::from_secs(1), Instant::now());
        let late = lost + REQUEST_TIMEOUT;
        let (old, new) = (entries(&["a"]), entries(&["a", "b"]));
        for (case, current, now, expected) in [
            ("may be made", &old, late - second, &[][..]),
            ("timed out", &old, late, &["b", "c"]),
            ("made", &new, lost, &["c"]),
            ("refused", &entries(&["d"]), lost, &["a", "b", "c"]),
        ] {
            let mut list = NodeList::default();
            list.begin_write(&new);
            list.lose_write(&old, lost);
            list.begin_write(&entries(&["a", "c"]));
            assert_eq!(list.time_to_fail(late - second), second, "{case}");
            let expected: Vec<Str> = expected.iter().map(|name| Str::from(*name)).collect();
            assert_eq!(list.end_write(current, now), expected, "{case}");
            let has_ended = !expected.is_empty();
            assert_eq!((list.is_empty(), list.may_be_writing("b")), (has_ended, !has_ended), "{case}");
        }
    }

    #[test]
    fn next_write_waits_longer_when_more_changes_are_expected() {
        let now = Instant::now();
        let volume = Str::from("a");
        let current = entries(&["a"]);
        for (name, is_expecting, is_awaited, due, took_ms, expected_ms) in [
            ("alone", false, true, 1, 5, 100),
            ("alone, fast API server", false, true, 1, 1, 20),
            ("alone, slow API server", false, true, 1, 50, 100),
            ("alone, slow API server, a few nodes", false, true, 6, 50, 300),
            ("alone, slow API server, many nodes", false, true, 100, 50, 1000),
            ("alone, very slow API server", false, true, 1, 1500, 1500),
            ("alone, very slow API server, many nodes", false, true, 100, 5000, 2000),
            ("alone, not awaited", false, false, 1, 5, 100),
            ("alone, not awaited, slow API server", false, false, 1, 50, 1000),
            ("one of several", true, true, 1, 5, 100),
            ("one of several, slow API server", true, true, 1, 50, 100),
            ("one of several, slow API server, many nodes", true, true, 20, 50, 1000),
            ("one of several, very slow API server, many nodes", true, true, 20, 5000, 4000),
            ("one of several, not awaited", true, false, 1, 5, 500),
            ("one of several, not awaited, slow API server", true, false, 1, 50, 1000),
        ] {
            let mut list = NodeList::default();
            list.decide(&volume, false, is_awaited);
            if is_expecting {
                list.expect_change(&"b".into());
            }
            assert_eq!(list.pause(&current, due, now), Duration::ZERO, "{name}: the first write");
            list.written(now, Duration::from_millis(took_ms), Vec::new());
            let expected = Duration::from_millis(expected_ms);
            assert_eq!(list.pause(&current, due, now), expected, "{name}");
            assert_eq!(list.pause(&current, due, now + expected), Duration::ZERO, "{name}: after the pause");
        }
    }

    #[test]
    fn change_that_nothing_waits_for_is_written_with_an_awaited_one() {
        let mut list = NodeList::default();
        let now = Instant::now();
        list.expect_change(&"d".into());
        list.written(now, Duration::ZERO, Vec::new());
        list.decide(&"a".into(), false, false);
        list.decide(&"c".into(), true, true);
        assert_eq!(list.pause(&entries(&["a", "b"]), 1, now), Duration::ZERO);
        assert_eq!(list.plan(&entries(&["a", "b"])), Some(entries(&["b", "c"])));
        assert_eq!(
            list.pause(&entries(&["a", "b", "c"]), 1, now),
            RELAXED_PAUSE,
            "only the awaited change is in the list"
        );
        assert!(list.decide(&"a".into(), false, true), "another node waits by now");
        assert_eq!(list.pause(&entries(&["a", "b", "c"]), 1, now), Duration::ZERO);
    }

    #[test]
    fn write_waits_no_longer_after_the_last_expected_change() {
        let mut list = NodeList::default();
        let now = Instant::now();
        list.decide(&"a".into(), false, false);
        ["b", "c", "d"].iter().for_each(|volume| list.expect_change(&Str::from(*volume)));
        list.written(now, Duration::ZERO, Vec::new());
        assert_eq!(list.pause(&entries(&["a"]), 1, now), RELAXED_PAUSE);
        assert!(!list.expect_no_change("b") && !list.forget("c"), "one is left");
        assert!(list.expect_no_change("d") && !list.expect_no_change("d"), "it is reported once");
        assert_eq!(list.pause(&entries(&["a"]), 1, now), Duration::ZERO);
    }

    /// Tens of thousands of entries by a compromised kubelet must not stop the manager: with a scan of the list for
    /// each decision, this test would take minutes.
    #[test]
    fn list_of_very_many_volumes_is_planned_in_linear_time() {
        const VOLUMES: usize = 100_000;
        let name = |number: usize| Str::from(format!("kubernetes.io/csi/disk.example.com^volume-{number:08}"));
        let entry = |number| AttachedVolume { name: name(number), device_path: "".into() };
        let current: Vec<AttachedVolume> = (0..VOLUMES).map(entry).collect();
        let mut list = NodeList::default();
        let (now, started) = (Instant::now(), CpuTime::now());
        (0..VOLUMES).for_each(|number| {
            list.decide(&name(number), true, true);
        });
        list.written(now, Duration::from_secs(1), Vec::new());
        assert!(!list.pause(&current, 1, now).is_zero() && list.plan(&current).is_none());
        list.begin_write(&current);
        assert!((0..VOLUMES).all(|number| list.may_be_writing(&name(number))));
        assert!(list.end_write(&current, now).is_empty());
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    }

    #[test]
    fn removed_volumes_are_those_that_the_new_list_lacks() {
        assert_eq!(removed(&entries(&["a", "b", "c"]), &entries(&["b", "d"])), ["a".into(), "c".into()]);
    }

    #[test]
    fn release_counts_once_for_a_short_time_and_until_the_volume_is_listed() {
        let now = Instant::now();
        let volume = Str::from("a");
        let released = || {
            let mut list = NodeList::default();
            list.decide(&volume, false, true);
            list.written(now, Duration::ZERO, vec![volume.clone()]);
            list
        };
        let mut list = released();
        assert!(list.take_release("a", now) && !list.take_release("a", now));
        assert!(!released().take_release("a", now + RELEASE_LIFETIME));
        let mut list = released();
        list.decide(&volume, true, true);
        assert!(!list.take_release("a", now));
        let mut list = released();
        assert!(!list.forget("a") && list.is_empty());
    }
}
