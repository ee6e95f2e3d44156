//! The desired stack: subnets, names, tags and targets, and the kept resources of cloud-provider-aws and of the AWS
//! Load Balancer Controller.

use std::collections::BTreeSet;
use std::sync::Arc;

use providers::{EndpointTarget, Targets};

use super::account::{Account, settings};
use crate::loadbalancer::model::build::targets;
use crate::loadbalancer::model::subnets::choose;
use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::observed::network::instance_id;
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::samples::{id, network, nodes, spec};
use crate::loadbalancer::spec::settings::Settings;
use crate::loadbalancer::types::{Mapping, Scheme, Tags};
use crate::tags::ClusterTags;

fn chosen(settings: &Settings, scheme: Scheme, network: &Network, current: &[Mapping]) -> Result<Vec<String>, String> {
    let cluster = ClusterTags::new("c", false);
    let mappings = choose(settings, scheme, false, network, &cluster, current);
    mappings.map(|all| all.into_iter().map(|one| one.subnet).collect()).map_err(|error| error.message)
}

fn tagged(network: &mut Network, subnet: &str, key: &str, value: &str) {
    let subnet = network.subnets.iter_mut().find(|one| one.id == subnet).unwrap();
    subnet.tags.insert(key.into(), value.into());
}

#[test]
fn subnets_are_chosen_like_upstream() {
    let provider = settings(&spec(&[]));
    let controller = settings(&spec(&[("type", "external")]));
    assert_eq!((provider.flavour, controller.flavour), (Flavour::CloudProvider, Flavour::Controller));
    let plain = network();
    let of = |numbers: [u8; 3]| Ok(numbers.map(|number| format!("subnet-{number}")).to_vec());
    assert_eq!(chosen(&provider, Scheme::InternetFacing, &plain, &[]), of([1, 2, 3]));
    assert_eq!(chosen(&provider, Scheme::Internal, &plain, &[]), of([1, 2, 3]), "public ones too: the lowest id");
    assert_eq!(chosen(&controller, Scheme::Internal, &plain, &[]), of([4, 5, 6]), "the private ones");
    let mut roles = network();
    for subnet in ["subnet-4", "subnet-5", "subnet-6"] {
        tagged(&mut roles, subnet, "kubernetes.io/role/internal-elb", "1");
    }
    assert_eq!(chosen(&provider, Scheme::Internal, &roles, &[]), of([4, 5, 6]));
    let mut foreign = network();
    tagged(&mut foreign, "subnet-1", "kubernetes.io/cluster/other", "owned");
    let two = Ok(vec!["subnet-2".into(), "subnet-3".into()]);
    assert_eq!(chosen(&provider, Scheme::InternetFacing, &foreign, &[]), two);
    let mut local = network();
    local.subnets[0].zone = "eu-west-1-lon-1a".into();
    assert_eq!(chosen(&provider, Scheme::InternetFacing, &local, &[]), two);
}

#[test]
fn subnets_of_any_cluster_are_usable_without_a_cluster_id() {
    let mut tagged_ones = network();
    tagged(&mut tagged_ones, "subnet-1", "kubernetes.io/cluster/other", "shared");
    let mut legacy = network();
    legacy.subnets[0].zone = "eu-west-1b".into();
    tagged(&mut legacy, "subnet-2", "KubernetesCluster", "c");
    for (network, id, expected) in [
        (&tagged_ones, "", vec!["subnet-1", "subnet-2", "subnet-3"]),
        (&tagged_ones, "c", vec!["subnet-2", "subnet-3"]),
        // Of two subnets in a zone, the one with the legacy tag is the cluster's.
        (&legacy, "c", vec!["subnet-2", "subnet-3"]),
    ] {
        let cluster = ClusterTags::new(id, false);
        let found = choose(&settings(&spec(&[])), Scheme::InternetFacing, false, network, &cluster, &[]).unwrap();
        let found: Vec<&str> = found.iter().map(|one| &*one.subnet).collect();
        assert_eq!(found, expected, "{id:?}");
    }
}

#[test]
fn load_balancer_keeps_its_subnets_and_gets_missing_zones() {
    let current = [Mapping { subnet: "subnet-5".into(), zone: "eu-west-1b".into(), ..Mapping::default() }];
    let found = chosen(&settings(&spec(&[])), Scheme::Internal, &network(), &current).unwrap();
    assert_eq!(found, ["subnet-1", "subnet-3", "subnet-5"]);
}

#[test]
fn named_subnets_must_exist_in_different_zones() {
    let named = |names: &str| chosen(&settings(&spec(&[("subnets", names)])), Scheme::InternetFacing, &network(), &[]);
    assert_eq!(named("net-2, subnet-1"), Ok(vec!["subnet-2".into(), "subnet-1".into()]));
    assert!(named("subnet-9").unwrap_err().contains("there is no subnet-9"));
    assert!(named("subnet-1,subnet-4").unwrap_err().contains("subnet-4 is the second in eu-west-1a"));
    let nothing = Network { subnets: Vec::new(), ..network() };
    let error = chosen(&settings(&spec(&[])), Scheme::Internal, &nothing, &[]).unwrap_err();
    assert!(error.contains("kubernetes.io/role/internal-elb"), "{error}");
}

#[test]
fn addresses_go_to_the_subnets_that_they_belong_to() {
    let requested = spec(&[
        ("private-ipv4-addresses", "10.0.2.9,10.0.1.9"),
        ("internal", "true"),
        ("subnets", "subnet-1,subnet-2"),
    ]);
    let desired = Account::default().desired(&requested, &Targets::default());
    let given: Vec<_> = desired.balancer.subnets.iter().map(|one| one.private_v4.clone().unwrap()).collect();
    assert_eq!(given, ["10.0.1.9", "10.0.2.9"]);
    let few = settings(&spec(&[("eip-allocations", "eipalloc-1")]));
    let error = chosen(&few, Scheme::InternetFacing, &network(), &[]).unwrap_err();
    assert!(error.contains("one for each of the subnets subnet-1, subnet-2, subnet-3"), "{error}");
}

#[test]
fn elastic_addresses_need_no_scheme_if_the_load_balancer_is_internet_facing() {
    let elastic = [("type", "external"), ("subnets", "subnet-1"), ("eip-allocations", "eipalloc-1")];
    let private = [("type", "external"), ("subnets", "subnet-1"), ("private-ipv4-addresses", "10.0.1.9")];
    for (existing, annotations, expected) in [
        (Some("internet-facing"), elastic, None),
        (Some("internal"), elastic, Some("is internal, as annotation")),
        (None, elastic, Some("a new load balancer is internal, as annotation")),
        (Some("internet-facing"), private, Some("make the load balancer internal")),
        (Some("internal"), private, None),
        (None, private, None),
    ] {
        let mut account = Account::default();
        if let Some(scheme) = existing {
            account.settle(&spec(&[("type", "external"), ("scheme", scheme), ("subnets", "subnet-1")]), &nodes([1]));
        }
        let found = account.try_desired(&spec(&annotations), &nodes([1])).map(drop);
        let is_expected = match (&found, expected) {
            (Ok(()), None) => true,
            (Err(error), Some(text)) => error.is_invalid() && error.message.contains(text),
            _ => false,
        };
        assert!(is_expected, "{existing:?} {annotations:?}: {found:?}");
    }
}

#[test]
fn labels_of_nodes_are_on_the_target_group_until_they_are_removed() {
    let mut account = Account::default();
    let tag =
        |account: &Account| account.observed.target_groups[0].tags.get("kubernetes.io/target-node-labels").cloned();
    account.settle(&spec(&[]), &nodes([1]));
    assert_eq!(tag(&account), None);
    account.settle(&spec(&[("target-node-labels", "role=ingress,any")]), &nodes([1]));
    assert_eq!(tag(&account).as_deref(), Some("any= role=ingress"));
    account.settle(&spec(&[]), &nodes([1]));
    assert_eq!(tag(&account).as_deref(), Some(""));
}

#[test]
fn every_resource_has_the_tags_of_its_owner() {
    for kind in ["nlb", "external"] {
        let desired = Account::default().desired(&spec(&[("type", kind)]), &Targets::default());
        let listener = &desired.listeners[&80];
        let group = desired.security_group.as_ref().unwrap();
        for tags in [&desired.balancer.tags, &listener.tags, &listener.group.tags, &group.tags] {
            assert_eq!(tags["kubernetes.io/cluster/c"], "owned");
            assert_eq!(tags["kubernetes.io/service-name"], "default/web");
            assert_eq!(tags["kubernetes.io/service-uid"], id().uid);
            assert_eq!(tags.contains_key("service.k8s.aws/stack"), kind == "external");
        }
    }
}

#[test]
fn targets_are_instances_of_the_labelled_nodes() {
    let mut all = nodes([1, 2]).nodes.to_vec();
    all[0].labels.insert("pool".into(), "edge".into());
    all[1].provider_id = Some("aws:///eu-west-1a/fargate-10-0-0-1".into());
    let all = Targets::nodes(all);
    let found = |annotations: &[(&str, &str)]| {
        let settings = settings(&spec(annotations));
        targets(&settings, &settings.listeners[0].group, false, &all).len()
    };
    assert_eq!((found(&[]), found(&[("target-node-labels", "pool=edge")])), (1, 1));
    assert_eq!((found(&[("target-node-labels", "pool=")]), found(&[("target-node-labels", "pool=core")])), (1, 0));
    for (id, expected) in [
        ("aws:///eu-west-1a/i-1", Some("i-1")),
        ("aws://eu-west-1a/i-1", Some("i-1")),
        ("i-1", Some("i-1")),
        ("gce:///zone/i-1", None),
        ("aws:///eu-west-1a/fargate-1", None),
    ] {
        assert_eq!(instance_id(id), expected, "{id}");
    }
}

#[test]
fn targets_are_the_ready_pods_of_the_port_and_family() {
    let endpoint = |name: &str, address: &str, ready| EndpointTarget {
        port_name: name.into(),
        address: address.parse().unwrap(),
        port: 8080,
        node: None,
        provider_id: None,
        zone: None,
        ready,
        serving: ready,
        terminating: false,
        pod: None,
    };
    let endpoints: Arc<[EndpointTarget]> = vec![
        endpoint("tcp-80", "10.0.0.1", true),
        endpoint("tcp-80", "10.0.0.2", false),
        endpoint("tcp-80", "fd00::1", true),
        endpoint("other", "10.0.0.3", true),
    ]
    .into();
    let all = Targets { endpoints, ..Targets::default() };
    let settings = settings(&spec(&[("nlb-target-type", "ip")]));
    let found = |ipv6| -> BTreeSet<String> {
        targets(&settings, &settings.listeners[0].group, ipv6, &all).into_iter().map(|target| target.id).collect()
    };
    assert_eq!(found(false), ["10.0.0.1".to_owned()].into());
    assert_eq!(found(true), ["fd00::1".to_owned()].into());
}

/// Load balancers of cloud-provider-aws and of the AWS Load Balancer Controller are adopted in place: nothing is
/// created or deleted, and tags name the owner afterwards.
#[test]
fn load_balancer_of_either_upstream_is_adopted() {
    for (kind, foreign) in [("nlb", "made-by-cloud-provider"), ("external", "made-by-the-controller")] {
        let requested = spec(&[("type", kind), ("scheme", "internet-facing")]);
        let mut account = Account::default();
        account.settle(&requested, &nodes([1]));
        // The load balancer is as upstream left it: target groups and the security group have other names, and there is
        // no uid.
        let strip = |tags: &mut Tags| drop(tags.remove("kubernetes.io/service-uid"));
        for balancer in &mut account.observed.balancers {
            strip(&mut balancer.tags);
            balancer.listeners.iter_mut().for_each(|listener| strip(&mut listener.tags));
        }
        for group in &mut account.observed.target_groups {
            group.name = foreign.into();
            strip(&mut group.tags);
        }
        for group in &mut account.observed.security_groups {
            group.name = foreign.into();
            strip(&mut group.tags);
        }
        let dns = account.observed.balancers[0].dns.clone();
        account.steps.clear();
        account.settle(&requested, &nodes([1, 2]));
        assert_eq!(account.names(), ["AddTags", "AddTags", "AddTags", "Register", "AddTags"], "{kind}");
        assert_eq!(account.observed.balancers[0].dns, dns);
    }
}

#[test]
fn zone_that_appears_does_not_break_addresses_that_are_given_per_subnet() {
    let mapping = |subnet: &str, zone: &str| Mapping { subnet: subnet.into(), zone: zone.into(), ..Mapping::default() };
    let current = [mapping("subnet-1", "eu-west-1a"), mapping("subnet-2", "eu-west-1b")];
    let of = |annotations: &[(&str, &str)]| {
        chosen(&settings(&spec(annotations)), Scheme::InternetFacing, &network(), &current)
    };
    let kept = Ok(vec!["subnet-1".to_owned(), "subnet-2".to_owned()]);
    assert_eq!(of(&[("eip-allocations", "eipalloc-1,eipalloc-2")]), kept);
    let three = of(&[("eip-allocations", "eipalloc-1,eipalloc-2,eipalloc-3")]);
    assert_eq!(three.unwrap().len(), 3, "an address for the new zone requests the zone");
    assert_eq!(of(&[]).unwrap().len(), 3, "without addresses zones are added");
}

#[test]
fn subnets_on_an_outpost_are_skipped() {
    let mut network = network();
    network.subnets[0].outpost = true;
    let found = chosen(&settings(&spec(&[])), Scheme::InternetFacing, &network, &[]).unwrap();
    assert_eq!(found, ["subnet-2", "subnet-3"]);
}
