//! ConfigMap: only metadata, and the contents of those that a section selects, such as the ones that controllers
//! publish.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError, Sections};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{config_map as object, object_meta};
use crate::wire::{self, Put, WireError, fields, find, map_entry, splice};

/// Name of the ConfigMap with the root certificates, in each namespace.
pub const ROOT_CA: &str = "kube-root-ca.crt";
/// Name of the ConfigMap with information for joining nodes, in [`PUBLIC`].
pub const CLUSTER_INFO: &str = "cluster-info";
/// The namespace for objects that all users may read, such as [`CLUSTER_INFO`].
pub const PUBLIC: &str = "kube-public";

/// A ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMap {
    /// Metadata.
    pub meta: Meta,
    /// The contents, if a section selects this ConfigMap.
    pub body: Option<Body>,
}

/// The contents of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// The raw entries of `data`; shared by all ConfigMaps with equal entries.
    data: Arc<[u8]>,
    /// All other fields of the object, without managed fields.
    rest: Arc<[u8]>,
}

impl ConfigMap {
    /// Section: contents of [`ROOT_CA`], in each namespace.
    pub const ROOT_CAS: Sections = Sections(1);
    /// Section: contents of [`CLUSTER_INFO`] in [`PUBLIC`].
    pub const CLUSTER_INFOS: Sections = Sections(2);
    /// Section: contents of every ConfigMap. For single objects that are read from the API server.
    pub const WHOLE: Sections = Sections(4);

    fn is_kept(sections: Sections, meta: &Meta) -> bool {
        let named = |section, name: &str| sections.contains(section) && *meta.name == *name;
        sections.contains(Self::WHOLE)
            || named(Self::ROOT_CAS, ROOT_CA)
            || named(Self::CLUSTER_INFOS, CLUSTER_INFO) && &*meta.namespace == PUBLIC
    }
}

impl Body {
    fn keep(context: &Decode, object: &[u8]) -> Result<Self, WireError> {
        let mut data = Vec::new();
        wire::copy_fields(object, &mut data, |field| field.number == object::DATA)?;
        let rest = splice::edited(object, &[], |field| field.number != object::DATA, |_| {})?;
        Ok(Self { data: context.interner.blob(&data), rest: rest.into() })
    }

    /// Returns the entries of `data`, in the order of their keys.
    pub fn data(&self) -> impl Iterator<Item = (&str, &str)> {
        fields(&self.data).flatten().filter_map(|field| map_entry(field.value.bytes()).ok())
    }

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        fields(find(&self.rest, object::METADATA))
            .flatten()
            .filter(|field| field.number == object_meta::ANNOTATIONS)
            .filter_map(|field| map_entry(field.value.bytes()).ok())
            .find_map(|(name, value)| (name == key).then_some(value))
    }

    /// Returns the object for a PUT with these annotations set and its data replaced.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn update<'a>(
        &self,
        annotations: &[(&str, &str)],
        data: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Vec<u8>, WireError> {
        splice::edited(
            &self.rest,
            annotations,
            |_| true,
            |out| data.into_iter().for_each(|(key, value)| out.put_entry(object::DATA, key, value)),
        )
    }
}

impl Kind for ConfigMap {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let meta = Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?;
        let kept = Self::is_kept(context.sections, &meta);
        Ok(Self { body: kept.then(|| Body::keep(context, object)).transpose()?, meta })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(namespace: &str, name: &str, sections: Sections) -> ConfigMap {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAMESPACE, namespace);
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_entry(object_meta::ANNOTATIONS, "why", "because");
        });
        object.put_entry(object::DATA, "a", "1");
        object.put_entry(object::DATA, "b", "2");
        object.put_entry(3, "binary", "kept");
        ConfigMap::decode(&Decode { interner: Arc::default(), sections }, &object).expect("a ConfigMap")
    }

    #[test]
    fn body_is_kept_only_for_selected_sections() {
        for (namespace, name, sections, kept) in [
            ("a", ROOT_CA, ConfigMap::ROOT_CAS, true),
            ("a", ROOT_CA, ConfigMap::CLUSTER_INFOS, false),
            (PUBLIC, CLUSTER_INFO, ConfigMap::CLUSTER_INFOS, true),
            ("a", CLUSTER_INFO, ConfigMap::CLUSTER_INFOS, false),
            ("a", "other", ConfigMap::ROOT_CAS | ConfigMap::CLUSTER_INFOS, false),
            ("a", "other", ConfigMap::WHOLE, true),
            ("a", ROOT_CA, Sections::default(), false),
        ] {
            assert_eq!(decode(namespace, name, sections).body.is_some(), kept, "{namespace}/{name} {sections:?}");
        }
    }

    #[test]
    fn update_replaces_data_and_keeps_the_rest() {
        let map = decode("a", ROOT_CA, ConfigMap::ROOT_CAS);
        let body = map.body.expect("kept");
        assert_eq!(body.data().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        assert_eq!((body.annotation("why"), body.annotation("what")), (Some("because"), None));
        let updated = body.update(&[("what", "this")], [("c", "3")]).expect("well-formed");
        let context = Decode { interner: Arc::default(), sections: ConfigMap::WHOLE };
        let updated = ConfigMap::decode(&context, &updated).expect("a ConfigMap");
        let body = updated.body.expect("kept");
        assert_eq!(body.data().collect::<Vec<_>>(), [("c", "3")]);
        assert_eq!((body.annotation("why"), body.annotation("what")), (Some("because"), Some("this")));
        assert_eq!(map_entry(find(&body.rest, 3)), Ok(("binary", "kept")));
    }
}
