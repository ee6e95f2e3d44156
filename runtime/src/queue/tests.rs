//! Guarantees of the queue: one run at a time, no key lost, delays and priorities respected.

use std::collections::HashSet;

use futures::FutureExt;
use proptest::prelude::*;

use super::state::{Item, KEPT_CAPACITY, MAX_FRESH_IN_ROW};
use super::*;

fn queue(window: Duration) -> Arc<Queue<&'static str>> {
    Queue::new(QueueOptions { window, max_window: window, ..QueueOptions::named("test") })
}

impl QueueKey for u8 {
    fn namespace(&self) -> &str {
        ["a", "b", ""][usize::from(self % 3)]
    }
}

/// Returns the key that is ready now, if any.
fn next_ready<K: QueueKey>(queue: &Queue<K>) -> Option<K> {
    queue.next().now_or_never().flatten()
}

#[tokio::test(start_paused = true)]
async fn namespaces_with_ready_keys_are_served_in_turn() {
    let queue: Arc<Queue<ObjectKey>> = Queue::new(QueueOptions::named("test"));
    for number in 0..20 {
        queue.add(ObjectKey::new("busy", number.to_string()));
    }
    queue.add_background(ObjectKey::new("third", "a"));
    queue.add(ObjectKey::new("other", "a"));
    queue.add(ObjectKey::new("other", "b"));
    let order: Vec<String> = std::iter::from_fn(|| next_ready(&queue)).map(|key| key.to_string()).collect();
    assert_eq!(order[..5], ["busy/0", "other/a", "busy/1", "other/b", "busy/2"]);
    assert_eq!(order.last().map(String::as_str), Some("third/a"), "keys of low priority come last");
    assert_eq!(queue.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_added_repeatedly_do_not_starve_background_keys() {
    let queue: Arc<Queue<u8>> = Queue::new(QueueOptions::named("test"));
    let waiting = 200;
    queue.add_background(waiting);
    (0..100).for_each(|key| queue.add(key));
    for run in 0..=MAX_FRESH_IN_ROW {
        let key = next_ready(&queue).expect("a ready key");
        if key == waiting {
            return;
        }
        assert!(run < MAX_FRESH_IN_ROW, "the key of low priority waits");
        queue.done(&key);
        queue.add(key);
    }
}

#[tokio::test(start_paused = true)]
async fn key_is_queued_once_and_never_runs_twice_at_the_same_time() {
    let queue = queue(Duration::ZERO);
    queue.add("a");
    queue.add("a");
    assert_eq!(next_ready(&queue), Some("a"));
    queue.add("a");
    queue.add("a");
    assert_eq!(next_ready(&queue), None, "the key is being reconciled");
    queue.done(&"a");
    assert_eq!(next_ready(&queue), Some("a"));
    queue.done(&"a");
    assert_eq!(next_ready(&queue), None);
    assert!(queue.lock().items.is_empty(), "no state is kept for an idle key");
}

/// Returns the sum of the times from the addition of keys to the starts of their runs, in seconds.
fn waited(queue: &Arc<Queue<&'static str>>) -> f64 {
    let metrics = crate::metrics::Metrics::new();
    metrics.collect(Queues::new([queue.clone() as Arc<dyn QueueStats>]));
    let text = metrics.text();
    let line = text.lines().find(|line| line.starts_with("workqueue_queue_duration_seconds_sum")).expect("a sum");
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[tokio::test(start_paused = true)]
async fn key_that_is_added_during_its_run_is_counted_once_and_from_that_time() {
    // (seconds of cooldown, seconds from the second addition to the second run)
    for (cooldown, expected) in [(0, 10.0), (3, 13.0)] {
        let queue = queue(Duration::ZERO);
        let counts = || (queue.metrics.adds.get(), queue.metrics.depth.get());
        queue.add("a");
        assert_eq!(counts(), (1, 1));
        assert_eq!(next_ready(&queue), Some("a"));
        assert_eq!(counts(), (1, 0));
        queue.cool_down(&"a", Duration::from_secs(cooldown));
        queue.add("a");
        queue.add_background("a");
        assert_eq!(counts(), (2, 1), "the key waits for the end of its run");
        tokio::time::advance(Duration::from_secs(10)).await;
        queue.done(&"a");
        assert_eq!(counts(), (2, 1));
        assert_eq!(queue.next().await, Some("a"));
        assert_eq!(counts(), (2, 0));
        assert!((waited(&queue) - expected).abs() < 0.1, "{} s instead of {expected}", waited(&queue));
    }
}

#[tokio::test(start_paused = true)]
async fn each_delayed_addition_counts_as_a_retry() {
    let queue = queue(Duration::ZERO);
    queue.add("a");
    assert_eq!(queue.metrics.retries.get(), 0);
    queue.add_after("a", Duration::from_secs(1));
    queue.add_after("b", Duration::ZERO);
    queue.add_rate_limited("c");
    assert_eq!(queue.metrics.retries.get(), 3);
    assert_eq!((queue.metrics.adds.get(), queue.metrics.depth.get()), (2, 2), "delayed keys are not counted yet");
}

#[tokio::test(start_paused = true)]
async fn delay_beyond_the_range_of_the_clock_is_shortened() {
    let queue = queue(Duration::ZERO);
    queue.add_after("a", Duration::from_secs(i64::MAX.unsigned_abs()));
    queue.add_after("b", Duration::MAX);
    assert_eq!(next_ready(&queue), None);
    tokio::time::advance(MAX_DELAY).await;
    assert!(next_ready(&queue).is_some() && next_ready(&queue).is_some());
}

#[tokio::test(start_paused = true)]
async fn failures_double_the_delay_until_reset() {
    let queue = queue(Duration::ZERO);
    for expected in [5, 10, 20, 40] {
        let started = Instant::now();
        queue.add_rate_limited("a");
        assert_eq!(queue.next().await, Some("a"));
        let waited = started.elapsed().as_millis() as u64;
        assert!((expected..=expected + 1).contains(&waited), "{waited} ms instead of {expected}");
        queue.done(&"a");
    }
    assert_eq!(queue.failures(&"a"), 4);
    queue.forget(&"a");
    assert_eq!(queue.failures(&"a"), 0);
    for _ in 0..60 {
        queue.add_rate_limited("b");
        queue.next().await;
        queue.done(&"b");
    }
    let started = Instant::now();
    queue.add_rate_limited("b");
    queue.next().await;
    assert_eq!(started.elapsed().as_secs(), 1000, "the maximum delay");
}

#[tokio::test(start_paused = true)]
async fn earliest_delay_applies() {
    let queue = queue(Duration::ZERO);
    let started = Instant::now();
    queue.add_after("a", Duration::from_secs(60));
    queue.add_after("a", Duration::from_secs(10));
    queue.add_after("a", Duration::from_secs(30));
    assert_eq!(queue.next().await, Some("a"));
    assert_eq!(started.elapsed().as_secs(), 10);
    queue.done(&"a");
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(next_ready(&queue), None, "later delays are dropped");
}

#[tokio::test(start_paused = true)]
async fn delays_that_an_earlier_one_replaced_take_limited_memory() {
    let queue = queue(Duration::ZERO);
    for _ in 0..1000 {
        queue.add_after("a", MAX_DELAY);
        queue.add_after("a", Duration::from_millis(1));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(next_ready(&queue), Some("a"));
        queue.done(&"a");
    }
    queue.add_after("a", MAX_DELAY);
    let delayed = queue.lock().delayed.len();
    assert!(delayed <= KEPT_CAPACITY, "{delayed} delays of one key");
    tokio::time::advance(MAX_DELAY).await;
    assert_eq!(next_ready(&queue), Some("a"), "the last delay applies");
}

#[tokio::test(start_paused = true)]
async fn coalesced_changes_run_immediately_and_then_once_per_window() {
    let queue = queue(Duration::from_millis(100));
    queue.add_coalesced("a");
    assert_eq!(next_ready(&queue), Some("a"), "the first change is not delayed");
    queue.done(&"a");
    let started = Instant::now();
    queue.add_coalesced("a");
    queue.add_coalesced("a");
    assert_eq!(next_ready(&queue), None);
    assert_eq!(queue.next().await, Some("a"));
    assert!(started.elapsed() >= Duration::from_millis(100));
    queue.done(&"a");
    queue.add("a");
    assert_eq!(next_ready(&queue), Some("a"), "an urgent change does not wait");
    queue.done(&"a");
    tokio::time::advance(Duration::from_millis(101)).await;
    assert_eq!(next_ready(&queue), None);
    assert!(queue.lock().items.is_empty());
}

#[test]
fn item_of_a_ready_key_is_small() {
    // All objects of a kind are ready at startup.
    assert!(size_of::<Item>() <= 32, "{} bytes", size_of::<Item>());
}

#[tokio::test(start_paused = true)]
async fn urgent_run_replaces_the_one_at_the_end_of_the_quiet_period() {
    let queue = queue(Duration::from_millis(100));
    queue.add_coalesced("a");
    assert_eq!(next_ready(&queue), Some("a"));
    queue.done(&"a");
    queue.add_coalesced("a");
    queue.add("a");
    assert_eq!(next_ready(&queue), Some("a"), "an urgent change does not wait");
    queue.done(&"a");
    tokio::time::advance(Duration::from_millis(101)).await;
    assert_eq!(next_ready(&queue), None, "the urgent run covered both changes");
}

/// Reconciles the ready key for the duration of a write. `changes` are the times of changes after the start of the
/// write.
async fn write(queue: &Queue<&'static str>, takes: u64, changes: &[u64]) {
    assert_eq!(next_ready(queue), Some("a"), "an urgent change is not delayed");
    let mut passed = 0;
    for at in changes {
        tokio::time::advance(Duration::from_millis(at - passed)).await;
        queue.add("a");
        assert_eq!(next_ready(queue), None, "one write of a key at a time");
        passed = *at;
    }
    tokio::time::advance(Duration::from_millis(takes - passed)).await;
    queue.done(&"a");
}

#[tokio::test(start_paused = true)]
async fn changes_that_arrive_one_by_one_are_never_delayed() {
    let queue = queue(Duration::ZERO);
    // Each change arrives after the previous write has ended, however short the pause.
    for pause in [1000, 500, 50, 10, 1, 1, 1, 0, 0, 0] {
        tokio::time::advance(Duration::from_millis(pause)).await;
        queue.add("a");
        write(&queue, 20, &[]).await;
    }
    assert!(queue.lock().items.is_empty(), "no state is kept for them");
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_write_share_the_next_one_as_soon_as_it_ends() {
    let queue = queue(Duration::ZERO);
    // (milliseconds per write, milliseconds between changes, writes): the slower the writes, the fewer.
    for (takes, period, writes) in [(5, 10, 100), (10, 10, 100), (50, 10, 20), (500, 10, 2)] {
        let (started, mut done) = (Instant::now(), 0);
        queue.add("a");
        while started.elapsed() < Duration::from_secs(1) {
            let changes: Vec<u64> = (1..).map(|n| n * period).take_while(|at| *at < takes).collect();
            write(&queue, takes, &changes).await;
            done += 1;
            if changes.is_empty() {
                tokio::time::advance(Duration::from_millis(period - takes)).await;
                queue.add("a");
            }
        }
        assert_eq!(done, writes, "with writes of {takes} ms");
        if !queue.is_empty() {
            write(&queue, takes, &[]).await;
        }
        assert_eq!(next_ready(&queue), None, "the last batch is not written twice");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_key_that_was_added_during_its_run_cools_down() {
    let queue = queue(Duration::ZERO);
    // (milliseconds of cooldown, whether the key is added during its run, milliseconds until it is ready again)
    for (cooldown, is_added_meanwhile, expected) in [(20, false, 0), (20, true, 20), (50, true, 50), (0, true, 0)] {
        queue.add("a");
        assert_eq!(next_ready(&queue), Some("a"));
        queue.cool_down(&"a", Duration::from_millis(cooldown));
        if is_added_meanwhile {
            queue.add("a");
        }
        queue.done(&"a");
        let started = Instant::now();
        queue.add("a");
        assert_eq!(queue.next().await, Some("a"), "the key is ready only once");
        let waited = started.elapsed().as_millis() as u64;
        assert!((expected..=expected + 1).contains(&waited), "{waited} ms with a cooldown of {cooldown}");
        queue.add("a");
        queue.done(&"a");
        assert_eq!(next_ready(&queue), Some("a"), "a cooldown is for one run");
        queue.done(&"a");
        queue.cool_down(&"a", Duration::from_secs(1));
        assert!(queue.lock().items.is_empty(), "no state is kept for an idle key");
    }
}

#[tokio::test(start_paused = true)]
async fn delayed_key_is_not_ready_before_its_cooldown_ends() {
    let queue = queue(Duration::ZERO);
    for (delay, expected) in [(10, 50), (50, 50), (80, 50)] {
        queue.add("a");
        assert_eq!(next_ready(&queue), Some("a"));
        queue.cool_down(&"a", Duration::from_millis(50));
        queue.add("a");
        queue.done(&"a");
        let started = Instant::now();
        queue.add_after("a", Duration::from_millis(delay));
        assert_eq!(queue.next().await, Some("a"));
        let waited = started.elapsed().as_millis() as u64;
        assert!((expected..=expected + 1).contains(&waited), "{waited} ms with a delay of {delay}");
        queue.done(&"a");
    }
}

#[tokio::test(start_paused = true)]
async fn change_while_waiting_for_the_cache_is_ready_immediately() {
    let queue = queue(Duration::ZERO);
    queue.add("a");
    assert_eq!(next_ready(&queue), Some("a"));
    queue.add("a");
    queue.waiting_for_cache(&"a");
    assert_eq!(next_ready(&queue), Some("a"), "the change is not lost");
    queue.waiting_for_cache(&"a");
    assert_eq!(next_ready(&queue), None);
    assert!(queue.lock().items.is_empty());
    queue.add("a");
    assert_eq!(next_ready(&queue), Some("a"), "the store requeues it without a delay");
    queue.done(&"a");
}

#[tokio::test(start_paused = true)]
async fn run_that_waits_for_the_cache_keeps_the_quiet_period() {
    let window = Duration::from_millis(100);
    let queue = Queue::new(QueueOptions { window, max_window: window * 8, ..QueueOptions::named("test") });
    queue.add_coalesced("a");
    for expected in [0, 100, 200, 400, 800] {
        let started = Instant::now();
        assert_eq!(queue.next().await, Some("a"));
        let waited = started.elapsed().as_millis() as u64;
        assert!((expected..=expected + 2).contains(&waited), "{waited} ms instead of {expected}");
        queue.add_coalesced("a");
        queue.waiting_for_cache(&"a");
        assert_eq!(next_ready(&queue), None, "the cache will add the key");
        queue.add("a");
        assert_eq!(next_ready(&queue), Some("a"));
        queue.add_coalesced("a");
        queue.done(&"a");
    }
    assert_eq!(queue.next().await, Some("a"));
    queue.waiting_for_cache(&"a");
    assert!(queue.lock().items.len() <= 1);
}

#[tokio::test(start_paused = true)]
async fn window_grows_while_changes_arrive_and_shrinks_afterwards() {
    let options = QueueOptions {
        window: Duration::from_millis(100),
        max_window: Duration::from_millis(300),
        ..QueueOptions::named("test")
    };
    let queue = Queue::new(options);
    queue.add_coalesced("a");
    for expected in [0, 100, 200, 300, 300] {
        let started = Instant::now();
        assert_eq!(queue.next().await, Some("a"));
        let waited = started.elapsed().as_millis() as u64;
        assert!((expected..=expected + 2).contains(&waited), "{waited} ms instead of {expected}");
        queue.add_coalesced("a");
        queue.done(&"a");
    }
    queue.next().await;
    queue.done(&"a");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(next_ready(&queue), None);
    assert!(queue.lock().items.is_empty(), "no state is kept for a key that is quiet again");
}

#[tokio::test(start_paused = true)]
async fn changes_are_handed_out_before_background_keys() {
    let queue = queue(Duration::ZERO);
    queue.add_background("old");
    queue.add_background("both");
    queue.add("new");
    queue.add("both");
    let order: Vec<_> = std::iter::from_fn(|| next_ready(&queue)).collect();
    assert_eq!(order, ["new", "both", "old"]);
}

#[tokio::test(start_paused = true)]
async fn closed_queue_ends_every_waiting_worker() {
    let queue = queue(Duration::ZERO);
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.close();
    for worker in workers {
        assert_eq!(worker.await.expect("no panic"), None);
    }
}

/// The only task with a timer takes a key and is busy with it; another task was waiting before the delayed key was
/// added.
#[tokio::test(start_paused = true)]
async fn delayed_key_is_taken_while_the_task_with_the_timer_is_busy() {
    let queue = queue(Duration::ZERO);
    let taken: Arc<Mutex<Vec<&str>>> = Arc::default();
    for _ in 0..2 {
        let (queue, taken) = (queue.clone(), taken.clone());
        tokio::spawn(async move {
            while let Some(key) = queue.next().await {
                lock(&taken).push(key);
                tokio::time::sleep(Duration::from_secs(1000)).await;
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    queue.add_after("delayed", Duration::from_secs(10));
    tokio::time::sleep(Duration::from_millis(1)).await;
    queue.add("fresh");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(*lock(&taken), ["fresh", "delayed"]);
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8),
    Background(u8),
    After(u8, u64),
    Coalesced(u8),
    Fail(u8),
    CoolDown(u8, u64),
    Take,
    Done(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u8..5).prop_map(Step::Add),
        (0u8..5).prop_map(Step::Background),
        (0u8..5, 0u64..50).prop_map(|(key, ms)| Step::After(key, ms)),
        (0u8..5).prop_map(Step::Coalesced),
        (0u8..5).prop_map(Step::Fail),
        (0u8..5, 0u64..50).prop_map(|(key, ms)| Step::CoolDown(key, ms)),
        Just(Step::Take),
        (0usize..5).prop_map(Step::Done),
        (0u64..60).prop_map(Step::Wait),
    ]
}

proptest! {
    /// For any sequence of operations: no key is handed out twice at the same time, no added key is lost, and an idle
    /// queue stores only failures.
    #[test]
    fn no_key_is_lost_and_none_runs_twice_concurrently(steps in proptest::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("runtime");
        runtime.block_on(async {
            let queue = Queue::<u8>::new(QueueOptions { window: Duration::from_millis(20), max_window: Duration::from_millis(80), ..QueueOptions::named("t") });
            let mut working: Vec<u8> = Vec::new();
            let mut wanted: HashSet<u8> = HashSet::new();
            for step in steps {
                match step {
                    Step::Add(key) => { queue.add(key); wanted.insert(key); }
                    Step::Background(key) => { queue.add_background(key); wanted.insert(key); }
                    Step::After(key, ms) => { queue.add_after(key, Duration::from_millis(ms)); wanted.insert(key); }
                    Step::Coalesced(key) => { queue.add_coalesced(key); wanted.insert(key); }
                    Step::Fail(key) => { queue.add_rate_limited(key); wanted.insert(key); }
                    Step::CoolDown(key, ms) => queue.cool_down(&key, Duration::from_millis(ms)),
                    Step::Take => if let Some(key) = next_ready(&queue) {
                        assert!(!working.contains(&key), "{key} runs twice concurrently");
                        assert!(wanted.remove(&key) , "{key} was not added");
                        working.push(key);
                        // A delayed run may still be due: it counts as requested.
                        if queue.lock().items.get(&key).is_some_and(|item| item.due.is_some()) { wanted.insert(key); }
                    },
                    Step::Done(at) => if !working.is_empty() {
                        let key = working.swap_remove(at % working.len());
                        queue.done(&key);
                    },
                    Step::Wait(ms) => tokio::time::advance(Duration::from_millis(ms)).await,
                }
            }
            for key in working.drain(..) { queue.done(&key); }
            tokio::time::advance(Duration::from_secs(2000)).await;
            let mut rest = HashSet::new();
            while let Some(key) = next_ready(&queue) {
                rest.insert(key);
                queue.done(&key);
            }
            assert!(wanted.is_subset(&rest), "lost: {:?}", wanted.difference(&rest).collect::<Vec<_>>());
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(next_ready(&queue), None);
            let kept: Vec<u8> = queue.lock().items.iter().filter(|(_, item)| item.failures == 0).map(|(key, _)| *key).collect();
            assert!(kept.is_empty(), "kept without reason: {kept:?}");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn queue_releases_memory_when_most_keys_have_left() {
    const KEYS: usize = 10_000;
    let queue = Queue::new(QueueOptions::named("test"));
    for number in 0..KEYS {
        queue.add(number.to_string());
        queue.add_after(format!("late-{number}"), Duration::from_secs(1));
    }
    assert!(queue.lock().items.capacity() >= 2 * KEYS);
    for _ in 0..2 * KEYS - 1 {
        let key = queue.next().await.expect("open");
        queue.done(&key);
    }
    let state = queue.lock();
    assert_eq!(state.items.len(), 1);
    assert!(state.items.capacity() <= 2 * KEPT_CAPACITY, "{}", state.items.capacity());
    assert!(state.delayed.capacity() <= 2 * KEPT_CAPACITY, "{}", state.delayed.capacity());
}
