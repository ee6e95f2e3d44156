//! The table of all of upstream's controllers and the rules by which `--controllers` picks them.

use crate::flags::Gates;
use crate::flags::nearest::{hint, nearest};

/// Whether `*` includes a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByDefault {
    /// It does.
    On,
    /// It must be named to run.
    Off,
}

/// When a controller is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOrder {
    /// Before all others, with the root client (upstream's RequiresSpecialHandling).
    First,
    /// In any order.
    AnyOrder,
}

/// One controller of upstream's kube-controller-manager 1.37. It has no cloud controllers left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamController {
    /// The name for `--controllers`.
    pub name: &'static str,
    /// Older names for `--controllers`.
    pub aliases: &'static [&'static str],
    /// Whether `*` includes it.
    pub by_default: ByDefault,
    /// The feature gates that must all be on.
    pub gates: &'static [&'static str],
    /// When it is built.
    pub start: StartOrder,
}

macro_rules! controllers {
    ($($name:literal, [$($alias:literal)?], $default:ident, [$($gate:literal),*], $start:ident;)*) => {
        /// All of upstream's controllers, by name (kubernetes cmd/kube-controller-manager,
        /// NewControllerDescriptors).
        pub static UPSTREAM: &[UpstreamController] = &[$(UpstreamController {
            name: $name,
            aliases: &[$($alias)?],
            by_default: ByDefault::$default,
            gates: &[$($gate),*],
            start: StartOrder::$start,
        }),*];
    };
}

controllers! {
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

/// A name in `--controllers` that no controller has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not in the list of known controllers{}", hint(.nearest.as_deref(), ""))]
pub struct UnknownController {
    /// The name as given, without a dash in front.
    pub name: String,
    /// The name or alias most likely meant.
    pub nearest: Option<&'static str>,
}

/// A checked `--controllers`, with aliases replaced by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(Vec<String>);

impl Selection {
    /// Checks the items of `--controllers` and replaces aliases (controller-manager options,
    /// GenericControllerManagerConfigurationOptions.Validate and ApplyTo).
    ///
    /// # Errors
    /// Every name that no controller has.
    pub fn parse(items: &[String]) -> Result<Selection, Vec<UnknownController>> {
        let mut unknown = Vec::new();
        let mut names = Vec::new();
        for item in items {
            let (dash, name) = item.strip_prefix('-').map_or(("", item.as_str()), |name| ("-", name));
            match canonical(name) {
                Some(known) => names.push(format!("{dash}{known}")),
                None if item == "*" => names.push(item.clone()),
                None => unknown.push(UnknownController {
                    name: name.to_owned(),
                    nearest: nearest(name, UPSTREAM.iter().flat_map(spellings)),
                }),
            }
        }
        if unknown.is_empty() { Ok(Selection(names)) } else { Err(unknown) }
    }

    /// The items, with names in place of aliases.
    pub fn into_items(self) -> Vec<String> {
        self.0
    }
}

impl UpstreamController {
    /// Whether `controllers`, the list with aliases replaced as in `Options::controllers`, picks
    /// this controller (controller-manager app, IsControllerEnabled): the first item that names
    /// it decides, else `*` does, for those that are on by default.
    pub fn picked(&self, controllers: &[String]) -> bool {
        let named = controllers.iter().find_map(|item| match item.strip_prefix('-') {
            Some(off) => (off == self.name).then_some(false),
            None => (item == self.name).then_some(true),
        });
        let starred = || controllers.iter().any(|item| item == "*");
        named.unwrap_or_else(|| self.by_default == ByDefault::On && starred())
    }

    /// Whether upstream runs this controller: it is picked and its gates are on (kubernetes app,
    /// ControllerDescriptor.BuildController).
    pub fn enabled(&self, controllers: &[String], gates: &Gates) -> bool {
        self.picked(controllers) && self.gates.iter().all(|gate| gates.enabled(gate))
    }
}

/// The controller with that name or alias.
pub fn find(name: &str) -> Option<&'static UpstreamController> {
    UPSTREAM.iter().find(|controller| spellings(controller).any(|spelling| spelling == name))
}

/// The name that `name`, a name or an alias, stands for.
pub fn canonical(name: &str) -> Option<&'static str> {
    find(name).map(|controller| controller.name)
}

/// The controllers that upstream would run.
pub fn enabled_upstream<'a>(
    controllers: &'a [String],
    gates: &'a Gates,
) -> impl Iterator<Item = &'static UpstreamController> + 'a {
    UPSTREAM.iter().filter(move |controller| controller.enabled(controllers, gates))
}

/// The names of all controllers.
pub fn all_names() -> Vec<&'static str> {
    UPSTREAM.iter().map(|controller| controller.name).collect()
}

/// The names of those that `*` does not include.
pub fn off_by_default() -> Vec<&'static str> {
    let off = UPSTREAM.iter().filter(|controller| controller.by_default == ByDefault::Off);
    off.map(|controller| controller.name).collect()
}

fn spellings(controller: &'static UpstreamController) -> impl Iterator<Item = &'static str> {
    std::iter::once(controller.name).chain(controller.aliases.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn items(text: &str) -> Vec<String> {
        text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn the_first_item_that_names_a_controller_decides() {
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
            let selection = Selection::parse(&items(list)).unwrap().into_items();
            assert_eq!(find(name).unwrap().picked(&selection), want, "{list} {name}");
        }
    }

    #[test]
    fn unknown_names_are_told_with_the_nearest() {
        let unknown = Selection::parse(&items("*,deploymnt,-repliaset,-*,qqqqqqqq")).unwrap_err();
        let told: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
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
        let gates = Gates::default();
        for gate in UPSTREAM.iter().flat_map(|controller| controller.gates) {
            gates.enabled(gate);
        }
        let first = UPSTREAM.iter().filter(|controller| controller.start == StartOrder::First);
        assert_eq!(first.map(|first| first.name).collect::<Vec<_>>(), ["serviceaccount-token-controller"]);
    }

    #[test]
    fn gates_keep_controllers_off() {
        let star = items("*");
        let names = |gates: &Gates| -> BTreeSet<&str> {
            enabled_upstream(&star, gates).map(|controller| controller.name).collect()
        };
        let by_default = names(&Gates::default());
        assert!(by_default.contains("resourceclaim-controller"));
        assert!(!by_default.contains("podgroup-protection-controller"));
        let with = Gates::settle(&items("GenericWorkload=true"), &[], &[]).unwrap();
        assert!(names(&with).contains("podgroup-protection-controller"));
    }
}
