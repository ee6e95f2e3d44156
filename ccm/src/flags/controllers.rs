//! The table of all of upstream's cloud controllers, those of its provider for AWS included.

component::controllers! {
    "cloud-node-controller", ["cloud-node"], On, [], AnyOrder;
    "cloud-node-lifecycle-controller", ["cloud-node-lifecycle"], On, [], AnyOrder;
    "node-route-controller", ["route"], On, [], AnyOrder;
    "service-lb-controller", ["service"], On, [], AnyOrder;
    "tagging", [], Off, [], AnyOrder;
}
