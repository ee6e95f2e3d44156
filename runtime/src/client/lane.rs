//! The lanes of requests to one server, and whether a request has left the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use hyper_util::client::legacy::connect::CaptureConnection;

/// The connections that a request goes over; in the request's extensions. A request without one goes over the
/// connections of short requests.
///
/// Lanes share no connection, so that no number of watches and no slow webhook can delay the renewal of the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The Lease, TokenRequests, discovery.
    Control,
    /// Watches, and lists that are read piece by piece.
    Watch,
    /// One HTTP/1.1 connection for this request only. A long response arrives faster so, because nothing cuts it into
    /// HTTP/2 frames, and it delays no other response.
    Alone,
}

/// Whether a connection has taken a request up; in the request's extensions.
#[derive(Clone, Default)]
pub(super) struct Taken(Arc<State>);

#[derive(Default)]
struct State {
    taken: AtomicBool,
    /// HTTP/1.1 connections are handed out by a client that reports here.
    captured: Mutex<Option<CaptureConnection>>,
}

impl Taken {
    /// Records the state before and after a request is handed to a connection.
    pub(super) fn set(&self, taken: bool) {
        self.0.taken.store(taken, Ordering::Release);
    }

    /// Lets an HTTP/1.1 client report.
    pub(super) fn capture(&self, connection: CaptureConnection) {
        *self.0.captured.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }

    /// False if the request has certainly not left the process.
    pub(super) fn get(&self) -> bool {
        let captured = self.0.captured.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.taken.load(Ordering::Acquire)
            || captured.as_ref().is_some_and(|connection| connection.connection_metadata().is_some())
    }
}
