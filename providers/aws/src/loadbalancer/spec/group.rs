//! Load balancers that this provider creates for several Services together.
//!
//! Services of one namespace share a load balancer if they name the same group. Services of several namespaces share
//! one only if the operator lists these namespaces in the cloud config: otherwise users of one namespace could take
//! ports of another namespace's load balancer.

use providers::LoadBalancerSpec;

use crate::loadbalancer::spec::annotation_reader::Reading;
use crate::loadbalancer::spec::settings::{Group, Policy};

/// Maximum length of a group's name.
const MAX_NAME_LENGTH: usize = 40;

/// Annotations that cannot be combined with a shared load balancer.
const UNSHARED: [&str; 9] = [
    "arn",
    "disable-nlb-sg",
    "enable-icmp-for-path-mtu-discovery",
    "endpoint-service",
    "inbound-sg-rules-on-private-link-traffic",
    "minimum-load-balancer-capacity",
    "name",
    "replace-classic",
    "security-groups",
];

/// Annotations about a load balancer itself. Only those of the Service for which the load balancer is created have an
/// effect.
const ABOUT_LOAD_BALANCER: [&str; 11] = [
    "access-log-enabled",
    "attributes",
    "cross-zone-load-balancing-enabled",
    "eip-allocations",
    "enable-prefix-for-ipv6-source-nat",
    "ip-address-type",
    "ipv6-addresses",
    "private-ipv4-addresses",
    "source-nat-ipv6-prefixes",
    "subnets",
    "access-log-s3-bucket-name",
];

/// Returns the shared load balancer that the Service names.
pub(super) fn read(spec: &LoadBalancerSpec, policy: &Policy, reading: &mut Reading<'_>) -> Option<Group> {
    let name = reading.text("group")?;
    let fits = name.len() <= MAX_NAME_LENGTH
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !fits {
        reading.refuse("group", name, &format!("use at most {MAX_NAME_LENGTH} lower case letters, digits and hyphens"));
    }
    for suffix in UNSHARED {
        if let Some(value) = reading.text(suffix).filter(|value| !["false", "off"].contains(value)) {
            let fix = "leave it out, or leave out the annotation for group: other Services share the load balancer";
            reading.refuse(suffix, value, fix);
        }
    }
    let namespace = &spec.id.namespace;
    let key = match policy.groups.get(name) {
        None => format!("{namespace}/{name}"),
        Some(namespaces) => {
            if !namespaces.contains(namespace) {
                let fix = format!(
                    "use another name, or have the operator add Namespace = {namespace} to [LoadBalancerGroup {name:?}] of the \
                     cloud config"
                );
                reading.refuse("group", name, &fix);
            }
            name.to_owned()
        }
    };
    let balancer_annotations = ABOUT_LOAD_BALANCER.iter().filter(|suffix| reading.text(suffix).is_some());
    Some(Group { key, balancer_annotations: balancer_annotations.map(|suffix| (*suffix).to_owned()).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;
    use crate::loadbalancer::spec::annotations;

    fn read(annotations: &[(&str, &str)]) -> Result<Option<Group>, String> {
        let groups = [
            ("public".to_owned(), ["shop".to_owned(), "default".to_owned()].into()),
            ("other".to_owned(), ["shop".to_owned()].into()),
        ];
        let policy = Policy { groups: groups.into(), ..Policy::default() };
        let (_, settings) = annotations::read(&samples::spec(annotations), &policy).map_err(|error| error.message)?;
        Ok(settings.expect("this provider serves the Service").group)
    }

    #[test]
    fn name_of_a_group_is_scoped_to_a_namespace_unless_the_cloud_config_lists_several() {
        let key = |name: &str| read(&[("group", name)]).unwrap().unwrap().key;
        assert_eq!(key("web"), "default/web");
        assert_eq!(key("public"), "public");
        assert_eq!(read(&[]).unwrap(), None);
        let error = read(&[("group", "other")]).unwrap_err();
        assert!(error.contains("add Namespace = default to [LoadBalancerGroup \"other\"]"), "{error}");
    }

    #[test]
    fn name_with_other_characters_or_too_many_is_refused() {
        for name in ["shop/web", "Web", "a b", &"a".repeat(41)] {
            let error = read(&[("group", name)]).expect_err(name);
            assert!(error.contains("lower case letters"), "{name}: {error}");
        }
    }

    #[test]
    fn annotations_that_need_an_unshared_load_balancer_are_refused() {
        for (suffix, value) in [("endpoint-service", "true"), ("name", "web"), ("security-groups", "sg-1")] {
            let error = read(&[("group", "web"), (suffix, value)]).expect_err(suffix);
            assert!(error.contains("leave out the annotation for group"), "{suffix}: {error}");
        }
        let group = read(&[("group", "web"), ("endpoint-service", "false"), ("subnets", "subnet-1")]).unwrap().unwrap();
        assert_eq!(group.balancer_annotations, ["subnets"]);
    }
}
