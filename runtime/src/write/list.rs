//! Uncached lists with their version.

use bytes::Bytes;
use http::Method;
use kinds::meta::{Meta, ObjectKey};
use kinds::wire::find;
use kinds::{DecodeError, Interner, Resource, envelope};

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

/// A page of a list of keys and versions.
#[derive(Debug)]
pub struct VersionPage {
    /// The objects.
    pub objects: Vec<(ObjectKey, u64)>,
    /// Token for the next page; empty on the last one.
    pub next: String,
}

impl Writer {
    /// Reads from the API server the metadata of the objects of a namespace that match a label selector, and the
    /// version of the list.
    ///
    /// # Errors
    /// When the request fails or the response cannot be decoded.
    pub async fn list_metadata(
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

    /// Reads from the API server one page of the keys and versions of a resource's objects: the first page if `token`
    /// is empty, otherwise the page that the token names.
    ///
    /// # Errors
    /// When a request fails or a response cannot be decoded.
    pub async fn list_versions(&self, resource: &Resource, token: &str) -> Result<VersionPage, WriteError> {
        let mut path = format!("{}?limit={PAGE_SIZE}", super::path::collection(resource, None)?);
        if !token.is_empty() {
            path += &format!("&continue={}", percent_encode(token));
        }
        let response = self.send(Method::GET, path, "", METADATA_LIST, Bytes::new()).await?;
        let (page, interner) = (envelope::page(&response.0)?, Interner::default());
        let keyed = |item: &&[u8]| {
            let meta = Meta::decode(&interner, find(item, 1), |_, _| {})?;
            Ok((meta.key(), meta.version))
        };
        let objects = page.items.iter().map(keyed).collect::<Result<_, DecodeError>>()?;
        Ok(VersionPage { objects, next: page.next.to_owned() })
    }
}
