//! Policy: for each node of a volume, whether the volume is attached, listed in the node's status, or detached.
//!
//! The decision is made for all nodes of the volume together, so that a volume for one node is never attached to a
//! second one.

use std::time::Duration;

/// Time after which a volume that a kubelet still reports as in use is detached from an unhealthy node.
///
/// Upstream: pkg/controller/volume/attachdetach, DefaultTimerConfig.
pub const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);

/// Time after which a step that waits for an undecodable object is decided again. The deletion of such an object
/// requeues nothing.
pub const UNDECODABLE_RECHECK: Duration = Duration::from_secs(60);

/// Pause before the cache is checked again for an attachment that was deleted.
pub const CACHE_RECHECK: Duration = Duration::from_secs(5);

/// State of a volume's attachment to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attachment {
    /// There is none.
    #[default]
    Absent,
    /// The attachment may exist: the response to its creation was lost. Or the kubelet, which attaches the volume
    /// itself, uses the volume, although no pod on the node does and the node's status does not list it.
    Uncertain,
    /// The attachment is requested. The driver has not reported success; it may nevertheless have attached the volume.
    Requested,
    /// The driver has attached the volume.
    Attached,
    /// The attachment is being deleted; the driver may still have the volume attached.
    Deleting,
    /// The attachment cannot be decoded. Or the kubelet attaches the volume itself, and the node cannot be decoded. Or
    /// no known pod uses the volume, and the PersistentVolume that the attachment names cannot be decoded. The volume
    /// may be attached; nothing is changed until its state is known.
    Unknown,
}

/// A node of a volume: a pod there uses the volume, or the volume may be attached to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Site {
    /// A pod on the node uses the volume.
    pub is_wanted: bool,
    /// State of this controller's attachment.
    pub attachment: Attachment,
    /// The attachment was deleted while the volume was wanted or listed, and no new one is created until the kubelet
    /// reports the volume as in use.
    pub awaits_kubelet: bool,
    /// Another client has requested an attachment of the volume to the node. This controller never changes that
    /// attachment, but takes it into account.
    pub has_foreign: bool,
    /// The node's status lists the volume as attached, or a write that lists it may be under way.
    pub is_listed: bool,
    /// The kubelet uses the volume, according to the last known status of the node. Also true for a deleted node whose
    /// last status is unknown.
    pub is_in_use: bool,
    /// State of the node.
    pub node: NodeState,
    /// Time for which the volume has not been wanted on the node.
    pub unwanted_for: Duration,
}

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeState {
    /// The node exists.
    pub exists: bool,
    /// Its volumes are attached by this controller and not by its kubelet.
    pub is_managed: bool,
    /// Its condition Ready is true.
    pub is_ready: bool,
    /// The node has the taint `node.kubernetes.io/out-of-service`.
    pub is_out_of_service: bool,
}

/// Rules for the steps of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The volume may be attached to one node only.
    pub is_exclusive: bool,
    /// A volume in use is never detached from an unhealthy node because of a timeout.
    pub is_timeout_disabled: bool,
    /// A pod may use the volume although none is known, because an object is undecodable. The volume is not detached
    /// because of a timeout: no kubelet has confirmed that no pod uses it.
    pub may_have_undecodable_users: bool,
}

/// Reason why a volume may be detached although a kubelet reports it as in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForceDetachReason {
    /// The node is not healthy, and [`MAX_WAIT_FOR_UNMOUNT`] has passed.
    Timeout,
    /// The node is out of service.
    OutOfService,
}

/// The next step for a volume on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// No action.
    Idle,
    /// Request the attachment.
    Attach,
    /// The attachment is requested: wait for the driver.
    AwaitAttach,
    /// The volume is attached and wanted: list it in the node's status.
    List,
    /// Another node has the volume, or is to get it first: wait until it is detached there.
    AwaitOtherNode,
    /// The previous attachment is being deleted: wait. Afterwards the volume is attached again, or nothing remains to
    /// do.
    AwaitDetach,
    /// An object has to be decodable before the volume's state is known: wait, and change nothing.
    AwaitDecodable,
    /// The kubelet uses the volume: wait, at most for this time if a time is set.
    AwaitUnmount(Option<Duration>),
    /// Remove the volume from the node's status, which precedes the detachment from a node that exists.
    Unlist,
    /// Detach, after a check that the kubelet has released the volume or that the reason to force the detachment still
    /// holds.
    Detach(Option<ForceDetachReason>),
}

impl Site {
    /// Returns true if the volume may be attached to the node: then an exclusive volume must not be attached elsewhere.
    pub fn occupies(&self) -> bool {
        self.attachment != Attachment::Absent || self.has_foreign || self.is_listed
    }

    fn is_healthy(&self) -> bool {
        self.node.exists && self.node.is_ready
    }

    /// Returns the reason why a volume in use may be detached from the node, if there is one.
    fn forced(&self, rules: Rules) -> Option<ForceDetachReason> {
        let can_time_out = !rules.is_timeout_disabled && !rules.may_have_undecodable_users;
        let is_overdue = can_time_out && self.unwanted_for >= MAX_WAIT_FOR_UNMOUNT;
        if is_overdue && !self.is_healthy() {
            return Some(ForceDetachReason::Timeout);
        }
        (self.node.exists && self.node.is_out_of_service).then_some(ForceDetachReason::OutOfService)
    }
}

/// Decides on the steps for all nodes of a volume, in their order.
pub fn decide(sites: &[Site], rules: Rules) -> Vec<Step> {
    let occupied = sites.iter().filter(|site| site.occupies()).count();
    let chosen = chosen_to_attach(sites);
    let step = |(index, site): (usize, &Site)| {
        if !site.is_wanted {
            return step_if_unwanted(site, rules);
        }
        let others = occupied - usize::from(site.occupies());
        match site.attachment {
            Attachment::Attached => Step::List,
            Attachment::Requested => Step::AwaitAttach,
            Attachment::Deleting => Step::AwaitDetach,
            Attachment::Unknown => Step::AwaitDecodable,
            Attachment::Absent if !site.node.exists => Step::Idle,
            // The response to a repeated request shows whether the attachment exists. Until then an exclusive volume is
            // attached to no other node.
            Attachment::Uncertain => Step::Attach,
            Attachment::Absent if rules.is_exclusive && (others > 0 || chosen != Some(index)) => Step::AwaitOtherNode,
            Attachment::Absent => Step::Attach,
        }
    };
    sites.iter().enumerate().map(step).collect()
}

/// Returns the node that gets an exclusive volume if none has it. A node that waits for a report of its kubelet comes
/// last: the kubelet may never report the volume as in use again.
fn chosen_to_attach(sites: &[Site]) -> Option<usize> {
    let can_attach = |site: &&Site| site.is_wanted && site.node.exists;
    let wanted = || sites.iter().enumerate().filter(|(_, site)| can_attach(site));
    let first = || wanted().find(|(_, site)| !site.awaits_kubelet).or_else(|| wanted().next());
    wanted().find(|(_, site)| site.occupies()).or_else(first).map(|(index, _)| index)
}

/// Decides about a volume that no pod uses on a node.
fn step_if_unwanted(site: &Site, rules: Rules) -> Step {
    if site.attachment == Attachment::Unknown {
        return Step::AwaitDecodable;
    }
    // The kubelet of an unmanaged node attaches and detaches its volumes itself.
    if site.node.exists && !site.node.is_managed {
        return Step::Idle;
    }
    match site.attachment {
        Attachment::Deleting => return Step::AwaitDetach,
        Attachment::Absent if !site.is_listed => return Step::Idle,
        // Another client has deleted the attachment, or the kubelet lists the volume itself. Without an attachment, the
        // kubelet's reported use does not keep the volume from other nodes.
        Attachment::Absent if site.node.exists => return Step::Unlist,
        _ => {}
    }
    let forced = site.forced(rules);
    if site.is_in_use && forced.is_none() {
        let can_time_out = !rules.is_timeout_disabled && !site.is_healthy();
        let remaining = MAX_WAIT_FOR_UNMOUNT.saturating_sub(site.unwanted_for);
        let recheck = if rules.may_have_undecodable_users { UNDECODABLE_RECHECK } else { Duration::ZERO };
        return Step::AwaitUnmount(can_time_out.then_some(remaining.max(recheck)));
    }
    if site.node.exists && site.is_listed {
        return Step::Unlist;
    }
    if site.attachment == Attachment::Absent {
        return Step::Idle;
    }
    Step::Detach(forced.filter(|_| site.is_in_use))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCLUSIVE: Rules =
        Rules { is_exclusive: true, is_timeout_disabled: false, may_have_undecodable_users: false };
    const SHARED: Rules = Rules { is_exclusive: false, ..EXCLUSIVE };
    const HEALTHY: NodeState = NodeState { exists: true, is_managed: true, is_ready: true, is_out_of_service: false };
    const LOST: NodeState = NodeState { is_ready: false, ..HEALTHY };
    const DELETED: NodeState =
        NodeState { exists: false, is_managed: false, is_ready: false, is_out_of_service: false };
    const TAINTED: NodeState = NodeState { is_out_of_service: true, ..LOST };

    fn wanted(attachment: Attachment) -> Site {
        Site { is_wanted: true, attachment, node: HEALTHY, ..Site::default() }
    }

    fn unwanted(node: NodeState) -> Site {
        Site { attachment: Attachment::Attached, node, ..Site::default() }
    }

    fn one(site: Site, rules: Rules) -> Step {
        decide(&[site], rules)[0]
    }

    #[test]
    fn wanted_volume_is_attached_then_listed() {
        for (attachment, expected) in [
            (Attachment::Absent, Step::Attach),
            (Attachment::Uncertain, Step::Attach),
            (Attachment::Requested, Step::AwaitAttach),
            (Attachment::Attached, Step::List),
            (Attachment::Deleting, Step::AwaitDetach),
            (Attachment::Unknown, Step::AwaitDecodable),
        ] {
            for rules in [EXCLUSIVE, SHARED] {
                assert_eq!(one(wanted(attachment), rules), expected, "{attachment:?}");
            }
        }
        assert_eq!(one(Site { node: DELETED, ..wanted(Attachment::Absent) }, SHARED), Step::Idle);
    }

    #[test]
    fn exclusive_volume_waits_for_each_other_node_that_may_have_it() {
        let elsewhere = |site: Site| decide(&[site, wanted(Attachment::Absent)], EXCLUSIVE)[1];
        for attachment in [
            Attachment::Uncertain,
            Attachment::Requested,
            Attachment::Attached,
            Attachment::Deleting,
            Attachment::Unknown,
        ] {
            for is_wanted in [false, true] {
                let other = Site { is_wanted, ..wanted(attachment) };
                assert_eq!(elsewhere(other.clone()), Step::AwaitOtherNode, "{attachment:?}");
                assert_eq!(decide(&[other, wanted(Attachment::Absent)], SHARED)[1], Step::Attach, "{attachment:?}");
            }
        }
        let absent = Site { node: HEALTHY, ..Site::default() };
        assert_eq!(elsewhere(Site { has_foreign: true, ..absent.clone() }), Step::AwaitOtherNode);
        assert_eq!(elsewhere(Site { is_listed: true, ..absent.clone() }), Step::AwaitOtherNode);
        assert_eq!(elsewhere(absent), Step::Attach);
    }

    #[test]
    fn exclusive_volume_is_attached_to_one_of_two_nodes() {
        let both = [wanted(Attachment::Absent), wanted(Attachment::Absent)];
        assert_eq!(decide(&both, EXCLUSIVE), [Step::Attach, Step::AwaitOtherNode]);
        assert_eq!(decide(&both, SHARED), [Step::Attach, Step::Attach]);
        let listed = [wanted(Attachment::Absent), Site { is_listed: true, ..wanted(Attachment::Absent) }];
        assert_eq!(decide(&listed, EXCLUSIVE), [Step::AwaitOtherNode, Step::Attach]);
        let deleted = [Site { node: DELETED, ..wanted(Attachment::Absent) }, wanted(Attachment::Absent)];
        assert_eq!(decide(&deleted, EXCLUSIVE), [Step::Idle, Step::Attach]);
        let lost = Site { awaits_kubelet: true, ..wanted(Attachment::Absent) };
        assert_eq!(
            decide(&[lost.clone(), wanted(Attachment::Absent)], EXCLUSIVE),
            [Step::AwaitOtherNode, Step::Attach]
        );
        assert_eq!(decide(&[lost.clone(), lost], EXCLUSIVE), [Step::Attach, Step::AwaitOtherNode]);
    }

    #[test]
    fn volume_that_is_no_longer_wanted_is_unlisted_before_it_is_detached() {
        let site = unwanted(HEALTHY);
        assert_eq!(one(Site { is_listed: true, ..site.clone() }, SHARED), Step::Unlist);
        assert_eq!(one(site.clone(), SHARED), Step::Detach(None));
        for attachment in [Attachment::Requested, Attachment::Uncertain] {
            assert_eq!(one(Site { attachment, ..site.clone() }, SHARED), Step::Detach(None), "{attachment:?}");
        }
        assert_eq!(one(Site { attachment: Attachment::Deleting, ..site.clone() }, SHARED), Step::AwaitDetach);
        assert_eq!(one(Site { attachment: Attachment::Absent, ..site.clone() }, SHARED), Step::Idle);
        let stale = Site { attachment: Attachment::Absent, is_listed: true, ..site };
        assert_eq!(one(Site { is_in_use: true, ..stale.clone() }, EXCLUSIVE), Step::Unlist);
        assert_eq!(one(stale, SHARED), Step::Unlist);
    }

    #[test]
    fn attachment_in_an_unknown_state_is_left_alone() {
        for node in [HEALTHY, LOST, TAINTED, DELETED, NodeState { is_managed: false, ..HEALTHY }] {
            for (is_listed, is_in_use) in [(false, false), (true, false), (true, true)] {
                let site = Site { attachment: Attachment::Unknown, is_listed, is_in_use, ..unwanted(node) };
                let late = Site { unwanted_for: MAX_WAIT_FOR_UNMOUNT, ..site.clone() };
                assert_eq!([one(site, EXCLUSIVE), one(late, EXCLUSIVE)], [Step::AwaitDecodable; 2], "{node:?}");
            }
        }
    }

    #[test]
    fn volume_whose_pods_may_be_undecodable_is_not_detached_because_of_a_timeout() {
        let rules = Rules { may_have_undecodable_users: true, ..EXCLUSIVE };
        let used = |node| Site { is_in_use: true, ..unwanted(node) };
        let remaining = Duration::from_secs(200);
        for (node, waited, expected) in [
            (HEALTHY, MAX_WAIT_FOR_UNMOUNT, Step::AwaitUnmount(None)),
            (LOST, MAX_WAIT_FOR_UNMOUNT - remaining, Step::AwaitUnmount(Some(remaining))),
            (LOST, MAX_WAIT_FOR_UNMOUNT, Step::AwaitUnmount(Some(UNDECODABLE_RECHECK))),
            (DELETED, MAX_WAIT_FOR_UNMOUNT, Step::AwaitUnmount(Some(UNDECODABLE_RECHECK))),
            (TAINTED, MAX_WAIT_FOR_UNMOUNT, Step::Detach(Some(ForceDetachReason::OutOfService))),
        ] {
            assert_eq!(one(Site { unwanted_for: waited, ..used(node) }, rules), expected, "{node:?}");
        }
        assert_eq!(one(unwanted(LOST), rules), Step::Detach(None), "its kubelet has released the volume");
    }

    #[test]
    fn volume_in_use_is_detached_only_by_force() {
        let late = MAX_WAIT_FOR_UNMOUNT;
        let soon = Duration::from_secs(60);
        let remaining = Step::AwaitUnmount(Some(late - soon));
        let forever = Step::AwaitUnmount(None);
        let timeout = Step::Detach(Some(ForceDetachReason::Timeout));
        let out_of_service = Step::Detach(Some(ForceDetachReason::OutOfService));
        for (name, node, unwanted_for, disabled, expected) in [
            ("healthy", HEALTHY, soon, false, forever),
            ("healthy for a long time", HEALTHY, late, false, forever),
            ("lost", LOST, soon, false, remaining),
            ("lost for a long time", LOST, late, false, timeout),
            ("lost without timeout", LOST, late, true, forever),
            ("deleted", DELETED, soon, false, remaining),
            ("deleted for a long time", DELETED, late, false, timeout),
            ("deleted without timeout", DELETED, late, true, forever),
            ("tainted", TAINTED, Duration::ZERO, false, out_of_service),
            ("tainted for a long time", TAINTED, late, false, timeout),
            ("tainted without timeout", TAINTED, late, true, out_of_service),
            ("healthy and tainted", NodeState { is_ready: true, ..TAINTED }, soon, false, out_of_service),
        ] {
            let site = Site { is_in_use: true, unwanted_for, ..unwanted(node) };
            let rules = Rules { is_timeout_disabled: disabled, ..EXCLUSIVE };
            assert_eq!(one(site, rules), expected, "{name}");
        }
    }

    #[test]
    fn node_whose_kubelet_attaches_volumes_is_left_alone_but_counts() {
        let own = NodeState { is_managed: false, ..HEALTHY };
        let site = Site { is_listed: true, ..unwanted(own) };
        let steps = decide(&[site, wanted(Attachment::Absent)], EXCLUSIVE);
        assert_eq!(steps, [Step::Idle, Step::AwaitOtherNode]);
    }
}
