//! Application Load Balancers that users name as targets: they are found and checked, and never changed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use aws_sdk_elasticloadbalancingv2::types as elb;
use providers::CloudError;

use crate::client::Class;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::names;
use crate::loadbalancer::ownership;
use crate::loadbalancer::spec::alb::SUFFIX;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::{Alb, Settings};
use crate::loadbalancer::types::Probe;
use crate::session::Session;

impl Balancers {
    /// Returns the settings of a Service with the Application Load Balancer that it names, or, if it names none, with
    /// the certificates for its host names.
    ///
    /// # Errors
    /// `Invalid` with the fix, if there is no certificate, no such load balancer, or no listener for one of the
    /// Service's ports, or if the Service may not use the load balancer.
    pub(super) async fn resolved<'a>(&self, work: &Work<'a>) -> Result<Cow<'a, Settings>, CloudError> {
        let Some(alb) = &work.settings.alb else { return self.certified(work).await };
        let refuse = |fix: String| CloudError::invalid_annotation(&format!("{PREFIX}{SUFFIX}"), &alb.name, &fix);
        let found = find(work.session, alb).await?.map_err(refuse)?;
        let arn = found.load_balancer_arn().unwrap_or_default().to_owned();
        let arns = [arn.clone()];
        let tags = self.inventory.tags_of(work.session, &arns).await?.remove(&arn).unwrap_or_default();
        // Without consent, any user of the cluster could publish an internal site.
        let missing_consent = if ownership::is_shared(&tags, &work.session.cluster) {
            (ownership::names_service(&tags, work.id) == Some(false)).then(|| {
                format!("add {} to its tag {}, which names the Services that may use it", work.id, names::ALLOWED)
            })
        } else {
            Some(format!("put the tag {}=shared on it", work.session.cluster.key()))
        };
        if let Some(fix) = missing_consent {
            // The user adds the tag after this error, so the next attempt must not use cached tags.
            self.inventory.forget(&arn);
            return Err(refuse(fix));
        }
        let listeners = listeners(work.session, &arn).await?;
        let mut settings = work.settings.clone();
        settings.alb = Some(Alb { arn, ..alb.clone() });
        for listener in &mut settings.listeners {
            let Some(probe) = listeners.get(&listener.port) else {
                let ports: Vec<String> = listeners.keys().map(u16::to_string).collect();
                let fix = format!("use a port of the Application Load Balancer {}: {}", alb.name, ports.join(", "));
                return Err(CloudError::invalid_field("spec.ports[].port", listener.port, &fix));
            };
            if !alb.probe_is_set {
                listener.group.health.protocol = *probe;
            }
        }
        Ok(Cow::Owned(settings))
    }
}

/// Returns the load balancer with a name or an ARN; if there is none that the Service can use, the fix.
async fn find(session: &Session, alb: &Alb) -> Result<Result<elb::LoadBalancer, String>, CloudError> {
    let request = session.api.elb.describe_load_balancers();
    let request =
        if alb.name.starts_with("arn:") { request.load_balancer_arns(&alb.name) } else { request.names(&alb.name) };
    let absent = || format!("use the name or the ARN of an Application Load Balancer in {}", session.vpc);
    let response = match session.api.read(Class::ElbRead, "DescribeLoadBalancers", || request.clone().send()).await {
        Err(error) if error.is_not_found() || error.is_invalid() => return Ok(Err(absent())),
        response => response?,
    };
    let fits = |one: &&elb::LoadBalancer| {
        one.r#type() == Some(&elb::LoadBalancerTypeEnum::Application) && one.vpc_id() == Some(&session.vpc)
    };
    Ok(response.load_balancers().iter().find(fits).cloned().ok_or_else(absent))
}

/// Returns the protocol of health checks for each port that a load balancer listens on.
async fn listeners(session: &Session, arn: &str) -> Result<BTreeMap<u16, Probe>, CloudError> {
    let mut ports = BTreeMap::new();
    let mut marker = None;
    loop {
        let request = session.api.elb.describe_listeners().load_balancer_arn(arn).set_marker(marker);
        let response = session.api.read(Class::ElbRead, "DescribeListeners", || request.clone().send()).await?;
        for listener in response.listeners() {
            let encrypted = listener.protocol() == Some(&elb::ProtocolEnum::Https);
            let port = listener.port().and_then(|port| u16::try_from(port).ok());
            ports.extend(port.map(|port| (port, if encrypted { Probe::Https } else { Probe::Http })));
        }
        marker = response.next_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
        if marker.is_none() {
            return Ok(ports);
        }
    }
}
