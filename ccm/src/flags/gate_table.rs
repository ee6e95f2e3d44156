//! The table of all feature gates of cloud-controller-manager 1.37, by Kubernetes minor version.

/// Gates, each with the gates that must be on if it is on. Upstream: component-base featuregate, AddDependencies.
#[rustfmt::skip]
pub static DEPENDENCIES: &[(&str, &[&str])] = &[
    ("DeclarativeValidationBeta", &["DeclarativeValidation"]),
    ("DeclarativeValidationTakeover", &["DeclarativeValidation"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
];

component::gates! {
    "APIResponseCompression": 0 0 Beta on;
    "APIServerIdentity": 0 0 Beta on;
    "APIServerWebhookAuthenticationToken": 37 0 Alpha off;
    "APIServingWithRoutine": 0 0 Alpha off;
    "AggregatedDiscoveryRemoveBetaType": 0 0 Deprecated on, 35 0 Deprecated on locked;
    "AllAlpha": 0 0 Alpha off;
    "AllBeta": 0 0 Beta off;
    "AllowParsingUserUIDFromCertAuth": 0 0 Beta on;
    "AllowUnsafeMalformedObjectDeletion": 0 0 Alpha off, 37 0 Beta on;
    "CBORServingAndStorage": 0 0 Alpha off;
    "CloudControllerManagerWatchBasedRoutesReconciliation": 35 0 Alpha off;
    "CloudControllerManagerWebhook": 0 0 Alpha off;
    "ComponentFlagz": 0 0 Alpha off, 36 0 Beta on;
    "ComponentStatusz": 0 0 Alpha off, 36 0 Beta on;
    "ConcurrentWatchObjectDecode": 0 0 Beta off, 37 0 Beta on;
    "ConsistentListFromCacheSkipTimeoutFallback": 37 0 Alpha off;
    "ConstrainedImpersonation": 35 0 Alpha off, 36 0 Beta on;
    "ContextualLogging": 0 0 Beta on;
    "ControllerManagerReleaseLeaderElectionLockOnExit": 36 0 Alpha off;
    "CoordinatedLeaderElection": 0 0 Beta off;
    "DeclarativeValidation": 0 0 Beta on, 36 0 Ga on locked;
    "DeclarativeValidationBeta": 36 0 Beta on;
    "DeclarativeValidationTakeover": 0 0 Beta off, 36 0 Deprecated off, 37 0 Deprecated off locked;
    "DetectCacheInconsistency": 0 0 Beta on;
    "EtcdRangeStream": 37 0 Beta on;
    "ExcludeAdmissionWebhookVirtualResources": 37 0 Beta on;
    "KMSv1": 0 0 Deprecated off;
    "ListFromCacheSnapshot": 0 0 Beta on;
    "LoggingAlphaOptions": 0 0 Alpha off;
    "LoggingBetaOptions": 0 0 Beta on;
    "ManifestBasedAdmissionControlConfig": 36 0 Alpha off, 37 0 Beta on;
    "MutatingAdmissionPolicy": 0 0 Beta off, 36 0 Ga on;
    "NativeHistograms": 36 0 Alpha off, 37 0 Beta on;
    "OpenAPIEnums": 0 0 Beta on;
    "RemoteRequestHeaderUID": 0 0 Beta on;
    "SeparateCacheWatchRPC": 0 0 Deprecated off, 36 0 Deprecated off locked;
    "ShardedListAndWatch": 36 0 Alpha off;
    "SizeBasedListCostEstimate": 0 0 Beta on;
    "StorageVersionAPI": 0 0 Alpha off;
    "StorageVersionHash": 0 0 Beta on;
    "StructuredAuthenticationConfigurationEgressSelector": 0 0 Beta on;
    "StructuredAuthenticationConfigurationJWKSMetrics": 35 0 Beta on;
    "TokenRequestServiceAccountUIDValidation": 0 0 Beta on;
    "UnauthenticatedHTTP2DOSMitigation": 0 0 Beta on;
    "UnknownVersionInteroperabilityProxy": 0 0 Alpha off, 36 0 Beta on;
    "WatchCacheInitializationPostStartHook": 0 0 Beta off, 36 0 Beta on, 37 0 Ga on locked;
    "WatchList": 0 0 Beta on;
    "WatchListCompression": 37 0 Beta on;
    "WebhookRoundTripLoadBalancing": 37 0 Beta on;
}
