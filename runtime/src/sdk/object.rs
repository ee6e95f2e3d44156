//! Whole typed objects: the types of `k8s_openapi` and of [`custom_resource!`](crate::custom_resource).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kinds::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind whose objects are used as a whole.
///
/// All kinds of `k8s_openapi` and of [`custom_resource!`](crate::custom_resource) implement it. For another
/// [`kube::Resource`], such as a type of kube's derive macro, implement it with the resource that serves it.
pub trait Object:
    kube::Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The resource under which the API server serves the kind.
    const RESOURCE: Resource;
}

/// The scope of a kind: a namespace or the cluster.
pub trait ApiScope {
    /// True if its objects are in a namespace.
    const NAMESPACED: bool;
}

impl ApiScope for NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl ApiScope for ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl<K> Object for K
where
    K: k8s_openapi::Resource + k8s_openapi::Metadata<Ty = ObjectMeta>,
    K: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    <K as k8s_openapi::Resource>::Scope: ApiScope,
{
    const RESOURCE: Resource = Resource {
        group: K::GROUP,
        version: K::VERSION,
        kind: K::KIND,
        plural: K::URL_PATH_SEGMENT,
        namespaced: <K as k8s_openapi::Resource>::Scope::NAMESPACED,
    };
}

/// Defines the type of a custom resource: `metadata`, a `spec` and an optional `status`, whose types you provide.
///
/// ```
/// # #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
/// # pub struct BackupSpec {}
/// # #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
/// # pub struct BackupStatus {}
/// runtime::custom_resource! {
///     /// A backup.
///     pub Backup { spec: BackupSpec, status: BackupStatus }
///     namespaced "backups" in "example.com/v1"
/// }
/// ```
///
/// Write `cluster` instead of `namespaced` for a cluster-scoped kind. The CustomResourceDefinition needs `subresources:
/// {status: {}}`.
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
            /// Name, namespace, labels and other metadata.
            pub metadata: $crate::sdk::ObjectMeta,
            /// Desired state.
            pub spec: $spec,
            /// Observed state; written only by the controller.
            pub status: Option<$status>,
        }

        impl $name {
            /// Creates an object without a status; its other metadata can be set afterwards.
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
                let parts = $crate::sdk::Parts::<$spec, $status>::deserialize(deserializer)?;
                Ok(Self { metadata: parts.metadata, spec: parts.spec, status: parts.status })
            }
        }
    };
    (@scope namespaced) => { $crate::sdk::k8s_openapi::NamespaceResourceScope };
    (@scope cluster) => { $crate::sdk::k8s_openapi::ClusterResourceScope };
}

/// The parts that [`custom_resource!`](crate::custom_resource) deserializes.
#[doc(hidden)]
#[derive(serde::Deserialize)]
#[serde(bound(deserialize = "S: DeserializeOwned, T: DeserializeOwned"))]
pub struct Parts<S, T> {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Desired state.
    pub spec: S,
    /// Observed state.
    pub status: Option<T>,
}

/// Splits `group/version`.
///
/// # Panics
/// At compile time, if there is no slash: custom resources have a group.
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
