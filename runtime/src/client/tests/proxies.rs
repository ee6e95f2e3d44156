//! Connections through each kind of proxy, with and without a password.

use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

/// The requests that a proxy received, one line each.
type Requests = Arc<Mutex<Vec<String>>>;

/// Starts a proxy that connects to `server` for any requested target; it uses TLS if `tls` is given.
async fn proxy(server: SocketAddr, tls: Option<&Authority>) -> (SocketAddr, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let acceptor = tls.map(|authority| {
        let signed = authority.sign("proxy");
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![signed.der.clone().into()], signed.private_key());
        TlsAcceptor::from(Arc::new(config.expect("a certificate")))
    });
    let requests = Requests::default();
    let received = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, received) = (acceptor.clone(), received.clone());
            tokio::spawn(async move {
                match acceptor {
                    None => forward(stream, server, &received).await,
                    Some(acceptor) => forward(acceptor.accept(stream).await?, server, &received).await,
                }
            });
        }
    });
    (address, requests)
}

async fn forward(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: SocketAddr,
    requests: &Requests,
) -> std::io::Result<()> {
    const SOCKS: u8 = 5;
    let first = client.read_u8().await?;
    let received = match first {
        SOCKS => socks_handshake(&mut client).await?,
        _ => read_connect_request(&mut client, first).await?,
    };
    let refused = received.contains("wrong");
    requests.lock().expect("no panic").push(received);
    if first != SOCKS {
        let response = if refused { "407 Proxy Authentication Required" } else { "200 OK" };
        client.write_all(format!("HTTP/1.1 {response}\r\n\r\n").as_bytes()).await?;
    }
    if !refused {
        tokio::io::copy_bidirectional(&mut client, &mut TcpStream::connect(server).await?).await?;
    }
    Ok(())
}

/// Reads the head of a CONNECT request, and returns it as one line.
async fn read_connect_request(client: &mut (impl AsyncRead + Unpin), first: u8) -> std::io::Result<String> {
    let mut head = vec![first];
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).trim_end().replace("\r\n", " "))
}

/// Performs the SOCKS 5 handshake (RFC 1928 and 1929, as far as our client uses them), and returns the target and the
/// credentials.
async fn socks_handshake(client: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> std::io::Result<String> {
    const PASSWORD: u8 = 2;
    let mut methods = vec![0; client.read_u8().await?.into()];
    client.read_exact(&mut methods).await?;
    let method = if methods.contains(&PASSWORD) { PASSWORD } else { 0 };
    client.write_all(&[5, method]).await?;
    let mut login = String::new();
    if method == PASSWORD {
        client.read_u8().await?;
        for _ in 0..2 {
            let mut text = vec![0; client.read_u8().await?.into()];
            client.read_exact(&mut text).await?;
            login = format!("{login} {}", String::from_utf8_lossy(&text));
        }
        client.write_all(&[1, 0]).await?;
    }
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    let length = match head[3] {
        1 => 4,
        4 => 16,
        _ => client.read_u8().await?.into(),
    };
    let mut host = vec![0; length];
    client.read_exact(&mut host).await?;
    let port = client.read_u16().await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    let host = if head[3] == 3 { String::from_utf8_lossy(&host).into_owned() } else { format!("{host:?}") };
    Ok(format!("SOCKS {host}:{port}{login}"))
}

/// Returns options with a kubeconfig whose server name does not resolve, with an optional `proxy-url`.
fn options_with_proxy(bed: &Bed, proxy_url: Option<String>) -> ConnectOptions {
    let cluster = json!({
        "server": "https://api.nowhere.invalid:6443",
        "tls-server-name": "localhost",
        "certificate-authority": "ca.crt",
        "proxy-url": proxy_url,
    });
    let config = json!({
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"client-certificate": "client.crt", "client-key": "client.key"}}],
    });
    let kubeconfig = file(bed.directory.path(), "through", &config.to_string());
    ConnectOptions { kubeconfig: Some(kubeconfig), proxies: ProxyEnvironment::default(), ..ConnectOptions::default() }
}

#[tokio::test]
async fn each_kind_of_proxy_connects_to_the_server() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let (plain, plain_requests) = proxy(bed.server.address, None).await;
    let (tls, tls_requests) = proxy(bed.server.address, Some(&bed.authority)).await;
    let connect_to = "CONNECT api.nowhere.invalid:6443 HTTP/1.1 Host: api.nowhere.invalid:6443";
    // "ann:p@ss" in base64.
    let basic = format!("{connect_to} Proxy-Authorization: Basic YW5uOnBAc3M=");
    for (url, requests, wanted) in [
        (format!("http://{plain}"), &plain_requests, connect_to),
        (format!("http://ann:p%40ss@{plain}"), &plain_requests, basic.as_str()),
        (format!("https://ann:p%40ss@{tls}"), &tls_requests, basic.as_str()),
        (format!("socks5://{plain}"), &plain_requests, "SOCKS api.nowhere.invalid:6443"),
        (format!("socks5://ann:p%40ss@{plain}"), &plain_requests, "SOCKS api.nowhere.invalid:6443 ann p@ss"),
    ] {
        let clients = connect(&options_with_proxy(&bed, Some(url.clone()))).await.expect("clients");
        assert_eq!(status(&clients, Method::GET).await, 200, "{url}");
        assert_eq!(requests.lock().expect("no panic").pop().as_deref(), Some(wanted), "{url}");
    }
    let seen = bed.server.seen();
    assert!(seen.iter().all(|seen| seen.version == http::Version::HTTP_2 && seen.certificate.is_some()));
}

#[tokio::test]
async fn environment_proxy_is_used_unless_no_proxy_matches() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let (address, requests) = proxy(bed.server.address, None).await;
    let mut options = options_with_proxy(&bed, None);
    options.proxies.https = address.to_string();
    let clients = connect(&options).await.expect("clients");
    assert_eq!(status(&clients, Method::GET).await, 200);
    assert_eq!(requests.lock().expect("no panic").len(), 1);

    options.proxies.except = ".invalid".into();
    let clients = connect(&options).await.expect("clients");
    let error =
        clients.send(&Identity::Own, request(Method::POST, "/x"), MAX_BODY_BYTES).await.expect_err("no such host");
    assert!(error.not_sent() && !error.to_string().contains("proxy"), "{error}");
    assert_eq!(requests.lock().expect("no panic").len(), 1);
}

#[tokio::test]
async fn refusing_proxy_is_named_and_nothing_is_sent() {
    let bed = Bed::new(User::Certificate, &["h2"], always(200)).await;
    let (address, _) = proxy(bed.server.address, None).await;
    // A target that the proxy refuses (its name contains "wrong"), and a port without a listener.
    let (_socket, closed) = refusing_address();
    for (url, wanted) in
        [(format!("http://{address}"), "proxy authorization required"), (format!("http://{closed}"), "refused")]
    {
        let mut options = options_with_proxy(&bed, Some(url));
        options.master = Some("https://wrong.nowhere.invalid:6443".into());
        let clients = connect(&options).await.expect("clients");
        let error =
            clients.send(&Identity::Own, request(Method::POST, "/x"), MAX_BODY_BYTES).await.expect_err("refused");
        assert!(error.not_sent(), "{error}");
        let text = error.to_string();
        assert!(text.contains("through the proxy") && text.contains(wanted), "{text}");
    }
    assert!(bed.server.seen().is_empty());
}
