//! Client of AWS: one HTTP client, credentials, a budget for each class of calls, and a count of every call.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig, imds};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use providers::{CloudError, ErrorKind};
use tokio::time::sleep;

use crate::budget::Budget;
use crate::config::{Config, Override};
use crate::error::{cloud_error, with_fix};
use crate::http;
use crate::role::RoleCredentials;

/// Timeout of an attempt. Upstream: cloud-provider-aws, its HTTP client's timeout.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of attempts of a read. A change is tried once: its caller reads again before another attempt.
const MAX_ATTEMPTS: u32 = 4;
/// The pause before the second attempt of a read; later pauses double.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Calls per second and the size of a burst, for each class; all actions of the class share them. The first pair is
/// AWS's default quota for each single action of EC2 that changes nothing.
const LIMITS: [(f64, u32); 5] = [(20.0, 100), (5.0, 50), (20.0, 100), (10.0, 40), (4.0, 20)];
/// The factor of all limits for a mock of AWS on this machine.
const LOCAL_FACTOR: u32 = 100;

/// Returns true if an endpoint is on this machine, where only a mock of AWS listens.
fn is_local(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    matches!(host.split([':', '/']).next(), Some("127.0.0.1" | "localhost"))
}

/// The classes of calls, by service and by whether they change anything. Each class has its own rate limit and pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Ec2Read,
    Ec2Change,
    ElbRead,
    ElbChange,
    AcmRead,
}

impl Class {
    /// Returns the prefix of the service's actions in IAM.
    fn service(self) -> &'static str {
        match self {
            Self::Ec2Read | Self::Ec2Change => "ec2",
            Self::ElbRead | Self::ElbChange => "elasticloadbalancing",
            Self::AcmRead => "acm",
        }
    }
}

/// Clients, budgets and counts.
#[derive(Debug)]
pub(crate) struct Api {
    pub ec2: aws_sdk_ec2::Client,
    pub elb: aws_sdk_elasticloadbalancingv2::Client,
    /// Classic Load Balancers.
    pub classic: aws_sdk_elasticloadbalancing::Client,
    /// Certificates.
    pub acm: aws_sdk_acm::Client,
    pub region: String,
    /// The instance metadata service.
    pub metadata: imds::Client,
    budgets: [Budget; 5],
    calls: Mutex<BTreeMap<&'static str, Calls>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Calls {
    answered: u64,
    failed: u64,
    throttled: u64,
}

impl Api {
    /// Reads the environment and, if neither the cloud config nor the environment names a region, the instance's
    /// metadata. Credentials are resolved when the first call is made.
    ///
    /// # Errors
    /// `Invalid` if no region is known, or if the file of `AWS_CA_BUNDLE` or the endpoint of the metadata service
    /// cannot be used.
    pub(crate) async fn connect(config: &Config, credentials: Option<&Credentials>) -> Result<Self, CloudError> {
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(ATTEMPT_TIMEOUT).build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http::client()?)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts);
        if !config.region.is_empty() {
            loader = loader.region(Region::new(config.region.clone()));
        }
        if let Some(credentials) = credentials {
            loader = loader.credentials_provider(credentials.clone());
        }
        let mut sdk = loader.load().await;
        let Some(region) = sdk.region().map(ToString::to_string) else {
            let fix = "set Region in [Global], or AWS_REGION, or make the instance metadata service reachable";
            return Err(CloudError::new(ErrorKind::Invalid, "FindRegion", format!("no region is known: {fix}")));
        };
        for over in config.overrides.iter().filter(|over| over.region != region) {
            let Override { service, region: other, url, .. } = over;
            tracing::warn!("the endpoint {url} of {service} is for {other} and has no effect: the region is {region}");
        }
        if !config.role_arn.is_empty() {
            let mut sts = aws_sdk_sts::config::Builder::from(&sdk);
            if let Some(over) = config.endpoint("STS", &region) {
                sts = sts.endpoint_url(&over.url).region(Region::new(over.signing_region.clone()));
            }
            let sts = aws_sdk_sts::Client::from_conf(sts.build());
            let role = RoleCredentials::new(sts, &config.role_arn, &config.source_arn);
            sdk = sdk.into_builder().credentials_provider(SharedCredentialsProvider::new(role)).build();
        }
        let metadata = metadata(&sdk, config, &region).map_err(|error| {
            CloudError::new(ErrorKind::Invalid, "ReadConfig", format!("the endpoint of ec2imds: {error}"))
        })?;
        Ok(Self::new(&sdk, config, region, metadata))
    }

    fn new(sdk: &SdkConfig, config: &Config, region: String, metadata: imds::Client) -> Self {
        let mut ec2 = aws_sdk_ec2::config::Builder::from(sdk);
        if let Some(over) = config.endpoint("EC2", &region) {
            ec2 = ec2.endpoint_url(&over.url).region(Region::new(over.signing_region.clone()));
        }
        let mut elb = aws_sdk_elasticloadbalancingv2::config::Builder::from(sdk);
        if let Some(over) = config.endpoint("Elastic Load Balancing v2", &region) {
            elb = elb.endpoint_url(&over.url).region(Region::new(over.signing_region.clone()));
        }
        let mut classic = aws_sdk_elasticloadbalancing::config::Builder::from(sdk);
        if let Some(over) = config.endpoint("Elastic Load Balancing", &region) {
            classic = classic.endpoint_url(&over.url).region(Region::new(over.signing_region.clone()));
        }
        let mut acm = aws_sdk_acm::config::Builder::from(sdk);
        if let Some(over) = config.endpoint("ACM", &region) {
            acm = acm.endpoint_url(&over.url).region(Region::new(over.signing_region.clone()));
        }
        let local = config.overrides.iter().any(|over| is_local(&over.url));
        let budgets = LIMITS.map(|(rate, burst)| {
            if local {
                Budget::new(rate * f64::from(LOCAL_FACTOR), burst.saturating_mul(LOCAL_FACTOR))
            } else {
                Budget::new(rate, burst)
            }
        });
        Self {
            ec2: aws_sdk_ec2::Client::from_conf(ec2.build()),
            elb: aws_sdk_elasticloadbalancingv2::Client::from_conf(elb.build()),
            classic: aws_sdk_elasticloadbalancing::Client::from_conf(classic.build()),
            acm: aws_sdk_acm::Client::from_conf(acm.build()),
            region,
            metadata,
            budgets,
            calls: Mutex::default(),
        }
    }

    /// Makes a call that changes nothing. Failures that may be temporary are retried a few times.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub(crate) async fn read<T, E: ProvideErrorMetadata, F>(
        &self,
        class: Class,
        operation: &'static str,
        send: impl Fn() -> F,
    ) -> Result<T, CloudError>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let mut pause = FIRST_PAUSE;
        for _ in 1..MAX_ATTEMPTS {
            match self.change(class, operation, send()).await {
                Err(error) if matches!(error.kind, ErrorKind::Transient) => sleep(pause).await,
                // The budget makes the next attempt wait.
                Err(error) if matches!(error.kind, ErrorKind::Throttled { .. }) => {}
                result => return result,
            }
            pause *= 2;
        }
        self.change(class, operation, send()).await
    }

    /// Makes a call once.
    ///
    /// # Errors
    /// The error of AWS, or the reason why there was no response. AWS may have made the change even if there was no
    /// response.
    pub(crate) async fn change<T, E: ProvideErrorMetadata>(
        &self,
        class: Class,
        operation: &'static str,
        send: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, CloudError> {
        let budget = &self.budgets[class as usize];
        budget.take().await;
        let mut result = send.await.map_err(|error| with_fix(cloud_error(operation, &error), class.service()));
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(operation).or_default();
        match &mut result {
            Ok(_) => count.answered += 1,
            Err(CloudError { kind: ErrorKind::Throttled { after }, .. }) => {
                count.throttled += 1;
                *after = Some(budget.throttled(*after));
            }
            Err(error) => count.count_error(error.kind),
        }
        drop(calls);
        if !matches!(&result, Err(CloudError { kind: ErrorKind::Throttled { .. }, .. })) {
            budget.clear_throttles();
        }
        result
    }

    /// Returns the number of calls by action, in the Prometheus text format.
    pub(crate) fn metrics(&self) -> String {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = String::from(
            "# HELP ccm_aws_api_calls_total Calls to AWS by action and result\n\
             # TYPE ccm_aws_api_calls_total counter\n",
        );
        for (operation, count) in &calls {
            for (result, value) in
                [("answered", count.answered), ("failed", count.failed), ("throttled", count.throttled)]
            {
                let _ = writeln!(text, "ccm_aws_api_calls_total{{action=\"{operation}\",result=\"{result}\"}} {value}");
            }
        }
        text.push_str(
            "# HELP cloudprovider_aws_api_throttled_requests_total AWS API throttled requests\n\
             # TYPE cloudprovider_aws_api_throttled_requests_total counter\n",
        );
        for (operation, count) in calls.iter().filter(|(_, count)| count.throttled > 0) {
            let name = "cloudprovider_aws_api_throttled_requests_total";
            let _ = writeln!(text, "{name}{{operation_name=\"{operation}\"}} {}", count.throttled);
        }
        text
    }
}

fn metadata(
    sdk: &SdkConfig,
    config: &Config,
    region: &str,
) -> Result<imds::Client, Box<dyn std::error::Error + Send + Sync>> {
    let mut provider = ProviderConfig::without_region();
    if let Some(http) = sdk.http_client() {
        provider = provider.with_http_client(http);
    }
    let mut metadata = imds::Client::builder().configure(&provider);
    if let Some(over) = config.endpoint("ec2imds", region) {
        metadata = metadata.endpoint(&over.url)?;
    }
    Ok(metadata.build())
}

impl Calls {
    /// Counts an error. `Transient` counts as a failure: no response, or an error of the server. Callers expect the
    /// other errors.
    fn count_error(&mut self, kind: ErrorKind) {
        if kind == ErrorKind::Transient {
            self.failed += 1;
        } else {
            self.answered += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_config::credential_process::CredentialProcessProvider;
    use aws_credential_types::provider::ProvideCredentials as _;

    use super::*;

    /// The SDK runs credential processes only with a cargo feature; without it IAM Roles Anywhere fails.
    #[tokio::test]
    async fn credentials_of_a_process_are_used() {
        let prints = r#"echo '{"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "secret"}'"#;
        let credentials = CredentialProcessProvider::new(prints.to_owned()).provide_credentials().await.unwrap();
        assert_eq!((credentials.access_key_id(), credentials.secret_access_key()), ("id", "secret"));
    }

    #[test]
    fn only_endpoints_on_this_machine_have_wide_limits() {
        for (url, expected) in [
            ("http://127.0.0.1:5000", true),
            ("http://localhost:5000", true),
            ("https://vpce-1.ec2.eu-west-1.vpce.amazonaws.com", false),
            ("https://localhost.example.com", false),
        ] {
            assert_eq!(is_local(url), expected, "{url}");
        }
    }
}
