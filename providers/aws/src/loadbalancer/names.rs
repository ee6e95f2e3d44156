//! Names and tags of created resources. The names of load balancers and of their own security groups equal upstream's,
//! so that each manager finds the other's resources; those of target groups and of shared resources do not.

use providers::LoadBalancerId;
use ring::digest::{Context, SHA256};

use crate::loadbalancer::types::{Protocol, Scheme, Tags, TargetType};
use crate::tags::ClusterTags;

/// The Service, as `namespace/name`. Upstream: cloud-provider-aws, TagNameKubernetesService.
pub(crate) const SERVICE: &str = "kubernetes.io/service-name";
/// The Service's uid. Only this provider writes it. It distinguishes a Service's resources from those of an earlier
/// Service with the same name.
pub(crate) const UID: &str = "kubernetes.io/service-uid";
/// The cluster's name. Upstream: AWS Load Balancer Controller, TagKeyK8sCluster.
pub(crate) const CONTROLLER_CLUSTER: &str = "elbv2.k8s.aws/cluster";
/// The purpose of a resource of the whole cluster, such as the controller's backend security group, which is never used
/// or changed here. Upstream: AWS Load Balancer Controller, TagKeyResource.
pub(crate) const CONTROLLER_RESOURCE: &str = "elbv2.k8s.aws/resource";
/// The cluster whose load balancers share a security group; only this provider writes the tag.
pub(crate) const BACKEND: &str = "kubernetes.io/load-balancer-backend";
/// The load balancer may have an endpoint service; only this provider writes the tag.
pub(crate) const ENDPOINT_SERVICE: &str = "kubernetes.io/endpoint-service";
/// The group of Services that share a load balancer; only this provider writes the tag.
pub(crate) const GROUP: &str = "kubernetes.io/load-balancer-group";
/// The uid of the Service whose annotations about the load balancer of a group take effect.
pub(crate) const GROUP_LEAD: &str = "kubernetes.io/load-balancer-group-lead";
/// Beginning of the description of a rule in the security group of a shared load balancer, followed by the uid of the
/// Service that the rule is for.
const GROUP_RULE: &str = "kubernetes.io/service-uid=";
/// Beginning of the name of the security group of a Classic Load Balancer, followed by the load balancer's name.
const CLASSIC_GROUP: &str = "k8s-elb-";
/// The Services that may use a resource that a user made; only users write the tag.
pub(crate) const ALLOWED: &str = "kubernetes.io/allowed-services";
/// The Service, as `namespace/name`. Upstream: AWS Load Balancer Controller, tracking provider.
pub(crate) const STACK: &str = "service.k8s.aws/stack";
/// The identifier of a resource within the Service's stack.
pub(crate) const RESOURCE: &str = "service.k8s.aws/resource";

/// The labels that the nodes of a target group must have, as `key=value` with blanks between them; only this provider
/// writes the tag. While a Service is invalid, the tag decides which new nodes become targets.
pub(crate) const NODE_LABELS: &str = "kubernetes.io/target-node-labels";
/// The value of [`NODE_LABELS`] for labels that do not fit into a tag.
const UNKNOWN_LABELS: &str = "-";
/// Maximum length of a tag's value.
const MAX_TAG: usize = 256;

/// The upstream controller responsible for a Service. Names, tags and defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// A Service of cloud-provider-aws.
    CloudProvider,
    /// A Service of the Load Balancer Controller.
    Controller,
}

fn hash(parts: &[&str]) -> String {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part.as_bytes()));
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plain(text: &str, max: usize) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(max).collect()
}

fn hashed(id: &LoadBalancerId, name: &str, parts: &[&str]) -> String {
    format!("k8s-{}-{}-{}", plain(&id.namespace, 8), plain(name, 8), &hash(parts)[..10])
}

/// Returns a load balancer's name. Upstream: DefaultLoadBalancerName, and buildLoadBalancerName.
pub(crate) fn balancer(flavour: Flavour, id: &LoadBalancerId, scheme: Scheme) -> String {
    match flavour {
        Flavour::CloudProvider => id.default_name(),
        Flavour::Controller => hashed(id, &id.name, &[&id.cluster, &id.uid, scheme.as_str()]),
    }
}

/// Returns true if a load balancer's name was made from the Service's uid: no load balancer of a Service with another
/// uid has that name.
pub(crate) fn is_generated(id: &LoadBalancerId, name: &str) -> bool {
    let schemes = [Scheme::Internal, Scheme::InternetFacing];
    name == id.default_name() || schemes.iter().any(|scheme| name == balancer(Flavour::Controller, id, *scheme))
}

/// Returns the name by which rules in nodes' groups identify a Service's load balancer: the load balancer's own name if
/// that was generated.
///
/// If the user chose the load balancer's name, the generated name may belong to the load balancer of a copy of this
/// cluster, whose Services have the same uids. Therefore the rules get a name that is derived from the cluster's id,
/// too. Without such an id, they get the generated name.
pub(crate) fn rule_name(cluster: &ClusterTags, id: &LoadBalancerId, balancer: &str) -> String {
    match cluster.id.is_empty() {
        _ if is_generated(id, balancer) => balancer.to_owned(),
        true => id.default_name(),
        false => chosen_rule_name(cluster, id),
    }
}

fn chosen_rule_name(cluster: &ClusterTags, id: &LoadBalancerId) -> String {
    hashed(id, &id.name, &["rules", &cluster.id, &id.uid])
}

/// Returns the names that rules of a Service's load balancer may have. Rules of a load balancer whose name a user chose
/// may have the first of these names: earlier versions used it, and this one does for a cluster without an id.
pub(crate) fn rule_names(cluster: &ClusterTags, id: &LoadBalancerId) -> [String; 4] {
    [
        balancer(Flavour::CloudProvider, id, Scheme::Internal),
        balancer(Flavour::Controller, id, Scheme::Internal),
        balancer(Flavour::Controller, id, Scheme::InternetFacing),
        chosen_rule_name(cluster, id),
    ]
}

/// Returns a target group's name. Two names differ if ELB could not change one group into the other; if the load
/// balancers differ, because a group serves only one load balancer; and, for instances, if the node ports differ, so
/// that a listener moves to the new port once the targets behind it are healthy.
///
/// Upstream's names do not depend on the load balancer, but on the protocol and interval of health checks, which ELB
/// can change. Target groups with such names are found by the listeners that use them.
pub(crate) fn target_group(
    id: &LoadBalancerId,
    balancer: &str,
    (port, node_port): (u16, Option<u16>),
    target_type: TargetType,
    protocol: Protocol,
    ipv6: bool,
) -> String {
    group(id, &id.name, &[balancer, &ports(port, node_port)], target_type, protocol, ipv6)
}

/// Returns the name of a target group for a port of another Service; names differ in the same cases as the names of the
/// Service's own groups.
pub(crate) fn backend(
    id: &LoadBalancerId,
    balancer: &str,
    (service, port, node_port): (&str, u16, Option<u16>),
    target_type: TargetType,
    protocol: Protocol,
    ipv6: bool,
) -> String {
    let behind = format!("{service}:{}", ports(port, node_port));
    group(id, service, &[balancer, &behind], target_type, protocol, ipv6)
}

fn ports(port: u16, node_port: Option<u16>) -> String {
    node_port.map_or_else(|| port.to_string(), |node_port| format!("{port}:{node_port}"))
}

/// Returns the name of a target group from its Service, port and kind.
fn group(
    id: &LoadBalancerId,
    name: &str,
    [balancer, behind]: &[&str; 2],
    target_type: TargetType,
    protocol: Protocol,
    ipv6: bool,
) -> String {
    let family = if ipv6 { "ipv6" } else { "ipv4" };
    hashed(id, name, &[&id.cluster, &id.uid, balancer, behind, target_type.as_str(), protocol.as_str(), family])
}

/// Returns true if this name may have been generated for a resource of this Service, or of an earlier one with the same
/// name.
pub(crate) fn may_be_generated(id: &LoadBalancerId, name: &str) -> bool {
    name == id.default_name() || is_hashed(&id.namespace, &id.name, name)
}

/// Returns true if a name consists of a Service's namespace and name, and of a hash.
pub(crate) fn is_hashed(namespace: &str, service: &str, name: &str) -> bool {
    name.starts_with(&format!("k8s-{}-{}-", plain(namespace, 8), plain(service, 8)))
}

/// Returns the identifier, within a Service's stack, of the target group of its own or another Service's port.
pub(crate) fn resource_id(namespace: &str, service: &str, port: u16) -> String {
    format!("{namespace}/{service}:{port}")
}

/// Returns the identifier of a target group within a Service's stack, if it was made for another Service.
pub(crate) fn resource_id_of_another<'a>(tags: &'a Tags, id: &LoadBalancerId) -> Option<&'a str> {
    let resource = tags.get(RESOURCE)?;
    let (service, _) = resource.rsplit_once(':')?;
    (service != id.to_string()).then_some(resource)
}

/// Returns the name of a Service's own security group, the same as in cloud-provider-aws and in the AWS Load Balancer
/// Controller.
pub(crate) fn security_group(id: &LoadBalancerId) -> String {
    hashed(id, &id.name, &[&id.cluster, &id.name, &id.namespace, &id.uid])
}

/// Returns true if this may be the name of a Service's own security group. Without the uid, only the beginning of the
/// name is known.
pub(crate) fn may_be_security_group(id: &LoadBalancerId, name: &str) -> bool {
    if id.uid.is_empty() { is_hashed(&id.namespace, &id.name, name) } else { name == security_group(id) }
}

/// Returns the name of the load balancer that a group of Services shares, and of its security group.
pub(crate) fn group_balancer(cluster_id: &str, key: &str, scheme: Scheme) -> String {
    let name = key.rsplit('/').next().unwrap_or_default();
    format!("k8s-group-{}-{}", plain(name, 8), &hash(&[cluster_id, key, scheme.as_str()])[..10])
}

/// Returns the tags of the load balancer that a group of Services shares, and of its security group.
pub(crate) fn group_tags(cluster: &ClusterTags, key: &str) -> Tags {
    let mut tags: Tags = cluster.owned().into_iter().collect();
    tags.insert(GROUP.into(), key.to_owned());
    tags
}

/// Returns the description of a Service's rules in the security group of a load balancer that Services share.
pub(crate) fn group_rule(id: &LoadBalancerId) -> String {
    format!("{GROUP_RULE}{}", id.uid)
}

/// Returns true if a rule in the security group of a load balancer that Services share is for this Service.
pub(crate) fn is_group_rule(id: &LoadBalancerId, description: &str) -> bool {
    description.strip_prefix(GROUP_RULE) == Some(&id.uid)
}

/// Returns the name of the security group that all load balancers of a cluster share.
///
/// It differs from the name of the Load Balancer Controller's group (`k8s-traffic-`): each program would delete the
/// other's group once none of its own load balancers needs the group.
pub(crate) fn backend_group(cluster: &str) -> String {
    format!("k8s-nlb-backend-{}-{}", plain(cluster, 228), &hash(&[cluster])[..10])
}

/// Returns the name of the security group that cloud-provider-aws makes for a Classic Load Balancer.
pub(crate) fn classic_group(id: &LoadBalancerId) -> String {
    classic_group_of(&id.default_name())
}

/// Returns the name of the security group of the Classic Load Balancer with this name.
pub(crate) fn classic_group_of(balancer: &str) -> String {
    format!("{CLASSIC_GROUP}{balancer}")
}

/// Returns true if a security group has the name that cloud-provider-aws makes for a Classic Load Balancer, from the
/// uid of any Service.
pub(crate) fn is_classic_group(name: &str) -> bool {
    let uid = name.strip_prefix(CLASSIC_GROUP).and_then(|balancer| balancer.strip_prefix('a'));
    uid.is_some_and(|uid| uid.len() == 31 && uid.chars().all(|c| c.is_ascii_hexdigit()))
}

/// Returns the tags of one of a Service's resources; `resource` is the part's name in the Service's stack.
pub(crate) fn tags(cluster: &ClusterTags, flavour: Flavour, id: &LoadBalancerId, resource: &str) -> Tags {
    let mut tags: Tags = if cluster.id.is_empty() { Tags::new() } else { cluster.owned().into_iter().collect() };
    tags.insert(SERVICE.into(), id.to_string());
    tags.insert(UID.into(), id.uid.clone());
    if flavour == Flavour::Controller {
        tags.insert(CONTROLLER_CLUSTER.into(), id.cluster.clone());
        tags.insert(STACK.into(), id.to_string());
        tags.insert(RESOURCE.into(), resource.to_owned());
    }
    tags
}

/// Returns the value of [`NODE_LABELS`].
pub(crate) fn node_labels_tag(labels: &[(String, String)]) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let value = pairs.join(" ");
    let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    let fits = value.len() <= MAX_TAG && labels.iter().all(|(key, value)| is_plain(key) && is_plain(value));
    if fits { value } else { UNKNOWN_LABELS.to_owned() }
}

/// Returns the labels that the nodes of a target group had to have when this provider last set its tags; `None`:
/// unknown.
pub(crate) fn node_labels(tags: &Tags) -> Option<Vec<(String, String)>> {
    tags.get(UID)?;
    let value = tags.get(NODE_LABELS).map(String::as_str).unwrap_or_default();
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    value.split_whitespace().map(pair).collect()
}

/// Returns the tags of the security group that all load balancers of a cluster share.
pub(crate) fn backend_tags(cluster: &ClusterTags, name: &str) -> Tags {
    let mut tags: Tags = if cluster.id.is_empty() { Tags::new() } else { cluster.owned().into_iter().collect() };
    tags.insert(BACKEND.into(), name.to_owned());
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> LoadBalancerId {
        LoadBalancerId {
            cluster: "cluster-1".into(),
            namespace: "default-space".into(),
            name: "my-web-service".into(),
            uid: "01234567-89ab-cdef-0123-456789abcdef".into(),
        }
    }

    #[test]
    fn names_equal_upstreams_within_the_length_limits() {
        let id = id();
        assert_eq!(balancer(Flavour::CloudProvider, &id, Scheme::Internal), "a0123456789abcdef0123456789abcde");
        let named = balancer(Flavour::Controller, &id, Scheme::Internal);
        assert!(named.starts_with("k8s-defaults-mywebser-") && named.len() == 32, "{named}");
        assert_ne!(named, balancer(Flavour::Controller, &id, Scheme::InternetFacing));
        assert_eq!(backend_group("cluster-1"), format!("k8s-nlb-backend-cluster1-{}", &hash(&["cluster-1"])[..10]));
        assert!(backend_group(&"c".repeat(500)).len() <= 255);
        assert_eq!(hash(&["a", "bc"]), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn security_group_of_a_service_is_recognized_by_its_uid_or_by_its_prefix() {
        let own = security_group(&id());
        let nameless = LoadBalancerId { uid: String::new(), ..id() };
        let another = LoadBalancerId { uid: "another".into(), ..id() };
        assert!(may_be_security_group(&id(), &own) && may_be_security_group(&nameless, &own));
        assert!(!may_be_security_group(&another, &own) && may_be_security_group(&nameless, &security_group(&another)));
        let other_name = LoadBalancerId { name: "api".into(), ..nameless };
        assert!(!may_be_security_group(&other_name, &own));
        assert!(is_classic_group(&classic_group(&id())));
        for name in ["k8s-elb-nodes", "k8s-elb-a0123", "nodes", &own] {
            assert!(!is_classic_group(name), "{name}");
        }
    }

    #[test]
    fn labels_of_nodes_are_read_from_the_tag_of_a_target_group() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let read = |tag: Option<&str>| {
            let mut tags = Tags::from([(UID.to_owned(), "u".to_owned())]);
            tags.extend(tag.map(|value| (NODE_LABELS.to_owned(), value.to_owned())));
            node_labels(&tags)
        };
        for labels in [pairs(&[]), pairs(&[("role", "ingress"), ("example.com/any", "")])] {
            assert_eq!(read(Some(&node_labels_tag(&labels))), Some(labels));
        }
        assert_eq!(read(None), Some(Vec::new()), "no label was required");
        assert_eq!(node_labels(&Tags::new()), None, "cloud-provider-aws made the group");
        let long = "x".repeat(300);
        for labels in [pairs(&[("role", &long)]), pairs(&[("role", "a b")]), pairs(&[("role", "a,b")])] {
            assert_eq!(read(Some(&node_labels_tag(&labels))), None, "{labels:?} cannot be a tag");
        }
    }

    #[test]
    fn target_group_names_differ_when_a_group_cannot_be_changed() {
        let name =
            |balancer, port, kind, protocol, ipv6| target_group(&id(), balancer, (port, None), kind, protocol, ipv6);
        let base = name("a", 80, TargetType::Instance, Protocol::Tcp, false);
        assert!(base.len() <= 32);
        for other in [
            name("b", 80, TargetType::Instance, Protocol::Tcp, false),
            name("a", 81, TargetType::Instance, Protocol::Tcp, false),
            name("a", 80, TargetType::Ip, Protocol::Tcp, false),
            name("a", 80, TargetType::Instance, Protocol::Tls, false),
            name("a", 80, TargetType::Instance, Protocol::Tcp, true),
            backend(&id(), "a", ("my-web-service", 80, None), TargetType::Instance, Protocol::Tcp, false),
        ] {
            assert_ne!(base, other);
        }
        let name = |service, port, node_port| {
            backend(&id(), "a", (service, port, node_port), TargetType::Instance, Protocol::Tcp, false)
        };
        let green = name("green-service", 80, None);
        assert!(green.starts_with("k8s-defaults-greenser-") && green.len() == 32, "{green}");
        let others = [("green-service", 81, None), ("green-server", 80, None), ("green-service", 80, Some(31_000))];
        assert!(others.into_iter().all(|(service, port, node_port)| name(service, port, node_port) != green));
    }

    #[test]
    fn service_groups_have_a_load_balancer_for_each_scheme_and_key() {
        let name = |key: &str, scheme| group_balancer("c", key, scheme);
        let web = name("default/web", Scheme::Internal);
        assert!(
            web.starts_with("k8s-group-web-") && name("shop/a-very-long-name", Scheme::Internal).len() <= 32,
            "{web}"
        );
        for other in [
            name("default/web", Scheme::InternetFacing),
            name("shop/web", Scheme::Internal),
            name("web", Scheme::Internal),
            group_balancer("d", "default/web", Scheme::Internal),
        ] {
            assert_ne!(web, other);
        }
        let own = id();
        let another = LoadBalancerId { uid: "other".into(), ..id() };
        assert!(is_group_rule(&own, &group_rule(&own)) && !is_group_rule(&another, &group_rule(&own)));
    }

    #[test]
    fn target_groups_of_other_services_are_identified_by_their_tag() {
        let of = |part: &str| {
            let tags = Tags::from([(RESOURCE.to_owned(), part.to_owned())]);
            resource_id_of_another(&tags, &id()).map(str::to_owned)
        };
        assert_eq!(of(&resource_id("default-space", "green", 80)).as_deref(), Some("default-space/green:80"));
        assert_eq!(of(&resource_id("default-space", "my-web-service", 80)), None);
        assert_eq!(of("LoadBalancer"), None);
        assert_eq!(resource_id_of_another(&Tags::new(), &id()), None);
    }
}
