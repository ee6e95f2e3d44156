//! Writes whose response was lost: the API server may still make them.

use std::time::Duration;

/// Time after which the API server has ended each request: a write without a response has then succeeded, or never
/// will.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);
