//! The health checks that every manager has: of the election, the watches, the controllers' threads, and the stores.
//! None waits for a lock that controllers hold.

use std::time::Duration;

use crate::fence::Fence;
use crate::serve::Check;
use crate::stall::Heartbeat;
use crate::watch::Registry;

/// The time beyond the lease's duration for which a leader without renewal counts as healthy. Upstream:
/// cmd/kube-controller-manager/app, Run.
const LEASE_TOLERANCE: Duration = Duration::from_secs(20);

/// Number of consecutive panics after which a watch is unhealthy: only a restart of the process may help.
const MAX_CONSECUTIVE_PANICS: u64 = 5;

/// Returns the check `leaderElection`, which fails while a leader has not renewed its Lease for too long.
pub fn leader_election(fence: &Fence) -> Check {
    let fence = fence.clone();
    Check::new("leaderElection", move || Some(fence.check(LEASE_TOLERANCE).map_err(|stale| stale.to_string())))
}

/// Returns the check `watches`, which fails while a watch panics repeatedly.
pub fn watches(registry: &Registry) -> Check {
    let watched = registry.stats();
    Check::new("watches", move || {
        let broken = watched.iter().filter(|watch| watch.panics_in_a_row() >= MAX_CONSECUTIVE_PANICS);
        let broken: Vec<String> = broken.map(|watch| watch.resource()).collect();
        Some(if broken.is_empty() { Ok(()) } else { Err(format!("watches panic repeatedly: {}", broken.join(", "))) })
    })
}

/// Returns the check `workers`, which fails when the controllers' threads have run no task for a minute.
pub fn workers(heartbeat: &Heartbeat) -> Check {
    let heartbeat = heartbeat.clone();
    Check::new("workers", move || Some(heartbeat.check().map_err(|stall| stall.to_string())))
}

/// Returns the check `stores`, which fails until the first list of each kind is complete. It is for readiness only.
pub fn stores(registry: &Registry) -> Check {
    let stores = registry.stats();
    Check::new("stores", move || {
        let unlisted: Vec<String> =
            stores.iter().filter(|store| !store.is_synced()).map(|store| store.resource()).collect();
        Some(if unlisted.is_empty() { Ok(()) } else { Err(format!("not listed yet: {}", unlisted.join(", "))) })
    })
}

#[cfg(test)]
mod tests {
    use kinds::{Pod, Sections};

    use super::*;
    use crate::watch::Builder;

    #[test]
    fn watch_is_unhealthy_while_it_panics_repeatedly() {
        let mut needs = Builder::default();
        needs.need::<Pod>(Sections::default(), &[]);
        let registry = needs.build();
        let (check, store) = (watches(&registry), registry.store::<Pod>());
        for _ in 0..MAX_CONSECUTIVE_PANICS {
            assert_eq!(check.outcome(), Some(Ok(())));
            store.progress().count_panic();
        }
        let problem = check.outcome().expect("it applies").expect_err("it panics");
        assert_eq!(problem, "watches panic repeatedly: pods");
        store.progress().forget_panics();
        assert_eq!(check.outcome(), Some(Ok(())));
    }

    #[test]
    fn stores_are_ready_when_each_kind_is_listed() {
        let mut needs = Builder::default();
        needs.need::<Pod>(Sections::default(), &[]);
        let registry = needs.build();
        let check = stores(&registry);
        assert_eq!(check.outcome(), Some(Err("not listed yet: pods".to_owned())));
        registry.store::<Pod>().progress().set_synced();
        assert_eq!(check.outcome(), Some(Ok(())));
    }
}
