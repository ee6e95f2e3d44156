//! The decision whether a refused watch is reopened, or its kind is relisted.
//!
//! A watch that continues from a version the server no longer accepts is refused each time, and not every server
//! reports that as 410: some aggregated APIs return an internal error, without a code. Only a list helps then. But
//! while servers restart, hundreds of watches are refused within seconds: no server is available, or one has not loaded
//! its users and roles yet. Lists of all kinds would delay the recovery, so such a watch is reopened first.
//!
//! The backoff of the reflector limits the lists: a kind that a server lists but refuses to watch is listed every 30 to
//! 60 seconds. Upstream: client-go, tools/cache, Reflector.

use kinds::envelope::ApiStatus;

/// Number of consecutive refusals that a restart can explain, after which the kind is relisted.
const MAX_OF_RESTART: u32 = 3;

/// The consecutive refusals of a watch.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The version that the watch had reached at the last refusal. Once it has reached another one, counting restarts.
    version: u64,
    count: u32,
    /// The kind was listed, and no watch was opened since.
    is_only_listed: bool,
}

impl Refusals {
    /// Records that the kind was listed.
    pub(super) fn listed(&mut self) {
        self.is_only_listed = true;
    }

    /// Records that a watch was opened.
    pub(super) fn opened(&mut self) {
        self.is_only_listed = false;
    }

    /// Records that a watch which has reached `version` was refused. Returns true if the kind must be relisted.
    pub(super) fn requires_list(&mut self, status: &ApiStatus, version: u64) -> bool {
        if self.version != version {
            (self.version, self.count) = (version, 0);
        }
        self.count += 1;
        match status.code {
            // The server is overloaded: a list costs it more than a watch.
            429 => false,
            _ if status.reason == "TooManyRequests" => false,
            // The server has loaded its users and roles, or it would have refused the list: there is no right to watch.
            403 if self.is_only_listed => true,
            401 | 403 | 502..=504 => self.count >= MAX_OF_RESTART,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, reason: &str) -> ApiStatus {
        ApiStatus { code, reason: reason.to_owned(), ..ApiStatus::default() }
    }

    #[test]
    fn kind_is_relisted_unless_the_server_is_overloaded_or_restarts() {
        // (status, whether the first, second and third refusal lead to a list)
        for (status, expected) in [
            (status(0, "InternalError"), [true, true, true]),
            (status(400, "BadRequest"), [true, true, true]),
            (status(403, "Forbidden"), [false, false, true]),
            (status(405, "MethodNotAllowed"), [true, true, true]),
            (status(410, "Expired"), [true, true, true]),
            (status(500, "InternalError"), [true, true, true]),
            (status(502, ""), [false, false, true]),
            (status(503, "ServiceUnavailable"), [false, false, true]),
            (status(504, "Timeout"), [false, false, true]),
            (status(429, "TooManyRequests"), [false, false, false]),
            (status(0, "TooManyRequests"), [false, false, false]),
        ] {
            let mut refusals = Refusals::default();
            assert_eq!([(); 3].map(|()| refusals.requires_list(&status, 7)), expected, "{status:?}");
        }
    }

    #[test]
    fn kind_is_relisted_after_each_refusal_when_it_may_be_listed_but_not_watched() {
        let (mut refusals, forbidden) = (Refusals::default(), status(403, "Forbidden"));
        for version in [7, 8, 8] {
            refusals.listed();
            assert!(refusals.requires_list(&forbidden, version), "{version}");
        }
        refusals.listed();
        refusals.opened();
        assert!(!refusals.requires_list(&forbidden, 9), "a server that has opened a watch restarts");
        refusals.listed();
        assert!(!refusals.requires_list(&status(503, ""), 10), "no server is available");
    }

    #[test]
    fn refusals_are_counted_again_after_an_event() {
        let (mut refusals, unavailable) = (Refusals::default(), status(503, ""));
        assert_eq!([7, 7, 8, 8].map(|version| refusals.requires_list(&unavailable, version)), [false; 4]);
        assert!(refusals.requires_list(&unavailable, 8));
    }
}
