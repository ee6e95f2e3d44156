//! Uncached lists with their version.

use bytes::Bytes;
use http::Method;
use kinds::meta::{Meta, ObjectKey};
use kinds::wire::find;
use kinds::{Interner, Resource, envelope};

use super::{PAGE_SIZE, WriteError, Writer};
use crate::client::media::METADATA_LIST;
use crate::text::percent_encode;

/// A namespace that cannot exist, so that a list of it is empty (pkg/controller/storageversionmigrator,
/// fakeSVMNamespaceName).
const NO_NAMESPACE: &str = "@fake:svm_ns!";

/// Metadata of the objects of a list, and the version that the API server had reached.
#[derive(Debug)]
pub struct MetaList {
    /// The version of the list. It is comparable with versions of objects of the same resource.
    pub version: u64,
    /// The objects.
    pub items: Vec<Meta>,
}

impl Writer {
    /// Reads the metadata of a namespace's objects that match a label selector from the API server, with the list's
    /// version.
    ///
    /// # Errors
    /// When the request fails or the response cannot be decoded.
    pub async fn list_versioned(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<MetaList, WriteError> {
        let collection = super::path::collection(resource, Some(namespace))?;
        let path = format!("{collection}?labelSelector={}", percent_encode(selector));
        let response = self.send(Method::GET, path, "", METADATA_LIST, Bytes::new()).await?;
        let page = envelope::page(&response.0)?;
        let interner = Interner::default();
        let items = page.items.into_iter().map(|item| Meta::decode(&interner, find(item, 1), |_, _| {}));
        Ok(MetaList { version: page.version, items: items.collect::<Result<_, _>>()? })
    }

    /// Reads the version that the API server has reached for a resource. If the resource is namespaced, the response
    /// contains no objects.
    ///
    /// # Errors
    /// When the request fails or the response cannot be decoded.
    pub async fn latest_version(&self, resource: &Resource) -> Result<u64, WriteError> {
        let path = format!("{}?limit=1", super::path::collection(resource, Some(NO_NAMESPACE))?);
        let response = self.send(Method::GET, path, "", METADATA_LIST, Bytes::new()).await?;
        Ok(envelope::page(&response.0)?.version)
    }

    /// Reads the keys and versions of all objects of a resource from the API server, page by page.
    ///
    /// # Errors
    /// When a request fails or a response cannot be decoded.
    pub async fn list_versions(&self, resource: &Resource) -> Result<Vec<(ObjectKey, u64)>, WriteError> {
        let (interner, mut objects, mut next) = (Interner::default(), Vec::new(), String::new());
        loop {
            let path = format!("{}?limit={PAGE_SIZE}{next}", super::path::collection(resource, None)?);
            let response = self.send(Method::GET, path, "", METADATA_LIST, Bytes::new()).await?;
            let page = envelope::page(&response.0)?;
            for item in page.items {
                let meta = Meta::decode(&interner, find(item, 1), |_, _| {})?;
                objects.push((meta.key(), meta.version));
            }
            if page.next.is_empty() {
                return Ok(objects);
            }
            next = format!("&continue={}", percent_encode(page.next));
        }
    }
}
