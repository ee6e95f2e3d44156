//! Names and labels by which objects of the infrastructure cluster belong to a Service of the tenant cluster.

use std::collections::BTreeMap;

use providers::{LoadBalancerId, Owned};

use crate::objects::Meta;

/// Labels of upstream's Services.
pub(crate) const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
pub(crate) const NAME_LABEL: &str = "cluster.x-k8s.io/tenant-service-name";
pub(crate) const NAMESPACE_LABEL: &str = "cluster.x-k8s.io/tenant-service-namespace";

/// Label with the uid of the Service. Services that upstream has created lack it.
pub(crate) const UID_LABEL: &str = "kubewright/tenant-service-uid";

/// Length of the names of load balancers: `a` and most of the uid.
const NAME_LENGTH: usize = 32;

/// Returns the labels of everything that is created for a Service.
pub(crate) fn labels(id: &LoadBalancerId) -> BTreeMap<String, String> {
    [(CLUSTER_LABEL, &id.cluster), (NAMESPACE_LABEL, &id.namespace), (NAME_LABEL, &id.name), (UID_LABEL, &id.uid)]
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .into()
}

/// Returns the label selector of one Service's objects.
pub(crate) fn selector(id: &LoadBalancerId) -> String {
    format!("{CLUSTER_LABEL}={},{UID_LABEL}={}", id.cluster, id.uid)
}

/// Returns the label selector of the objects of all of a cluster's Services.
pub(crate) fn cluster_selector(cluster: &str) -> String {
    format!("{CLUSTER_LABEL}={cluster},{NAME_LABEL},{NAMESPACE_LABEL}")
}

/// Returns true if an object with the name of a load balancer belongs to its Service.
///
/// Objects that upstream has created have no label with the uid, but their name contains most of it.
pub(crate) fn belongs_to(meta: &Meta, id: &LoadBalancerId) -> bool {
    let mut expected = labels(id);
    if !meta.labels.contains_key(UID_LABEL) {
        expected.remove(UID_LABEL);
    }
    expected.iter().all(|(key, value)| meta.labels.get(key) == Some(value))
}

/// Returns the Service that an object belongs to; its uid is empty if upstream has created the object.
pub(crate) fn owner(meta: &Meta) -> Option<LoadBalancerId> {
    let label = |key: &str| meta.labels.get(key).cloned();
    let uid = label(UID_LABEL);
    if uid.is_none() && !is_name_of_upstream(&meta.name) {
        return None;
    }
    Some(LoadBalancerId {
        cluster: label(CLUSTER_LABEL)?,
        namespace: label(NAMESPACE_LABEL)?,
        name: label(NAME_LABEL)?,
        uid: uid.unwrap_or_default(),
    })
}

fn is_name_of_upstream(name: &str) -> bool {
    let hexadecimal = |c: char| c.is_ascii_hexdigit();
    name.len() == NAME_LENGTH && name.strip_prefix('a').is_some_and(|uid| uid.chars().all(hexadecimal))
}

/// Returns true if listed objects may belong to a Service: for those without uid, the name decides.
pub(crate) fn may_be_owned_by(owned: &Owned, service: &LoadBalancerId) -> bool {
    if !owned.id.uid.is_empty() {
        return owned.id == *service;
    }
    let anonymous = LoadBalancerId { uid: String::new(), ..service.clone() };
    owned.id == anonymous && owned.resources.contains(&resource("Service", &service.default_name()))
}

/// Returns the kind and name by which an operator finds an object.
pub(crate) fn resource(kind: &str, name: &str) -> String {
    format!("{kind} {name}")
}

#[cfg(test)]
mod tests {
    use providers::Phase;

    use super::*;

    fn id(uid: &str) -> LoadBalancerId {
        LoadBalancerId { cluster: "c".into(), namespace: "ns".into(), name: "web".into(), uid: uid.into() }
    }

    fn with(labels: BTreeMap<String, String>, name: &str) -> Meta {
        Meta { name: name.into(), labels, ..Meta::default() }
    }

    #[test]
    fn object_belongs_to_the_service_in_its_labels() {
        let id = id("01234567-89ab-cdef-0123-456789abcdef");
        let own = labels(&id);
        assert!(belongs_to(&with(own.clone(), &id.default_name()), &id));
        assert_eq!(owner(&with(own.clone(), "any")), Some(id.clone()));
        let mut upstreams = own.clone();
        upstreams.remove(UID_LABEL);
        assert!(belongs_to(&with(upstreams.clone(), &id.default_name()), &id));
        let anonymous = owner(&with(upstreams.clone(), &id.default_name())).expect("upstream's");
        assert_eq!(anonymous.uid, "");
        assert_eq!(owner(&with(upstreams, "made-by-hand")), None);
        for key in [CLUSTER_LABEL, NAMESPACE_LABEL, NAME_LABEL, UID_LABEL] {
            let mut foreign = own.clone();
            foreign.insert(key.into(), "other".into());
            assert!(!belongs_to(&with(foreign, &id.default_name()), &id), "{key}");
        }
        assert!(!belongs_to(&with(BTreeMap::new(), &id.default_name()), &id), "another client's Service");
    }

    #[test]
    fn anonymous_object_may_belong_to_the_service_in_its_name() {
        let service = id("01234567-89ab-cdef-0123-456789abcdef");
        let owned = |uid: &str, name: &str| Owned {
            id: id(uid),
            phase: Phase::Active,
            resources: vec![resource("Service", name)],
            certain: false,
        };
        assert!(may_be_owned_by(&owned(&service.uid, "any"), &service));
        assert!(may_be_owned_by(&owned("", &service.default_name()), &service));
        assert!(!may_be_owned_by(&owned("", &id("ffffffff").default_name()), &service));
        assert!(!may_be_owned_by(&owned("ffffffff", &service.default_name()), &service));
    }
}
