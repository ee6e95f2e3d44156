//! Responses that lack a resource: AWS may return a new one only in later responses.

/// After this number of responses without it, a new resource does not exist. With the pauses between them they take
/// some seconds.
const MISSING: u32 = 4;

/// The number of responses without a resource that may exist.
#[derive(Debug, Default)]
pub(crate) struct Misses(u32);

impl Misses {
    /// Counts a response without the resource. Returns true if later ones may have it: few lacked it so far.
    pub(crate) fn may_appear(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 <= MISSING
    }
}
