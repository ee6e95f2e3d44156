//! Direct calls to moto, with which tests change an account. They do not use the SDK, because its build is slow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::fault::is_change;
use crate::xml::{self, Element};
use crate::{REGION, form};

/// A service of AWS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// EC2: instances and networks.
    Ec2,
    /// Application and Network Load Balancers.
    Elb,
    /// Classic Load Balancers.
    Classic,
    /// IAM: uploaded certificates.
    Iam,
}

impl Service {
    fn signing_name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Elb | Self::Classic => "elasticloadbalancing",
            Self::Iam => "iam",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Self::Ec2 => "2016-11-15",
            Self::Elb => "2015-12-01",
            Self::Classic => "2012-06-01",
            Self::Iam => "2010-05-08",
        }
    }
}

/// A call that AWS refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsError {
    /// AWS's code of the error.
    pub code: String,
    /// The whole response.
    pub response: String,
}

impl std::fmt::Display for AwsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.response)
    }
}

impl std::error::Error for AwsError {}

/// An account, called directly instead of through the proxy, which neither counts these calls nor injects faults.
#[derive(Debug, Clone)]
pub struct Aws {
    moto: SocketAddr,
    account: String,
    client: Client<HttpConnector, Full<Bytes>>,
    /// Number of changes of the account, which all clones of this [`Aws`] and its proxy count.
    changes: Arc<AtomicU64>,
}

impl Aws {
    pub(crate) fn new(moto: SocketAddr, account: String) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { moto, account, client, changes: Arc::default() }
    }

    /// Returns the number of changes so far. A read is up to date while this number stays the same.
    pub(crate) fn version(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Counts a change of the account.
    pub(crate) fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a call; returns its XML.
    ///
    /// # Errors
    /// An [`AwsError`] if the service returns an error.
    pub async fn call(&self, service: Service, action: &str, parameters: &[(&str, &str)]) -> Result<String> {
        let head = [("Action", action), ("Version", service.version())];
        let body = form::write(&[&head[..], parameters].concat());
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/{}/aws4_request, SignedHeaders=host, Signature=none",
            service.signing_name()
        );
        let request = Request::post(format!("http://{}/", self.moto))
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded; charset=utf-8")
            .header("x-moto-account-id", &self.account)
            .body(Full::from(body))?;
        let response = self.client.request(request).await.with_context(|| format!("send {action} to moto"))?;
        if is_change(action) {
            self.count_change();
        }
        let status = response.status();
        let text = String::from_utf8_lossy(&response.into_body().collect().await?.to_bytes()).into_owned();
        if status.is_success() {
            return Ok(text);
        }
        let code = xml::texts(&text, "Code").into_iter().next().unwrap_or_else(|| status.to_string());
        Err(AwsError { code, response: text }).with_context(|| format!("{action} with {parameters:?}"))
    }

    /// Makes a call to ACM, which has the JSON protocol; returns its response.
    ///
    /// # Errors
    /// If the service returns an error.
    pub async fn acm(&self, action: &str, parameters: &serde_json::Value) -> Result<serde_json::Value> {
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/acm/aws4_request, SignedHeaders=host, Signature=none"
        );
        let request = Request::post(format!("http://{}/", self.moto))
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/x-amz-json-1.1")
            .header("x-amz-target", format!("CertificateManager.{action}"))
            .header("x-moto-account-id", &self.account)
            .body(Full::from(parameters.to_string()))?;
        let response = self.client.request(request).await.with_context(|| format!("send {action} to moto"))?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{action} with {parameters}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    /// Makes a call to EC2; returns the texts of one of its elements.
    ///
    /// # Errors
    /// As [`Aws::call`].
    pub async fn ec2(&self, action: &str, parameters: &[(&str, &str)], element: &str) -> Result<Vec<String>> {
        Ok(xml::texts(&self.call(Service::Ec2, action, parameters).await?, element))
    }

    /// Makes a call that describes resources; returns the members of one of its lists, from all pages.
    ///
    /// # Errors
    /// As [`Aws::call`].
    pub async fn list(
        &self,
        service: Service,
        action: &str,
        parameters: &[(&str, &str)],
        list: &str,
    ) -> Result<Vec<Element>> {
        let (parent, member) = match service {
            Service::Ec2 => (String::new(), "item"),
            Service::Elb | Service::Classic | Service::Iam => (format!("{action}Result/"), "member"),
        };
        let (path, next) = (format!("{parent}{list}/{member}"), format!("{parent}NextMarker"));
        let (mut members, mut marker) = (Vec::new(), String::new());
        loop {
            let page = [("Marker", marker.as_str())];
            let page = if marker.is_empty() { &[][..] } else { &page };
            let response = Element::parse(&self.call(service, action, &[parameters, page].concat()).await?)
                .with_context(|| format!("parse the response to {action}"))?;
            members.extend(response.all(&path).into_iter().cloned());
            marker = response.text(&next).to_owned();
            if marker.is_empty() {
                return Ok(members);
            }
        }
    }
}
