//! Claims of this cluster's Services to targets in target groups that users made.
//!
//! Several Services may register targets in one such group, and a target may be on the records of several Services.
//! While one of them claims a target, no other one deregisters it.

use std::collections::{BTreeMap, BTreeSet};

use providers::LoadBalancerId;

use crate::loadbalancer::model::target_change::TargetChanges;
use crate::loadbalancer::types::Target;

/// One Service's claim in a target group.
#[derive(Debug, Default)]
struct Claim {
    /// The targets on the Service's record once its last planned change is done.
    targets: BTreeSet<Target>,
    /// Targets that other Services have deregistered since this Service last read or changed the group: what the Service
    /// knows about them is out of date.
    deregistered: BTreeSet<Target>,
}

/// The claims of all Services, by the ARN of the target group.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    known: BTreeMap<String, BTreeMap<LoadBalancerId, Claim>>,
    /// Services that named a target group when this process began its work, and that it has not reconciled since then:
    /// only their records show what they claim.
    unread: BTreeMap<String, BTreeSet<LoadBalancerId>>,
}

impl Claims {
    /// Records that a Service names a target group. Called before any Service is reconciled.
    pub(crate) fn expect(&mut self, id: &LoadBalancerId, arn: &str) {
        self.unread.entry(arn.to_owned()).or_default().insert(id.clone());
    }

    /// Returns the other Services whose claims in a group have to be read before targets are deregistered.
    pub(crate) fn unread(&self, id: &LoadBalancerId, arn: &str) -> Vec<LoadBalancerId> {
        self.unread.get(arn).into_iter().flatten().filter(|other| *other != id).cloned().collect()
    }

    /// Sets the claim of a Service to the targets on its record, unless the Service was reconciled in the meantime.
    pub(crate) fn restore(&mut self, id: &LoadBalancerId, arn: &str, recorded: Option<BTreeSet<Target>>) {
        if self.mark_read(id, arn) {
            self.claim_of(id, arn).targets = recorded.unwrap_or_default();
        }
    }

    /// Marks a Service's claim as known. Returns false if it was known before.
    fn mark_read(&mut self, id: &LoadBalancerId, arn: &str) -> bool {
        let Some(unread) = self.unread.get_mut(arn) else { return false };
        let is_marked = unread.remove(id);
        if unread.is_empty() {
            self.unread.remove(arn);
        }
        is_marked
    }

    fn claim_of(&mut self, id: &LoadBalancerId, arn: &str) -> &mut Claim {
        self.known.entry(arn.to_owned()).or_default().entry(id.clone()).or_default()
    }

    /// Prepares a Service's read of the targets of a group. Called before the read.
    pub(crate) fn begin_read(&mut self, id: &LoadBalancerId, arn: &str) {
        self.claim_of(id, arn).deregistered.clear();
    }

    /// Sets a Service's claim to the targets that a planned change leads to, and adapts the change: targets that other
    /// Services claim stay, and targets that other Services have deregistered are registered again. `recorded` are the
    /// targets on the Service's record before the change.
    pub(crate) fn claim(
        &mut self,
        id: &LoadBalancerId,
        arn: &str,
        recorded: Option<&BTreeSet<Target>>,
        change: &mut TargetChanges,
    ) {
        let wanted = change.record_after.as_ref().or(change.record_before.as_ref()).or(recorded);
        let wanted = wanted.cloned().unwrap_or_default();
        self.mark_read(id, arn);
        let claim = self.claim_of(id, arn);
        let mut again = std::mem::take(&mut claim.deregistered);
        again.retain(|target| wanted.contains(target));
        claim.targets = wanted;
        let before = change.record_before.as_ref().or(recorded).cloned().unwrap_or_default();
        if !again.is_subset(&before) {
            change.record_before = Some(&before | &again);
        }
        change.register.extend(again);
        let others: Vec<&Claim> = self
            .known
            .get(arn)
            .into_iter()
            .flatten()
            .filter(|(other, _)| *other != id)
            .map(|(_, claim)| claim)
            .collect();
        change.deregister.retain(|target| !others.iter().any(|claim| claim.targets.contains(target)));
    }

    /// Notes the targets that a Service has deregistered. Returns those that other Services have claimed in the
    /// meantime: they have to be registered again.
    pub(crate) fn note_deregistered(
        &mut self,
        id: &LoadBalancerId,
        arn: &str,
        targets: &BTreeSet<Target>,
    ) -> BTreeSet<Target> {
        let mut claimed = BTreeSet::new();
        for (_, claim) in self.known.get_mut(arn).into_iter().flatten().filter(|(other, _)| *other != id) {
            claimed.extend(targets.intersection(&claim.targets).cloned());
            claim.deregistered.extend(targets.iter().cloned());
        }
        claimed
    }

    /// Returns the groups in which a Service claims targets, with these.
    pub(crate) fn of(&self, id: &LoadBalancerId) -> Vec<(String, BTreeSet<Target>)> {
        let claims = self.known.iter().filter_map(|(arn, claims)| Some((arn.clone(), claims.get(id)?.targets.clone())));
        claims.collect()
    }

    /// Removes a Service's claim: its targets in the group are deregistered, or the group no longer exists.
    pub(crate) fn leave(&mut self, id: &LoadBalancerId, arn: &str) {
        self.mark_read(id, arn);
        if let Some(claims) = self.known.get_mut(arn) {
            claims.remove(id);
            if claims.is_empty() {
                self.known.remove(arn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::model::target_change::{Sharing, plan_changes};
    use crate::loadbalancer::samples;

    const ARN: &str = "arn:aws:elasticloadbalancing:r:1:targetgroup/one/1";

    fn set(names: &str) -> BTreeSet<Target> {
        names.chars().map(|name| Target { id: name.into(), port: 80 }).collect()
    }

    fn id(name: &str) -> LoadBalancerId {
        LoadBalancerId { name: name.into(), ..samples::id() }
    }

    /// Returns the change of a Service, adapted to the claims.
    fn change(claims: &mut Claims, name: &str, wanted: &str, registered: &str, recorded: &str) -> TargetChanges {
        let recorded = set(recorded);
        let mut change = plan_changes(&set(wanted), &set(registered), Sharing::Shared(Some(&recorded)), None, false);
        claims.claim(&id(name), ARN, Some(&recorded), &mut change);
        change
    }

    #[test]
    fn target_stays_while_another_service_claims_it() {
        let mut claims = Claims::default();
        assert_eq!(change(&mut claims, "a", "xy", "", "").register, set("xy"));
        assert_eq!(change(&mut claims, "b", "yz", "xy", "").register, set("z"));
        let left = change(&mut claims, "a", "", "xyz", "xy");
        assert_eq!((left.deregister, left.record_after), (set("x"), Some(set(""))), "y stays, and is not on record");
        claims.leave(&id("a"), ARN);
        assert_eq!(claims.of(&id("a")), vec![]);
        assert_eq!(claims.of(&id("b")), vec![(ARN.to_owned(), set("yz"))]);
        assert_eq!(change(&mut claims, "b", "", "yz", "yz").deregister, set("yz"), "no other Service claims them");
    }

    #[test]
    fn target_that_another_service_deregistered_is_registered_again() {
        let mut claims = Claims::default();
        change(&mut claims, "a", "xy", "", "");
        change(&mut claims, "b", "x", "xy", "");
        assert_eq!(change(&mut claims, "a", "x", "xy", "xy").deregister, set("y"));
        assert_eq!(claims.note_deregistered(&id("a"), ARN, &set("y")), set(""));
        // The pod moves to the other Service, which last read the group before the deregistration.
        let found = change(&mut claims, "b", "xy", "xy", "x");
        assert_eq!((found.register, found.record_before), (set("y"), Some(set("xy"))));
        assert_eq!(change(&mut claims, "b", "xy", "xy", "xy"), TargetChanges::default(), "once");
        // A Service that has read the group since then knows.
        claims.note_deregistered(&id("a"), ARN, &set("y"));
        claims.begin_read(&id("b"), ARN);
        assert_eq!(change(&mut claims, "b", "xy", "xy", "xy").register, set(""));
    }

    #[test]
    fn target_that_is_claimed_during_its_deregistration_is_registered_again() {
        let mut claims = Claims::default();
        change(&mut claims, "a", "xy", "", "");
        assert_eq!(change(&mut claims, "a", "", "xy", "xy").deregister, set("xy"));
        change(&mut claims, "b", "y", "xy", "");
        assert_eq!(claims.note_deregistered(&id("a"), ARN, &set("xy")), set("y"));
    }

    #[test]
    fn claim_is_restored_from_the_record_until_the_service_is_reconciled() {
        let mut claims = Claims::default();
        for name in ["a", "b", "c"] {
            claims.expect(&id(name), ARN);
        }
        assert_eq!(claims.unread(&id("a"), ARN), [id("b"), id("c")]);
        claims.restore(&id("b"), ARN, Some(set("y")));
        assert_eq!(change(&mut claims, "a", "", "xyz", "xyz").deregister, set("xz"), "another Service claims y");
        assert_eq!(claims.unread(&id("b"), ARN), [id("c")], "those that were read or reconciled are known");
        change(&mut claims, "c", "z", "yz", "z");
        claims.restore(&id("c"), ARN, Some(set("y")));
        assert_eq!(claims.of(&id("c")), vec![(ARN.to_owned(), set("z"))], "a record does not replace a newer claim");
        claims.expect(&id("b"), ARN);
        claims.leave(&id("b"), ARN);
        claims.restore(&id("b"), ARN, Some(set("y")));
        assert_eq!(claims.of(&id("b")), vec![], "the Service has left the group");
    }
}
