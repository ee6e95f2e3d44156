//! A server's stream limit per connection delays no request.

use std::sync::atomic::Ordering;

use super::*;

/// Requests to `/hang` stay open; all others get a response.
fn hanging() -> Script {
    Arc::new(|seen| {
        Box::pin(async move {
            match seen.path.as_str() {
                "/hang" => std::future::pending().await,
                _ => Some(response(200, "{}")),
            }
        })
    })
}

/// Requests that stay open, until this is dropped.
fn hang(clients: &Clients, lane: Option<Lane>, count: usize) -> tokio::task::JoinSet<()> {
    let mut open = tokio::task::JoinSet::new();
    for _ in 0..count {
        let clients = clients.clone();
        open.spawn(async move {
            match lane {
                Some(lane) => drop(clients.open(lane, request(Method::GET, "/hang")).await),
                None => drop(clients.send(&Identity::Own, request(Method::POST, "/hang"), MAX_BODY_BYTES).await),
            }
        });
    }
    open
}

async fn wait_for_hanging_requests(bed: &Bed, count: usize) {
    until("the server has all requests", async || {
        bed.server.seen().iter().filter(|seen| seen.path == "/hang").count() == count
    })
    .await;
}

async fn quickly<F: Future>(what: &str, request: F) -> F::Output {
    let limit = Duration::from_secs(10);
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| panic!("{what}: no response within {limit:?}"))
}

#[tokio::test]
async fn watches_open_connections_according_to_the_stream_limit() {
    let bed = Bed::new(User::Certificate, &["h2"], hanging()).await;
    bed.server.streams.store(10, Ordering::SeqCst);
    let clients = bed.connect().await;
    let watches = hang(&clients, Some(Lane::Watch), 250);
    wait_for_hanging_requests(&bed, 250).await;
    assert_eq!(bed.server.connections(), 25, "connections for 250 watches with 10 streams each");

    let lease = clients.control.send(request(Method::GET, "/lease").map(Body::from));
    assert_eq!(quickly("the Lease", lease).await.expect("a response").status(), 200);
    assert_eq!(quickly("a write", status(&clients, Method::POST)).await, 200);
    assert_eq!(bed.server.connections(), 27, "25 for watches, one for the Lease, one for the write");

    drop(watches);
    until("surplus connections are closed", async || bed.server.open.load(Ordering::SeqCst) <= 4).await;
}

#[tokio::test]
async fn hanging_writes_do_not_delay_other_writes() {
    let bed = Bed::new(User::Certificate, &["h2"], hanging()).await;
    bed.server.streams.store(5, Ordering::SeqCst);
    let clients = bed.connect().await;
    let _slow_webhook = hang(&clients, None, 50);
    wait_for_hanging_requests(&bed, 50).await;
    assert_eq!(quickly("a write", status(&clients, Method::POST)).await, 200);
}

#[tokio::test]
async fn ended_stream_frees_its_slot() {
    let bed = Bed::new(User::Certificate, &["h2"], hanging()).await;
    bed.server.streams.store(2, Ordering::SeqCst);
    let clients = bed.connect().await;
    for _ in 0..20 {
        assert_eq!(status(&clients, Method::GET).await, 200);
    }
    assert_eq!(bed.server.connections(), 1);
    let dropped = hang(&clients, None, 2);
    wait_for_hanging_requests(&bed, 2).await;
    drop(dropped);
    until("requests find room on the first connection again", async || {
        quickly("a read", status(&clients, Method::GET)).await == 200 && bed.server.open.load(Ordering::SeqCst) == 1
    })
    .await;
}

#[tokio::test]
async fn failed_connection_is_replaced() {
    let closes: Script = Arc::new(|seen| Box::pin(async move { (seen.path != "/close").then(|| response(200, "{}")) }));
    let bed = Bed::new(User::Certificate, &["h2"], closes).await;
    let clients = bed.connect().await;
    assert_eq!(status(&clients, Method::GET).await, 200);
    let lost =
        clients.send(&Identity::Own, request(Method::POST, "/close"), MAX_BODY_BYTES).await.expect_err("no response");
    assert!(!lost.not_sent(), "{lost}");
    assert_eq!(quickly("the next request", status(&clients, Method::POST)).await, 200);
    assert_eq!(bed.server.connections(), 2);
}

#[tokio::test]
async fn server_that_closes_each_connection_is_not_dialed_in_a_loop() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    bed.server.is_leaving.store(true, Ordering::SeqCst);
    let clients = bed.connect().await;
    let requests = (0..20).map(|_| clients.send(&Identity::Own, request(Method::GET, "/x"), MAX_BODY_BYTES));
    let _ = tokio::time::timeout(Duration::from_secs(2), futures::future::join_all(requests)).await;
    let connections = bed.server.connections();
    assert!(connections < 30, "{connections} connections in two seconds");
    bed.server.is_leaving.store(false, Ordering::SeqCst);
    let limit = Duration::from_secs(10);
    let recovered = tokio::time::timeout(limit, status(&clients, Method::GET)).await;
    assert_eq!(recovered.expect("the pool does not recover"), 200);
}

#[tokio::test]
async fn connection_that_is_never_accepted_delays_the_lease_by_seconds_only() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    bed.server.silent.store(1, Ordering::SeqCst);
    let clients = bed.connect().await;
    // A request for the Lease times out after five seconds: half the default renew deadline.
    let lease = tokio::time::timeout(Duration::from_secs(5), lease(&clients)).await;
    assert_eq!(lease.expect("no response within five seconds"), 200);
}

/// Returns the status of a request for the Lease.
async fn lease(clients: &Clients) -> StatusCode {
    let request = request(Method::GET, "/lease").map(Body::from);
    clients.control.send(request).await.expect("a response").status()
}

#[tokio::test]
async fn lease_is_renewed_over_another_connection_when_one_does_not_respond() {
    let bed = Bed::new(User::Certificate, &["h2"], hanging()).await;
    let clients = bed.connect().await;
    assert_eq!(quickly("the Lease", lease(&clients)).await, 200);
    let hangs = clients.control.send(request(Method::GET, "/hang").map(Body::from));
    assert!(tokio::time::timeout(Duration::from_millis(100), hangs).await.is_err());
    assert_eq!(quickly("the Lease", lease(&clients)).await, 200);
    assert_eq!(bed.server.connections(), 2, "the silent connection was used again");
}
