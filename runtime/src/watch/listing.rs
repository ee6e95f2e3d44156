//! The form in which a kind is listed, and the fallback if the server does not support that form.

use kinds::envelope::ApiStatus;

use super::frames::FrameError;
use super::request::WatchError;
use crate::client::SendError;

/// The form of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListForm {
    /// One response; for kinds with many objects over a dedicated connection.
    Whole,
    /// The first events of the watch.
    Streamed,
    /// Page by page.
    Paged,
}

/// The time of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Immediately: a watch has ended regularly, or the server has refused only the form of a list.
    Now,
    /// After a backoff.
    Later,
}

/// Selects the form of a kind's lists.
#[derive(Debug)]
pub struct Listing {
    preferred: ListForm,
    /// The form of the next list if the last one failed: pages, which every server supports, or the whole list if the
    /// pages have expired.
    fallback: Option<ListForm>,
}

impl Listing {
    /// Selects this form while the server supports it.
    pub fn new(preferred: ListForm) -> Self {
        Self { preferred, fallback: None }
    }

    /// Returns the form of the next list.
    pub fn form(&self) -> ListForm {
        self.fallback.unwrap_or(self.preferred)
    }

    /// Records that a list is complete.
    pub fn succeeded(&mut self) {
        self.fallback = None;
    }

    /// Records that a list failed.
    ///
    /// A server that streams the objects but never the end of the list (some aggregated APIs) gets no request for a
    /// stream again. A server that refuses the stream may still list: a role may allow `list` but not `watch`, and some
    /// aggregated APIs do not watch. Upstream: client-go tools/cache, Reflector falls back to LIST after any error of a
    /// streaming list except overload and a refused connection.
    ///
    /// If the server compacts its history before the last page was read, the next pages would expire, too: only a list
    /// in one response is fast enough. Upstream: client-go tools/pager, FullListIfExpired.
    pub fn failed(&mut self, error: &WatchError) -> Retry {
        if self.form() == ListForm::Paged && error.is_expired() {
            self.fallback = Some(ListForm::Whole);
            return Retry::Later;
        }
        if self.form() != ListForm::Streamed {
            // An error that would occur in any form does not count as a failure of this form.
            if !would_fail_in_any_form(error) {
                self.fallback = Some(ListForm::Paged);
            }
            return Retry::Later;
        }
        match error {
            error if error.is_streaming_unsupported() => {
                self.preferred = ListForm::Paged;
                return Retry::Now;
            }
            WatchError::Frame(FrameError::Silent(_)) => self.preferred = ListForm::Paged,
            error if !is_retriable_as_stream(error) => self.fallback = Some(ListForm::Paged),
            _ => {}
        }
        if is_watch_denied(error) { Retry::Now } else { Retry::Later }
    }
}

/// Returns true if the server could not be reached or is overloaded: a list by pages would fail, too, or costs more.
fn is_retriable_as_stream(error: &WatchError) -> bool {
    match error {
        WatchError::Send(SendError::NotSent { .. } | SendError::Token(_)) => true,
        WatchError::Refused(status) => status.code == 429 || status.reason == "TooManyRequests",
        _ => false,
    }
}

/// Returns true if the server has refused to watch the kind; it may still list it.
fn is_watch_denied(error: &WatchError) -> bool {
    let is_denial = |status: &ApiStatus| matches!(status.code, 403..=405) && status.retry_after.is_none();
    matches!(error, WatchError::Refused(status) if is_denial(status)) && !is_retriable_as_stream(error)
}

/// Returns true if the server could not be reached or accepts no list at all now: another form would not help.
fn would_fail_in_any_form(error: &WatchError) -> bool {
    match error {
        WatchError::Send(SendError::NotSent { .. } | SendError::Token(_)) => true,
        WatchError::Refused(status) => matches!(status.code, 401 | 403 | 404 | 429 | 503),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refused(code: u16) -> WatchError {
        WatchError::Refused(ApiStatus { code, ..ApiStatus::default() })
    }

    fn overloaded(code: u16) -> WatchError {
        WatchError::Refused(ApiStatus { code, reason: "TooManyRequests".into(), ..ApiStatus::default() })
    }

    fn silent() -> WatchError {
        WatchError::Frame(FrameError::Silent(Duration::from_secs(30)))
    }

    fn broken() -> WatchError {
        WatchError::Frame(FrameError::Body("reset".into()))
    }

    #[test]
    fn listing_falls_back_to_pages_when_the_form_fails() {
        use ListForm::{Paged, Streamed, Whole};
        // (name, preferred, error, form of the next list, form after a list succeeded)
        let cases = [
            ("no streaming lists", Streamed, refused(400), Paged, Paged),
            ("stream that ends early", Streamed, WatchError::Incomplete, Paged, Streamed),
            ("stream without its end", Streamed, silent(), Paged, Paged),
            ("internal error", Streamed, refused(500), Paged, Streamed),
            ("broken stream", Streamed, broken(), Paged, Streamed),
            ("overloaded server", Streamed, refused(429), Streamed, Streamed),
            ("overload reported by an event", Streamed, overloaded(200), Streamed, Streamed),
            ("overload reported as a denial", Streamed, overloaded(403), Streamed, Streamed),
            ("no right to watch", Streamed, refused(403), Paged, Streamed),
            ("kind without watch", Streamed, refused(404), Paged, Streamed),
            ("method not allowed", Streamed, refused(405), Paged, Streamed),
            ("invalid credentials", Streamed, refused(401), Paged, Streamed),
            ("unavailable server", Streamed, refused(503), Paged, Streamed),
            ("whole list that breaks off", Whole, broken(), Paged, Whole),
            ("overloaded server, whole list", Whole, refused(429), Whole, Whole),
        ];
        for (name, preferred, error, next, later) in cases {
            let mut listing = Listing::new(preferred);
            let retry = listing.failed(&error);
            let is_form_refused =
                ["no streaming lists", "no right to watch", "kind without watch", "method not allowed"].contains(&name);
            assert_eq!(retry == Retry::Now, is_form_refused, "{name}");
            assert_eq!(listing.form(), next, "{name}");
            listing.succeeded();
            assert_eq!(listing.form(), later, "{name}");
        }
    }

    #[test]
    fn list_in_one_response_follows_expired_pages_until_a_list_succeeds() {
        use ListForm::{Paged, Whole};
        for preferred in [ListForm::Streamed, Paged, Whole] {
            let mut listing = Listing::new(preferred);
            listing.failed(&broken());
            // (error, form of the next list)
            for (error, next) in [
                (refused(410), Whole),
                (refused(503), Whole),
                (broken(), Paged),
                (refused(503), Paged),
                (refused(410), Whole),
            ] {
                assert_eq!(listing.failed(&error), Retry::Later, "{preferred:?}, {error}");
                assert_eq!(listing.form(), next, "{preferred:?}, {error}");
            }
            listing.succeeded();
            assert_eq!(listing.form(), preferred);
        }
    }

    #[test]
    fn pages_are_used_until_a_list_succeeds_when_their_first_list_is_refused() {
        for preferred in [ListForm::Streamed, ListForm::Whole] {
            let mut listing = Listing::new(preferred);
            listing.failed(&broken());
            for code in [429, 503] {
                listing.failed(&refused(code));
                assert_eq!(listing.form(), ListForm::Paged, "{preferred:?}, {code}");
            }
            listing.succeeded();
            assert_eq!(listing.form(), preferred);
        }
    }
}
