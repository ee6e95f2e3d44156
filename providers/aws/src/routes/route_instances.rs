//! Instances that routes lead to: their provider IDs, their network interfaces, and their source/destination check.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_sdk_ec2::types::{self, AttributeBooleanValue, InstanceStateName};
use futures::future::join_all;
use providers::{CloudError, ErrorKind, RouteSpec};

use crate::client::Class;
use crate::instances::id::{self, Wanted};
use crate::instances::{self, Found};
use crate::session::Session;

/// The fields of an instance that stay the same unless this process changes them. They are read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteInstance {
    pub id: String,
    /// The provider ID, in the spelling of the instance's Node once that is known.
    provider_id: String,
    /// The interface that routes lead to; `None`: the instance has only one interface, and routes lead to the instance.
    pub interface: Option<String>,
    /// The instance forwards packets: EC2's source/destination check is off.
    forwards: bool,
}

/// Known instances by their ids.
#[derive(Debug, Default)]
pub(crate) struct RouteInstances(Mutex<HashMap<String, RouteInstance>>);

impl RouteInstance {
    /// Converts an instance; `None` if it is being terminated.
    fn read(found: &types::Instance) -> Option<Self> {
        let state = found.state().and_then(types::InstanceState::name);
        if matches!(state, Some(InstanceStateName::Terminated | InstanceStateName::ShuttingDown)) {
            return None;
        }
        let id = found.instance_id()?.to_owned();
        let zone = found.placement().and_then(|placement| placement.availability_zone()).unwrap_or_default();
        let provider_id = format!("aws:///{zone}/{id}");
        let (interface, checks) = match found.network_interfaces() {
            [] | [_] => (None, found.source_dest_check()),
            several => {
                let index = |interface: &&types::InstanceNetworkInterface| {
                    interface.attachment().and_then(|attachment| attachment.device_index()).unwrap_or(i32::MAX)
                };
                let first = several.iter().min_by_key(index)?;
                (first.network_interface_id().map(String::from), first.source_dest_check())
            }
        };
        Some(Self { id, provider_id, interface, forwards: checks == Some(false) })
    }
}

impl RouteInstances {
    fn known(&self) -> MutexGuard<'_, HashMap<String, RouteInstance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops an instance from the cache: it has changed.
    pub(crate) fn forget(&self, id: &str) {
        self.known().remove(id);
    }

    /// Returns the provider IDs of instances by their ids, read in one batch if they are not cached; the provider IDs
    /// of instances that no longer exist have no zone. Drops all other instances from the cache.
    ///
    /// # Errors
    /// The first failed read: a partial list is never returned.
    pub(crate) async fn names(
        &self,
        session: &Session,
        ids: BTreeSet<String>,
    ) -> Result<HashMap<String, String>, CloudError> {
        let unknown: Vec<Wanted> = {
            let mut known = self.known();
            known.retain(|id, _| ids.contains(id));
            ids.iter().filter(|id| !known.contains_key(*id)).cloned().map(Wanted::Instance).collect()
        };
        for (_, found) in instances::find(session, unknown.iter().collect()).await {
            if let Some(instance) = RouteInstance::read(&found?) {
                self.known().insert(instance.id.clone(), instance);
            }
        }
        let known = self.known();
        let name = |id: String| {
            let name = known.get(&id).map_or_else(|| format!("aws:////{id}"), |instance| instance.provider_id.clone());
            (id, name)
        };
        Ok(ids.into_iter().map(name).collect())
    }

    /// Stores the provider IDs of known instances as their Nodes spell them. A listed route whose instance is spelled
    /// in another way would be set on each pass, although it exists.
    pub(crate) fn store_provider_ids<'a>(&self, specs: impl Iterator<Item = &'a RouteSpec>) {
        let mut known = self.known();
        for spec in specs {
            let (Ok(Wanted::Instance(id)), Some(spelled)) = (id::wanted(&spec.instance), &spec.instance.provider_id)
            else {
                continue;
            };
            if let Some(instance) = known.get_mut(&id) {
                instance.provider_id.clone_from(spelled);
            }
        }
    }

    /// Prepares the instances of routes that will be set, so that each exists and forwards packets. Returns the results
    /// in the order of the routes.
    pub(crate) async fn prepare(
        &self,
        session: &Session,
        specs: &[&RouteSpec],
    ) -> Vec<Result<RouteInstance, CloudError>> {
        let wanted: Vec<Result<Wanted, CloudError>> = specs.iter().map(|spec| id::wanted(&spec.instance)).collect();
        let unknown = {
            let known = self.known();
            let is_known = |wanted: &&Wanted| matches!(wanted, Wanted::Instance(id) if known.contains_key(id));
            wanted.iter().flatten().filter(|wanted| !is_known(wanted)).collect()
        };
        let found = instances::find(session, unknown).await;
        let instances: Vec<Result<RouteInstance, CloudError>> =
            wanted.iter().zip(specs).map(|(wanted, spec)| self.resolve(wanted, spec, &found)).collect();
        let checking: HashMap<&str, &RouteInstance> =
            instances.iter().flatten().filter(|instance| !instance.forwards).map(|one| (&*one.id, one)).collect();
        let results = join_all(checking.values().map(|instance| stop_checking(session, instance))).await;
        let failed: HashMap<String, CloudError> = checking
            .keys()
            .zip(results)
            .filter_map(|(id, result)| match result {
                Ok(()) => {
                    if let Some(instance) = self.known().get_mut(*id) {
                        instance.forwards = true;
                    }
                    None
                }
                Err(error) => Some(((*id).to_owned(), error)),
            })
            .collect();
        let verdict = |instance: RouteInstance| failed.get(&instance.id).cloned().map_or(Ok(instance), Err);
        instances.into_iter().map(|instance| instance.and_then(verdict)).collect()
    }

    /// Returns an instance that is cached, or was just found. The Node's spelling of the provider ID is kept.
    fn resolve(
        &self,
        wanted: &Result<Wanted, CloudError>,
        spec: &RouteSpec,
        found: &Found,
    ) -> Result<RouteInstance, CloudError> {
        let wanted = wanted.as_ref().map_err(Clone::clone)?;
        let mut known = self.known();
        let instance = match (wanted, found.get(wanted)) {
            (Wanted::Fargate(_), _) => {
                let fix = "leave Fargate's Nodes without pod networks: AWS gives their pods addresses itself";
                return Err(CloudError::invalid_field("spec.podCIDRs", spec.destination, fix));
            }
            (_, Some(Err(error))) => return Err(error.clone()),
            (_, Some(Ok(instance))) => RouteInstance::read(instance),
            (Wanted::Instance(id), None) => known.get(id).cloned(),
            (Wanted::Name(_), None) => None,
        };
        let not_found = || {
            let message = format!("the instance of Node {} does not exist", spec.instance.node);
            CloudError::new(ErrorKind::NotFound, "DescribeInstances", message)
        };
        let mut instance = instance.ok_or_else(not_found)?;
        if let Some(id) = &spec.instance.provider_id {
            instance.provider_id.clone_from(id);
        }
        known.insert(instance.id.clone(), instance.clone());
        Ok(instance)
    }
}

/// Lets an instance forward packets for its pods.
async fn stop_checking(session: &Session, instance: &RouteInstance) -> Result<(), CloudError> {
    let api = &session.api;
    let off = AttributeBooleanValue::builder().value(false).build();
    match &instance.interface {
        Some(interface) => {
            let request = api.ec2.modify_network_interface_attribute().network_interface_id(interface);
            let request = request.source_dest_check(off).send();
            api.change(Class::Ec2Change, "ModifyNetworkInterfaceAttribute", request).await.map(drop)
        }
        None => {
            let request = api.ec2.modify_instance_attribute().instance_id(&instance.id).source_dest_check(off).send();
            api.change(Class::Ec2Change, "ModifyInstanceAttribute", request).await.map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_ec2::types::{InstanceNetworkInterface, InstanceNetworkInterfaceAttachment, InstanceState, Placement};

    fn interface(id: &str, index: i32, checks: bool) -> InstanceNetworkInterface {
        InstanceNetworkInterface::builder()
            .network_interface_id(id)
            .source_dest_check(checks)
            .attachment(InstanceNetworkInterfaceAttachment::builder().device_index(index).build())
            .build()
    }

    #[test]
    fn spelling_of_a_node_is_kept_for_an_existing_route() {
        let instances = RouteInstances::default();
        let instance = types::Instance::builder().instance_id("i-0123456789abcdef0");
        let instance = instance.placement(Placement::builder().availability_zone("eu-west-1b").build()).build();
        let instance = RouteInstance::read(&instance).unwrap();
        instances.known().insert(instance.id.clone(), instance.clone());
        let spelled = "aws:////i-0123456789abcdef0";
        let node = providers::InstanceRef::named("a").with_provider_id(spelled);
        let destination = "10.244.0.0/24".parse().unwrap();
        let spec = RouteSpec { destination, instance: node, addresses: Vec::new(), name_hint: String::new() };
        instances.store_provider_ids(std::iter::once(&spec));
        assert_eq!(instances.known()[&instance.id].provider_id, spelled);
    }

    #[test]
    fn routes_lead_to_the_first_of_several_interfaces() {
        let instance = || {
            types::Instance::builder()
                .instance_id("i-1a")
                .placement(Placement::builder().availability_zone("eu-west-1b").build())
                .source_dest_check(true)
        };
        let read = |instance: types::builders::InstanceBuilder| {
            RouteInstance::read(&instance.build()).map(|instance| (instance.interface, instance.forwards))
        };
        assert_eq!(read(instance()), Some((None, false)));
        assert_eq!(
            read(instance().network_interfaces(interface("eni-0", 0, true)).source_dest_check(false)),
            Some((None, true))
        );
        let several = instance().network_interfaces(interface("eni-1", 1, true));
        let several = several.network_interfaces(interface("eni-0", 0, false));
        assert_eq!(read(several), Some((Some("eni-0".into()), true)));
        assert_eq!(RouteInstance::read(&instance().build()).unwrap().provider_id, "aws:///eu-west-1b/i-1a");
        for ended in [InstanceStateName::Terminated, InstanceStateName::ShuttingDown] {
            assert_eq!(read(instance().state(InstanceState::builder().name(ended).build())), None);
        }
    }
}
