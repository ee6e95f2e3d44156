//! Limits of the journal, and well-formed pages for any content.

use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::journal::*;
use crate::queue::{Queue, QueueOptions};

#[tokio::test]
async fn notes_belong_to_the_running_reconcile() {
    note(|| unreachable!("no reconcile runs"));
    let (one, other) = (Arc::new(Mutex::new(Notes::default())), Arc::new(Mutex::new(Notes::default())));
    let write = |text: &'static str| async move {
        tokio::task::yield_now().await;
        note(|| text.to_owned());
    };
    let both = with_notes(&one, async { futures::join!(write("POST /a"), write("POST /a"), write("PUT /b")) });
    futures::join!(both, with_notes(&other, write("DELETE /c")));
    assert_eq!(Notes::take(&one), "POST /a (2 times); PUT /b");
    assert_eq!(Notes::take(&other), "DELETE /c");
    assert_eq!(Notes::take(&other), "", "notes were returned twice");
    with_notes(&one, async { (0..50).for_each(|number| note(|| format!("{number} {}", "é".repeat(90)))) }).await;
    let line = Notes::take(&one);
    assert!(line.len() < 340 && line.ends_with('…'), "{line}");
}

#[test]
fn journal_is_bounded_and_removes_keys_that_succeed() {
    let journal = Journal::default();
    let fail = |key: usize, error: &str| {
        journal.record(key.to_string(), LastResult::Failed, Duration::ZERO, String::new(), Some(error.to_owned()));
    };
    (0..2 * MAX_FAILING).for_each(|key| fail(key, &"x".repeat(10_000)));
    let (failing, discarded) = journal.failing();
    assert_eq!((failing.len(), discarded, journal.failures()), (MAX_FAILING, MAX_FAILING as u64, MAX_FAILING));
    assert!(failing.iter().all(|(_, failure)| failure.error.len() < 520));
    assert_eq!(journal.recent().len(), MAX_RECENT);

    fail(2 * MAX_FAILING - 1, "again");
    let failure = journal.failure(&(2 * MAX_FAILING - 1).to_string()).expect("it fails");
    assert_eq!((failure.times, &*failure.error, failure.dropped), (2, "again", false));
    let newest = journal.recent().remove(0);
    assert_eq!(&*newest.key, (2 * MAX_FAILING - 1).to_string());

    let key = (2 * MAX_FAILING - 1).to_string();
    journal.record(key.clone(), LastResult::WaitingForCache, Duration::ZERO, "waits".into(), None);
    assert!(journal.failure(&key).is_some(), "waiting for the cache is not a success");
    journal.record(key.clone(), LastResult::Done, Duration::ZERO, String::new(), None);
    assert!(journal.failure(&key).is_none());
    assert!(journal.last(&key).expect("remembered").outcome().starts_with("done"));
    assert_eq!(journal.recent().iter().filter(|entry| *entry.key == *key).count(), 1, "one entry per key");

    // A user may refer to an owner by a name of any length.
    let long = "x".repeat(1 << 20);
    journal.record(long.clone(), LastResult::Failed, Duration::ZERO, String::new(), Some("no owner".into()));
    journal.record(long.clone(), LastResult::Failed, Duration::ZERO, String::new(), Some("no owner".into()));
    assert!(journal.recent().iter().all(|entry| entry.key.len() < 520));
    assert_eq!(journal.failures(), MAX_FAILING, "one entry for both failures");
    journal.record(long, LastResult::Done, Duration::ZERO, String::new(), None);
    assert_eq!(journal.failures(), MAX_FAILING - 1);
}

#[test]
fn conflict_is_recorded_as_failure_with_its_notes() {
    let journal = Journal::default();
    journal.record("ns/a".into(), LastResult::RequeueWithBackoff, Duration::ZERO, "PUT /x: conflict".into(), None);
    journal.record("ns/b".into(), LastResult::Dropped, Duration::ZERO, String::new(), Some("bad".into()));
    assert_eq!(&*journal.failure("ns/a").expect("not finished").error, "PUT /x: conflict");
    assert!(journal.failure("ns/b").expect("failed").dropped);
}

/// Returns an explainer with one controller, these journal entries and queued keys.
fn explainer(kinds: &'static [(&'static str, &'static str)], fill: impl FnOnce(&Journal, &Queue<String>)) -> Explainer {
    let queue = Queue::new(QueueOptions::named("replicaset"));
    let counts = Arc::new(WorkCounts::default());
    fill(&counts.journal, &queue);
    Explainer {
        component: "kube-controller-manager",
        kinds: kinds.to_vec(),
        finalizers: Vec::new(),
        controllers: vec![ReportedController { name: "replicaset-controller", workers: 5, queue, counts }],
        sources: Vec::new(),
        every: None,
        stores: Vec::new(),
        fence: Fence::open(),
    }
}

const KINDS: &[(&str, &str)] = &[("replicaset", "ReplicaSet")];

fn query(kind: &str, name: &str) -> ObjectQuery {
    ObjectQuery { kind: kind.into(), namespace: "ns".into(), name: name.into() }
}

#[tokio::test]
async fn failing_key_is_reported_with_its_error_and_next_retry() {
    let explainer = explainer(KINDS, |journal, queue| {
        let error = "pods \"a-1\" is forbidden: exceeded quota: few";
        journal.record(
            "ns/a".into(),
            LastResult::Failed,
            Duration::from_millis(3),
            "POST /pods: 403".into(),
            Some(error.into()),
        );
        queue.add_rate_limited("ns/a".into());
        queue.add("ns/b".into());
    });
    let json = |query: Option<&ObjectQuery>| -> serde_json::Value {
        serde_json::from_str(&explainer.render(query, Form::Json)).expect("JSON")
    };
    let all = json(None);
    let controller = &all["controllers"][0];
    assert_eq!(
        (&controller["workers"], &controller["queue"]["depth"], &controller["queue"]["delayed"]),
        (&5.into(), &1.into(), &1.into())
    );
    assert_eq!(controller["failing"][0]["key"], "ns/a");
    assert!(controller["failing"][0]["nextTryInSeconds"].as_f64().is_some_and(|seconds| seconds < 0.1));
    assert_eq!(controller["recent"][0]["did"], "POST /pods: 403");

    let one = json(Some(&query("replicasets", "a")));
    assert_eq!(
        one["waitsFor"],
        serde_json::json!([]),
        "the plural name of a kind that is not watched matches no controller"
    );
    let one = json(Some(&query("ReplicaSet", "a")));
    assert_eq!((&one["waitsFor"][0]["what"], &one["object"]), (&"quota".into(), &serde_json::Value::Null));
    assert_eq!(one["controllers"][0]["lastDecision"]["did"], "POST /pods: 403");
    assert_eq!(
        json(Some(&query("Job", "a")))["controllers"],
        serde_json::json!([]),
        "the keys of the controller are of another kind"
    );
    assert_eq!(json(Some(&query("ReplicaSet", "b")))["waitsFor"][0]["what"], "queue");
}

#[tokio::test(start_paused = true)]
async fn running_keys_are_listed_with_their_durations() {
    let queue = Queue::new(QueueOptions::named("replicaset"));
    queue.add("ns/hangs".to_owned());
    assert_eq!(queue.next().await.as_deref(), Some("ns/hangs"));
    tokio::time::advance(Duration::from_secs(60)).await;
    queue.add("ns/runs".to_owned());
    assert_eq!(queue.next().await.as_deref(), Some("ns/runs"));
    queue.add("ns/waits".to_owned());
    tokio::time::advance(Duration::from_secs(2)).await;
    let mut explainer = explainer(KINDS, |_, _| {});
    explainer.controllers[0].queue = queue;
    let all: serde_json::Value = serde_json::from_str(&explainer.render(None, Form::Json)).expect("JSON");
    let expected = serde_json::json!([{"key": "ns/hangs", "forSeconds": 62.0}, {"key": "ns/runs", "forSeconds": 2.0}]);
    assert_eq!(all["controllers"][0]["queue"]["running"], expected);
    let (_, text) = parse(&explainer.render(None, Form::Html)).expect("well-formed");
    assert!(text.contains("Running reconciles") && text.contains("ns/hangs"), "{text}");
}

/// Checks that a page is well-formed: elements are closed in order, attributes are quoted and unique, and no text is
/// interpreted as markup. Returns the names of its elements and its text.
fn parse(html: &str) -> Result<(Vec<String>, String), String> {
    let mut rest = html.strip_prefix("<!DOCTYPE html>\n").ok_or("no doctype")?;
    let (mut open, mut names, mut text) = (Vec::new(), Vec::new(), String::new());
    while !rest.is_empty() {
        let Some(tag) = rest.strip_prefix('<') else {
            let end = rest.find('<').unwrap_or(rest.len());
            let (piece, after) = rest.split_at(end);
            if piece.contains('>') && open.last().map(String::as_str) != Some("style") {
                return Err(format!("a bare > in {piece:?}"));
            }
            text.push_str(&unescaped(piece)?);
            rest = after;
            continue;
        };
        let end = tag.find('>').ok_or("a tag without an end")?;
        let (inside, after) = (&tag[..end], &tag[end + 1..]);
        rest = after;
        if let Some(name) = inside.strip_prefix('/') {
            let last: Option<String> = open.pop();
            if last.as_deref() != Some(name) {
                return Err(format!("</{name}> ends {last:?}"));
            }
            continue;
        }
        let closed = inside.strip_suffix('/');
        let mut parts = closed.unwrap_or(inside).splitn(2, ' ');
        let name = parts.next().unwrap_or_default().to_owned();
        let mut attributes = parts.next().unwrap_or_default();
        let mut seen = Vec::new();
        while !attributes.trim().is_empty() {
            let (attribute, value) = attributes.split_once("=\"").ok_or(format!("{attributes:?} is not quoted"))?;
            let (value, after) = value.split_once('"').ok_or("a quote without an end")?;
            unescaped(value)?;
            if seen.contains(&attribute.trim()) {
                return Err(format!("{attribute} twice"));
            }
            let typed = attribute.trim() == "value";
            if ["src", "onclick", "onload"].contains(&attribute.trim()) || value.contains("//") && !typed {
                return Err(format!("the page loads or runs something: {attribute}={value}"));
            }
            seen.push(attribute.trim());
            attributes = after;
        }
        names.push(name.clone());
        if closed.is_none() {
            open.push(name);
        }
    }
    if open.is_empty() { Ok((names, text)) } else { Err(format!("{open:?} do not end")) }
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut pieces = text.split('&');
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (entity, rest) = piece.split_once(';').ok_or(format!("a bare & before {piece:?}"))?;
        plain.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "#39" => '\'',
            other => return Err(format!("&{other};")),
        });
        plain.push_str(rest);
    }
    Ok(plain)
}

#[tokio::test]
async fn pages_are_small_and_have_links_to_objects() {
    let explainer = explainer(KINDS, |journal, _| {
        journal.record("ns/a".into(), LastResult::Failed, Duration::ZERO, String::new(), Some("no & never".into()));
    });
    let all = explainer.render(None, Form::Html);
    let (names, text) = parse(&all).expect("well-formed");
    assert!(text.contains("no & never") && names.iter().any(|name| name == "form"), "{text}");
    assert!(all.contains("href=\"/debug/reconcile?kind=ReplicaSet&amp;namespace=ns&amp;name=a\""), "{all}");
    assert!(!names.iter().any(|name| ["script", "img", "link", "iframe"].contains(&name.as_str())), "{names:?}");
    assert!(all.len() < 8 << 10, "{} bytes", all.len());
    let one = explainer.render(Some(&query("ReplicaSet", "a")), Form::Html);
    let (_, text) = parse(&one).expect("well-formed");
    assert!(text.contains("replicaset-controller fails: no & never"), "{text}");
}

/// Measures the worst case in bytes: the memory of a controller whose every reconcile fails.
#[test]
fn full_journal_is_small() {
    let journal = Journal::default();
    for key in 0..10 * MAX_FAILING {
        let key = format!("a-namespace-with-a-name/a-replica-set-with-a-long-name-{key}");
        journal.record(key, LastResult::Failed, Duration::ZERO, "d".repeat(320), Some("e".repeat(2000)));
    }
    let entry = |key: usize, did: usize| size_of::<Entry>() + key + did;
    let recent: usize = journal.recent().iter().map(|known| entry(known.key.len(), known.did.len())).sum();
    let (failing, _) = journal.failing();
    let failing: usize =
        failing.iter().map(|(key, failure)| size_of::<(Box<str>, Failure)>() + key.len() + failure.error.len()).sum();
    assert!(recent < 40 << 10 && failing < 200 << 10, "{recent} and {failing} bytes");
}

proptest! {
    #[test]
    fn page_is_well_formed_for_any_text(key in "\\PC{0,40}", error in "\\PC{1,60}", name in "\\PC{1,20}") {
        let explainer = explainer(KINDS, |journal, _| {
            journal.record(key.clone(), LastResult::Failed, Duration::ZERO, error.clone(), Some(error.clone()));
        });
        let all = explainer.render(None, Form::Html);
        let (_, text) = parse(&all).map_err(TestCaseError::fail)?;
        prop_assert!(text.contains(&error));
        let one = explainer.render(Some(&query("ReplicaSet", &name)), Form::Html);
        parse(&one).map_err(TestCaseError::fail)?;
    }
}
