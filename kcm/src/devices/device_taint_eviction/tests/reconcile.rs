//! Reconciles of pods: the status of a rule is updated when an eviction that it causes ends in any way.

use kinds::meta::ObjectKey;
use runtime::events::Recorder;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Store;
use runtime::testing::{NoEvents, deliver, deliver_deletion, filled_store, writer};
use runtime::worker::{Outcome, Reconcile as _};

use super::super::keys::{ALLOCATED, CLAIMS_OF_POOL, Key, RULES, SLICES, SLICES_OF_POOL};
use super::super::metrics::Deletions;
use super::super::sync::Evictions;
use super::*;

/// The time in all tests; the countdown of the pod ends later.
const NOW: i64 = 200;

fn filled<K: Kind + Clone>(indexes: Vec<runtime::store::Index<K>>, records: &[Arc<K>]) -> Arc<Store<K>> {
    let decode = Decode { interner: Arc::default(), sections: Pod::DEVICES | ResourceClaim::ALLOCATION };
    Arc::new(filled_store(decode, indexes, records.iter().map(|record| (**record).clone())))
}

/// A controller that waits for the end of the countdown of the pod `p`, whose device the rule `r` taints.
async fn waiting() -> Evictions {
    let tolerated: Toleration<'_> = ("", NO_EXECUTE, Some(1000));
    let evictions = Evictions {
        pods: filled(vec![MEMBERS], &[pod("p", "node", false)]),
        claims: filled(vec![ALLOCATED, CLAIMS_OF_POOL], &[claim(None, &[("a", &[tolerated])], &["p"])]),
        slices: filled(vec![SLICES, SLICES_OF_POOL], &[]),
        rules: Some(filled(vec![RULES], &[rule("r", "a", ("k", NO_EXECUTE, 100))])),
        writer: writer(|method, path| panic!("{method} {path} is sent during the countdown")).await,
        recorder: Recorder::new("device-taint-eviction", Arc::new(NoEvents)).0,
        queue: Queue::new(QueueOptions::named("test")),
        clock: Arc::new(|| jiff::Timestamp::from_second(NOW).expect("a time")),
        pending: Arc::default(),
        evicted: Arc::default(),
        deletions: Deletions::register(&runtime::metrics::Metrics::default()),
        members: Members(None),
    };
    let outcome = evictions.reconcile(&pod_key()).await.expect("the reconcile succeeds");
    assert!(matches!(outcome, Outcome::RequeueAfter(_)), "the countdown runs");
    let first = evictions.queue.next().await.expect("the queue is open");
    assert_eq!(first, rule_key(), "the status reports the eviction");
    evictions.queue.done(&first);
    assert!(evictions.queue.is_empty());
    evictions
}

fn pod_key() -> Key {
    Key::Pod(ObjectKey::new("", "p"))
}

fn rule_key() -> Key {
    Key::Rule("r".into())
}

#[tokio::test(start_paused = true)]
async fn status_of_a_rule_is_updated_when_an_eviction_ends_before_its_time() {
    type End = fn(&Evictions);
    let pod_is_deleted: End = |all| deliver_deletion(&all.pods, &ObjectKey::new("", "p"));
    let claim_is_released: End = |all| deliver(&all.claims, (*claim(None, &[("a", &[])], &[])).clone());
    let all_is_tolerated: End = |all| {
        deliver(&all.claims, (*claim(None, &[("a", &[("", NO_EXECUTE, None)])], &["p"])).clone());
    };
    let other_rule_remains: End = |all| {
        let rules = all.rules.as_ref().expect("the gate is on");
        deliver(rules, (*rule("r", "b", ("k", NO_EXECUTE, 100))).clone());
        deliver(rules, (*rule("s", "a", ("k", NO_EXECUTE, 100))).clone());
    };
    for (name, end) in [
        ("the pod is deleted", pod_is_deleted),
        ("the claim is released", claim_is_released),
        ("the taint is tolerated", all_is_tolerated),
        ("another rule requires the eviction", other_rule_remains),
    ] {
        let evictions = waiting().await;
        end(&evictions);
        evictions.reconcile(&pod_key()).await.expect("the reconcile succeeds");
        let queued: Vec<Key> = evictions.queue.waiting().into_iter().map(|waiting| waiting.key).collect();
        assert!(queued.contains(&rule_key()), "{name}: {queued:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pod_without_an_eviction_updates_no_rule() {
    let evictions = waiting().await;
    deliver_deletion(&evictions.pods, &ObjectKey::new("", "p"));
    evictions.reconcile(&pod_key()).await.expect("the reconcile succeeds");
    let key = evictions.queue.next().await.expect("the queue is open");
    evictions.queue.done(&key);
    evictions.reconcile(&pod_key()).await.expect("the reconcile succeeds");
    assert!(evictions.queue.is_empty());
}
