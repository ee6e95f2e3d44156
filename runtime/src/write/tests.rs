//! The Writer with a server that is simulated by a [`RequestLayer`].

use std::sync::Mutex;

use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;

use super::*;
use crate::client::{ConnectOptions, PodEnvironment, ProxyEnvironment, RequestLayer, ResponseBody, connect};

const CONFIG_MAPS: Resource =
    Resource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

type Paths = Arc<Mutex<Vec<String>>>;

fn full(status: u16, headers: &[(&str, &str)], body: &str) -> Response<ResponseBody> {
    let body = Full::from(body.to_owned()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    for (name, value) in headers {
        response.headers_mut().insert(
            http::HeaderName::try_from(*name).expect("a header"),
            http::HeaderValue::from_str(value).expect("a value"),
        );
    }
    response
}

/// Creates a writer whose requests get their responses from `response`; also returns the paths of its requests.
async fn writer(
    fence: Fence,
    response: impl Fn(&str) -> Option<Response<ResponseBody>> + Send + Sync + 'static,
) -> (Writer, Paths) {
    let paths = Paths::default();
    let requested = paths.clone();
    let layer = RequestLayer::new(move |_, request, _| {
        let path = request.uri().to_string();
        requested.lock().expect("the paths").push(path.clone());
        let response = response(&path);
        Box::pin(async move {
            match response {
                Some(response) => Ok(response),
                None => std::future::pending().await,
            }
        })
    });
    let options = ConnectOptions {
        kubeconfig: None,
        pod: PodEnvironment { host: String::new(), port: String::new(), folder: "/nonexistent".into() },
        master: Some("http://127.0.0.1:1".to_owned()),
        proxies: ProxyEnvironment::default(),
        layer: Some(layer),
        ..ConnectOptions::default()
    };
    let clients = Arc::new(connect(&options).await.expect("clients"));
    (Writer::new(clients, Identity::Own, Arc::new(TokenBucket::new(-1.0, 1)), fence), paths)
}

/// Returns a `Status` in JSON.
fn status(code: u16, reason: &str, message: &str) -> String {
    serde_json::json!({"kind": "Status", "code": code, "reason": reason, "message": message}).to_string()
}

#[tokio::test(start_paused = true)]
async fn hostile_names_reach_one_object_or_nothing() {
    let not_found = |_: &str| Some(full(404, &[], &status(404, "NotFound", "no such object")));
    let (writer, paths) = writer(Fence::open(), not_found).await;
    let long = "x".repeat(70_000);
    for name in [
        "?watch=true&timeoutSeconds=99999999",
        "a b",
        "kube-system/secrets?watch=true",
        "../x",
        "%2e%2e",
        "..",
        "",
        " ",
        "\0",
        "#",
        "語\u{202e}",
        &long,
    ] {
        let key = ObjectKey::new("ns", name);
        let error = writer.get_meta(&CONFIG_MAPS, &key).await.expect_err(name);
        assert!(error.is_not_found() ^ error.is_invalid_name(), "{error}");
        assert!(!error.is_lost() && error.to_string().len() < 300, "{error}");
        let uid = Uid::parse("u");
        assert!(writer.delete(&CONFIG_MAPS, &key, &uid).await.is_err());
        assert!(writer.patch(&CONFIG_MAPS, &key, &serde_json::json!({})).await.is_err());
        assert!(writer.get_scale(&CONFIG_MAPS, &key).await.is_err());
    }
    let create = writer.create(&CONFIG_MAPS, "a/../kube-system", b"", false).await.expect_err("no namespace");
    assert!(create.is_invalid_name(), "{create}");
    let paths = paths.lock().expect("the paths");
    assert!(!paths.is_empty());
    for path in paths.iter() {
        let rest = path.strip_prefix("/api/v1/namespaces/ns/configmaps/").unwrap_or_else(|| panic!("{path}"));
        let (name, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        assert!(!matches!(name, "" | "." | ".."), "{path}");
        assert!(!path.contains(['?', '#', ' ']) && matches!(subresource, "" | "scale"), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_read_is_cancelled() {
    let endless = |path: &str| {
        path.ends_with("slow").then(|| {
            let chunks = futures::stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Some((Ok(Frame::data(Bytes::from_static(b"more"))), ()))
            });
            Response::new(StreamBody::new(chunks).boxed_unsync())
        })
    };
    let (writer, _) = writer(Fence::open(), endless).await;
    for name in ["slow", "silent"] {
        let started = tokio::time::Instant::now();
        let error = writer.get(&CONFIG_MAPS, &ObjectKey::new("ns", name)).await.expect_err("no end");
        assert!(started.elapsed() <= crate::client::READ_TIMEOUT + Duration::from_secs(1), "{error}");
    }
}

#[tokio::test]
async fn response_beyond_the_size_limit_is_cancelled() {
    let huge = |_: &str| {
        let chunk = Bytes::from(vec![0; 1 << 20]);
        let chunks = futures::stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
        Some(Response::new(StreamBody::new(chunks).boxed_unsync()))
    };
    let (writer, _) = writer(Fence::open(), huge).await;
    let error = writer.get(&CONFIG_MAPS, &ObjectKey::new("ns", "a")).await.expect_err("too long");
    assert!(matches!(error, WriteError::TooLong(_)), "{error}");
    let error = writer.create(&CONFIG_MAPS, "ns", b"", false).await.expect_err("too long");
    assert!(matches!(error, WriteError::TooLong(_)) && error.is_lost(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn error_with_an_endless_body_is_a_refusal() {
    for is_silent in [false, true] {
        let endless = move |_: &str| {
            let chunks = futures::stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![b' '; 1 << 16]))));
            let body = if is_silent {
                StreamBody::new(futures::stream::pending()).boxed_unsync()
            } else {
                StreamBody::new(chunks).boxed_unsync()
            };
            Some(Response::builder().status(403).body(body).expect("an error"))
        };
        let (writer, _) = writer(Fence::open(), endless).await;
        let error = writer.create(&CONFIG_MAPS, "ns", b"", false).await.expect_err("refused");
        assert!(error.refused().is_some_and(|status| status.code == 403), "{error}");
    }
}

#[tokio::test]
async fn error_reports_whether_the_write_may_have_been_stored_and_would_be_refused_again() {
    const RETRY: &[(&str, &str)] = &[("retry-after", "3")];
    type Headers = &'static [(&'static str, &'static str)];
    // (code, headers, reason, message, may have been stored, would be refused again)
    let cases: [(u16, Headers, &str, &str, bool, bool); 13] = [
        (500, &[], "InternalError", "etcdserver: request timed out", true, false),
        (500, &[], "InternalError", "etcdserver: leader changed", true, false),
        (500, &[], "ServerTimeout", "the create operation could not be completed at this time", true, false),
        (
            504,
            &[],
            "Timeout",
            "request did not complete within requested timeout - context deadline exceeded",
            true,
            false,
        ),
        (502, &[], "", "bad gateway", true, false),
        (503, &[], "", "upstream connect error", true, false),
        (408, &[], "Timeout", "request timeout", true, false),
        (503, RETRY, "ServiceUnavailable", "apiserver is shutting down", false, false),
        (500, &[], "InternalError", "Internal error occurred: failed calling webhook \"a\": timeout", false, true),
        (429, RETRY, "TooManyRequests", "too many requests", false, false),
        (409, &[], "Conflict", "changed", false, false),
        (403, &[], "Forbidden", "exceeded quota", false, true),
        (422, &[], "Invalid", "bad", false, true),
    ];
    for (code, headers, reason, message, is_lost, is_denied) in cases {
        let body = status(code, reason, message);
        let (writer, _) = writer(Fence::open(), move |_| Some(full(code, headers, &body))).await;
        let error = writer.create(&CONFIG_MAPS, "ns", b"", false).await.expect_err("refused");
        assert_eq!((error.is_lost(), error.is_denied()), (is_lost, is_denied), "{code} {message}");
    }
}

#[tokio::test]
async fn retry_after_of_reads_and_writes_is_kept_and_capped() {
    for (header, delay) in [("3", 3), ("86400", 60), ("4294967295", 60)] {
        let overloaded =
            move |_: &str| Some(full(429, &[("retry-after", header)], &status(429, "TooManyRequests", "later")));
        let (writer, _) = writer(Fence::open(), overloaded).await;
        let read = writer.get(&CONFIG_MAPS, &ObjectKey::new("ns", "a")).await.expect_err("refused");
        let write = writer.create(&CONFIG_MAPS, "ns", b"", false).await.expect_err("refused");
        for error in [read, write] {
            assert_eq!(error.retry_after(), Some(Duration::from_secs(delay)), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn write_is_cancelled_when_the_fence_closes_and_reads_ignore_the_fence() {
    const LEASE: Duration = Duration::from_secs(15);
    let hangs = |path: &str| path.ends_with("/a").then(|| full(404, &[], "{}"));
    let fence = Fence::closed(LEASE);
    let (writer, paths) = writer(fence.clone(), hangs).await;
    let error = writer.create(&CONFIG_MAPS, "ns", b"", false).await.expect_err("not leading");
    assert!(matches!(error, WriteError::NotLeading), "{error}");
    assert!(paths.lock().expect("the paths").is_empty());
    assert!(writer.get(&CONFIG_MAPS, &ObjectKey::new("ns", "a")).await.expect_err("none").is_not_found());
    fence.renew(tokio::time::Instant::now());
    let started = tokio::time::Instant::now();
    let error = writer.create(&CONFIG_MAPS, "ns", b"", false).await.expect_err("no response");
    assert!(error.is_lost(), "{error}");
    assert_eq!(started.elapsed().as_secs(), LEASE.as_secs(), "not the 30 s of the write timeout");
}

#[tokio::test]
async fn reconcile_that_has_read_a_stale_record_deletes_nothing() {
    let (writer, paths) = writer(Fence::open(), |_| Some(full(200, &[], "{}"))).await;
    let key = ObjectKey::new("ns", "a");
    let delete = async || writer.delete(&CONFIG_MAPS, &key, &Uid::parse("u")).await;
    let refused = crate::stale::noting(async {
        crate::stale::note("ns", || "Pod ns/web".to_owned());
        let collection = writer.delete_collection(&CONFIG_MAPS, "ns").await.map(drop);
        [delete().await, collection]
    });
    for result in refused.await {
        let error = result.expect_err("the record is outdated");
        assert!(error.to_string().contains("the newest state of Pod ns/web cannot be decoded"), "{error}");
        assert!(!error.is_lost());
    }
    assert!(paths.lock().expect("the paths").is_empty(), "a request was sent");
    crate::stale::noting(delete()).await.expect("another reconcile");
    delete().await.expect("outside of a reconcile");
    assert_eq!(paths.lock().expect("the paths").len(), 2);
}

#[tokio::test]
async fn page_of_a_proxy_is_no_proof_of_absence() {
    for (code, body, is_absent) in [
        (404, "404 page not found\n", true),
        (404, "", true),
        (404, "<html><head><title>404 Not Found</title></head></html>", false),
        (404, "\n<!DOCTYPE html><p>no backend", false),
    ] {
        let (writer, _) = writer(Fence::open(), move |_| Some(full(code, &[], body))).await;
        let error = writer.get(&CONFIG_MAPS, &ObjectKey::new("ns", "a")).await.expect_err("refused");
        assert_eq!(error.is_not_found(), is_absent, "{body}");
        assert_eq!(error.is_object_deleted(), is_absent, "{body}");
    }
}
