//! Certificates of ACM for Services that name hosts.

use std::borrow::Cow;

use providers::CloudError;

use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::model::certificates;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::Settings;

impl Balancers {
    /// Returns the settings of a Service with the certificates for its host names.
    ///
    /// # Errors
    /// `Invalid` with the fix, if ACM has no certificate that the Service may use for one of the names.
    pub(super) async fn certified<'a>(&self, work: &Work<'a>) -> Result<Cow<'a, Settings>, CloudError> {
        let Work { session, id, settings, .. } = *work;
        if !settings.needs_certificates() {
            return Ok(Cow::Borrowed(settings));
        }
        let all = self.certificates.covering(session, &settings.domains).await?;
        match certificates::choose(&settings.domains, &all, id, &session.cluster) {
            Ok(chosen) => Ok(Cow::Owned(settings.with_certificates(&chosen))),
            Err((host, fix)) => {
                self.certificates.expire().await;
                Err(CloudError::invalid_annotation(&format!("{PREFIX}ssl-domains"), &host, &fix))
            }
        }
    }
}
