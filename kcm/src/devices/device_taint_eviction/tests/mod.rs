//! Tables of evictions, statuses of rules and relevant changes; evictions with random taints.

mod reconcile;

use std::collections::BTreeSet;
use std::sync::Arc;

use kinds::device_allocation::AllocatedDevice;
use kinds::device_taint_rule::Progress;
use kinds::resource_claim::ResourceClaim;
use kinds::schema as f;
use kinds::wire::Put;
use kinds::{Decode, DeviceTaintRule, Kind, Pod, ResourceSlice, Time, Uid};
use proptest::prelude::*;
use runtime::store::Change;

use super::decide::{Eviction, evicting_taints, of_claim, of_pod, uses};
use super::keys::{MEMBERS, Members, changed_pools, pool, relevant_pod, spec_changed, users};
use super::rules::{Counts, cooldown_left, progress, to_apply};

/// Key, effect, and the Unix time at which it was added.
type Taint<'a> = (&'a str, &'a str, i64);
/// Key (empty: all), effect, and toleration seconds.
type Toleration<'a> = (&'a str, &'a str, Option<i64>);

fn decode<K: Kind>(object: &[u8]) -> Arc<K> {
    let sections = Pod::DEVICES | ResourceClaim::ALLOCATION;
    Arc::new(K::decode(&Decode { interner: Arc::default(), sections }, object).expect("well-formed"))
}

fn meta(out: &mut Vec<u8>, number: u32, name: &str, uid: &str, owner: Option<&str>) {
    out.put_message(number, |meta| {
        meta.put_str(f::object_meta::NAME, name);
        meta.put_str(f::object_meta::UID, uid);
        meta.put_str(f::object_meta::RESOURCE_VERSION, "1");
        meta.put_int(f::object_meta::GENERATION, 3);
        if let Some(owner) = owner {
            meta.put_message(f::object_meta::OWNER_REFERENCES, |reference| {
                reference.put_str(f::owner_reference::UID, owner);
                reference.put_bool(f::owner_reference::CONTROLLER, true);
            });
        }
    });
}

fn put_taint(out: &mut Vec<u8>, number: u32, (key, effect, added): Taint<'_>) {
    out.put_message(number, |taint| {
        taint.put_str(f::device_taint::KEY, key);
        taint.put_str(f::device_taint::EFFECT, effect);
        if added != 0 {
            Time(added).put(taint, f::device_taint::TIME_ADDED);
        }
    });
}

/// A slice of the pool `p` of the driver `d`, with one device.
fn slice(generation: i64, device: &str, taints: &[Taint<'_>]) -> Arc<ResourceSlice> {
    let mut object = Vec::new();
    meta(&mut object, f::resource_slice::METADATA, &format!("{device}-{generation}"), "s", None);
    object.put_message(f::resource_slice::SPEC, |spec| {
        spec.put_str(f::resource_slice_spec::DRIVER, "d");
        spec.put_message(f::resource_slice_spec::POOL, |pool| {
            pool.put_str(f::resource_pool::NAME, "p");
            pool.put_int(f::resource_pool::GENERATION, generation);
        });
        spec.put_message(f::resource_slice_spec::DEVICES, |message| {
            message.put_str(f::device::NAME, device);
            taints.iter().for_each(|taint| put_taint(message, f::device::TAINTS, *taint));
        });
    });
    decode(&object)
}

/// A rule about all devices with that name.
fn rule(name: &str, device: &str, taint: Taint<'_>) -> Arc<DeviceTaintRule> {
    let mut object = Vec::new();
    meta(&mut object, f::device_taint_rule::METADATA, name, name, None);
    object.put_message(f::device_taint_rule::SPEC, |spec| {
        spec.put_message(f::device_taint_rule_spec::DEVICE_SELECTOR, |selector| {
            selector.put_str(f::device_taint_selector::DEVICE, device);
        });
        put_taint(spec, f::device_taint_rule_spec::TAINT, taint);
    });
    decode(&object)
}

/// A claim of the pod `owner`, with devices of the pool, each with tolerations, and reserved for pods.
fn claim(owner: Option<&str>, devices: &[(&str, &[Toleration<'_>])], pods: &[&str]) -> Arc<ResourceClaim> {
    let mut object = Vec::new();
    meta(&mut object, f::resource_claim::METADATA, "claim", "c", owner);
    object.put_message(f::resource_claim::STATUS, |status| {
        status.put_message(f::resource_claim_status::ALLOCATION, |allocation| {
            allocation.put_message(f::allocation_result::DEVICES, |results| {
                for (device, tolerations) in devices {
                    results.put_message(f::device_allocation_result::RESULTS, |result| {
                        put_result(result, device, tolerations);
                    });
                }
            });
        });
        for pod in pods {
            status.put_message(f::resource_claim_status::RESERVED_FOR, |consumer| {
                consumer.put_str(f::claim_consumer::RESOURCE, "pods");
                consumer.put_str(f::claim_consumer::NAME, pod);
                consumer.put_str(f::claim_consumer::UID, pod);
            });
        }
    });
    decode(&object)
}

fn put_result(result: &mut Vec<u8>, device: &str, tolerations: &[Toleration<'_>]) {
    use f::device_request_allocation_result as r;
    result.put_str(r::DRIVER, "d");
    result.put_str(r::POOL, "p");
    result.put_str(r::DEVICE, device);
    for (key, effect, seconds) in tolerations {
        result.put_message(r::TOLERATIONS, |message| {
            message.put_str(f::device_toleration::KEY, key);
            message.put_str(f::device_toleration::OPERATOR, "Exists");
            message.put_str(f::device_toleration::EFFECT, effect);
            if let Some(seconds) = seconds {
                message.put_int(f::device_toleration::TOLERATION_SECONDS, *seconds);
            }
        });
    }
}

/// A pod whose name is its UID, with the claim `claim`, created from a template for it or not.
fn pod(name: &str, node: &str, is_from_template: bool) -> Arc<Pod> {
    let mut object = Vec::new();
    meta(&mut object, f::pod::METADATA, name, name, None);
    object.put_message(f::pod::SPEC, |spec| {
        spec.put_str(f::pod_spec::NODE_NAME, node);
        spec.put_message(f::pod_spec::RESOURCE_CLAIMS, |entry| {
            entry.put_str(f::pod_resource_claim::NAME, "gpu");
            let (number, of) = if is_from_template {
                (f::pod_resource_claim::RESOURCE_CLAIM_TEMPLATE_NAME, "template")
            } else {
                (f::pod_resource_claim::RESOURCE_CLAIM_NAME, "claim")
            };
            entry.put_str(number, of);
        });
    });
    object.put_message(f::pod::STATUS, |status| {
        status.put_message(f::pod_status::RESOURCE_CLAIM_STATUSES, |entry| {
            entry.put_str(f::pod_resource_claim_status::NAME, "gpu");
            entry.put_str(f::pod_resource_claim_status::RESOURCE_CLAIM_NAME, "claim");
        });
    });
    decode(&object)
}

fn eviction_of(
    claim: &ResourceClaim,
    slices: &[Arc<ResourceSlice>],
    rules: &[Arc<DeviceTaintRule>],
) -> Option<Eviction> {
    of_claim(claim, |device| evicting_taints(device, slices.iter().map(|one| &**one), rules.iter().map(|one| &**one)))
}

const NO_EXECUTE: &str = "NoExecute";

#[test]
fn the_earliest_taint_that_is_not_tolerated_counts() {
    let taint = |added| [("k", NO_EXECUTE, added)];
    let two = [("k", NO_EXECUTE, 100), ("l", NO_EXECUTE, 90)];
    let forever: Toleration<'_> = ("k", NO_EXECUTE, None);
    let all = |seconds| ("", NO_EXECUTE, Some(seconds));
    for (taints, tolerations, expected) in [
        (&[][..], &[][..], None),
        (&taint(100), &[], Some(100)),
        (&taint(0), &[], None),
        (&[("k", "NoSchedule", 100)], &[], None),
        (&[("k", "None", 100)], &[], None),
        (&taint(100), &[forever], None),
        (&taint(100), &[("other", NO_EXECUTE, None)], Some(100)),
        // A toleration has to name this effect.
        (&taint(100), &[("k", "", None)], Some(100)),
        (&taint(100), &[all(30)], Some(130)),
        (&taint(100), &[all(-30)], Some(100)),
        (&taint(100), &[all(30), all(10), all(20)], Some(110)),
        (&taint(100), &[all(30), forever], None),
        (&two, &[forever], Some(90)),
        (&two, &[all(5)], Some(95)),
        (&two, &[("l", NO_EXECUTE, Some(60))], Some(100)),
    ] {
        let claim = claim(None, &[("a", tolerations)], &[]);
        let found = eviction_of(&claim, &[slice(1, "a", taints)], &[]).map(|eviction| eviction.at.0);
        assert_eq!(found, expected, "{taints:?} {tolerations:?}");
    }
}

#[test]
fn only_the_newest_generation_of_a_pool_counts_and_rules_add_to_it() {
    let tainted = |generation| slice(generation, "a", &[("k", NO_EXECUTE, 100)]);
    let (ours, others) = (rule("r", "a", ("k", NO_EXECUTE, 50)), rule("s", "b", ("k", NO_EXECUTE, 10)));
    let (harmless, unset) = (rule("t", "a", ("k", "None", 10)), rule("u", "a", ("k", NO_EXECUTE, 0)));
    let claim = claim(None, &[("a", &[]), ("c", &[])], &[]);
    for (slices, rules, expected) in [
        (vec![tainted(1)], vec![], Some((100, vec![]))),
        (vec![tainted(1), slice(2, "b", &[])], vec![], None),
        (vec![tainted(2), slice(1, "b", &[])], vec![], Some((100, vec![]))),
        (vec![], vec![&ours], Some((50, vec!["r"]))),
        (vec![tainted(1)], vec![&ours, &others, &harmless, &unset], Some((50, vec!["r"]))),
        (vec![], vec![&others], None),
    ] {
        let rules: Vec<_> = rules.into_iter().cloned().collect();
        let found = eviction_of(&claim, &slices, &rules).map(|eviction| (eviction.at.0, eviction.rules));
        let uids = |names: Vec<&str>| names.into_iter().map(Uid::parse).collect::<BTreeSet<_>>();
        assert_eq!(found, expected.map(|(at, rules)| (at, uids(rules))), "{slices:?}");
    }
}

#[test]
fn only_bound_pods_that_use_the_claim_are_evicted() {
    let slices = [slice(1, "a", &[("k", NO_EXECUTE, 100)])];
    let of = |owner, pods: &[&str]| claim(owner, &[("a", &[])], pods);
    for (pod, claim, expected) in [
        (pod("p", "node", false), Some(of(None, &["p"])), true),
        (pod("p", "", false), Some(of(None, &["p"])), false),
        (pod("p", "node", false), Some(of(None, &["q"])), false),
        (pod("p", "node", false), Some(of(None, &["q", "p"])), true),
        (pod("p", "node", false), None, false),
        (pod("p", "node", true), Some(of(Some("p"), &["p"])), true),
        (pod("p", "node", true), Some(of(Some("q"), &["p"])), false),
        (pod("p", "node", true), Some(of(None, &["p"])), false),
    ] {
        let deletion = of_pod(&pod, false, |_| claim.clone(), |claim| eviction_of(claim, &slices, &[]));
        assert_eq!(deletion.is_some(), expected, "{pod:?} {claim:?}");
    }
}

#[test]
fn status_reports_the_progress_of_the_eviction() {
    let counts = |pods, namespaces, evicted| Counts { published: 1, allocated: 2, pods, namespaces, evicted };
    let unfinished = "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.";
    for (effect, counts, expected) in [
        (NO_EXECUTE, counts(0, 0, 0), (false, "NotStarted", String::new())),
        (
            NO_EXECUTE,
            counts(1, 1, 0),
            (true, "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace.".into()),
        ),
        (
            NO_EXECUTE,
            counts(3, 2, 1),
            (
                true,
                "PodsPendingEviction",
                "3 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller."
                    .into(),
            ),
        ),
        (NO_EXECUTE, counts(0, 0, 2), (false, "Completed", "2 pods evicted since starting the controller.".into())),
        (
            "None",
            counts(1, 1, 0),
            (
                false,
                "NoEffect",
                format!(
                    "1 published device selected. 2 allocated devices selected. 1 pod would be evicted in 1 namespace \
                     if the effect was NoExecute. {unfinished}"
                ),
            ),
        ),
        (
            "NoSchedule",
            counts(0, 0, 0),
            (false, "OtherEffect", "Eviction only happens for the NoExecute effect.".into()),
        ),
    ] {
        assert_eq!(progress(effect, &counts), expected);
    }
}

#[test]
fn status_is_written_when_it_differs_and_has_a_cooldown() {
    let progress_with = |message: &str, generation| Progress {
        status: "False".into(),
        reason: "NotStarted".into(),
        message: message.into(),
        generation,
        since: Time(100),
    };
    for (progress, writes, cooldown) in [
        (None, true, None),
        (Some(progress_with("", 3)), false, Some(6)),
        (Some(progress_with("", 2)), true, None),
        (Some(progress_with("other", 3)), true, Some(6)),
        (Some(Progress { since: Time(90), ..progress_with("", 3) }), false, None),
        (Some(Progress { since: Time(900), ..progress_with("", 3) }), false, Some(10)),
    ] {
        let rule = DeviceTaintRule { progress, ..(*rule("r", "a", ("k", NO_EXECUTE, 1))).clone() };
        assert_eq!(to_apply(&rule, &Counts::default(), "now").is_some(), writes, "{:?}", rule.progress);
        assert_eq!(cooldown_left(&rule, Time(104), 10), cooldown, "{:?}", rule.progress);
    }
}

#[test]
fn only_relevant_changes_are_reconciled() {
    let (p, other_node) = (pod("p", "a", false), pod("p", "b", false));
    for (old, new, expected) in [
        (None, Some(&p), true),
        (Some(&p), Some(&p), false),
        (Some(&p), Some(&other_node), true),
        (Some(&p), None, true),
    ] {
        assert_eq!(relevant_pod(&Change { old, new }).is_some(), expected, "{old:?} {new:?}");
    }
    let (of_p, of_q) = (claim(None, &[("a", &[])], &["p"]), claim(None, &[("a", &[])], &["q"]));
    for (old, new, expected) in [
        (None, Some(&of_p), vec!["p"]),
        (Some(&of_p), Some(&of_p), vec![]),
        (Some(&of_p), Some(&of_q), vec!["p", "q"]),
        (Some(&of_p), None, vec!["p"]),
    ] {
        let found = users(&Change { old, new }, |claim| Members(None).users_of(claim));
        assert_eq!(found.iter().map(|key| &*key.name).collect::<Vec<_>>(), expected);
    }
    let (clean, tainted, newer) = (slice(1, "a", &[]), slice(1, "a", &[("k", NO_EXECUTE, 1)]), slice(2, "a", &[]));
    for (old, new, expected) in [
        (None, Some(&clean), true),
        (Some(&clean), Some(&slice(1, "b", &[])), false),
        (Some(&clean), Some(&tainted), true),
        (Some(&tainted), Some(&tainted), false),
        (Some(&clean), Some(&newer), true),
        (Some(&tainted), None, true),
    ] {
        let found = changed_pools(&Change { old, new });
        assert_eq!(found, if expected { vec![pool("d", "p")] } else { vec![] }, "{old:?} {new:?}");
    }
    let (one, other) = (rule("r", "a", ("k", NO_EXECUTE, 1)), rule("r", "b", ("k", NO_EXECUTE, 1)));
    for (old, new, expected) in
        [(None, Some(&one), true), (Some(&one), Some(&one), false), (Some(&one), Some(&other), true)]
    {
        assert_eq!(spec_changed(&Change { old, new }), expected);
    }
}

proptest! {
    /// Whatever the taints and tolerations: no pod is deleted before a taint was added, nor one that tolerates all
    /// taints forever; one more taint never makes the deletion later, and with tolerations it is never earlier than
    /// without any.
    #[test]
    fn another_taint_never_delays_and_tolerations_never_advance_a_deletion(
        taints in proptest::collection::vec((0usize..3, 1i64..1000), 0..6),
        tolerations in proptest::collection::vec((0usize..3, proptest::option::of(-5i64..500)), 0..4),
    ) {
        const KEYS: [&str; 3] = ["k", "l", "m"];
        let taints: Vec<Taint<'_>> = taints.iter().map(|(key, added)| (KEYS[*key], NO_EXECUTE, *added)).collect();
        let tolerations: Vec<Toleration<'_>> =
            tolerations.iter().map(|(key, seconds)| (KEYS[*key], NO_EXECUTE, *seconds)).collect();
        let at = |taints: &[Taint<'_>], tolerations: &[Toleration<'_>]| {
            let claim = claim(None, &[("a", tolerations)], &[]);
            eviction_of(&claim, &[slice(1, "a", taints)], &[]).map_or(i64::MAX, |eviction| eviction.at.0)
        };
        let deletion = at(&taints, &tolerations);
        prop_assert!(taints.iter().map(|taint| taint.2).min().is_none_or(|first| deletion >= first));
        if let Some((_, fewer)) = taints.split_last() {
            prop_assert!(at(fewer, &tolerations) >= deletion);
        }
        prop_assert!(at(&taints, &[]) <= deletion);
        prop_assert_eq!(at(&taints, &[("", NO_EXECUTE, None)]), i64::MAX);
    }
}

#[test]
fn devices_of_other_pools_are_not_tainted() {
    let slices = [slice(1, "a", &[("k", NO_EXECUTE, 100)])];
    let allocated = claim(None, &[("a", &[])], &[]);
    let device: &AllocatedDevice = &allocated.allocation.as_ref().expect("allocated").devices[0];
    let mut elsewhere = device.clone();
    elsewhere.pool = "q".into();
    let count = |device| evicting_taints(device, slices.iter().map(|slice| &**slice), std::iter::empty()).len();
    assert_eq!((count(device), count(&elsewhere)), (1, 0));
}

/// A claim that is reserved for a PodGroup, and controlled by an owner of this kind and name.
fn group_claim(kind: &str, owner: &str) -> ResourceClaim {
    let mut claim = Arc::unwrap_or_clone(claim(Some("other-uid"), &[("a", &[])], &[]));
    let mut owners = claim.meta.owners.to_vec();
    for reference in &mut owners {
        reference.kind = kind.into();
        reference.name = owner.into();
        reference.api_version = "scheduling.k8s.io/v1beta1".into();
    }
    claim.meta.owners = owners.into();
    claim.allocation.as_mut().expect("the claim is allocated").groups = Box::new(["g".into()]);
    claim
}

#[test]
fn members_of_a_group_use_its_claims_only_with_the_gate() {
    let member = |group: Option<&str>, is_from_template| {
        let mut pod = Arc::unwrap_or_clone(pod("p", "node", is_from_template));
        pod.devices.as_mut().expect("the pod has a claim").group = group.map(Into::into);
        pod
    };
    for (name, group, is_from_template, claim, expected) in [
        ("member", Some("g"), false, group_claim("PodGroup", "g"), true),
        ("created for the group", Some("g"), true, group_claim("PodGroup", "g"), true),
        ("created for another group", Some("g"), true, group_claim("PodGroup", "h"), false),
        ("created for another kind", Some("g"), true, group_claim("Workload", "g"), false),
        ("of another group", Some("h"), false, group_claim("PodGroup", "g"), false),
        ("without a group", None, false, group_claim("PodGroup", "g"), false),
    ] {
        let pod = member(group, is_from_template);
        let used = pod.devices.as_ref().expect("the pod has a claim").claims().next().expect("one");
        assert_eq!(uses(&pod, used, &claim, true), expected, "{name}");
        assert!(!uses(&pod, used, &claim, false), "{name}, without the gate");
    }
}

#[test]
fn users_of_a_claim_include_the_members_of_its_groups() {
    let claim = group_claim("PodGroup", "g");
    let pods = ["a", "b", "c"].map(|name| {
        let mut pod = Arc::unwrap_or_clone(pod(name, "node", false));
        let group = if name == "c" { "other" } else { "g" };
        pod.devices.as_mut().expect("the pod has a claim").group = Some(group.into());
        pod
    });
    let decode = Decode { interner: Arc::default(), sections: Pod::DEVICES };
    let pods = Arc::new(runtime::testing::filled_store(decode, vec![MEMBERS], pods));
    let names = |members: Members| {
        let mut names: Vec<String> = members.users_of(&claim).iter().map(|key| key.name.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(Members(Some(pods))), ["a", "b"]);
    assert!(names(Members(None)).is_empty());
}
