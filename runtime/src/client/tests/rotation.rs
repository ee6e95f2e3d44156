//! Credential files that change while the process runs.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::*;
use crate::client::plugin_credentials::PluginCredentials;
use crate::client::pool::Connections;
use crate::lock::lock;
use crate::metrics::Metrics;

#[tokio::test]
async fn rotated_authority_is_reloaded() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let clients = bed.connect().await;
    assert_eq!(status(&clients, Method::GET).await, 200);

    let second = Authority::new("second");
    bed.server.rotate(&second.sign("server"), &bed.authority);
    // The file contains both authorities, as in a real rotation before the old one is removed.
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
    until("replaced connections of the process itself and of its accounts are counted", async || {
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
    let connections = Connections::new(Pool::Own, &source, None, runtimes()).expect("connections");
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

/// Writes the output of the exec plugin: a certificate with this name, and a token unless it is empty. Returns the
/// certificate in DER.
fn write_credential(bed: &Bed, name: &str, token: &str) -> Vec<u8> {
    let signed = bed.authority.sign(name);
    let mut status = json!({"clientCertificateData": signed.certificate, "clientKeyData": signed.key});
    if !token.is_empty() {
        status["token"] = token.into();
    }
    write_status(bed, &status);
    signed.der
}

/// Writes an output of the exec plugin, with this status.
fn write_status(bed: &Bed, status: &serde_json::Value) {
    let credential =
        json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
    file(bed.directory.path(), "credential", &credential.to_string());
}

/// Replaces the user of the kubeconfig by one with an exec plugin that prints the written output.
fn use_plugin(bed: &Bed) {
    let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat",
        "args": [bed.directory.path().join("credential")], "interactiveMode": "Never"}});
    let url = format!("https://{}", bed.server.address);
    file(bed.directory.path(), "kubeconfig", &kubeconfig(&url, user));
}

#[tokio::test(start_paused = true)]
async fn connections_are_replaced_when_the_exec_plugin_returns_another_certificate() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    write_credential(&bed, "first", "");
    use_plugin(&bed);
    let source = kubeconfig::load(&bed.options()).expect("a configuration");
    let plugin = source.plugin.clone().expect("an exec plugin");
    let credentials = PluginCredentials::issue(plugin, Handle::current()).expect("credentials");
    let connections = Connections::new(Pool::Own, &source, Some(credentials.clone()), runtimes());
    let connections = connections.expect("connections");
    let renew = async || {
        tokio::time::advance(Duration::from_secs(3600)).await;
        credentials.latest();
        let renewed = credentials.renewed();
        tokio::time::timeout(Duration::from_secs(100), renewed.notified()).await.expect("a renewal");
    };
    renew().await;
    assert!(!connections.reload().expect("nothing changed"), "the certificate is the same");
    write_credential(&bed, "second", "");
    renew().await;
    assert!(connections.reload().expect("a certificate"));
    assert!(!connections.reload().expect("nothing changed"));
}

/// A certificate and key that do not match would count as valid until they expire, and no connection could use them.
#[tokio::test]
async fn run_of_an_exec_plugin_fails_when_its_certificate_does_not_match_its_key() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    use_plugin(&bed);
    let (first, second) = (bed.authority.sign("first"), bed.authority.sign("second"));
    for (certificate, key, expected) in [
        (&first.certificate, &second.key, "certificate does not match its key"),
        (&first.key, &first.key, "certificate or key cannot be used"),
        (&first.certificate, &first.certificate, "key is not valid PEM"),
        (&first.certificate, &"rubbish".to_owned(), "key is not valid PEM"),
    ] {
        write_status(&bed, &json!({"token": "t", "clientCertificateData": certificate, "clientKeyData": key}));
        let problem = connect(&bed.options()).await.err().expect("no credentials").to_string();
        assert!(problem.contains(expected) && problem.contains("exec plugin \"cat\""), "{problem}");
    }
    write_status(&bed, &json!({"clientCertificateData": first.certificate, "clientKeyData": first.key}));
    let clients = connect(&bed.options()).await.expect("clients");
    assert_eq!(status(&clients, Method::GET).await, 200);
}

#[tokio::test]
async fn refused_credentials_of_an_exec_plugin_are_renewed_together() {
    for token in ["second-token", ""] {
        let accepted: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
        let only = accepted.clone();
        let bed = Bed::new(
            User::Certificate,
            &["h2"],
            Arc::new(move |request| {
                let is_accepted = request.certificate == *lock(&only);
                Box::pin(async move { Some(response(if is_accepted { 200 } else { 401 }, "{}")) })
            }),
        )
        .await;
        write_credential(&bed, "first", if token.is_empty() { "" } else { "first-token" });
        use_plugin(&bed);
        // Longer than the test, so that the regular check does not find outdated connections.
        let options = ConnectOptions { reload_interval: Duration::from_secs(600), ..bed.options() };
        let clients = connect(&options).await.expect("clients");
        *lock(&accepted) = Some(write_credential(&bed, "second", token));
        assert_eq!(status(&clients, Method::GET).await, 401);
        until("requests come with the new credentials", async || status(&clients, Method::GET).await == 200).await;
        let last = bed.server.seen().pop().expect("a request");
        let header = last.headers.get("authorization").map(|header| header.to_str().expect("text").to_owned());
        assert_eq!(header, (!token.is_empty()).then(|| format!("Bearer {token}")));
    }
}
