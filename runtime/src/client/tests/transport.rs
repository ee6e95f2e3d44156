//! Protocols, shared connections, and errors when a response is missing.

use http::Version;

use super::*;
use crate::metrics::Metrics;

#[tokio::test]
async fn one_http2_connection_serves_many_requests() {
    let bed = Bed::new(User::Certificate, &["h2", "http/1.1"], always(200)).await;
    let clients = bed.connect().await;
    assert_eq!(clients.default_namespace, "ns");
    status(&clients, Method::GET).await;
    let many = (0..50).map(|_| status(&clients, Method::GET));
    assert!(futures::future::join_all(many).await.iter().all(StatusCode::is_success));

    assert_eq!(bed.server.connections(), 1);
    let seen = bed.server.seen();
    assert_eq!(seen.len(), 51);
    assert!(seen.iter().all(|seen| seen.version == Version::HTTP_2));
    assert!(seen.iter().all(|seen| seen.certificate.is_some()));
    assert!(seen.iter().all(|seen| seen.headers["impersonate-user"] == "someone"));
    assert!(seen.iter().all(|seen| seen.headers["user-agent"] == "kcm/v1 (linux/amd64)"));
}

#[tokio::test]
async fn concurrent_requests_share_one_connection() {
    let bed = Bed::new(User::Certificate, &["h2", "http/1.1"], always(200)).await;
    let clients = bed.connect().await;
    let many = (0..40).map(|_| status(&clients, Method::GET));
    assert!(futures::future::join_all(many).await.iter().all(StatusCode::is_success));
    assert_eq!(bed.server.connections(), 1);
}

#[tokio::test]
async fn server_without_http2_gets_http1() {
    let bed = Bed::new(User::Certificate, &[], always(200)).await;
    let clients = bed.connect().await;
    assert_eq!(status(&clients, Method::POST).await, 200);
    assert_eq!(status(&clients, Method::POST).await, 200);
    assert_eq!(bed.server.seen()[0].version, Version::HTTP_11);
    assert_eq!(bed.server.connections(), 1);
}

#[tokio::test]
async fn bearer_pool_sends_no_credentials_of_the_process() {
    for user in [User::Certificate, User::TokenFile] {
        let bed = Bed::new(user, &["h2"], always(200)).await;
        let clients = bed.connect().await;
        let sent = request(Method::GET, "/x").map(Body::from);
        clients.bearer.send(sent).await.expect("a response");
        let seen = bed.server.seen();
        assert_eq!(seen[0].certificate, None);
        assert!(!seen[0].headers.contains_key("authorization"));
        assert!(!seen[0].headers.contains_key("impersonate-user"));
        assert_eq!(seen[0].headers["user-agent"], "kcm/v1 (linux/amd64)");
    }
}

#[tokio::test]
async fn request_is_sent_once_when_the_response_is_an_error() {
    for refused in [409, 429, 500, 503, 504] {
        let bed = Bed::new(User::Certificate, &["h2"], always(refused)).await;
        let clients = bed.connect().await;
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert_eq!(status(&clients, method).await, refused);
        }
        assert_eq!(status(&clients, Method::GET).await, refused);
        assert_eq!(bed.server.seen().len(), 5);
    }
}

#[tokio::test]
async fn refused_connection_counts_as_not_sent() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let (_socket, closed) = refusing_address();
    let mut options = bed.options();
    options.master = Some(format!("https://{closed}"));
    let clients = connect(&options).await.expect("clients");
    let error = clients
        .send(&Identity::Own, request(Method::POST, "/x?secret=1"), MAX_BODY_BYTES)
        .await
        .expect_err("no listener");
    assert!(error.not_sent(), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("POST /x was not sent: "), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[tokio::test]
async fn untrusted_server_receives_nothing() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    file(bed.directory.path(), "ca.crt", &Authority::new("other").pem);
    let clients = bed.connect().await;
    let error = clients
        .send(&Identity::Own, request(Method::POST, "/x"), MAX_BODY_BYTES)
        .await
        .expect_err("an unknown authority");
    assert!(error.not_sent(), "{error}");
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    assert!(bed.server.seen().is_empty());
}

#[tokio::test]
async fn connection_timeout_counts_as_not_sent() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    // The kernel's backlog accepts the connection, but the TLS handshake gets no response.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut options = bed.options();
    options.master = Some(format!("https://{}", silent.local_addr().expect("an address")));
    options.write_timeout = Duration::from_millis(100);
    let clients = connect(&options).await.expect("clients");
    let error =
        clients.send(&Identity::Own, request(Method::POST, "/x"), MAX_BODY_BYTES).await.expect_err("no response");
    assert!(error.not_sent(), "{error}");
}

#[tokio::test]
async fn missing_response_counts_as_lost() {
    // Reads get a response, so that the write finds its connection open.
    let closes: Script =
        Arc::new(|seen| Box::pin(async move { (seen.method == Method::GET).then(|| response(200, "{}")) }));
    let hangs: Script = Arc::new(|seen| {
        Box::pin(async move {
            match seen.method {
                Method::GET => Some(response(200, "{}")),
                _ => std::future::pending().await,
            }
        })
    });
    for (what, protocols, script) in [
        ("closed, HTTP/2", &["h2"][..], closes.clone()),
        ("closed, HTTP/1.1", &[], closes),
        ("silent, HTTP/2", &["h2"], hangs.clone()),
        ("silent, HTTP/1.1", &[], hangs),
    ] {
        let bed = Bed::new(User::Certificate, protocols, script).await;
        let mut options = bed.options();
        // Longer than the request needs to arrive on a machine under load.
        options.write_timeout = Duration::from_secs(2);
        let clients = connect(&options).await.expect("clients");
        assert_eq!(status(&clients, Method::GET).await, 200);
        let error =
            clients.send(&Identity::Own, request(Method::POST, "/x"), MAX_BODY_BYTES).await.expect_err("no response");
        assert!(matches!(error, SendError::Lost { .. }), "{what}: {error}");
        assert_eq!(bed.server.seen().len(), 2, "{what}: requests: one read and one write");
        let metrics = Metrics::new();
        metrics.rest_client(&clients.metrics);
        let (text, host) = (metrics.text(), bed.server.address);
        for line in [
            format!("rest_client_requests_total{{code=\"<error>\",method=\"POST\",host=\"{host}\"}} 1"),
            format!("rest_client_request_duration_seconds_count{{verb=\"POST\",host=\"{host}\"}} 1"),
        ] {
            assert!(text.lines().any(|own| own == line), "{what}: {line} is not in\n{text}");
        }
    }
}

#[tokio::test]
async fn missing_long_response_counts_as_lost() {
    let closes: Script = Arc::new(|_| Box::pin(async { None }));
    let bed = Bed::new(User::Certificate, &["h2"], closes).await;
    let clients = connect(&bed.options()).await.expect("clients");
    let mut list = request(Method::GET, "/x");
    list.extensions_mut().insert(Lane::Dedicated);
    let error = clients.send(&Identity::Own, list, MAX_BODY_BYTES).await.expect_err("no response");
    assert!(matches!(error, SendError::Lost { .. }), "{error}");
    assert_eq!(bed.server.seen().len(), 1);
}

#[tokio::test]
async fn layer_can_refuse_respond_and_drop_responses() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let mut options = bed.options();
    options.layer = Some(RequestLayer::new(|pool, request, next| {
        Box::pin(async move {
            assert_eq!(pool, Pool::Own);
            match request.uri().path() {
                "/refuse" => Err("refused by the test".into()),
                "/lose" => {
                    next.send(request).await?;
                    Err("lost by the test".into())
                }
                "/response" => {
                    let mut response = next.send(request).await?;
                    *response.status_mut() = StatusCode::IM_A_TEAPOT;
                    Ok(response)
                }
                _ => next.send(request).await,
            }
        })
    }));
    let clients = connect(&options).await.expect("clients");
    let send = async |path| {
        clients
            .send(&Identity::Own, request(Method::POST, path), MAX_BODY_BYTES)
            .await
            .map(|response| response.status().as_u16())
    };
    let refused = send("/refuse").await.expect_err("refused");
    assert!(refused.not_sent(), "{refused}");
    assert!(refused.to_string().contains("refused by the test"), "{refused}");
    let lost = send("/lose").await.expect_err("lost");
    assert!(matches!(lost, SendError::Lost { .. }), "{lost}");
    assert_eq!(send("/response").await.expect("a response"), 418);
    assert_eq!(send("/other").await.expect("a response"), 200);
    assert_eq!(bed.server.seen().len(), 3);
}
