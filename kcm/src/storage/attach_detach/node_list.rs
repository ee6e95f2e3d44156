//! The list of attached volumes in a node's status: which entries a write adds and removes, and when it is sent.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use kinds::Str;
use kinds::node_volumes::AttachedVolume;
use tokio::time::Instant;

/// A slow API server gets fewer and larger writes: between two writes of a node pass this many times the duration of
/// the last one. Upstream's writes of all nodes follow each other, so that with more nodes a node waits longer.
const PAUSE_FACTOR: u32 = 20;
/// Longest time between two writes of a node, if something waits for the second one.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Shortest time between two writes of a node, if no pod waits for the second one. Users still see it: the deletion of a
/// volume or of a node waits for the detachment.
const RELAXED_PAUSE: Duration = Duration::from_millis(500);
/// The response to a write shows for this time that a kubelet does not use a volume.
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
    /// Volumes in the list that is being written, or was written with an unknown result.
    writing: Vec<Str>,
    /// The end of the last successful write, and the pause after it.
    last_write: Option<(Instant, Duration)>,
    /// Volumes that were removed from the list while the kubelet did not use them, and when.
    released: HashMap<Str, Instant>,
}

impl NodeList {
    /// Decides whether the list has to contain a volume, and whether a pod waits for that. Returns true if the node has to
    /// be reconciled.
    pub fn decide(&mut self, volume: &Str, is_listed: bool, is_awaited: bool) -> bool {
        if is_listed {
            self.released.remove(volume);
        }
        let before = self.decisions.insert(volume.clone(), Decision { is_listed, is_awaited });
        before.is_none_or(|before| before.is_listed != is_listed || (is_awaited && !before.is_awaited))
    }

    /// Removes the decision about a volume that has nothing to do with the node.
    pub fn forget(&mut self, volume: &str) {
        self.decisions.remove(volume);
        self.released.remove(volume);
    }

    /// Returns true if nothing is known about the node.
    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.writing.is_empty() && self.released.is_empty()
    }

    /// Returns true if a write that lists a volume may be under way.
    pub fn may_be_writing(&self, volume: &str) -> bool {
        self.writing.iter().any(|name| &**name == volume)
    }

    /// Returns the list to be written; `None` if the current one is right. New entries follow the existing ones, sorted
    /// by name, so that equal states give equal lists.
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
    pub fn pause(&self, current: &[AttachedVolume], now: Instant) -> Duration {
        let Some((end, pause)) = self.last_write else { return Duration::ZERO };
        let is_current = |name: &Str| current.iter().any(|entry| entry.name == *name);
        let is_awaited =
            self.decisions.iter().any(|(name, decision)| decision.is_awaited && decision.is_listed != is_current(name));
        let pause = if is_awaited { pause } else { pause.max(RELAXED_PAUSE) };
        (end + pause).saturating_duration_since(now)
    }

    /// Notes that this list is about to be written.
    pub fn begin_write(&mut self, list: &[AttachedVolume]) {
        self.writing = list.iter().map(|entry| entry.name.clone()).collect();
    }

    /// Notes that the cache contains the result of the last write, or that the write certainly failed. Returns the
    /// volumes of that write.
    pub fn end_write(&mut self) -> Vec<Str> {
        std::mem::take(&mut self.writing)
    }

    /// Notes that a write has succeeded at `now` after this time, and that the kubelet did not use the removed volumes in
    /// `released` after it.
    pub fn written(&mut self, now: Instant, took: Duration, released: Vec<Str>) {
        self.last_write = Some((now, (took * PAUSE_FACTOR).min(LONGEST_PAUSE)));
        self.released.extend(released.into_iter().map(|volume| (volume, now)));
    }

    /// Reports, once, whether the kubelet did not use a volume a short time ago, after it was removed from the list. The
    /// kubelet mounts only volumes that it finds in the list after it has reported them as in use.
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
    use super::*;

    fn entries(names: &[&str]) -> Vec<AttachedVolume> {
        names.iter().map(|name| AttachedVolume { name: (*name).into(), device_path: "".into() }).collect()
    }

    #[test]
    fn list_changes_only_where_it_was_decided() {
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
        assert_eq!(list.end_write(), ["a".into()]);
        assert!(!list.may_be_writing("a"));
        list.forget("a");
        assert!(list.is_empty());
    }

    #[test]
    fn next_write_waits_longer_when_nothing_waits_for_it() {
        let (now, volume) = (Instant::now(), Str::from("a"));
        let current = entries(&["a"]);
        for (name, is_awaited, took_ms, expected_ms) in [
            ("awaited", true, 5, 100),
            ("awaited, slow API server", true, 50, 1000),
            ("awaited, very slow API server", true, 5000, 2000),
            ("not awaited", false, 5, 500),
            ("not awaited, slow API server", false, 50, 1000),
        ] {
            let mut list = NodeList::default();
            list.decide(&volume, false, is_awaited);
            assert_eq!(list.pause(&current, now), Duration::ZERO, "{name}: the first write");
            list.written(now, Duration::from_millis(took_ms), Vec::new());
            let expected = Duration::from_millis(expected_ms);
            assert_eq!(list.pause(&current, now), expected, "{name}");
            assert_eq!(list.pause(&current, now + expected), Duration::ZERO, "{name}: after the pause");
        }
    }

    #[test]
    fn change_that_nothing_waits_for_is_written_with_an_awaited_one() {
        let mut list = NodeList::default();
        let now = Instant::now();
        list.written(now, Duration::ZERO, Vec::new());
        list.decide(&"a".into(), false, false);
        list.decide(&"c".into(), true, true);
        assert_eq!(list.pause(&entries(&["a", "b"]), now), Duration::ZERO);
        assert_eq!(list.plan(&entries(&["a", "b"])), Some(entries(&["b", "c"])));
        assert_eq!(
            list.pause(&entries(&["a", "b", "c"]), now),
            RELAXED_PAUSE,
            "only the awaited change is in the list"
        );
        assert!(list.decide(&"a".into(), false, true), "another node waits by now");
        assert_eq!(list.pause(&entries(&["a", "b", "c"]), now), Duration::ZERO);
    }

    #[test]
    fn removed_volumes_are_those_that_the_new_list_lacks() {
        assert_eq!(removed(&entries(&["a", "b", "c"]), &entries(&["b", "d"])), ["a".into(), "c".into()]);
    }

    #[test]
    fn release_counts_once_for_a_short_time_and_until_the_volume_is_listed() {
        let (now, volume) = (Instant::now(), Str::from("a"));
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
        list.forget("a");
        assert!(list.is_empty());
    }
}
