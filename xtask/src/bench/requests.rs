//! The requests of a manager to the API server, classified as writes of objects and others.

use std::collections::BTreeMap;

use control_plane::audit::{Counts, Request};

/// Requests of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All requests, including those for leases and reviews.
    pub all: u64,
    /// The requests in [`Tally::all`] that get, create, update or patch leases.
    pub leases: u64,
    /// Creations, updates, patches and deletions of objects, including events; leases, reviews and tokens do not count,
    /// because they have no effect on users.
    pub writes: u64,
    /// The requests in [`Tally::writes`] for events.
    pub events: u64,
    /// Numbers of requests by verb, resource and, if refused, status.
    pub kinds: BTreeMap<String, u64>,
}

impl Tally {
    /// Returns the number of updates and patches of a resource and subresource, including refused ones.
    pub fn of(&self, target: &str) -> u64 {
        let writes = |kind: &str| {
            let (verb, rest) = kind.split_once(' ').unwrap_or_default();
            ["update", "patch"].contains(&verb) && rest.split(" (").next() == Some(target)
        };
        self.kinds.iter().filter(|(kind, _)| writes(kind)).map(|(_, count)| count).sum()
    }
}

/// Classifies the counts of an audit log.
pub fn tally(counts: &Counts) -> Tally {
    let mut tally = Tally::default();
    for (request, count) in counts {
        tally.all += count;
        let is_renewal = ["get", "create", "update", "patch"].contains(&request.verb.as_str());
        tally.leases += if is_renewal && is_lease(request) { *count } else { 0 };
        if is_write(request) {
            tally.writes += count;
            tally.events += if is_event(request) { *count } else { 0 };
        }
        *tally.kinds.entry(kind(request)).or_default() += count;
    }
    tally
}

/// Returns true if the only requests were those for the Lease and for discovery.
pub fn is_quiet(counts: &Counts) -> bool {
    counts.keys().all(|request| is_lease(request) || is_discovery(request))
}

fn kind(request: &Request) -> String {
    let Request { verb, resource, subresource, code, .. } = request;
    let mut kind = format!("{verb} {resource}");
    if !subresource.is_empty() {
        kind += "/";
        kind += subresource;
    }
    if *code >= 400 {
        kind += &format!(" ({code})");
    }
    kind
}

fn is_write(request: &Request) -> bool {
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    let group = request.resource.split_once('.').map_or("", |(_, group)| group);
    writes.contains(&request.verb.as_str())
        && !is_lease(request)
        && !["authentication.k8s.io", "authorization.k8s.io"].contains(&group)
        && request.subresource != "token"
}

fn is_event(request: &Request) -> bool {
    matches!(request.resource.as_str(), "events" | "events.events.k8s.io")
}

fn is_lease(request: &Request) -> bool {
    request.resource == "leases.coordination.k8s.io"
}

/// Returns true if a request is for discovery, which controllers that watch every kind repeat twice a minute.
fn is_discovery(request: &Request) -> bool {
    request.verb == "get" && request.resource.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: &[(&str, &str, &str, u16, u64)]) -> Counts {
        let count = |(verb, resource, subresource, code, count): &(&str, &str, &str, u16, u64)| {
            let request = Request {
                user: "ann".into(),
                verb: (*verb).into(),
                resource: (*resource).into(),
                subresource: (*subresource).into(),
                code: *code,
            };
            (request, *count)
        };
        requests.iter().map(count).collect()
    }

    #[test]
    fn only_writes_to_objects_count_as_writes() {
        let tally = tally(&counts(&[
            ("create", "events", "", 201, 5),
            ("patch", "events", "", 200, 2),
            ("create", "pods", "", 201, 10),
            ("update", "replicasets.apps", "status", 409, 1),
            ("update", "leases.coordination.k8s.io", "", 200, 7),
            ("deletecollection", "leases.coordination.k8s.io", "", 200, 2),
            ("create", "serviceaccounts", "token", 201, 1),
            ("create", "serviceaccounts", "", 201, 1),
            ("create", "subjectaccessreviews.authorization.k8s.io", "", 201, 3),
            ("create", "tokenreviews.authentication.k8s.io", "", 201, 3),
            ("watch", "pods", "", 200, 1),
        ]));
        assert_eq!((tally.all, tally.leases, tally.writes, tally.events), (36, 7, 19, 7));
        assert_eq!(tally.kinds["update replicasets.apps/status (409)"], 1);
        assert_eq!(tally.kinds["create pods"], 10);
        assert_eq!((tally.of("replicasets.apps/status"), tally.of("pods"), tally.of("serviceaccounts")), (1, 0, 0));
    }

    #[test]
    fn requests_for_lease_and_discovery_count_as_quiet() {
        assert!(is_quiet(&counts(&[("get", "/apis", "", 200, 3)])));
        assert!(is_quiet(&counts(&[("update", "leases.coordination.k8s.io", "", 200, 3)])));
        assert!(!is_quiet(&counts(&[("watch", "pods", "", 200, 1)])));
    }
}
