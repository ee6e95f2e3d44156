//! A binder with empty caches.

use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{Decode, Kind, Sections};
use runtime::events::Recorder;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store};
use runtime::testing::{NoEvents, filled_store};
use runtime::write::Writer;

use crate::storage::binder::metrics::Operations;
use crate::storage::binder::notices::Notices;
use crate::storage::binder::reconciler::{Binder, Settings};
use crate::storage::binder::recycler_pod::Recyclers;
use crate::storage::indexes::{claims_by_volume, pods_by_claim};

pub fn store<K: Kind>(indexes: Vec<Index<K>>) -> Arc<Store<K>> {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    Arc::new(filled_store(decode, indexes, []))
}

/// Returns a binder with empty caches. Nodes are cached only if host-path volumes are provisioned.
pub fn binder(writer: Writer, has_host_path: bool, recyclers: Result<Recyclers, String>) -> Binder {
    let (recorder, _) = Recorder::new("test", Arc::new(NoEvents));
    let queue = |name| Queue::<ObjectKey>::new(QueueOptions::named(name));
    Binder {
        claims: store(vec![claims_by_volume()]),
        volumes: store(Vec::new()),
        classes: store(Vec::new()),
        pods: store(vec![pods_by_claim()]),
        nodes: has_host_path.then(|| store(Vec::new())),
        writer,
        claim_queue: queue("claims"),
        volume_queue: queue("volumes"),
        matcher: Arc::default(),
        notices: Notices::new(recorder),
        operations: Operations::new(&Metrics::default()),
        recycling: Default::default(),
        clock: Arc::new(Default::default),
        settings: Settings {
            sync_period: Duration::from_secs(15),
            is_dynamic: true,
            has_host_path,
            tracks_unused: false,
            recyclers,
        },
    }
}
