//! Whole typed objects: what the types of `k8s_openapi` are, and what [`custom_resource!`](crate::custom_resource) makes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kinds::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind whose objects are used whole.
///
/// All kinds of `k8s_openapi` and all made by [`custom_resource!`](crate::custom_resource) are. For another type that
/// is a [`kube::Resource`] (such as kube's derive makes), say where it is served.
pub trait Object:
    kube::Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Where the API server serves it.
    const RESOURCE: Resource;
}

/// Whether objects are in a namespace.
pub trait Reach {
    /// They are.
    const NAMESPACED: bool;
}

impl Reach for NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl Reach for ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl<K> Object for K
where
    K: k8s_openapi::Resource + k8s_openapi::Metadata<Ty = ObjectMeta>,
    K: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    <K as k8s_openapi::Resource>::Scope: Reach,
{
    const RESOURCE: Resource = Resource {
        group: K::GROUP,
        version: K::VERSION,
        kind: K::KIND,
        plural: K::URL_PATH_SEGMENT,
        namespaced: <K as k8s_openapi::Resource>::Scope::NAMESPACED,
    };
}

/// Makes the type of a custom resource: `metadata`, a `spec` and an optional `status`, which are types of yours.
///
/// ```
/// # #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
/// # pub struct BackupSpec {}
/// # #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
/// # pub struct BackupStatus {}
/// runtime::custom_resource! {
///     /// A backup of something.
///     pub Backup { spec: BackupSpec, status: BackupStatus }
///     namespaced "backups" in "example.com/v1"
/// }
/// ```
///
/// Write `cluster` instead of `namespaced` for a kind without namespaces. The definition on the server needs
/// `subresources: {status: {}}`.
#[macro_export]
macro_rules! custom_resource {
    (
        $(#[$attribute:meta])*
        $visible:vis $name:ident { spec: $spec:ty, status: $status:ty $(,)? }
        $scope:ident $plural:literal in $api_version:literal
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone)]
        $visible struct $name {
            /// Name, namespace, labels and so on.
            pub metadata: $crate::sdk::ObjectMeta,
            /// What is asked for.
            pub spec: $spec,
            /// What is there; written by the controller only.
            pub status: Option<$status>,
        }

        impl $name {
            /// An object as a user would make it.
            $visible fn new(name: &str, spec: $spec) -> Self {
                let metadata =
                    $crate::sdk::ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
                Self { metadata, spec, status: None }
            }
        }

        impl $crate::sdk::k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $crate::sdk::split_api_version($api_version).0;
            const KIND: &'static str = stringify!($name);
            const VERSION: &'static str = $crate::sdk::split_api_version($api_version).1;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $crate::custom_resource!(@scope $scope);
        }

        impl $crate::sdk::k8s_openapi::Metadata for $name {
            type Ty = $crate::sdk::ObjectMeta;
            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        impl $crate::sdk::serde::Serialize for $name {
            fn serialize<S: $crate::sdk::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use $crate::sdk::serde::ser::SerializeStruct as _;
                let fields = 4 + usize::from(self.status.is_some());
                let mut object = serializer.serialize_struct(stringify!($name), fields)?;
                object.serialize_field("apiVersion", $api_version)?;
                object.serialize_field("kind", stringify!($name))?;
                object.serialize_field("metadata", &self.metadata)?;
                object.serialize_field("spec", &self.spec)?;
                if let Some(status) = &self.status {
                    object.serialize_field("status", status)?;
                }
                object.end()
            }
        }

        impl<'de> $crate::sdk::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::sdk::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let whole = $crate::sdk::Whole::<$spec, $status>::deserialize(deserializer)?;
                Ok(Self { metadata: whole.metadata, spec: whole.spec, status: whole.status })
            }
        }
    };
    (@scope namespaced) => { $crate::sdk::k8s_openapi::NamespaceResourceScope };
    (@scope cluster) => { $crate::sdk::k8s_openapi::ClusterResourceScope };
}

/// What [`custom_resource!`](crate::custom_resource) reads.
#[doc(hidden)]
#[derive(serde::Deserialize)]
#[serde(bound(deserialize = "S: DeserializeOwned, T: DeserializeOwned"))]
pub struct Whole<S, T> {
    /// As in each object.
    pub metadata: ObjectMeta,
    /// What is asked for.
    pub spec: S,
    /// What is there.
    pub status: Option<T>,
}

/// Group and version of `group/version`.
///
/// # Panics
/// While compiling, without a slash: custom resources have a group.
#[doc(hidden)]
pub const fn split_api_version(api_version: &'static str) -> (&'static str, &'static str) {
    let bytes = api_version.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'/' {
            let (group, version) = api_version.split_at(at);
            return (group, version.split_at(1).1);
        }
        at += 1;
    }
    panic!("write the API version of a custom resource as group/version")
}
