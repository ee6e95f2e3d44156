//! Constant load on an HTTP server, and the result of each request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::http;

/// Maximum duration of a request. A longer one has failed.
const REQUEST_DEADLINE: Duration = Duration::from_secs(2);

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The time at which it was sent.
    pub sent: Instant,
    /// The response, or the error.
    pub response: Result<String, String>,
}

/// Load that continues until it is stopped or dropped.
#[derive(Debug)]
pub struct Load {
    requests: Arc<Mutex<Vec<Request>>>,
    _clients: JoinSet<()>,
}

impl Load {
    /// Starts `clients`, each of which sends a request, on a connection of its own, every `period`.
    pub fn start(server: SocketAddr, path: &'static str, clients: u32, period: Duration) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let mut running = JoinSet::new();
        for client in 0..clients {
            let requests = Arc::clone(&requests);
            running.spawn(async move {
                sleep(period * client / clients).await;
                loop {
                    let sent = Instant::now();
                    let response = http::get(server, path, REQUEST_DEADLINE).await;
                    let response = response.map_err(|error| format!("{error:#}"));
                    requests.lock().unwrap_or_else(PoisonError::into_inner).push(Request { sent, response });
                    sleep(period.saturating_sub(sent.elapsed())).await;
                }
            });
        }
        Self { requests, _clients: running }
    }

    /// Returns the finished requests.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of finished requests that were sent since a time, and the number of those that failed.
    pub fn count_since(&self, start: Instant) -> (usize, usize) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = requests.iter().filter(|request| request.sent >= start);
        counted.fold((0, 0), |(all, failed), request| (all + 1, failed + usize::from(request.response.is_err())))
    }

    /// Returns the time at which the last failed request since `start` was sent.
    pub fn last_failure_since(&self, start: Instant) -> Option<Instant> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = requests.iter().filter(|request| request.sent >= start && request.response.is_err());
        failed.map(|request| request.sent).max()
    }
}
