//! Records that a provider keeps of a Service: ConfigMaps in the Service's namespace, which are deleted with the
//! Service.

use std::collections::BTreeMap;

use kinds::meta::ObjectKey;
use kinds::{ConfigMap, Kind};
use providers::{CloudError, ErrorKind, LoadBalancerId, Records, async_trait};
use runtime::write::{WriteError, Writer};
use serde_json::{Value, json};

/// Field manager for server-side apply.
const MANAGER: &str = "cloud-controller-manager";

/// Records as ConfigMaps.
pub struct ConfigMaps {
    pub writer: Writer,
}

fn key(service: &LoadBalancerId, name: &str) -> ObjectKey {
    ObjectKey::new(service.namespace.as_str(), name)
}

fn refused(operation: &'static str, name: &str, error: &WriteError) -> CloudError {
    let kind = match error.refused().map(|status| status.code) {
        Some(403) => ErrorKind::Denied,
        _ => ErrorKind::Transient,
    };
    let fix = match kind {
        ErrorKind::Denied => "; give service-controller the permissions in deploy/ccm-targets-rbac.yaml",
        _ => "",
    };
    CloudError::new(kind, operation, format!("the ConfigMap {name}: {error}{fix}"))
}

fn data(object: &Value) -> BTreeMap<String, String> {
    let entries = object["data"].as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns true if an object is owned by the Service. A user who can write ConfigMaps can set the owner, too.
fn is_of(object: &Value, service: &LoadBalancerId) -> bool {
    let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| owner["uid"] == *service.uid)
}

impl ConfigMaps {
    async fn get(&self, service: &LoadBalancerId, name: &str) -> Result<Option<Value>, CloudError> {
        match self.writer.get_json(&ConfigMap::RESOURCE, &key(service, name)).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(refused("ReadRecord", name, &error)),
        }
    }
}

#[async_trait]
impl Records for ConfigMaps {
    async fn read(&self, service: &LoadBalancerId, name: &str) -> Result<Option<BTreeMap<String, String>>, CloudError> {
        Ok(self.get(service, name).await?.map(|object| data(&object)))
    }

    async fn read_own(
        &self,
        service: &LoadBalancerId,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, CloudError> {
        Ok(self.get(service, name).await?.filter(|object| is_of(object, service)).map(|object| data(&object)))
    }

    async fn write(
        &self,
        service: &LoadBalancerId,
        name: &str,
        record: &BTreeMap<String, String>,
    ) -> Result<(), CloudError> {
        let owner = json!({ "apiVersion": "v1", "kind": "Service", "name": service.name, "uid": service.uid });
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": service.namespace, "ownerReferences": [owner] },
            "data": record,
        });
        let written = self.writer.apply(&ConfigMap::RESOURCE, &key(service, name), None, MANAGER, &object).await;
        written.map(drop).map_err(|error| refused("WriteRecord", name, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_another_service_is_recognized_by_the_uid_of_its_owner() {
        let id = |uid: &str| LoadBalancerId {
            cluster: "kubernetes".into(),
            namespace: "default".into(),
            name: "web".into(),
            uid: uid.into(),
        };
        let owned = json!({ "metadata": { "ownerReferences": [{ "kind": "Service", "name": "web", "uid": "1" }] } });
        assert!(is_of(&owned, &id("1")));
        assert!(!is_of(&owned, &id("2")), "an earlier Service with this name, or one of another cluster");
        assert!(!is_of(&json!({ "metadata": {} }), &id("1")), "a copy without its owner");
    }
}
