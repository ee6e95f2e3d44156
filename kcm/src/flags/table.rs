//! The table of every flag of kube-controller-manager 1.37; turning one effective is one word here.

component::flags! {
    "Debugging" {
        "contention-profiling": Bool = "false", NoEffectYet, "Record where workers block, when profiling is on";
        "profiling": Bool = "true", Effective, "Serve /debug/flags/v on the secure port; there are no profiles here";
    }
    "Leader-migration" {
        "enable-leader-migration": Bool = "false", NoEffectYet, "Hand controllers over between managers by leader migration";
        "leader-migration-config": Text = "", NoEffectYet, "File with a LeaderMigrationConfiguration (controllermanager.config.k8s.io/v1alpha1); empty takes the built-in one";
    }
    "Generic" {
        "allocate-node-cidrs": Bool = "false", Effective, "Give every Node a pod CIDR out of --cluster-cidr";
        "allow-untagged-cloud": Bool = "false", NoEffectYet, "Accept cloud instances without a cluster tag" deprecated "will be removed; tag the instances with the cluster";
        "cidr-allocator-type": Text = "RangeAllocator", NoEffectYet, "How pod CIDRs are allocated; only RangeAllocator is available";
        "cloud-config": Text = "", NoEffectYet, "Configuration file of the cloud provider; empty for none";
        "cloud-provider": Text = "", NoEffectYet, "Cloud provider: empty or external";
        "cluster-cidr": Text = "", Effective, "CIDR range or ranges of the Pods; used with --allocate-node-cidrs";
        "cluster-name": Text = "kubernetes", NoEffectYet, "Name of this cluster, used as a prefix for cloud resources";
        "configure-cloud-routes": Bool = "true", NoEffectYet, "Have the cloud route each Node's pod CIDR";
        "controller-shutdown-timeout": Duration = "10s", Effective, "How long to wait for controllers to stop before exiting; 0 waits for ever";
        "controller-start-interval": Duration = "0s", Effective, "Pause between the starts of two controllers";
        "controllers": Strings = "[*]", Effective, "Controllers to run: '*' for all that are on by default, 'foo' to switch foo on, '-foo' to switch it off; the first mention of a name decides";
        "emulated-version": Strings = "[]", Effective, "Kubernetes version whose behaviour to emulate, as 1.36 or kube=1.36; allowed: 1.34 to 1.37 (default 1.37)";
        "external-cloud-volume-plugin": Text = "", NoEffectYet, "In-tree volume plugin to go on using with --cloud-provider=external";
        "feature-gates": Gates = "", Effective, "Feature gates to switch, as [kube:]Gate=true|false, comma-separated; may be repeated";
        "kube-api-burst": Int32 = "30", Effective, "Requests that may be sent to the API server at once, beyond --kube-api-qps";
        "kube-api-content-type": Text = "application/vnd.kubernetes.protobuf", Effective, "Media type of the requests to the API server";
        "kube-api-qps": Float32 = "20", Effective, "Requests per second to the API server";
        "leader-elect": Bool = "true", Effective, "Work only while holding the Lease, so that several replicas may run";
        "leader-elect-lease-duration": Duration = "15s", Effective, "How long a candidate waits, after the last renewal it saw, before it takes the Lease";
        "leader-elect-renew-deadline": Duration = "10s", Effective, "How long the leader tries to renew before it gives up; less than the lease duration";
        "leader-elect-resource-lock": Text = "leases", Effective, "Kind of object used as the lock; only leases";
        "leader-elect-resource-name": Text = "kube-controller-manager", Effective, "Name of the Lease";
        "leader-elect-resource-namespace": Text = "kube-system", Effective, "Namespace of the Lease";
        "leader-elect-retry-period": Duration = "2s", Effective, "Pause between two attempts to take or renew the Lease";
        "min-compatibility-version": Strings = "[]", Effective, "Oldest control-plane version to stay compatible with, as 1.36 or kube=1.36; at most the emulated version (default 1.36)";
        "min-resync-period": Duration = "12h0m0s", Effective, "Informers resync at a random period between this and twice this";
        "node-sync-period": Duration = "0s", NoEffectYet, "Has no effect" deprecated "has no effect and will be removed";
        "route-reconciliation-period": Duration = "10s", NoEffectYet, "How often cloud routes are reconciled with the Nodes";
        "use-service-account-credentials": Bool = "false", Effective, "Let each controller write as its own service account";
    }
    "Secure serving" {
        "bind-address": Ip = "0.0.0.0", Effective, "Address on which --secure-port listens; 0.0.0.0 or :: for all interfaces";
        "cert-dir": Text = "", Effective, "Directory for generated certificates; ignored when --tls-cert-file and --tls-private-key-file are given";
        "disable-http2-serving": Bool = "false", Effective, "Serve HTTP/1.1 only";
        "http2-max-streams-per-connection": Int = "0", Effective, "Streams a client may have open in one HTTP/2 connection; 0 for the library's default";
        "permit-address-sharing": Bool = "false", Effective, "Listen with SO_REUSEADDR, which is always done here";
        "permit-port-sharing": Bool = "false", Effective, "Listen with SO_REUSEPORT";
        "secure-port": Int = "10257", Effective, "HTTPS port with authentication and authorization; 0 serves nothing";
        "tls-cert-file": Text = "", Effective, "PEM certificate (and chain) for HTTPS; without one a self-signed certificate is made";
        "tls-cipher-suites": Strings = "[]", Effective, "Cipher suites of the server, by their IANA names; empty for the library's default";
        "tls-curve-preferences": Int32s = "[]", Effective, "Numbers of the key exchange groups that the server allows; empty for the library's default";
        "tls-min-version": Text = "", Effective, "Lowest TLS version: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13";
        "tls-private-key-file": Text = "", Effective, "PEM private key of --tls-cert-file";
        "tls-sni-cert-key": CertKeys = "[]", Effective, "Certificate and key for the named hosts, as cert,key or cert,key:host,host; may be repeated";
    }
    "Authentication" {
        "authentication-kubeconfig": Text = "", Effective, "Kubeconfig for TokenReviews and for looking up client CAs; empty treats every token as anonymous";
        "authentication-skip-lookup": Bool = "false", Effective, "Do not look up missing authentication settings in the cluster";
        "authentication-token-webhook-cache-ttl": Duration = "10s", Effective, "How long an answer to a TokenReview is kept";
        "authentication-tolerate-lookup-failure": Bool = "false", Effective, "Start even when authentication settings cannot be looked up; requests may then count as anonymous";
        "client-ca-file": Text = "", Effective, "CA bundle for client certificates; the common name becomes the user";
        "requestheader-allowed-names": Strings = "[]", Effective, "Common names of front proxies that may set user headers; empty allows all that --requestheader-client-ca-file signed";
        "requestheader-client-ca-file": Text = "", Effective, "CA bundle that front proxies must be signed by before their user headers count";
        "requestheader-extra-headers-prefix": Strings = "[x-remote-extra-]", Effective, "Prefixes of headers with extra user attributes";
        "requestheader-group-headers": Strings = "[x-remote-group]", Effective, "Headers with the user's groups";
        "requestheader-uid-headers": Strings = "[]", Effective, "Headers with the user's UID";
        "requestheader-username-headers": Strings = "[x-remote-user]", Effective, "Headers with the user's name";
    }
    "Authorization" {
        "authorization-always-allow-paths": Strings = "[/healthz,/readyz,/livez]", Effective, "HTTP paths that need no authorization";
        "authorization-kubeconfig": Text = "", Effective, "Kubeconfig for SubjectAccessReviews; empty forbids all that is not always allowed";
        "authorization-webhook-cache-authorized-ttl": Duration = "10s", Effective, "How long a positive answer to a SubjectAccessReview is kept";
        "authorization-webhook-cache-unauthorized-ttl": Duration = "10s", Effective, "How long a negative answer to a SubjectAccessReview is kept";
    }
    "Persistentvolume-attach-detach-controller" {
        "attach-detach-reconcile-sync-period": Duration = "1m0s", NoEffectYet, "Pause between two checks of attached volumes; at least one second";
        "disable-attach-detach-reconcile-sync": Bool = "false", NoEffectYet, "Never check attached volumes against the cloud";
        "disable-force-detach-on-timeout": Bool = "false", NoEffectYet, "Never detach a volume by force because unmounting took too long";
    }
    "Certificatesigningrequest-signing-controller" {
        "cluster-signing-cert-file": Text = "", Effective, "PEM CA certificate that signs all certificate requests; excludes the per-signer flags";
        "cluster-signing-duration": Duration = "8760h0m0s", Effective, "Longest life of a signed certificate";
        "cluster-signing-key-file": Text = "", Effective, "PEM private key of --cluster-signing-cert-file";
        "cluster-signing-kube-apiserver-client-cert-file": Text = "", Effective, "PEM CA certificate of signer kubernetes.io/kube-apiserver-client";
        "cluster-signing-kube-apiserver-client-key-file": Text = "", Effective, "PEM private key of signer kubernetes.io/kube-apiserver-client";
        "cluster-signing-kubelet-client-cert-file": Text = "", Effective, "PEM CA certificate of signer kubernetes.io/kube-apiserver-client-kubelet";
        "cluster-signing-kubelet-client-key-file": Text = "", Effective, "PEM private key of signer kubernetes.io/kube-apiserver-client-kubelet";
        "cluster-signing-kubelet-serving-cert-file": Text = "", Effective, "PEM CA certificate of signer kubernetes.io/kubelet-serving";
        "cluster-signing-kubelet-serving-key-file": Text = "", Effective, "PEM private key of signer kubernetes.io/kubelet-serving";
        "cluster-signing-legacy-unknown-cert-file": Text = "", Effective, "PEM CA certificate of signer kubernetes.io/legacy-unknown";
        "cluster-signing-legacy-unknown-key-file": Text = "", Effective, "PEM private key of signer kubernetes.io/legacy-unknown";
    }
    "Deployment-controller" {
        "concurrent-deployment-syncs": Int32 = "5", Effective, "Deployments reconciled at once";
    }
    "Disruption-controller" {
        "concurrent-disruption-syncs": Int32 = "1", Effective, "PodDisruptionBudgets reconciled at once";
    }
    "Device-taint-eviction-controller" {
        "concurrent-device-taint-eviction-syncs": Int32 = "8", Effective, "Evictions and DeviceTaintRule updates made at once";
    }
    "Resourceclaim-controller" {
        "concurrent-resourceclaim-syncs": Int32 = "50", NoEffectYet, "ResourceClaims created or deleted at once";
    }
    "Statefulset-controller" {
        "concurrent-statefulset-syncs": Int32 = "5", Effective, "StatefulSets reconciled at once";
    }
    "Daemonset-controller" {
        "concurrent-daemonset-syncs": Int32 = "2", Effective, "DaemonSets reconciled at once";
    }
    "Endpoints-controller" {
        "concurrent-endpoint-syncs": Int32 = "5", Effective, "Services whose Endpoints are reconciled at once";
        "endpoint-updates-batch-period": Duration = "0s", Effective, "How long pod changes are gathered before Endpoints are written";
    }
    "Endpointslice-controller" {
        "concurrent-service-endpoint-syncs": Int32 = "5", Effective, "Services whose EndpointSlices are reconciled at once, 1 to 50";
        "endpointslice-updates-batch-period": Duration = "0s", Effective, "How long pod changes are gathered before EndpointSlices are written";
        "max-endpoints-per-slice": Int32 = "100", Effective, "Most endpoints in one EndpointSlice, 1 to 1000";
    }
    "Endpointslice-mirroring-controller" {
        "mirroring-concurrent-service-endpoint-syncs": Int32 = "5", Effective, "Endpoints objects mirrored at once, 1 to 50";
        "mirroring-endpointslice-updates-batch-period": Duration = "0s", Effective, "How long changes are gathered before mirrored EndpointSlices are written";
        "mirroring-max-endpoints-per-subset": Int32 = "1000", Effective, "Most endpoints mirrored from one subset, 1 to 1000";
    }
    "Ephemeral-volume-controller" {
        "concurrent-ephemeralvolume-syncs": Int32 = "5", NoEffectYet, "Pods whose ephemeral volumes are reconciled at once";
    }
    "Garbage-collector-controller" {
        "concurrent-gc-syncs": Int32 = "20", Effective, "Objects that the garbage collector handles at once";
        "enable-garbage-collector": Bool = "true", Effective, "Run the garbage collector; must equal the API server's flag";
    }
    "Horizontal-pod-autoscaler-controller" {
        "concurrent-horizontal-pod-autoscaler-syncs": Int32 = "5", Effective, "HorizontalPodAutoscalers reconciled at once";
        "horizontal-pod-autoscaler-cpu-initialization-period": Duration = "5m0s", Effective, "How long after a pod's start its CPU samples may be left out";
        "horizontal-pod-autoscaler-downscale-stabilization": Duration = "5m0s", Effective, "How far back recommendations are remembered; never scales below the highest of them";
        "horizontal-pod-autoscaler-initial-readiness-delay": Duration = "30s", Effective, "How long after a pod's start a readiness change still counts as the first";
        "horizontal-pod-autoscaler-sync-period": Duration = "15s", Effective, "How often replica counts are computed";
        "horizontal-pod-autoscaler-tolerance": Float64 = "0.1", Effective, "Ratio of wanted to actual metric may differ from 1.0 by this much without scaling";
    }
    "Job-controller" {
        "concurrent-job-syncs": Int32 = "5", Effective, "Jobs reconciled at once";
    }
    "Cronjob-controller" {
        "concurrent-cron-job-syncs": Int32 = "5", Effective, "CronJobs reconciled at once";
    }
    "Legacy-serviceaccount-token-cleaner-controller" {
        "legacy-service-account-token-clean-up-period": Duration = "8760h0m0s", Effective, "A legacy token Secret that was not used for this long may be deleted";
    }
    "Namespace-controller" {
        "concurrent-namespace-syncs": Int32 = "10", Effective, "Namespaces finalized at once";
        "namespace-sync-period": Duration = "5m0s", Effective, "How often every Namespace is looked at again";
    }
    "Node-ipam-controller" {
        "node-cidr-mask-size": Int32 = "0", Effective, "Prefix length of a Node's pod CIDR in a single-stack cluster; 0 takes 24 for IPv4, 64 for IPv6";
        "node-cidr-mask-size-ipv4": Int32 = "0", Effective, "Prefix length of a Node's IPv4 pod CIDR in a dual-stack cluster; 0 takes 24";
        "node-cidr-mask-size-ipv6": Int32 = "0", Effective, "Prefix length of a Node's IPv6 pod CIDR in a dual-stack cluster; 0 takes 64";
        "service-cluster-ip-range": Text = "", Effective, "CIDR range or two ranges of the Services; Nodes get none of it";
    }
    "Node-lifecycle-controller" {
        "large-cluster-size-threshold": Int32 = "50", Effective, "A zone with more Nodes than this is large; smaller ones stop evicting when unhealthy";
        "node-eviction-rate": Float32 = "0.1", Effective, "Nodes per second that are emptied in a healthy zone";
        "node-monitor-grace-period": Duration = "50s", Effective, "How long a Node may be silent before it is not ready";
        "node-monitor-period": Duration = "5s", Effective, "How often Nodes are looked at";
        "node-startup-grace-period": Duration = "1m0s", Effective, "How long a starting Node may be silent before it is not ready";
        "secondary-node-eviction-rate": Float32 = "0.01", Effective, "Nodes per second that are emptied in an unhealthy large zone";
        "unhealthy-zone-threshold": Float32 = "0.55", Effective, "A zone with this share of Nodes not ready (and at least 3) is unhealthy";
    }
    "Persistentvolume-binder-controller" {
        "enable-dynamic-provisioning": Bool = "true", NoEffectYet, "Provision volumes dynamically where the environment can";
        "enable-hostpath-provisioner": Bool = "false", NoEffectYet, "Provision HostPath volumes without a cloud; for tests on one node only";
        "flex-volume-plugin-dir": Text = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", NoEffectYet, "Directory with flex volume plugins";
        "pv-recycler-increment-timeout-nfs": Int32 = "30", NoEffectYet, "Seconds per GiB added to the deadline of an NFS scrubber pod";
        "pv-recycler-minimum-timeout-hostpath": Int32 = "60", NoEffectYet, "Shortest deadline in seconds of a HostPath recycler pod; for tests on one node only";
        "pv-recycler-minimum-timeout-nfs": Int32 = "300", NoEffectYet, "Shortest deadline in seconds of an NFS recycler pod";
        "pv-recycler-pod-template-filepath-hostpath": Text = "", NoEffectYet, "Pod template file for recycling HostPath volumes; for tests on one node only";
        "pv-recycler-pod-template-filepath-nfs": Text = "", NoEffectYet, "Pod template file for recycling NFS volumes";
        "pv-recycler-timeout-increment-hostpath": Int32 = "30", NoEffectYet, "Seconds per GiB added to the deadline of a HostPath scrubber pod; for tests on one node only";
        "pvclaimbinder-sync-period": Duration = "15s", NoEffectYet, "How often volumes and claims are matched again";
    }
    "Pod-garbage-collector-controller" {
        "terminated-pod-gc-threshold": Int32 = "12500", Effective, "Finished Pods to keep before the oldest are deleted; 0 or less keeps all";
    }
    "Replicaset-controller" {
        "concurrent-replicaset-syncs": Int32 = "5", Effective, "ReplicaSets reconciled at once";
    }
    "Replicationcontroller-controller" {
        "concurrent-rc-syncs": Int32 = "5", Effective, "ReplicationControllers reconciled at once";
    }
    "Resourcequota-controller" {
        "concurrent-resource-quota-syncs": Int32 = "5", Effective, "ResourceQuotas reconciled at once";
        "resource-quota-sync-period": Duration = "5m0s", Effective, "How often the usage of every ResourceQuota is computed anew";
    }
    "Serviceaccount-controller" {
        "concurrent-serviceaccount-token-syncs": Int32 = "5", Effective, "Service account token Secrets reconciled at once";
        "root-ca-file": Text = "", Effective, "PEM CA bundle that is put into service account token Secrets";
        "service-account-private-key-file": Text = "", Effective, "PEM RSA or ECDSA key that signs legacy service account tokens; empty makes none";
    }
    "Ttl-after-finished-controller" {
        "concurrent-ttl-after-finished-syncs": Int32 = "5", Effective, "Finished Jobs checked for their time to live at once";
    }
    "Validatingadmissionpolicy-status-controller" {
        "concurrent-validating-admission-policy-status-syncs": Int32 = "5", NoEffectYet, "ValidatingAdmissionPolicies type-checked at once";
    }
    "Metrics" {
        "allow-metric-labels": Map = "[]", NoEffectYet, "Values allowed for a label of a metric, as metric,label='v1,v2'; others are counted as unexpected";
        "allow-metric-labels-manifest": Text = "", NoEffectYet, "YAML file with the same map as --allow-metric-labels; excludes it";
        "disabled-metrics": Strings = "[]", NoEffectYet, "Fully qualified names of metrics not to serve";
        "show-hidden-metrics-for-version": Text = "", NoEffectYet, "Also serve metrics hidden since this version; only the previous minor (1.36)";
    }
    "Logs" {
        "log-flush-frequency": Duration = "5s", NoEffectYet, "Longest time before log lines are flushed";
        "log-json-info-buffer-size": Quantity = "0", NoEffectYet, "Bytes of JSON info lines to buffer when streams are split, as 512, 1K, 2Ki; needs gate LoggingAlphaOptions";
        "log-json-split-stream": Bool = "false", NoEffectYet, "JSON errors to stderr, info lines to stdout; needs gate LoggingAlphaOptions";
        "log-text-info-buffer-size": Quantity = "0", NoEffectYet, "Bytes of text info lines to buffer when streams are split, as 512, 1K, 2Ki; needs gate LoggingAlphaOptions";
        "log-text-split-stream": Bool = "false", NoEffectYet, "Text errors to stderr, info lines to stdout; needs gate LoggingAlphaOptions";
        "logging-format": Text = "text", Effective, "Form of log lines: text, or json (gate LoggingBetaOptions)";
        "v": Level = "0", Effective, "Verbosity of the log, 0 or more";
        "vmodule": VModule = "", Effective, "Verbosity per source file, as pattern=N, comma-separated; text logs only";
    }
    "Misc" {
        "kubeconfig": Text = "", Effective, "Kubeconfig for the API server";
        "master": Text = "", Effective, "Address of the API server, instead of the kubeconfig's";
    }
    "Global" {
        "help": Bool = "false", Effective, "Print this and exit";
        "version": Version = "false", Effective, "Print the version and exit; raw prints all parts; vX.Y.Z... reports that version instead";
    }
}
