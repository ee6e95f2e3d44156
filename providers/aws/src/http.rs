//! The HTTP client for AWS: uses the proxies and certificate authorities of the environment, like other AWS tools.

use std::net::IpAddr;

use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder, Connector};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use providers::{CloudError, ErrorKind};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The variable that names a file with certificate authorities, which replace the system's.
const BUNDLE: &str = "AWS_CA_BUNDLE";
/// The IPv6 range of the metadata service and of EKS Pod Identity.
const METADATA_V6: [u16; 2] = [0xfd00, 0xec2];

/// Returns the client for the environment of this process: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY` and `AWS_CA_BUNDLE`.
///
/// # Errors
/// `Invalid` if the file of `AWS_CA_BUNDLE` cannot be used.
pub(crate) fn client() -> Result<SharedHttpClient, CloudError> {
    let bundle = std::env::var_os(BUNDLE).filter(|path| !path.is_empty());
    let store = match bundle {
        None => TrustStore::default(),
        Some(path) => {
            let path = path.to_string_lossy().into_owned();
            let pem = std::fs::read(&path).map_err(|error| refuse(&path, &error.to_string()))?;
            trust_store(&path, pem)?
        }
    };
    Ok(build_client(ProxyConfig::from_env(), store))
}

fn refuse(path: &str, reason: &str) -> CloudError {
    let message = format!("{BUNDLE} is {path:?}: {reason}; name a file with certificates in PEM, or unset it");
    CloudError::new(ErrorKind::Invalid, "ReadCertificates", message)
}

/// Returns a trust store with the certificates of a bundle, and no others.
fn trust_store(path: &str, pem: Vec<u8>) -> Result<TrustStore, CloudError> {
    // The client would panic on a certificate that it cannot parse.
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| refuse(path, &error.to_string()))?;
    if certificates.is_empty() {
        return Err(refuse(path, "the file contains no certificate"));
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| refuse(path, &error.to_string()))?;
    }
    Ok(TrustStore::empty().with_pem_certificate(pem))
}

fn build_client(proxy: ProxyConfig, store: TrustStore) -> SharedHttpClient {
    let through = |proxy: ProxyConfig| {
        let store = store.clone();
        Builder::new().build_with_connector_fn(move |settings, components| {
            let tls = TlsContext::builder().with_trust_store(store.clone()).build().unwrap_or_default();
            let mut builder = Connector::builder().proxy_config(proxy.clone());
            builder.set_connector_settings(settings.cloned());
            builder.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
            builder.tls_provider(Provider::Rustls(CryptoMode::Ring)).tls_context(tls).build()
        })
    };
    SharedHttpClient::new(Routed { proxied: through(proxy), direct: through(ProxyConfig::disabled()) })
}

/// A client that never uses a proxy for services of the instance that this process runs on.
#[derive(Debug)]
struct Routed {
    proxied: SharedHttpClient,
    direct: SharedHttpClient,
}

impl HttpClient for Routed {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(RoutedConnector {
            proxied: self.proxied.http_connector(settings, components),
            direct: self.direct.http_connector(settings, components),
        })
    }
}

#[derive(Debug)]
struct RoutedConnector {
    proxied: SharedHttpConnector,
    direct: SharedHttpConnector,
}

impl HttpConnector for RoutedConnector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        if is_of_this_instance(request.uri()) { self.direct.call(request) } else { self.proxied.call(request) }
    }
}

/// Returns true if a URI names this host or a link-local service, such as the metadata service, ECS's credentials
/// and EKS Pod Identity. A proxy would return the metadata of its own instance.
fn is_of_this_instance(uri: &str) -> bool {
    let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _)) => host,
        None => authority.split(':').next().unwrap_or_default(),
    };
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(v4)) => v4.is_loopback() || v4.is_link_local(),
        Ok(IpAddr::V6(v6)) => v6.is_loopback() || v6.segments().starts_with(&METADATA_V6),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use aws_config::BehaviorVersion;
    use aws_config::Region;
    use aws_credential_types::Credentials;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn services_of_the_instance_are_reached_without_proxy() {
        for (uri, expected) in [
            ("http://169.254.169.254/latest/meta-data/instance-id", true),
            ("http://[fd00:ec2::254]/latest/api/token", true),
            ("http://169.254.170.2/v2/credentials", true),
            ("http://169.254.170.23/v1/credentials?x=y", true),
            ("http://127.0.0.1:5000/", true),
            ("http://localhost:5000", true),
            ("https://ec2.eu-west-1.amazonaws.com/", false),
            ("https://localhost.example.com/", false),
            ("https://10.0.0.5/", false),
            ("https://[2a05::1]:443/", false),
        ] {
            assert_eq!(is_of_this_instance(uri), expected, "{uri}");
        }
    }

    #[test]
    fn bundle_that_cannot_be_used_is_an_error_with_its_name() {
        let bad = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in ["", "no PEM", bad] {
            let error = trust_store("/etc/ca.pem", pem.into()).expect_err("it was accepted");
            assert!(error.is_invalid() && error.message.contains("AWS_CA_BUNDLE is \"/etc/ca.pem\""), "{error}");
        }
    }

    /// The first line that a proxy receives for a call to EC2.
    async fn first_line(endpoint: Option<&str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = ProxyConfig::all(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let mut config = aws_sdk_ec2::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::for_tests())
            .retry_config(aws_smithy_types::retry::RetryConfig::disabled())
            .http_client(build_client(proxy, TrustStore::default()));
        config.set_endpoint_url(endpoint.map(str::to_owned));
        let client = aws_sdk_ec2::Client::from_conf(config.build());
        let call = client.describe_vpcs().send();
        let proxied = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 200];
            let read = stream.read(&mut buffer).await.unwrap();
            String::from_utf8_lossy(&buffer[..read]).lines().next().unwrap_or_default().to_owned()
        };
        tokio::select! {
            line = proxied => line,
            response = call => format!("not proxied: {:?}", response.is_ok()),
        }
    }

    #[tokio::test]
    async fn call_to_aws_goes_through_the_proxy_and_a_local_one_does_not() {
        let line = first_line(None).await;
        assert_eq!(line, "CONNECT ec2.eu-west-1.amazonaws.com:443 HTTP/1.1");
        // Nothing listens at the discard port.
        assert_eq!(first_line(Some("http://127.0.0.1:9")).await, "not proxied: false");
    }
}
