//! The table of all of upstream's cloud controllers, including those of its AWS provider.

component::controllers! {
    "cloud-node-controller", ["cloud-node"], On, [], AnyOrder;
    "cloud-node-lifecycle-controller", ["cloud-node-lifecycle"], On, [], AnyOrder;
    "node-route-controller", ["route"], On, [], AnyOrder;
    "service-lb-controller", ["service"], On, [], AnyOrder;
    "tagging", [], Off, [], AnyOrder;
}
