//! The meaning of a request, parsed from its method and path as in the API server.

use http::Method;

/// The operation on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// GET of one object.
    Get,
    /// GET of a collection.
    List,
    /// GET of a collection's changes.
    Watch,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
}

impl Verb {
    /// Returns the verb's name in RBAC.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub verb: Verb,
    /// The API group, empty for the core group.
    pub group: String,
    /// The plural name of the resource; a subresource follows after a slash.
    pub resource: String,
    /// The namespace; empty for cluster-scoped resources, and for requests across all namespaces.
    pub namespace: String,
    /// The object's name; empty for a collection.
    pub name: String,
    /// The requesting service account; empty for the manager itself.
    pub account: String,
}

impl Call {
    /// Parses a request; `None` if it is for no resource (such as `/version`). `agent` is its `User-Agent`, which ends
    /// with the service account.
    pub fn read(method: &Method, path: &str, query: &str, agent: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let _version = parts.next()?;
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = "";
        let of_namespace = |part: &str| matches!(part, "status" | "finalize");
        if rest.len() > 2 && rest[0] == "namespaces" && !(rest.len() == 3 && of_namespace(rest[2])) {
            namespace = rest[1];
            rest.drain(..2);
        }
        let (resource, name, subresource) = match rest[..] {
            [resource] => (resource, "", ""),
            [resource, name] => (resource, name, ""),
            [resource, name, subresource] => (resource, name, subresource),
            _ => return None,
        };
        let verb = match *method {
            Method::GET if !name.is_empty() => Verb::Get,
            Method::GET if query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")) => Verb::Watch,
            Method::GET => Verb::List,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => return None,
        };
        let resource = match subresource {
            "" => resource.to_owned(),
            subresource => format!("{resource}/{subresource}"),
        };
        let account = agent.rsplit_once("/system:serviceaccount:kube-system:").map_or("", |(_, account)| account);
        Some(Self {
            verb,
            group: group.into(),
            resource,
            namespace: namespace.into(),
            name: name.into(),
            account: account.into(),
        })
    }

    /// Returns true if the request changes an object. Service accounts and tokens, which every manager creates for its
    /// controllers, do not count; nor do the Lease and the LeaseCandidate, which even an idle manager writes.
    pub fn is_write(&self) -> bool {
        let changes = !matches!(self.verb, Verb::Get | Verb::List | Verb::Watch);
        let is_own_account =
            self.resource == "serviceaccounts" && self.verb == Verb::Create && self.namespace == "kube-system";
        changes
            && !is_own_account
            && !matches!(self.resource.as_str(), "serviceaccounts/token" | "leases" | "leasecandidates")
    }

    /// Returns true if the request is a write to an object other than an event.
    pub fn is_object_write(&self) -> bool {
        self.is_write() && self.resource != "events"
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = if self.name.is_empty() { String::new() } else { format!(" {}", self.name) };
        write!(f, "{} {}{name}", self.verb.as_str(), self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_as_in_the_api_server() {
        for (method, path, query, expected) in [
            ("GET", "/api/v1/namespaces/a/pods", "watch=true&x=1", Some("watch pods")),
            ("GET", "/api/v1/pods", "limit=1", Some("list pods")),
            ("GET", "/api/v1/namespaces/a", "", Some("get namespaces a")),
            ("PUT", "/api/v1/namespaces/a/finalize", "", Some("update namespaces/finalize a")),
            ("POST", "/api/v1/namespaces/a/pods", "", Some("create pods")),
            ("PUT", "/apis/apps/v1/namespaces/a/replicasets/b/status", "", Some("update replicasets/status b")),
            ("DELETE", "/api/v1/namespaces/a/pods/b", "", Some("delete pods b")),
            ("GET", "/version", "", None),
        ] {
            let call = Call::read(&method.parse().unwrap(), path, query, "test/1");
            assert_eq!(call.map(|call| call.to_string()).as_deref(), expected, "{method} {path}");
        }
        let agent = "test/1/system:serviceaccount:kube-system:job-controller";
        let call = Call::read(&Method::PATCH, "/apis/apps/v1/namespaces/a/replicasets/b", "", agent).unwrap();
        assert_eq!((&*call.group, &*call.namespace, &*call.account), ("apps", "a", "job-controller"));
        assert!(call.is_object_write());
    }
}
