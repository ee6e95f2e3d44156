//! The instance of a Node: provider IDs in all their spellings, and names of Nodes without a provider ID.

use std::net::IpAddr;

use providers::{CloudError, InstanceRef};

/// The key by which a Node's instance is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// An EC2 instance by its id.
    Instance(String),
    /// A Fargate node by its address.
    Fargate(IpAddr),
    /// An EC2 instance by its private DNS name.
    Name(String),
}

/// Returns the key from a Node's provider ID, or from its name if it has no provider ID. Upstream: cloud-provider-aws,
/// MapToAWSInstanceID and InstanceID.
///
/// # Errors
/// `Invalid` for the id of another cloud and for a text that identifies no instance.
pub(crate) fn wanted(node: &InstanceRef) -> Result<Wanted, CloudError> {
    match node.provider_id.as_deref().filter(|id| !id.is_empty()) {
        Some(id) => of_provider_id(id),
        None if node.node.starts_with("i-") => {
            Ok(Wanted::Instance(node.node.split('.').next().unwrap_or_default().to_owned()))
        }
        None => fargate(&node.node).map_or_else(|| Ok(Wanted::Name(node.node.clone())), Ok),
    }
}

/// Parses `aws:///<zone>/<id>`, `aws:////<id>` and `<id>` alone.
pub(crate) fn of_provider_id(provider_id: &str) -> Result<Wanted, CloudError> {
    let fix = |why: &str| CloudError::invalid_field("spec.providerID", provider_id, why);
    let path = match provider_id.split_once("://") {
        Some(("aws", path)) => path,
        Some(_) => return Err(fix("this is another cloud's: leave the Node to that cloud's controllers")),
        None => provider_id,
    };
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if last.len() > 2 && last.starts_with("i-") {
        return Ok(Wanted::Instance(last.to_owned()));
    }
    fargate(last).ok_or_else(|| fix("use aws:///<zone>/<instance id>, as the kubelet or this controller sets it"))
}

/// Parses `fargate-10.0.0.1`, `fargate-2001:db8::1` and `fargate-ip-10-0-0-1...`.
fn fargate(name: &str) -> Option<Wanted> {
    let rest = name.strip_prefix("fargate-")?;
    if let Ok(address) = rest.parse() {
        return Some(Wanted::Fargate(address));
    }
    let dashed = rest.strip_prefix("ip-")?.split('.').next()?;
    dashed.replace('-', ".").parse().ok().map(Wanted::Fargate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_ids_are_parsed_in_all_spellings() {
        let instance = |id: &str| Some(Wanted::Instance(id.into()));
        let fargate = |ip: &str| Some(Wanted::Fargate(ip.parse().unwrap()));
        for (id, expected) in [
            ("aws:///us-east-1a/i-0123456789abcdef0", instance("i-0123456789abcdef0")),
            ("aws:////i-12345678", instance("i-12345678")),
            ("aws://us-east-1a/i-12345678", instance("i-12345678")),
            ("i-12345678", instance("i-12345678")),
            ("aws:///us-east-1c/6a2bdb4b44-3ce0/fargate-192.168.1.2", fargate("192.168.1.2")),
            ("aws:///us-east-1c/x/fargate-ip-192-168-1-2.us-east-1.compute.internal", fargate("192.168.1.2")),
            ("aws:///us-east-1c/x/fargate-2001:db8::1", fargate("2001:db8::1")),
            ("gce:///p/z/i-1", None),
            ("aws:///us-east-1a/vol-1", None),
            ("aws:///", None),
            ("i-", None),
        ] {
            assert_eq!(of_provider_id(id).ok(), expected, "{id}");
        }
        let error = of_provider_id("gce://x/y/z").unwrap_err();
        assert!(error.is_invalid() && error.message.contains("another cloud"), "{error}");
    }

    #[test]
    fn node_without_provider_id_is_found_by_name() {
        for (name, expected) in [
            ("i-12345678", Wanted::Instance("i-12345678".into())),
            ("i-12345678.eu-west-1.compute.internal", Wanted::Instance("i-12345678".into())),
            ("ip-10-0-0-1.ec2.internal", Wanted::Name("ip-10-0-0-1.ec2.internal".into())),
            ("fargate-ip-10-0-0-1.ec2.internal", Wanted::Fargate([10, 0, 0, 1].into())),
        ] {
            assert_eq!(wanted(&InstanceRef::named(name)).unwrap(), expected, "{name}");
        }
        let both = InstanceRef::named("i-1a").with_provider_id("aws:///z/i-2b");
        assert_eq!(wanted(&both).unwrap(), Wanted::Instance("i-2b".into()));
    }
}
