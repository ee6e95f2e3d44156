//! Delays that double with each consecutive failure.

use std::time::Duration;

/// Returns the delay after a failure: `first` after the first failure in a row, doubled for each of the `earlier` ones
/// before this one, and `max` at most.
pub fn doubled(first: Duration, earlier: u32, max: Duration) -> Duration {
    first.saturating_mul(1u32.checked_shl(earlier).unwrap_or(u32::MAX)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_its_maximum() {
        let (first, max) = (Duration::from_millis(5), Duration::from_secs(1000));
        for (earlier, millis) in
            [(0, 5), (1, 10), (17, 655_360), (18, 1_000_000), (31, 1_000_000), (u32::MAX, 1_000_000)]
        {
            assert_eq!(doubled(first, earlier, max), Duration::from_millis(millis), "after {earlier} failures");
        }
    }
}
