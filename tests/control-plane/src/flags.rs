//! The command line of each process: pure functions from paths and options.
//!
//! Flags whose effects managers can observe have kubeadm's values or the programs' defaults, unless a single host
//! requires another value: managers are tested with an API server that is configured as in production.

use std::path::Path;

use crate::options::{Network, Options, SERVICE_RANGE};
use crate::pki::{FRONT_PROXY_CLIENT, Pki};

/// The socket of etcd in a control plane's folder. A port could be in use by another process.
pub(crate) const ETCD_SOCKET: &str = "etcd.sock";

fn etcd_url(folder: &Path, socket: &str) -> String {
    format!("unix://{}", folder.join(socket).display())
}

fn flags<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

fn path(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}

/// Returns the arguments of etcd, without fsync: its data is not needed after the test.
pub(crate) fn etcd(folder: &Path) -> Vec<String> {
    let (clients, peers) = (etcd_url(folder, ETCD_SOCKET), etcd_url(folder, "etcd-peer.sock"));
    flags([
        ("name", "test".into()),
        ("data-dir", path(folder.join("etcd"))),
        ("unsafe-no-fsync", "true".into()),
        ("listen-client-urls", clients.clone()),
        ("advertise-client-urls", clients),
        ("listen-peer-urls", peers.clone()),
        ("initial-advertise-peer-urls", peers.clone()),
        ("initial-cluster", format!("test={peers}")),
        ("quota-backend-bytes", (8_u64 << 30).to_string()),
        ("log-level", "warn".into()),
    ])
}

/// Returns the arguments of the API server, which listens on `port` of 127.0.0.1, or of the options' network. `audit`
/// has the paths of the audit policy and of the log.
pub(crate) fn apiserver(
    folder: &Path,
    pki: &Pki,
    port: u16,
    audit: Option<(&Path, &Path)>,
    options: &Options,
) -> Vec<String> {
    let pki_file = |name: &str| path(pki.path(name));
    let issuer = "https://kubernetes.default.svc.cluster.local";
    let mut all = flags([
        ("etcd-servers", etcd_url(folder, ETCD_SOCKET)),
        ("secure-port", port.to_string()),
        ("service-cluster-ip-range", SERVICE_RANGE.into()),
        ("tls-cert-file", pki_file("apiserver.crt")),
        ("tls-private-key-file", pki_file("apiserver.key")),
        ("client-ca-file", pki_file("ca.crt")),
        ("service-account-issuer", issuer.into()),
        ("service-account-key-file", pki_file("sa.pub")),
        ("service-account-signing-key-file", pki_file("sa.key")),
        ("requestheader-client-ca-file", pki_file("front-proxy-ca.crt")),
        ("requestheader-allowed-names", FRONT_PROXY_CLIENT.into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
        ("proxy-client-cert-file", pki_file("front-proxy-client.crt")),
        ("proxy-client-key-file", pki_file("front-proxy-client.key")),
        ("authorization-mode", "Node,RBAC".into()),
        ("enable-bootstrap-token-auth", "true".into()),
        ("allow-privileged", "true".into()),
        ("profiling", "false".into()),
    ]);
    all.extend(network_flags(pki, options.network.as_ref()));
    if let Some((policy, log)) = audit {
        all.extend(flags([
            ("audit-policy-file", path(policy)),
            ("audit-log-path", path(log)),
            // Megabytes. A rotated log would lose counts.
            ("audit-log-maxsize", "100000".into()),
        ]));
    }
    all.extend(options.extra_apiserver_flags.iter().cloned());
    all
}

/// Returns the flags for the API server's addresses, and for its calls to real kubelets.
fn network_flags(pki: &Pki, network: Option<&Network>) -> Vec<String> {
    let Some(network) = network else {
        return flags([
            ("bind-address", "127.0.0.1".into()),
            ("advertise-address", "127.0.0.1".into()),
            // Endpoints must not contain a loopback address, so the Service `kubernetes` gets no endpoints.
            ("endpoint-reconciler-type", "none".into()),
        ]);
    };
    flags([
        ("bind-address", "0.0.0.0".into()),
        ("advertise-address", network.address.to_string()),
        ("kubelet-client-certificate", path(pki.path("apiserver-kubelet-client.crt"))),
        ("kubelet-client-key", path(pki.path("apiserver-kubelet-client.key"))),
        ("kubelet-preferred-address-types", "InternalIP".into()),
        ("enable-admission-plugins", "NodeRestriction".into()),
        // Aggregated API servers are reached by their pods' addresses: the control plane has no kube-proxy.
        ("enable-aggregator-routing", "true".into()),
    ])
}

/// Returns the arguments of a single scheduler that serves no port.
pub(crate) fn scheduler(kubeconfig: &Path, options: &Options) -> Vec<String> {
    let mut all = flags([
        ("kubeconfig", path(kubeconfig)),
        ("leader-elect", "false".into()),
        ("secure-port", "0".into()),
        ("profiling", "false".into()),
    ]);
    all.extend(options.extra_scheduler_flags.iter().cloned());
    all
}

/// Returns the arguments of the fake kubelets of all nodes, with the script in `stages`.
pub(crate) fn kwok(kubeconfig: &Path, stages: &Path, lease_seconds: u32) -> Vec<String> {
    flags([
        ("kubeconfig", path(kubeconfig)),
        ("config", path(stages)),
        ("manage-all-nodes", "true".into()),
        ("node-ip", "10.0.0.1".into()),
        ("cidr", "10.128.0.0/10".into()),
        ("node-lease-duration-seconds", lease_seconds.to_string()),
    ])
}
