//! Servers that refuse streaming lists, watches, or both.

use super::*;

/// The server's replies to the forms of requests for a kind.
struct Replies {
    stream: fn() -> Reply,
    pages: fn() -> Reply,
    watch: fn() -> Reply,
}

/// The number of requests of each form.
#[derive(Default)]
struct Requests {
    streams: AtomicUsize,
    pages: AtomicUsize,
    watches: AtomicUsize,
}

impl Requests {
    fn all(&self) -> usize {
        [&self.streams, &self.pages, &self.watches].iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }
}

async fn serve(Replies { stream, pages, watch }: Replies) -> (Arc<Clients>, Arc<Requests>) {
    let requests = Arc::new(Requests::default());
    let counted = requests.clone();
    let clients = clients(move |uri| {
        let (count, reply) = match uri {
            uri if uri.contains("sendInitialEvents") => (&counted.streams, stream),
            uri if uri.contains("limit=500") => (&counted.pages, pages),
            uri if uri.contains("limit=1") => return Reply::Whole(page(2000, "", &[])),
            _ => (&counted.watches, watch),
        };
        count.fetch_add(1, Ordering::SeqCst);
        reply()
    });
    (clients.await, requests)
}

fn listed() -> Reply {
    Reply::Whole(page(9, "", &[object("a", 3)]))
}

#[tokio::test(start_paused = true)]
async fn kind_that_cannot_be_watched_is_listed_immediately_and_again_with_backoff() {
    // (refusal, maximum time of the first list in seconds)
    let refusals: [(fn() -> Reply, u64); 7] = [
        (|| Reply::Refused(401), 2),
        (|| Reply::Refused(403), 0),
        (|| Reply::Refused(404), 0),
        (|| Reply::Refused(405), 0),
        (|| Reply::Refused(410), 2),
        (|| Reply::Refused(500), 2),
        (|| Reply::Refused(503), 2),
    ];
    for (number, (refusal, seconds)) in refusals.into_iter().enumerate() {
        let (clients, requests) = serve(Replies { stream: refusal, pages: listed, watch: refusal }).await;
        let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
        start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
        let first_list = timeout(Duration::from_secs_f64(seconds as f64 + 0.1), store.progress().synced());
        first_list.await.unwrap_or_else(|_| panic!("refusal {number}: no list within {seconds} s"));
        assert_eq!(names(&store), ["a"]);
        tokio::time::sleep(Duration::from_secs(600)).await;
        let lists = requests.pages.load(Ordering::SeqCst);
        assert!((5..=30).contains(&lists) && requests.all() < 90, "refusal {number}: {lists}, {}", requests.all());
    }
}

#[tokio::test(start_paused = true)]
async fn kind_without_any_right_is_requested_with_backoff() {
    let forbidden = || Reply::Refused(403);
    let (clients, requests) = serve(Replies { stream: forbidden, pages: forbidden, watch: forbidden }).await;
    let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
    start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!store.progress().is_synced());
    assert!((10..=30).contains(&requests.all()), "{} requests", requests.all());
}
