//! Credentials of a role, requested on behalf of one resource if the cloud config names one.

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_credential_types::provider::{self, ProvideCredentials, error::CredentialsError, future};
use aws_sdk_sts::Client;

/// The name of the session in audit logs.
const SESSION: &str = "cloud-controller-manager";

/// Credentials from an assumed role. The SDK caches them until shortly before they expire.
#[derive(Debug)]
pub(crate) struct RoleCredentials {
    sts: Client,
    role: String,
    /// The headers that protect against the confused deputy problem: the resource, and its account.
    source: Option<(String, String)>,
}

impl RoleCredentials {
    /// Creates credentials of a role that is assumed on behalf of `source`: an ARN, or empty for none.
    pub(crate) fn new(sts: Client, role: &str, source: &str) -> Self {
        let account = source.split(':').nth(4).unwrap_or_default();
        let source = (!source.is_empty()).then(|| (source.to_owned(), account.to_owned()));
        Self { sts, role: role.to_owned(), source }
    }

    async fn assume(&self) -> provider::Result {
        let source = self.source.clone();
        let request = self.sts.assume_role().role_arn(&self.role).role_session_name(SESSION);
        let response = request
            .customize()
            .mutate_request(move |request| {
                if let Some((arn, account)) = &source {
                    request.headers_mut().insert("x-amz-source-arn", arn.clone());
                    request.headers_mut().insert("x-amz-source-account", account.clone());
                }
            })
            .send()
            .await
            .map_err(CredentialsError::provider_error)?;
        let Some(given) = response.credentials() else {
            return Err(CredentialsError::unhandled("the response to AssumeRole has no credentials"));
        };
        let ends = SystemTime::try_from(*given.expiration()).map_err(CredentialsError::unhandled)?;
        let token = Some(given.session_token().to_owned());
        Ok(Credentials::new(given.access_key_id(), given.secret_access_key(), token, Some(ends), "AssumeRole"))
    }
}

impl ProvideCredentials for RoleCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.assume())
    }
}
