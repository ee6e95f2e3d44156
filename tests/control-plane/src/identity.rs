//! The identity of a kubeconfig: the subject of its client certificate.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A user and its groups, authenticated by a client certificate like those of kubeadm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// `kubernetes-admin` of `system:masters`: may do everything.
    Admin,
    /// `system:kube-controller-manager`, with the permissions of its bootstrap role.
    ControllerManager,
    /// `system:kube-scheduler`, with the permissions of its bootstrap role.
    Scheduler,
    /// Any other user.
    User {
        /// The user name (the certificate's common name).
        name: String,
        /// At most two groups (the certificate's organizations).
        groups: Vec<String>,
    },
}

impl Identity {
    /// Returns the user name that the API server authenticates.
    pub fn user(&self) -> &str {
        match self {
            Identity::Admin => "kubernetes-admin",
            Identity::ControllerManager => "system:kube-controller-manager",
            Identity::Scheduler => "system:kube-scheduler",
            Identity::User { name, .. } => name,
        }
    }

    /// Returns the groups that the API server authenticates, except `system:authenticated`.
    pub fn groups(&self) -> Vec<&str> {
        match self {
            Identity::Admin => vec!["system:masters"],
            Identity::ControllerManager | Identity::Scheduler => Vec::new(),
            Identity::User { groups, .. } => groups.iter().map(String::as_str).collect(),
        }
    }

    /// Returns the kubeconfig's file name: kubeadm's if it has one.
    pub(crate) fn file_name(&self) -> String {
        match self {
            Identity::Admin => "admin.conf".into(),
            Identity::ControllerManager => "controller-manager.conf".into(),
            Identity::Scheduler => "scheduler.conf".into(),
            Identity::User { name, groups } => {
                let mut hasher = DefaultHasher::new();
                (name, groups).hash(&mut hasher);
                format!("user-{:016x}.conf", hasher.finish())
            }
        }
    }
}

/// Returns a kubeconfig with certificates and key inline.
///
/// `server` is a URL; certificates and key are base64 of PEM.
pub(crate) fn kubeconfig(server: &str, user: &str, ca: &str, certificate: &str, key: &str) -> String {
    let user = serde_json::Value::from(user);
    format!(
        "apiVersion: v1
kind: Config
current-context: test
clusters:
- name: test
  cluster:
    server: {server}
    certificate-authority-data: {ca}
contexts:
- name: test
  context:
    cluster: test
    user: {user}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_with_different_groups_have_separate_files() {
        let user = |groups: &[&str]| Identity::User {
            name: "ann".into(),
            groups: groups.iter().map(ToString::to_string).collect(),
        };
        assert_ne!(user(&[]).file_name(), user(&["a"]).file_name());
        assert_eq!(user(&["a"]).file_name(), user(&["a"]).file_name());
    }
}
