//! Sets of completion indexes in the format of a Job's status: `1,3-5`.

use std::fmt;

/// A set of indexes as ordered, disjoint, non-adjacent ranges with both ends included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Indexes(Vec<(i32, i32)>);

impl Indexes {
    /// Reads a status's text; indexes from `completions` on are dropped, and invalid ones are skipped. Upstream:
    /// pkg/controller/job, parseIndexesFromString.
    pub fn parse(text: &str, completions: i32) -> Self {
        let mut ranges = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let mut ends = part.split('-').map(str::parse::<i32>);
            let (Some(Ok(first)), last) = (ends.next(), ends.next()) else { continue };
            let last = last.unwrap_or(Ok(first)).map(|last| last.min(completions.saturating_sub(1)));
            if let Ok(last) = last
                && first <= last
            {
                ranges.push((first, last));
            }
        }
        ranges.sort_unstable();
        Self::joined(ranges)
    }

    /// Returns the set of these indexes.
    pub fn of(indexes: impl IntoIterator<Item = i32>) -> Self {
        let mut ranges: Vec<(i32, i32)> = indexes.into_iter().map(|index| (index, index)).collect();
        ranges.sort_unstable();
        Self::joined(ranges)
    }

    /// Returns all indexes of both sets.
    pub fn union(&self, other: &Self) -> Self {
        let mut ranges: Vec<(i32, i32)> = self.0.iter().chain(&other.0).copied().collect();
        ranges.sort_unstable();
        Self::joined(ranges)
    }

    /// Joins ranges that are ordered by their beginning.
    fn joined(ordered: Vec<(i32, i32)>) -> Self {
        let mut ranges: Vec<(i32, i32)> = Vec::with_capacity(ordered.len());
        for (first, last) in ordered {
            match ranges.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        Self(ranges)
    }

    /// Returns the number of indexes.
    pub fn total(&self) -> i32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the set has this index.
    pub fn has(&self, index: i32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// Returns the number of indexes that both sets have.
    pub fn common(&self, other: &Self) -> i32 {
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut common = 0;
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            common += (a.1.min(b.1) - a.0.max(b.0) + 1).max(0);
            if a.1 <= b.1 {
                left.next()
            } else {
                right.next()
            };
        }
        common
    }

    /// Returns the first `count` indexes in `0..end` that the set lacks. The cost does not grow with
    /// `end`. Upstream: pkg/controller/job, firstPendingIndexes.
    pub fn first_missing(&self, count: usize, end: i32) -> Vec<i32> {
        let beyond = (end, end);
        let mut missing = Vec::new();
        let mut next = 0;
        for (first, last) in self.0.iter().chain([&beyond]) {
            let room = count - missing.len();
            missing.extend((next..(*first).min(end)).take(room));
            next = next.max(last.saturating_add(1));
        }
        missing
    }
}

impl fmt::Display for Indexes {
    /// Two consecutive indexes are two numbers; only three or more are a range.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read_and_written() {
        for (text, completions, expected) in [
            ("", 10, ""),
            ("1", 10, "1"),
            ("0,1", 10, "0,1"),
            ("0-1", 10, "0,1"),
            ("0-2", 10, "0-2"),
            ("0,1,2", 10, "0-2"),
            ("1,3-5,7", 10, "1,3-5,7"),
            ("1,3-5,7", 5, "1,3,4"),
            ("1,3-5,7", 3, "1"),
            ("5-3,7", 10, "7"),
            ("5,1", 10, "1,5"),
            ("8,20,1-30", 10, "1-9"),
            ("3-2147483647", i32::MIN, ""),
            ("1,a,3-x,5", 10, "1,5"),
            ("-1,5", 10, "5"),
            ("0-2,3-4", 10, "0-4"),
        ] {
            assert_eq!(Indexes::parse(text, completions).to_string(), expected, "{text:?} below {completions}");
        }
    }

    #[test]
    fn cost_depends_on_the_number_of_ranges() {
        let almost = Indexes::parse("0-999999,1000001-2000000000", i32::MAX);
        assert_eq!(almost.first_missing(3, i32::MAX), [1_000_000, 2_000_000_001, 2_000_000_002]);
        assert_eq!(Indexes::default().first_missing(2, i32::MAX), [0, 1]);
        assert_eq!(Indexes::default().first_missing(2, 0), [0; 0]);
    }

    proptest! {
        #[test]
        fn operations_equal_those_of_a_plain_set(a: BTreeSet<u8>, b: BTreeSet<u8>, count in 0usize..20, end in 0i32..300) {
            let set = |values: &BTreeSet<u8>| Indexes::of(values.iter().map(|value| i32::from(*value)));
            let (left, right) = (set(&a), set(&b));
            prop_assert_eq!(Indexes::parse(&left.to_string(), 256), left.clone());
            prop_assert_eq!(left.total() as usize, a.len());
            prop_assert_eq!(left.union(&right), set(&a.union(&b).copied().collect()));
            prop_assert_eq!(left.common(&right) as usize, a.intersection(&b).count());
            for value in 0..=255u8 {
                prop_assert_eq!(left.has(value.into()), a.contains(&value));
            }
            let missing: Vec<i32> =
                (0..end).filter(|index| !u8::try_from(*index).is_ok_and(|index| a.contains(&index))).take(count).collect();
            prop_assert_eq!(left.first_missing(count, end), missing);
        }
    }
}
