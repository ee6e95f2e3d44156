//! Credential files that change while the process runs.

use std::sync::atomic::Ordering;

use super::super::pool::EXEC_CERTIFICATE_AGE;
use super::*;
use crate::metrics::Metrics;

#[tokio::test]
async fn rotated_authority_is_reloaded() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let clients = bed.connect().await;
    assert_eq!(status(&clients, Method::GET).await, 200);

    let second = Authority::new("second");
    bed.server.rotate(&second.sign("server"), &bed.authority);
    // First both authorities, as in a real rotation; then only the new one.
    let both = format!("{}{}", bed.authority.pem, second.pem);
    file(bed.directory.path(), "ca.crt", &both);
    until("a new connection trusts the new authority", async || {
        status(&clients, Method::GET).await;
        bed.server.connections() == 2
    })
    .await;
    until("the old connection is closed", async || bed.server.open.load(Ordering::SeqCst) == 1).await;
    let metrics = Metrics::new();
    metrics.rest_client(&clients.metrics);
    until("the replacements are counted, of the own connections and of those of service accounts", async || {
        let text = metrics.text();
        [
            "rest_client_transport_cache_entries 2",
            "rest_client_transport_create_calls_total{result=\"miss\"} 4",
            "rest_client_transport_cache_gc_calls_total{result=\"deleted\"} 2",
            "rest_client_transport_ca_reload_total{result=\"success\",reason=\"updated\"} 2",
        ]
        .iter()
        .all(|line| text.lines().any(|own| own == *line))
    })
    .await;
}

#[tokio::test]
async fn rotated_client_certificate_is_used_once_its_key_matches() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let clients = bed.connect().await;
    assert_eq!(status(&clients, Method::GET).await, 200);
    let old = bed.server.seen()[0].certificate.clone();
    let source = kubeconfig::load(&bed.options()).expect("a configuration");
    let connections = Connections::new(Pool::Own, &source, runtimes()).expect("connections");
    assert!(!connections.reload().expect("nothing changed"));

    let renewed = bed.authority.sign("renewed");
    file(bed.directory.path(), "client.crt", &renewed.certificate);
    let error = connections.reload().expect_err("the key is still the old one");
    assert!(error.to_string().contains("client.key"), "{error}");
    assert_eq!(status(&clients, Method::GET).await, 200);
    assert_eq!(bed.server.seen()[1].certificate, old);

    file(bed.directory.path(), "client.key", &renewed.key);
    assert!(connections.reload().expect("a pair again"));
    until("requests come with the new certificate", async || {
        status(&clients, Method::GET).await;
        bed.server.seen().last().expect("a request").certificate != old
    })
    .await;
}

#[tokio::test]
async fn token_file_overrides_the_token_and_is_reloaded() {
    let bed = Bed::new(User::TokenFile, &["h2"], always(200)).await;
    let clients = bed.connect().await;
    status(&clients, Method::GET).await;
    assert_eq!(bed.server.seen()[0].headers["authorization"], "Bearer first-token");
    file(bed.directory.path(), "token", "second-token\n");
    until("requests come with the new token", async || {
        status(&clients, Method::GET).await;
        let seen = bed.server.seen();
        seen.last().expect("a request").headers["authorization"] == "Bearer second-token"
    })
    .await;
}

#[tokio::test]
async fn connections_are_replaced_when_the_exec_plugin_returns_another_certificate() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let write_credential = |name: &str| {
        let signed = bed.authority.sign(name);
        let status = json!({"clientCertificateData": signed.certificate, "clientKeyData": signed.key});
        let credential =
            json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
        file(bed.directory.path(), "credential", &credential.to_string())
    };
    let printed = write_credential("first");
    let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [printed],
        "interactiveMode": "Never"}});
    let url = format!("https://{}", bed.server.address);
    file(bed.directory.path(), "kubeconfig", &kubeconfig(&url, user));
    let source = kubeconfig::load(&bed.options()).expect("a configuration");
    let connections = Connections::new(Pool::Own, &source, runtimes()).expect("connections");
    let renewal = std::time::Instant::now() + EXEC_CERTIFICATE_AGE;
    assert!(!connections.reload_at(renewal).expect("the plugin was called"), "the certificate is the same");
    write_credential("second");
    assert!(!connections.reload_at(renewal).expect("the plugin was not called"), "it was called a moment ago");
    assert!(connections.reload_at(renewal + EXEC_CERTIFICATE_AGE).expect("the plugin was called"));
}
