//! Reconciles of pods, PodGroups and claims with caches that agree with the API server, lag behind it, or are empty.

use http::Method;
use kinds::schema as f;
use runtime::events::Recorder;
use runtime::metrics::Metrics;
use runtime::worker::{Outcome, Reconcile, ReconcileError};

use super::server::Server;
use super::*;
use crate::devices::resource_claim::keys::Key;
use crate::devices::resource_claim::reconciler::ResourceClaims;
use crate::devices::resource_claim::takeover::Takeover;
use crate::devices::resource_claim::{decide, metrics};
use crate::pods::creation_gate::CreationGate;

/// A ResourceClaim as the API server returns it.
#[derive(Clone, Default)]
struct Claim {
    name: &'static str,
    /// The pod that controls it, by name.
    pod: Option<&'static str>,
    /// The PodGroup that controls it, by name.
    group: Option<&'static str>,
    entry: Option<&'static str>,
    is_allocated: bool,
    is_protected: bool,
    is_deleting: bool,
    consumers: Vec<Consumer>,
}

fn put_meta(object: &mut Vec<u8>, name: &str, more: impl FnOnce(&mut Vec<u8>)) {
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::UID, &format!("{name}-uid"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        more(meta);
    });
}

impl Claim {
    fn object(&self) -> Vec<u8> {
        let mut object = Vec::new();
        put_meta(&mut object, self.name, |meta| {
            if let Some(pod) = self.pod {
                owner("v1", "Pod", pod).put(meta, object_meta::OWNER_REFERENCES);
            }
            if let Some(group) = self.group {
                owner("scheduling.k8s.io/v1beta1", "PodGroup", group).put(meta, object_meta::OWNER_REFERENCES);
            }
            if let Some(entry) = self.entry {
                meta.put_entry(object_meta::ANNOTATIONS, "resource.kubernetes.io/pod-claim-name", entry);
            }
            if self.is_protected {
                meta.put_str(object_meta::FINALIZERS, DELETE_PROTECTION);
            }
            if self.is_deleting {
                Time(5).put(meta, object_meta::DELETION_TIMESTAMP);
            }
        });
        object.put_message(resource_claim::STATUS, |status| {
            if self.is_allocated {
                status.put_message(f::resource_claim_status::ALLOCATION, |_| {});
            }
            for consumer in &self.consumers {
                status.put_message(f::resource_claim_status::RESERVED_FOR, |message| {
                    message.put_str(f::claim_consumer::API_GROUP, &consumer.group);
                    message.put_str(f::claim_consumer::RESOURCE, &consumer.resource);
                    message.put_str(f::claim_consumer::NAME, &consumer.name);
                    message.put_str(f::claim_consumer::UID, &consumer.uid.to_string());
                });
            }
        });
        object
    }

    fn record(&self) -> ResourceClaim {
        of_state(&self.object())
    }
}

fn of_state(object: &[u8]) -> ResourceClaim {
    let context = Decode { interner: Arc::default(), sections: ResourceClaim::STATE };
    ResourceClaim::decode(&context, object).expect("well-formed")
}

fn plain(name: &str) -> Vec<u8> {
    let mut object = Vec::new();
    put_meta(&mut object, name, |_| {});
    object
}

/// The caches and the API server before a reconcile.
struct Fixture {
    gates: Gates,
    pods: Vec<Pod>,
    groups: Vec<PodGroup>,
    claims: Vec<Claim>,
    template: Option<ResourceClaimTemplate>,
    /// The namespace of all objects, if the cache contains it.
    namespace: Option<Namespace>,
    server: Arc<Server>,
    /// The namespace was compared with the API server before.
    is_compared: bool,
}

impl Fixture {
    /// Returns a fixture whose API server has the claims of the cache and those of `served`.
    fn new(gates: Gates, pods: Vec<Pod>, cached: Vec<Claim>, served: &[Claim]) -> Self {
        let server = Arc::new(Server::default());
        for claim in cached.iter().chain(served) {
            server.add::<ResourceClaim>(&claim.object());
        }
        let template = Some(named(resource_claim_template::METADATA, "template"));
        Self { gates, pods, groups: vec![], claims: cached, template, namespace: None, server, is_compared: false }
    }

    fn with_groups(self, groups: Vec<PodGroup>) -> Self {
        Self { groups, ..self }
    }

    async fn controller(&self) -> ResourceClaims {
        let decode = || Decode { interner: Arc::default(), sections: ResourceClaim::STATE };
        let by_pods = vec![pods_by_claim(), pods_by_template(), pods_by_group()];
        let groups = || filled_store(decode(), vec![groups_by_claim(), groups_by_template()], self.groups.clone());
        let claims = self.claims.iter().map(Claim::record);
        let keys = Keys {
            pods: Arc::new(filled_store(decode(), by_pods, self.pods.clone())),
            claims: Arc::new(filled_store(decode(), vec![by_controller()], claims)),
            groups: self.gates.groups.then(|| Arc::new(groups())),
            gates: self.gates,
            queue: Queue::new(QueueOptions::named("test")),
            deleted: Arc::default(),
        };
        let compared = Takeover::compared("ns", keys.claims.progress());
        let writer = self.server.writer().await;
        let (recorder, _) = Recorder::new("test", Arc::new(writer.clone()));
        ResourceClaims {
            keys: Arc::new(keys),
            templates: Arc::new(filled_store(decode(), vec![], self.template.clone())),
            writer,
            recorder,
            takeover: if self.is_compared { compared } else { Takeover::default() },
            pod_writes: Consistency::default(),
            group_writes: Consistency::default(),
            claim_writes: Consistency::default(),
            gate: CreationGate::new(Arc::new(filled_store(decode(), vec![], self.namespace.clone()))),
            pod_refusals: Default::default(),
            group_refusals: Default::default(),
            created: metrics::register_creations(&Metrics::new()),
        }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, ReconcileError> {
        self.controller().await.reconcile(&key).await
    }

    /// The writes: method and path; patches with the names that they set.
    fn writes(&self) -> Vec<String> {
        self.server.writes().into_iter().map(|write| summary(&write)).collect()
    }

    /// Consumers of a claim on the API server, whether it is allocated, and whether it has its finalizer.
    fn state(&self, claim: &str) -> Option<(Vec<String>, bool, bool)> {
        let claim = of_state(&self.server.get::<ResourceClaim>(claim)?);
        let state = claim.state.expect("in its section");
        let consumers = state.consumers.iter().map(|consumer| consumer.name.to_string()).collect();
        Some((consumers, state.is_allocated, decide::is_protected(&claim.meta)))
    }
}

fn summary(write: &str) -> String {
    let Some((head, body)) = write.split_once(" {") else { return write.to_owned() };
    let body: serde_json::Value = serde_json::from_str(&format!("{{{body}")).expect("JSON");
    let statuses = body["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let names = statuses.iter().map(|one| format!(" {}={}", text(&one["name"]), text(&one["resourceClaimName"])));
    format!("{head}{}", names.collect::<String>())
}

fn pod_key() -> Key {
    Key::Pod(kinds::meta::ObjectKey::new("ns", "web"))
}

/// The claim that the pod's status names.
fn made() -> Claim {
    Claim { name: "made", pod: Some("web"), entry: Some("gpu"), ..Claim::default() }
}

/// The claim of the PodGroup `gang`.
fn of_gang() -> Claim {
    Claim { name: "gang-claim", group: Some("gang"), entry: Some("gpu"), ..Claim::default() }
}

/// A pod whose status names no claim yet.
fn waiting() -> Pod {
    user(vec![generated("gpu", None)])
}

/// A pod whose status names the claim `made`.
fn served() -> Pod {
    user(vec![generated("gpu", Some(Some("made")))])
}

fn gang(entries: Vec<ClaimEntry>) -> Vec<PodGroup> {
    vec![group("gang", entries)]
}

const CREATED: &[&str] = &["POST resourceclaims", "PATCH pods/web/status gpu=web-gpu-1"];

#[tokio::test]
async fn pod_gets_the_claims_that_it_lacks() {
    let member = || in_group(waiting(), "gang");
    let shared_entry = || gang(vec![generated("gpu", None)]);
    let foreign = || Claim { name: "made", pod: Some("other"), ..Claim::default() };
    let no_admin = Gates { admin_access: false, ..OFF };
    let with_admin_access = || {
        let mut template: ResourceClaimTemplate = named(resource_claim_template::METADATA, "template");
        template.has_admin_access = true;
        Some(template)
    };
    let two = || user(vec![generated("gpu", Some(Some("made"))), generated("a", None)]);
    let start = |pod: Pod, cached: Vec<Claim>, served: &[Claim]| Fixture::new(OFF, vec![pod], cached, served);
    let grouped = |gates, pod: Pod, cached: Vec<Claim>| Fixture::new(gates, vec![pod], cached, &[]);
    let off = "get PodGroup for Pod ns/web: Pod is a member of PodGroup gang but GenericWorkload feature is disabled";
    let no_group_claims = "pod ns/web, PodResourceClaim gpu: claim gpu is a PodGroup claim but the DRAWorkloadResourceClaims feature \
                is disabled";
    let missing = "get PodGroup for Pod ns/web: podgroup.scheduling.k8s.io \"gang\" not found";
    let no_template = "pod ns/web, PodResourceClaim gpu: resource claim template \"template\": \
                       resourceclaimtemplate.resource.k8s.io \"template\" not found";
    let admin = "pod ns/web, PodResourceClaim gpu: admin access is requested, but the feature is disabled";
    let unsupported = "pod ns/web, PodResourceClaim gpu: checking for claim before creating it: pod \"ns/web\", \
                       spec.resourceClaim \"gpu\": none of the supported fields are set";
    for (name, fixture, expected, writes) in [
        ("new pod", start(waiting(), vec![], &[]), Ok(()), CREATED),
        ("claim in the cache", start(served(), vec![made()], &[]), Ok(()), &[][..]),
        ("claim on the API server only", start(served(), vec![], &[made()]), Ok(()), &[]),
        ("claim does not exist", start(served(), vec![], &[]), Ok(()), CREATED),
        (
            "claim of an earlier attempt",
            start(waiting(), vec![made()], &[]),
            Ok(()),
            &["PATCH pods/web/status gpu=made"],
        ),
        (
            "claim of another owner",
            start(served(), vec![foreign()], &[]),
            Ok(()),
            &["POST resourceclaims", "PATCH pods/web/status gpu=web-gpu-2"],
        ),
        (
            "claim of another owner, no template",
            Fixture { template: None, ..start(served(), vec![foreign()], &[]) },
            Err((no_template, false)),
            &[],
        ),
        ("no template", Fixture { template: None, ..start(waiting(), vec![], &[]) }, Err((no_template, false)), &[]),
        (
            "administrative access",
            Fixture { template: with_admin_access(), ..start(waiting(), vec![], &[]) },
            Ok(()),
            CREATED,
        ),
        (
            "administrative access, gate off",
            Fixture { template: with_admin_access(), gates: no_admin, ..start(waiting(), vec![], &[]) },
            Err((admin, false)),
            &[],
        ),
        ("unsupported", start(user(vec![unsupported_entry()]), vec![], &[]), Err((unsupported, false)), &[]),
        (
            "second entry",
            start(two(), vec![made()], &[]),
            Ok(()),
            &["POST resourceclaims", "PATCH pods/web/status a=web-a-2 gpu=made"],
        ),
        ("being deleted", start(deleting(waiting()), vec![], &[]), Ok(()), &[]),
        ("finished", start(finished(served()), vec![], &[]), Ok(()), &[]),
        ("missing pod", Fixture::new(OFF, vec![], vec![], &[]), Ok(()), &[]),
        ("pod's own entry, in a PodGroup", grouped(ON, member(), vec![]).with_groups(gang(vec![])), Ok(()), CREATED),
        (
            "pod's own entry, in a PodGroup, gate of group claims off",
            grouped(GROUPS_ONLY, member(), vec![]).with_groups(gang(vec![])),
            Ok(()),
            CREATED,
        ),
        ("PodGroup is missing", grouped(ON, member(), vec![]), Err((missing, false)), &[]),
        ("PodGroup has no claim yet", grouped(ON, member(), vec![]).with_groups(shared_entry()), Ok(()), &[]),
        (
            "claim of the PodGroup",
            grouped(ON, member(), vec![of_gang()]).with_groups(shared_entry()),
            Ok(()),
            &["PATCH pods/web/status gpu=gang-claim"],
        ),
        ("member without gates", grouped(OFF, member(), vec![]), Err((off, true)), &[]),
        (
            "gate of group claims is off",
            grouped(GROUPS_ONLY, member(), vec![]).with_groups(shared_entry()),
            Err((no_group_claims, true)),
            &[],
        ),
    ] {
        let mut fixture = fixture;
        fixture.server.add::<Pod>(&plain("web"));
        fixture.is_compared = true;
        let result = fixture.reconcile(pod_key()).await;
        let result = result.map(|outcome| assert_eq!(outcome, Outcome::Done, "{name}"));
        let expected = expected.map_err(|(message, terminal)| ReconcileError { message: message.to_owned(), terminal });
        assert_eq!(result, expected, "{name}");
        assert_eq!(fixture.writes(), writes, "{name}");
    }
}

fn unsupported_entry() -> ClaimEntry {
    unsupported("gpu")
}

#[tokio::test]
async fn refused_requests_create_nothing_and_are_retried() {
    for (name, method, status, reason, pod, expected) in [
        ("creation", Method::POST, 409, "Conflict", waiting(), "create ResourceClaim : test: Conflict"),
        ("read", Method::GET, 500, "InternalError", served(), "checking claim existence: test: InternalError"),
    ] {
        let mut fixture = Fixture::new(OFF, vec![pod], vec![], &[]);
        fixture.is_compared = true;
        fixture.server.refuse(method, status, reason);
        let error = fixture.reconcile(pod_key()).await.expect_err(name);
        assert_eq!(error.message, format!("pod ns/web, PodResourceClaim gpu: {expected}"), "{name}");
        assert!(!error.terminal && fixture.server.claims().is_empty(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_creations_back_off_while_their_owner_is_reconciled() {
    let of_pod = Fixture::new(OFF, vec![waiting()], vec![], &[]);
    let of_group = Fixture::new(ON, vec![], vec![], &[]).with_groups(gang(vec![generated("gpu", None)]));
    for (fixture, key) in [(of_pod, pod_key()), (of_group, Key::Group(kinds::meta::ObjectKey::new("ns", "gang")))] {
        let fixture = Fixture { is_compared: true, ..fixture };
        fixture.server.refuse(Method::POST, 403, "Forbidden");
        let controller = fixture.controller().await;
        for _ in 0..600 {
            let _ = controller.reconcile(&key).await;
            tokio::time::advance(std::time::Duration::from_millis(100)).await;
        }
        let sent = fixture.writes().len();
        assert!((8..=20).contains(&sent), "{key}: {sent} creations in a minute");
    }
}

#[tokio::test]
async fn nothing_is_created_in_a_namespace_that_is_being_deleted() {
    let mut namespace: Namespace = named(1, "ns");
    namespace.meta.namespace = "".into();
    namespace.meta.deletion = Time(5);
    let fixture = Fixture { namespace: Some(namespace), ..Fixture::new(OFF, vec![waiting()], vec![], &[]) };
    let fixture = Fixture { is_compared: true, ..fixture };
    assert_eq!(fixture.reconcile(pod_key()).await, Ok(Outcome::Done));
    assert!(fixture.writes().is_empty());
}

#[tokio::test]
async fn claim_of_the_previous_leader_is_awaited_when_clocks_differ() {
    let mut fixture = Fixture::new(OFF, vec![waiting()], vec![], &[made()]);
    // The API server's clock may be ahead of the one of this process.
    fixture.pods[0].meta.created = Time(10_000_000_000);
    let controller = fixture.controller().await;
    assert_eq!(controller.reconcile(&pod_key()).await, Ok(Outcome::Done));
    assert_eq!(controller.reconcile(&pod_key()).await, Ok(Outcome::WaitingForCache));
    assert!(fixture.writes().is_empty());
    assert_eq!(fixture.server.reads(), ["resourceclaims"], "one list for the namespace");
}

#[tokio::test]
async fn lost_response_to_a_creation_is_followed_by_a_list() {
    let mut fixture = Fixture::new(OFF, vec![waiting()], vec![], &[]);
    fixture.is_compared = true;
    fixture.server.refuse(Method::POST, 504, "Timeout");
    let controller = fixture.controller().await;
    assert!(controller.reconcile(&pod_key()).await.is_err());
    fixture.server.add::<ResourceClaim>(&made().object());
    assert_eq!(controller.reconcile(&pod_key()).await, Ok(Outcome::Done));
    assert_eq!(controller.reconcile(&pod_key()).await, Ok(Outcome::WaitingForCache));
    assert_eq!(fixture.writes(), ["POST resourceclaims"]);
}

#[tokio::test]
async fn allocated_claim_is_reserved_for_a_pod_on_a_node() {
    let allocated = |consumers: &[Consumer]| Claim { is_allocated: true, consumers: consumers.into(), ..made() };
    let shared_by_gang = || Claim { is_allocated: true, ..of_gang() };
    let member = || on_node(in_group(user(vec![generated("gpu", Some(Some("gang-claim")))]), "gang"));
    let gang = || gang(vec![generated("gpu", Some(Some("gang-claim")))]);
    let reserved = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (name, fixture, claim, expected) in [
        ("without a node", Fixture::new(OFF, vec![served()], vec![allocated(&[])], &[]), "made", &[][..]),
        ("on a node", Fixture::new(OFF, vec![on_node(served())], vec![allocated(&[])], &[]), "made", &["web"]),
        (
            "with other consumers",
            Fixture::new(OFF, vec![on_node(served())], vec![allocated(&[pod_of("a")])], &[]),
            "made",
            &["a", "web"],
        ),
        ("not allocated", Fixture::new(OFF, vec![on_node(served())], vec![made()], &[]), "made", &[]),
        ("finished", Fixture::new(OFF, vec![finished(on_node(served()))], vec![allocated(&[])], &[]), "made", &[]),
        ("deallocated later", Fixture::new(OFF, vec![on_node(served())], vec![allocated(&[])], &[made()]), "made", &[]),
        (
            "reserved later",
            Fixture::new(OFF, vec![on_node(served())], vec![allocated(&[])], &[allocated(&[pod_of("web")])]),
            "made",
            &["web"],
        ),
        (
            "for the PodGroup",
            Fixture::new(ON, vec![member()], vec![shared_by_gang()], &[]).with_groups(gang()),
            "gang-claim",
            &["gang"],
        ),
        (
            "for the PodGroup, gate off",
            Fixture::new(GROUPS_ONLY, vec![member()], vec![shared_by_gang()], &[]).with_groups(gang()),
            "gang-claim",
            &[],
        ),
    ] {
        let mut fixture = fixture;
        fixture.is_compared = true;
        // A pod may not use the claim of its PodGroup with one of the gates off.
        let is_refused = name.ends_with("gate off");
        assert_eq!(fixture.reconcile(pod_key()).await.is_err(), is_refused, "{name}");
        assert_eq!(fixture.state(claim).expect("the claim exists").0, reserved(expected), "{name}");
    }
}

#[tokio::test]
async fn pod_group_gets_its_claims_and_keeps_the_names_that_it_has() {
    let two = || vec![generated("b", Some(Some("gang-claim"))), generated("a", None)];
    let named = || vec![two().remove(0)];
    let waiting = || vec![generated("b", None)];
    let made = || Claim { entry: Some("b"), ..of_gang() };
    let foreign = || Claim { group: Some("other"), ..made() };
    let created = &["POST resourceclaims", "PATCH podgroups/gang/status b=gang-b-1"][..];
    let replaced = &["POST resourceclaims", "PATCH podgroups/gang/status b=gang-b-2"][..];
    let second = &["POST resourceclaims", "PATCH podgroups/gang/status a=gang-a-2 b=gang-claim"][..];
    let adopted = &["PATCH podgroups/gang/status b=gang-claim"][..];
    for (name, entries, cached, served, expected) in [
        ("new PodGroup", waiting(), vec![], vec![], created),
        ("claim in the cache", named(), vec![made()], vec![], &[]),
        ("claim on the API server only", named(), vec![], vec![made()], &[]),
        ("claim does not exist", named(), vec![], vec![], created),
        ("claim of an earlier attempt", waiting(), vec![made()], vec![], adopted),
        ("claim of another owner", named(), vec![foreign()], vec![], replaced),
        ("second entry", two(), vec![made()], vec![], second),
        ("no entries", vec![], vec![], vec![], &[]),
    ] {
        let mut fixture = Fixture::new(ON, vec![], cached, &served).with_groups(gang(entries));
        fixture.is_compared = true;
        fixture.server.add::<PodGroup>(&plain("gang"));
        assert_eq!(fixture.reconcile(group_key()).await, Ok(Outcome::Done), "{name}");
        assert_eq!(fixture.writes(), expected, "{name}");
    }
}

fn group_key() -> Key {
    Key::Group(kinds::meta::ObjectKey::new("ns", "gang"))
}

#[tokio::test]
async fn pod_group_gets_no_claim_when_it_is_deleted_or_the_creation_fails() {
    let waiting = || group("gang", vec![generated("b", None)]);
    let deleting = || edited(waiting(), |group| group.meta.deletion = Time(1));
    let foreign = || Claim { entry: Some("b"), group: Some("other"), ..of_gang() };
    let lost = || edited(waiting(), |group| group.claims = [generated("b", Some(Some("gang-claim")))].into());
    let missing = "PodGroup ns/gang, PodGroupResourceClaim b: resource claim template \"template\": \
                   resourceclaimtemplate.resource.k8s.io \"template\" not found";
    let refused = "PodGroup ns/gang, PodGroupResourceClaim b: create ResourceClaim : test: Conflict";
    let compared = |fixture: Fixture| Fixture { is_compared: true, ..fixture };
    let fixture = |groups: Vec<PodGroup>| compared(Fixture::new(ON, vec![], vec![], &[]).with_groups(groups));
    let without = |fixture: Fixture| Fixture { template: None, ..fixture };
    let owned = || compared(Fixture::new(ON, vec![], vec![foreign()], &[]).with_groups(vec![lost()]));
    for (name, fixture, refuses, expected) in [
        ("missing PodGroup", fixture(vec![]), false, Ok(Outcome::Done)),
        ("being deleted", fixture(vec![deleting()]), false, Ok(Outcome::Done)),
        ("no template", without(fixture(vec![waiting()])), false, Err(missing)),
        ("claim of another owner, no template", without(owned()), false, Err(missing)),
        ("refused", fixture(vec![waiting()]), true, Err(refused)),
    ] {
        if refuses {
            fixture.server.refuse(Method::POST, 409, "Conflict");
        }
        let before = fixture.server.claims().len();
        let result = fixture.reconcile(group_key()).await;
        assert_eq!(result.map_err(|error| error.message), expected.map_err(str::to_owned), "{name}");
        assert_eq!(fixture.server.claims().len(), before, "{name}");
    }
}

/// Each case: the consumers of a claim, the pods in the cache and on the API server, and the claim afterwards.
#[tokio::test]
async fn claim_is_released_when_its_consumers_no_longer_need_it() {
    let key = || Key::Claim(kinds::meta::ObjectKey::new("ns", "made"));
    let shared = || Claim { pod: None, entry: None, is_allocated: true, is_protected: true, ..made() };
    let reserved = |consumers: &[Consumer]| Claim { consumers: consumers.into(), ..shared() };
    let old = || Consumer { uid: Uid::parse("old-uid"), ..pod_of("web") };
    let thing = || consumer("example.com", "things", "..");
    let web = || vec![on_node(served())];
    let recreated = || vec![edited(on_node(served()), |pod| pod.meta.uid = Uid::parse("new-uid"))];
    let done = || vec![finished(on_node(served()))];
    let kept = |names: &[&str], is_allocated, is_protected| {
        Some((names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), is_allocated, is_protected))
    };
    let free = || kept(&[], false, false);
    let unprotected = || Claim { is_protected: false, ..reserved(&[pod_of("web")]) };
    let own = |consumers: &[Consumer]| Claim { pod: Some("web"), ..reserved(consumers) };
    let unused = || Claim { is_allocated: false, is_protected: false, ..own(&[]) };
    for (name, gates, pods, on_server, claim, expected) in [
        ("pod in the cache", OFF, web(), None, reserved(&[pod_of("web")]), kept(&["web"], true, true)),
        ("pod on the API server", OFF, vec![], Some("web"), reserved(&[pod_of("web")]), kept(&["web"], true, true)),
        ("missing pod", OFF, vec![], None, reserved(&[pod_of("web")]), free()),
        ("earlier pod with the same name", OFF, web(), Some("web"), reserved(&[old()]), free()),
        (
            "cache has an earlier pod",
            OFF,
            recreated(),
            Some("web"),
            reserved(&[pod_of("web")]),
            kept(&["web"], true, true),
        ),
        ("one of two", OFF, web(), None, reserved(&[pod_of("a"), pod_of("web")]), kept(&["web"], true, true)),
        ("besides another kind", OFF, vec![], None, reserved(&[pod_of("a"), thing()]), kept(&[".."], true, true)),
        ("hostile name", OFF, vec![], None, reserved(&[pod_of("../web")]), free()),
        ("missing PodGroup", ON, vec![], None, reserved(&[group_of("gang")]), free()),
        ("PodGroup, gate off", OFF, vec![], None, reserved(&[group_of("gang")]), kept(&["gang"], true, true)),
        ("finished pod, no finalizer", OFF, done(), None, unprotected(), kept(&[], true, false)),
        ("never reserved", OFF, vec![], None, shared(), kept(&[], true, true)),
        (
            "in use and being deleted",
            OFF,
            web(),
            None,
            Claim { is_deleting: true, ..reserved(&[pod_of("web")]) },
            kept(&["web"], true, true),
        ),
        ("being deleted", OFF, vec![], None, Claim { is_deleting: true, ..reserved(&[pod_of("web")]) }, None),
        ("being deleted, never reserved", OFF, vec![], None, Claim { is_deleting: true, ..shared() }, None),
        ("of a finished pod", OFF, done(), None, own(&[pod_of("web")]), None),
        ("of a finished pod, released", OFF, done(), None, unused(), None),
        ("of a running pod", OFF, web(), None, unused(), free()),
        ("of a pod that the cache does not have", OFF, vec![], None, unused(), free()),
        ("cache has an earlier pod than the owner", OFF, recreated(), Some("web"), unused(), free()),
        ("of an earlier pod with the same name", OFF, recreated(), None, unused(), None),
    ] {
        let fixture = Fixture::new(gates, pods, vec![claim], &[]);
        if let Some(pod) = on_server {
            fixture.server.add::<Pod>(&plain(pod));
        }
        assert_eq!(fixture.reconcile(key()).await, Ok(Outcome::Done), "{name}");
        assert_eq!(fixture.state("made"), expected, "{name}");
    }
}

#[tokio::test]
async fn release_is_decided_again_on_the_claim_of_the_api_server() {
    let key = || Key::Claim(kinds::meta::ObjectKey::new("ns", "made"));
    let reserved = |consumers: &[Consumer]| Claim {
        is_allocated: true,
        is_protected: true,
        consumers: consumers.into(),
        ..made()
    };
    let running = vec![on_node(served())];
    // The scheduler has reserved the claim for another pod, which the cache does not contain yet.
    let fixture =
        Fixture::new(OFF, running.clone(), vec![reserved(&[pod_of("a")])], &[reserved(&[pod_of("a"), pod_of("b")])]);
    assert_eq!(fixture.reconcile(key()).await, Ok(Outcome::Done));
    assert_eq!(fixture.state("made"), Some((vec!["b".to_owned()], true, true)));
    // The claim was replaced.
    let fixture = Fixture::new(OFF, running.clone(), vec![reserved(&[pod_of("a")])], &[]);
    let object = reserved(&[pod_of("a")]).object();
    fixture.server.add::<ResourceClaim>(&super::server::with_uid(&object, "another"));
    assert_eq!(fixture.reconcile(key()).await, Ok(Outcome::Done));
    assert!(fixture.writes().is_empty());
    // Pods cannot be read: nothing is released.
    let fixture = Fixture::new(OFF, vec![], vec![reserved(&[pod_of("a")])], &[]);
    fixture.server.refuse(Method::GET, 500, "InternalError");
    assert!(fixture.reconcile(key()).await.is_err());
    assert!(fixture.writes().is_empty());
    // The claim changes between the read and the write.
    let fixture = Fixture::new(OFF, vec![], vec![reserved(&[pod_of("a")])], &[]);
    fixture.server.refuse(Method::PUT, 409, "Conflict");
    assert_eq!(fixture.reconcile(key()).await, Ok(Outcome::RequeueWithBackoff));
}
