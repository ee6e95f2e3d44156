//! Custom kinds of a single test, and their objects.

use anyhow::{Context, Result, ensure};
use control_plane::CustomKind;
use http::header::ACCEPT;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::space::Space;
use crate::wait::eventually;

/// The media type of discovery documents with all groups.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Objects of a custom kind in a test's namespace.
#[derive(Clone)]
pub struct CustomObjects {
    /// Their kind.
    pub kind: CustomKind,
    /// The admin's client.
    pub api: Api<DynamicObject>,
}

impl Space {
    /// Returns an API group for a single test, because CustomResourceDefinitions have no namespace. It is short enough
    /// for the name of a resource in a quota.
    pub fn api_group(&self) -> String {
        // The end of the namespace's name is generated.
        format!("{}.example.com", self.namespace.rsplit('-').next().unwrap_or_default())
    }

    /// Creates a custom kind, or updates it. Waits until discovery has it, because controllers find its resource there.
    /// The first objects of a new kind can sometimes be created before discovery has it.
    pub async fn define(&self, kind: CustomKind) -> Result<CustomObjects> {
        self.kubectl_with_input(&["apply", "--filename=-"], kind.definition().to_string()).await?;
        eventually(format!("discovery has {}", kind.name()), || self.check_discovered(&kind)).await?;
        let api = kind.api(self.bed.client.clone(), &self.namespace);
        Ok(CustomObjects { kind, api })
    }

    async fn check_discovered(&self, kind: &CustomKind) -> Result<()> {
        let request = http::Request::get("/apis").header(ACCEPT, DISCOVERY).body(Vec::new())?;
        let groups: Value = self.bed.client.request(request).await?;
        let has_kind = |version: &Value| {
            let mut resources = version["resources"].as_array().into_iter().flatten();
            resources.any(|resource| resource["responseKind"]["kind"] == kind.kind())
        };
        let mut groups = groups["items"].as_array().into_iter().flatten();
        let group = groups.find(|group| group["metadata"]["name"] == kind.group()).context("no such group")?;
        ensure!(group["versions"].as_array().into_iter().flatten().any(has_kind), "the group lacks the kind: {group}");
        Ok(())
    }

    /// Deletes a custom kind with its objects, and waits until it no longer exists.
    pub async fn undefine(&self, kind: &CustomKind) -> Result<()> {
        self.kubectl(&["delete", "customresourcedefinition", &kind.name()]).await.map(drop)
    }
}

impl CustomObjects {
    /// Creates an object from JSON without `apiVersion` and `kind`. The kind may have been created just before: the
    /// method waits until the API server serves it and admission no longer refuses its objects.
    pub async fn create(&self, mut object: Value) -> Result<DynamicObject> {
        object["apiVersion"] = self.kind.api_version().into();
        object["kind"] = self.kind.kind().into();
        let typed: DynamicObject = serde_json::from_value(object.clone()).with_context(|| format!("read {object}"))?;
        eventually(format!("{} can be created", self.kind.name()), || async {
            Ok(self.api.create(&PostParams::default(), &typed).await?)
        })
        .await
    }

    /// Returns a reference to an object, for an owner reference or a scale target.
    pub fn reference(&self, object: &DynamicObject) -> Value {
        json!({
            "apiVersion": self.kind.api_version(), "kind": self.kind.kind(), "name": object.name_any(),
            "uid": object.uid(),
        })
    }
}
