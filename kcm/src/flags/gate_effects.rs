//! Effects of the feature gates on this manager.
//!
//! Gates that are not listed belong to other components. As in upstream, they are accepted and change nothing here.

use component::flags::gates::Fixed;

/// The effect of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The gate switches this behaviour.
    Switches(&'static str),
    /// The manager always behaves as if the gate were on, for this reason. The gate cannot be switched off by name.
    AlwaysOn(&'static str),
    /// The manager always behaves as if the gate were off, for this reason. The gate cannot be switched on by name.
    AlwaysOff(&'static str),
}

use Effect::{AlwaysOff, AlwaysOn, Switches};

const STALE: &str = "controllers always compare their caches with their own writes";
const IN_ORDER: &str = "events of a watch are always applied one after the other, without a queue";
const CBOR: &str = "requests and responses are protobuf, or JSON where a kind has no protobuf";

/// All gates with an effect on upstream's manager, by name.
///
/// AllAlpha and AllBeta switch many gates. They do not change the fixed ones, and are never refused.
#[rustfmt::skip]
pub static EFFECTS: &[(&str, Effect)] = &[
    ("APIServerIdentity", Switches("storageversion-garbage-collector-controller runs, if StorageVersionAPI is on too")),
    ("AllAlpha", Switches("all alpha gates that are not named")),
    ("AllBeta", Switches("all beta gates that are not named")),
    ("AllowParsingUserUIDFromCertAuth", Switches("the HTTPS port takes the client's UID from its certificate")),
    ("AtomicFIFO", AlwaysOn(IN_ORDER)),
    ("CBORServingAndStorage", AlwaysOff("`/flagz` and `/statusz` are served as text, JSON and YAML")),
    ("ClientsAllowCARotation", AlwaysOn("the CA file of the API server is always read again when it changes")),
    ("ClientsAllowCBOR", AlwaysOff(CBOR)),
    ("ClientsAllowTLSCacheGC", AlwaysOn("connections that are no longer used are always closed")),
    ("ClientsPreferCBOR", AlwaysOff(CBOR)),
    ("ClusterTrustBundle", Switches("kube-apiserver-serving-clustertrustbundle-publisher-controller runs")),
    ("ComponentFlagz", Switches("`/flagz` is served")),
    ("ComponentStatusz", Switches("`/statusz` is served")),
    ("ContextualLogging", AlwaysOn("log lines always name their object")),
    ("ControllerManagerReleaseLeaderElectionLockOnExit", AlwaysOn("the Lease is always released at a clean exit")),
    ("CoordinatedLeaderElection", Switches("the API server elects the leader among LeaseCandidates")),
    ("DRAAdminAccess", Switches("resourceclaim-controller creates claims with administrative access")),
    ("DRADeviceTaintRules", Switches("device-taint-eviction-controller and resourcepoolstatusrequest-controller apply DeviceTaintRules")),
    ("DRADeviceTaints", Switches("device-taint-eviction-controller runs")),
    ("DRAExtendedResource", AlwaysOn("quotas always count extended resources that are backed by devices")),
    ("DRAPrioritizedList", Switches("resourceclaim-controller creates claims with prioritized lists")),
    ("DRAResourcePoolStatus", Switches("resourcepoolstatusrequest-controller runs")),
    ("DRAWorkloadResourceClaims", Switches("claims of PodGroups are created and shared by the pods of a group, which are evicted when a device of such a claim is tainted")),
    ("DeploymentReplicaSetTerminatingReplicas", Switches("`status.terminatingReplicas` of ReplicaSets and Deployments")),
    ("DynamicResourceAllocation", AlwaysOn("controllers of devices always run, and quotas always count the devices of ResourceClaims")),
    ("GenericWorkload", Switches("podgroup-protection-controller runs; resourceclaim-controller reads PodGroups of pods")),
    ("HPAConfigurableTolerance", Switches("tolerances of a HorizontalPodAutoscaler's behavior are applied")),
    ("HPAGeneration", Switches("`status.observedGeneration` of HorizontalPodAutoscalers; edits are processed immediately")),
    ("HPAOptimizedSelectorStore", Switches("the condition AmbiguousSelector names two HorizontalPodAutoscalers instead of all")),
    ("HPAScaleToZero", Switches("HorizontalPodAutoscalers scale to zero")),
    ("InOrderInformers", AlwaysOn(IN_ORDER)),
    ("InOrderInformersBatchProcess", AlwaysOn(IN_ORDER)),
    ("InPlacePodVerticalScaling", AlwaysOn("quotas always count the larger one of a pod's desired and actual resources")),
    ("InformerResourceVersion", Switches("storage-version-migrator-controller runs, if StorageVersionMigrator is on too")),
    ("JobManagedBy", AlwaysOn("`spec.managedBy` of Jobs is always respected")),
    ("LoggingAlphaOptions", Switches("`--log-text-split-stream` and `--log-json-split-stream` may be given")),
    ("LoggingBetaOptions", Switches("`--logging-format=json` may be given")),
    ("MaxUnavailableStatefulSet", Switches("`spec.updateStrategy.rollingUpdate.maxUnavailable` of StatefulSets")),
    ("MultiCIDRServiceAllocator", Switches("service-cidr-controller runs")),
    ("MutableSchedulingDirectivesForSuspendedJobs", Switches("`status.startTime` of a Job is removed when it is suspended")),
    ("NativeHistograms", Switches("histograms also have native buckets, for scrapers that accept protobuf")),
    ("NodeControllerLeaseCircuitBreaker", Switches("node-lifecycle-controller checks Leases with the API server before it marks many nodes")),
    ("PersistentVolumeClaimUnusedSinceTime", Switches("the condition Unused of PersistentVolumeClaims")),
    ("PodCertificateRequest", Switches("podcertificaterequest-cleaner-controller runs")),
    ("PodDeletionCost", Switches("ReplicaSets delete pods with a low `controller.kubernetes.io/pod-deletion-cost` first")),
    ("PodLevelResources", Switches("quotas and HorizontalPodAutoscalers count `spec.resources` of pods")),
    ("PodLevelResourcesFixKubeletQOSClass", Switches("quotas derive the QoS class from the values of `spec.resources` of pods whose status does not have it")),
    ("PodObservedGenerationTracking", AlwaysOn("statuses and conditions of pods always have the observed generation")),
    ("PreferSameTrafficDistribution", AlwaysOn("EndpointSlices always have the hints of PreferSameZone and PreferSameNode")),
    ("RecoverVolumeExpansionFailure", AlwaysOn("quotas always count `status.allocatedResources` of claims")),
    ("RemoteRequestHeaderUID", Switches("`--requestheader-uid-headers` may be given: the HTTPS port takes the client's UID from these headers of a front proxy")),
    ("SELinuxChangePolicy", Switches("selinux-warning-controller runs")),
    ("SELinuxMountReadWriteOncePod", AlwaysOn("selinux-warning-controller always compares labels")),
    ("SeparateTaintEvictionController", Switches("taint-eviction-controller runs")),
    ("StaleControllerConsistencyDaemonSet", AlwaysOn(STALE)),
    ("StaleControllerConsistencyHPA", AlwaysOn(STALE)),
    ("StaleControllerConsistencyJob", AlwaysOn(STALE)),
    ("StaleControllerConsistencyReplicaSet", AlwaysOn(STALE)),
    ("StaleControllerConsistencyStatefulSet", AlwaysOn(STALE)),
    ("StatefulSetRecreateStrategy", Switches("StatefulSets with the update strategy Recreate")),
    ("StatefulSetSemanticRevisionComparison", Switches("a StatefulSet whose template differs only in form gets no new revision")),
    ("StorageVersionAPI", Switches("storageversion-garbage-collector-controller runs, if APIServerIdentity is on too")),
    ("StorageVersionMigrator", Switches("storage-version-migrator-controller runs, if InformerResourceVersion is on too")),
    ("TaintTolerationComparisonOperators", Switches("tolerations with the operators Gt and Lt are compared as numbers")),
    ("UnauthenticatedHTTP2DOSMitigation", Switches("HTTP/2 connections of unauthenticated clients to the HTTPS port are closed after each request")),
    ("UnlockWhileProcessingFIFO", AlwaysOn(IN_ORDER)),
    ("VolumeAttributesClass", AlwaysOn("volumeattributesclass-protection-controller always runs, and volumes are always bound and counted by their class")),
    ("WatchListClient", Switches("objects arrive in the watch's own stream instead of in pages of a list")),
    ("WorkloadWithJob", Switches("Jobs get Workloads and PodGroups")),
];

/// Returns the effect of a gate; `None` if it belongs to other components.
pub fn effect(gate: &str) -> Option<Effect> {
    EFFECTS.iter().find(|(name, _)| *name == gate).map(|(_, effect)| *effect)
}

/// Returns the value that a gate always has; `None` if it can be switched, or belongs to other components.
pub fn fixed(gate: &str) -> Option<Fixed> {
    match effect(gate)? {
        AlwaysOn(reason) => Some(Fixed { value: true, reason }),
        AlwaysOff(reason) => Some(Fixed { value: false, reason }),
        Switches(_) => None,
    }
}
