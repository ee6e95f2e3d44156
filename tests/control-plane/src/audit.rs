//! Requests of managers to the API server, counted from its audit log.
//!
//! The log contains the requests of the controller manager's user and of all service accounts in kube-system, among
//! them those of its controllers, for kcm and for upstream's manager.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// Logs only requests of the users that managers have. A watch is logged when it starts, too, because it may outlast
/// the test.
pub(crate) const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [system:kube-controller-manager]
- level: Metadata
  userGroups: [system:serviceaccounts:kube-system]
- level: None
";

/// A kind of request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// The user name, for instance `system:serviceaccount:kube-system:replicaset-controller`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ...
    pub verb: String,
    /// The resource with its group as kubectl spells it (`pods`, `deployments.apps`), or the path of a request without
    /// a resource.
    pub resource: String,
    /// The subresource, empty if there is none.
    pub subresource: String,
    /// The HTTP status of the response.
    pub code: u16,
}

/// Number of responses by kind of request.
pub type Counts = BTreeMap<Request, u64>;

/// Counts the events of an audit log (one JSON object per line).
///
/// An incomplete last line is still being written and is ignored. Fails on a line that is not an audit event.
pub fn count(log: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let event: Value = serde_json::from_str(line).with_context(|| format!("read the audit event {line}"))?;
        if let Some(request) = request(&event) {
            *counts.entry(request).or_default() += 1;
        }
    }
    Ok(counts)
}

/// Returns the request of an event, if the event counts: the start of a watch, the refusal of a watch, or the end of
/// any other request.
fn request(event: &Value) -> Option<Request> {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let verb = text("/verb");
    let counted_stage = if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
    let stage = text("/stage");
    let code = event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default();
    let refused_watch = verb == "watch" && stage == "ResponseComplete" && code >= 400;
    if stage != counted_stage && !refused_watch {
        return None;
    }
    let resource = match (text("/objectRef/resource"), text("/objectRef/apiGroup")) {
        ("", _) => text("/requestURI").split('?').next().unwrap_or_default().to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, group) => format!("{resource}.{group}"),
    };
    Some(Request {
        user: text("/user/username").to_owned(),
        verb: verb.to_owned(),
        resource,
        subresource: text("/objectRef/subresource").to_owned(),
        code: u16::try_from(code).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(stage: &str, verb: &str, object: &str, code: u16) -> String {
        format!(
            r#"{{"stage":"{stage}","verb":"{verb}","requestURI":"/readyz?x=1","user":{{"username":"ann"}},{object}"responseStatus":{{"code":{code}}}}}"#
        ) + "\n"
    }

    #[test]
    fn each_request_counts_once() {
        let status = r#""objectRef":{"resource":"deployments","apiGroup":"apps","subresource":"status"},"#;
        let pods = r#""objectRef":{"resource":"pods"},"#;
        let log = [
            event("ResponseComplete", "update", status, 200),
            event("ResponseComplete", "update", status, 200),
            event("ResponseComplete", "update", status, 409),
            event("ResponseStarted", "watch", pods, 200),
            event("ResponseComplete", "watch", pods, 200),
            event("ResponseComplete", "watch", pods, 403),
            event("ResponseStarted", "list", pods, 200),
            event("ResponseComplete", "get", "", 200),
            "{\"stage\":\"Resp".to_owned(),
        ]
        .concat();
        let counts = count(&log).unwrap();
        let lines: Vec<_> = counts
            .iter()
            .map(|(r, n)| format!("{} {} {} {:?} {} x{n}", r.user, r.verb, r.resource, r.subresource, r.code))
            .collect();
        assert_eq!(
            lines,
            [
                r#"ann get /readyz "" 200 x1"#,
                r#"ann update deployments.apps "status" 200 x2"#,
                r#"ann update deployments.apps "status" 409 x1"#,
                r#"ann watch pods "" 200 x1"#,
                r#"ann watch pods "" 403 x1"#,
            ]
        );
    }

    #[test]
    fn invalid_audit_line_is_an_error() {
        assert!(count("nonsense\n").is_err());
    }
}
