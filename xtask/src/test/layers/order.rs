//! The layers of each crate, from the bottom to the top.
//!
//! A module imports only modules of lower layers; a module does not import another module of its layer. A name with
//! `::` assigns a submodule to another layer.

/// The layers of a crate.
pub struct Layers {
    /// The folder of its sources, from the workspace's.
    pub folder: &'static str,
    /// The modules of each layer.
    pub order: &'static [&'static [&'static str]],
}

/// All crates except those in [`WITHOUT_LAYERS`].
pub const CRATES: &[Layers] = &[
    Layers {
        folder: "kinds/src",
        order: &[
            &["intern", "wire"],
            &["decode", "value"],
            &["meta"],
            &["kind", "metadata_edit", "template"],
            &["scheduling"],
            &[
                "admissionregistration",
                "apiserverinternal",
                "apps",
                "autoscaling",
                "batch",
                "certificates",
                "coordination",
                "envelope",
                "networking",
                "policy",
                "rbac",
                "resource",
                "scheduling_api",
                "storagemigration",
            ],
            // Some core kinds are read as kinds of other groups: a ReplicationController as a ReplicaSet.
            &["core"],
            // Attachments contain the specs of volumes.
            &["storage"],
        ],
    },
    Layers {
        folder: "cel-check/src",
        order: &[
            &["keywords"],
            &["ast", "escape", "source", "stack", "types"],
            &["assign", "declarations", "schema", "syntax", "validate"],
            &["check"],
            &["admission"],
        ],
    },
    Layers {
        folder: "runtime/src",
        order: &[
            // No IO.
            &["backoff", "fair", "lock", "stale", "stall", "stealing", "wake"],
            &["metrics"],
            &["debounce", "fence", "page", "queue", "slow_start", "store", "tasks", "text"],
            &["children", "client", "journal"],
            // Single requests, and reading one's own writes.
            &["consistency", "discovery", "openapi", "write"],
            &["former_owners"],
            &["controller_ref", "events", "handover", "watch", "worker"],
            &["diagnostics", "election", "scale", "telemetry", "testing"],
            &["manager", "serve"],
            &["health_checks"],
            &["sdk"],
        ],
    },
    Layers {
        folder: "component/src",
        order: &[
            &["descriptor", "flags", "threads"],
            &["assembly", "finalizers", "log", "restrictions", "status"],
            &["serving"],
            &["process"],
        ],
    },
    Layers {
        folder: "kcm/src",
        order: &[
            &["flags", "pods", "protection", "shared_read"],
            &["credentials"],
            &["context"],
            // A domain never imports a domain.
            &["api", "auth", "certificates", "devices", "network", "nodes", "storage", "workloads"],
            &["registry"],
            &["app"],
        ],
    },
    Layers {
        folder: "ccm/src",
        order: &[
            &["cloud", "flags"],
            &["context"],
            // A controller never imports a controller.
            &[
                "controllers",
                "controllers::node",
                "controllers::node_lifecycle",
                "controllers::route",
                "controllers::service",
                "controllers::tagging",
            ],
            &["registry"],
            &["app"],
            &["check_config"],
        ],
    },
    Layers {
        folder: "providers/src",
        order: &[
            &["error", "model"],
            &["instance", "records", "secret", "tagging"],
            &["route", "target"],
            &["load_balancer"],
            &["provider"],
            &["factory"],
        ],
    },
    Layers {
        folder: "providers/aws/src",
        order: &[
            &["budget", "error", "http", "ini", "role", "tags"],
            &["config"],
            &["client"],
            &["session"],
            &["instances"],
            &["routes", "tagging"],
            &["loadbalancer::types"],
            &["loadbalancer::names", "loadbalancer::plan"],
            &["loadbalancer::ownership"],
            &["loadbalancer::observed", "loadbalancer::spec"],
            &["loadbalancer::model"],
            &["loadbalancer::apply"],
            &["loadbalancer"],
            &["provider"],
        ],
    },
    Layers {
        folder: "providers/kubevirt/src",
        order: &[
            &["config", "error", "objects"],
            &["infra", "ownership"],
            &["desired", "virtual_machines"],
            &["instances"],
            &["slices"],
            &["load_balancers"],
            &["provider"],
        ],
    },
    Layers {
        folder: "providers/mock/src",
        order: &[
            &["fault"],
            &["config", "snapshot"],
            &["settings", "state"],
            &["cloud"],
            &["balancers", "instances", "routes"],
            &["wire"],
            &["http", "remote"],
            &["provider"],
            &["bin"],
        ],
    },
    Layers {
        folder: "providers/conformance/src",
        order: &[
            &["fixture", "report"],
            &["context"],
            &["credentials", "load_balancer_creation", "instances", "routes"],
            &["incomplete_reads", "load_balancer_changes", "load_balancer_deletion"],
            &["cases"],
        ],
    },
    Layers {
        folder: "xtask/src",
        order: &[
            &["console", "control_plane", "interrupt", "process", "root"],
            &["cargo", "report_folder"],
            &["aws", "cluster", "demo", "docs", "image"],
            &["bench", "conformance", "test"],
            &["differential", "soak"],
        ],
    },
    Layers { folder: "examples/echo-operator/src", order: &[] },
    Layers { folder: "tests/browser/src", order: &[&["program"], &["pipe"], &["page"]] },
    Layers {
        folder: "tests/control-plane/src",
        order: &[
            &[
                "audit",
                "behaviour",
                "command",
                "custom_kind",
                "file_lock",
                "identity",
                "kubelet_policy",
                "last_lines",
                "lock",
                "nodes",
                "options",
                "proxy",
            ],
            &["abandoned", "assets", "pki"],
            &["flags", "processes"],
            &["cluster"],
            &["aggregation", "csi", "stored"],
            &["aggregated", "metrics"],
        ],
    },
    Layers {
        folder: "tests/cluster/src",
        order: &[
            &["all_gates", "call", "certificates", "objects", "pace", "port", "report", "wait"],
            &["faults", "programs"],
            &["manager", "static_pods"],
            &["space"],
            &["cloud", "custom_objects", "harness", "metrics", "observer", "space_manager", "traces"],
            &["handover", "kubevirt"],
        ],
    },
];

/// Folders of sources whose modules have no layers. Imports between their files have no cycle either.
pub const WITHOUT_LAYERS: &[&str] =
    &["tests/cluster/tests/cluster", "tests/moto/src", "tests/moto/tests/moto", "tests/real-cluster/src"];
