//! The proxy between this process and the server: the kubeconfig's, or else the environment's; chosen once per server.
//!
//! The rules are those of client-go (`tools/clientcmd`, `proxy-url`) and Go (`x/net/http/httpproxy`, the environment).

use std::fmt;
use std::net::IpAddr;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceExt as _};

use super::causes::with_causes;
use super::connect_error::ConnectError;
use crate::text::percent_decode;

/// The proxy variables of the environment.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    /// `HTTPS_PROXY`, for servers that are reached over TLS; empty for none.
    pub https: String,
    /// `HTTP_PROXY`, for all others; empty for none.
    pub http: String,
    /// `NO_PROXY`: hosts, domains, addresses and networks that are reached directly, separated by commas.
    pub except: String,
}

impl ProxyEnvironment {
    /// Reads the variables of this process, in upper case or else in lower case.
    #[must_use]
    pub fn of_process() -> Self {
        let variable = |names: [&str; 2]| {
            names.into_iter().filter_map(|name| std::env::var(name).ok()).find(|value| !value.is_empty())
        };
        Self {
            https: variable(["HTTPS_PROXY", "https_proxy"]).unwrap_or_default(),
            http: variable(["HTTP_PROXY", "http_proxy"]).unwrap_or_default(),
            except: variable(["NO_PROXY", "no_proxy"]).unwrap_or_default(),
        }
    }
}

/// Formats `NO_PROXY`. Formats the other variables only as set or not set, because they may contain a password.
impl fmt::Debug for ProxyEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyEnvironment")
            .field("https", &!self.https.is_empty())
            .field("http", &!self.http.is_empty())
            .field("except", &self.except)
            .finish()
    }
}

/// The protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyProtocol {
    /// CONNECT without TLS.
    Http,
    /// CONNECT over TLS.
    Https,
    /// SOCKS 5; the proxy resolves names.
    Socks,
}

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    protocol: ProxyProtocol,
    /// Scheme, host and port only.
    address: Uri,
    /// Name and password.
    credentials: Option<(String, String)>,
}

/// Omits the credentials.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.address)
    }
}

impl Proxy {
    /// Parses a proxy's URL.
    ///
    /// # Errors
    /// The problem, without repeating the URL: it may contain a password.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let url: Uri = url.parse().map_err(|error| format!("it is not a URL: {error}"))?;
        let (protocol, scheme, port) = match url.scheme_str() {
            Some("http") => (ProxyProtocol::Http, "http", 80),
            Some("https") => (ProxyProtocol::Https, "https", 443),
            // As in Go, the proxy resolves names for both schemes.
            Some("socks5" | "socks5h") => (ProxyProtocol::Socks, "http", 1080),
            Some(other) => return Err(format!("unsupported scheme {other:?}, must be http, https, or socks5")),
            None => return Err("it has no scheme; http, https and socks5 are possible".into()),
        };
        let (authority, host) = url.authority().zip(url.host()).ok_or("it has no host")?;
        let address = format!("{scheme}://{host}:{}", url.port_u16().unwrap_or(port));
        let decoded = |text: &str| percent_decode(text).ok_or("a percent sign in its user info is not followed by hex");
        let credentials = match authority.as_str().rsplit_once('@') {
            Some((info, _)) => {
                let (name, password) = info.split_once(':').unwrap_or((info, ""));
                Some((decoded(name)?, decoded(password)?))
            }
            None => None,
        };
        Ok(Self { protocol, address: address.parse().map_err(|_| "its host cannot be used")?, credentials })
    }

    /// Returns the proxy that the environment names for a server, if any.
    ///
    /// # Errors
    /// When the variable names a proxy that cannot be used.
    pub(super) fn of_environment(server: &Uri, environment: &ProxyEnvironment) -> Result<Option<Self>, ConnectError> {
        let secure = server.scheme_str() == Some("https");
        let (variable, value, port) =
            if secure { ("HTTPS_PROXY", &environment.https, 443) } else { ("HTTP_PROXY", &environment.http, 80) };
        let host = server.host().unwrap_or_default();
        if value.is_empty() || is_direct(host, server.port_u16().unwrap_or(port), &environment.except) {
            return Ok(None);
        }
        // The scheme may be missing.
        let url = if value.contains("://") { value.clone() } else { format!("http://{value}") };
        let proxy = Self::parse(&url).map_err(|problem| ConnectError::Proxy { variable, problem })?;
        Ok(Some(proxy))
    }

    /// Returns the `Proxy-Authorization` header.
    fn basic_authorization(&self) -> Option<HeaderValue> {
        let (name, password) = self.credentials.as_ref()?;
        // Base64 is always valid in a header.
        let mut value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(format!("{name}:{password}")))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Returns true if a server is reached without the environment's proxy. Upstream: x/net/http/httpproxy, useProxy.
fn is_direct(host: &str, port: u16, except: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    except.split(',').map(|rule| rule.trim().to_ascii_lowercase()).filter(|rule| !rule.is_empty()).any(|rule| {
        if rule == "*" {
            return true;
        }
        if let Ok(network) = rule.parse::<IpNet>() {
            return address.is_some_and(|address| network.contains(&address));
        }
        let (name, rule_port) = host_and_port(&rule);
        if rule_port.is_some_and(|rule_port| rule_port != port.to_string()) || name.is_empty() {
            return false;
        }
        match (name.parse::<IpAddr>(), address) {
            (Ok(rule), Some(address)) => rule == address,
            (Err(_), None) => is_of_domain(&host, name),
            _ => false,
        }
    })
}

/// Splits a rule into a host and an optional port. An IPv6 address has a port only after brackets.
fn host_and_port(rule: &str) -> (&str, Option<&str>) {
    let whole = (rule, None);
    let (host, port) = match rule.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => return (address, None),
        Some((address, rest)) => (address, rest.strip_prefix(':')),
        None if rule.matches(':').count() == 1 => match rule.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => whole,
        },
        None => whole,
    };
    (host, port)
}

/// Returns true if a rule of `NO_PROXY` matches a host: `example.com` matches itself and its subdomains; `.example.com`
/// and `*.example.com` match only subdomains.
fn is_of_domain(host: &str, rule: &str) -> bool {
    let rule = rule.strip_prefix('*').filter(|rule| rule.starts_with('.')).unwrap_or(rule);
    match rule.strip_prefix('.') {
        Some(_) => host.ends_with(rule),
        None => host == rule || host.strip_suffix(rule).is_some_and(|subdomain| subdomain.ends_with('.')),
    }
}

/// Opens connections to the server's port, directly or through a proxy.
#[derive(Clone)]
pub(super) enum Route {
    /// Without a proxy.
    Direct(HttpConnector),
    /// CONNECT to a proxy without TLS.
    Tunnel(Tunnel<HttpConnector>),
    /// CONNECT to a proxy with TLS.
    SecureTunnel(Tunnel<HttpsConnector<HttpConnector>>),
    /// SOCKS 5.
    Socks(SocksV5<HttpConnector>),
}

impl Route {
    /// Creates a route through `proxy` over `tcp`. `tls` verifies a proxy that uses TLS, with the configuration that
    /// also verifies the server, as in upstream.
    pub(super) fn new(proxy: Option<&Proxy>, tcp: HttpConnector, tls: &rustls::ClientConfig) -> Self {
        let Some(proxy) = proxy else { return Self::Direct(tcp) };
        match proxy.protocol {
            ProxyProtocol::Http => Self::Tunnel(tunnel(proxy, tcp)),
            ProxyProtocol::Https => {
                let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_only().enable_http1();
                Self::SecureTunnel(tunnel(proxy, https.wrap_connector(tcp)))
            }
            ProxyProtocol::Socks => {
                let socks = SocksV5::new(proxy.address.clone(), tcp);
                Self::Socks(match &proxy.credentials {
                    Some((name, password)) => socks.with_auth(name.clone(), password.clone()),
                    None => socks,
                })
            }
        }
    }
}

fn tunnel<C>(proxy: &Proxy, over: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.address.clone(), over);
    match proxy.basic_authorization() {
        Some(basic) => tunnel.with_auth(basic),
        None => tunnel,
    }
}

impl Service<Uri> for Route {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self.clone() {
            Self::Direct(tcp) => async { Ok(MaybeHttpsStream::Http(tcp.oneshot(server).await?)) }.boxed(),
            Self::Tunnel(tunnel) => {
                async { Ok(MaybeHttpsStream::Http(tunnel.oneshot(server).await.map_err(proxy_error)?)) }.boxed()
            }
            Self::SecureTunnel(tunnel) => async { tunnel.oneshot(server).await.map_err(proxy_error) }.boxed(),
            Self::Socks(socks) => {
                async { Ok(MaybeHttpsStream::Http(socks.oneshot(server).await.map_err(proxy_error)?)) }.boxed()
            }
        }
    }
}

/// Wraps a connection error with the information that a proxy is involved.
fn proxy_error(error: impl std::error::Error + Send + Sync + 'static) -> BoxError {
    format!("through the proxy: {}", with_causes(&error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_proxy_and_exception_is_parsed_or_refused(
            url in "((http|https|socks5|quic)://)?([a-z%0-9]{0,6}(:[a-z%0-9]{0,6})?@)?[a-z0-9.:\\[\\]-]{0,20}(/[a-z]{0,3})?|\\PC{0,20}",
            host in "[a-z0-9.:\\[\\]-]{0,20}", except in "[a-z0-9.:*/, \\[\\]]{0,40}", port: u16,
        ) {
            if let Ok(proxy) = Proxy::parse(&url) {
                let _ = proxy.basic_authorization();
            }
            proptest::prop_assert!(is_direct(&host, port, "*"));
            let _ = is_direct(&host, port, &except);
        }
    }

    #[test]
    fn no_proxy_matches_hosts_as_go_does() {
        for (host, except, direct) in [
            ("localhost", "", true),
            ("127.0.0.8", "", true),
            ("[::1]", "", true),
            ("api.example.com", "", false),
            ("api.example.com", "*", true),
            ("api.example.com", "example.com", true),
            ("API.example.com", " Example.com ,x", true),
            ("example.com", "example.com", true),
            ("badexample.com", "example.com", false),
            ("example.com", ".example.com", false),
            ("example.com", "*.example.com", false),
            ("api.example.com", ".example.com", true),
            ("api.example.com", "*.example.com", true),
            ("api.example.com", "example.com:6443", true),
            ("api.example.com", "example.com:80", false),
            ("10.0.0.1", "10.0.0.0/8", true),
            ("11.0.0.1", "10.0.0.0/8", false),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.1:6443", true),
            ("10.0.0.1", "10.0.0.1:80", false),
            ("10.0.0.1", "0.0.1", false),
            ("[fd00::1]", "fd00::/16", true),
            ("[fd00::1]", "fd00::1", true),
            ("[fd00::1]", "[fd00::1]:6443", true),
            ("[fd00::1]", "[fd00::1]:80", false),
            ("[fd00::1]", "[fd00::1]", true),
            ("api.example.com", ":6443,,", false),
        ] {
            assert_eq!(is_direct(host, 6443, except), direct, "{host} with NO_PROXY={except}");
        }
    }

    #[test]
    fn proxy_is_parsed_from_its_url() {
        let parsed = |url: &str| {
            Proxy::parse(url).map(|proxy| {
                let login = proxy.credentials.map(|(name, password)| format!(" {name} {password}")).unwrap_or_default();
                format!("{:?} {}{login}", proxy.protocol, proxy.address)
            })
        };
        for (url, wanted) in [
            ("http://p", Ok("Http http://p:80/")),
            ("http://p:3128/ignored", Ok("Http http://p:3128/")),
            ("https://p", Ok("Https https://p:443/")),
            ("socks5://[::1]", Ok("Socks http://[::1]:1080/")),
            ("socks5h://p:9", Ok("Socks http://p:9/")),
            ("http://ann:p%40ss@p:8080", Ok("Http http://p:8080/ ann p@ss")),
            ("ftp://p", Err("unsupported scheme \"ftp\", must be http, https, or socks5")),
            ("p:3128", Err("it has no scheme; http, https and socks5 are possible")),
            ("http://s3cret%zz@p", Err("a percent sign in its user info is not followed by hex")),
        ] {
            assert_eq!(parsed(url), wanted.map(str::to_owned).map_err(str::to_owned), "{url}");
        }
        assert_eq!(
            Proxy::parse("http://ann:s3cret@p").map(|proxy| format!("{proxy:?}")),
            Ok("Proxy(http://p:80/)".into())
        );
    }

    #[test]
    fn environment_selects_the_proxy_by_the_servers_scheme() {
        let environment = ProxyEnvironment { https: "p:3128".into(), http: "http://q".into(), except: "near".into() };
        let of = |server: &str| {
            let server = server.parse().expect("a URL");
            let proxy = Proxy::of_environment(&server, &environment).expect("usable");
            proxy.map(|proxy| proxy.address.to_string())
        };
        assert_eq!(of("https://far:6443").as_deref(), Some("http://p:3128/"));
        assert_eq!(of("http://far:8080").as_deref(), Some("http://q:80/"));
        assert_eq!(of("https://near:6443"), None);
        let wrong = ProxyEnvironment { https: "quic://ann:s3cret@p".into(), ..ProxyEnvironment::default() };
        let error =
            Proxy::of_environment(&"https://far".parse().expect("a URL"), &wrong).expect_err("unknown").to_string();
        assert!(error.starts_with("HTTPS_PROXY: unsupported scheme \"quic\"") && !error.contains("s3cret"), "{error}");
        assert!(!format!("{wrong:?}").contains("s3cret"));
    }
}
