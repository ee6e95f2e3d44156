//! The call of each step of a plan. The function for one kind of resource ignores the steps of other kinds.

use aws_sdk_elasticloadbalancingv2::types as elb;
use providers::{CloudError, ErrorKind};

use crate::client::Class;
use crate::loadbalancer::apply::backend_group::RULES_QUOTA;
use crate::loadbalancer::apply::calls::{Caller, authorize, certificate, encryption, gone, revoke};
use crate::loadbalancer::apply::target_records;
use crate::loadbalancer::observed::convert;
use crate::loadbalancer::observed::refused_targets::RefusedTargets;
use crate::loadbalancer::observed::stack::{CreatedResource, ObservedStack};
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::types::HealthCheck;

impl Caller<'_> {
    /// Executes a step, mostly by one call. There are several for targets that exceed the limit of one call or of which
    /// AWS refuses some, and for a load balancer whose tags are checked after its creation. A record is written in the
    /// cluster. Targets that AWS `refused` shortly before are left out.
    pub(crate) async fn execute(
        &mut self,
        step: &Step,
        observed: &ObservedStack,
        refused: &mut RefusedTargets,
    ) -> Result<CreatedResource, CloudError> {
        match step {
            Step::CreateSecurityGroup(_)
            | Step::Authorize { .. }
            | Step::Revoke { .. }
            | Step::DeleteSecurityGroup { .. } => self.change_security_group(step, observed).await,
            Step::CreateBalancer(wanted) => self.create_balancer(wanted).await,
            Step::SetSubnets { .. }
            | Step::SetAddressType { .. }
            | Step::SetSecurityGroups { .. }
            | Step::SetCapacity { .. }
            | Step::SetBalancerAttributes { .. }
            | Step::DeleteBalancer { .. } => self.change_balancer(step, observed).await,
            Step::CreateTargetGroup(wanted) => self.create_target_group(wanted).await,
            Step::SetHealthCheck { .. }
            | Step::SetGroupAttributes { .. }
            | Step::Record { .. }
            | Step::Register { .. }
            | Step::Deregister { .. }
            | Step::DeleteTargetGroup { .. } => self.change_target_group(step, observed, refused).await,
            Step::CreateListener { .. } | Step::ModifyListener { .. } | Step::DeleteListener { .. } => {
                self.change_listener(step, observed).await
            }
            Step::SetListenerAttributes { .. } | Step::AddCertificates { .. } | Step::RemoveCertificates { .. } => {
                self.change_parts_of_listener(step, observed).await
            }
            Step::AddTags { .. } | Step::RemoveTags { .. } => self.change_tags(step).await,
        }
    }

    /// Changes the Service's own security group.
    async fn change_security_group(
        &self,
        step: &Step,
        observed: &ObservedStack,
    ) -> Result<CreatedResource, CloudError> {
        let security = |name: &str| {
            observed.security_group(name).map(|one| one.id.clone()).ok_or_else(|| gone("security group", name))
        };
        let api = &self.session.api;
        match step {
            Step::CreateSecurityGroup(wanted) => {
                let request = api.ec2.create_security_group().vpc_id(&self.session.vpc).group_name(&wanted.name);
                let request = request.description(&wanted.description);
                let request = request.tag_specifications(convert::ec2_tags(&wanted.tags));
                let response = api.change(Class::Ec2Change, "CreateSecurityGroup", request.send()).await?;
                return Ok(CreatedResource {
                    id: response.group_id().unwrap_or_default().to_owned(),
                    ..CreatedResource::default()
                });
            }
            Step::Authorize { group, rules } => {
                let added = authorize(self.session, &security(group)?, rules).await;
                let rules = added.map_err(|error| name_full_group(error, group, rules.len()))?;
                return Ok(CreatedResource { rules, ..CreatedResource::default() });
            }
            Step::Revoke { group, rules } => revoke(self.session, &security(group)?, rules).await?,
            Step::DeleteSecurityGroup { id } => {
                let request = api.ec2.delete_security_group().group_id(id);
                api.change(Class::Ec2Change, "DeleteSecurityGroup", request.send()).await?;
            }
            _ => {}
        }
        Ok(CreatedResource::default())
    }

    /// Changes a load balancer.
    async fn change_balancer(&self, step: &Step, observed: &ObservedStack) -> Result<CreatedResource, CloudError> {
        let balancer =
            |name: &str| observed.balancer(name).map(|one| one.arn.clone()).ok_or_else(|| gone("load balancer", name));
        let api = &self.session.api;
        match step {
            Step::SetSubnets { balancer: name, subnets, source_nat } => {
                let mappings = subnets.iter().map(convert::subnet_mapping).collect();
                let request =
                    api.elb.set_subnets().load_balancer_arn(balancer(name)?).set_subnet_mappings(Some(mappings));
                let nat = source_nat.then_some(elb::EnablePrefixForIpv6SourceNatEnum::On);
                let request = request.set_enable_prefix_for_ipv6_source_nat(nat);
                api.change(Class::ElbChange, "SetSubnets", request.send()).await?;
            }
            Step::SetAddressType { balancer: name, address_type } => {
                let kind = elb::IpAddressType::from(address_type.as_str());
                let request = api.elb.set_ip_address_type().load_balancer_arn(balancer(name)?).ip_address_type(kind);
                api.change(Class::ElbChange, "SetIpAddressType", request.send()).await?;
            }
            Step::SetSecurityGroups { balancer: name, groups, private_link } => {
                let request = api.elb.set_security_groups().load_balancer_arn(balancer(name)?);
                let request = request.set_security_groups(Some(groups.clone()));
                let link = private_link.map(|on| if on { "on" } else { "off" });
                let request =
                    request.set_enforce_security_group_inbound_rules_on_private_link_traffic(link.map(Into::into));
                api.change(Class::ElbChange, "SetSecurityGroups", request.send()).await?;
            }
            Step::SetCapacity { balancer: name, units } => {
                let request = api.elb.modify_capacity_reservation().load_balancer_arn(balancer(name)?);
                let capacity = elb::MinimumLoadBalancerCapacity::builder().capacity_units(*units).build();
                let request = match units {
                    0 => request.reset_capacity_reservation(true),
                    _ => request.minimum_load_balancer_capacity(capacity),
                };
                api.change(Class::ElbChange, "ModifyCapacityReservation", request.send()).await?;
            }
            Step::SetBalancerAttributes { balancer: name, attributes } => {
                let one = |(key, value)| elb::LoadBalancerAttribute::builder().key(key).value(value).build();
                let request = api.elb.modify_load_balancer_attributes().load_balancer_arn(balancer(name)?);
                let request = request.set_attributes(Some(attributes.clone().into_iter().map(one).collect()));
                api.change(Class::ElbChange, "ModifyLoadBalancerAttributes", request.send()).await?;
            }
            Step::DeleteBalancer { arn } => {
                let request = api.elb.delete_load_balancer().load_balancer_arn(arn);
                api.change(Class::ElbChange, "DeleteLoadBalancer", request.send()).await?;
            }
            _ => {}
        }
        Ok(CreatedResource::default())
    }

    /// Changes a target group, or its targets.
    async fn change_target_group(
        &mut self,
        step: &Step,
        observed: &ObservedStack,
        refused: &mut RefusedTargets,
    ) -> Result<CreatedResource, CloudError> {
        let group = |name: &str| observed.target_group(name).ok_or_else(|| gone("target group", name));
        let api = &self.session.api;
        match step {
            Step::SetHealthCheck { group: name, health } => {
                let HealthCheck { protocol, port, path, codes, interval, timeout, healthy, unhealthy } = health;
                let request = api
                    .elb
                    .modify_target_group()
                    .target_group_arn(&group(name)?.arn)
                    .health_check_protocol(convert::probe(*protocol))
                    .health_check_port(port)
                    .set_health_check_path(path.clone())
                    .set_matcher(codes.as_ref().map(|codes| elb::Matcher::builder().http_code(codes).build()))
                    .health_check_interval_seconds(interval.cast_signed())
                    .set_health_check_timeout_seconds(timeout.map(u32::cast_signed))
                    .healthy_threshold_count(healthy.cast_signed())
                    .unhealthy_threshold_count(unhealthy.cast_signed());
                api.change(Class::ElbChange, "ModifyTargetGroup", request.send()).await?;
            }
            Step::SetGroupAttributes { group: name, attributes } => {
                let one = |(key, value)| elb::TargetGroupAttribute::builder().key(key).value(value).build();
                let request = api.elb.modify_target_group_attributes().target_group_arn(&group(name)?.arn);
                let request = request.set_attributes(Some(attributes.clone().into_iter().map(one).collect()));
                api.change(Class::ElbChange, "ModifyTargetGroupAttributes", request.send()).await?;
            }
            Step::Record { group, targets } => self.record(&target_records::name(group), targets).await?,
            Step::Register { group: name, targets } => {
                let group = group(name)?;
                self.register(&group.arn, group.target_type, targets, refused).await?;
            }
            Step::Deregister { group: name, targets } => {
                let group = group(name)?;
                self.deregister(&group.arn, group.target_type, targets).await?;
            }
            Step::DeleteTargetGroup { arn } => {
                let request = api.elb.delete_target_group().target_group_arn(arn);
                api.change(Class::ElbChange, "DeleteTargetGroup", request.send()).await?;
            }
            _ => {}
        }
        Ok(CreatedResource::default())
    }

    /// Creates, changes or deletes a listener.
    async fn change_listener(&self, step: &Step, observed: &ObservedStack) -> Result<CreatedResource, CloudError> {
        let balancer =
            |name: &str| observed.balancer(name).map(|one| one.arn.clone()).ok_or_else(|| gone("load balancer", name));
        let api = &self.session.api;
        match step {
            Step::CreateListener { balancer: name, listener, forwards } => {
                let (certificates, policy, alpn) = encryption(listener);
                let request = api
                    .elb
                    .create_listener()
                    .load_balancer_arn(balancer(name)?)
                    .port(listener.port.into())
                    .protocol(elb::ProtocolEnum::from(listener.protocol.as_str()))
                    .set_certificates(certificates)
                    .set_ssl_policy(policy)
                    .set_alpn_policy(alpn)
                    .default_actions(convert::forward(&observed.arns(forwards), listener.is_sticky()))
                    .set_tags(convert::elb_tags(&listener.tags));
                let response = api.change(Class::ElbChange, "CreateListener", request.send()).await?;
                let arn = response.listeners().first().and_then(|listener| listener.listener_arn());
                return Ok(CreatedResource { id: arn.unwrap_or_default().to_owned(), ..CreatedResource::default() });
            }
            Step::ModifyListener { arn, listener, forwards, .. } => {
                let (certificates, policy, alpn) = encryption(listener);
                // AWS refuses some protocols in a change, even the current one.
                let protocol = Some(elb::ProtocolEnum::from(listener.protocol.as_str()));
                let request = api
                    .elb
                    .modify_listener()
                    .listener_arn(arn)
                    .set_protocol(protocol.filter(|_| observed.protocol(arn) != Some(listener.protocol)))
                    .set_certificates(certificates)
                    .set_ssl_policy(policy)
                    .set_alpn_policy(alpn)
                    .default_actions(convert::forward(&observed.arns(forwards), listener.is_sticky()));
                api.change(Class::ElbChange, "ModifyListener", request.send()).await?;
            }
            Step::DeleteListener { arn } => {
                let request = api.elb.delete_listener().listener_arn(arn);
                api.change(Class::ElbChange, "DeleteListener", request.send()).await?;
            }
            _ => {}
        }
        Ok(CreatedResource::default())
    }

    /// Changes the attributes and the additional certificates of a listener.
    async fn change_parts_of_listener(
        &self,
        step: &Step,
        observed: &ObservedStack,
    ) -> Result<CreatedResource, CloudError> {
        let api = &self.session.api;
        match step {
            Step::SetListenerAttributes { arn, attributes } => {
                let one = |(key, value)| elb::ListenerAttribute::builder().key(key).value(value).build();
                let request = api.elb.modify_listener_attributes().listener_arn(arn);
                let request = request.set_attributes(Some(attributes.clone().into_iter().map(one).collect()));
                api.change(Class::ElbChange, "ModifyListenerAttributes", request.send()).await?;
            }
            Step::AddCertificates { balancer: name, port, certificates: arns } => {
                let listeners =
                    observed.balancer(name).map(|balancer| balancer.listeners.as_slice()).unwrap_or_default();
                let listener = listeners.iter().find(|listener| listener.port == *port);
                let arn = listener.map(|listener| &listener.arn).ok_or_else(|| gone("listener", &port.to_string()))?;
                let request = api.elb.add_listener_certificates().listener_arn(arn);
                let request = request.set_certificates(Some(arns.iter().map(|arn| certificate(arn)).collect()));
                api.change(Class::ElbChange, "AddListenerCertificates", request.send()).await?;
            }
            Step::RemoveCertificates { arn, certificates: arns } => {
                let request = api.elb.remove_listener_certificates().listener_arn(arn);
                let request = request.set_certificates(Some(arns.iter().map(|arn| certificate(arn)).collect()));
                api.change(Class::ElbChange, "RemoveListenerCertificates", request.send()).await?;
            }
            _ => {}
        }
        Ok(CreatedResource::default())
    }

    /// Changes tags of any resource.
    async fn change_tags(&self, step: &Step) -> Result<CreatedResource, CloudError> {
        let api = &self.session.api;
        match step {
            Step::AddTags { arn, tags } if arn.starts_with("sg-") => {
                let one = |(key, value)| aws_sdk_ec2::types::Tag::builder().key(key).value(value).build();
                let tags = tags.clone().into_iter().map(one).collect();
                let request = api.ec2.create_tags().resources(arn).set_tags(Some(tags));
                api.change(Class::Ec2Change, "CreateTags", request.send()).await?;
            }
            Step::AddTags { arn, tags } => {
                let request = api.elb.add_tags().resource_arns(arn).set_tags(convert::elb_tags(tags));
                api.change(Class::ElbChange, "AddTags", request.send()).await?;
            }
            Step::RemoveTags { arn, keys } if arn.starts_with("sg-") => {
                let one = |key: &String| aws_sdk_ec2::types::Tag::builder().key(key).build();
                let tags = keys.iter().map(one).collect();
                let request = api.ec2.delete_tags().resources(arn).set_tags(Some(tags));
                api.change(Class::Ec2Change, "DeleteTags", request.send()).await?;
            }
            Step::RemoveTags { arn, keys } => {
                let request =
                    api.elb.remove_tags().resource_arns(arn).set_tag_keys(Some(keys.iter().cloned().collect()));
                api.change(Class::ElbChange, "RemoveTags", request.send()).await?;
            }
            _ => {}
        }
        Ok(CreatedResource::default())
    }
}

/// Adds the Service's own security group to the error that the group has no room for further rules.
fn name_full_group(error: CloudError, group: &str, rules: usize) -> CloudError {
    if error.kind != ErrorKind::Quota {
        return error;
    }
    let message = format!(
        "security group {group} has no room for {rules} more rules, one for each port and source range, within the quota \
         {RULES_QUOTA}: {}",
        error.message
    );
    CloudError { message, ..error }
}
