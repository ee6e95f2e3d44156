//! Runs of all tests with every alpha and beta feature gate on.

use anyhow::Result;
use control_plane::{ControlPlane, Options};

/// The environment variable that switches all gates on: any value but an empty one.
pub const VARIABLE: &str = "CLUSTER_TESTS_ALL_GATES";

const GATES: &str = "--feature-gates=AllAlpha=true,AllBeta=true";

/// The APIs of alpha and beta features.
const APIS: &str = "--runtime-config=api/all=true";

/// Permissions for LeaseCandidates in every namespace: managers of tests elect their leader in the namespace of the
/// test, and the API server's default role covers kube-system only.
const CANDIDATES: &str = r#"{
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "lease-candidates"},
            "rules": [{
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leasecandidates"],
                "verbs": ["get", "list", "watch", "create", "update"]
            }]
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "lease-candidates"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "lease-candidates"},
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-controller-manager"
            }]
        }
    ]
}"#;

fn is_set() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty())
}

/// Returns the additional flags of an API server.
fn of_api_server() -> Vec<String> {
    flags(is_set(), &[GATES, APIS])
}

/// Returns the additional flags of a scheduler.
fn of_scheduler() -> Vec<String> {
    flags(is_set(), &[GATES])
}

/// Returns the additional flags of a manager. The flags of a test come after them and override them.
pub fn of_manager() -> Vec<String> {
    flags(is_set(), &[GATES])
}

/// Returns the additional flags of a process of kcm or of upstream's manager whose test sets the flags `given`. Returns
/// none if these set feature gates: a gate can be off only if all gates that depend on it are off as well.
pub fn of_process(given: &[String]) -> Vec<String> {
    flags(is_set() && !names_gates(given), &[GATES])
}

fn names_gates(flags: &[String]) -> bool {
    flags.iter().any(|flag| flag.starts_with("--feature-gates"))
}

/// Starts a control plane, with all gates on if [`VARIABLE`] is set. The flags of a test override the gates.
///
/// # Errors
/// When it does not start, or the managers' permissions for LeaseCandidates cannot be created.
pub async fn control_plane(mut options: Options) -> Result<ControlPlane> {
    options.extra_apiserver_flags.splice(0..0, of_api_server());
    options.extra_scheduler_flags.splice(0..0, of_scheduler());
    let cluster = ControlPlane::start(options).await?;
    if is_set() {
        cluster.kubectl_with_input(&["create", "-f", "-"], CANDIDATES)?;
    }
    Ok(cluster)
}

fn flags(is_set: bool, flags: &[&str]) -> Vec<String> {
    if is_set { flags.iter().map(|flag| (*flag).to_owned()).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use kcm::flags::{Invocation, parse};

    use super::*;

    fn is_on(flags: Vec<String>, gate: &str) -> bool {
        match parse(flags).expect("valid flags") {
            Invocation::Run(options) => options.gates.enabled(gate),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn gate_of_a_test_overrides_all_gates() {
        let mut all = flags(true, &[GATES]);
        assert!(is_on(all.clone(), "WorkloadWithJob") && is_on(all.clone(), "CoordinatedLeaderElection"));
        all.push("--feature-gates=WorkloadWithJob=false".to_owned());
        assert!(is_on(all.clone(), "GenericWorkload") && !is_on(all, "WorkloadWithJob"));
        assert_eq!(flags(false, &[GATES]), [""; 0]);
    }

    #[test]
    fn process_with_gates_of_its_own_gets_no_others() {
        let named = |flags: &[&str]| names_gates(&flags.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(named(&["--controllers=*", "--feature-gates=AllBeta=false"]));
        assert!(!named(&["--controllers=*", "--emulated-version=1.36"]));
    }
}
