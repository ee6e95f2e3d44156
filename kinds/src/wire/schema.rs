//! The list of protobuf field numbers, by message.
//!
//! Each message names the `generated.proto` file that it comes from, and each constant has the field's name there. So a
//! test can compare the whole list with upstream's files.

/// A message in this list: the folder of its `generated.proto` file, its name, and names and numbers of its fields.
pub struct ListedMessage {
    /// Path of the folder with the proto file, below `k8s.io/`.
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
        pub const MESSAGES: &[ListedMessage] = &[
            $(ListedMessage { file: $file, message: $message, fields: &[$(($field, $number)),*] }),*
        ];
    };
}

messages! {
    object_meta "ObjectMeta" "apimachinery/pkg/apis/meta/v1" {
        NAME "name" = 1, GENERATE_NAME "generateName" = 2, NAMESPACE "namespace" = 3, UID "uid" = 5,
        RESOURCE_VERSION "resourceVersion" = 6, GENERATION "generation" = 7, CREATION_TIMESTAMP "creationTimestamp" = 8,
        DELETION_TIMESTAMP "deletionTimestamp" = 9, DELETION_GRACE_PERIOD_SECONDS "deletionGracePeriodSeconds" = 10, LABELS "labels" = 11, ANNOTATIONS "annotations" = 12,
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
    api_status "Status" "apimachinery/pkg/apis/meta/v1" { METADATA "metadata" = 1, MESSAGE "message" = 3, REASON "reason" = 4, DETAILS "details" = 5, CODE "code" = 6 }
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
        ACTIVE_DEADLINE_SECONDS "activeDeadlineSeconds" = 5, PRIORITY_CLASS_NAME "priorityClassName" = 24,
        RESTART_POLICY "restartPolicy" = 3, TERMINATION_GRACE_PERIOD_SECONDS "terminationGracePeriodSeconds" = 4, HOSTNAME "hostname" = 16,
        RESOURCE_CLAIMS "resourceClaims" = 39, SCHEDULING_GROUP "schedulingGroup" = 43,
        VOLUMES "volumes" = 1, CONTAINERS "containers" = 2, NODE_NAME "nodeName" = 10, SUBDOMAIN "subdomain" = 17, INIT_CONTAINERS "initContainers" = 20,
        NODE_SELECTOR "nodeSelector" = 7, HOST_NETWORK "hostNetwork" = 11, AFFINITY "affinity" = 18,
        TOLERATIONS "tolerations" = 22, OVERHEAD "overhead" = 32, RESOURCES "resources" = 40,
        IMAGE_PULL_SECRETS "imagePullSecrets" = 15, SECURITY_CONTEXT "securityContext" = 14,
        EPHEMERAL_CONTAINERS "ephemeralContainers" = 34, READINESS_GATES "readinessGates" = 28,
    }
    container "Container" "api/core/v1" { NAME "name" = 1, PORTS "ports" = 6, ENV "env" = 7, RESOURCES "resources" = 8, RESTART_POLICY "restartPolicy" = 24, ENV_FROM "envFrom" = 19, VOLUME_MOUNTS "volumeMounts" = 9, SECURITY_CONTEXT "securityContext" = 15 }
    volume_mount "VolumeMount" "api/core/v1" { NAME "name" = 1 }
    security_context "SecurityContext" "api/core/v1" { SE_LINUX_OPTIONS "seLinuxOptions" = 3 }
    pod_security_context "PodSecurityContext" "api/core/v1" { SE_LINUX_OPTIONS "seLinuxOptions" = 1, SE_LINUX_CHANGE_POLICY "seLinuxChangePolicy" = 13 }
    se_linux_options "SELinuxOptions" "api/core/v1" { USER "user" = 1, ROLE "role" = 2, TYPE "type" = 3, LEVEL "level" = 4 }
    pod_status "PodStatus" "api/core/v1" {
        PHASE "phase" = 1, CONDITIONS "conditions" = 2, POD_IP "podIP" = 6, START_TIME "startTime" = 7, CONTAINER_STATUSES "containerStatuses" = 8,
        INIT_CONTAINER_STATUSES "initContainerStatuses" = 10, EPHEMERAL_CONTAINER_STATUSES "ephemeralContainerStatuses" = 13, REASON "reason" = 4, POD_IPS "podIPs" = 12, QOS_CLASS "qosClass" = 9,
        RESOURCE_CLAIM_STATUSES "resourceClaimStatuses" = 15, EXTENDED_RESOURCE_CLAIM_STATUS "extendedResourceClaimStatus" = 18,
    }
    pod_readiness_gate "PodReadinessGate" "api/core/v1" { CONDITION_TYPE "conditionType" = 1 }
    pod_condition "PodCondition" "api/core/v1" { TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 4, REASON "reason" = 5, MESSAGE "message" = 6 }
    container_status "ContainerStatus" "api/core/v1" { NAME "name" = 1, STATE "state" = 2, RESTART_COUNT "restartCount" = 5, ALLOCATED_RESOURCES "allocatedResources" = 10, RESOURCES "resources" = 11 }
    pod_template_spec "PodTemplateSpec" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    resource_requirements "ResourceRequirements" "api/core/v1" { LIMITS "limits" = 1, REQUESTS "requests" = 2 }
    env_var "EnvVar" "api/core/v1" { NAME "name" = 1, VALUE_FROM "valueFrom" = 3 }
    env_var_source "EnvVarSource" "api/core/v1" { FIELD_REF "fieldRef" = 1, RESOURCE_FIELD_REF "resourceFieldRef" = 2, SECRET_KEY_REF "secretKeyRef" = 4 }
    resource_field_selector "ResourceFieldSelector" "api/core/v1" { DIVISOR "divisor" = 3 }
    volume "Volume" "api/core/v1" { NAME "name" = 1, VOLUME_SOURCE "volumeSource" = 2 }
    volume_source "VolumeSource" "api/core/v1" {
        GCE_PERSISTENT_DISK "gcePersistentDisk" = 3, AWS_ELASTIC_BLOCK_STORE "awsElasticBlockStore" = 4, FC "fc" = 17,
        VSPHERE_VOLUME "vsphereVolume" = 20, AZURE_DISK "azureDisk" = 22, PORTWORX_VOLUME "portworxVolume" = 24,
        EMPTY_DIR "emptyDir" = 2, DOWNWARD_API "downwardAPI" = 16, PROJECTED "projected" = 26, EPHEMERAL "ephemeral" = 29,
        SECRET "secret" = 6, PERSISTENT_VOLUME_CLAIM "persistentVolumeClaim" = 10,
        ISCSI "iscsi" = 8,
        RBD "rbd" = 11,
        FLEX_VOLUME "flexVolume" = 12,
        CINDER "cinder" = 13,
        CEPHFS "cephfs" = 14,
        AZURE_FILE "azureFile" = 18,
        SCALE_IO "scaleIO" = 25,
        STORAGEOS "storageos" = 27,
        CSI "csi" = 28,
    }
    empty_dir "EmptyDirVolumeSource" "api/core/v1" { SIZE_LIMIT "sizeLimit" = 2 }
    downward_api_volume_source "DownwardAPIVolumeSource" "api/core/v1" { ITEMS "items" = 1 }
    downward_api_projection "DownwardAPIProjection" "api/core/v1" { ITEMS "items" = 1 }
    downward_api_volume_file "DownwardAPIVolumeFile" "api/core/v1" { RESOURCE_FIELD_REF "resourceFieldRef" = 3 }
    projected_volume_source "ProjectedVolumeSource" "api/core/v1" { SOURCES "sources" = 1 }
    volume_projection "VolumeProjection" "api/core/v1" { DOWNWARD_API "downwardAPI" = 2, SECRET "secret" = 1 }
    ephemeral_volume_source "EphemeralVolumeSource" "api/core/v1" { VOLUME_CLAIM_TEMPLATE "volumeClaimTemplate" = 1 }
    claim_template "PersistentVolumeClaimTemplate" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    claim_volume_source "PersistentVolumeClaimVolumeSource" "api/core/v1" { CLAIM_NAME "claimName" = 1 }
    volume_resources "VolumeResourceRequirements" "api/core/v1" { LIMITS "limits" = 1, REQUESTS "requests" = 2 }

    replica_set "ReplicaSet" "api/apps/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    replica_set_spec "ReplicaSetSpec" "api/apps/v1" { REPLICAS "replicas" = 1, SELECTOR "selector" = 2, TEMPLATE "template" = 3, MIN_READY_SECONDS "minReadySeconds" = 4 }
    replica_set_status "ReplicaSetStatus" "api/apps/v1" {
        REPLICAS "replicas" = 1, FULLY_LABELED_REPLICAS "fullyLabeledReplicas" = 2, OBSERVED_GENERATION "observedGeneration" = 3,
        READY_REPLICAS "readyReplicas" = 4, AVAILABLE_REPLICAS "availableReplicas" = 5, CONDITIONS "conditions" = 6,
        TERMINATING_REPLICAS "terminatingReplicas" = 7,
    }
    replica_set_condition "ReplicaSetCondition" "api/apps/v1" { TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 3, REASON "reason" = 4, MESSAGE "message" = 5 }
    replication_controller "ReplicationController" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    replication_controller_spec "ReplicationControllerSpec" "api/core/v1" { REPLICAS "replicas" = 1, SELECTOR "selector" = 2, TEMPLATE "template" = 3, MIN_READY_SECONDS "minReadySeconds" = 4 }
    replication_controller_status "ReplicationControllerStatus" "api/core/v1" {
        REPLICAS "replicas" = 1, FULLY_LABELED_REPLICAS "fullyLabeledReplicas" = 2, OBSERVED_GENERATION "observedGeneration" = 3,
        READY_REPLICAS "readyReplicas" = 4, AVAILABLE_REPLICAS "availableReplicas" = 5, CONDITIONS "conditions" = 6,
    }
    replication_controller_condition "ReplicationControllerCondition" "api/core/v1" { TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 3, REASON "reason" = 4, MESSAGE "message" = 5 }
    stateful_set "StatefulSet" "api/apps/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    stateful_set_spec "StatefulSetSpec" "api/apps/v1" {
        REPLICAS "replicas" = 1, SELECTOR "selector" = 2, TEMPLATE "template" = 3, VOLUME_CLAIM_TEMPLATES "volumeClaimTemplates" = 4,
        SERVICE_NAME "serviceName" = 5, POD_MANAGEMENT_POLICY "podManagementPolicy" = 6, UPDATE_STRATEGY "updateStrategy" = 7,
        REVISION_HISTORY_LIMIT "revisionHistoryLimit" = 8, MIN_READY_SECONDS "minReadySeconds" = 9,
        RETENTION "persistentVolumeClaimRetentionPolicy" = 10, ORDINALS "ordinals" = 11,
    }
    stateful_set_update_strategy "StatefulSetUpdateStrategy" "api/apps/v1" { TYPE "type" = 1, ROLLING_UPDATE "rollingUpdate" = 2 }
    rolling_update_stateful_set "RollingUpdateStatefulSetStrategy" "api/apps/v1" { PARTITION "partition" = 1, MAX_UNAVAILABLE "maxUnavailable" = 2 }
    stateful_set_retention "StatefulSetPersistentVolumeClaimRetentionPolicy" "api/apps/v1" { WHEN_DELETED "whenDeleted" = 1, WHEN_SCALED "whenScaled" = 2 }
    stateful_set_ordinals "StatefulSetOrdinals" "api/apps/v1" { START "start" = 1 }
    stateful_set_status "StatefulSetStatus" "api/apps/v1" {
        OBSERVED_GENERATION "observedGeneration" = 1, REPLICAS "replicas" = 2, READY_REPLICAS "readyReplicas" = 3, CURRENT_REPLICAS "currentReplicas" = 4,
        UPDATED_REPLICAS "updatedReplicas" = 5, CURRENT_REVISION "currentRevision" = 6, UPDATE_REVISION "updateRevision" = 7,
        COLLISION_COUNT "collisionCount" = 9, CONDITIONS "conditions" = 10, AVAILABLE_REPLICAS "availableReplicas" = 11,
    }
    stateful_set_condition "StatefulSetCondition" "api/apps/v1" { TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 3, REASON "reason" = 4, MESSAGE "message" = 5 }
    controller_revision "ControllerRevision" "api/apps/v1" { METADATA "metadata" = 1, DATA "data" = 2, REVISION "revision" = 3 }
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

    affinity "Affinity" "api/core/v1" { NODE_AFFINITY "nodeAffinity" = 1, POD_AFFINITY "podAffinity" = 2, POD_ANTI_AFFINITY "podAntiAffinity" = 3 }
    pod_affinity "PodAffinity" "api/core/v1" {
        REQUIRED "requiredDuringSchedulingIgnoredDuringExecution" = 1, PREFERRED "preferredDuringSchedulingIgnoredDuringExecution" = 2,
    }
    pod_anti_affinity "PodAntiAffinity" "api/core/v1" {
        REQUIRED "requiredDuringSchedulingIgnoredDuringExecution" = 1, PREFERRED "preferredDuringSchedulingIgnoredDuringExecution" = 2,
    }
    weighted_pod_affinity_term "WeightedPodAffinityTerm" "api/core/v1" { POD_AFFINITY_TERM "podAffinityTerm" = 2 }
    pod_affinity_term "PodAffinityTerm" "api/core/v1" { NAMESPACES "namespaces" = 2, NAMESPACE_SELECTOR "namespaceSelector" = 4 }
    pod_resource_claim "PodResourceClaim" "api/core/v1" { NAME "name" = 1, RESOURCE_CLAIM_NAME "resourceClaimName" = 3, RESOURCE_CLAIM_TEMPLATE_NAME "resourceClaimTemplateName" = 4 }
    pod_resource_claim_status "PodResourceClaimStatus" "api/core/v1" { NAME "name" = 1, RESOURCE_CLAIM_NAME "resourceClaimName" = 2 }
    pod_extended_resource_claim_status "PodExtendedResourceClaimStatus" "api/core/v1" { NAME "resourceClaimName" = 2 }
    pod_scheduling_group "PodSchedulingGroup" "api/core/v1" { POD_GROUP_NAME "podGroupName" = 1 }
    workload "Workload" "api/scheduling/v1beta1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    workload_spec "WorkloadSpec" "api/scheduling/v1beta1" { CONTROLLER_REF "controllerRef" = 1 }
    typed_local_object_reference "TypedLocalObjectReference" "api/scheduling/v1beta1" { API_GROUP "apiGroup" = 1, KIND "kind" = 2, NAME "name" = 3 }
    pod_group "PodGroup" "api/scheduling/v1beta1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    pod_group_spec "PodGroupSpec" "api/scheduling/v1beta1" { RESOURCE_CLAIMS "resourceClaims" = 5 }
    pod_group_status "PodGroupStatus" "api/scheduling/v1beta1" { RESOURCE_CLAIM_STATUSES "resourceClaimStatuses" = 2 }
    pod_group_resource_claim "PodGroupResourceClaim" "api/scheduling/v1beta1" { NAME "name" = 1, RESOURCE_CLAIM_NAME "resourceClaimName" = 2, RESOURCE_CLAIM_TEMPLATE_NAME "resourceClaimTemplateName" = 3 }
    pod_group_resource_claim_status "PodGroupResourceClaimStatus" "api/scheduling/v1beta1" { NAME "name" = 1, RESOURCE_CLAIM_NAME "resourceClaimName" = 2 }
    resource_quota "ResourceQuota" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    resource_quota_spec "ResourceQuotaSpec" "api/core/v1" { HARD "hard" = 1, SCOPES "scopes" = 2, SCOPE_SELECTOR "scopeSelector" = 3 }
    resource_quota_status "ResourceQuotaStatus" "api/core/v1" { HARD "hard" = 1, USED "used" = 2 }
    scope_selector "ScopeSelector" "api/core/v1" { MATCH_EXPRESSIONS "matchExpressions" = 1 }
    scoped_resource_selector_requirement "ScopedResourceSelectorRequirement" "api/core/v1" { SCOPE_NAME "scopeName" = 1, OPERATOR "operator" = 2, VALUES "values" = 3 }
    persistent_volume_claim "PersistentVolumeClaim" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    persistent_volume_claim_spec "PersistentVolumeClaimSpec" "api/core/v1" {
        ACCESS_MODES "accessModes" = 1, RESOURCES "resources" = 2, VOLUME_NAME "volumeName" = 3, SELECTOR "selector" = 4,
        STORAGE_CLASS_NAME "storageClassName" = 5, VOLUME_MODE "volumeMode" = 6, DATA_SOURCE "dataSource" = 7,
        VOLUME_ATTRIBUTES_CLASS_NAME "volumeAttributesClassName" = 9,
    }
    persistent_volume_claim_status "PersistentVolumeClaimStatus" "api/core/v1" {
        PHASE "phase" = 1, ACCESS_MODES "accessModes" = 2, CAPACITY "capacity" = 3, CONDITIONS "conditions" = 4,
        ALLOCATED_RESOURCES "allocatedResources" = 5, ALLOCATED_RESOURCE_STATUSES "allocatedResourceStatuses" = 7,
        CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME "currentVolumeAttributesClassName" = 8, MODIFY_VOLUME_STATUS "modifyVolumeStatus" = 9,
    }
    persistent_volume_claim_condition "PersistentVolumeClaimCondition" "api/core/v1" {
        TYPE "type" = 1, STATUS "status" = 2, LAST_PROBE_TIME "lastProbeTime" = 3, LAST_TRANSITION_TIME "lastTransitionTime" = 4,
        REASON "reason" = 5, MESSAGE "message" = 6,
    }
    persistent_volume "PersistentVolume" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    persistent_volume_spec "PersistentVolumeSpec" "api/core/v1" {
        CAPACITY "capacity" = 1, SOURCE "persistentVolumeSource" = 2, ACCESS_MODES "accessModes" = 3, CLAIM_REF "claimRef" = 4,
        RECLAIM_POLICY "persistentVolumeReclaimPolicy" = 5, STORAGE_CLASS_NAME "storageClassName" = 6, MOUNT_OPTIONS "mountOptions" = 7,
        VOLUME_MODE "volumeMode" = 8, NODE_AFFINITY "nodeAffinity" = 9, VOLUME_ATTRIBUTES_CLASS_NAME "volumeAttributesClassName" = 10,
    }
    persistent_volume_status "PersistentVolumeStatus" "api/core/v1" {
        PHASE "phase" = 1, MESSAGE "message" = 2, REASON "reason" = 3, LAST_PHASE_TRANSITION_TIME "lastPhaseTransitionTime" = 4,
    }
    persistent_volume_source "PersistentVolumeSource" "api/core/v1" {
        GCE_PERSISTENT_DISK "gcePersistentDisk" = 1, AWS_ELASTIC_BLOCK_STORE "awsElasticBlockStore" = 2, HOST_PATH "hostPath" = 3,
        NFS "nfs" = 5, ISCSI "iscsi" = 7, CINDER "cinder" = 8, FC "fc" = 10, FLEX_VOLUME "flexVolume" = 12,
        AZURE_FILE "azureFile" = 13, VSPHERE_VOLUME "vsphereVolume" = 14, AZURE_DISK "azureDisk" = 16, PORTWORX_VOLUME "portworxVolume" = 18,
        LOCAL "local" = 20, CSI "csi" = 22,
    }
    csi_persistent_volume_source "CSIPersistentVolumeSource" "api/core/v1" { DRIVER "driver" = 1, VOLUME_HANDLE "volumeHandle" = 2 }
    flex_persistent_volume_source "FlexPersistentVolumeSource" "api/core/v1" { DRIVER "driver" = 1 }
    host_path_volume_source "HostPathVolumeSource" "api/core/v1" { PATH "path" = 1 }
    nfs_volume_source "NFSVolumeSource" "api/core/v1" { SERVER "server" = 1, PATH "path" = 2 }
    aws_elastic_block_store "AWSElasticBlockStoreVolumeSource" "api/core/v1" {
        VOLUME_ID "volumeID" = 1, FS_TYPE "fsType" = 2, PARTITION "partition" = 3, READ_ONLY "readOnly" = 4,
    }
    gce_persistent_disk "GCEPersistentDiskVolumeSource" "api/core/v1" {
        PD_NAME "pdName" = 1, FS_TYPE "fsType" = 2, PARTITION "partition" = 3, READ_ONLY "readOnly" = 4,
    }
    cinder_persistent_volume_source "CinderPersistentVolumeSource" "api/core/v1" { VOLUME_ID "volumeID" = 1 }
    azure_disk "AzureDiskVolumeSource" "api/core/v1" {
        DISK_URI "diskURI" = 2, CACHING_MODE "cachingMode" = 3, FS_TYPE "fsType" = 4, READ_ONLY "readOnly" = 5, KIND "kind" = 6,
    }
    azure_file_persistent_volume_source "AzureFilePersistentVolumeSource" "api/core/v1" {
        SECRET_NAME "secretName" = 1, SHARE_NAME "shareName" = 2, SECRET_NAMESPACE "secretNamespace" = 4,
    }
    vsphere_volume "VsphereVirtualDiskVolumeSource" "api/core/v1" {
        VOLUME_PATH "volumePath" = 1, FS_TYPE "fsType" = 2, STORAGE_POLICY_NAME "storagePolicyName" = 3,
    }
    portworx_volume "PortworxVolumeSource" "api/core/v1" { VOLUME_ID "volumeID" = 1, FS_TYPE "fsType" = 2, READ_ONLY "readOnly" = 3 }
    fc_volume_source "FCVolumeSource" "api/core/v1" { TARGET_WWNS "targetWWNs" = 1, LUN "lun" = 2, WWIDS "wwids" = 5 }
    iscsi_persistent_volume_source "ISCSIPersistentVolumeSource" "api/core/v1" { TARGET_PORTAL "targetPortal" = 1, IQN "iqn" = 2, LUN "lun" = 3 }
    storage_class "StorageClass" "api/storage/v1" {
        METADATA "metadata" = 1, PROVISIONER "provisioner" = 2, RECLAIM_POLICY "reclaimPolicy" = 4, MOUNT_OPTIONS "mountOptions" = 5,
        ALLOW_VOLUME_EXPANSION "allowVolumeExpansion" = 6, VOLUME_BINDING_MODE "volumeBindingMode" = 7,
    }
    csi_driver "CSIDriver" "api/storage/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    csi_driver_spec "CSIDriverSpec" "api/storage/v1" { ATTACH_REQUIRED "attachRequired" = 1, SE_LINUX_MOUNT "seLinuxMount" = 8 }
    csi_node "CSINode" "api/storage/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    csi_node_spec "CSINodeSpec" "api/storage/v1" { DRIVERS "drivers" = 1 }
    csi_node_driver "CSINodeDriver" "api/storage/v1" { NAME "name" = 1, NODE_ID "nodeID" = 2 }
    volume_attachment "VolumeAttachment" "api/storage/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    volume_attachment_spec "VolumeAttachmentSpec" "api/storage/v1" { ATTACHER "attacher" = 1, SOURCE "source" = 2, NODE_NAME "nodeName" = 3 }
    volume_attachment_source "VolumeAttachmentSource" "api/storage/v1" { PERSISTENT_VOLUME_NAME "persistentVolumeName" = 1, INLINE_VOLUME_SPEC "inlineVolumeSpec" = 2 }
    volume_attachment_status "VolumeAttachmentStatus" "api/storage/v1" { ATTACHED "attached" = 1, ATTACH_ERROR "attachError" = 3, DETACH_ERROR "detachError" = 4 }
    volume_error "VolumeError" "api/storage/v1" { MESSAGE "message" = 2 }
    volume_attributes_class "VolumeAttributesClass" "api/storage/v1" { METADATA "metadata" = 1, DRIVER_NAME "driverName" = 2 }
    modify_volume_status "ModifyVolumeStatus" "api/core/v1" { TARGET_VOLUME_ATTRIBUTES_CLASS_NAME "targetVolumeAttributesClassName" = 1 }
    resource_claim "ResourceClaim" "api/resource/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    resource_claim_template "ResourceClaimTemplate" "api/resource/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    resource_claim_template_spec "ResourceClaimTemplateSpec" "api/resource/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    resource_claim_status "ResourceClaimStatus" "api/resource/v1" { ALLOCATION "allocation" = 1, RESERVED_FOR "reservedFor" = 2 }
    claim_consumer "ResourceClaimConsumerReference" "api/resource/v1" { API_GROUP "apiGroup" = 1, RESOURCE "resource" = 3, NAME "name" = 4, UID "uid" = 5 }
    allocation_result "AllocationResult" "api/resource/v1" { DEVICES "devices" = 1 }
    device_allocation_result "DeviceAllocationResult" "api/resource/v1" { RESULTS "results" = 1 }
    device_request_allocation_result "DeviceRequestAllocationResult" "api/resource/v1" {
        DRIVER "driver" = 2, POOL "pool" = 3, DEVICE "device" = 4, ADMIN_ACCESS "adminAccess" = 5, TOLERATIONS "tolerations" = 6,
        CONSUMED_CAPACITY "consumedCapacity" = 10,
    }
    device_toleration "DeviceToleration" "api/resource/v1" {
        KEY "key" = 1, OPERATOR "operator" = 2, VALUE "value" = 3, EFFECT "effect" = 4, TOLERATION_SECONDS "tolerationSeconds" = 5,
    }
    device_taint "DeviceTaint" "api/resource/v1" { KEY "key" = 1, VALUE "value" = 2, EFFECT "effect" = 3, TIME_ADDED "timeAdded" = 4 }
    device_taint_rule "DeviceTaintRule" "api/resource/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    device_taint_rule_spec "DeviceTaintRuleSpec" "api/resource/v1" { DEVICE_SELECTOR "deviceSelector" = 1, TAINT "taint" = 2 }
    device_taint_rule_status "DeviceTaintRuleStatus" "api/resource/v1" { CONDITIONS "conditions" = 1 }
    device_taint_selector "DeviceTaintSelector" "api/resource/v1" { DRIVER "driver" = 2, POOL "pool" = 3, DEVICE "device" = 4 }
    resource_slice "ResourceSlice" "api/resource/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    resource_slice_spec "ResourceSliceSpec" "api/resource/v1" {
        DRIVER "driver" = 1, POOL "pool" = 2, NODE_NAME "nodeName" = 3, DEVICES "devices" = 6, SHARED_COUNTERS "sharedCounters" = 8,
        PARTITION_TYPE_ATTRIBUTE "partitionTypeAttribute" = 9,
    }
    resource_pool "ResourcePool" "api/resource/v1" { NAME "name" = 1, GENERATION "generation" = 2, RESOURCE_SLICE_COUNT "resourceSliceCount" = 3 }
    device "Device" "api/resource/v1" {
        NAME "name" = 1, ATTRIBUTES "attributes" = 2, CAPACITY "capacity" = 3, CONSUMES_COUNTERS "consumesCounters" = 4, TAINTS "taints" = 8,
        ALLOW_MULTIPLE_ALLOCATIONS "allowMultipleAllocations" = 12,
    }
    device_attribute "DeviceAttribute" "api/resource/v1" { STRING "string" = 4 }
    device_capacity "DeviceCapacity" "api/resource/v1" { VALUE "value" = 1 }
    device_counter_consumption "DeviceCounterConsumption" "api/resource/v1" { COUNTER_SET "counterSet" = 1, COUNTERS "counters" = 2 }
    counter "Counter" "api/resource/v1" { VALUE "value" = 1 }
    counter_set "CounterSet" "api/resource/v1" { NAME "name" = 1, COUNTERS "counters" = 2 }
    pool_status_request "ResourcePoolStatusRequest" "api/resource/v1alpha3" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    pool_status_request_spec "ResourcePoolStatusRequestSpec" "api/resource/v1alpha3" {
        DRIVER "driver" = 1, POOL_NAME "poolName" = 2, LIMIT "limit" = 3, DEFAULT_PARTITION_TYPE_ATTRIBUTE "defaultPartitionTypeAttribute" = 4,
    }
    pool_status_request_status "ResourcePoolStatusRequestStatus" "api/resource/v1alpha3" { POOLS "pools" = 2, CONDITIONS "conditions" = 3, POOL_COUNT "poolCount" = 6 }
    pool_status "PoolStatus" "api/resource/v1alpha3" {
        DRIVER "driver" = 1, POOL_NAME "poolName" = 2, NODE_NAME "nodeName" = 3, TOTAL_DEVICES "totalDevices" = 4,
        ALLOCATED_DEVICES "allocatedDevices" = 5, AVAILABLE_DEVICES "availableDevices" = 6, UNAVAILABLE_DEVICES "unavailableDevices" = 7,
        RESOURCE_SLICE_COUNT "resourceSliceCount" = 8, GENERATION "generation" = 9, VALIDATION_ERROR "validationError" = 10,
        PARTITION_SUMMARY "partitionSummary" = 11, SHAREABLE_SUMMARY "shareableSummary" = 13,
    }
    partition_type_status "PartitionTypeStatus" "api/resource/v1alpha3" { TYPE "type" = 1, TOTAL "total" = 2, ALLOCATABLE "allocatable" = 3, ATTRIBUTE "attribute" = 4 }
    shareable_summary_status "ShareableSummaryStatus" "api/resource/v1alpha3" {
        FULLY_AVAILABLE_DEVICES "fullyAvailableDevices" = 1, PARTIALLY_AVAILABLE_DEVICES "partiallyAvailableDevices" = 2, CAPACITY "capacity" = 3,
    }
    shareable_capacity_status "ShareableCapacityStatus" "api/resource/v1alpha3" { NAME "name" = 1, TOTAL "total" = 2, CONSUMED "consumed" = 3, AVAILABLE "available" = 4 }
    resource_claim_spec "ResourceClaimSpec" "api/resource/v1" { DEVICES "devices" = 1 }
    device_claim "DeviceClaim" "api/resource/v1" { REQUESTS "requests" = 1 }
    device_request "DeviceRequest" "api/resource/v1" { EXACTLY "exactly" = 2, FIRST_AVAILABLE "firstAvailable" = 3 }
    exact_device_request "ExactDeviceRequest" "api/resource/v1" { DEVICE_CLASS_NAME "deviceClassName" = 1, ALLOCATION_MODE "allocationMode" = 3, COUNT "count" = 4, ADMIN_ACCESS "adminAccess" = 5 }
    device_sub_request "DeviceSubRequest" "api/resource/v1" { DEVICE_CLASS_NAME "deviceClassName" = 2, ALLOCATION_MODE "allocationMode" = 4, COUNT "count" = 5 }
    device_class "DeviceClass" "api/resource/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    device_class_spec "DeviceClassSpec" "api/resource/v1" { EXTENDED_RESOURCE_NAME "extendedResourceName" = 4 }
    condition "Condition" "apimachinery/pkg/apis/meta/v1" {
        TYPE "type" = 1, STATUS "status" = 2, OBSERVED_GENERATION "observedGeneration" = 3, LAST_TRANSITION_TIME "lastTransitionTime" = 4,
        REASON "reason" = 5, MESSAGE "message" = 6,
    }
    pod_disruption_budget "PodDisruptionBudget" "api/policy/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    pod_disruption_budget_spec "PodDisruptionBudgetSpec" "api/policy/v1" { MIN_AVAILABLE "minAvailable" = 1, SELECTOR "selector" = 2, MAX_UNAVAILABLE "maxUnavailable" = 3 }
    pod_disruption_budget_status "PodDisruptionBudgetStatus" "api/policy/v1" {
        OBSERVED_GENERATION "observedGeneration" = 1, DISRUPTED_PODS "disruptedPods" = 2, DISRUPTIONS_ALLOWED "disruptionsAllowed" = 3,
        CURRENT_HEALTHY "currentHealthy" = 4, DESIRED_HEALTHY "desiredHealthy" = 5, EXPECTED_PODS "expectedPods" = 6, CONDITIONS "conditions" = 7,
    }
    daemon_set "DaemonSet" "api/apps/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    daemon_set_spec "DaemonSetSpec" "api/apps/v1" {
        SELECTOR "selector" = 1, TEMPLATE "template" = 2, UPDATE_STRATEGY "updateStrategy" = 3, MIN_READY_SECONDS "minReadySeconds" = 4,
        REVISION_HISTORY_LIMIT "revisionHistoryLimit" = 6,
    }
    daemon_set_update_strategy "DaemonSetUpdateStrategy" "api/apps/v1" { TYPE "type" = 1, ROLLING_UPDATE "rollingUpdate" = 2 }
    rolling_update_daemon_set "RollingUpdateDaemonSet" "api/apps/v1" { MAX_UNAVAILABLE "maxUnavailable" = 1, MAX_SURGE "maxSurge" = 2 }
    daemon_set_status "DaemonSetStatus" "api/apps/v1" {
        CURRENT_NUMBER_SCHEDULED "currentNumberScheduled" = 1, NUMBER_MISSCHEDULED "numberMisscheduled" = 2,
        DESIRED_NUMBER_SCHEDULED "desiredNumberScheduled" = 3, NUMBER_READY "numberReady" = 4, OBSERVED_GENERATION "observedGeneration" = 5,
        UPDATED_NUMBER_SCHEDULED "updatedNumberScheduled" = 6, NUMBER_AVAILABLE "numberAvailable" = 7,
        NUMBER_UNAVAILABLE "numberUnavailable" = 8, COLLISION_COUNT "collisionCount" = 9,
    }

    horizontal_pod_autoscaler "HorizontalPodAutoscaler" "api/autoscaling/v2" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    horizontal_pod_autoscaler_spec "HorizontalPodAutoscalerSpec" "api/autoscaling/v2" {
        SCALE_TARGET_REF "scaleTargetRef" = 1, MIN_REPLICAS "minReplicas" = 2, MAX_REPLICAS "maxReplicas" = 3, METRICS "metrics" = 4, BEHAVIOR "behavior" = 5,
    }
    horizontal_pod_autoscaler_status "HorizontalPodAutoscalerStatus" "api/autoscaling/v2" {
        OBSERVED_GENERATION "observedGeneration" = 1, LAST_SCALE_TIME "lastScaleTime" = 2, CURRENT_REPLICAS "currentReplicas" = 3,
        DESIRED_REPLICAS "desiredReplicas" = 4, CURRENT_METRICS "currentMetrics" = 5, CONDITIONS "conditions" = 6,
    }
    horizontal_pod_autoscaler_condition "HorizontalPodAutoscalerCondition" "api/autoscaling/v2" {
        TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 3, REASON "reason" = 4, MESSAGE "message" = 5,
        OBSERVED_GENERATION "observedGeneration" = 6,
    }
    horizontal_pod_autoscaler_behavior "HorizontalPodAutoscalerBehavior" "api/autoscaling/v2" { SCALE_UP "scaleUp" = 1, SCALE_DOWN "scaleDown" = 2 }
    hpa_scaling_rules "HPAScalingRules" "api/autoscaling/v2" {
        SELECT_POLICY "selectPolicy" = 1, POLICIES "policies" = 2, STABILIZATION_WINDOW_SECONDS "stabilizationWindowSeconds" = 3, TOLERANCE "tolerance" = 4,
    }
    hpa_scaling_policy "HPAScalingPolicy" "api/autoscaling/v2" { TYPE "type" = 1, VALUE "value" = 2, PERIOD_SECONDS "periodSeconds" = 3 }
    cross_version_object_reference "CrossVersionObjectReference" "api/autoscaling/v2" { KIND "kind" = 1, NAME "name" = 2, API_VERSION "apiVersion" = 3 }
    metric_spec "MetricSpec" "api/autoscaling/v2" {
        TYPE "type" = 1, OBJECT "object" = 2, PODS "pods" = 3, RESOURCE "resource" = 4, EXTERNAL "external" = 5, CONTAINER_RESOURCE "containerResource" = 7,
    }
    metric_status "MetricStatus" "api/autoscaling/v2" {
        TYPE "type" = 1, OBJECT "object" = 2, PODS "pods" = 3, RESOURCE "resource" = 4, EXTERNAL "external" = 5, CONTAINER_RESOURCE "containerResource" = 7,
    }
    metric_identifier "MetricIdentifier" "api/autoscaling/v2" { NAME "name" = 1, SELECTOR "selector" = 2 }
    metric_target "MetricTarget" "api/autoscaling/v2" { TYPE "type" = 1, VALUE "value" = 2, AVERAGE_VALUE "averageValue" = 3, AVERAGE_UTILIZATION "averageUtilization" = 4 }
    metric_value_status "MetricValueStatus" "api/autoscaling/v2" { VALUE "value" = 1, AVERAGE_VALUE "averageValue" = 2, AVERAGE_UTILIZATION "averageUtilization" = 3 }
    object_metric_source "ObjectMetricSource" "api/autoscaling/v2" { DESCRIBED_OBJECT "describedObject" = 1, TARGET "target" = 2, METRIC "metric" = 3 }
    object_metric_status "ObjectMetricStatus" "api/autoscaling/v2" { METRIC "metric" = 1, CURRENT "current" = 2, DESCRIBED_OBJECT "describedObject" = 3 }
    pods_metric_source "PodsMetricSource" "api/autoscaling/v2" { METRIC "metric" = 1, TARGET "target" = 2 }
    pods_metric_status "PodsMetricStatus" "api/autoscaling/v2" { METRIC "metric" = 1, CURRENT "current" = 2 }
    external_metric_source "ExternalMetricSource" "api/autoscaling/v2" { METRIC "metric" = 1, TARGET "target" = 2 }
    external_metric_status "ExternalMetricStatus" "api/autoscaling/v2" { METRIC "metric" = 1, CURRENT "current" = 2 }
    resource_metric_source "ResourceMetricSource" "api/autoscaling/v2" { NAME "name" = 1, TARGET "target" = 2 }
    resource_metric_status "ResourceMetricStatus" "api/autoscaling/v2" { NAME "name" = 1, CURRENT "current" = 2 }
    container_resource_metric_source "ContainerResourceMetricSource" "api/autoscaling/v2" { NAME "name" = 1, TARGET "target" = 2, CONTAINER "container" = 3 }
    container_resource_metric_status "ContainerResourceMetricStatus" "api/autoscaling/v2" { NAME "name" = 1, CURRENT "current" = 2, CONTAINER "container" = 3 }

    secret "Secret" "api/core/v1" { METADATA "metadata" = 1, DATA "data" = 2, TYPE "type" = 3 }
    config_map "ConfigMap" "api/core/v1" { METADATA "metadata" = 1, DATA "data" = 2 }
    service_account "ServiceAccount" "api/core/v1" { METADATA "metadata" = 1, SECRETS "secrets" = 2 }
    object_reference "ObjectReference" "api/core/v1" {
        KIND "kind" = 1, NAMESPACE "namespace" = 2, NAME "name" = 3, UID "uid" = 4, API_VERSION "apiVersion" = 5, RESOURCE_VERSION "resourceVersion" = 6,
        FIELD_PATH "fieldPath" = 7,
    }
    cluster_role "ClusterRole" "api/rbac/v1" { METADATA "metadata" = 1, RULES "rules" = 2, AGGREGATION_RULE "aggregationRule" = 3 }
    policy_rule "PolicyRule" "api/rbac/v1" {
        VERBS "verbs" = 1, API_GROUPS "apiGroups" = 2, RESOURCES "resources" = 3, RESOURCE_NAMES "resourceNames" = 4,
        NON_RESOURCE_URLS "nonResourceURLs" = 5,
    }
    aggregation_rule "AggregationRule" "api/rbac/v1" { CLUSTER_ROLE_SELECTORS "clusterRoleSelectors" = 1 }
    cluster_trust_bundle "ClusterTrustBundle" "api/certificates/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    cluster_trust_bundle_spec "ClusterTrustBundleSpec" "api/certificates/v1" { SIGNER_NAME "signerName" = 1, TRUST_BUNDLE "trustBundle" = 2 }
    namespace "Namespace" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    namespace_spec "NamespaceSpec" "api/core/v1" { FINALIZERS "finalizers" = 1 }
    namespace_status "NamespaceStatus" "api/core/v1" { PHASE "phase" = 1, CONDITIONS "conditions" = 2 }
    namespace_condition "NamespaceCondition" "api/core/v1" {
        TYPE "type" = 1, STATUS "status" = 2, LAST_TRANSITION_TIME "lastTransitionTime" = 4, REASON "reason" = 5, MESSAGE "message" = 6,
    }
    node "Node" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    node_spec "NodeSpec" "api/core/v1" { POD_CIDR "podCIDR" = 1, PROVIDER_ID "providerID" = 3, UNSCHEDULABLE "unschedulable" = 4, TAINTS "taints" = 5, POD_CIDRS "podCIDRs" = 7 }
    node_status "NodeStatus" "api/core/v1" {
        ALLOCATABLE "allocatable" = 2, CONDITIONS "conditions" = 4, ADDRESSES "addresses" = 5, NODE_INFO "nodeInfo" = 7,
        VOLUMES_IN_USE "volumesInUse" = 9, VOLUMES_ATTACHED "volumesAttached" = 10,
    }
    attached_volume "AttachedVolume" "api/core/v1" { NAME "name" = 1, DEVICE_PATH "devicePath" = 2 }
    node_address "NodeAddress" "api/core/v1" { TYPE "type" = 1, ADDRESS "address" = 2 }
    node_system_info "NodeSystemInfo" "api/core/v1" { SYSTEM_UUID "systemUUID" = 2 }
    node_condition "NodeCondition" "api/core/v1" {
        TYPE "type" = 1, STATUS "status" = 2, LAST_HEARTBEAT_TIME "lastHeartbeatTime" = 3,
        LAST_TRANSITION_TIME "lastTransitionTime" = 4, REASON "reason" = 5, MESSAGE "message" = 6,
    }
    taint "Taint" "api/core/v1" { KEY "key" = 1, VALUE "value" = 2, EFFECT "effect" = 3, TIME_ADDED "timeAdded" = 4 }
    toleration "Toleration" "api/core/v1" {
        KEY "key" = 1, OPERATOR "operator" = 2, VALUE "value" = 3, EFFECT "effect" = 4, TOLERATION_SECONDS "tolerationSeconds" = 5,
    }
    pod_certificate_request "PodCertificateRequest" "api/certificates/v1" { METADATA "metadata" = 1 }
    node_affinity "NodeAffinity" "api/core/v1" { REQUIRED_DURING_SCHEDULING_IGNORED_DURING_EXECUTION "requiredDuringSchedulingIgnoredDuringExecution" = 1 }
    node_selector "NodeSelector" "api/core/v1" { NODE_SELECTOR_TERMS "nodeSelectorTerms" = 1 }
    node_selector_term "NodeSelectorTerm" "api/core/v1" { MATCH_EXPRESSIONS "matchExpressions" = 1, MATCH_FIELDS "matchFields" = 2 }
    node_selector_requirement "NodeSelectorRequirement" "api/core/v1" { KEY "key" = 1, OPERATOR "operator" = 2, VALUES "values" = 3 }
    lease "Lease" "api/coordination/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    lease_spec "LeaseSpec" "api/coordination/v1" { RENEW_TIME "renewTime" = 4 }
    container_port "ContainerPort" "api/core/v1" { NAME "name" = 1, CONTAINER_PORT "containerPort" = 3, PROTOCOL "protocol" = 4 }
    pod_ip "PodIP" "api/core/v1" { IP "ip" = 1 }
    endpoints "Endpoints" "api/core/v1" { METADATA "metadata" = 1, SUBSETS "subsets" = 2 }
    endpoint_subset "EndpointSubset" "api/core/v1" { ADDRESSES "addresses" = 1, NOT_READY_ADDRESSES "notReadyAddresses" = 2, PORTS "ports" = 3 }
    endpoint_address "EndpointAddress" "api/core/v1" { IP "ip" = 1, TARGET_REF "targetRef" = 2, HOSTNAME "hostname" = 3, NODE_NAME "nodeName" = 4 }
    subset_port "EndpointPort" "api/core/v1" { NAME "name" = 1, PORT "port" = 2, PROTOCOL "protocol" = 3, APP_PROTOCOL "appProtocol" = 4 }
    endpoint_slice "EndpointSlice" "api/discovery/v1" { METADATA "metadata" = 1, ENDPOINTS "endpoints" = 2, PORTS "ports" = 3, ADDRESS_TYPE "addressType" = 4 }
    endpoint "Endpoint" "api/discovery/v1" {
        ADDRESSES "addresses" = 1, CONDITIONS "conditions" = 2, HOSTNAME "hostname" = 3, TARGET_REF "targetRef" = 4, NODE_NAME "nodeName" = 6,
        ZONE "zone" = 7, HINTS "hints" = 8,
    }
    endpoint_conditions "EndpointConditions" "api/discovery/v1" { READY "ready" = 1, SERVING "serving" = 2, TERMINATING "terminating" = 3 }
    endpoint_hints "EndpointHints" "api/discovery/v1" { FOR_ZONES "forZones" = 1, FOR_NODES "forNodes" = 2 }
    for_zone "ForZone" "api/discovery/v1" { NAME "name" = 1 }
    for_node "ForNode" "api/discovery/v1" { NAME "name" = 1 }
    slice_port "EndpointPort" "api/discovery/v1" { NAME "name" = 1, PROTOCOL "protocol" = 2, PORT "port" = 3, APP_PROTOCOL "appProtocol" = 4 }
    local_object_reference "LocalObjectReference" "api/core/v1" { NAME "name" = 1 }
    ephemeral_container "EphemeralContainer" "api/core/v1" { COMMON "ephemeralContainerCommon" = 1 }
    env_from_source "EnvFromSource" "api/core/v1" { SECRET_REF "secretRef" = 3 }
    secret_env_source "SecretEnvSource" "api/core/v1" { LOCAL_OBJECT_REFERENCE "localObjectReference" = 1 }
    secret_key_selector "SecretKeySelector" "api/core/v1" { LOCAL_OBJECT_REFERENCE "localObjectReference" = 1 }
    secret_projection "SecretProjection" "api/core/v1" { LOCAL_OBJECT_REFERENCE "localObjectReference" = 1 }
    secret_volume_source "SecretVolumeSource" "api/core/v1" { SECRET_NAME "secretName" = 1 }
    azure_file_volume_source "AzureFileVolumeSource" "api/core/v1" { SECRET_NAME "secretName" = 1, SHARE_NAME "shareName" = 2, READ_ONLY "readOnly" = 3 }
    ceph_fs_volume_source "CephFSVolumeSource" "api/core/v1" { SECRET_REF "secretRef" = 5 }
    cinder_volume_source "CinderVolumeSource" "api/core/v1" { VOLUME_ID "volumeID" = 1, FS_TYPE "fsType" = 2, READ_ONLY "readOnly" = 3, SECRET_REF "secretRef" = 4 }
    flex_volume_source "FlexVolumeSource" "api/core/v1" { SECRET_REF "secretRef" = 3 }
    rbd_volume_source "RBDVolumeSource" "api/core/v1" { SECRET_REF "secretRef" = 7 }
    scale_io_volume_source "ScaleIOVolumeSource" "api/core/v1" { SECRET_REF "secretRef" = 3 }
    iscsi_volume_source "ISCSIVolumeSource" "api/core/v1" { SECRET_REF "secretRef" = 10 }
    storageos_volume_source "StorageOSVolumeSource" "api/core/v1" { SECRET_REF "secretRef" = 5 }
    csi_volume_source "CSIVolumeSource" "api/core/v1" { DRIVER "driver" = 1, NODE_PUBLISH_SECRET_REF "nodePublishSecretRef" = 5 }

    object_field_selector "ObjectFieldSelector" "api/core/v1" { FIELD_PATH "fieldPath" = 2 }
    container_state "ContainerState" "api/core/v1" { WAITING "waiting" = 1, RUNNING "running" = 2, TERMINATED "terminated" = 3 }
    container_state_terminated "ContainerStateTerminated" "api/core/v1" { EXIT_CODE "exitCode" = 1, FINISHED_AT "finishedAt" = 6 }
    job "Job" "api/batch/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    job_spec "JobSpec" "api/batch/v1" {
        PARALLELISM "parallelism" = 1, COMPLETIONS "completions" = 2, ACTIVE_DEADLINE_SECONDS "activeDeadlineSeconds" = 3,
        SELECTOR "selector" = 4, TEMPLATE "template" = 6, BACKOFF_LIMIT "backoffLimit" = 7,
        TTL_SECONDS_AFTER_FINISHED "ttlSecondsAfterFinished" = 8, COMPLETION_MODE "completionMode" = 9, SUSPEND "suspend" = 10,
        POD_FAILURE_POLICY "podFailurePolicy" = 11, BACKOFF_LIMIT_PER_INDEX "backoffLimitPerIndex" = 12,
        MAX_FAILED_INDEXES "maxFailedIndexes" = 13, POD_REPLACEMENT_POLICY "podReplacementPolicy" = 14,
        MANAGED_BY "managedBy" = 15, SUCCESS_POLICY "successPolicy" = 16,
    }
    job_status "JobStatus" "api/batch/v1" {
        CONDITIONS "conditions" = 1, START_TIME "startTime" = 2, COMPLETION_TIME "completionTime" = 3, ACTIVE "active" = 4,
        SUCCEEDED "succeeded" = 5, FAILED "failed" = 6, COMPLETED_INDEXES "completedIndexes" = 7,
        UNCOUNTED_TERMINATED_PODS "uncountedTerminatedPods" = 8, READY "ready" = 9, FAILED_INDEXES "failedIndexes" = 10,
        TERMINATING "terminating" = 11,
    }
    job_condition "JobCondition" "api/batch/v1" {
        TYPE "type" = 1, STATUS "status" = 2, LAST_PROBE_TIME "lastProbeTime" = 3, LAST_TRANSITION_TIME "lastTransitionTime" = 4,
        REASON "reason" = 5, MESSAGE "message" = 6,
    }
    uncounted_terminated_pods "UncountedTerminatedPods" "api/batch/v1" { SUCCEEDED "succeeded" = 1, FAILED "failed" = 2 }
    pod_failure_policy "PodFailurePolicy" "api/batch/v1" { RULES "rules" = 1 }
    pod_failure_policy_rule "PodFailurePolicyRule" "api/batch/v1" { ACTION "action" = 1, ON_EXIT_CODES "onExitCodes" = 2, ON_POD_CONDITIONS "onPodConditions" = 3 }
    on_exit_codes "PodFailurePolicyOnExitCodesRequirement" "api/batch/v1" { CONTAINER_NAME "containerName" = 1, OPERATOR "operator" = 2, VALUES "values" = 3 }
    on_pod_conditions "PodFailurePolicyOnPodConditionsPattern" "api/batch/v1" { TYPE "type" = 1, STATUS "status" = 2 }
    success_policy "SuccessPolicy" "api/batch/v1" { RULES "rules" = 1 }
    success_policy_rule "SuccessPolicyRule" "api/batch/v1" { SUCCEEDED_INDEXES "succeededIndexes" = 1, SUCCEEDED_COUNT "succeededCount" = 2 }
    cron_job "CronJob" "api/batch/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    cron_job_spec "CronJobSpec" "api/batch/v1" {
        SCHEDULE "schedule" = 1, STARTING_DEADLINE_SECONDS "startingDeadlineSeconds" = 2, CONCURRENCY_POLICY "concurrencyPolicy" = 3,
        SUSPEND "suspend" = 4, JOB_TEMPLATE "jobTemplate" = 5, SUCCESSFUL_JOBS_HISTORY_LIMIT "successfulJobsHistoryLimit" = 6,
        FAILED_JOBS_HISTORY_LIMIT "failedJobsHistoryLimit" = 7, TIME_ZONE "timeZone" = 8,
    }
    cron_job_status "CronJobStatus" "api/batch/v1" { ACTIVE "active" = 1, LAST_SCHEDULE_TIME "lastScheduleTime" = 4, LAST_SUCCESSFUL_TIME "lastSuccessfulTime" = 5 }
    job_template_spec "JobTemplateSpec" "api/batch/v1" { METADATA "metadata" = 1, SPEC "spec" = 2 }
    certificate_signing_request "CertificateSigningRequest" "api/certificates/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    certificate_signing_request_spec "CertificateSigningRequestSpec" "api/certificates/v1" {
        REQUEST "request" = 1, USERNAME "username" = 2, UID "uid" = 3, GROUPS "groups" = 4, USAGES "usages" = 5, EXTRA "extra" = 6,
        SIGNER_NAME "signerName" = 7, EXPIRATION_SECONDS "expirationSeconds" = 8,
    }
    certificate_signing_request_status "CertificateSigningRequestStatus" "api/certificates/v1" { CONDITIONS "conditions" = 1, CERTIFICATE "certificate" = 2 }
    certificate_signing_request_condition "CertificateSigningRequestCondition" "api/certificates/v1" {
        TYPE "type" = 1, REASON "reason" = 2, MESSAGE "message" = 3, LAST_UPDATE_TIME "lastUpdateTime" = 4, STATUS "status" = 6,
    }
    subject_access_review "SubjectAccessReview" "api/authorization/v1" { SPEC "spec" = 2, STATUS "status" = 3 }
    subject_access_review_spec "SubjectAccessReviewSpec" "api/authorization/v1" {
        RESOURCE_ATTRIBUTES "resourceAttributes" = 1, USER "user" = 3, GROUPS "groups" = 4, EXTRA "extra" = 5, UID "uid" = 6,
    }
    subject_access_review_status "SubjectAccessReviewStatus" "api/authorization/v1" { ALLOWED "allowed" = 1 }
    resource_attributes "ResourceAttributes" "api/authorization/v1" {
        VERB "verb" = 2, GROUP "group" = 3, VERSION "version" = 4, RESOURCE "resource" = 5, SUBRESOURCE "subresource" = 6,
    }

    service "Service" "api/core/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    service_spec "ServiceSpec" "api/core/v1" {
        PORTS "ports" = 1, SELECTOR "selector" = 2, CLUSTER_IP "clusterIP" = 3, TYPE "type" = 4, EXTERNAL_IPS "externalIPs" = 5,
        SESSION_AFFINITY "sessionAffinity" = 7, LOAD_BALANCER_IP "loadBalancerIP" = 8,
        LOAD_BALANCER_SOURCE_RANGES "loadBalancerSourceRanges" = 9, EXTERNAL_TRAFFIC_POLICY "externalTrafficPolicy" = 11,
        HEALTH_CHECK_NODE_PORT "healthCheckNodePort" = 12, PUBLISH_NOT_READY_ADDRESSES "publishNotReadyAddresses" = 13,
        SESSION_AFFINITY_CONFIG "sessionAffinityConfig" = 14, IP_FAMILY_POLICY "ipFamilyPolicy" = 17, CLUSTER_IPS "clusterIPs" = 18,
        IP_FAMILIES "ipFamilies" = 19, ALLOCATE_LOAD_BALANCER_NODE_PORTS "allocateLoadBalancerNodePorts" = 20,
        LOAD_BALANCER_CLASS "loadBalancerClass" = 21, INTERNAL_TRAFFIC_POLICY "internalTrafficPolicy" = 22,
        TRAFFIC_DISTRIBUTION "trafficDistribution" = 23,
    }
    service_port "ServicePort" "api/core/v1" {
        NAME "name" = 1, PROTOCOL "protocol" = 2, PORT "port" = 3, TARGET_PORT "targetPort" = 4, NODE_PORT "nodePort" = 5,
        APP_PROTOCOL "appProtocol" = 6,
    }
    service_status "ServiceStatus" "api/core/v1" { LOAD_BALANCER "loadBalancer" = 1 }
    load_balancer_status "LoadBalancerStatus" "api/core/v1" { INGRESS "ingress" = 1 }
    load_balancer_ingress "LoadBalancerIngress" "api/core/v1" { IP "ip" = 1, HOSTNAME "hostname" = 2, IP_MODE "ipMode" = 3, PORTS "ports" = 4 }
    port_status "PortStatus" "api/core/v1" { PORT "port" = 1, PROTOCOL "protocol" = 2, ERROR "error" = 3 }
    session_affinity_config "SessionAffinityConfig" "api/core/v1" { CLIENT_IP "clientIP" = 1 }
    service_cidr "ServiceCIDR" "api/networking/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    service_cidr_spec "ServiceCIDRSpec" "api/networking/v1" { CIDRS "cidrs" = 1 }
    service_cidr_status "ServiceCIDRStatus" "api/networking/v1" { CONDITIONS "conditions" = 1 }
    ip_address "IPAddress" "api/networking/v1" { METADATA "metadata" = 1 }
    storage_version "StorageVersion" "api/apiserverinternal/v1alpha1" { METADATA "metadata" = 1, STATUS "status" = 3 }
    storage_version_status "StorageVersionStatus" "api/apiserverinternal/v1alpha1" {
        STORAGE_VERSIONS "storageVersions" = 1, COMMON_ENCODING_VERSION "commonEncodingVersion" = 2, CONDITIONS "conditions" = 3,
    }
    server_storage_version "ServerStorageVersion" "api/apiserverinternal/v1alpha1" {
        API_SERVER_ID "apiServerID" = 1, ENCODING_VERSION "encodingVersion" = 2,
    }
    storage_version_condition "StorageVersionCondition" "api/apiserverinternal/v1alpha1" {
        TYPE "type" = 1, STATUS "status" = 2, OBSERVED_GENERATION "observedGeneration" = 3,
        LAST_TRANSITION_TIME "lastTransitionTime" = 4, REASON "reason" = 5, MESSAGE "message" = 6,
    }
    policy_spec "ValidatingAdmissionPolicySpec" "api/admissionregistration/v1" {
        PARAM_KIND "paramKind" = 1, MATCH_CONSTRAINTS "matchConstraints" = 2, VALIDATIONS "validations" = 3, VARIABLES "variables" = 7,
    }
    policy_status "ValidatingAdmissionPolicyStatus" "api/admissionregistration/v1" { OBSERVED_GENERATION "observedGeneration" = 1 }
    param_kind "ParamKind" "api/admissionregistration/v1" { API_VERSION "apiVersion" = 1, KIND "kind" = 2 }
    match_resources "MatchResources" "api/admissionregistration/v1" { RESOURCE_RULES "resourceRules" = 3 }
    named_rule "NamedRuleWithOperations" "api/admissionregistration/v1" { RULE_WITH_OPERATIONS "ruleWithOperations" = 2 }
    rule_with_operations "RuleWithOperations" "api/admissionregistration/v1" { RULE "rule" = 2 }
    rule "Rule" "api/admissionregistration/v1" { API_GROUPS "apiGroups" = 1, API_VERSIONS "apiVersions" = 2, RESOURCES "resources" = 3 }
    validation "Validation" "api/admissionregistration/v1" { EXPRESSION "Expression" = 1, MESSAGE_EXPRESSION "messageExpression" = 4 }
    policy_variable "Variable" "api/admissionregistration/v1" { NAME "Name" = 1, EXPRESSION "Expression" = 2 }
    storage_version_migration "StorageVersionMigration" "api/storagemigration/v1" { METADATA "metadata" = 1, SPEC "spec" = 2, STATUS "status" = 3 }
    storage_version_migration_spec "StorageVersionMigrationSpec" "api/storagemigration/v1" { RESOURCE "resource" = 1 }
    storage_version_migration_status "StorageVersionMigrationStatus" "api/storagemigration/v1" { CONDITIONS "conditions" = 1, RESOURCE_VERSION "resourceVersion" = 2 }
    group_resource "GroupResource" "apimachinery/pkg/apis/meta/v1" { GROUP "group" = 1, RESOURCE "resource" = 2 }
    client_ip_config "ClientIPConfig" "api/core/v1" { TIMEOUT_SECONDS "timeoutSeconds" = 1 }
}
