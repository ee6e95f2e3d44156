//! One reconcile of a quota: gather the objects of its namespace, add up, write the status if it differs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::resource_claim::{DeviceClass, ResourceClaim};
use kinds::{Kind, PersistentVolumeClaim, Pod, ResourceQuota, Service};
use runtime::queue::Queue;
use runtime::store::{Cached, Store, by_controller, by_namespace, index_key, owned_by};
use runtime::watch::{EveryKind, Source};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tokio::time::Instant;

use super::CLASSES;
use super::amounts::{Classes, Family, may_depend_on_classes};
use super::census::Census;
use super::decide::{self, Content, NamespaceUsage};
use super::recounts::{CountMode, Recounts};
use crate::context::Clock;

/// The assumed maximum time until an object that admission has counted is stored and in the cache. After this time, a
/// status with more than the counted usage is taken to be too high.
const OBJECT_CACHE_DELAY: Duration = Duration::from_secs(5);

/// The controller's state.
pub struct Quotas {
    pub quotas: Arc<Store<ResourceQuota>>,
    pub pods: Arc<Store<Pod>>,
    pub services: Arc<Store<Service>>,
    pub volume_claims: Arc<Store<PersistentVolumeClaim>>,
    pub device_claims: Arc<Store<ResourceClaim>>,
    pub device_classes: Arc<Store<DeviceClass>>,
    pub every: Arc<EveryKind>,
    pub census: Arc<Census>,
    pub recounts: Arc<Recounts>,
    pub writer: Writer,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    /// Maximum time between two full counts of a quota; zero: no periodic ones.
    pub period: Duration,
}

/// Returns true if the cache contains all objects of a kind in a namespace.
fn is_countable(source: &dyn Source, namespace: &str) -> bool {
    source.is_synced() && source.undecodable_in(namespace) == 0
}

impl Reconcile for Quotas {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Quotas {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let quota = match self.quotas.read_settled(key, self.queue.waker(key)) {
            Cached::Current(quota) => quota,
            Cached::Absent => {
                self.recounts.request(key);
                return Ok(Outcome::Done);
            }
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        let mode = self.recounts.begin(key, Instant::now());
        let content = Arc::new(self.content(&quota));
        // Counting for many limits and pods takes a while, and must not delay other tasks.
        let counted = content.clone();
        let counting = quota.clone();
        let now = (self.clock)();
        let used = tokio::task::spawn_blocking(move || decide::used(&counting, &counted, now)).await;
        let used = used.map_err(|error| ReconcileError::new(error.to_string()))?;
        if let Some(texts) = decide::quantities_to_write(&quota, &used, mode) {
            let body = quota.status_update(&texts);
            match self.writer.replace(&ResourceQuota::RESOURCE, key, Some("status"), &body).await {
                Ok(response) => {
                    if let Ok(meta) = response.meta() {
                        self.quotas.wrote(key, meta.version);
                    }
                }
                Err(error) if error.is_not_found() => return Ok(Outcome::Done),
                Err(error) => {
                    if mode == CountMode::Full {
                        self.recounts.request(key);
                    }
                    // Admission has changed the status: count again.
                    return if error.is_conflict() { Ok(Outcome::RequeueWithBackoff) } else { Err(error.into()) };
                }
            }
        }
        let exceeds = mode == CountMode::RaiseOnly && decide::status_exceeds(&quota, &used);
        self.schedule(key, &used, &content, exceeds.then_some(OBJECT_CACHE_DELAY))
    }

    /// Sets the time of the next full count, and returns the outcome of the reconcile.
    fn schedule(
        &self,
        key: &ObjectKey,
        used: &NamespaceUsage,
        content: &Content,
        recount_delay: Option<Duration>,
    ) -> Result<Outcome, ReconcileError> {
        let now = Instant::now();
        let period = Some(self.period).filter(|period| !period.is_zero());
        let next = [period, used.recheck, recount_delay].into_iter().flatten().min();
        let next = self.recounts.schedule(key, next.map(|delay| now + delay));
        let mut families: Vec<String> = content.unreadable.iter().map(|family| format!("{family:?}")).collect();
        if used.unknown.iter().any(|name| content.has_unreadable_classes && may_depend_on_classes(name)) {
            families.push("DeviceClasses".to_owned());
        }
        if !families.is_empty() {
            let message =
                format!("not all objects can be decoded (see the log): {}; keeping old amounts", families.join(", "));
            return Err(ReconcileError::new(message));
        }
        // The kind may not be listed yet, may be served later, or may have objects that cannot be decoded.
        if !used.unknown.is_empty() {
            return Ok(Outcome::RequeueWithBackoff);
        }
        Ok(next.map_or(Outcome::Done, |at| Outcome::RequeueAfter(at.saturating_duration_since(now))))
    }

    /// Returns the objects of the namespace that the quota may count.
    fn content(&self, quota: &ResourceQuota) -> Content {
        let namespace = &quota.meta.namespace;
        let namespace_key = index_key(&**namespace);
        let classes = Classes::new(self.device_classes.by_index(&CLASSES, index_key(())).iter().map(|class| &**class));
        let wanted: BTreeSet<Family> = Family::ALL
            .iter()
            .map(|(family, ..)| *family)
            .filter(|family| quota.hard.iter().any(|(name, _)| family.counts_for(name, &classes)))
            .collect();
        let mut content = Content::default();
        for (name, _) in &quota.hard {
            let Some((group, plural)) = decide::counted_objects(name) else { continue };
            let source = self.every.source(group, plural);
            if source.as_ref().is_some_and(|source| !source.resource().namespaced) {
                continue;
            }
            let countable = source.is_some_and(|source| is_countable(&*source, namespace));
            let count = countable.then(|| self.census.count(group, plural, namespace));
            content.objects.insert(name.clone(), count);
        }
        for family in wanted {
            let unreadable = match family {
                Family::Pods => {
                    content.pods = self.pods.by_index(&by_namespace(), namespace_key);
                    self.pods.undecodable_in(namespace)
                }
                Family::Services => {
                    content.services = self.services.by_index(&by_namespace(), namespace_key);
                    self.services.undecodable_in(namespace)
                }
                Family::VolumeClaims => {
                    content.volume_claims = self.volume_claims.by_index(&by_namespace(), namespace_key);
                    self.volume_claims.undecodable_in(namespace)
                }
                Family::DeviceClaims => {
                    let claims = self.device_claims.by_index(&by_namespace(), namespace_key).into_iter();
                    let pod_of = |claim: &ResourceClaim| pod_of(claim, &self.device_claims, &self.pods);
                    content.device_claims = claims.map(|claim| (claim.clone(), pod_of(&claim))).collect();
                    self.device_claims.undecodable_in(namespace)
                }
            };
            if unreadable > 0 {
                content.unreadable.insert(family);
            }
        }
        content.classes = classes;
        content.has_unreadable_classes = self.device_classes.undecodable() > 0;
        content
    }
}

/// Returns the pod whose extended resources a claim was created for. The claim must be the one that the
/// pod's status names, or, while it names none, the oldest one that was created for the pod's extended resources.
/// Upstream: pkg/quota/v1/evaluator/core, getVerifiedPodUsage.
fn pod_of(claim: &ResourceClaim, claims: &Store<ResourceClaim>, pods: &Store<Pod>) -> Option<Arc<Pod>> {
    let owner = claim.meta.controller().filter(|_| claim.for_extended_resources)?;
    if (&*owner.kind, &*owner.api_version) != ("Pod", "v1") {
        return None;
    }
    let pod = pods.get_with_uid(&claim.meta.namespace, &owner.name, &owner.uid)?;
    let named_claim = pod.usage.as_ref().map(|usage| usage.unpack().extended_claim.to_owned()).unwrap_or_default();
    let is_pods_claim = if named_claim.is_empty() {
        let siblings = claims.by_index(&by_controller(), owned_by(&claim.meta.namespace, &owner.uid));
        let others = siblings.iter().filter(|other| other.for_extended_resources);
        others.min_by(|a, b| a.meta.by_creation(&b.meta)).is_some_and(|oldest| oldest.meta.uid == claim.meta.uid)
    } else {
        *named_claim == *claim.meta.name
    };
    is_pods_claim.then_some(pod)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kinds::meta::OwnerRef;
    use kinds::schema::{object_meta, pod as pod_fields, pod_extended_resource_claim_status, pod_status};
    use kinds::wire::Put;
    use kinds::{ConfigMap, Decode, Interner, Namespace, Sections, Time, Uid};
    use runtime::queue::QueueOptions;
    use runtime::testing::{counting_writer, deliver, deliver_end_of_list, deliver_undecodable, filled_store, object};
    use runtime::watch::{Builder, Registry};

    use super::*;

    fn decode(sections: Sections) -> Decode {
        Decode { interner: Arc::default(), sections }
    }

    fn named(name: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(pod_fields::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::UID, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        object
    }

    /// Returns a claim for extended resources with an owner of this kind and UID, which is named `web`.
    fn claim(name: &str, created: i64, (kind, owner): (&str, &str)) -> ResourceClaim {
        let mut claim = ResourceClaim::decode(&decode(Sections::default()), &named(name)).expect("well-formed");
        claim.meta.created = Time(created);
        claim.for_extended_resources = true;
        claim.meta.owners = Interner::default().owners(&[OwnerRef {
            api_version: "v1".into(),
            kind: kind.into(),
            name: "web".into(),
            uid: Uid::parse(owner),
            controller: Some(true),
            block_owner_deletion: None,
        }]);
        claim
    }

    /// Upstream's cases of TestResourceClaimEvaluatorUsage with several claims of a pod.
    #[test]
    fn claim_belongs_to_a_pod_that_names_it_or_to_one_without_a_name_if_it_is_the_oldest() {
        let own = ("Pod", "web");
        let mut for_devices = claim("devices", 0, own);
        for_devices.for_extended_resources = false;
        let all = [
            claim("old", 1, own),
            claim("same-age", 1, own),
            claim("new", 2, own),
            claim("of-previous-pod", 0, ("Pod", "previous")),
            claim("of-another-kind", 3, ("Job", "web")),
            for_devices,
        ];
        let claims = filled_store(decode(Sections::default()), vec![by_controller()], all.clone());
        for (in_status, expected) in [("", &["old"][..]), ("new", &["new"]), ("missing", &[])] {
            let mut object = named("web");
            object.put_message(pod_fields::STATUS, |status| {
                status.put_message(pod_status::EXTENDED_RESOURCE_CLAIM_STATUS, |message| {
                    message.put_str(pod_extended_resource_claim_status::NAME, in_status);
                });
            });
            let pod = Pod::decode(&decode(Pod::USAGE), &object).expect("well-formed");
            let pods = filled_store(decode(Pod::USAGE), Vec::new(), [pod]);
            let found = all.iter().filter(|claim| pod_of(claim, &claims, &pods).is_some());
            assert_eq!(found.map(|claim| &*claim.meta.name).collect::<Vec<_>>(), expected, "{in_status}");
        }
        let no_pods = filled_store(decode(Pod::USAGE), Vec::new(), []);
        assert!(all.iter().all(|claim| pod_of(claim, &claims, &no_pods).is_none()));
    }

    /// Returns the controller's state with listed ConfigMaps and Namespaces.
    async fn quotas() -> (Registry, Quotas) {
        let mut builder = Builder::default();
        builder.need::<ResourceQuota>(Sections::default(), &[by_namespace()]);
        builder.need::<Pod>(Sections::default(), &[by_namespace()]);
        builder.need::<Service>(Sections::default(), &[by_namespace()]);
        builder.need::<PersistentVolumeClaim>(Sections::default(), &[by_namespace()]);
        builder.need_if_served::<ResourceClaim>(Sections::default(), &[by_namespace(), by_controller()]);
        builder.need_if_served::<DeviceClass>(Sections::default(), &[CLASSES]);
        builder.need::<ConfigMap>(Sections::default(), &[]);
        builder.need::<Namespace>(Sections::default(), &[]);
        builder.need_named_kinds();
        let registry = builder.build();
        let census = Arc::new(Census::default());
        let counted = census.clone();
        registry.every_kind().subscribe(move |change| counted.apply(change));
        deliver_end_of_list(&registry.store::<ConfigMap>());
        deliver_end_of_list(&registry.store::<Namespace>());
        let quotas = Quotas {
            quotas: registry.store(),
            pods: registry.store(),
            services: registry.store(),
            volume_claims: registry.store(),
            device_claims: registry.store(),
            device_classes: registry.store(),
            every: registry.every_kind(),
            census,
            recounts: Arc::default(),
            writer: counting_writer(200, "").await.0,
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(Timestamp::now),
            period: Duration::ZERO,
        };
        (registry, quotas)
    }

    #[tokio::test]
    async fn objects_of_other_kinds_are_counted_if_they_are_namespaced_and_can_be_decoded() {
        let (registry, quotas) = quotas().await;
        let mut quota = ResourceQuota::decode(&decode(Sections::default()), &named("few")).expect("well-formed");
        let limited = ["count/configmaps", "count/namespaces", "count/widgets.example.com"];
        quota.hard = limited.iter().map(|name| ((*name).into(), "9".into())).collect();
        for name in ["a", "b"] {
            deliver::<ConfigMap>(&registry.store(), object(name, Sections::default()));
        }
        deliver::<Namespace>(&registry.store(), object("ns", Sections::default()));
        let used = || decide::used(&quota, &quotas.content(&quota), Timestamp::now());
        let texts = |used: &NamespaceUsage| {
            used.amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>()
        };
        let counted = used();
        assert_eq!(texts(&counted), ["count/configmaps=2"], "namespaces are in no namespace");
        assert_eq!(counted.unknown, ["count/widgets.example.com".into()], "the kind may be served later");
        deliver_undecodable(&registry.store::<ConfigMap>(), ObjectKey::new("other", "garbled"));
        assert_eq!(used(), counted, "undecodable objects of other namespaces do not matter");
        deliver_undecodable(&registry.store::<ConfigMap>(), ObjectKey::new("ns", "garbled"));
        let keeping = used();
        assert_eq!(texts(&keeping), Vec::<String>::new(), "the number would be too low");
        assert_eq!(keeping.unknown, ["count/configmaps".into(), "count/widgets.example.com".into()]);
    }

    #[test]
    fn kind_is_countable_in_namespaces_without_undecodable_objects() {
        let pods: Store<Pod> = filled_store(decode(Sections::default()), Vec::new(), []);
        assert!(!is_countable(&pods, "a"), "not listed yet");
        deliver_end_of_list(&pods);
        deliver_undecodable(&pods, ObjectKey::new("a", "garbled"));
        assert!(!is_countable(&pods, "a") && is_countable(&pods, "b"));
    }
}
