//! Virtual machines of the namespace: read one by one or listed, and searched by name or host name.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _};
use providers::{CloudError, ErrorKind};

use crate::infra::{Infra, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES};
use crate::objects::{VirtualMachine, VirtualMachineInstance};

/// Maximum number of virtual machines that are read one by one instead of by a list of the whole namespace.
const MAX_SINGLE_READS: usize = 8;

/// A request for the virtual machine of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    /// By its name: from the provider ID, or from the label `node.kubernetes.io/instance-id`.
    Name(String),
    /// By the node's name, which is the virtual machine's name or host name.
    Node(String),
}

impl Key {
    /// Returns the name that is searched.
    pub fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::Node(name) => name,
        }
    }
}

/// The result of a search.
#[derive(Debug)]
pub(crate) enum SearchResult<'a> {
    /// The node's virtual machine has a VirtualMachineInstance.
    Instance(&'a VirtualMachineInstance),
    /// The node's virtual machine has no VirtualMachineInstance: it is stopped or is restarting.
    Stopped,
    /// Several virtual machines have the host name.
    Ambiguous(usize),
    /// There is no virtual machine.
    Absent,
}

/// The virtual machines that were read.
#[derive(Debug, Default)]
pub(crate) struct VirtualMachines {
    instances: BTreeMap<String, VirtualMachineInstance>,
    machines: BTreeMap<String, VirtualMachine>,
    /// The reason why empty lists do not prove that a virtual machine does not exist.
    unproven: Option<CloudError>,
}

impl VirtualMachines {
    /// Reads the virtual machines of these keys: one by one, if these are few and all of them are found. Otherwise
    /// lists all in the namespace, which proves that a missing one does not exist.
    pub async fn read(infra: &Infra, keys: &[&Key]) -> Result<Self, CloudError> {
        let names: BTreeSet<&str> = keys.iter().map(|key| key.name()).collect();
        if names.len() <= MAX_SINGLE_READS {
            let instances = read_each(infra, &names).await?;
            if instances.len() == names.len() {
                return Ok(Self { instances, ..Self::default() });
            }
        }
        // Instances first: a virtual machine that is created between the two lists is in the second one, and does not
        // count as absent.
        let instances: Vec<VirtualMachineInstance> =
            infra.list("ListVirtualMachineInstances", VIRTUAL_MACHINE_INSTANCES, "").await?;
        let machines: Vec<VirtualMachine> = infra.list("ListVirtualMachines", VIRTUAL_MACHINES, "").await?;
        let unproven = if instances.is_empty() && machines.is_empty() { namespace_problem(infra).await } else { None };
        Ok(Self {
            instances: by_name(instances, |instance| &instance.metadata.name),
            machines: by_name(machines, |machine| &machine.metadata.name),
            unproven,
        })
    }

    /// Returns the virtual machine of a node, or `Err` if it is not found but may exist.
    pub fn search(&self, key: &Key) -> Result<SearchResult<'_>, CloudError> {
        let found = self.find(key);
        match (&found, &self.unproven) {
            (SearchResult::Absent, Some(problem)) => Err(problem.clone()),
            _ => Ok(found),
        }
    }

    fn find(&self, key: &Key) -> SearchResult<'_> {
        if let Some(instance) = self.instances.get(key.name()) {
            return SearchResult::Instance(instance);
        }
        if self.machines.contains_key(key.name()) {
            return SearchResult::Stopped;
        }
        let Key::Node(hostname) = key else { return SearchResult::Absent };
        let instances: Vec<_> = self.instances.values().filter(|found| found.spec.hostname == *hostname).collect();
        match instances[..] {
            [one] => return SearchResult::Instance(one),
            [] => {}
            _ => return SearchResult::Ambiguous(instances.len()),
        }
        match self.machines.values().filter(|machine| machine.spec.template.spec.hostname == *hostname).count() {
            0 => SearchResult::Absent,
            1 => SearchResult::Stopped,
            count => SearchResult::Ambiguous(count),
        }
    }
}

/// Returns the reason why an empty namespace may be the wrong one: lists of a namespace that does not exist are empty,
/// too, and a misspelled namespace in the configuration would delete all Nodes.
async fn namespace_problem(infra: &Infra) -> Option<CloudError> {
    match infra.read_namespace().await {
        Ok(Some(_)) => None,
        Ok(None) => {
            let namespace = infra.namespace().await.unwrap_or_default();
            let message = format!("namespace {namespace:?} does not exist in the infrastructure cluster");
            Some(CloudError::new(ErrorKind::Transient, "GetNamespace", message))
        }
        Err(error) => Some(CloudError {
            message: format!(
                "the namespace has no virtual machines, and may not exist: {}; allow this process to get the namespace",
                error.message
            ),
            ..error
        }),
    }
}

/// Reads existing instances by their names.
pub(crate) async fn read_instances(
    infra: &Infra,
    names: &BTreeSet<&str>,
) -> Result<BTreeMap<String, VirtualMachineInstance>, CloudError> {
    if names.len() <= MAX_SINGLE_READS {
        return read_each(infra, names).await;
    }
    let all: Vec<VirtualMachineInstance> =
        infra.list("ListVirtualMachineInstances", VIRTUAL_MACHINE_INSTANCES, "").await?;
    let wanted = all.into_iter().filter(|instance| names.contains(instance.metadata.name.as_str()));
    Ok(by_name(wanted.collect(), |instance| &instance.metadata.name))
}

async fn read_each(
    infra: &Infra,
    names: &BTreeSet<&str>,
) -> Result<BTreeMap<String, VirtualMachineInstance>, CloudError> {
    let reads: Vec<_> = names
        .iter()
        .map(|name| infra.get::<VirtualMachineInstance>("GetVirtualMachineInstance", VIRTUAL_MACHINE_INSTANCES, name))
        .collect();
    let read: Vec<_> = futures::stream::iter(reads).buffered(MAX_SINGLE_READS).try_collect().await?;
    Ok(by_name(read.into_iter().flatten().collect(), |instance| &instance.metadata.name))
}

fn by_name<T>(all: Vec<T>, name: impl Fn(&T) -> &String) -> BTreeMap<String, T> {
    all.into_iter().map(|one| (name(&one).clone(), one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Meta, VirtualMachineInstanceSpec, VirtualMachineSpec, VirtualMachineTemplate};

    fn meta(name: &str) -> Meta {
        Meta { name: name.into(), ..Meta::default() }
    }

    fn machines(instances: &[(&str, &str)], stopped: &[(&str, &str)]) -> VirtualMachines {
        let spec = |hostname: &str| VirtualMachineInstanceSpec { hostname: hostname.into() };
        let instance = |(name, hostname): &(&str, &str)| VirtualMachineInstance {
            metadata: meta(name),
            spec: spec(hostname),
            ..VirtualMachineInstance::default()
        };
        let machine = |(name, hostname): &(&str, &str)| VirtualMachine {
            metadata: meta(name),
            spec: VirtualMachineSpec { template: VirtualMachineTemplate { spec: spec(hostname) } },
        };
        VirtualMachines {
            instances: by_name(instances.iter().map(instance).collect(), |one| &one.metadata.name),
            machines: by_name(stopped.iter().map(machine).collect(), |one| &one.metadata.name),
            unproven: None,
        }
    }

    #[test]
    fn node_key_matches_host_names_and_name_key_does_not() {
        let all = machines(&[("a", ""), ("b", "host"), ("c", "twin"), ("d", "twin")], &[("e", "off"), ("a", "")]);
        let by = |key: Key| match all.search(&key).expect("proven") {
            SearchResult::Instance(instance) => instance.metadata.name.clone(),
            SearchResult::Stopped => "stopped".into(),
            SearchResult::Ambiguous(count) => count.to_string(),
            SearchResult::Absent => "absent".into(),
        };
        for (name, as_name, as_node) in [
            ("a", "a", "a"),
            ("host", "absent", "b"),
            ("twin", "absent", "2"),
            ("e", "stopped", "stopped"),
            ("off", "absent", "stopped"),
            ("nothing", "absent", "absent"),
            ("", "absent", "2"),
        ] {
            assert_eq!(by(Key::Name(name.into())), as_name, "{name}");
            if !name.is_empty() {
                assert_eq!(by(Key::Node(name.into())), as_node, "{name}");
            }
        }
    }

    #[test]
    fn machine_is_not_absent_while_the_namespace_may_not_exist() {
        let denied = CloudError::new(ErrorKind::Denied, "GetNamespace", "forbidden");
        let unproven = VirtualMachines { unproven: Some(denied.clone()), ..VirtualMachines::default() };
        assert_eq!(unproven.search(&Key::Name("a".into())).expect_err("unproven"), denied);
    }
}
