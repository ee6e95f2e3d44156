//! Policy: the owners of a claim, by which the garbage collector deletes it.

use kinds::meta::{Meta, OwnerRef};
use kinds::statefulset::Retention;

/// The possible owners of a claim: the StatefulSet, and the pod of the claim's ordinal.
#[derive(Debug, Clone, Copy)]
pub struct PossibleOwners<'a> {
    /// The policy that determines when claims are deleted.
    pub policy: Retention,
    /// The reference to the StatefulSet.
    pub set: &'a OwnerRef,
    /// The reference to the pod; without a UID while it does not exist.
    pub pod: &'a OwnerRef,
    /// The pod's ordinal is desired.
    pub wanted: bool,
}

/// The action for a claim's owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Set these owners.
    pub owners: Option<Vec<OwnerRef>>,
    /// The policy would delete the claim at some time, but cannot be applied: the claim is owned by another controller,
    /// or by a previous StatefulSet or pod with the same name.
    pub foreign: bool,
}

/// Returns the owner that claims should have under this policy. Upstream: pkg/controller/statefulset,
/// updateClaimOwnerRefForSetAndPod.
fn desired_owner(parties: &PossibleOwners<'_>) -> Option<OwnerRef> {
    match (parties.policy.when_deleted, parties.policy.when_scaled, parties.wanted) {
        (_, true, false) => Some(parties.pod.clone()),
        (true, _, _) => Some(parties.set.clone()),
        _ => None,
    }
}

/// Returns the owner of a new claim for a desired ordinal.
pub fn first_owner(policy: Retention, set: &OwnerRef) -> Option<OwnerRef> {
    policy.when_deleted.then(|| set.clone())
}

/// Decides on the owners of a claim. Upstream: pkg/controller/statefulset, isClaimOwnerUpToDate.
pub fn decide(claim: &Meta, parties: &PossibleOwners<'_>) -> Verdict {
    let names = |owner: &OwnerRef, party: &OwnerRef| {
        (&owner.api_version, &owner.kind, &owner.name) == (&party.api_version, &party.kind, &party.name)
    };
    let is = |owner: &OwnerRef, party: &OwnerRef| owner.uid == party.uid;
    let of_former =
        |party: &OwnerRef| claim.owners.iter().find(|owner| names(owner, party)).is_some_and(|owner| !is(owner, party));
    let (set, pod) = (parties.set, parties.pod);
    let foreign = (parties.policy.when_deleted || parties.policy.when_scaled)
        && claim.owners.iter().any(|owner| match owner {
            owner if names(owner, set) => !is(owner, set),
            owner if names(owner, pod) => !is(owner, pod),
            owner => owner.controller == Some(true),
        });
    if of_former(set) || of_former(pod) {
        // The claim belongs to a previous object with this name: the garbage collector deletes it.
        return Verdict { owners: None, foreign };
    }
    let mut owners: Vec<OwnerRef> =
        claim.owners.iter().filter(|owner| !names(owner, set) && !names(owner, pod)).cloned().collect();
    let ours: Vec<&OwnerRef> = claim.owners.iter().filter(|owner| is(owner, set) || is(owner, pod)).collect();
    let desired_owner = desired_owner(parties).filter(|_| !foreign);
    let right = match &desired_owner {
        Some(party) => ours.len() == 1 && is(ours[0], party) && ours[0].controller == Some(true),
        None => ours.is_empty(),
    };
    owners.extend(desired_owner);
    Verdict { owners: (!right).then_some(owners), foreign }
}

/// Returns true if a claim still belongs to a previous pod of its ordinal, and is deleted with it. Upstream:
/// pkg/controller/statefulset, PodClaimIsStale.
pub fn is_stale(claim: &Meta, policy: Retention, pod: &OwnerRef) -> bool {
    let names = |owner: &&OwnerRef| (&*owner.kind, &*owner.api_version, &owner.name) == ("Pod", "v1", &pod.name);
    policy.when_scaled && claim.owners.iter().find(names).is_some_and(|owner| owner.uid != pod.uid)
}

#[cfg(test)]
mod tests {
    use kinds::{Interner, Time, Uid};

    use super::*;

    fn owner(kind: &str, name: &str, uid: &str, controller: bool) -> OwnerRef {
        OwnerRef {
            api_version: if kind == "Pod" { "v1" } else { "apps/v1" }.into(),
            kind: kind.into(),
            name: name.into(),
            uid: Uid::parse(uid),
            controller: controller.then_some(true),
            block_owner_deletion: controller.then_some(true),
        }
    }

    fn claim(owners: &[OwnerRef]) -> Meta {
        let interner = Interner::default();
        Meta {
            namespace: "ns".into(),
            name: "data-web-0".into(),
            uid: Uid::parse("claim"),
            version: 1,
            generation: 0,
            created: Time(1),
            deletion: Time::default(),
            labels: interner.labels(Vec::new()),
            owners: interner.owners(owners),
            finalizers: interner.list(&[]),
        }
    }

    #[test]
    fn owners_follow_from_the_policy() {
        let (set, pod) = (owner("StatefulSet", "web", "set", true), owner("Pod", "web-0", "pod", true));
        let (former_set, former_pod) = (owner("StatefulSet", "web", "old", true), owner("Pod", "web-0", "old", true));
        let (weak, other) = (owner("StatefulSet", "web", "set", false), owner("Database", "db", "db", true));
        let bystander = owner("Note", "note", "note", false);
        let [retain, deleted, scaled, both] = [(false, false), (true, false), (false, true), (true, true)]
            .map(|(when_deleted, when_scaled)| Retention { when_deleted, when_scaled });
        // (policy, ordinal is desired, owners, desired owners, has another controller)
        type Row<'a> = (Retention, bool, Vec<&'a OwnerRef>, Option<Vec<&'a OwnerRef>>, bool);
        let table: Vec<Row<'_>> = vec![
            (retain, true, vec![], None, false),
            (retain, true, vec![&set], Some(vec![]), false),
            (retain, false, vec![&pod], Some(vec![]), false),
            (retain, true, vec![&other], None, false),
            (deleted, true, vec![], Some(vec![&set]), false),
            (deleted, true, vec![&set], None, false),
            (deleted, true, vec![&weak], Some(vec![&set]), false),
            (deleted, false, vec![&set], None, false),
            (deleted, false, vec![&pod], Some(vec![&set]), false),
            (deleted, true, vec![&bystander], Some(vec![&bystander, &set]), false),
            (scaled, true, vec![], None, false),
            (scaled, true, vec![&pod], Some(vec![]), false),
            (scaled, true, vec![&set], Some(vec![]), false),
            (scaled, false, vec![], Some(vec![&pod]), false),
            (scaled, false, vec![&pod], None, false),
            (both, true, vec![], Some(vec![&set]), false),
            (both, true, vec![&pod], Some(vec![&set]), false),
            (both, false, vec![&set], Some(vec![&pod]), false),
            (both, false, vec![&pod], None, false),
            (both, true, vec![&other], None, true),
            (both, true, vec![&other, &set], Some(vec![&other]), true),
            (deleted, true, vec![&former_set], None, true),
            (scaled, true, vec![&former_pod], None, true),
            (retain, true, vec![&former_set], None, false),
        ];
        for (at, (policy, wanted, owners, expected, foreign)) in table.into_iter().enumerate() {
            let list = |owners: Vec<&OwnerRef>| owners.into_iter().cloned().collect::<Vec<_>>();
            let parties = PossibleOwners { policy, set: &set, pod: &pod, wanted };
            let verdict = decide(&claim(&list(owners)), &parties);
            assert_eq!(verdict, Verdict { owners: expected.map(list), foreign }, "row {at}");
        }
    }

    #[test]
    fn claim_of_a_previous_pod_is_stale_if_claims_are_deleted_with_pods() {
        let (former, pod) = (owner("Pod", "web-0", "old", true), owner("Pod", "web-0", "", true));
        let policy = |when_scaled| Retention { when_deleted: false, when_scaled };
        assert!(is_stale(&claim(std::slice::from_ref(&former)), policy(true), &pod));
        assert!(!is_stale(&claim(&[former]), policy(false), &pod));
        assert!(!is_stale(&claim(&[]), policy(true), &pod));
    }
}
