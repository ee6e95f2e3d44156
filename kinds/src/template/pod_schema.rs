//! The messages inside a `PodSpec`, at any depth, and the fields that hold them.
//!
//! On the wire, protobuf encodes a nested message and a string in the same way. With this list, a user's string is
//! never read as a message, and a comparison descends no deeper than the list. A field that is not listed, because it
//! is a number, a string or newer than this list, is compared byte by byte.

/// A message, and its fields that hold messages.
#[derive(Debug)]
pub struct Message {
    /// Its name.
    pub name: &'static str,
    /// Path of the proto file below `k8s.io/`.
    pub file: &'static str,
    /// Its fields that hold messages.
    pub nested: &'static [MessageField],
}

/// A field that holds a message.
#[derive(Debug)]
pub struct MessageField {
    /// Field number.
    pub number: u32,
    /// Field name.
    pub field: &'static str,
    /// The message in it.
    pub message: &'static Message,
}

impl Message {
    /// Returns the message that a field holds; `None` for strings, numbers and unknown fields.
    pub fn nested(&self, number: u32) -> Option<&'static Message> {
        self.nested.iter().find(|nested| nested.number == number).map(|nested| nested.message)
    }

    /// Returns true if the message is a quantity, which may be spelled in several ways.
    pub fn is_quantity(&self) -> bool {
        std::ptr::eq(self, &QUANTITY)
    }
}

/// A message of numbers and texts only.
pub static LEAF: Message = Message { name: "", file: "", nested: &[] };

/// An entry of a map of quantities.
pub static QUANTITY_ENTRY: Message =
    Message { name: "", file: "", nested: &[MessageField { number: 2, field: "value", message: &QUANTITY }] };

macro_rules! messages {
    ($($constant:ident $name:literal $file:literal { $($number:literal $field:literal => $message:ident),* $(,)? })*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub static $constant: Message = Message {
                name: $name,
                file: $file,
                nested: &[$(MessageField { number: $number, field: $field, message: &$message }),*],
            };
        )*

        /// Every message listed here.
        pub static MESSAGES: &[&Message] = &[$(&$constant),*];
    };
}

messages! {
    AFFINITY "Affinity" "api/core/v1" {
        1 "nodeAffinity" => NODE_AFFINITY, 2 "podAffinity" => POD_AFFINITY, 3 "podAntiAffinity" => POD_ANTI_AFFINITY,
    }
    CSI_VOLUME_SOURCE "CSIVolumeSource" "api/core/v1" { 5 "nodePublishSecretRef" => LEAF }
    CEPH_FS_VOLUME_SOURCE "CephFSVolumeSource" "api/core/v1" { 5 "secretRef" => LEAF }
    CINDER_VOLUME_SOURCE "CinderVolumeSource" "api/core/v1" { 4 "secretRef" => LEAF }
    CLUSTER_TRUST_BUNDLE_PROJECTION "ClusterTrustBundleProjection" "api/core/v1" {
        3 "labelSelector" => LABEL_SELECTOR,
    }
    CONFIG_MAP_ENV_SOURCE "ConfigMapEnvSource" "api/core/v1" { 1 "localObjectReference" => LEAF }
    CONFIG_MAP_KEY_SELECTOR "ConfigMapKeySelector" "api/core/v1" { 1 "localObjectReference" => LEAF }
    CONFIG_MAP_PROJECTION "ConfigMapProjection" "api/core/v1" { 1 "localObjectReference" => LEAF, 2 "items" => LEAF }
    CONFIG_MAP_VOLUME_SOURCE "ConfigMapVolumeSource" "api/core/v1" {
        1 "localObjectReference" => LEAF, 2 "items" => LEAF,
    }
    CONTAINER "Container" "api/core/v1" {
        6 "ports" => LEAF, 7 "env" => ENV_VAR, 8 "resources" => RESOURCE_REQUIREMENTS, 9 "volumeMounts" => LEAF,
        10 "livenessProbe" => PROBE, 11 "readinessProbe" => PROBE, 12 "lifecycle" => LIFECYCLE,
        15 "securityContext" => SECURITY_CONTEXT, 19 "envFrom" => ENV_FROM_SOURCE, 21 "volumeDevices" => LEAF,
        22 "startupProbe" => PROBE, 23 "resizePolicy" => LEAF, 25 "restartPolicyRules" => CONTAINER_RESTART_RULE,
    }
    CONTAINER_RESTART_RULE "ContainerRestartRule" "api/core/v1" { 2 "exitCodes" => LEAF }
    DOWNWARD_API_PROJECTION "DownwardAPIProjection" "api/core/v1" { 1 "items" => DOWNWARD_API_VOLUME_FILE }
    DOWNWARD_API_VOLUME_FILE "DownwardAPIVolumeFile" "api/core/v1" {
        2 "fieldRef" => LEAF, 3 "resourceFieldRef" => RESOURCE_FIELD_SELECTOR,
    }
    DOWNWARD_API_VOLUME_SOURCE "DownwardAPIVolumeSource" "api/core/v1" { 1 "items" => DOWNWARD_API_VOLUME_FILE }
    EMPTY_DIR_VOLUME_SOURCE "EmptyDirVolumeSource" "api/core/v1" { 2 "sizeLimit" => QUANTITY }
    ENV_FROM_SOURCE "EnvFromSource" "api/core/v1" {
        2 "configMapRef" => CONFIG_MAP_ENV_SOURCE, 3 "secretRef" => SECRET_ENV_SOURCE,
    }
    ENV_VAR "EnvVar" "api/core/v1" { 3 "valueFrom" => ENV_VAR_SOURCE }
    ENV_VAR_SOURCE "EnvVarSource" "api/core/v1" {
        1 "fieldRef" => LEAF, 2 "resourceFieldRef" => RESOURCE_FIELD_SELECTOR,
        3 "configMapKeyRef" => CONFIG_MAP_KEY_SELECTOR, 4 "secretKeyRef" => SECRET_KEY_SELECTOR,
        5 "fileKeyRef" => LEAF,
    }
    EPHEMERAL_CONTAINER "EphemeralContainer" "api/core/v1" {
        1 "ephemeralContainerCommon" => EPHEMERAL_CONTAINER_COMMON,
    }
    EPHEMERAL_CONTAINER_COMMON "EphemeralContainerCommon" "api/core/v1" {
        6 "ports" => LEAF, 7 "env" => ENV_VAR, 8 "resources" => RESOURCE_REQUIREMENTS, 9 "volumeMounts" => LEAF,
        10 "livenessProbe" => PROBE, 11 "readinessProbe" => PROBE, 12 "lifecycle" => LIFECYCLE,
        15 "securityContext" => SECURITY_CONTEXT, 19 "envFrom" => ENV_FROM_SOURCE, 21 "volumeDevices" => LEAF,
        22 "startupProbe" => PROBE, 23 "resizePolicy" => LEAF, 25 "restartPolicyRules" => CONTAINER_RESTART_RULE,
    }
    EPHEMERAL_VOLUME_SOURCE "EphemeralVolumeSource" "api/core/v1" {
        1 "volumeClaimTemplate" => PERSISTENT_VOLUME_CLAIM_TEMPLATE,
    }
    FLEX_VOLUME_SOURCE "FlexVolumeSource" "api/core/v1" { 3 "secretRef" => LEAF }
    HTTP_GET_ACTION "HTTPGetAction" "api/core/v1" { 2 "port" => LEAF, 5 "httpHeaders" => LEAF }
    ISCSI_VOLUME_SOURCE "ISCSIVolumeSource" "api/core/v1" { 10 "secretRef" => LEAF }
    LABEL_SELECTOR "LabelSelector" "apimachinery/pkg/apis/meta/v1" { 2 "matchExpressions" => LEAF }
    LIFECYCLE "Lifecycle" "api/core/v1" { 1 "postStart" => LIFECYCLE_HANDLER, 2 "preStop" => LIFECYCLE_HANDLER }
    LIFECYCLE_HANDLER "LifecycleHandler" "api/core/v1" {
        1 "exec" => LEAF, 2 "httpGet" => HTTP_GET_ACTION, 3 "tcpSocket" => TCP_SOCKET_ACTION, 4 "sleep" => LEAF,
    }
    MANAGED_FIELDS_ENTRY "ManagedFieldsEntry" "apimachinery/pkg/apis/meta/v1" {
        4 "time" => LEAF, 7 "fieldsV1" => LEAF,
    }
    NODE_AFFINITY "NodeAffinity" "api/core/v1" {
        1 "requiredDuringSchedulingIgnoredDuringExecution" => NODE_SELECTOR,
        2 "preferredDuringSchedulingIgnoredDuringExecution" => PREFERRED_SCHEDULING_TERM,
    }
    NODE_SELECTOR "NodeSelector" "api/core/v1" { 1 "nodeSelectorTerms" => NODE_SELECTOR_TERM }
    NODE_SELECTOR_TERM "NodeSelectorTerm" "api/core/v1" { 1 "matchExpressions" => LEAF, 2 "matchFields" => LEAF }
    OBJECT_META "ObjectMeta" "apimachinery/pkg/apis/meta/v1" {
        8 "creationTimestamp" => LEAF, 9 "deletionTimestamp" => LEAF, 13 "ownerReferences" => LEAF,
        17 "managedFields" => MANAGED_FIELDS_ENTRY,
    }
    PERSISTENT_VOLUME_CLAIM_SPEC "PersistentVolumeClaimSpec" "api/core/v1" {
        2 "resources" => VOLUME_RESOURCE_REQUIREMENTS, 4 "selector" => LABEL_SELECTOR, 7 "dataSource" => LEAF,
        8 "dataSourceRef" => LEAF,
    }
    PERSISTENT_VOLUME_CLAIM_TEMPLATE "PersistentVolumeClaimTemplate" "api/core/v1" {
        1 "metadata" => OBJECT_META, 2 "spec" => PERSISTENT_VOLUME_CLAIM_SPEC,
    }
    POD_AFFINITY "PodAffinity" "api/core/v1" {
        1 "requiredDuringSchedulingIgnoredDuringExecution" => POD_AFFINITY_TERM,
        2 "preferredDuringSchedulingIgnoredDuringExecution" => WEIGHTED_POD_AFFINITY_TERM,
    }
    POD_AFFINITY_TERM "PodAffinityTerm" "api/core/v1" {
        1 "labelSelector" => LABEL_SELECTOR, 4 "namespaceSelector" => LABEL_SELECTOR,
    }
    POD_ANTI_AFFINITY "PodAntiAffinity" "api/core/v1" {
        1 "requiredDuringSchedulingIgnoredDuringExecution" => POD_AFFINITY_TERM,
        2 "preferredDuringSchedulingIgnoredDuringExecution" => WEIGHTED_POD_AFFINITY_TERM,
    }
    POD_DNS_CONFIG "PodDNSConfig" "api/core/v1" { 3 "options" => LEAF }
    POD_SECURITY_CONTEXT "PodSecurityContext" "api/core/v1" {
        1 "seLinuxOptions" => LEAF, 7 "sysctls" => LEAF, 8 "windowsOptions" => LEAF, 10 "seccompProfile" => LEAF,
        11 "appArmorProfile" => LEAF,
    }
    POD_SPEC "PodSpec" "api/core/v1" {
        1 "volumes" => VOLUME, 2 "containers" => CONTAINER, 14 "securityContext" => POD_SECURITY_CONTEXT,
        15 "imagePullSecrets" => LEAF, 18 "affinity" => AFFINITY, 20 "initContainers" => CONTAINER,
        22 "tolerations" => LEAF, 23 "hostAliases" => LEAF, 26 "dnsConfig" => POD_DNS_CONFIG,
        28 "readinessGates" => LEAF, 32 "overhead" => QUANTITY_ENTRY,
        33 "topologySpreadConstraints" => TOPOLOGY_SPREAD_CONSTRAINT, 34 "ephemeralContainers" => EPHEMERAL_CONTAINER,
        36 "os" => LEAF, 38 "schedulingGates" => LEAF, 39 "resourceClaims" => LEAF,
        40 "resources" => RESOURCE_REQUIREMENTS, 43 "schedulingGroup" => LEAF, 44 "evictionResponders" => LEAF,
    }
    PREFERRED_SCHEDULING_TERM "PreferredSchedulingTerm" "api/core/v1" { 2 "preference" => NODE_SELECTOR_TERM }
    PROBE "Probe" "api/core/v1" { 1 "handler" => PROBE_HANDLER }
    PROBE_HANDLER "ProbeHandler" "api/core/v1" {
        1 "exec" => LEAF, 2 "httpGet" => HTTP_GET_ACTION, 3 "tcpSocket" => TCP_SOCKET_ACTION, 4 "grpc" => LEAF,
    }
    PROJECTED_VOLUME_SOURCE "ProjectedVolumeSource" "api/core/v1" { 1 "sources" => VOLUME_PROJECTION }
    QUANTITY "Quantity" "apimachinery/pkg/api/resource" {}
    RBD_VOLUME_SOURCE "RBDVolumeSource" "api/core/v1" { 7 "secretRef" => LEAF }
    RESOURCE_FIELD_SELECTOR "ResourceFieldSelector" "api/core/v1" { 3 "divisor" => QUANTITY }
    RESOURCE_REQUIREMENTS "ResourceRequirements" "api/core/v1" {
        1 "limits" => QUANTITY_ENTRY, 2 "requests" => QUANTITY_ENTRY, 3 "claims" => LEAF,
    }
    SCALE_IO_VOLUME_SOURCE "ScaleIOVolumeSource" "api/core/v1" { 3 "secretRef" => LEAF }
    SECRET_ENV_SOURCE "SecretEnvSource" "api/core/v1" { 1 "localObjectReference" => LEAF }
    SECRET_KEY_SELECTOR "SecretKeySelector" "api/core/v1" { 1 "localObjectReference" => LEAF }
    SECRET_PROJECTION "SecretProjection" "api/core/v1" { 1 "localObjectReference" => LEAF, 2 "items" => LEAF }
    SECRET_VOLUME_SOURCE "SecretVolumeSource" "api/core/v1" { 2 "items" => LEAF }
    SECURITY_CONTEXT "SecurityContext" "api/core/v1" {
        1 "capabilities" => LEAF, 3 "seLinuxOptions" => LEAF, 10 "windowsOptions" => LEAF,
        11 "seccompProfile" => LEAF, 12 "appArmorProfile" => LEAF,
    }
    STORAGE_OS_VOLUME_SOURCE "StorageOSVolumeSource" "api/core/v1" { 5 "secretRef" => LEAF }
    TCP_SOCKET_ACTION "TCPSocketAction" "api/core/v1" { 1 "port" => LEAF }
    TOPOLOGY_SPREAD_CONSTRAINT "TopologySpreadConstraint" "api/core/v1" { 4 "labelSelector" => LABEL_SELECTOR }
    VOLUME "Volume" "api/core/v1" { 2 "volumeSource" => VOLUME_SOURCE }
    VOLUME_PROJECTION "VolumeProjection" "api/core/v1" {
        1 "secret" => SECRET_PROJECTION, 2 "downwardAPI" => DOWNWARD_API_PROJECTION,
        3 "configMap" => CONFIG_MAP_PROJECTION, 4 "serviceAccountToken" => LEAF,
        5 "clusterTrustBundle" => CLUSTER_TRUST_BUNDLE_PROJECTION, 6 "podCertificate" => LEAF,
    }
    VOLUME_RESOURCE_REQUIREMENTS "VolumeResourceRequirements" "api/core/v1" {
        1 "limits" => QUANTITY_ENTRY, 2 "requests" => QUANTITY_ENTRY,
    }
    VOLUME_SOURCE "VolumeSource" "api/core/v1" {
        1 "hostPath" => LEAF, 2 "emptyDir" => EMPTY_DIR_VOLUME_SOURCE, 3 "gcePersistentDisk" => LEAF,
        4 "awsElasticBlockStore" => LEAF, 5 "gitRepo" => LEAF, 6 "secret" => SECRET_VOLUME_SOURCE, 7 "nfs" => LEAF,
        8 "iscsi" => ISCSI_VOLUME_SOURCE, 9 "glusterfs" => LEAF, 10 "persistentVolumeClaim" => LEAF,
        11 "rbd" => RBD_VOLUME_SOURCE, 12 "flexVolume" => FLEX_VOLUME_SOURCE, 13 "cinder" => CINDER_VOLUME_SOURCE,
        14 "cephfs" => CEPH_FS_VOLUME_SOURCE, 15 "flocker" => LEAF, 16 "downwardAPI" => DOWNWARD_API_VOLUME_SOURCE,
        17 "fc" => LEAF, 18 "azureFile" => LEAF, 19 "configMap" => CONFIG_MAP_VOLUME_SOURCE,
        20 "vsphereVolume" => LEAF, 21 "quobyte" => LEAF, 22 "azureDisk" => LEAF, 23 "photonPersistentDisk" => LEAF,
        24 "portworxVolume" => LEAF, 25 "scaleIO" => SCALE_IO_VOLUME_SOURCE,
        26 "projected" => PROJECTED_VOLUME_SOURCE, 27 "storageos" => STORAGE_OS_VOLUME_SOURCE,
        28 "csi" => CSI_VOLUME_SOURCE, 29 "ephemeral" => EPHEMERAL_VOLUME_SOURCE, 30 "image" => LEAF,
    }
    WEIGHTED_POD_AFFINITY_TERM "WeightedPodAffinityTerm" "api/core/v1" { 2 "podAffinityTerm" => POD_AFFINITY_TERM }
}
