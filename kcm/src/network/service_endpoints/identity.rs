//! The identity of an endpoint, by which the controllers of EndpointSlices compare slices with the desired endpoints.

use kinds::endpoint_slice::Endpoint;
use kinds::ip::Ip;

/// The identity of an endpoint: its other fields may change. Upstream: k8s.io/endpointslice/util, hashEndpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity<'a> {
    target: Option<(&'a str, &'a str)>,
    addresses: &'a [Ip],
    hostname: Option<&'a str>,
}

/// Returns the identity of an endpoint.
pub fn identity(endpoint: &Endpoint) -> Identity<'_> {
    Identity {
        target: endpoint.target.as_ref().map(|target| (&**target.namespace(), &**target.name())),
        addresses: &endpoint.addresses,
        hostname: endpoint.hostname.as_deref().filter(|name| !name.is_empty()),
    }
}

/// Returns true if two endpoints of one identity differ at most in their hints. Upstream: k8s.io/endpointslice/util,
/// EndpointsEqualBeyondHash.
pub fn is_same(a: &Endpoint, b: &Endpoint) -> bool {
    (&a.node, &a.zone, a.conditions, &a.target) == (&b.node, &b.zone, b.conditions, &b.target)
}
