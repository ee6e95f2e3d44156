//! Flags and kubeconfigs: the resulting clients, and the errors for invalid ones.

use base64::Engine as _;

use super::*;

#[tokio::test]
async fn error_of_an_unusable_configuration_names_the_fix() {
    let directory = TempDir::new().expect("a directory");
    let at = directory.path();
    file(at, "ca.crt", "no certificate");
    file(at, "garbage.crt", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n");
    let write = |name: &str, text: &str| file(at, name, text);
    let with_cluster = |cluster: serde_json::Value| {
        json!({
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {}}],
        })
        .to_string()
    };
    let with_user = |user: serde_json::Value| {
        json!({
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://h"}}],
            "users": [{"name": "u", "user": user}],
        })
        .to_string()
    };
    let not_base64 = base64::engine::general_purpose::STANDARD.encode("nothing");
    let table: Vec<(PathBuf, &[&str])> = vec![
        (at.join("absent"), &["absent", "cannot be read", "No such file", "--kubeconfig"]),
        (write("yaml", "users:\n- user: {token: s3cret\n  : [\n"), &["yaml", "malformed", "line"]),
        (write("bed", "users: [{name: u, user: s3cret}]"), &["bed", "malformed"]),
        (write("list", "clusters: 7\nusers: [{name: u, user: {token: s3cret}}]"), &["list", "malformed"]),
        (write("empty", ""), &["empty", "current-context is not set"]),
        (write("context", r#"{"current-context": "gone"}"#), &["\"gone\"", "set current-context"]),
        (write("cluster", &with_cluster(json!(null))), &["cluster \"c\"", "not among"]),
        (write("server", &with_cluster(json!({}))), &["has no server", "--master=URL"]),
        (write("scheme", &with_cluster(json!({"server": "ftp://h"}))), &["ftp://h", "https://HOST:PORT"]),
        (
            write("proxy", &with_cluster(json!({"server": "https://h", "proxy-url": "quic://u:s3cret@p"}))),
            &["proxy-url", "unsupported scheme \"quic\"", "http://HOST:PORT"],
        ),
        (
            write("no-ca", &with_cluster(json!({"server": "https://h", "certificate-authority": "none.crt"}))),
            &["no-ca", "certificate authority", "none.crt", "No such file"],
        ),
        (
            write("bad-ca", &with_cluster(json!({"server": "https://h", "certificate-authority": "ca.crt"}))),
            &["bad-ca", "certificate authority", "PEM certificate"],
        ),
        (
            write("ca-data", &with_cluster(json!({"server": "https://h", "certificate-authority-data": not_base64}))),
            &["ca-data", "holds no certificate"],
        ),
        (
            write("garbage", &with_cluster(json!({"server": "https://h", "certificate-authority": "garbage.crt"}))),
            &["garbage", "certificate"],
        ),
        (write("token", &with_user(json!({"tokenFile": "no-token"}))), &["token file", "no-token", "No such file"]),
        (write("blank", &with_user(json!({"tokenFile": "empty"}))), &["token file", "empty"]),
        (
            write("key", &with_user(json!({"client-certificate": "ca.crt", "client-key": "ca.crt"}))),
            &["ca.crt", "private key", "correct certificate and key"],
        ),
        (
            write(
                "exec",
                &with_user(
                    json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/plugin", "interactiveMode": "Never"}}),
                ),
            ),
            &["user", "No such file"],
        ),
        (
            write("gcp", &with_user(json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "true"}}}))),
            &["auth-provider gcp", "exec plugin"],
        ),
    ];
    for (path, wanted) in table {
        let options = ConnectOptions { kubeconfig: Some(path.clone()), ..ConnectOptions::default() };
        let Err(error) = connect(&options).await else {
            panic!("{path:?} was accepted");
        };
        let text = error.to_string();
        for wanted in wanted {
            assert!(text.contains(wanted), "{path:?} lacks {wanted:?}: {text}");
        }
        assert!(!text.contains("s3cret") && !text.contains('\n'), "{text}");
    }
}

/// Values of the fields of a kubeconfig, similar to valid ones, in JSON.
fn field() -> impl proptest::strategy::Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "null",
        "1",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"c\"",
        "\"https://h:6443\"",
        "\"h:99999\"",
        "\"ftp://h\"",
        "\"://\"",
        "\"AAAA\"",
        "\"none.crt\"",
        "\"\\u0000\"",
        "{\"token\":\"t\"}",
        "{\"tokenFile\":\"none\",\"username\":\"u\"}",
        "{\"server\":\"https://h\",\"proxy-url\":\"http://%zz@p\"}",
        "{\"server\":\"https://h\",\"tls-server-name\":\"*\"}",
        "{\"client-certificate-data\":\"AAAA\",\"client-key-data\":\"!\"}",
        "{\"exec\":{\"command\":\"/no/such\"}}",
        "{\"auth-provider\":{\"name\":\"x\",\"config\":{}}}",
        "{\"cluster\":\"c\",\"user\":\"u\"}",
    ])
}

proptest::proptest! {
    #[test]
    fn any_kubeconfig_is_loaded_or_refused(
        context in field(), cluster in field(), user in field(), name in field(), other in field(),
        text in proptest::option::weighted(0.2, "\\PC{0,60}"),
    ) {
        let directory = TempDir::new().expect("a directory");
        let text = text.unwrap_or_else(|| format!(
            r#"{{"current-context": "here", "contexts": [{{"name": "here", "context": {context}}}],
                "clusters": [{{"name": "c", "cluster": {cluster}}}, {other}],
                "users": [{{"name": "u", "user": {user}}}, {{"name": {name}}}]}}"#
        ));
        let path = file(directory.path(), "kubeconfig", &text);
        let _ = kubeconfig::load(&ConnectOptions { kubeconfig: Some(path), ..ConnectOptions::default() });
    }
}

#[tokio::test]
async fn master_flag_overrides_the_server() {
    // (--master, with --kubeconfig, server connected to; None: refused)
    let table = [
        ("10.0.0.1:8080", false, Some("http://10.0.0.1:8080/")),
        ("http://10.0.0.1:8080", false, Some("http://10.0.0.1:8080/")),
        ("https://[::1]:6443/prefix", false, Some("https://[::1]:6443/prefix")),
        ("host:6443", true, Some("https://host:6443/")),
        ("host/path", false, None),
        ("https://", false, None),
        ("", true, Some("https://configured/")),
    ];
    let directory = TempDir::new().expect("a directory");
    let authority = Authority::new("any");
    file(directory.path(), "ca.crt", &authority.pem);
    let user = json!({"token": "t"});
    let kubeconfig = file(directory.path(), "k", &kubeconfig("https://configured", user));
    for (master, with_file, wanted) in table {
        let loaded = kubeconfig::load(&ConnectOptions {
            kubeconfig: with_file.then(|| kubeconfig.clone()),
            master: Some(master.into()),
            ..ConnectOptions::default()
        });
        let found = loaded.as_ref().ok().map(|source| source.config.cluster_url.to_string());
        assert_eq!(found.as_deref(), wanted, "{master:?}: {:?}", loaded.err());
    }
}

#[test]
fn credentials_are_not_sent_without_tls() {
    let directory = TempDir::new().expect("a directory");
    let authority = Authority::new("any");
    file(directory.path(), "ca.crt", &authority.pem);
    for (server, sent) in [("https://h", true), ("http://h", false)] {
        let text = kubeconfig(server, json!({"token": "t", "tokenFile": "token"}));
        let source = kubeconfig::load(&ConnectOptions {
            kubeconfig: Some(file(directory.path(), "k", &text)),
            ..ConnectOptions::default()
        })
        .expect("a configuration");
        assert_eq!(source.token_file.is_some(), sent);
        assert!(source.config.auth_info.token.is_none());
    }
}

#[test]
fn empty_fields_of_a_kubeconfig_count_as_missing() {
    let directory = TempDir::new().expect("a directory");
    let text = json!({
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": "h:1", "certificate-authority": "", "certificate-authority-data": "", "tls-server-name": "",
        }}],
        "users": [{"name": "u", "user": {
            "client-certificate": "", "client-certificate-data": "", "client-key": "", "client-key-data": "",
            "token": "", "tokenFile": "", "username": "", "password": "",
        }}],
    });
    let path = file(directory.path(), "k", &text.to_string());
    let options = ConnectOptions { kubeconfig: Some(path), ..ConnectOptions::default() };
    assert_eq!(inline_authority(&options).expect("readable"), None);
    let source = kubeconfig::load(&options).expect("a configuration without credentials");
    assert_eq!(source.config.cluster_url.to_string(), "http://h:1/", "there is no certificate");
    assert_eq!((source.ca_file, source.token_file), (None, None));
    let user = source.config.auth_info;
    assert_eq!((user.client_certificate, user.client_key, user.username), (None, None, None));
    assert!(user.token.is_none() && user.password.is_none() && user.client_key_data.is_none());
}

#[test]
fn credentials_of_a_user_are_used_as_in_client_go() {
    let directory = TempDir::new().expect("a directory");
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "none", "interactiveMode": "Never"});
    // (name, user, has a password, runs the plugin)
    for (name, user, has_password, runs_plugin) in [
        ("plugin", json!({"exec": exec}), false, true),
        ("plugin and token", json!({"exec": exec, "token": "t"}), false, false),
        ("plugin and empty token", json!({"exec": exec, "token": ""}), false, true),
        ("plugin and token file", json!({"exec": exec, "tokenFile": "t"}), false, false),
        ("plugin and certificate", json!({"exec": exec, "client-certificate-data": "AAAA"}), false, false),
        ("name without a password", json!({"username": "u"}), true, false),
        ("name with an empty password", json!({"username": "u", "password": ""}), true, false),
        ("empty password", json!({"password": ""}), false, false),
    ] {
        let text = json!({
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://h:1"}}],
            "users": [{"name": "u", "user": user}],
        });
        let path = file(directory.path(), "k", &text.to_string());
        let source = kubeconfig::load(&ConnectOptions { kubeconfig: Some(path), ..ConnectOptions::default() });
        let source = source.expect(name);
        let found = (source.config.auth_info.password.is_some(), source.plugin.is_some());
        assert_eq!(found, (has_password, runs_plugin), "{name}");
        assert!(source.config.auth_info.exec.is_none(), "{name}: kube would run the plugin");
    }
}

#[tokio::test]
async fn error_names_the_flags_when_none_is_set_outside_a_pod() {
    let directory = TempDir::new().expect("a directory");
    for (host, port, wanted) in [
        ("", "443", &["--kubeconfig", "--master", "KUBERNETES_SERVICE_HOST"][..]),
        ("10.0.0.1", "", &["--kubeconfig", "--master", "KUBERNETES_SERVICE_PORT"]),
        ("10.0.0.1", "443", &["certificate authority", "ca.crt", "No such file"]),
    ] {
        let pod = PodEnvironment { host: host.into(), port: port.into(), folder: directory.path().into() };
        let Err(error) = connect(&ConnectOptions { pod, ..ConnectOptions::default() }).await else {
            panic!("connected to nothing");
        };
        let text = error.to_string();
        assert!(wanted.iter().all(|wanted| text.contains(wanted)), "{host} {port}: {text}");
    }
}

#[test]
fn pod_configuration_has_server_authority_and_token() {
    let directory = TempDir::new().expect("a directory");
    file(directory.path(), "ca.crt", &Authority::new("any").pem);
    file(directory.path(), "namespace", "shop\n");
    for (host, server) in [("10.0.0.1", "https://10.0.0.1:443/"), ("fd00::1", "https://[fd00::1]:443/")] {
        let pod = PodEnvironment { host: host.into(), port: "443".into(), folder: directory.path().into() };
        let source = kubeconfig::load(&ConnectOptions { pod, ..ConnectOptions::default() }).expect("a configuration");
        assert_eq!(source.config.cluster_url.to_string(), server);
        assert_eq!(source.config.default_namespace, "shop");
        assert_eq!(source.token_file, Some(directory.path().join("token")));
        assert_eq!(source.ca_file, Some(directory.path().join("ca.crt")));
    }
}

#[test]
fn only_an_inline_authority_is_returned() {
    let directory = TempDir::new().expect("a directory");
    let kubeconfig = |cluster: serde_json::Value| {
        let text = json!({
            "current-context": "here",
            "contexts": [
                {"name": "there", "context": {"cluster": "other", "user": "u"}},
                {"name": "here", "context": {"cluster": "c", "user": "u"}},
            ],
            "clusters": [
                {"name": "other", "cluster": {"certificate-authority-data": "AAAA"}},
                {"name": "c", "cluster": cluster},
            ],
        });
        file(directory.path(), "config", &text.to_string())
    };
    let read = |kubeconfig| inline_authority(&ConnectOptions { kubeconfig, ..ConnectOptions::default() });
    let encoded = base64::engine::general_purpose::STANDARD.encode("# a comment\nPEM");
    let inline = kubeconfig(json!({"certificate-authority-data": encoded}));
    assert_eq!(read(Some(inline)).expect("readable").as_deref(), Some(&b"# a comment\nPEM"[..]));
    let named = kubeconfig(json!({"certificate-authority": "/etc/ca.crt"}));
    assert_eq!(read(Some(named)).expect("readable"), None);
    let broken = read(Some(kubeconfig(json!({"certificate-authority-data": "!"})))).expect_err("not base64");
    assert!(broken.to_string().contains("base64"), "{broken}");
    assert_eq!(read(None).expect("nothing to read"), None);
}

#[tokio::test]
async fn exec_plugin_runs_again_when_its_token_is_refused() {
    let bed = Bed::new(
        User::Certificate,
        &["h2"],
        Arc::new(|seen| {
            let known = seen.headers.get("authorization").is_some_and(|value| value == "Bearer second");
            Box::pin(async move { Some(response(if known { 200 } else { 401 }, "{}")) })
        }),
    )
    .await;
    let credential = |token: &str| {
        json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}})
            .to_string()
    };
    let printed = file(bed.directory.path(), "credential", &credential("first"));
    let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [printed],
        "interactiveMode": "Never"}});
    let url = format!("https://{}", bed.server.address);
    file(bed.directory.path(), "kubeconfig", &kubeconfig(&url, user));
    let clients = bed.connect().await;
    file(bed.directory.path(), "credential", &credential("second"));
    assert_eq!(status(&clients, Method::GET).await, 401);
    until("requests come with the new token", async || status(&clients, Method::GET).await == 200).await;
}
