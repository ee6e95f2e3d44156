//! The table of all of upstream's controllers.

component::controllers! {
    "bootstrap-signer-controller", ["bootstrapsigner"], Off, [], AnyOrder;
    "certificatesigningrequest-approving-controller", ["csrapproving"], On, [], AnyOrder;
    "certificatesigningrequest-cleaner-controller", ["csrcleaner"], On, [], AnyOrder;
    "certificatesigningrequest-signing-controller", ["csrsigning"], On, [], AnyOrder;
    "clusterrole-aggregation-controller", ["clusterrole-aggregation"], On, [], AnyOrder;
    "cronjob-controller", ["cronjob"], On, [], AnyOrder;
    "daemonset-controller", ["daemonset"], On, [], AnyOrder;
    "deployment-controller", ["deployment"], On, [], AnyOrder;
    "device-taint-eviction-controller", [], On, ["DynamicResourceAllocation", "DRADeviceTaints"], AnyOrder;
    "disruption-controller", ["disruption"], On, [], AnyOrder;
    "endpoints-controller", ["endpoint"], On, [], AnyOrder;
    "endpointslice-controller", ["endpointslice"], On, [], AnyOrder;
    "endpointslice-mirroring-controller", ["endpointslicemirroring"], On, [], AnyOrder;
    "ephemeral-volume-controller", ["ephemeral-volume"], On, [], AnyOrder;
    "garbage-collector-controller", ["garbagecollector"], On, [], AnyOrder;
    "horizontal-pod-autoscaler-controller", ["horizontalpodautoscaling"], On, [], AnyOrder;
    "job-controller", ["job"], On, [], AnyOrder;
    "kube-apiserver-serving-clustertrustbundle-publisher-controller", [], On, ["ClusterTrustBundle"], AnyOrder;
    "legacy-serviceaccount-token-cleaner-controller", ["legacy-service-account-token-cleaner"], On, [], AnyOrder;
    "namespace-controller", ["namespace"], On, [], AnyOrder;
    "node-ipam-controller", ["nodeipam"], On, [], AnyOrder;
    "node-lifecycle-controller", ["nodelifecycle"], On, [], AnyOrder;
    "persistentvolume-attach-detach-controller", ["attachdetach"], On, [], AnyOrder;
    "persistentvolume-binder-controller", ["persistentvolume-binder"], On, [], AnyOrder;
    "persistentvolume-expander-controller", ["persistentvolume-expander"], On, [], AnyOrder;
    "persistentvolume-protection-controller", ["pv-protection"], On, [], AnyOrder;
    "persistentvolumeclaim-protection-controller", ["pvc-protection"], On, [], AnyOrder;
    "pod-garbage-collector-controller", ["podgc"], On, [], AnyOrder;
    "podcertificaterequest-cleaner-controller", [], On, ["PodCertificateRequest"], AnyOrder;
    "podgroup-protection-controller", [], On, ["GenericWorkload"], AnyOrder;
    "replicaset-controller", ["replicaset"], On, [], AnyOrder;
    "replicationcontroller-controller", ["replicationcontroller"], On, [], AnyOrder;
    "resourceclaim-controller", ["resource-claim-controller"], On, ["DynamicResourceAllocation"], AnyOrder;
    "resourcepoolstatusrequest-controller", [], On, ["DRAResourcePoolStatus"], AnyOrder;
    "resourcequota-controller", ["resourcequota"], On, [], AnyOrder;
    "root-ca-certificate-publisher-controller", ["root-ca-cert-publisher"], On, [], AnyOrder;
    "selinux-warning-controller", [], Off, ["SELinuxChangePolicy"], AnyOrder;
    "service-cidr-controller", [], On, ["MultiCIDRServiceAllocator"], AnyOrder;
    "serviceaccount-controller", ["serviceaccount"], On, [], AnyOrder;
    "serviceaccount-token-controller", ["serviceaccount-token"], On, [], First;
    "statefulset-controller", ["statefulset"], On, [], AnyOrder;
    "storage-version-migrator-controller", ["svm"], On, [], AnyOrder;
    "storageversion-garbage-collector-controller", ["storage-version-gc"], On, ["APIServerIdentity", "StorageVersionAPI"], AnyOrder;
    "taint-eviction-controller", [], On, ["SeparateTaintEvictionController"], AnyOrder;
    "token-cleaner-controller", ["tokencleaner"], Off, [], AnyOrder;
    "ttl-after-finished-controller", ["ttl-after-finished"], On, [], AnyOrder;
    "ttl-controller", ["ttl"], On, [], AnyOrder;
    "validatingadmissionpolicy-status-controller", [], On, [], AnyOrder;
    "volumeattributesclass-protection-controller", [], On, ["VolumeAttributesClass"], AnyOrder;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use component::flags::Gates;
    use component::flags::controllers::{Selection, StartOrder, UpstreamController, enabled_upstream, find};

    use super::*;
    use crate::flags::GATES;

    fn spellings(controller: &'static UpstreamController) -> impl Iterator<Item = &'static str> {
        std::iter::once(controller.name).chain(controller.aliases.iter().copied())
    }

    fn items(text: &str) -> Vec<String> {
        text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn first_item_that_names_a_controller_counts() {
        for (list, name, want) in [
            ("*", "deployment-controller", true),
            ("*", "bootstrap-signer-controller", false),
            ("*,bootstrapsigner", "bootstrap-signer-controller", true),
            ("bootstrapsigner", "deployment-controller", false),
            ("", "deployment-controller", false),
            ("-deployment,*", "deployment-controller", false),
            ("*,-deployment", "deployment-controller", false),
            ("deployment,-deployment", "deployment-controller", true),
            ("-deployment,deployment", "deployment-controller", false),
            ("-deployment-controller,deployment", "deployment-controller", false),
            ("-replicaset", "deployment-controller", false),
            ("*,-replicaset", "deployment-controller", true),
        ] {
            let selection = Selection::parse(UPSTREAM, &items(list)).unwrap().into_items();
            assert_eq!(find(UPSTREAM, name).unwrap().is_selected(&selection), want, "{list} {name}");
        }
    }

    #[test]
    fn unknown_names_are_reported_with_the_nearest() {
        let unknown = Selection::parse(UPSTREAM, &items("*,deploymnt,-repliaset,-*,qqqqqqqq")).unwrap_err();
        let messages: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "\"deploymnt\" is not in the list of known controllers (did you mean deployment?)",
                "\"repliaset\" is not in the list of known controllers (did you mean replicaset?)",
                "\"*\" is not in the list of known controllers",
                "\"qqqqqqqq\" is not in the list of known controllers",
            ]
        );
    }

    #[test]
    fn names_and_aliases_are_unique_and_gates_exist() {
        let all: Vec<&str> = UPSTREAM.iter().flat_map(spellings).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(UPSTREAM.is_sorted_by_key(|controller| controller.name));
        let gates = Gates::of(&GATES);
        for gate in UPSTREAM.iter().flat_map(|controller| controller.gates) {
            gates.enabled(gate);
        }
        let first = UPSTREAM.iter().filter(|controller| controller.start == StartOrder::First);
        assert_eq!(first.map(|first| first.name).collect::<Vec<_>>(), ["serviceaccount-token-controller"]);
    }

    #[test]
    fn controller_is_off_while_its_gate_is_off() {
        let star = items("*");
        let names = |gates: &Gates| -> BTreeSet<&str> {
            enabled_upstream(UPSTREAM, &star, gates).map(|controller| controller.name).collect()
        };
        let by_default = names(&Gates::of(&GATES));
        assert!(by_default.contains("resourceclaim-controller"));
        assert!(!by_default.contains("podgroup-protection-controller"));
        let with = Gates::resolve(&GATES, &items("GenericWorkload=true"), &[], &[]).unwrap();
        assert!(names(&with).contains("podgroup-protection-controller"));
    }
}
