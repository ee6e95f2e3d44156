//! Responses that lack a resource: AWS may return a new one only in later responses, within a minute.
//!
//! Each decision that relies on such a response has a guard. A *search* is a listing of everything with tags, groups
//! and Classic Load Balancers; `all_visible` is the time from which it contains all that earlier processes have
//! created. A Service *starts empty* if it had no finalizer before its first `ensure`: no other process has created
//! anything for it.
//!
//! | missing | decision | guard |
//! | --- | --- | --- |
//! | every resource of a deleted Service | nothing is left | five searches before `all_visible`, and within a minute after a failed `ensure`; one for a Service that starts empty (`BalancerState::may_have_invisible`) |
//! | what this process created | nothing is left | it is deleted by its ARN or id (`BalancerState::made`) |
//! | the resource of a deletion | it no longer exists | deleted again if this process created it within a minute (`BalancerState::may_appear`); otherwise the next search decides |
//! | tags | the resource has another owner | they are read again for a minute if the resource's name fits (`Listing::incomplete`, `BalancerState::unconfirmed`) |
//! | a Service's load balancer or target group | it is created | a current listing, unless it starts empty; AWS returns an existing one, whose details are read then |
//! | a resource that a settled Service no longer needs | nothing is deleted | one more listing at `all_visible`, and a minute after a creation by this process that is not listed or whose response was lost (`BalancerState::visible_later`) |
//! | a security group | it is created | AWS refuses a second one of the same name |
//! | load balancers with the shared security group | the group is deleted with its rules | as for a deleted Service, also for one that starts empty (`BalancerState::may_have_invisible_sharer`) |
//! | the load balancer of a group | the Service has left the group | further searches if this process created it (`Created::may_have_invisible_balancer`); a search after `all_visible` follows |
//! | listeners of the load balancer of a group | the load balancer is deleted | kept for a minute after another Service used it, and for further reads before `all_visible` (`Created::may_have_invisible_listener`) |
//! | the Classic Load Balancer of a Service | a Network Load Balancer is created | further reads before `all_visible` (`BalancerState::may_have_invisible_classic`) |
//! | a rule in a node's security group | it is added | AWS refuses a second one |
//! | rules of a deleted load balancer | nothing is revoked | before `all_visible` they are read after the last search |
//! | an endpoint service | it is created | the same request is repeated; if there are two later, the one that the load balancer uses is kept |
//! | an endpoint service | its load balancer is deleted | AWS refuses that while it exists |
//! | a target group of a user | the user has deleted it | it is read by its ARN |
//! | the network interface of a pod | its security group is not opened | several lookups (`AddressGroups::pending`) |

/// Maximum number of responses that may lack an existing resource. After one more, the resource counts as missing. With
/// the pauses between them, these responses take some seconds.
const MISSING: u32 = 4;

/// The number of responses without a resource that may exist.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Misses(u32);

impl Misses {
    /// Counts a response without the resource. Returns true if a later response may contain it, because only a few have
    /// lacked it so far.
    pub(crate) fn may_appear(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 <= MISSING
    }
}
