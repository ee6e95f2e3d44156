//! The creation of host-path volumes that the API server refuses.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::STORAGE_PROVISIONER;
use kinds::{Decode, Kind, Sections};
use runtime::events::Recorder;
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store};
use runtime::testing::{NoEvents, deliver, filled_store, writer};

use super::builders::{claim, class};
use crate::storage::binder::host_path;
use crate::storage::binder::metrics::Operations;
use crate::storage::binder::names::HOST_PATH;
use crate::storage::binder::notices::Notices;
use crate::storage::binder::reconciler::{Binder, Settings};
use crate::storage::indexes::pods_by_claim;

fn store<K: Kind>(indexes: Vec<Index<K>>) -> Arc<Store<K>> {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    Arc::new(filled_store(decode, indexes, []))
}

/// Returns a binder with a host-path class `local`. Its API server has no objects, and responds to creations with this
/// status. The second value counts the creations.
async fn binder(code: u16, reason: &'static str) -> (Binder, Arc<Mutex<usize>>) {
    let creations = Arc::<Mutex<usize>>::default();
    let counted = creations.clone();
    let writer = writer(move |method, _| {
        let (code, reason) = if *method == Method::POST { (code, reason) } else { (404, "NotFound") };
        *lock(&counted) += usize::from(*method == Method::POST);
        let status = format!(r#"{{"kind": "Status", "code": {code}, "reason": "{reason}"}}"#);
        (code, status.into_bytes())
    })
    .await;
    let (recorder, _) = Recorder::new("test", Arc::new(NoEvents));
    let queue = |name| Queue::<ObjectKey>::new(QueueOptions::named(name));
    let binder = Binder {
        claims: store(Vec::new()),
        volumes: store(Vec::new()),
        classes: store(Vec::new()),
        pods: store(vec![pods_by_claim()]),
        nodes: Some(store(Vec::new())),
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
            has_host_path: true,
            tracks_unused: false,
            recyclers: Err("not needed".to_owned()),
        },
    };
    deliver(&binder.classes, (*class("local", HOST_PATH, "Immediate", false, 0)).clone());
    (binder, creations)
}

/// A volume without its directory would be bound, and a pod would get an empty one.
#[tokio::test]
async fn directory_is_deleted_only_if_its_volume_certainly_does_not_exist() {
    for (case, code, reason, is_kept) in [
        ("forbidden", 403, "Forbidden", false),
        ("invalid", 422, "Invalid", false),
        ("too many requests", 429, "TooManyRequests", false),
        ("the volume exists", 409, "AlreadyExists", true),
        ("the storage of the API server did not respond in time", 504, "Timeout", true),
        ("an error after which the volume may exist", 500, "InternalError", true),
    ] {
        let (binder, creations) = binder(code, reason).await;
        let uid = format!("provisioner-test-{}-{code}", std::process::id());
        let directory = host_path::directory(&uid);
        let claim = claim("data").class("local").annotated(STORAGE_PROVISIONER, HOST_PATH);
        let claim = claim.with(|claim| claim.head.uid = uid).record();
        let result = binder.provision(&claim, "local").await;
        assert_eq!(result.is_ok(), reason == "AlreadyExists", "{case}: {result:?}");
        assert_eq!(*lock(&creations), 1, "{case}");
        assert_eq!(Path::new(&directory).is_dir(), is_kept, "{case}");
        host_path::delete(&directory).expect(case);
    }
}
