//! The list of attached volumes in a node's status: which entries a write adds and removes.

use std::collections::HashMap;

use kinds::Str;
use kinds::node_volumes::AttachedVolume;

/// Decisions about the entries of a node's list, and the write that is under way.
#[derive(Debug, Default)]
pub struct NodeList {
    /// Volumes that the list must have (true) or must not have (false). Entries without a decision stay as they are.
    decisions: HashMap<Str, bool>,
    /// Volumes in the list that is being written, or was written with an unknown result.
    writing: Vec<Str>,
}

impl NodeList {
    /// Decides whether the list has to contain a volume. Returns true if that is a change.
    pub fn decide(&mut self, volume: &Str, is_listed: bool) -> bool {
        self.decisions.insert(volume.clone(), is_listed) != Some(is_listed)
    }

    /// Removes the decision about a volume that has nothing to do with the node.
    pub fn forget(&mut self, volume: &str) {
        self.decisions.remove(volume);
    }

    /// Returns true if nothing is known about the node.
    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty() && self.writing.is_empty()
    }

    /// Returns true if a write that lists a volume may be under way.
    pub fn may_be_writing(&self, volume: &str) -> bool {
        self.writing.iter().any(|name| &**name == volume)
    }

    /// Returns the list to be written; `None` if the current one is right. New entries follow the existing ones, sorted
    /// by name, so that equal states give equal lists.
    pub fn plan(&self, current: &[AttachedVolume]) -> Option<Vec<AttachedVolume>> {
        let stays = |entry: &&AttachedVolume| self.decisions.get(&entry.name) != Some(&false);
        let mut planned: Vec<AttachedVolume> = current.iter().filter(stays).cloned().collect();
        let is_missing = |name: &str| current.iter().all(|entry| &*entry.name != name);
        let wanted = self.decisions.iter().filter(|(name, is_listed)| **is_listed && is_missing(name));
        let mut added: Vec<&Str> = wanted.map(|(name, _)| name).collect();
        if added.is_empty() && planned.len() == current.len() {
            return None;
        }
        added.sort_unstable();
        planned.extend(added.into_iter().map(|name| AttachedVolume { name: name.clone(), device_path: "".into() }));
        Some(planned)
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
                list.decide(&Str::from(*volume), *is_listed);
            });
            assert_eq!(list.plan(&entries(current)), expected.map(entries), "{name}");
        }
    }

    #[test]
    fn entry_that_stays_keeps_its_device_path() {
        let mut list = NodeList::default();
        list.decide(&"b".into(), true);
        let current = [AttachedVolume { name: "a".into(), device_path: "/dev/sdb".into() }];
        assert_eq!(&*list.plan(&current).expect("it changes")[0].device_path, "/dev/sdb");
    }

    #[test]
    fn written_volume_counts_as_listed_until_the_write_has_ended() {
        let mut list = NodeList::default();
        assert!(list.decide(&"a".into(), true) && !list.decide(&"a".into(), true));
        let planned = list.plan(&[]).expect("it changes");
        list.begin_write(&planned);
        assert!(list.decide(&"a".into(), false) && list.may_be_writing("a"));
        assert_eq!(list.end_write(), ["a".into()]);
        assert!(!list.may_be_writing("a"));
        list.forget("a");
        assert!(list.is_empty());
    }
}
