//! Certificates of ACM, listed once for all Services that name hosts.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_acm::types as acm;
use providers::CloudError;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::types::Tags;
use crate::session::Session;

/// Maximum age of a listing.
const MAX_LISTING_AGE: Duration = Duration::from_secs(60);
/// Number of certificates on a page of ACM.
const PAGE: i32 = 1000;

/// An issued certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub arn: String,
    /// Its host names in lower case; some may begin with `*.`.
    pub names: Vec<String>,
    /// The end of its validity, in seconds since 1970.
    pub not_after: i64,
    /// `None`: not read, because the certificate has none of the requested names.
    pub tags: Option<Tags>,
}

impl Certificate {
    /// Returns true if a certificate is valid for a host name.
    pub(crate) fn covers(&self, host: &str) -> bool {
        self.has(host) || wildcard(host).is_some_and(|wildcard| self.has(&wildcard))
    }

    /// Returns true if a certificate has exactly this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// Returns the wildcard name that covers a host name: a wildcard stands for exactly one label.
fn wildcard(host: &str) -> Option<String> {
    let (label, parent) = host.split_once('.')?;
    (label != "*").then(|| format!("*.{parent}"))
}

/// The last listing.
#[derive(Debug, Default)]
pub(crate) struct Certificates(Mutex<Option<(Instant, Arc<Vec<Certificate>>)>>);

impl Certificates {
    /// Returns the issued certificates; those that cover one of the host names have their tags.
    pub(crate) async fn covering(
        &self,
        session: &Session,
        hosts: &[String],
    ) -> Result<Arc<Vec<Certificate>>, CloudError> {
        let mut last = self.0.lock().await;
        let now = Instant::now();
        let (read, mut all) = match last.take().filter(|(read, _)| now < *read + MAX_LISTING_AGE) {
            Some((read, all)) => (read, all),
            None => (now, Arc::new(list(session).await?)),
        };
        let needed = |one: &Certificate| one.tags.is_none() && hosts.iter().any(|host| one.covers(host));
        if all.iter().any(needed) {
            for certificate in Arc::make_mut(&mut all).iter_mut().filter(|one| needed(one)) {
                certificate.tags = Some(tags(session, &certificate.arn).await?);
            }
        }
        *last = Some((read, all.clone()));
        Ok(all)
    }

    /// Discards the listing, so that the next call reads certificates that a user has corrected since.
    pub(crate) async fn expire(&self) {
        *self.0.lock().await = None;
    }
}

/// The keys that load balancers support. Without a list ACM returns certificates with RSA keys of up to 2048 bits only.
fn keys() -> acm::Filters {
    use acm::KeyAlgorithm::{EcPrime256v1, EcSecp384r1, EcSecp521r1, Rsa1024, Rsa2048, Rsa3072, Rsa4096};
    let keys = vec![Rsa1024, Rsa2048, Rsa3072, Rsa4096, EcPrime256v1, EcSecp384r1, EcSecp521r1];
    acm::Filters::builder().set_key_types(Some(keys)).build()
}

async fn list(session: &Session) -> Result<Vec<Certificate>, CloudError> {
    let mut all = Vec::new();
    let mut token = None;
    loop {
        let request = session.api.acm.list_certificates().certificate_statuses(acm::CertificateStatus::Issued);
        let request = request.includes(keys()).max_items(PAGE).set_next_token(token);
        let response = session.api.read(Class::AcmRead, "ListCertificates", || request.clone().send()).await?;
        for summary in response.certificate_summary_list() {
            if let Some(arn) = summary.certificate_arn() {
                all.push(Certificate {
                    arn: arn.to_owned(),
                    names: names(session, arn, summary).await?,
                    not_after: summary.not_after().map_or(0, |time| time.secs()),
                    tags: None,
                });
            }
        }
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(all);
        }
    }
}

/// Returns all host names of a certificate. A listing has the first hundred of them.
async fn names(session: &Session, arn: &str, summary: &acm::CertificateSummary) -> Result<Vec<String>, CloudError> {
    let mut names: Vec<String> = summary.subject_alternative_name_summaries().to_vec();
    names.extend(summary.domain_name().map(str::to_owned));
    if summary.has_additional_subject_alternative_names() == Some(true) {
        let request = session.api.acm.describe_certificate().certificate_arn(arn);
        let response = session.api.read(Class::AcmRead, "DescribeCertificate", || request.clone().send()).await;
        match response {
            // The certificate was deleted since it was listed.
            Err(error) if error.is_not_found() => {}
            response => {
                let response = response?;
                let described = response.certificate().map(|one| one.subject_alternative_names().to_vec());
                names.extend(described.unwrap_or_default());
            }
        }
    }
    let mut names: Vec<String> = names.into_iter().map(|name| name.to_ascii_lowercase()).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

async fn tags(session: &Session, arn: &str) -> Result<Tags, CloudError> {
    let request = session.api.acm.list_tags_for_certificate().certificate_arn(arn);
    let send = || request.clone().send();
    match session.api.read(Class::AcmRead, "ListTagsForCertificate", send).await {
        Err(error) if error.is_not_found() => Ok(Default::default()),
        response => {
            let pair = |tag: &acm::Tag| (tag.key().to_owned(), tag.value().unwrap_or_default().to_owned());
            Ok(response?.tags().iter().map(pair).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str) -> Certificate {
        Certificate { names: vec![name.to_owned()], ..Certificate::default() }
    }

    #[test]
    fn wildcard_stands_for_one_label() {
        let wild = certificate("*.example.com");
        for (host, expected) in [
            ("www.example.com", true),
            ("*.example.com", true),
            ("example.com", false),
            ("a.www.example.com", false),
            ("www.example.org", false),
            ("*.www.example.com", false),
            ("com", false),
        ] {
            assert_eq!(wild.covers(host), expected, "{host}");
        }
        assert!(!certificate("www.example.com").covers("*.example.com"));
    }
}
