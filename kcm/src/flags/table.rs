//! The table of every flag of kube-controller-manager 1.37. `NoEffect` marks flags that are accepted and have no
//! effect.

use component::flags::common::{ACCESS, GENERIC, LOGS, PROCESS, SECURE_SERVING, SERVER};
use component::flags::table::{Flag, joined};

/// Every flag, in the order of `--help`.
pub static FLAGS: &[Flag] =
    &joined::<150>(&[PROCESS, CLUSTER, GENERIC, PORT, SECURE_SERVING, ACCESS, CONTROLLERS, LOGS, SERVER]);

component::flags! {
    const CLUSTER;
    "Generic" {
        "allocate-node-cidrs": Bool = "false", Effective, "Give every Node a pod CIDR out of --cluster-cidr";
        "allow-untagged-cloud": Bool = "false", NoEffect, "Accept cloud instances without a cluster tag" deprecated "will be removed; tag the instances with the cluster";
        "cloud-config": Text = "", NoEffect, "Configuration file of the cloud provider; empty for none";
        "cloud-provider": Text = "", NoEffect, "Cloud provider: empty or external";
        "cluster-cidr": Text = "", Effective, "CIDR range or ranges of the Pods; used with --allocate-node-cidrs";
        "cluster-name": Text = "kubernetes", NoEffect, "Name of this cluster, used as a prefix for cloud resources";
        "configure-cloud-routes": Bool = "true", NoEffect, "Have the cloud route each Node's pod CIDR";
        "controller-shutdown-timeout": Duration = "10s", Effective, "How long to wait for controllers to stop before exiting; 0 waits forever";
        "emulated-version": Strings = "[]", Effective, "Kubernetes version whose behaviour to emulate, such as 1.36 or kube=1.36; allowed: 1.34 to 1.37 (default 1.37)";
        "external-cloud-volume-plugin": Text = "", NoEffect, "In-tree volume plugin to keep using with --cloud-provider=external";
        "feature-gates": Gates = "", Effective, "Feature gates to switch, as [kube:]Gate=true|false, comma-separated; may be repeated";
        "leader-elect-resource-name": Text = "kube-controller-manager", Effective, "Name of the Lease";
        "min-compatibility-version": Strings = "[]", Effective, "Oldest control-plane version to stay compatible with, such as 1.36 or kube=1.36; at most the emulated version (default 1.36)";
        "route-reconciliation-period": Duration = "10s", NoEffect, "How often cloud routes are reconciled with the Nodes";
    }
}

component::flags! {
    const PORT;
    "Secure serving" {
        "secure-port": Int = "10257", Effective, "HTTPS port with authentication and authorization; 0 serves nothing";
    }
}

component::flags! {
    const CONTROLLERS;
    "Persistentvolume-attach-detach-controller" {
        "attach-detach-reconcile-sync-period": Duration = "1m0s", Effective, "Pause between two checks of attached volumes; at least one second";
        "disable-attach-detach-reconcile-sync": Bool = "false", Effective, "Never check attached volumes against the cloud";
        "disable-force-detach-on-timeout": Bool = "false", Effective, "Never detach a volume by force because unmounting took too long";
    }
    "Certificatesigningrequest-signing-controller" {
        "cluster-signing-cert-file": Text = "", Effective, "PEM CA certificate that signs all certificate requests; not together with the per-signer flags";
        "cluster-signing-duration": Duration = "8760h0m0s", Effective, "Maximum lifetime of a signed certificate";
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
        "concurrent-deployment-syncs": Int32 = "5", Effective, "Deployments reconciled concurrently";
    }
    "Disruption-controller" {
        "concurrent-disruption-syncs": Int32 = "1", Effective, "PodDisruptionBudgets reconciled concurrently";
    }
    "Device-taint-eviction-controller" {
        "concurrent-device-taint-eviction-syncs": Int32 = "8", Effective, "Evictions and DeviceTaintRule updates made concurrently";
    }
    "Resourceclaim-controller" {
        "concurrent-resourceclaim-syncs": Int32 = "50", Effective, "Pods, PodGroups and ResourceClaims reconciled concurrently";
    }
    "Statefulset-controller" {
        "concurrent-statefulset-syncs": Int32 = "5", Effective, "StatefulSets reconciled concurrently";
    }
    "Daemonset-controller" {
        "concurrent-daemonset-syncs": Int32 = "2", Effective, "DaemonSets reconciled concurrently";
    }
    "Endpoints-controller" {
        "concurrent-endpoint-syncs": Int32 = "5", Effective, "Services whose Endpoints are reconciled concurrently";
        "endpoint-updates-batch-period": Duration = "0s", Effective, "How long pod changes are collected before Endpoints are written";
    }
    "Endpointslice-controller" {
        "concurrent-service-endpoint-syncs": Int32 = "5", Effective, "Services whose EndpointSlices are reconciled concurrently, 1 to 50";
        "endpointslice-updates-batch-period": Duration = "0s", Effective, "How long pod changes are collected before EndpointSlices are written";
        "max-endpoints-per-slice": Int32 = "100", Effective, "Maximum number of endpoints in one EndpointSlice, 1 to 1000";
    }
    "Endpointslice-mirroring-controller" {
        "mirroring-concurrent-service-endpoint-syncs": Int32 = "5", Effective, "Endpoints objects mirrored concurrently, 1 to 50";
        "mirroring-endpointslice-updates-batch-period": Duration = "0s", Effective, "How long changes are gathered before mirrored EndpointSlices are written";
        "mirroring-max-endpoints-per-subset": Int32 = "1000", Effective, "Maximum number of endpoints mirrored from one subset, 1 to 1000";
    }
    "Ephemeral-volume-controller" {
        "concurrent-ephemeralvolume-syncs": Int32 = "5", Effective, "Pods whose ephemeral volumes are reconciled concurrently";
    }
    "Garbage-collector-controller" {
        "concurrent-gc-syncs": Int32 = "20", Effective, "Objects that the garbage collector handles concurrently";
        "enable-garbage-collector": Bool = "true", Effective, "Run the garbage collector; must equal the API server's flag";
    }
    "Horizontal-pod-autoscaler-controller" {
        "concurrent-horizontal-pod-autoscaler-syncs": Int32 = "5", Effective, "HorizontalPodAutoscalers reconciled concurrently";
        "horizontal-pod-autoscaler-cpu-initialization-period": Duration = "5m0s", Effective, "How long after a pod's start its CPU samples may be left out";
        "horizontal-pod-autoscaler-downscale-stabilization": Duration = "5m0s", Effective, "Period whose highest recommendation is the lower limit of scaling down";
        "horizontal-pod-autoscaler-initial-readiness-delay": Duration = "30s", Effective, "How long after a pod's start a readiness change still counts as the first";
        "horizontal-pod-autoscaler-sync-period": Duration = "15s", Effective, "How often replica counts are computed";
        "horizontal-pod-autoscaler-tolerance": Float64 = "0.1", Effective, "Maximum difference from 1.0 of the ratio of actual to desired metric value that causes no scaling";
    }
    "Job-controller" {
        "concurrent-job-syncs": Int32 = "5", Effective, "Jobs reconciled concurrently";
    }
    "Cronjob-controller" {
        "concurrent-cron-job-syncs": Int32 = "5", Effective, "CronJobs reconciled concurrently";
    }
    "Legacy-serviceaccount-token-cleaner-controller" {
        "legacy-service-account-token-clean-up-period": Duration = "8760h0m0s", Effective, "A legacy token Secret that was not used for this long may be deleted";
    }
    "Namespace-controller" {
        "concurrent-namespace-syncs": Int32 = "10", Effective, "Namespaces finalized concurrently";
        "namespace-sync-period": Duration = "5m0s", Effective, "How often a terminating Namespace that waits for finalizers of other controllers is reconciled again";
    }
    "Node-ipam-controller" {
        "node-cidr-mask-size": Int32 = "0", Effective, "Prefix length of a Node's pod CIDR in a single-stack cluster; 0 means 24 for IPv4, 64 for IPv6";
        "node-cidr-mask-size-ipv4": Int32 = "0", Effective, "Prefix length of a Node's IPv4 pod CIDR in a dual-stack cluster; 0 means 24";
        "node-cidr-mask-size-ipv6": Int32 = "0", Effective, "Prefix length of a Node's IPv6 pod CIDR in a dual-stack cluster; 0 means 64";
        "service-cluster-ip-range": Text = "", Effective, "CIDR range or two ranges of the Services; Node pod CIDRs never overlap it";
    }
    "Node-lifecycle-controller" {
        "large-cluster-size-threshold": Int32 = "50", Effective, "A zone with more Nodes than this is large; smaller ones stop evicting when unhealthy";
        "node-eviction-rate": Float32 = "0.1", Effective, "Nodes per second whose pods are evicted in a healthy zone";
        "node-monitor-grace-period": Duration = "50s", Effective, "How long a Node may be unresponsive before it is marked not ready";
        "node-monitor-period": Duration = "5s", Effective, "How often Nodes are checked";
        "node-startup-grace-period": Duration = "1m0s", Effective, "How long a starting Node may be unresponsive before it is marked not ready";
        "secondary-node-eviction-rate": Float32 = "0.01", Effective, "Nodes per second whose pods are evicted in an unhealthy large zone";
        "unhealthy-zone-threshold": Float32 = "0.55", Effective, "A zone with this share of Nodes not ready (and at least 3) is unhealthy";
    }
    "Persistentvolume-binder-controller" {
        "enable-dynamic-provisioning": Bool = "true", Effective, "Provision volumes dynamically in environments that support it";
        "enable-hostpath-provisioner": Bool = "false", Effective, "Provision HostPath volumes without a cloud; for tests on one node only";
        "flex-volume-plugin-dir": Text = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", NoEffect, "Directory with flex volume plugins";
        "pv-recycler-increment-timeout-nfs": Int32 = "30", Effective, "Seconds per GiB added to the deadline of an NFS scrubber pod";
        "pv-recycler-minimum-timeout-hostpath": Int32 = "60", Effective, "Shortest deadline in seconds of a HostPath recycler pod; for tests on one node only";
        "pv-recycler-minimum-timeout-nfs": Int32 = "300", Effective, "Shortest deadline in seconds of an NFS recycler pod";
        "pv-recycler-pod-template-filepath-hostpath": Text = "", Effective, "Pod template file for recycling HostPath volumes; for tests on one node only";
        "pv-recycler-pod-template-filepath-nfs": Text = "", Effective, "Pod template file for recycling NFS volumes";
        "pv-recycler-timeout-increment-hostpath": Int32 = "30", Effective, "Seconds per GiB added to the deadline of a HostPath scrubber pod; for tests on one node only";
        "pvclaimbinder-sync-period": Duration = "15s", Effective, "How often volumes and claims that wait are reconciled again";
    }
    "Pod-garbage-collector-controller" {
        "terminated-pod-gc-threshold": Int32 = "12500", Effective, "Finished Pods to keep before the oldest are deleted; 0 or less keeps all";
    }
    "Replicaset-controller" {
        "concurrent-replicaset-syncs": Int32 = "5", Effective, "ReplicaSets reconciled concurrently";
    }
    "Replicationcontroller-controller" {
        "concurrent-rc-syncs": Int32 = "5", Effective, "ReplicationControllers reconciled concurrently";
    }
    "Resourcequota-controller" {
        "concurrent-resource-quota-syncs": Int32 = "5", Effective, "ResourceQuotas reconciled concurrently";
        "resource-quota-sync-period": Duration = "5m0s", Effective, "How often the usage of every ResourceQuota is computed again";
    }
    "Serviceaccount-controller" {
        "concurrent-serviceaccount-token-syncs": Int32 = "5", Effective, "Service account token Secrets reconciled concurrently";
        "root-ca-file": Text = "", Effective, "PEM CA bundle to publish in service account token Secrets, ConfigMaps kube-root-ca.crt and a ClusterTrustBundle";
        "service-account-private-key-file": Text = "", Effective, "PEM RSA or ECDSA key that signs legacy service account tokens; empty: no tokens are created";
    }
    "Ttl-after-finished-controller" {
        "concurrent-ttl-after-finished-syncs": Int32 = "5", Effective, "Finished Jobs whose time to live is checked concurrently";
    }
    "Validatingadmissionpolicy-status-controller" {
        "concurrent-validating-admission-policy-status-syncs": Int32 = "5", Effective, "ValidatingAdmissionPolicies type-checked concurrently";
    }
    "Metrics" {
        "allow-metric-labels": Map = "[]", Effective, "Values allowed for a label of a metric, as metric,label='v1,v2'; others are counted as unexpected";
        "allow-metric-labels-manifest": Text = "", Effective, "YAML file with the same map as --allow-metric-labels; not together with it";
        "disabled-metrics": Strings = "[]", Effective, "Fully qualified names of metrics not to serve";
        "show-hidden-metrics-for-version": Text = "", Effective, "Also serve metrics under the names that were last served by default in this version (volume_operation_total_errors); only the previous minor (1.36)";
    }
}
