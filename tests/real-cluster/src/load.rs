//! Constant load on an HTTP server, and the result of each request.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use control_plane::lock::lock;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::http;

/// Interval at which the results are read while they are waited for.
const CHECK_PERIOD: Duration = Duration::from_millis(100);

/// Local ports of requests: Linux' default range for connections, in which no program listens.
const PORTS: RangeInclusive<u16> = 32768..=60999;

/// Time for which a node keeps the entry of a connection that was not answered, from its last packet:
/// `nf_conntrack_tcp_timeout_syn_sent` of Linux.
const MEMORY: Duration = Duration::from_secs(120);

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The time at which the request was sent.
    pub sent: Instant,
    /// The response, or the error.
    pub response: std::result::Result<String, String>,
}

/// Failed requests with the same error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error.
    pub error: String,
    /// The number of requests.
    pub count: usize,
    /// From the start of the measurement to the first of them.
    pub first: Duration,
    /// From the start of the measurement to the last of them.
    pub last: Duration,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.first.as_secs_f64(), self.last.as_secs_f64());
        write!(f, "{} failed requests, {first:.1} to {last:.1} s after the change: {}", self.count, self.error)
    }
}

/// Load that continues until it is stopped or dropped.
#[derive(Debug)]
pub struct Load {
    requests: Arc<Mutex<Vec<Request>>>,
    _clients: JoinSet<()>,
}

impl Load {
    /// Starts `clients`, each of which sends a request, on a connection of its own, every `period`. A
    /// request that takes longer than `deadline` counts as failed.
    ///
    /// # Panics
    /// If local ports would be used again too early.
    pub fn start(server: SocketAddr, path: &'static str, clients: u32, period: Duration, deadline: Duration) -> Self {
        assert!(
            reuse_period(clients, period) > MEMORY + deadline,
            "too many requests: use fewer clients or a longer period"
        );
        let ports = Arc::new(Ports::default());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let mut running = JoinSet::new();
        for client in 0..clients {
            let (requests, ports) = (Arc::clone(&requests), Arc::clone(&ports));
            running.spawn(async move {
                sleep(period * client / clients).await;
                loop {
                    let sent = Instant::now();
                    let response = match ports.socket() {
                        Ok(socket) => http::get_from(socket, server, path, deadline).await,
                        Err(error) => Err(error),
                    };
                    let response = response.map_err(|error| format!("{error:#}"));
                    lock(&requests).push(Request { sent, response });
                    sleep(period.saturating_sub(sent.elapsed())).await;
                }
            });
        }
        Self { requests, _clients: running }
    }

    /// Returns the finished requests.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.requests).clone()
    }

    /// Waits until the last `number` requests have all succeeded.
    ///
    /// A node's kube-proxy can be behind that of another node by a second. Until it has the rules of a new Service, it
    /// refuses a share of the requests.
    ///
    /// # Errors
    /// When the deadline passes; the error contains the last failure.
    pub async fn wait_for_successes(&self, number: usize, deadline: Duration) -> Result<()> {
        let end = Instant::now() + deadline;
        while !all_succeeded(&self.requests(), number) {
            if Instant::now() > end {
                let requests = self.requests();
                let last = requests.iter().rev().find_map(|request| request.response.as_ref().err());
                let last = last.map_or("no failure", String::as_str);
                bail!("not {number} successful requests in a row in {} s: {last}", deadline.as_secs());
            }
            sleep(CHECK_PERIOD).await;
        }
        Ok(())
    }

    /// Returns the number of finished requests that were sent since a time, and the number of those that failed.
    pub fn count_since(&self, start: Instant) -> (usize, usize) {
        let requests = lock(&self.requests);
        let counted = requests.iter().filter(|request| request.sent >= start);
        counted.fold((0, 0), |(all, failed), request| (all + 1, failed + usize::from(request.response.is_err())))
    }

    /// Returns the failures of requests that were sent since `start`, by error.
    pub fn failures_since(&self, start: Instant) -> Vec<Failure> {
        let requests = lock(&self.requests);
        failures(&requests, start)
    }

    /// Returns the time at which the last failed request since `start` was sent.
    pub fn last_failure_since(&self, start: Instant) -> Option<Instant> {
        let requests = lock(&self.requests);
        let failed = requests.iter().filter(|request| request.sent >= start && request.response.is_err());
        failed.map(|request| request.sent).max()
    }
}

fn all_succeeded(requests: &[Request], number: usize) -> bool {
    requests.len() >= number && requests.iter().rev().take(number).all(|request| request.response.is_ok())
}

fn failures(requests: &[Request], start: Instant) -> Vec<Failure> {
    let mut by_error = BTreeMap::<&str, Failure>::new();
    for request in requests.iter().filter(|request| request.sent >= start) {
        let Err(error) = &request.response else { continue };
        let at = request.sent.duration_since(start);
        let first = || Failure { error: error.clone(), count: 0, first: at, last: at };
        let failure = by_error.entry(error).or_insert_with(first);
        failure.count += 1;
        failure.first = failure.first.min(at);
        failure.last = failure.last.max(at);
    }
    by_error.into_values().collect()
}

/// The local ports of requests, one after the other.
///
/// While a node tracks a connection, all packets with the connection's addresses and ports go to the same server, even
/// to one that kube-proxy has removed. Clients with different addresses rarely use a port again within that time, but
/// here all clients share this machine's address. With ports that Linux chooses, requests can go to a failed node for
/// more than a minute after its last endpoint was removed.
#[derive(Debug, Default)]
struct Ports {
    /// The number of ports that were taken.
    taken: AtomicUsize,
}

impl Ports {
    /// Returns a socket that is bound to the next port. Those that are in use are left out.
    fn socket(&self) -> Result<TcpSocket> {
        for _ in PORTS {
            let socket = TcpSocket::new_v4().context("make a socket")?;
            match socket.bind((Ipv4Addr::UNSPECIFIED, self.next()).into()) {
                Ok(()) => return Ok(socket),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error).context("bind a socket"),
            }
        }
        bail!("the local ports {PORTS:?} are all in use")
    }

    fn next(&self) -> u16 {
        let number = self.taken.fetch_add(1, Ordering::Relaxed) % PORTS.len();
        PORTS.start() + u16::try_from(number).unwrap_or_default()
    }
}

/// Returns the minimum time until a port is used again.
fn reuse_period(clients: u32, period: Duration) -> Duration {
    period * u32::try_from(PORTS.len()).unwrap_or(u32::MAX) / clients
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn port_is_used_again_after_all_others() {
        let ports = Ports::default();
        let first: BTreeSet<u16> = PORTS.map(|_| ports.next()).collect();
        assert_eq!(first, PORTS.collect());
        assert_eq!(ports.next(), *PORTS.start());
    }

    #[test]
    fn requests_before_the_last_failure_are_not_successes_in_a_row() {
        let request = |is_ok: &bool| {
            let response = if *is_ok { Ok(String::new()) } else { Err("refused".to_owned()) };
            Request { sent: Instant::now(), response }
        };
        for (results, expected) in [
            (&[] as &[bool], false),
            (&[true], false),
            (&[true, true], true),
            (&[false, true, true], true),
            (&[true, true, false], false),
            (&[true, false, true], false),
        ] {
            let requests: Vec<Request> = results.iter().map(request).collect();
            assert_eq!(all_succeeded(&requests, 2), expected, "{results:?}");
        }
    }

    #[test]
    fn failures_are_counted_by_error() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let failed = |seconds, error: &str| Request { sent: at(seconds), response: Err(error.to_owned()) };
        let requests = [
            failed(1, "before"),
            failed(5, "late"),
            Request { sent: at(6), response: Ok(String::new()) },
            failed(9, "refused"),
            failed(7, "late"),
        ];
        let failure = |error: &str, count, first, last| {
            let (first, last) = (Duration::from_secs(first), Duration::from_secs(last));
            Failure { error: error.to_owned(), count, first, last }
        };
        assert_eq!(failures(&requests, at(2)), [failure("late", 2, 3, 5), failure("refused", 1, 7, 7)]);
    }

    #[tokio::test]
    async fn port_in_use_is_left_out() {
        let ports = Ports::default();
        let one = ports.socket().unwrap();
        let address = |socket: &TcpSocket| socket.local_addr().unwrap().port();
        // The next attempt begins at the same port.
        ports.taken.store(usize::from(address(&one) - PORTS.start()), Ordering::Relaxed);
        assert!(address(&ports.socket().unwrap()) > address(&one));
    }

    #[test]
    fn no_connection_is_remembered_when_its_port_is_used_again() {
        // The load of `cargo xtask bench --real`.
        let deadline = Duration::from_secs(2);
        assert!(reuse_period(10, Duration::from_millis(50)) > MEMORY + deadline);
        assert!(reuse_period(20, Duration::from_millis(50)) < MEMORY);
    }

    #[tokio::test]
    async fn requests_have_ports_of_their_own() {
        const REQUESTS: usize = 100;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let load = Load::start(address, "/", 2, Duration::from_millis(10), Duration::from_secs(10));
        let mut ports = BTreeSet::new();
        for _ in 0..REQUESTS {
            let (mut connection, client) = listener.accept().await.unwrap();
            ports.insert(client.port());
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            tokio::io::AsyncWriteExt::write_all(&mut connection, response).await.unwrap();
        }
        drop(load);
        assert_eq!(ports.len(), REQUESTS);
        let spread = ports.last().unwrap() - ports.first().unwrap();
        assert!(usize::from(spread) < 2 * REQUESTS, "{ports:?}: Linux chose them");
    }
}
