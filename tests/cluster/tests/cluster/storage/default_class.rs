//! Claims without a class get the default class, even one that is created later.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::binder::{BINDER, FLAGS};
use super::objects::{ClusterWide, alone, claim};
use crate::robustness::invariants::only_declared;

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// The claims and classes of the test.
struct Setup {
    space: Space,
    classes: ClusterWide<StorageClass>,
}

impl Setup {
    fn name(&self, class: &str) -> String {
        format!("{}-{class}", self.space.namespace)
    }

    async fn create_class(&self, class: &str, is_default: bool) -> Result<StorageClass> {
        let annotations = json!({IS_DEFAULT: is_default.to_string()});
        let metadata = json!({"name": self.name(class), "annotations": annotations});
        self.classes.create(json!({"metadata": metadata, "provisioner": "fake.example.com"})).await
    }

    async fn set_default(&self, class: &str, is_default: bool) -> Result<()> {
        let annotations = json!({IS_DEFAULT: is_default.to_string()});
        self.classes.patch(&self.name(class), json!({"metadata": {"annotations": annotations}})).await?;
        Ok(())
    }

    /// Creates a claim, again until admission does not set its class to a default one, which its cache may still
    /// contain.
    async fn create_claim(&self, name: &str, class: Option<&str>) -> Result<()> {
        let mut object = claim(name);
        match class {
            Some(class) => object["spec"]["storageClassName"] = class.into(),
            None => drop(object["spec"].as_object_mut().and_then(|spec| spec.remove("storageClassName"))),
        }
        eventually(format!("{name} is created with the class {class:?}"), || async {
            let created: PersistentVolumeClaim = self.space.create(object.clone()).await?;
            let found = created.spec.and_then(|spec| spec.storage_class_name);
            if found.as_deref() != class {
                self.space.patch::<PersistentVolumeClaim>(name, json!({"metadata": {"finalizers": null}})).await?;
                self.space.delete::<PersistentVolumeClaim>(name).await?;
            }
            ensure!(found.as_deref() == class, "admission has set the class {found:?}");
            Ok(())
        })
        .await
    }

    async fn class_of(&self, claim: &str) -> Result<Option<String>> {
        let claim: PersistentVolumeClaim = self.space.get(claim).await?;
        Ok(claim.spec.and_then(|spec| spec.storage_class_name))
    }

    async fn until_class(&self, claim: &str, class: &str) -> Result<()> {
        eventually(format!("{claim} has the class {class}"), || async {
            let found = self.class_of(claim).await?;
            ensure!(found == Some(self.name(class)), "{found:?}");
            Ok(())
        })
        .await
    }

    async fn until_waiting(&self, claim: &str) -> Result<()> {
        eventually(format!("{claim} waits"), || async {
            let events = self.space.events(claim).await?;
            let wanted =
                "Normal FailedBinding no persistent volumes available for this claim and no storage class is set";
            ensure!(events.contains_key(wanted), "{events:?}");
            Ok(())
        })
        .await
    }

    /// Creates two classes, of which the second one is newer. Times of creation are whole seconds.
    async fn create_two(&self, older: &str, newer: &str) -> Result<()> {
        let first = self.create_class(older, false).await?.metadata.creation_timestamp;
        eventually(format!("{newer} is newer than {older}"), || async {
            let second = self.create_class(newer, false).await?.metadata.creation_timestamp;
            if second <= first {
                self.classes.delete(&self.name(newer)).await?;
            }
            ensure!(second > first, "{second:?}");
            Ok(())
        })
        .await
    }
}

/// The sync period is a day: only changes of classes requeue the claims.
pub async fn waiting_claims_get_the_newest_default_class(space: Space) -> Result<()> {
    let (space, _alone) = alone(&space).await?;
    let setup = Setup { space: space.clone(), classes: ClusterWide::of(&space) };
    let flags = [FLAGS[0], "--pvclaimbinder-sync-period=24h"];
    let faults = Faults::default();
    let manager = Manager::start_with(&space, &faults, &flags).await?;
    setup.create_claim("first", None).await?;
    setup.create_claim("empty", Some("")).await?;
    setup.create_claim("other", Some("missing")).await?;
    setup.until_waiting("first").await?;
    setup.until_waiting("empty").await?;

    // The default class is created later.
    setup.create_class("created", true).await?;
    setup.until_class("first", "created").await?;
    manager.stop().await?;

    // An existing class becomes the default one.
    setup.set_default("created", false).await?;
    setup.create_claim("second", None).await?;
    let manager = Manager::start_with(&space, &faults, &flags).await?;
    setup.until_waiting("second").await?;
    setup.create_two("a-older", "b-newer").await?;
    setup.set_default("a-older", true).await?;
    setup.until_class("second", "a-older").await?;
    manager.stop().await?;

    // Of two default classes, the newer one counts, although its name is the last one.
    setup.set_default("a-older", false).await?;
    setup.create_claim("third", None).await?;
    setup.set_default("a-older", true).await?;
    setup.set_default("b-newer", true).await?;
    let manager = Manager::start_with(&space, &faults, &flags).await?;
    setup.until_class("third", "b-newer").await?;
    let expected: BTreeMap<&str, Option<String>> = [
        ("first", Some(setup.name("created"))),
        ("second", Some(setup.name("a-older"))),
        ("third", Some(setup.name("b-newer"))),
        ("empty", Some(String::new())),
        ("other", Some("missing".to_owned())),
    ]
    .into();
    during(QUIET, "no other class is set", || async {
        for (claim, class) in &expected {
            let found = setup.class_of(claim).await?;
            ensure!(found == *class, "{claim}: {found:?}");
        }
        Ok(())
    })
    .await?;
    for class in ["created", "a-older", "b-newer"] {
        setup.classes.delete(&setup.name(class)).await?;
    }
    manager.stop().await?;
    only_declared(&faults, &[BINDER])
}
