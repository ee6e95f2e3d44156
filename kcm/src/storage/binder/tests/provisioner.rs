//! The creation of host-path volumes that the API server refuses.

use std::path::Path;
use std::sync::{Arc, Mutex};

use http::Method;
use kinds::persistent_volume_claim::STORAGE_PROVISIONER;
use runtime::lock::lock;
use runtime::testing::{deliver, writer};

use super::binders;
use super::builders::{claim, class};
use crate::storage::binder::host_path;
use crate::storage::binder::names::HOST_PATH;
use crate::storage::binder::reconciler::Binder;

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
    let binder = binders::binder(writer, true, Err("not needed".to_owned()));
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
