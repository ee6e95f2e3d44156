//! The lanes of requests to one server, and the record of whether a request has left the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hyper_util::client::legacy::connect::CaptureConnection;

use crate::lock::lock;

/// The connections that a request uses; stored in the request's extensions. A request without a lane uses the
/// connections of short requests.
///
/// Lanes share no connection, so that no number of watches and no slow webhook can delay the renewal of the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The Lease, TokenRequests, discovery.
    Control,
    /// Watches, and lists that are read piece by piece.
    Watch,
    /// A dedicated HTTP/1.1 connection. A long response arrives faster over HTTP/1.1, because it is not cut into HTTP/2
    /// frames, and it delays no other response.
    Dedicated,
}

/// Records whether a connection has accepted a request; stored in the request's extensions.
#[derive(Clone, Default)]
pub(super) struct Accepted(Arc<State>);

#[derive(Default)]
struct State {
    accepted: AtomicBool,
    /// Reports the connection that the HTTP/1.1 client picks.
    captured: Mutex<Option<CaptureConnection>>,
}

impl Accepted {
    /// Sets whether a connection has accepted the request. A connection may still return it unsent.
    pub(super) fn set(&self, accepted: bool) {
        self.0.accepted.store(accepted, Ordering::Release);
    }

    /// Attaches the capture of an HTTP/1.1 client.
    pub(super) fn capture(&self, connection: CaptureConnection) {
        *lock(&self.0.captured) = Some(connection);
    }

    /// Returns false if the request has certainly not left the process.
    pub(super) fn get(&self) -> bool {
        let captured = lock(&self.0.captured);
        self.0.accepted.load(Ordering::Acquire)
            || captured.as_ref().is_some_and(|connection| connection.connection_metadata().is_some())
    }
}
