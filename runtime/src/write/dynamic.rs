//! Requests for objects of any kind, of which only metadata and scale are known.

use http::Method;
use kinds::meta::{Meta, ObjectKey, Uid};
use kinds::wire::find;
use kinds::{DecodeError, Interner, Resource, envelope};
use serde_json::json;

use super::{METADATA_ONLY, ReadPath, WriteError, Writer, path};

const JSON: &str = "application/json";

/// The response to the deletion of a collection is the list of deleted objects, of any kind.
const LIST_OR_STATUS: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// The handling of an object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The dependents are kept and lose their owner reference.
    Orphan,
    /// The dependents are deleted after the object.
    Background,
    /// The dependents are deleted first. The object waits for those that block its deletion.
    Foreground,
}

impl Propagation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Background => "Background",
            Self::Foreground => "Foreground",
        }
    }
}

/// Options for the deletion of one object.
#[derive(Debug, Clone, Copy)]
pub struct Deletion<'a> {
    /// The object's uid: another object with the same name is not deleted.
    pub uid: &'a Uid,
    /// The version that the decision is based on, if the object must not have changed since.
    pub version: Option<u64>,
    /// The handling of its dependents.
    pub propagation: Propagation,
}

/// The scale of an object of any kind that has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// The object's uid.
    pub uid: Uid,
    /// The object's version; zero if it is not a number.
    pub version: u64,
    /// The desired number of pods.
    pub replicas: i32,
    /// The current number of pods.
    pub current: i32,
    /// The selector of its pods, as a query; empty if it is missing.
    pub selector: String,
    /// The JSON text of the response: text uses the least memory.
    whole: Box<str>,
}

impl Scale {
    fn read(json: &[u8]) -> Result<Self, DecodeError> {
        let unreadable = |why: String| DecodeError::field("scale", format!("is unreadable: {why}"));
        let whole = str::from_utf8(json).map_err(|error| unreadable(error.to_string()))?;
        let scale: serde_json::Value = serde_json::from_str(whole).map_err(|error| unreadable(error.to_string()))?;
        let is_object = |value: &serde_json::Value| value.is_object() || value.is_null();
        if !scale.is_object() || !is_object(&scale["spec"]) {
            return Err(unreadable("it or its spec is not an object".to_owned()));
        }
        let meta = |field: &str| scale["metadata"][field].as_str().unwrap_or_default();
        let count = |part: &str, field| {
            // Some APIs omit a zero.
            let count = scale[part]["replicas"].as_i64().unwrap_or(0);
            i32::try_from(count)
                .map_err(|_| DecodeError::field(field, format!("is {count}, which is not a 32-bit number")))
        };
        let (replicas, current) = (count("spec", "spec.replicas")?, count("status", "status.replicas")?);
        // Older versions of `Scale` have a map in `selector`, and the selector as a query in another field.
        let status = &scale["status"];
        let selector = status["selector"].as_str().or(status["targetSelector"].as_str()).unwrap_or_default().to_owned();
        let uid = Uid::parse(meta("uid"));
        // A version that is not a number cannot be that of a watched object.
        let version = meta("resourceVersion").parse().unwrap_or_default();
        Ok(Self { uid, version, replicas, current, selector, whole: whole.into() })
    }

    fn with_replicas(&self, replicas: i32) -> serde_json::Value {
        let mut whole: serde_json::Value =
            serde_json::from_str(&self.whole).expect("cannot parse a scale that was parsed before");
        whole["spec"]["replicas"] = replicas.into();
        whole
    }
}

impl Writer {
    /// Reads the scale of an object from the API server.
    ///
    /// # Errors
    /// Same as [`Writer::get`]; not found if the kind has no scale.
    pub async fn get_scale(&self, resource: &Resource, key: &ObjectKey) -> Result<Scale, WriteError> {
        let path = path::object(resource, key, Some("scale"))?;
        let response = self.send(Method::GET, path, "", JSON, bytes::Bytes::new()).await?;
        Ok(Scale::read(&response.0)?)
    }

    /// Sets the desired number of pods of an object, if its scale has not changed since it was read.
    ///
    /// # Errors
    /// A conflict when the object changed.
    pub async fn replace_scale(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        read: &Scale,
        replicas: i32,
    ) -> Result<(), WriteError> {
        let path = path::object(resource, key, Some("scale"))?;
        let body = read.with_replicas(replicas).to_string().into();
        self.send(Method::PUT, path, JSON, JSON, body).await?;
        Ok(())
    }

    /// Reads a path as JSON, for APIs without protobuf.
    ///
    /// # Errors
    /// Same as [`Writer::get`]; also if the response is not JSON.
    pub async fn get_json_at(&self, path: &ReadPath) -> Result<serde_json::Value, WriteError> {
        let response = self.send(Method::GET, path.as_str().to_owned(), "", JSON, bytes::Bytes::new()).await?;
        let unreadable = |error: serde_json::Error| DecodeError::field("body", format!("is unreadable: {error}"));
        Ok(serde_json::from_slice(&response.0).map_err(unreadable)?)
    }

    /// Deletes the object with this name and uid with a grace period of zero: the API server does not wait for the
    /// kubelet.
    ///
    /// # Errors
    /// A conflict if the object has another uid.
    pub async fn delete_immediately(&self, resource: &Resource, key: &ObjectKey, uid: &Uid) -> Result<(), WriteError> {
        let options = json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": uid.to_string() } });
        self.send_deletion(path::object(resource, key, None)?, options).await
    }

    /// Reads the metadata of one object from the API server.
    ///
    /// # Errors
    /// Same as [`Writer::get`].
    pub async fn get_meta(&self, resource: &Resource, key: &ObjectKey) -> Result<Meta, WriteError> {
        let path = path::referenced(resource, key)?;
        let meta = self.send(Method::GET, path, "", METADATA_ONLY, bytes::Bytes::new()).await?.meta()?;
        if meta.name == key.name {
            return Ok(meta);
        }
        // Another uid means that the object no longer exists; another name means that this is not the response.
        Err(DecodeError::field("metadata.name", "is that of another object than the requested one").into())
    }

    /// Deletes one object under preconditions.
    ///
    /// # Errors
    /// A conflict if the object was replaced, or does not have the required version.
    pub async fn delete_object(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        deletion: Deletion<'_>,
    ) -> Result<(), WriteError> {
        let mut preconditions = json!({ "uid": deletion.uid.to_string() });
        if let Some(version) = deletion.version {
            preconditions["resourceVersion"] = version.to_string().into();
        }
        let options = json!({ "preconditions": preconditions, "propagationPolicy": deletion.propagation.as_str() });
        self.send_deletion(path::object(resource, key, None)?, options).await
    }

    /// Deletes all objects of a kind in a namespace, in the background. Returns the metadata of the objects as the
    /// server found them before the deletion; `None` if the response does not contain it.
    ///
    /// # Errors
    /// When one of them could not be deleted; others may be deleted nevertheless.
    pub async fn delete_collection(
        &self,
        resource: &Resource,
        namespace: &str,
    ) -> Result<Option<Vec<Meta>>, WriteError> {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": Propagation::Background.as_str(),
        });
        let path = path::collection(resource, Some(namespace))?;
        let response = self.send(Method::DELETE, path, "application/json", LIST_OR_STATUS, options.to_string().into());
        Ok(deleted_objects(&response.await?.0)?)
    }
}

/// Returns the objects in the response to the deletion of a collection, if it is a list of metadata that can be read:
/// versions of an aggregated API need not be numbers.
fn deleted_objects(body: &[u8]) -> Result<Option<Vec<Meta>>, DecodeError> {
    if envelope::kind(body) != "PartialObjectMetadataList" {
        return Ok(None);
    }
    let interner = Interner::default();
    let items = envelope::page(body)?.items.into_iter();
    Ok(items.map(|item| Meta::decode(&interner, find(item, 1), |_, _| {}).ok()).collect())
}

#[cfg(test)]
mod tests {
    use kinds::schema::object_meta;
    use kinds::wire::Put;

    use super::*;

    #[test]
    fn deleted_objects_are_returned_only_from_a_list() {
        let mut list = Vec::new();
        list.put_message(1, |meta| meta.put_str(object_meta::RESOURCE_VERSION, "9"));
        let empty = envelope::wrap_as("meta.k8s.io/v1", "PartialObjectMetadataList", &list);
        for name in ["a", "b"] {
            list.put_message(2, |item| {
                item.put_message(1, |meta| {
                    meta.put_str(object_meta::NAME, name);
                    meta.put_str(object_meta::RESOURCE_VERSION, "7");
                });
            });
        }
        let response = envelope::wrap_as("meta.k8s.io/v1", "PartialObjectMetadataList", &list);
        let names = |found: Option<Vec<Meta>>| found.map(|all| all.iter().map(|meta| meta.name.to_string()).collect());
        assert_eq!(names(deleted_objects(&response).expect("a list")), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names(deleted_objects(&empty).expect("a list")), Some(Vec::new()));
        list.put_message(2, |item| item.put_message(1, |meta| meta.put_str(object_meta::RESOURCE_VERSION, "7/8")));
        let opaque = envelope::wrap_as("meta.k8s.io/v1", "PartialObjectMetadataList", &list);
        let mut success = Vec::new();
        success.put_str(2, "Success");
        for other in
            [opaque, envelope::wrap_as("v1", "Status", &success), br#"{"kind": "Status"}"#.to_vec(), Vec::new()]
        {
            assert_eq!(names(deleted_objects(&other).expect("a response")), None);
        }
    }

    #[test]
    fn scale_is_parsed_and_an_invalid_one_reported() {
        let read = |spec: &str| Scale::read(format!(r#"{{"metadata": {{"uid": "u"}}, "spec": {spec}}}"#).as_bytes());
        for (spec, replicas) in [(r#"{"replicas": 3}"#, 3), ("{}", 0)] {
            let scale = read(spec).expect("a scale");
            assert_eq!(
                (&scale.uid, scale.replicas, scale.current, &*scale.selector),
                (&Uid::parse("u"), replicas, 0, "")
            );
            let update = scale.with_replicas(7);
            assert_eq!((&update["spec"]["replicas"], &update["metadata"]["uid"]), (&json!(7), &json!("u")));
        }
        for status in [
            r#"{"selector": "a=b", "replicas": 2}"#,
            r#"{"selector": {"a": "b"}, "targetSelector": "a=b", "replicas": 2}"#,
        ] {
            let scale = Scale::read(format!(r#"{{"status": {status}}}"#).as_bytes()).expect("a scale");
            assert_eq!((scale.current, &*scale.selector), (2, "a=b"));
        }
        let error = read(r#"{"replicas": 3000000000}"#).expect_err("too large").to_string();
        assert_eq!(error, "spec.replicas is 3000000000, which is not a 32-bit number");
        assert!(Scale::read(b"no json").is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_parsed_scale_can_be_changed(
            spec in "null|1|\"a\"|\\[\\]|\\{\\}|\\{\"replicas\":(1|null|-3|1e9|\"a\"|\\[1\\])\\}",
            whole in proptest::bool::ANY,
        ) {
            let text = if whole { format!(r#"{{"spec": {spec}}}"#) } else { spec };
            if let Ok(scale) = Scale::read(text.as_bytes()) {
                proptest::prop_assert_eq!(&scale.with_replicas(7)["spec"]["replicas"], &json!(7));
            }
        }
    }
}
