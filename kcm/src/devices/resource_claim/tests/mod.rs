//! Tables of the rules, and of the keys that changes enqueue.

mod histories;
mod server;
mod sync;

use std::collections::BTreeSet;
use std::sync::Arc;

use kinds::claim_entry::{ClaimEntry, ClaimStatus};
use kinds::claim_state::{ClaimState, Consumer, DELETE_PROTECTION};
use kinds::meta::OwnerRef;
use kinds::pod::{Devices, Phase};
use kinds::schema::{object_meta, pod, pod_group, resource_claim, resource_claim_template};
use kinds::wire::Put;
use kinds::{
    Decode, Interner, Kind, Meta, Namespace, Pod, PodGroup, ResourceClaim, ResourceClaimTemplate, Sections, Str, Time,
    Uid,
};
use runtime::consistency::Consistency;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, by_controller};
use runtime::testing::filled_store;
use serde_json::json;

use super::decide::{
    Gates, Lookups, Release, binds_to_group, check_pod_owner, created_earlier, group_has_work, has_work, is_done,
    lacks_reservation, owning_pod, pod_consumer, release,
};
use super::deleted::DeletedUids;
use super::entry::Owner;
use super::indexes::{groups_by_claim, groups_by_template, pods_by_claim, pods_by_group, pods_by_template};
use super::keys::Keys;
use super::metrics::{Totals, creation_labels};
use crate::pods::refusals::Refusals;

const OFF: Gates = Gates { admin_access: true, prioritized_list: true, groups: false, group_claims: false };
const ON: Gates = Gates { admin_access: true, prioritized_list: true, groups: true, group_claims: true };
const GROUPS_ONLY: Gates = Gates { group_claims: false, ..ON };

fn decode() -> Decode {
    Decode { interner: Arc::new(Interner::default()), sections: Sections::default() }
}

/// An object in namespace `ns` whose uid is its name with `-uid`.
fn named<K: Kind>(metadata: u32, name: &str) -> K {
    let mut object = Vec::new();
    object.put_message(metadata, |meta| {
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::UID, &format!("{name}-uid"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    K::decode(&decode(), &object).expect("well-formed")
}

fn shared(name: &str, claim: &str) -> ClaimEntry {
    ClaimEntry { name: name.into(), claim: Some(claim.into()), template: None, status: ClaimStatus::Missing }
}

/// An entry with the template `template`; `claim` is its status: missing, not needed, or a name.
fn generated(name: &str, claim: Option<Option<&str>>) -> ClaimEntry {
    let status = match claim {
        None => ClaimStatus::Missing,
        Some(None) => ClaimStatus::NotNeeded,
        Some(Some(name)) => ClaimStatus::Named(name.into()),
    };
    ClaimEntry { name: name.into(), claim: None, template: Some("template".into()), status }
}

fn unsupported(name: &str) -> ClaimEntry {
    ClaimEntry { template: None, ..generated(name, None) }
}

/// A pending pod that is on no node.
fn user(entries: Vec<ClaimEntry>) -> Pod {
    let mut pod: Pod = named(pod::METADATA, "web");
    pod.devices = Some(Box::new(Devices { entries: entries.into(), extended: None, group: None }));
    pod
}

fn edited<T>(mut object: T, edit: impl FnOnce(&mut T)) -> T {
    edit(&mut object);
    object
}

fn on_node(pod: Pod) -> Pod {
    edited(pod, |pod| pod.node = "node".into())
}

fn finished(pod: Pod) -> Pod {
    edited(pod, |pod| pod.phase = Phase::Succeeded)
}

fn deleting(pod: Pod) -> Pod {
    edited(pod, |pod| pod.meta.deletion = Time(1))
}

fn in_group(pod: Pod, group: &str) -> Pod {
    edited(pod, |pod| pod.devices.as_mut().expect("the pod has claims").group = Some(group.into()))
}

fn extended(pod: Pod, claim: &str) -> Pod {
    edited(pod, |pod| pod.devices.as_mut().expect("the pod has claims").extended = Some(claim.into()))
}

fn group(name: &str, entries: Vec<ClaimEntry>) -> PodGroup {
    let mut group: PodGroup = named(pod_group::METADATA, name);
    group.claims = entries.into();
    group
}

fn owner(api_version: &str, kind: &str, name: &str) -> OwnerRef {
    OwnerRef {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: Uid::parse(&format!("{name}-uid")),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn consumer(group: &str, resource: &str, name: &str) -> Consumer {
    Consumer {
        group: group.into(),
        resource: resource.into(),
        name: name.into(),
        uid: Uid::parse(&format!("{name}-uid")),
    }
}

fn pod_of(name: &str) -> Consumer {
    consumer("", "pods", name)
}

fn group_of(name: &str) -> Consumer {
    consumer("scheduling.k8s.io", "podgroups", name)
}

/// A claim, controlled by the pod `web` if `is_owned`.
fn claim(name: &str, is_owned: bool, state: ClaimState) -> ResourceClaim {
    let mut claim: ResourceClaim = named(resource_claim::METADATA, name);
    claim.state = Some(Box::new(state));
    if is_owned {
        claim.meta.owners = Arc::new([owner("v1", "Pod", "web")]);
    }
    claim
}

fn allocated(consumers: &[Consumer]) -> ClaimState {
    ClaimState { is_allocated: true, consumers: consumers.into(), ..ClaimState::default() }
}

/// Decides with these claims and PodGroups in the cache.
fn cached<T>(claims: &[ResourceClaim], groups: &[PodGroup], decide: impl FnOnce(&Lookups<'_>) -> T) -> T {
    decide(&Lookups {
        claim: &|name: &Str| claims.iter().find(|claim| claim.meta.name == *name).cloned().map(Arc::new),
        group: &|name: &Str| groups.iter().find(|group| group.meta.name == *name).cloned().map(Arc::new),
    })
}

#[test]
fn pod_has_work_when_a_claim_has_to_be_created_or_reserved() {
    let of_pod = || user(vec![generated("gpu", Some(Some("made")))]);
    let named_claim = || user(vec![shared("gpu", "mine")]);
    let member = || in_group(of_pod(), "gang");
    let free = || claim("made", true, ClaimState::default());
    let unreserved = || claim("made", true, allocated(&[]));
    let mine = |state| claim("mine", false, state);
    let gang = || group("gang", vec![generated("gpu", None)]);
    let other_gang = || group("gang", vec![generated("other", None)]);
    for (name, gates, pod, claims, groups, expected) in [
        ("not created yet", OFF, user(vec![generated("gpu", None)]), vec![], vec![], true),
        ("not needed", OFF, user(vec![generated("gpu", Some(None))]), vec![], vec![], false),
        ("unsupported", OFF, user(vec![unsupported("gpu")]), vec![], vec![], true),
        ("no entries", OFF, extended(user(vec![]), "made"), vec![], vec![], false),
        ("created claim is missing", OFF, of_pod(), vec![], vec![], true),
        ("named claim is missing", OFF, named_claim(), vec![], vec![], false),
        ("created claim exists", OFF, of_pod(), vec![free()], vec![], false),
        ("allocated, without a node", OFF, of_pod(), vec![unreserved()], vec![], false),
        ("allocated, on a node", OFF, on_node(of_pod()), vec![unreserved()], vec![], true),
        ("reserved", OFF, on_node(of_pod()), vec![claim("made", true, allocated(&[pod_of("web")]))], vec![], false),
        ("named, allocated", OFF, on_node(named_claim()), vec![mine(allocated(&[pod_of("x")]))], vec![], true),
        ("named, not allocated", OFF, on_node(named_claim()), vec![mine(ClaimState::default())], vec![], false),
        ("foreign", OFF, on_node(of_pod()), vec![claim("made", false, allocated(&[]))], vec![], false),
        ("finished", OFF, finished(on_node(of_pod())), vec![unreserved()], vec![], false),
        ("finished, claim deleted", OFF, finished(of_pod()), vec![], vec![], false),
        ("being deleted", OFF, deleting(of_pod()), vec![], vec![], false),
        ("shared by the PodGroup", ON, member(), vec![], vec![gang()], false),
        ("not of the PodGroup", ON, member(), vec![], vec![other_gang()], true),
        ("PodGroup is missing", ON, member(), vec![], vec![], true),
        ("gate of PodGroups is off", OFF, member(), vec![], vec![gang()], true),
        ("PodGroup's entry is unsupported", ON, member(), vec![], vec![group("gang", vec![unsupported("gpu")])], false),
        (
            "reserved for the PodGroup",
            ON,
            on_node(in_group(named_claim(), "gang")),
            vec![mine(allocated(&[group_of("gang")]))],
            vec![],
            false,
        ),
        (
            "reserved for the PodGroup, gate off",
            GROUPS_ONLY,
            on_node(in_group(named_claim(), "gang")),
            vec![mine(allocated(&[group_of("gang")]))],
            vec![],
            true,
        ),
    ] {
        assert_eq!(cached(&claims, &groups, |cached| has_work(&pod, cached, gates)), expected, "{name}");
    }
}

#[test]
fn pod_group_has_work_when_a_claim_has_to_be_created() {
    let made = || group("gang", vec![generated("gpu", Some(Some("made")))]);
    for (name, group, claims, expected) in [
        ("not created yet", group("gang", vec![generated("gpu", None)]), vec![], true),
        ("missing", made(), vec![], true),
        ("exists", made(), vec![claim("made", false, ClaimState::default())], false),
        ("named by the user", group("gang", vec![shared("gpu", "mine")]), vec![], false),
        ("being deleted", edited(made(), |group| group.meta.deletion = Time(1)), vec![], false),
    ] {
        assert_eq!(cached(&claims, &[], |cached| group_has_work(&group, cached)), expected, "{name}");
    }
}

#[test]
fn pod_is_done_when_no_container_runs_or_will() {
    let pod = || user(vec![]);
    for (name, pod, expected) in [
        ("pending", pod(), false),
        ("on a node", on_node(pod()), false),
        ("finished", finished(on_node(pod())), true),
        ("being deleted on its node", deleting(on_node(pod())), false),
        ("being deleted before it was bound", deleting(pod()), true),
    ] {
        assert_eq!(is_done(&pod), expected, "{name}");
    }
}

#[test]
fn claim_belongs_to_its_controller_only() {
    let pod = || user(vec![]);
    let owned_by = |owner: OwnerRef| {
        edited(claim("made", false, ClaimState::default()).meta, |meta: &mut Meta| meta.owners = Arc::new([owner]))
    };
    let of_gang = |version| owned_by(owner(version, "PodGroup", "gang"));
    let uncontrolled = || owned_by(OwnerRef { controller: None, ..owner("v1", "Pod", "web") });
    let not_owner = "ResourceClaim ns/made was not created for Pod ns/web (Pod is not owner)";
    let neither = "ResourceClaim ns/made was not created for Pod ns/web (neither Pod nor PodGroup gang is the owner)";
    let member = || in_group(pod(), "gang");
    for (name, pod, meta, gates, expected) in [
        ("its own", pod(), owned_by(owner("v1", "Pod", "web")), OFF, Ok(())),
        ("of another pod", pod(), owned_by(owner("v1", "Pod", "other")), OFF, Err(not_owner)),
        ("not a controller", pod(), uncontrolled(), OFF, Err(not_owner)),
        ("of its PodGroup", member(), of_gang("scheduling.k8s.io/v1beta1"), ON, Ok(())),
        ("of its PodGroup in another version", member(), of_gang("scheduling.k8s.io/v1"), ON, Ok(())),
        ("of its PodGroup, gate off", member(), of_gang("scheduling.k8s.io/v1beta1"), GROUPS_ONLY, Err(not_owner)),
        ("of another API group", member(), of_gang("scheduling.k8s.io.example.com/v1"), ON, Err(neither)),
        ("of a PodGroup that is not the pod's", pod(), of_gang("scheduling.k8s.io/v1beta1"), ON, Err(not_owner)),
    ] {
        assert_eq!(check_pod_owner(&pod, &meta, gates), expected.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn entry_binds_to_the_pod_group_that_has_the_same_entry() {
    let gang = |entries| Some(group("gang", entries));
    for (name, entry, group, expected) in [
        ("no PodGroup", generated("gpu", None), None, Ok(false)),
        ("same template", generated("gpu", None), gang(vec![generated("gpu", Some(Some("made")))]), Ok(true)),
        ("other name", generated("gpu", None), gang(vec![generated("nic", None)]), Ok(false)),
        ("claim, not template", generated("gpu", None), gang(vec![shared("gpu", "template")]), Ok(false)),
        ("same claim", shared("gpu", "mine"), gang(vec![shared("gpu", "mine")]), Ok(true)),
        (
            "unsupported entry first",
            generated("gpu", None),
            gang(vec![unsupported("new"), generated("gpu", None)]),
            Err("PodGroup ns/gang claim new: none of the supported fields are set".to_owned()),
        ),
    ] {
        assert_eq!(binds_to_group(&entry, group.as_ref()), expected, "{name}");
    }
}

#[test]
fn reservation_is_found_by_uid() {
    let pod = user(vec![]);
    let another = Consumer { uid: Uid::parse("old-uid"), ..pod_of("web") };
    assert!(lacks_reservation(&pod, &allocated(&[another]), OFF));
    assert!(!lacks_reservation(&pod, &allocated(&[pod_consumer(&pod)]), OFF));
    assert!(!lacks_reservation(&pod, &ClaimState::default(), OFF), "not allocated");
    assert!(lacks_reservation(&pod, &allocated(&[group_of("gang")]), ON), "not its PodGroup");
}

#[test]
fn first_controller_that_is_a_pod_owns_a_claim() {
    let owners = |owners: &[OwnerRef]| {
        edited(claim("made", false, ClaimState::default()).meta, |meta: &mut Meta| meta.owners = owners.into())
    };
    let uncontrolled = OwnerRef { controller: None, ..owner("v1", "Pod", "other") };
    let of_pod = owners(&[owner("apps/v1", "ReplicaSet", "set"), uncontrolled, owner("v1", "Pod", "web")]);
    assert_eq!(owning_pod(&of_pod).map(|owner| &*owner.name), Some("web"));
    assert_eq!(owning_pod(&owners(&[owner("scheduling.k8s.io/v1beta1", "PodGroup", "gang")])), None);
    assert_eq!(owning_pod(&owners(&[owner("example.com/v1", "Pod", "web")])), None);
}

#[test]
fn claim_that_was_created_earlier_is_found_by_owner_and_entry() {
    let of = |name: &str, entry: Option<&str>, created| {
        let state = ClaimState { entry: entry.map(Into::into), ..ClaimState::default() };
        Arc::new(edited(claim(name, true, state), |claim| claim.meta.created = Time(created)))
    };
    let foreign = edited(claim("foreign", false, ClaimState::default()), |claim| {
        claim.state.as_mut().expect("the claim has a state").entry = Some("gpu".into());
    });
    let elsewhere = edited((*of("elsewhere", Some("gpu"), 1)).clone(), |claim| claim.meta.namespace = "other".into());
    let owned = vec![
        of("newer", Some("gpu"), 3),
        of("older", Some("gpu"), 2),
        of("of-another-entry", Some("nic"), 1),
        of("without-entry", None, 1),
        Arc::new(foreign),
        Arc::new(elsewhere),
    ];
    let find = |entry| created_earlier(&Uid::parse("web-uid"), "ns", entry, owned.clone());
    assert_eq!(find("gpu").map(|claim| claim.meta.name.to_string()).as_deref(), Some("older"));
    assert!(find("other").is_none());
}

#[test]
fn release_clears_the_allocation_with_the_last_consumer() {
    let protected = |is_deleting: bool| {
        edited(claim("made", false, ClaimState::default()).meta, |meta: &mut Meta| {
            meta.finalizers = Arc::new([DELETE_PROTECTION.into()]);
            meta.deletion = Time(i64::from(is_deleting));
        })
    };
    let plain = || claim("made", false, ClaimState::default()).meta;
    let two = || allocated(&[pod_of("a"), pod_of("b")]);
    for (name, meta, state, remaining, expected) in [
        ("all are kept", protected(false), two(), 2, Release::Nothing),
        ("one is dropped", protected(false), two(), 1, Release::Consumers { deallocates: false }),
        ("all are dropped", protected(false), two(), 0, Release::Consumers { deallocates: true }),
        ("all are dropped, being deleted", protected(true), two(), 0, Release::Consumers { deallocates: true }),
        ("without finalizer", plain(), two(), 0, Release::Consumers { deallocates: false }),
        ("never reserved", protected(false), allocated(&[]), 0, Release::Nothing),
        (
            "never reserved, being deleted",
            protected(true),
            allocated(&[]),
            0,
            Release::Protection { deallocates: true },
        ),
        ("deallocated", protected(true), ClaimState::default(), 0, Release::Protection { deallocates: false }),
        ("being deleted in use", protected(true), two(), 2, Release::Nothing),
        ("unused without finalizer", plain(), ClaimState::default(), 0, Release::Nothing),
    ] {
        assert_eq!(release(&meta, &state, remaining), expected, "{name}");
    }
}

#[test]
fn applied_status_has_all_names_sorted_and_is_bound_to_the_uid() {
    let entries = [
        generated("b", Some(Some("made-b"))),
        generated("a", None),
        generated("none", Some(None)),
        shared("mine", "mine"),
        generated("c", Some(Some("stale"))),
    ];
    let pod = user(entries.to_vec());
    let writes = Consistency::default();
    let refusals = Refusals::default();
    let owner =
        Owner { meta: &pod.meta, resource: Pod::RESOURCE, entries: &entries, writes: &writes, refusals: &refusals };
    let status = owner.status(&[("a".into(), "made-a".into()), ("c".into(), "made-c".into())]);
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "ns", "uid": "web-uid"},
        "status": {"resourceClaimStatuses": [
            {"name": "a", "resourceClaimName": "made-a"},
            {"name": "b", "resourceClaimName": "made-b"},
            {"name": "c", "resourceClaimName": "made-c"},
        ]},
    });
    assert_eq!(status, expected);
    let reference = owner.reference();
    assert_eq!((reference.controller, reference.block_owner_deletion), (Some(true), None));
}

/// Returns the keys on the queue after a step, sorted, and the UIDs that were recorded as deleted.
fn keys_after(
    gates: Gates,
    (pods, claims, groups): (Vec<Pod>, Vec<ResourceClaim>, Vec<PodGroup>),
    step: impl FnOnce(&Keys),
) -> (Vec<String>, Arc<DeletedUids>) {
    let of_groups = || filled_store(decode(), vec![groups_by_claim(), groups_by_template()], groups);
    let keys = Keys {
        pods: Arc::new(filled_store(decode(), vec![pods_by_claim(), pods_by_template(), pods_by_group()], pods)),
        claims: Arc::new(filled_store(decode(), vec![by_controller()], claims)),
        groups: gates.groups.then(|| Arc::new(of_groups())),
        gates,
        queue: Queue::new(QueueOptions::named("test")),
        deleted: Arc::default(),
    };
    step(&keys);
    let waiting: BTreeSet<String> = keys.queue.waiting().into_iter().map(|waiting| waiting.key.to_string()).collect();
    (waiting.into_iter().collect(), keys.deleted)
}

#[tokio::test]
async fn pods_that_are_done_or_deleted_release_their_claims() {
    let both = || extended(user(vec![shared("gpu", "mine"), generated("nic", Some(Some("made")))]), "extended");
    let waiting = || user(vec![generated("gpu", None)]);
    let released = &["claim:ns/extended", "claim:ns/made", "claim:ns/mine"][..];
    let plain: Pod = named(pod::METADATA, "web");
    for (name, old, new, expected, is_known) in [
        ("created", None, Some(waiting()), &["pod:ns/web"][..], false),
        ("created without claims", None, Some(plain), &[], false),
        ("running", Some(waiting()), Some(on_node(extended(user(vec![]), "extended"))), &[], false),
        ("finished", Some(both()), Some(finished(both())), released, false),
        ("being deleted before it was bound", Some(both()), Some(deleting(both())), released, false),
        ("being deleted on its node", Some(both()), Some(deleting(on_node(both()))), &[], false),
        ("deleted", Some(both()), None, released, true),
        ("deleted before its claim was created", Some(waiting()), None, &[], true),
    ] {
        let (old, new) = (old.map(Arc::new), new.map(Arc::new));
        let made = claim("made", true, ClaimState::default());
        let (found, deleted) = keys_after(OFF, (vec![], vec![made], vec![]), |keys| {
            keys.pod_changed(&Change { old: old.as_ref(), new: new.as_ref() });
        });
        assert_eq!(found, expected, "{name}");
        assert_eq!(deleted.contains(&Uid::parse("web-uid")), is_known, "{name}");
    }
}

#[tokio::test]
async fn replaced_pod_releases_the_claims_of_the_old_one() {
    let old = Arc::new(user(vec![generated("gpu", Some(Some("made")))]));
    let new = Arc::new(edited(user(vec![generated("gpu", None)]), |pod| pod.meta.uid = Uid::parse("new")));
    let (found, deleted) = keys_after(OFF, (vec![], vec![], vec![]), |keys| {
        keys.pod_changed(&Change { old: Some(&old), new: Some(&new) });
    });
    assert_eq!(found, ["claim:ns/made", "pod:ns/web"]);
    assert!(deleted.contains(&old.meta.uid) && !deleted.contains(&new.meta.uid));
}

#[tokio::test]
async fn claims_and_templates_requeue_the_pods_and_groups_that_name_them() {
    let pods = || {
        let of_template = user(vec![generated("gpu", None)]);
        let mut of_claim = user(vec![generated("gpu", Some(Some("made")))]);
        of_claim.meta.name = "named".into();
        let mut elsewhere = user(vec![generated("gpu", None)]);
        elsewhere.meta.namespace = "other".into();
        let member =
            edited(in_group(user(vec![generated("own", None)]), "gang"), |pod| pod.meta.name = "member".into());
        vec![of_template, of_claim, elsewhere, member]
    };
    let groups = || vec![group("gang", vec![generated("gpu", Some(Some("gang-claim")))])];
    let template: Arc<ResourceClaimTemplate> =
        Arc::new(edited(named(resource_claim_template::METADATA, "template"), |_: &mut ResourceClaimTemplate| {}));
    let made = Arc::new(claim("made", true, ClaimState::default()));
    let (found, _) = keys_after(OFF, (pods(), vec![], vec![]), |keys| {
        keys.template_changed(&Change { old: None, new: Some(&template) });
    });
    assert_eq!(found, ["pod:ns/member", "pod:ns/named", "pod:ns/web"]);
    let (found, _) = keys_after(ON, (pods(), vec![], groups()), |keys| {
        keys.template_changed(&Change { old: None, new: Some(&template) });
    });
    assert_eq!(found, ["pod:ns/member", "pod:ns/named", "pod:ns/web", "podgroup:ns/gang"]);
    let (found, _) = keys_after(OFF, (pods(), vec![], vec![]), |keys| {
        keys.template_changed(&Change { old: Some(&template), new: None });
        keys.claim_changed(&Change { old: Some(&made), new: None });
    });
    assert_eq!(found, ["pod:ns/named"], "a deleted claim is created again");
    let (found, _) = keys_after(OFF, (pods(), vec![(*made).clone()], vec![]), |keys| {
        keys.claim_changed(&Change { old: None, new: Some(&made) });
    });
    assert_eq!(found, ["claim:ns/made"]);
    let of_gang = Arc::new(claim("gang-claim", false, ClaimState::default()));
    let (found, _) = keys_after(ON, (pods(), vec![(*of_gang).clone()], groups()), |keys| {
        keys.claim_changed(&Change { old: None, new: Some(&of_gang) });
    });
    assert_eq!(found, ["claim:ns/gang-claim", "pod:ns/member"]);
}

#[tokio::test]
async fn change_of_a_pod_group_requeues_it_its_pods_and_its_claims() {
    let gang = Arc::new(group("gang", vec![generated("gpu", None), shared("nic", "mine")]));
    let member = || vec![in_group(user(vec![generated("own", None)]), "gang")];
    let change = |old: Option<&Arc<PodGroup>>, new: Option<&Arc<PodGroup>>| {
        keys_after(ON, (member(), vec![], vec![]), |keys| keys.group_changed(&Change { old, new }))
    };
    assert_eq!(change(None, Some(&gang)).0, ["pod:ns/web", "podgroup:ns/gang"]);
    let (found, deleted) = change(Some(&gang), None);
    assert_eq!(found, ["claim:ns/mine", "pod:ns/web"]);
    assert!(deleted.contains(&gang.meta.uid));
    let plain = Arc::new(group("gang", vec![]));
    assert!(change(None, Some(&plain)).0.is_empty());
}

#[tokio::test]
async fn replaced_pod_group_requeues_its_pods_when_groups_have_no_claims() {
    let shares = Arc::new(group("gang", vec![generated("own", None)]));
    let plain = Arc::new(edited(group("gang", vec![]), |group| group.meta.uid = Uid::parse("new")));
    let change = |old: Option<&Arc<PodGroup>>, new: Option<&Arc<PodGroup>>| {
        let pods = vec![in_group(user(vec![generated("own", None)]), "gang")];
        keys_after(GROUPS_ONLY, (pods, vec![], vec![]), |keys| keys.group_changed(&Change { old, new }))
    };
    for (name, old, new, expected) in [
        ("created", None, Some(&plain), &["pod:ns/web"][..]),
        ("replaced", Some(&shares), Some(&plain), &["pod:ns/web"]),
        ("unchanged", Some(&shares), Some(&shares), &[]),
        ("deleted", Some(&shares), None, &[]),
    ] {
        let (found, deleted) = change(old, new);
        assert_eq!(found, expected, "{name}");
        assert!(!deleted.contains(&shares.meta.uid), "{name}");
    }
}

#[test]
fn totals_follow_changes_of_claims() {
    let totals = Totals::default();
    let plain = Arc::new(claim("a", false, ClaimState::default()));
    let of_template = ClaimState { entry: Some("gpu".into()), has_admin_access: true, ..allocated(&[]) };
    let generated = Arc::new(claim("b", true, of_template));
    let for_extended = Arc::new(edited(claim("c", true, allocated(&[])), |claim| claim.for_extended_resources = true));
    for new in [&plain, &generated, &for_extended] {
        totals.claim_changed(&Change { old: None, new: Some(new) });
    }
    let shown = || -> Vec<String> {
        let text = |(labels, value): ([(&str, String); 3], f64)| {
            format!("{} {value}", labels.map(|(_, value)| value).join(","))
        };
        totals.samples().into_iter().map(text).collect()
    };
    assert_eq!(shown(), ["false,false, 1", "true,false,extended_resource 1", "true,true,resource_claim_template 1"]);
    totals.claim_changed(&Change { old: Some(&plain), new: Some(&for_extended) });
    totals.claim_changed(&Change { old: Some(&generated), new: None });
    assert_eq!(shown(), ["true,false,extended_resource 2"]);
}

#[test]
fn creations_are_counted_by_the_group_and_kind_of_their_owner() {
    let labels = |owner| creation_labels(false, true, &owner).map(|(_, value)| value);
    assert_eq!(labels(owner("v1", "Pod", "web")), ["failure", "true", "", "Pod"]);
    let group = owner("scheduling.k8s.io/v1beta1", "PodGroup", "gang");
    assert_eq!(labels(group), ["failure", "true", "scheduling.k8s.io", "PodGroup"]);
}
