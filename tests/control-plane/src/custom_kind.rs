//! CustomResourceDefinitions for tests.

use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use serde_json::{Value, json};

/// A namespaced custom kind. By default, it has the version `v1` only, and its objects may have any content.
#[derive(Clone, Debug)]
pub struct CustomKind {
    group: String,
    plural: String,
    kind: String,
    served: Vec<String>,
    stored: String,
    schema: Value,
    subresources: Option<Value>,
}

impl CustomKind {
    /// Returns a kind of an API group, whose resource is the kind's name in lower case with an `s`.
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Self {
        let (group, kind) = (group.into(), kind.into());
        Self {
            group,
            plural: format!("{}s", kind.to_lowercase()),
            kind,
            served: vec!["v1".to_owned()],
            stored: "v1".to_owned(),
            schema: json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            subresources: None,
        }
    }

    /// Sets the schema (`openAPIV3Schema`) of all versions.
    #[must_use]
    pub fn with_schema(mut self, schema: Value) -> Self {
        self.schema = schema;
        self
    }

    /// Sets the subresources of all versions.
    #[must_use]
    pub fn with_subresources(mut self, subresources: Value) -> Self {
        self.subresources = Some(subresources);
        self
    }

    /// Sets the versions that are served, and the one among them in which objects are stored.
    #[must_use]
    pub fn with_versions<V: Into<String>>(mut self, served: impl IntoIterator<Item = V>, stored: &str) -> Self {
        self.served = served.into_iter().map(Into::into).collect();
        stored.clone_into(&mut self.stored);
        self
    }

    /// Returns its API group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Returns the kind's name.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the name of the resource without its group.
    pub fn plural(&self) -> &str {
        &self.plural
    }

    /// Returns the name of its definition, which is also kubectl's unambiguous name of the resource.
    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Returns the `apiVersion` of the stored objects.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.stored)
    }

    /// Returns its CustomResourceDefinition.
    pub fn definition(&self) -> Value {
        let versions: Vec<Value> = self.served.iter().map(|name| self.version(name)).collect();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name()},
            "spec": {
                "group": self.group, "scope": "Namespaced", "versions": versions,
                "names": {"plural": self.plural, "kind": self.kind},
            },
        })
    }

    fn version(&self, name: &str) -> Value {
        let mut version = json!({
            "name": name, "served": true, "storage": name == self.stored, "schema": {"openAPIV3Schema": self.schema},
        });
        if let Some(subresources) = &self.subresources {
            version["subresources"] = subresources.clone();
        }
        version
    }

    /// Returns a client of its objects in a namespace, in the version in which they are stored.
    pub fn api(&self, client: Client, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource {
            api_version: self.api_version(),
            group: self.group.clone(),
            version: self.stored.clone(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        };
        Api::namespaced_with(client, namespace, &resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_has_served_versions_of_which_one_is_stored() {
        let kind = CustomKind::new("example.com", "Widget");
        let definition = kind.definition();
        assert_eq!(definition["metadata"]["name"], "widgets.example.com");
        let versions = &definition["spec"]["versions"];
        assert_eq!((&versions[0]["name"], &versions[0]["storage"]), (&json!("v1"), &json!(true)));
        assert!(versions[0].get("subresources").is_none());

        let kind = kind.with_versions(["v1", "v2"], "v2").with_subresources(json!({"status": {}}));
        let versions = kind.definition()["spec"]["versions"].take();
        let stored = |at: usize| (versions[at]["served"].clone(), versions[at]["storage"].clone());
        assert_eq!((stored(0), stored(1)), ((json!(true), json!(false)), (json!(true), json!(true))));
        assert_eq!(versions[1]["subresources"], json!({"status": {}}));
        assert_eq!(kind.api_version(), "example.com/v2");
    }
}
