//! The one list of protobuf field numbers, by message.
//!
//! Each message names the `generated.proto` file that it comes from, and each constant the field's name there, so that
//! a test can compare the whole list with upstream's files.

/// A message as listed here: proto file (below `k8s.io/`), message name, and its fields' names and numbers.
pub struct Listed {
    /// Path of the proto file below `k8s.io/`.
    pub file: &'static str,
    /// Name of the message in it.
    pub message: &'static str,
    /// Field names and numbers.
    pub fields: &'static [(&'static str, u32)],
}

macro_rules! messages {
    ($($module:ident $message:literal $file:literal { $($constant:ident $field:literal = $number:literal),* $(,)? })*) => {
        $(
            #[doc = concat!("Field numbers of `", $message, "`.")]
            pub mod $module {
                $(#[doc = concat!("`", $field, "`")] pub const $constant: u32 = $number;)*
            }
        )*
        /// Every message listed here.
        pub const MESSAGES: &[Listed] = &[
            $(Listed { file: $file, message: $message, fields: &[$(($field, $number)),*] }),*
        ];
    };
}

messages! {
    object_meta "ObjectMeta" "apimachinery/pkg/apis/meta/v1" {
        NAME "name" = 1, GENERATE_NAME "generateName" = 2, NAMESPACE "namespace" = 3, UID "uid" = 5,
        RESOURCE_VERSION "resourceVersion" = 6, GENERATION "generation" = 7, CREATION_TIMESTAMP "creationTimestamp" = 8,
        DELETION_TIMESTAMP "deletionTimestamp" = 9, LABELS "labels" = 11, ANNOTATIONS "annotations" = 12,
        OWNER_REFERENCES "ownerReferences" = 13, FINALIZERS "finalizers" = 14, MANAGED_FIELDS "managedFields" = 17,
    }
    owner_reference "OwnerReference" "apimachinery/pkg/apis/meta/v1" {
        KIND "kind" = 1, NAME "name" = 3, UID "uid" = 4, API_VERSION "apiVersion" = 5, CONTROLLER "controller" = 6,
        BLOCK_OWNER_DELETION "blockOwnerDeletion" = 7,
    }
    time "Time" "apimachinery/pkg/apis/meta/v1" { SECONDS "seconds" = 1, NANOS "nanos" = 2 }
    list_meta "ListMeta" "apimachinery/pkg/apis/meta/v1" { RESOURCE_VERSION "resourceVersion" = 2, CONTINUE "continue" = 3 }
    label_selector "LabelSelector" "apimachinery/pkg/apis/meta/v1" { MATCH_LABELS "matchLabels" = 1, MATCH_EXPRESSIONS "matchExpressions" = 2 }
    label_selector_requirement "LabelSelectorRequirement" "apimachinery/pkg/apis/meta/v1" { KEY "key" = 1, OPERATOR "operator" = 2, VALUES "values" = 3 }
    api_status "Status" "apimachinery/pkg/apis/meta/v1" { MESSAGE "message" = 3, REASON "reason" = 4, DETAILS "details" = 5, CODE "code" = 6 }
    status_details "StatusDetails" "apimachinery/pkg/apis/meta/v1" { CAUSES "causes" = 4, RETRY_AFTER_SECONDS "retryAfterSeconds" = 5 }
    status_cause "StatusCause" "apimachinery/pkg/apis/meta/v1" { REASON "reason" = 1, MESSAGE "message" = 2 }
    watch_event "WatchEvent" "apimachinery/pkg/apis/meta/v1" { TYPE "type" = 1, OBJECT "object" = 2 }
    raw_extension "RawExtension" "apimachinery/pkg/runtime" { RAW "raw" = 1 }
    unknown "Unknown" "apimachinery/pkg/runtime" { TYPE_META "typeMeta" = 1, RAW "raw" = 2 }
    type_meta "TypeMeta" "apimachinery/pkg/runtime" { API_VERSION "apiVersion" = 1, KIND "kind" = 2 }
    int_or_string "IntOrString" "apimachinery/pkg/util/intstr" { TYPE "type" = 1, INT_VAL "intVal" = 2, STR_VAL "strVal" = 3 }
    quantity "Quantity" "apimachinery/pkg/api/resource" { STRING "string" = 1 }

    pod "Pod" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    pod_spec "PodSpec" "api/core/v1" {
        VOLUMES "volumes" = 1, CONTAINERS "containers" = 2, NODE_NAME "nodeName" = 10, INIT_CONTAINERS "initContainers" = 20,
        OVERHEAD "overhead" = 32, RESOURCES "resources" = 40,
    }
    container "Container" "api/core/v1" { NAME "name" = 1, ENV "env" = 7, RESOURCES "resources" = 8, RESTART_POLICY "restartPolicy" = 24 }
    pod_status "PodStatus" "api/core/v1" {
        PHASE "phase" = 1, CONDITIONS "conditions" = 2, CONTAINER_STATUSES "containerStatuses" = 8,
        INIT_CONTAINER_STATUSES "initContainerStatuses" = 10,
    }
    pod_condition "PodCondition" "api/core/v1" { TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 4 }
    container_status "ContainerStatus" "api/core/v1" { NAME "name" = 1, RESTART_COUNT "restartCount" = 5 }
    pod_template_spec "PodTemplateSpec" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    resource_requirements "ResourceRequirements" "api/core/v1" { LIMITS "limits" = 1, REQUESTS "requests" = 2 }
    env_var "EnvVar" "api/core/v1" { VALUE_FROM "valueFrom" = 3 }
    env_var_source "EnvVarSource" "api/core/v1" { RESOURCE_FIELD_REF "resourceFieldRef" = 2 }
    resource_field_selector "ResourceFieldSelector" "api/core/v1" { DIVISOR "divisor" = 3 }
    volume "Volume" "api/core/v1" { VOLUME_SOURCE "volumeSource" = 2 }
    volume_source "VolumeSource" "api/core/v1" {
        EMPTY_DIR "emptyDir" = 2, DOWNWARD_API "downwardAPI" = 16, PROJECTED "projected" = 26, EPHEMERAL "ephemeral" = 29,
    }
    empty_dir "EmptyDirVolumeSource" "api/core/v1" { SIZE_LIMIT "sizeLimit" = 2 }
    downward_api_volume_source "DownwardAPIVolumeSource" "api/core/v1" { ITEMS "items" = 1 }
    downward_api_projection "DownwardAPIProjection" "api/core/v1" { ITEMS "items" = 1 }
    downward_api_volume_file "DownwardAPIVolumeFile" "api/core/v1" { RESOURCE_FIELD_REF "resourceFieldRef" = 3 }
    projected_volume_source "ProjectedVolumeSource" "api/core/v1" { SOURCES "sources" = 1 }
    volume_projection "VolumeProjection" "api/core/v1" { DOWNWARD_API "downwardAPI" = 2 }
    ephemeral_volume_source "EphemeralVolumeSource" "api/core/v1" { VOLUME_CLAIM_TEMPLATE "volumeClaimTemplate" = 1 }
    claim_template "PersistentVolumeClaimTemplate" "api/core/v1" { SPEC "spec" = 2 }
    claim_spec "PersistentVolumeClaimSpec" "api/core/v1" { RESOURCES "resources" = 2 }
    volume_resources "VolumeResourceRequirements" "api/core/v1" { LIMITS "limits" = 1, REQUESTS "requests" = 2 }

    replica_set "ReplicaSet" "api/apps/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    replica_set_spec "ReplicaSetSpec" "api/apps/v1" { REPLICAS "replicas" = 1, SELECTOR "selector" = 2, TEMPLATE "template" = 3, MIN_READY_SECONDS "minReadySeconds" = 4 }
    replica_set_status "ReplicaSetStatus" "api/apps/v1" {
        REPLICAS "replicas" = 1, FULLY_LABELED_REPLICAS "fullyLabeledReplicas" = 2, OBSERVED_GENERATION "observedGeneration" = 3,
        READY_REPLICAS "readyReplicas" = 4, AVAILABLE_REPLICAS "availableReplicas" = 5, CONDITIONS "conditions" = 6,
        TERMINATING_REPLICAS "terminatingReplicas" = 7,
    }
    replica_set_condition "ReplicaSetCondition" "api/apps/v1" { TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 3, REASON "reason" = 4, MESSAGE "message" = 5 }
    deployment "Deployment" "api/apps/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    deployment_spec "DeploymentSpec" "api/apps/v1" {
        REPLICAS "replicas" = 1, SELECTOR "selector" = 2, TEMPLATE "template" = 3, STRATEGY "strategy" = 4,
        MIN_READY_SECONDS "minReadySeconds" = 5, REVISION_HISTORY_LIMIT "revisionHistoryLimit" = 6, PAUSED "paused" = 7,
        PROGRESS_DEADLINE_SECONDS "progressDeadlineSeconds" = 9,
    }
    deployment_strategy "DeploymentStrategy" "api/apps/v1" { TYPE "type" = 1, ROLLING_UPDATE "rollingUpdate" = 2 }
    rolling_update_deployment "RollingUpdateDeployment" "api/apps/v1" { MAX_UNAVAILABLE "maxUnavailable" = 1, MAX_SURGE "maxSurge" = 2 }
    deployment_status "DeploymentStatus" "api/apps/v1" {
        OBSERVED_GENERATION "observedGeneration" = 1, REPLICAS "replicas" = 2, UPDATED_REPLICAS "updatedReplicas" = 3,
        AVAILABLE_REPLICAS "availableReplicas" = 4, UNAVAILABLE_REPLICAS "unavailableReplicas" = 5, CONDITIONS "conditions" = 6,
        READY_REPLICAS "readyReplicas" = 7, COLLISION_COUNT "collisionCount" = 8, TERMINATING_REPLICAS "terminatingReplicas" = 9,
    }
    deployment_condition "DeploymentCondition" "api/apps/v1" {
        TYPE "type" = 1, STATUS "status" = 2, REASON "reason" = 4, MESSAGE "message" = 5, LAST_UPDATE_TIME "lastUpdateTime" = 6,
        LAST_TRANSITION_TIME "lastTransitionTime" = 7,
    }
}
