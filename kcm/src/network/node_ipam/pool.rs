//! The allocation of ranges to nodes.

use std::collections::HashMap;

use ipnet::IpNet;
use kinds::{Node, Str, Uid};
use runtime::metrics::{Histograms, powers};

use super::config::{self, Config};
use super::range::{Parts, Range};

/// The reason why a node's ranges cannot be recorded, or why it gets none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// An entry of a node's list is not a range.
    #[error("spec.podCIDRs[{index}] is {text:?}, which is not a CIDR")]
    NoRange {
        /// Index in the list.
        index: usize,
        /// The entry.
        text: String,
    },
    /// A node has a range that is not part of the cluster's.
    #[error("spec.podCIDRs[{index}] is {range}, which is not part of --cluster-cidr")]
    Outside {
        /// Index in the list.
        index: usize,
        /// The entry.
        range: IpNet,
    },
    /// All parts of a range are taken.
    #[error(
        "failed to allocate cidr from cluster cidr at idx:{0}: CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    )]
    Exhausted(usize),
}

/// The ranges of a node.
#[derive(Debug)]
struct NodeRanges {
    uid: Uid,
    ranges: Vec<IpNet>,
    /// The response to a write of the ranges was lost.
    has_lost_write: bool,
}

/// The cluster's ranges, and the nodes that have parts of them.
#[derive(Debug)]
pub struct Pool {
    ranges: Vec<Range>,
    held: HashMap<Str, NodeRanges>,
    /// Histogram of the number of parts that each allocation skipped.
    tries: Histograms<1>,
}

impl Pool {
    /// Creates a pool without allocations.
    pub fn new(config: &Config) -> Self {
        let range = |share| Range::new(share, &config.services);
        let tries = Histograms::new(powers(1.0, 5.0, 5));
        Self { ranges: config.shares.iter().copied().map(range).collect(), held: HashMap::new(), tries }
    }

    /// Returns the cluster's ranges, and the number of parts that each allocation skipped.
    pub fn usage(&self) -> (&[Range], Histograms<1>) {
        (&self.ranges, self.tries.clone())
    }

    /// Records the ranges of a node. If the node has other ranges than those that were reserved for it, the reserved
    /// ones are free again.
    ///
    /// # Errors
    /// When the node has an invalid range, or one that is not part of the cluster's. Its other ranges are still
    /// recorded.
    pub fn record(&mut self, node: &Node) -> Result<(), PoolError> {
        if node.pod_cidrs.is_empty() {
            if self.held.get(&node.meta.name).is_some_and(|held| held.uid != node.meta.uid) {
                self.forget(&node.meta.name);
            }
            return Ok(());
        }
        let (ranges, errors): (Vec<_>, Vec<_>) =
            node.pod_cidrs.iter().enumerate().map(|(index, text)| self.read(index, text)).partition(Result::is_ok);
        let ranges: Vec<IpNet> = ranges.into_iter().flatten().collect();
        let known = self.held.get(&node.meta.name).is_some_and(|held| held.ranges == ranges);
        if known {
            self.held.entry(node.meta.name.clone()).and_modify(|held| held.uid = node.meta.uid.clone());
        } else {
            self.forget(&node.meta.name);
            self.for_each_overlap(&ranges, Range::occupy);
            let held = NodeRanges { uid: node.meta.uid.clone(), ranges, has_lost_write: false };
            self.held.insert(node.meta.name.clone(), held);
        }
        errors.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    fn read(&self, index: usize, text: &str) -> Result<IpNet, PoolError> {
        let range = config::range(text).ok_or_else(|| PoolError::NoRange { index, text: text.to_owned() })?;
        let inside = self.ranges.get(index).is_some_and(|own| own.parts(range).is_some());
        if inside { Ok(range) } else { Err(PoolError::Outside { index, range }) }
    }

    /// Calls a function for the parts of each cluster range that overlap with a list of ranges.
    fn for_each_overlap(&mut self, ranges: &[IpNet], mut what: impl FnMut(&mut Range, Parts)) {
        for range in ranges {
            for own in &mut self.ranges {
                if let Some(parts) = own.parts(*range) {
                    what(own, parts);
                }
            }
        }
    }

    /// Reserves a range of each family for a node. Another call returns the same ranges.
    ///
    /// # Errors
    /// When a family is exhausted. Then no range of the other family is reserved either.
    pub fn reserve(&mut self, name: &Str, uid: &Uid) -> Result<Vec<IpNet>, PoolError> {
        match self.held.get(name) {
            Some(held) if held.uid == *uid => return Ok(held.ranges.clone()),
            Some(_) => self.forget(name),
            None => {}
        }
        if let Some(index) = self.ranges.iter().position(Range::is_full) {
            return Err(PoolError::Exhausted(index));
        }
        let taken: Vec<IpNet> = self.ranges.iter_mut().filter_map(Range::take).collect();
        for range in &self.ranges {
            self.tries.observe([("clusterCIDR", range.whole().to_string())], range.counts().tries as f64);
        }
        let held = NodeRanges { uid: uid.clone(), ranges: taken.clone(), has_lost_write: false };
        self.held.insert(name.clone(), held);
        Ok(taken)
    }

    /// Records that the response to a write of a node's ranges was lost: the node may have them.
    pub fn record_lost_write(&mut self, name: &Str, uid: &Uid) {
        if let Some(held) = self.held.get_mut(name).filter(|held| held.uid == *uid) {
            held.has_lost_write = true;
        }
    }

    /// Returns true if a node may already have the ranges that are reserved for it, because the response to their
    /// write was lost.
    pub fn has_lost_write(&self, name: &Str, uid: &Uid) -> bool {
        self.held.get(name).is_some_and(|held| held.uid == *uid && held.has_lost_write)
    }

    /// Frees the parts of a node, if they belong to this UID.
    pub fn release(&mut self, name: &Str, uid: &Uid) {
        if self.held.get(name).is_some_and(|held| held.uid == *uid) {
            self.forget(name);
        }
    }

    fn forget(&mut self, name: &Str) {
        if let Some(held) = self.held.remove(name) {
            self.for_each_overlap(&held.ranges, Range::release);
        }
    }
}
