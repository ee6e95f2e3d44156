//! A range of addresses, divided into parts of one size, which are allocated in a round-robin order.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::config::Share;

/// First and last of consecutive parts of a range, both inclusive.
pub type Parts = (u128, u128);

/// A range, and its allocated parts.
#[derive(Debug)]
pub struct Range {
    share: Share,
    /// Number of its parts.
    count: u128,
    /// Start of the search for a free part, so that a part that was just freed is not allocated next.
    next: u128,
    /// Parts that are never allocated.
    reserved: Option<Parts>,
    /// Allocated parts, with the number of nodes: two nodes may have the same one by mistake.
    taken: BTreeMap<u128, u32>,
    /// Statistics of its parts.
    counts: Counts,
}

/// Statistics of the parts of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Parts that were allocated, and reserved parts.
    pub allocations: u64,
    /// Parts that became free.
    pub releases: u64,
    /// Parts that the last allocation skipped: zero if the first one was free.
    pub tries: u64,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl Range {
    /// Creates a range without allocations; parts that overlap with ranges of services are reserved.
    pub fn new(share: Share, services: &[IpNet]) -> Self {
        let count = 1 << (share.prefix - share.range.prefix_len());
        let mut range =
            Self { share, count, next: 0, reserved: None, taken: BTreeMap::new(), counts: Counts::default() };
        // The ranges of services belong to different families, so at most one of them overlaps.
        range.reserved = services.iter().find_map(|service| range.parts(*service));
        // Upstream counts the reserved parts as allocated.
        range.counts.allocations = u64::try_from(range.reserved_count()).unwrap_or(u64::MAX);
        range
    }

    fn shift(&self) -> u32 {
        u32::from(self.share.range.max_prefix_len() - self.share.prefix)
    }

    /// Returns the parts that overlap with a range; `None` if it is outside.
    pub fn parts(&self, other: IpNet) -> Option<Parts> {
        let all = self.share.range;
        if all.contains(&other) {
            let base = number(all.network());
            let part = |address| (number(address) - base).checked_shr(self.shift()).unwrap_or(0);
            return Some((part(other.network()), part(other.broadcast())));
        }
        other.contains(&all).then_some((0, self.count - 1))
    }

    /// Returns the range of one part.
    pub fn part(&self, index: u128) -> IpNet {
        let address = number(self.share.range.network()) + index.checked_shl(self.shift()).unwrap_or(0);
        let address = match self.share.range {
            IpNet::V4(_) => IpAddr::V4(u32::try_from(address).unwrap_or(0).into()),
            IpNet::V6(_) => IpAddr::V6(address.into()),
        };
        IpNet::new(address, self.share.prefix).unwrap_or(self.share.range)
    }

    /// Returns true if no part is free.
    pub fn is_full(&self) -> bool {
        self.used() >= self.count
    }

    fn reserved_count(&self) -> u128 {
        self.reserved.map_or(0, |(first, last)| last - first + 1)
    }

    /// Returns the number of parts that are not free. Parts that are allocated and reserved are counted once.
    fn used(&self) -> u128 {
        let both = self.reserved.map_or(0, |(first, last)| self.taken.range(first..=last).count());
        self.reserved_count() + (self.taken.len() - both) as u128
    }

    fn is_reserved(&self, index: u128) -> bool {
        self.reserved.is_some_and(|(first, last)| (first..=last).contains(&index))
    }

    /// Returns the range itself.
    pub fn whole(&self) -> IpNet {
        self.share.range
    }

    /// Returns the number of its parts, and of those that are not free.
    pub fn fill(&self) -> (u128, u128) {
        (self.count, self.used())
    }

    /// Returns the statistics of its parts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Allocates the next free part; `None` if there is none.
    pub fn take(&mut self) -> Option<IpNet> {
        if self.is_full() {
            return None;
        }
        let mut index = self.next;
        self.counts.tries = 0;
        while self.is_reserved(index) || self.taken.contains_key(&index) {
            // Skip the whole reservation in one step: it may be most of the range.
            let after = self.reserved.filter(|_| self.is_reserved(index)).map_or(index, |(_, last)| last);
            self.counts.tries += u64::try_from(after + 1 - index).unwrap_or(u64::MAX);
            index = (after + 1) % self.count;
        }
        self.next = (index + 1) % self.count;
        self.taken.insert(index, 1);
        self.counts.allocations += 1;
        Some(self.part(index))
    }

    /// Marks the parts that a node has as allocated.
    pub fn occupy(&mut self, (first, last): Parts) {
        for index in first..=last {
            let is_reserved = self.is_reserved(index);
            let times = self.taken.entry(index).or_default();
            self.counts.allocations += u64::from(*times == 0 && !is_reserved);
            *times += 1;
        }
    }

    /// Frees parts.
    pub fn release(&mut self, (first, last): Parts) {
        for index in first..=last {
            let is_reserved = self.is_reserved(index);
            if let Some(times) = self.taken.get_mut(&index) {
                *times -= 1;
                if *times == 0 {
                    self.taken.remove(&index);
                    self.counts.releases += u64::from(!is_reserved);
                }
            }
        }
    }
}
