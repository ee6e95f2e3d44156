//! Authentication of requests: front proxy, client certificate, bearer token, or anonymous.
//!
//! The methods are tried in this order. If one finds invalid credentials, the others are still tried; the request is
//! refused only if none succeeds. A request without credentials is anonymous (apiserver,
//! DelegatingAuthenticatorConfig.New).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use ring::hmac;
use ring::rand::SystemRandom;
use rustls::pki_types::CertificateDer;

use super::access_metrics::TokenCacheMetrics;
use super::cache::Cache;
use super::peer::{self, PeerError};
use super::review::Reviewer;
use super::trust::{FrontProxy, Trust};
use super::user::User;
use crate::text::percent_decode;

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Maximum number of tokens whose results are cached.
const MAX_CACHED_TOKENS: usize = 4096;

/// The API server's result for a token; errors are not cached.
type TokenResult = Result<Option<User>, String>;

/// Determines the user of a request.
pub(super) struct Authenticator {
    pub(super) trust: Arc<Trust>,
    tokens: Option<Tokens>,
    /// The user's UID is read from client certificates.
    reads_certificate_uid: bool,
}

/// Authentication by bearer tokens.
struct Tokens {
    reviewer: Arc<Reviewer>,
    results: Cache<TokenDigest, TokenResult>,
    /// The key of the digests.
    digests: hmac::Key,
    ttl: Duration,
    metrics: TokenCacheMetrics,
}

/// The cache key of a token: its HMAC with a key of this process, so that no token stays in memory.
type TokenDigest = [u8; 32];

/// Returns the digest of a token.
fn digest(key: &hmac::Key, token: &str) -> TokenDigest {
    let mut digest = TokenDigest::default();
    digest.copy_from_slice(hmac::sign(key, token.as_bytes()).as_ref());
    digest
}

/// Generates the key for digests.
///
/// # Panics
/// Never: without a source of randomness, TLS fails earlier.
fn digest_key() -> hmac::Key {
    hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).expect("the system's random number generator failed")
}

impl Authenticator {
    /// Creates an authenticator. Without a reviewer, tokens are ignored.
    pub(super) fn new(
        trust: Arc<Trust>,
        reviewer: Option<Arc<Reviewer>>,
        ttl: Duration,
        metrics: TokenCacheMetrics,
    ) -> Self {
        let tokens = reviewer.map(|reviewer| Tokens {
            reviewer,
            results: Cache::new(MAX_CACHED_TOKENS),
            digests: digest_key(),
            ttl,
            metrics,
        });
        Self { trust, tokens, reads_certificate_uid: true }
    }

    /// Sets whether the user's UID is read from client certificates.
    pub(super) fn reading_certificate_uid(self, reads_certificate_uid: bool) -> Self {
        Self { reads_certificate_uid, ..self }
    }

    /// Returns the user of a request over a connection with this client certificate (and its intermediates).
    ///
    /// # Errors
    /// The reason why the credentials are invalid or could not be checked; for the log, not for the client.
    pub(super) async fn user(&self, peer: &[CertificateDer<'_>], headers: &HeaderMap) -> Result<User, String> {
        let mut problems = Vec::new();
        match self.by_certificate(peer, headers) {
            Ok(Some(user)) => return Ok(user.authenticated()),
            Ok(None) => {}
            Err(mut errors) => problems.append(&mut errors),
        }
        if let (Some(tokens), Some(token)) = (&self.tokens, bearer_token(headers)) {
            match tokens.user(token).await {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => problems.push("invalid bearer token".into()),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(User::anonymous()) } else { Err(problems.join("; ")) }
    }

    fn by_certificate(&self, peer: &[CertificateDer<'_>], headers: &HeaderMap) -> Result<Option<User>, Vec<String>> {
        let [own, ..] = peer else { return Ok(None) };
        let trusted = self.trust.current();
        let mut problems = Vec::new();
        if let Some(proxy) = &trusted.front_proxy {
            match proxied(proxy, peer, headers) {
                Ok(Some(user)) => return Ok(Some(user)),
                Ok(None) => {}
                Err(problem) => problems.push(format!("as a front proxy: {problem}")),
            }
        }
        if let Some(bundle) = &trusted.clients {
            match bundle.verify(peer).and_then(|()| peer::user(own, self.reads_certificate_uid)) {
                Ok(Some(user)) => return Ok(Some(user)),
                Ok(None) => {}
                Err(problem) => problems.push(problem.to_string()),
            }
        }
        if problems.is_empty() { Ok(None) } else { Err(problems) }
    }
}

impl Tokens {
    /// Returns the user of a token, from the cache or by a review.
    async fn user(&self, token: &str) -> TokenResult {
        let (started, mut hit) = (Instant::now(), true);
        let fetch = async {
            hit = false;
            let in_flight = self.metrics.in_flight();
            let response = self.review(token).await;
            drop(in_flight);
            self.metrics.fetched(response.is_ok());
            let ttl = if response.is_ok() { self.ttl } else { Duration::ZERO };
            (response, ttl)
        };
        let blocked = self.metrics.blocked();
        let response = self.results.get_or(&digest(&self.digests, token), fetch).await;
        drop(blocked);
        self.metrics.finished(hit, started);
        response
    }

    async fn review(&self, token: &str) -> TokenResult {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
            ..TokenReview::default()
        };
        let response = self.reviewer.review(TOKEN_REVIEWS, &review).await.map_err(|error| error.to_string())?;
        let status = response.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return status.error.filter(|error| !error.is_empty()).map_or(Ok(None), Err);
        }
        let user = status.user.unwrap_or_default();
        Ok(Some(User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }
}

/// Returns the token of `Authorization: Bearer`. Upstream: apiserver, request/bearertoken.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let mut parts = value.splitn(3, ' ');
    let (scheme, token) = (parts.next()?, parts.next()?);
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns the user in a front proxy's headers, if the certificate belongs to a front proxy. Upstream: apiserver,
/// request/headerrequest.
fn proxied(proxy: &FrontProxy, peer: &[CertificateDer<'_>], headers: &HeaderMap) -> Result<Option<User>, String> {
    let text = |error: PeerError| error.to_string();
    proxy.bundle.verify(peer).map_err(text)?;
    let name = peer::common_name(&peer[0]).map_err(text)?;
    if !proxy.allowed_names.is_empty() && !proxy.allowed_names.contains(&name) {
        return Err(format!("its common name {name:?} is not among the allowed ones"));
    }
    Ok(named_in_headers(proxy, headers))
}

/// Returns the user that a front proxy names in the headers.
fn named_in_headers(proxy: &FrontProxy, headers: &HeaderMap) -> Option<User> {
    let all = |name: &String| -> Vec<String> {
        let values = headers.get_all(name.to_ascii_lowercase().as_str());
        let texts = values.iter().filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
        texts.filter(|text| !text.is_empty()).map(ToOwned::to_owned).collect()
    };
    let first = |names: &[String]| names.iter().find_map(|name| all(name).into_iter().next());
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for prefix in &proxy.extra_prefixes {
        let prefix = prefix.to_ascii_lowercase();
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(&prefix) {
                let key = percent_decode(key).unwrap_or_else(|| key.to_owned());
                extra.entry(key).or_default().extend(all(&name.to_string()));
            }
        }
    }
    Some(User {
        name: first(&proxy.username_headers)?,
        uid: first(&proxy.uid_headers).unwrap_or_default(),
        groups: proxy.group_headers.iter().flat_map(all).collect(),
        extra,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::super::peer::Bundle;
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn cache_stores_only_digests_of_tokens() {
        let key = digest_key();
        assert_eq!(digest(&key, "secret"), digest(&key, "secret"));
        assert_ne!(digest(&key, "secret"), digest(&key, "secret2"));
        assert_ne!(digest(&key, "secret"), digest(&digest_key(), "secret"), "another process has another key");
    }

    #[test]
    fn only_the_bearer_scheme_yields_a_token() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("  Bearer abc  ", Some("abc")),
            ("Bearer abc def", Some("abc")),
            ("Bearer", None),
            ("Bearer  abc", None),
            ("Basic abc", None),
            ("", None),
        ] {
            assert_eq!(bearer_token(&headers(&[("authorization", value)])), token, "{value:?}");
        }
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }

    fn proxy(allowed_names: &[&str]) -> (FrontProxy, CertificateDer<'static>) {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = params.self_signed(&key).expect("a certificate").pem();
        let issuer = rcgen::Issuer::new(params, key);
        let mut own = CertificateParams::default();
        own.distinguished_name = rcgen::DistinguishedName::new();
        own.distinguished_name.push(DnType::CommonName, "front-proxy");
        let own = own.signed_by(&KeyPair::generate().expect("a key"), &issuer).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let proxy = FrontProxy {
            bundle: Bundle::parse(ca.as_bytes(), &provider).expect("a bundle"),
            allowed_names: texts(allowed_names),
            username_headers: texts(&["X-Remote-User"]),
            uid_headers: texts(&["X-Remote-Uid"]),
            group_headers: texts(&["X-Remote-Group"]),
            extra_prefixes: texts(&["X-Remote-Extra-"]),
        };
        (proxy, own.der().clone())
    }

    #[test]
    fn front_proxy_headers_require_an_allowed_certificate() {
        let (any, own) = proxy(&[]);
        let proxy_headers = headers(&[
            ("x-remote-user", ""),
            ("x-remote-user", "ann"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-extra-acme.com%2fscope", "a"),
            ("x-remote-extra-acme.com%2fscope", "b"),
        ]);
        let user = proxied(&any, std::slice::from_ref(&own), &proxy_headers).expect("accepted").expect("a user");
        assert_eq!((user.name.as_str(), user.groups.join(",").as_str()), ("ann", "dev,ops"));
        assert_eq!(user.extra["acme.com/scope"], ["a", "b"]);
        assert_eq!(proxied(&any, std::slice::from_ref(&own), &HeaderMap::new()), Ok(None), "no user in the headers");

        let (named, own) = proxy(&["front-proxy"]);
        assert!(proxied(&named, &[own], &proxy_headers).is_ok());
        let (other, own) = proxy(&["another"]);
        assert!(proxied(&other, std::slice::from_ref(&own), &proxy_headers).is_err());
        assert!(proxied(&any, &[own], &proxy_headers).is_err(), "signed by another authority");
    }
}
