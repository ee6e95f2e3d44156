//! The table of all feature gates of kube-controller-manager 1.37, by Kubernetes minor version.

/// Gates, each with the gates that must be on if it is on. Upstream: component-base/featuregate, AddDependencies.
#[rustfmt::skip]
pub static DEPENDENCIES: &[(&str, &[&str])] = &[
    ("ClusterTrustBundleProjection", &["ClusterTrustBundle"]),
    ("CompositePodGroup", &["GenericWorkload", "TopologyAwareWorkloadScheduling"]),
    ("DRAAdminAccess", &["DynamicResourceAllocation"]),
    ("DRAConsumableCapacity", &["DynamicResourceAllocation"]),
    ("DRADerivedAttributes", &["DynamicResourceAllocation"]),
    ("DRADeviceBindingConditions", &["DRAResourceClaimDeviceStatus", "DynamicResourceAllocation"]),
    ("DRADeviceCompatibilityGroups", &["DRAPartitionableDevices", "DynamicResourceAllocation"]),
    ("DRADeviceTaintRules", &["DRADeviceTaints"]),
    ("DRADeviceTaints", &["DynamicResourceAllocation"]),
    ("DRAExtendedResource", &["DynamicResourceAllocation"]),
    ("DRAFractionalCapacityRange", &["DRAConsumableCapacity"]),
    ("DRAListTypeAttributes", &["DynamicResourceAllocation"]),
    ("DRANodeAllocatableResources", &["DynamicResourceAllocation"]),
    ("DRAOptionalNodeOperations", &["DynamicResourceAllocation", "NodeDeclaredFeatures"]),
    ("DRAPartitionableDevices", &["DynamicResourceAllocation"]),
    ("DRAPartitionableDevicesType", &["DRAPartitionableDevices", "DRAResourcePoolStatus", "DynamicResourceAllocation"]),
    ("DRAPrioritizedList", &["DynamicResourceAllocation"]),
    ("DRAResourceClaimGranularStatusAuthorization", &["DRAResourceClaimDeviceStatus", "DynamicResourceAllocation"]),
    ("DRAResourcePoolStatus", &["DynamicResourceAllocation"]),
    ("DRASchedulerFilterTimeout", &["DynamicResourceAllocation"]),
    ("DRAWorkloadResourceClaims", &["DynamicResourceAllocation", "GenericWorkload"]),
    ("DeclarativeValidationBeta", &["DeclarativeValidation"]),
    ("DeclarativeValidationTakeover", &["DeclarativeValidation"]),
    ("DisableAllocatorDualWrite", &["MultiCIDRServiceAllocator"]),
    ("EventedPLEG", &["PLEGOnDemandRelist"]),
    ("ExtendWebSocketsToKubelet", &["NodeDeclaredFeatures"]),
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("H2CContainerProbe", &["NodeDeclaredFeatures"]),
    ("ImageVolumeWithDigest", &["ImageVolume"]),
    ("InPlacePodLevelResourcesVerticalScaling", &["InPlacePodVerticalScaling", "NodeDeclaredFeatures", "PodLevelResources"]),
    ("InPlacePodVerticalScalingExclusiveCPUs", &["InPlacePodVerticalScaling"]),
    ("InPlacePodVerticalScalingExclusiveMemory", &["InPlacePodVerticalScaling"]),
    ("InPlacePodVerticalScalingInitContainers", &["InPlacePodVerticalScaling", "NodeDeclaredFeatures"]),
    ("InPlacePodVerticalScalingMemoryBackedVolumes", &["InPlacePodVerticalScaling", "NodeDeclaredFeatures"]),
    ("InPlacePodVerticalScalingSchedulerPreemption", &["InPlacePodVerticalScaling"]),
    ("KubeletAllocatedPodsEndpoint", &["InPlacePodVerticalScaling"]),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", &["MatchLabelKeysInPodTopologySpread"]),
    ("NodeControllerLeaseCircuitBreaker", &["AtomicFIFO"]),
    ("PodGroupPreemptionPolicy", &["GenericWorkload"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("PodLevelResourcesFixDefaulting", &["PodLevelResources"]),
    ("PodLevelResourcesFixKubeletQOSClass", &["PodLevelResources"]),
    ("ProcMountType", &["UserNamespacesSupport"]),
    ("ResourceHealthStatus", &["DynamicResourceAllocation"]),
    ("ResourceHealthStatusMessage", &["ResourceHealthStatus"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules", "NodeDeclaredFeatures"]),
    ("ServiceAccountTokenNodeBinding", &["ServiceAccountTokenNodeBindingValidation"]),
    ("StaleControllerConsistencyDaemonSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyHPA", &["AtomicFIFO"]),
    ("StaleControllerConsistencyJob", &["AtomicFIFO"]),
    ("StaleControllerConsistencyReplicaSet", &["AtomicFIFO"]),
    ("StaleControllerConsistencyStatefulSet", &["AtomicFIFO"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("TopologyAwareWorkloadScheduling", &["GenericWorkload"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
    ("UserNamespacesHostNetworkSupport", &["NodeDeclaredFeatures", "UserNamespacesSupport"]),
    ("WindowsGracefulNodeShutdown", &["GracefulNodeShutdown"]),
    ("WorkloadWithJob", &["GenericWorkload"]),
];

// name: since minimum-compatibility stage default [locked], ...
component::gates! {
    "APIResponseCompression": 0 0 Beta on;
    "APIServerIdentity": 0 0 Beta on;
    "APIServerWebhookAuthenticationToken": 37 0 Alpha off;
    "APIServingWithRoutine": 0 0 Alpha off;
    "AggregatedDiscoveryRemoveBetaType": 0 0 Deprecated on, 35 0 Deprecated on locked;
    "AllAlpha": 0 0 Alpha off;
    "AllBeta": 0 0 Beta off;
    "AllowDNSOnlyNodeCSR": 0 0 Deprecated off;
    "AllowInsecureKubeletCertificateSigningRequests": 0 0 Deprecated off;
    "AllowOverwriteTerminationGracePeriodSeconds": 0 0 Deprecated off, 35 0 Deprecated off locked;
    "AllowParsingUserUIDFromCertAuth": 0 0 Beta on;
    "AllowServiceExternalIPs": 0 0 Ga on;
    "AllowUnsafeMalformedObjectDeletion": 0 0 Alpha off, 37 0 Beta on;
    "AtomicFIFO": 36 0 Beta on;
    "AtomicWriteVolumeUserFields": 37 0 Alpha off;
    "AuthorizePodWebsocketUpgradeCreatePermission": 35 0 Beta on;
    "CBORServingAndStorage": 0 0 Alpha off;
    "CPUManagerPolicyAlphaOptions": 0 0 Alpha off;
    "CPUManagerPolicyBetaOptions": 0 0 Beta on;
    "CPUManagerPolicyOptions": 0 0 Ga on locked;
    "CRDObservedGenerationTracking": 35 0 Beta off, 36 0 Beta on;
    "CRDValidationRatcheting": 0 0 Ga on locked;
    "CRIListStreaming": 36 0 Alpha off;
    "CSIServiceAccountTokenSecrets": 35 0 Beta on, 36 0 Ga on locked;
    "CSIVolumeHealth": 0 0 Alpha off;
    "ChangeContainerStatusOnKubeletRestart": 0 0 Ga on, 35 0 Deprecated off;
    "ClearingNominatedNodeNameAfterBinding": 0 0 Alpha off, 35 0 Beta on;
    "ClientsAllowCARotation": 36 0 Beta on;
    "ClientsAllowCBOR": 0 0 Alpha off;
    "ClientsAllowTLSCacheGC": 36 0 Beta on;
    "ClientsPreferCBOR": 0 0 Alpha off;
    "CloudControllerManagerWatchBasedRoutesReconciliation": 35 0 Alpha off;
    "CloudControllerManagerWebhook": 0 0 Alpha off;
    "ClusterTrustBundle": 0 0 Beta off, 37 0 Ga on;
    "ClusterTrustBundleProjection": 0 0 Beta off, 37 0 Ga on;
    "ComponentFlagz": 0 0 Alpha off, 36 0 Beta on;
    "ComponentStatusz": 0 0 Alpha off, 36 0 Beta on;
    "CompositePodGroup": 37 0 Alpha off;
    "ConcurrentWatchObjectDecode": 0 0 Beta off, 37 0 Beta on;
    "ConsistentListFromCacheSkipTimeoutFallback": 37 0 Alpha off;
    "ConstrainedImpersonation": 35 0 Alpha off, 36 0 Beta on;
    "ContainerCheckpoint": 0 0 Beta on;
    "ContainerRestartRules": 0 0 Alpha off, 35 0 Beta on;
    "ContainerStopSignals": 0 0 Alpha off;
    "ContextualLogging": 0 0 Beta on;
    "ControllerManagerReleaseLeaderElectionLockOnExit": 36 0 Alpha off;
    "CoordinatedLeaderElection": 0 0 Beta off;
    "CrossNamespaceVolumeDataSource": 0 0 Alpha off;
    "CustomCPUCFSQuotaPeriod": 0 0 Alpha off, 36 0 Ga on;
    "CustomResourceFieldSelectors": 0 0 Ga on locked;
    "DRAAdminAccess": 0 0 Beta on, 36 0 Ga on locked;
    "DRAConsumableCapacity": 0 0 Alpha off, 36 0 Beta on;
    "DRADerivedAttributes": 37 0 Alpha off;
    "DRADeviceBindingConditions": 0 0 Alpha off, 36 0 Beta on;
    "DRADeviceCompatibilityGroups": 37 0 Alpha off;
    "DRADeviceTaintRules": 35 0 Alpha off, 36 0 Beta off, 37 0 Ga on;
    "DRADeviceTaints": 0 0 Alpha off, 36 0 Beta on, 37 0 Ga on;
    "DRAExtendedResource": 0 0 Alpha off, 36 0 Beta on, 37 0 Ga on locked;
    "DRAFractionalCapacityRange": 37 0 Beta off, 37 37 Beta on;
    "DRAListTypeAttributes": 36 0 Alpha off;
    "DRANodeAllocatableResources": 36 0 Alpha off;
    "DRAOptionalNodeOperations": 37 0 Alpha off;
    "DRAPartitionableDevices": 0 0 Alpha off, 36 0 Beta on;
    "DRAPartitionableDevicesType": 37 0 Alpha off;
    "DRAPrioritizedList": 0 0 Beta on, 36 0 Ga on, 37 0 Ga on locked;
    "DRAResourceClaimDeviceStatus": 0 0 Beta on, 37 0 Ga on locked;
    "DRAResourceClaimGranularStatusAuthorization": 36 0 Beta on;
    "DRAResourcePoolStatus": 36 0 Alpha off;
    "DRASchedulerFilterTimeout": 0 0 Beta on;
    "DRAWorkloadResourceClaims": 36 0 Alpha off, 37 0 Beta off;
    "DeclarativeValidation": 0 0 Beta on, 36 0 Ga on locked;
    "DeclarativeValidationBeta": 36 0 Beta on;
    "DeclarativeValidationTakeover": 0 0 Beta off, 36 0 Deprecated off, 37 0 Deprecated off locked;
    "DefaultPodSysctls": 37 0 Alpha off;
    "DeploymentReplicaSetTerminatingReplicas": 0 0 Alpha off, 35 0 Beta on;
    "DetectCacheInconsistency": 0 0 Beta on;
    "DisableAllocatorDualWrite": 0 0 Ga on, 35 0 Ga on locked;
    "DisableCPUQuotaWithExclusiveCPUs": 0 0 Beta on, 36 0 Deprecated on, 37 0 Deprecated on locked;
    "DisableNodeKubeProxyVersion": 0 0 Deprecated on, 36 0 Deprecated on locked;
    "DynamicResourceAllocation": 0 0 Ga on, 35 0 Ga on locked;
    "EmptyDirVolumeMode": 37 0 Alpha off;
    "EnvFiles": 0 0 Alpha off, 35 0 Beta on;
    "EtcdRangeStream": 37 0 Beta on;
    "EventedPLEG": 0 0 Alpha off;
    "EvictionRequestAPI": 37 0 Alpha off;
    "ExcludeAdmissionWebhookVirtualResources": 37 0 Beta on;
    "ExecProbeTimeout": 0 0 Ga on, 35 0 Ga on locked;
    "ExtendWebSocketsToKubelet": 36 0 Beta on;
    "ExternalServiceAccountTokenSigner": 0 0 Beta on, 36 0 Ga on locked;
    "GRPCContainerProbeTLS": 37 0 Alpha off;
    "GenericWorkload": 35 0 Alpha off, 37 0 Beta off;
    "GitRepoVolumeDriver": 0 0 Deprecated off, 36 0 Deprecated off locked;
    "GracefulNodeShutdown": 0 0 Beta on;
    "GracefulNodeShutdownBasedOnPodPriority": 0 0 Beta on;
    "H2CContainerProbe": 37 0 Alpha off;
    "HPAConfigurableTolerance": 0 0 Alpha off, 35 0 Beta on, 37 0 Ga on locked;
    "HPAGeneration": 37 0 Beta on;
    "HPAOptimizedSelectorStore": 37 0 Beta on;
    "HPAScaleToZero": 0 0 Alpha off, 37 0 Beta on;
    "HostnameOverride": 0 0 Alpha off, 35 0 Beta on, 37 0 Ga on locked;
    "HugepageAwareEviction": 37 0 Beta on;
    "ImageMaximumGCAge": 0 0 Beta on, 35 0 Ga on locked;
    "ImageVolume": 0 0 Beta off, 35 0 Beta on, 36 0 Ga on locked;
    "ImageVolumeWithDigest": 35 0 Alpha off;
    "InOrderInformers": 0 0 Beta on, 36 0 Ga on locked;
    "InOrderInformersBatchProcess": 35 0 Beta on;
    "InPlacePodLevelResourcesVerticalScaling": 35 0 Alpha off, 36 0 Beta on;
    "InPlacePodVerticalScaling": 0 0 Beta on, 35 0 Ga on locked;
    "InPlacePodVerticalScalingExclusiveCPUs": 0 0 Alpha off;
    "InPlacePodVerticalScalingExclusiveMemory": 0 0 Alpha off;
    "InPlacePodVerticalScalingInitContainers": 36 0 Beta on, 37 0 Ga on locked;
    "InPlacePodVerticalScalingMemoryBackedVolumes": 37 0 Alpha off;
    "InPlacePodVerticalScalingSchedulerPreemption": 37 0 Alpha off;
    "InformerResourceVersion": 0 0 Alpha off, 35 0 Ga on;
    "InterPodAffinityHostnameFastPath": 37 0 Alpha off;
    "JobManagedBy": 0 0 Beta on, 35 0 Ga on locked;
    "KMSv1": 0 0 Deprecated off;
    "KubeProxyIPVS": 0 0 Ga on, 37 0 Deprecated on;
    "KubeProxyNFTablesLocalhostNodePorts": 37 0 Alpha off;
    "KubeletAllocatedPodsEndpoint": 37 0 Alpha off;
    "KubeletCgroupDriverFromCRI": 0 0 Ga on locked;
    "KubeletCrashLoopBackOffMax": 0 0 Alpha off, 35 0 Beta on;
    "KubeletEnsureSecretPulledImages": 0 0 Alpha off, 35 0 Beta on;
    "KubeletFineGrainedAuthz": 0 0 Beta on, 36 0 Ga on locked;
    "KubeletInUserNamespace": 0 0 Alpha off, 37 0 Beta on;
    "KubeletPSI": 0 0 Beta on, 36 0 Ga on locked;
    "KubeletPodResourcesDynamicResources": 0 0 Beta on, 36 0 Ga on locked;
    "KubeletPodResourcesGet": 0 0 Beta on, 36 0 Ga on locked;
    "KubeletPodResourcesListUseActivePods": 0 0 Deprecated on;
    "KubeletRegistrationGetOnExistsOnly": 0 0 Deprecated off;
    "KubeletSeparateDiskGC": 0 0 Beta on;
    "KubeletServiceAccountTokenForCredentialProviders": 0 0 Beta on;
    "KubeletTracing": 0 0 Ga on locked;
    "ListFromCacheSnapshot": 0 0 Beta on;
    "LocalStorageCapacityIsolationFSQuotaMonitoring": 0 0 Beta off;
    "LoggingAlphaOptions": 0 0 Alpha off;
    "LoggingBetaOptions": 0 0 Beta on;
    "ManifestBasedAdmissionControlConfig": 36 0 Alpha off, 37 0 Beta on;
    "MatchLabelKeysInPodAffinity": 0 0 Ga on locked;
    "MatchLabelKeysInPodTopologySpread": 0 0 Beta on;
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": 0 0 Beta on;
    "MaxUnavailableStatefulSet": 0 0 Alpha off, 35 0 Beta off, 37 0 Beta on;
    "MemoryQoS": 0 0 Alpha off, 37 0 Beta on;
    "MultiCIDRServiceAllocator": 0 0 Ga on locked;
    "MutableCSINodeAllocatableCount": 0 0 Beta off, 35 0 Beta on, 36 0 Ga on locked;
    "MutablePVNodeAffinity": 35 0 Alpha off;
    "MutablePodResourcesForSuspendedJobs": 35 0 Alpha off, 36 0 Beta on;
    "MutableSchedulingDirectivesForSuspendedJobs": 35 0 Alpha off, 36 0 Beta on;
    "MutatingAdmissionPolicy": 0 0 Beta off, 36 0 Ga on;
    "NFTablesNetlink": 37 0 Beta on;
    "NFTablesProxyMode": 0 0 Ga on locked;
    "NativeHistograms": 36 0 Alpha off, 37 0 Beta on;
    "NodeControllerLeaseCircuitBreaker": 37 0 Beta on;
    "NodeDeclaredFeatures": 35 0 Alpha off, 36 0 Beta on, 37 0 Ga on locked;
    "NodeInclusionPolicyInPodTopologySpread": 0 0 Ga on locked;
    "NodeLifecycleConditions": 37 0 Alpha off;
    "NodeLogQuery": 0 0 Beta off, 36 0 Ga on locked;
    "NodeSwap": 0 0 Ga on locked;
    "NominatedNodeNameForExpectation": 0 0 Alpha off, 35 0 Beta on;
    "OpenAPIEnums": 0 0 Beta on;
    "OpportunisticBatching": 35 0 Beta on;
    "PLEGOnDemandRelist": 36 0 Beta on, 37 0 Ga on locked;
    "PersistentVolumeClaimUnusedSinceTime": 36 0 Alpha off, 37 0 Beta on;
    "PodAndContainerStatsFromCRI": 0 0 Alpha off, 37 0 Beta off;
    "PodCertificateRequest": 0 0 Alpha off, 35 0 Beta off, 37 0 Ga on;
    "PodDeletionCost": 0 0 Beta on;
    "PodGroupPreemptionPolicy": 37 0 Alpha off;
    "PodLevelResourceManagers": 36 0 Alpha off, 37 0 Beta off;
    "PodLevelResources": 0 0 Beta on;
    "PodLevelResourcesFixDefaulting": 37 0 Beta on;
    "PodLevelResourcesFixKubeletQOSClass": 37 0 Beta on;
    "PodLogsQuerySplitStreams": 0 0 Alpha off;
    "PodObservedGenerationTracking": 0 0 Beta on, 35 0 Ga on locked;
    "PodReadyToStartContainersCondition": 0 0 Beta on, 37 0 Ga on locked;
    "PodSchedulingReadiness": 0 0 Ga on locked;
    "PodTopologyLabelsAdmission": 0 0 Alpha off, 35 0 Beta on;
    "PodsAPI": 36 0 Alpha off, 37 0 Beta on;
    "PortForwardWebsockets": 0 0 Beta on;
    "PreferSameTrafficDistribution": 0 0 Beta on, 35 0 Ga on locked;
    "ProcMountType": 0 0 Beta on, 36 0 Ga on locked;
    "QOSReserved": 0 0 Alpha off;
    "RecoverVolumeExpansionFailure": 0 0 Ga on locked;
    "RecursiveReadOnlyMounts": 0 0 Ga on locked;
    "ReduceDefaultCrashLoopBackOffDecay": 0 0 Alpha off;
    "RelaxedEnvironmentVariableValidation": 0 0 Ga on locked;
    "RelaxedServiceNameValidation": 0 0 Alpha off, 36 0 Beta on, 37 0 Ga on locked;
    "ReloadKubeletClientCAFile": 36 0 Beta on;
    "ReloadKubeletServerCertificateFile": 0 0 Beta on;
    "RemoteRequestHeaderUID": 0 0 Beta on;
    "ResourceHealthStatus": 0 0 Alpha off, 36 0 Beta on;
    "ResourceHealthStatusMessage": 36 0 Beta on;
    "RestartAllContainersOnContainerExits": 35 0 Alpha off, 36 0 Beta on;
    "RotateKubeletServerCertificate": 0 0 Beta on;
    "RuntimeClassInImageCriApi": 0 0 Alpha off;
    "SELinuxChangePolicy": 0 0 Beta on, 36 0 Ga on locked;
    "SELinuxMount": 0 0 Beta off, 37 0 Ga on;
    "SELinuxMountReadWriteOncePod": 0 0 Beta on, 36 0 Ga on locked;
    "SchedulerAsyncAPICalls": 0 0 Beta off;
    "SchedulerAsyncPreemption": 0 0 Beta on;
    "SchedulerPopFromBackoffQ": 0 0 Beta on;
    "SchedulerPreQueueingHints": 37 0 Alpha off;
    "SeparateCacheWatchRPC": 0 0 Deprecated off, 36 0 Deprecated off locked;
    "SeparateTaintEvictionController": 0 0 Ga on locked;
    "ServiceAccountNodeAudienceRestriction": 0 0 Beta on;
    "ServiceAccountTokenJTI": 0 0 Ga on locked;
    "ServiceAccountTokenNodeBinding": 0 0 Ga on locked;
    "ServiceAccountTokenNodeBindingValidation": 0 0 Ga on locked;
    "ServiceAccountTokenPodNodeInfo": 0 0 Ga on locked;
    "ServiceCIDRStatusFieldWiping": 0 0 Ga off, 36 0 Deprecated on;
    "ShardedListAndWatch": 36 0 Alpha off;
    "SizeBasedListCostEstimate": 0 0 Beta on;
    "StaleControllerConsistencyDaemonSet": 36 0 Beta on;
    "StaleControllerConsistencyHPA": 37 0 Beta on;
    "StaleControllerConsistencyJob": 36 0 Beta on;
    "StaleControllerConsistencyReplicaSet": 36 0 Beta on;
    "StaleControllerConsistencyStatefulSet": 36 0 Beta on;
    "StatefulSetRecreateStrategy": 37 0 Alpha off;
    "StatefulSetSemanticRevisionComparison": 0 0 Beta on;
    "StorageCapacityScoring": 0 0 Alpha off, 37 0 Beta on;
    "StorageNamespaceIndex": 0 0 Deprecated on;
    "StorageVersionAPI": 0 0 Alpha off;
    "StorageVersionHash": 0 0 Beta on;
    "StorageVersionMigrator": 0 0 Alpha off, 35 0 Beta off, 37 0 Ga on;
    "StrictIPCIDRValidation": 0 0 Alpha off, 36 0 Beta on;
    "StructuredAuthenticationConfigurationEgressSelector": 0 0 Beta on;
    "StructuredAuthenticationConfigurationJWKSMetrics": 35 0 Beta on;
    "SupplementalGroupsPolicy": 0 0 Beta on, 35 0 Ga on locked;
    "SystemdWatchdog": 0 0 Beta on, 35 0 Ga on locked;
    "TaintTolerationComparisonOperators": 35 0 Alpha off;
    "TokenRequestServiceAccountUIDValidation": 0 0 Beta on;
    "TopologyAwareWorkloadScheduling": 36 0 Alpha off;
    "TopologyManagerPolicyAlphaOptions": 0 0 Alpha off;
    "TopologyManagerPolicyBetaOptions": 0 0 Beta on;
    "TopologyManagerPolicyOptions": 0 0 Ga on locked;
    "TranslateStreamCloseWebsocketRequests": 0 0 Beta on;
    "UnauthenticatedHTTP2DOSMitigation": 0 0 Beta on;
    "UnknownVersionInteroperabilityProxy": 0 0 Alpha off, 36 0 Beta on;
    "UnlockWhileProcessingFIFO": 36 0 Beta on;
    "UserNamespacesHostNetworkSupport": 35 0 Alpha off;
    "UserNamespacesSupport": 0 0 Beta on, 36 0 Ga on locked;
    "VolumeAttributesClass": 0 0 Ga on, 36 0 Ga on locked;
    "VolumeBindMountOptions": 37 0 Alpha off;
    "VolumeLimitScaling": 35 0 Alpha off, 37 0 Beta on;
    "WatchCacheInitializationPostStartHook": 0 0 Beta off, 36 0 Beta on, 37 0 Ga on locked;
    "WatchList": 0 0 Beta on;
    "WatchListClient": 0 0 Beta off, 35 0 Beta on;
    "WatchListCompression": 37 0 Beta on;
    "WebhookRoundTripLoadBalancing": 37 0 Beta on;
    "WinDSR": 0 0 Ga on locked;
    "WinOverlay": 0 0 Ga on locked;
    "WindowsCPUAndMemoryAffinity": 0 0 Alpha off;
    "WindowsGracefulNodeShutdown": 0 0 Beta on;
    "WindowsHostNetwork": 0 0 Deprecated off;
    "WorkloadWithJob": 36 0 Alpha off;
}
