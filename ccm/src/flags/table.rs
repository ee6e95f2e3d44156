//! The table of all flags of cloud-controller-manager 1.37; one word per flag decides whether it is effective.

use component::flags::common::{ACCESS, GENERIC, LOGS, PROCESS, SECURE_SERVING, SERVER};
use component::flags::table::{Flag, joined};

/// Every flag, in the order of `--help`.
pub static FLAGS: &[Flag] =
    &joined::<101>(&[PROCESS, CLOUD, GENERIC, CONTROLLERS, PORT, SECURE_SERVING, ACCESS, LOGS, NODES, SERVER]);

component::flags! {
    const CLOUD;
    "Generic" {
        "allocate-node-cidrs": Bool = "false", NoEffectYet, "Pod CIDRs are allocated to Nodes; nothing here allocates them";
        "allow-untagged-cloud": Bool = "false", Effective, "Run with a cloud provider that does not know its cluster" deprecated "will be removed; tag the instances with the cluster";
        "cloud-config": Text = "", Effective, "Configuration file of the cloud provider; empty for none";
        "cloud-provider": Text = "", Effective, "Cloud provider, one of those that are built in";
        "cluster-cidr": Text = "", Effective, "CIDR range or two ranges of the Pods; only routes to these are managed";
        "cluster-name": Text = "kubernetes", Effective, "Name of this cluster, by which the cloud provider tells its resources from those of others";
        "configure-cloud-routes": Bool = "true", Effective, "Have the cloud route each Node's pod CIDR";
        "external-cloud-volume-plugin": Text = "", NoEffectYet, "Has no effect on cloud controllers";
        "feature-gates": PlainGates = "", Effective, "Feature gates to switch, as Gate=true|false, comma-separated; may be repeated";
        "leader-elect-resource-name": Text = "cloud-controller-manager", Effective, "Name of the Lease";
        "route-reconciliation-period": Duration = "10s", Effective, "How often cloud routes are reconciled with the Nodes";
    }
}

component::flags! {
    const CONTROLLERS;
    "Cloud-node-controller" {
        "concurrent-node-status-updates": Int32 = "0", Effective, "Nodes whose addresses are brought up to date at once; 0 takes --concurrent-node-syncs";
        "concurrent-node-syncs": Int32 = "1", Effective, "Nodes initialised at once; what the cloud is asked for them goes out in batches";
    }
    "Cloud-node-lifecycle-controller" {
        "concurrent-node-lifecycle-syncs": Int32 = "1", Effective, "Nodes tainted or deleted at once; the cloud is asked for all of them in one batch";
        "node-monitor-period": Duration = "5s", Effective, "How often Nodes that are not ready are looked for in the cloud";
    }
    "Service-lb-controller" {
        "collect-leaked-load-balancers": Bool = "false", Effective, "Delete what the cloud holds for Services that are gone, once two audits and the API server itself agree that they are";
        "concurrent-service-syncs": Int32 = "1", Effective, "Services whose load balancers are reconciled at once";
        "default-tags": Map = "", Effective, "Tags of everything in the cloud that is made for Services, as key=value, comma-separated; they win over a Service's own";
        "external-managed-tags": Strings = "[]", Effective, "Keys of tags that others set on what is made for Services: they are neither set nor removed here";
        "load-balancer-audit-period": Duration = "1h0m0s", Effective, "How often the cloud is searched for what it holds for Services that are gone";
        "load-balancer-class": Strings = "[]", Effective, "Values of spec.loadBalancerClass whose load balancers are made here, beside Services without one; for AWS service.k8s.aws/nlb takes over from the AWS Load Balancer Controller, and with it the annotation types external and nlb-ip";
        "load-balancer-readiness-gates": Bool = "false", Effective, "Tell pods that declare a readiness gate of their load balancer when it finds them healthy; watches all pods, and needs the rights of deploy/ccm-targets-rbac.yaml";
        "load-balancers-without-class": Bool = "true", Effective, "Make load balancers for Services without spec.loadBalancerClass; false leaves them to another controller";
        "max-targets-per-target-group": Int = "0", Effective, "Targets that are registered in a target group at most; 0 takes all of them";
    }
    "Tagging-controller" {
        "resources": Strings = "[]", Effective, "What gets the tags: instance";
        "tagging-controller-burst-limit": Int = "0", NoEffectYet, "Nodes are worked on together; the calls of the cloud have limits of their own";
        "tagging-controller-concurrent-node-syncs": Int = "1", NoEffectYet, "Nodes are worked on together";
        "tagging-controller-enable-batching": Bool = "false", NoEffectYet, "Calls are always for many Nodes";
        "tagging-controller-rate-limit": Float64 = "0", NoEffectYet, "Nodes are worked on together; the calls of the cloud have limits of their own";
        "tags": Map = "", Effective, "Tags of the machines of Nodes, as key=value, comma-separated; for the controller tagging";
    }
    "Webhook" {
        "webhooks": Strings = "[]", NoEffectYet, "Webhooks to serve; there are none";
    }
    "Webhook serving" {
        "webhook-bind-address": Ip = "0.0.0.0", NoEffectYet, "Address on which --webhook-secure-port would listen; there are no webhooks";
        "webhook-cert-dir": Text = "", NoEffectYet, "Directory of the certificates of webhooks; there are none";
        "webhook-disable-http2-serving": Bool = "false", NoEffectYet, "Serve webhooks by HTTP/1.1 only; there are none";
        "webhook-secure-port": Int = "10260", NoEffectYet, "HTTPS port of webhooks, other than --secure-port; there are none, and nothing listens";
        "webhook-tls-cert-file": Text = "", NoEffectYet, "PEM certificate of webhooks; there are none";
        "webhook-tls-cipher-suites": Strings = "[]", NoEffectYet, "Cipher suites of webhooks; there are none";
        "webhook-tls-curve-preferences": Int32s = "[]", NoEffectYet, "Key exchange groups of webhooks; there are none";
        "webhook-tls-min-version": Text = "", NoEffectYet, "Lowest TLS version of webhooks; there are none";
        "webhook-tls-private-key-file": Text = "", NoEffectYet, "PEM private key of webhooks; there are none";
        "webhook-tls-sni-cert-key": CertKeys = "[]", NoEffectYet, "Certificates of webhooks by host; there are none";
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
        "node-status-update-frequency": Duration = "5m0s", Effective, "How often the addresses of all Nodes are compared with the cloud's";
    }
}
