//! The table of all flags of cloud-controller-manager 1.37, and whether each of them has an effect.

use component::flags::common::{ACCESS, GENERIC, LOGS, PROCESS, SECURE_SERVING, SERVER};
use component::flags::table::{Flag, joined};

/// Every flag, in the order of `--help`.
pub static FLAGS: &[Flag] =
    &joined::<101>(&[PROCESS, CLOUD, GENERIC, CONTROLLERS, PORT, SECURE_SERVING, ACCESS, LOGS, NODES, SERVER]);

component::flags! {
    const CLOUD;
    "Generic" {
        "allocate-node-cidrs": Bool = "false", NoEffect, "Whether pod CIDRs are allocated to Nodes; this manager allocates none";
        "allow-untagged-cloud": Bool = "false", Effective, "Run with a cloud provider that has no cluster ID" deprecated "will be removed; tag the instances with the cluster";
        "cloud-config": Text = "", Effective, "Configuration file of the cloud provider; empty for none";
        "cloud-provider": Text = "", Effective, "Cloud provider, one of those that are built in";
        "cluster-cidr": Text = "", Effective, "CIDR range or two ranges of the Pods; only routes to these are deleted";
        "cluster-name": Text = "kubernetes", Effective, "Name of this cluster, by which the cloud provider recognizes the resources of this cluster";
        "configure-cloud-routes": Bool = "true", Effective, "Create a cloud route for each Node's pod CIDR";
        "external-cloud-volume-plugin": Text = "", NoEffect, "Volume plugin of the cloud provider";
        "feature-gates": PlainGates = "", Effective, "Feature gates to switch, as Gate=true|false, comma-separated; may be repeated";
        "leader-elect-resource-name": Text = "cloud-controller-manager", Effective, "Name of the Lease";
        "route-reconciliation-period": Duration = "10s", Effective, "How often cloud routes are reconciled with the Nodes";
    }
}

component::flags! {
    const CONTROLLERS;
    "Cloud-node-controller" {
        "concurrent-node-status-updates": Int32 = "0", Effective, "Nodes whose addresses, labels and taints are updated concurrently; 0 for as many as are initialized concurrently";
        "concurrent-node-syncs": Int32 = "1", Effective, "Nodes initialized concurrently; 50 instead of upstream's default if the flag is not given, because their cloud requests are sent in batches";
    }
    "Cloud-node-lifecycle-controller" {
        "concurrent-node-lifecycle-syncs": Int32 = "1", Effective, "Nodes tainted or deleted concurrently; their instances are read from the cloud in one batch";
        "node-monitor-period": Duration = "5s", Effective, "How often the instances of Nodes that are not ready are read from the cloud";
    }
    "Service-lb-controller" {
        "collect-leaked-load-balancers": Bool = "false", Effective, "Delete leaked cloud resources of deleted Services, once two audits and an uncached read confirm that the Services do not exist";
        "concurrent-service-syncs": Int32 = "1", Effective, "Services whose load balancers are reconciled concurrently";
        "default-tags": Map = "", Effective, "Tags of all cloud resources of Services, as key=value, comma-separated; they override those of a Service";
        "external-managed-tags": Strings = "[]", Effective, "Keys of tags that other tools set on the cloud resources of Services: this manager neither sets nor removes them";
        "load-balancer-audit-period": Duration = "1h0m0s", Effective, "How often the cloud is searched for leaked resources of Services";
        "load-balancer-class": Strings = "[]", Effective, "Values of spec.loadBalancerClass whose load balancers this manager creates, in addition to Services without a class; for AWS, service.k8s.aws/nlb takes over from the AWS Load Balancer Controller, and also selects Services without a class whose annotation aws-load-balancer-type is external or nlb-ip";
        "load-balancer-readiness-gates": Bool = "false", Effective, "Set the readiness gates of pods once their load balancer reports them as healthy; watches all pods, and needs the permissions in deploy/ccm-targets-rbac.yaml";
        "load-balancers-without-class": Bool = "true", Effective, "Create load balancers for Services without spec.loadBalancerClass; false leaves them to another controller";
        "max-targets-per-target-group": Int = "0", Effective, "Maximum number of targets registered in a target group; 0 means no limit";
    }
    "Tagging-controller" {
        "resources": Strings = "[]", Effective, "Resources to tag; only instance is supported";
        "tagging-controller-burst-limit": Int = "0", NoEffect, "Nodes are processed in batches; cloud calls have separate limits";
        "tagging-controller-concurrent-node-syncs": Int = "1", NoEffect, "Nodes are processed in batches";
        "tagging-controller-enable-batching": Bool = "false", NoEffect, "Nodes are always processed in batches";
        "tagging-controller-rate-limit": Float64 = "0", NoEffect, "Nodes are processed in batches; cloud calls have separate limits";
        "tags": Map = "", Effective, "Tags of the instances of Nodes, as key=value, comma-separated; for the tagging controller";
    }
    "Webhook" {
        "webhooks": Strings = "[]", NoEffect, "Webhooks to serve; there are none";
    }
    "Webhook serving" {
        "webhook-bind-address": Ip = "0.0.0.0", NoEffect, "Address on which --webhook-secure-port would listen; there are no webhooks";
        "webhook-cert-dir": Text = "", NoEffect, "Directory of the certificates of webhooks; there are none";
        "webhook-disable-http2-serving": Bool = "false", NoEffect, "Serve webhooks by HTTP/1.1 only; there are none";
        "webhook-secure-port": Int = "10260", NoEffect, "HTTPS port of webhooks, other than --secure-port; there are none, and nothing listens";
        "webhook-tls-cert-file": Text = "", NoEffect, "PEM certificate of webhooks; there are none";
        "webhook-tls-cipher-suites": Strings = "[]", NoEffect, "Cipher suites of webhooks; there are none";
        "webhook-tls-curve-preferences": Int32s = "[]", NoEffect, "Key exchange groups of webhooks; there are none";
        "webhook-tls-min-version": Text = "", NoEffect, "Lowest TLS version of webhooks; there are none";
        "webhook-tls-private-key-file": Text = "", NoEffect, "PEM private key of webhooks; there are none";
        "webhook-tls-sni-cert-key": CertKeys = "[]", NoEffect, "Certificates of webhooks by host; there are none";
    }
}

component::flags! {
    const PORT;
    "Secure serving" {
        "secure-port": Int = "10258", Effective, "HTTPS port with authentication and authorization; 0 serves nothing";
    }
}

component::flags! {
    const NODES;
    "Misc" {
        "node-status-update-frequency": Duration = "5m0s", Effective, "How often addresses, labels and taints of all Nodes are compared with their instances";
    }
}
