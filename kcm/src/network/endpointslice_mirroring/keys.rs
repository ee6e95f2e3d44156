//! Maps changes of Endpoints and Services to the keys of Endpoints.

use std::sync::Arc;

use kinds::endpoints::LEADER;
use kinds::intern::label;
use kinds::meta::ObjectKey;
use kinds::{Endpoints, Service};
use runtime::queue::Queue;
use runtime::store::{Change, Store};

/// Label: with the value `true`, Endpoints are not mirrored (discovery/v1, LabelSkipMirror).
pub const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";

/// Returns true if Endpoints may be mirrored: no label forbids it, and they are not a leader election lock. Upstream:
/// pkg/controller/endpointslicemirroring, shouldMirror.
pub fn may_be_mirrored(endpoints: &Endpoints) -> bool {
    label(&endpoints.meta.labels, SKIP) != Some("true") && endpoints.annotation(LEADER).is_none()
}

/// Returns the key of Endpoints whose mirroring may have to begin, change or end.
pub fn of_endpoints(change: &Change<'_, Endpoints>) -> Option<ObjectKey> {
    let mirrored = |endpoints: Option<&Arc<Endpoints>>| endpoints.is_some_and(|endpoints| may_be_mirrored(endpoints));
    let key = change.new.or(change.old)?.meta.key();
    (mirrored(change.old) || mirrored(change.new)).then_some(key)
}

/// Returns the key of the Endpoints of a Service without a selector that was created or deleted, or of a Service that
/// lost or got its selector.
pub fn of_service(change: &Change<'_, Service>) -> Option<ObjectKey> {
    let is_bare = |service: &Arc<Service>| service.selector.is_empty();
    let is_relevant = match (change.old, change.new) {
        (Some(old), Some(new)) => is_bare(old) != is_bare(new),
        (old, new) => new.or(old).is_some_and(is_bare),
    };
    change.new.or(change.old).filter(|_| is_relevant).map(|service| service.meta.key())
}

/// Enqueues the keys of changed objects.
pub fn subscribe(endpoints: &Arc<Store<Endpoints>>, services: &Arc<Store<Service>>, queue: &Arc<Queue<ObjectKey>>) {
    let (on_endpoints, on_services) = (queue.clone(), queue.clone());
    endpoints.subscribe(move |change| {
        if let Some(key) = of_endpoints(change) {
            on_endpoints.add(key);
        }
    });
    services.subscribe(move |change| {
        if let Some(key) = of_service(change) {
            on_services.add(key);
        }
    });
}
