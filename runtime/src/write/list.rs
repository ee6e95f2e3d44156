//! Uncached lists with their version.

use bytes::Bytes;
use http::Method;
use kinds::meta::Meta;
use kinds::wire::find;
use kinds::{Interner, Resource, envelope};

use super::{WriteError, Writer};
use crate::client::media::METADATA_LIST;
use crate::text::percent_encode;

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
        let answer = self.send(Method::GET, path, "", METADATA_LIST, Bytes::new()).await?;
        let page = envelope::page(&answer.0)?;
        let interner = Interner::default();
        let items = page.items.into_iter().map(|item| Meta::decode(&interner, find(item, 1), |_, _| {}));
        Ok(MetaList { version: page.version, items: items.collect::<Result<_, _>>()? })
    }
}
