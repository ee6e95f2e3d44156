//! Policy: the usage of a namespace, and the status to write.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::pod::PackedUsage;
use kinds::resource_claim::ResourceClaim;
use kinds::resource_list::Amount;
use kinds::resource_quota::{Quantities, Scope};
use kinds::{PersistentVolumeClaim, Pod, ResourceQuota, Service, Str, quantity};
use runtime::queue::MAX_DELAY;

use super::amounts::{self, Classes, Family};
use super::recounts::CountMode;

/// Resources that quotas name without the prefix `count/`: the names are older than the prefix. Upstream:
/// pkg/quota/v1/evaluator/core, legacyObjectCountAliases.
const OLD_NAMES: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

/// Kinds that quotas do not count. Upstream: pkg/quota/v1/install, DefaultIgnoredResources.
const NOT_COUNTED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// Returns the group and plural whose objects a quota's resource counts.
pub fn counted_objects(name: &str) -> Option<(&str, &str)> {
    if OLD_NAMES.contains(&name) {
        return Some(("", name));
    }
    let resource = name.strip_prefix("count/")?;
    let counted = resource.split_once('.').map_or(("", resource), |(plural, group)| (group, plural));
    (!NOT_COUNTED.contains(&counted)).then_some(counted)
}

/// The objects of a namespace that a quota may count. Lists of families that the quota does not limit may be empty.
#[derive(Default)]
pub struct Content {
    /// Its pods.
    pub pods: Vec<Arc<Pod>>,
    /// Its Services.
    pub services: Vec<Arc<Service>>,
    /// Its PersistentVolumeClaims.
    pub volume_claims: Vec<Arc<PersistentVolumeClaim>>,
    /// Its ResourceClaims, each with the pod for whose extended resources it was created.
    pub device_claims: Vec<(Arc<ResourceClaim>, Option<Arc<Pod>>)>,
    /// The cluster's device classes.
    pub classes: Classes,
    /// Counts of other kinds, by resource name; `None`: the kind is not listed yet, is not served, or has undecodable
    /// objects in the namespace.
    pub objects: HashMap<Str, Option<usize>>,
    /// Families with objects that cannot be decoded: their amounts would be too low.
    pub unreadable: BTreeSet<Family>,
    /// Some device classes cannot be decoded: any of them may provide an extended resource.
    pub has_unreadable_classes: bool,
}

/// The usage of a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// Amounts that could be counted.
    pub amounts: BTreeMap<Str, Amount>,
    /// Resources that cannot be counted, but may be later.
    pub unknown: Vec<Str>,
    /// The time until the first pod that is being deleted stops counting; `None` without such a pod.
    pub recheck: Option<Duration>,
}

/// Numbers of pods by usage: pods that count, and pods that have finished or are past their grace period.
type PodsByUsage<'a> = HashMap<&'a PackedUsage, (usize, usize)>;

/// Returns the usage of the resources that a quota limits.
pub fn used(quota: &ResourceQuota, content: &Content, now: Timestamp) -> NamespaceUsage {
    let mut used = NamespaceUsage::default();
    let pods_by_usage = pods_by_usage(&content.pods, now, &mut used.recheck);
    for (name, _) in &quota.hard {
        if content.has_unreadable_classes && amounts::may_depend_on_classes(name) {
            used.unknown.push(name.clone());
            continue;
        }
        let families: Vec<Family> = Family::ALL
            .iter()
            .map(|(family, ..)| *family)
            .filter(|family| family.counts_for(name, &content.classes))
            .collect();
        if families.is_empty() {
            match content.objects.get(name) {
                Some(Some(count)) if quota.scopes.is_empty() => {
                    used.amounts.insert(name.clone(), Amount::count(1).times(*count));
                }
                Some(Some(_)) => drop(used.amounts.insert(name.clone(), Amount::ZERO)),
                Some(None) => used.unknown.push(name.clone()),
                None => {}
            }
            continue;
        }
        if families.iter().any(|family| content.unreadable.contains(family)) {
            used.unknown.push(name.clone());
            continue;
        }
        let sums = families.into_iter().map(|family| sum(family, name, &quota.scopes, content, &pods_by_usage, now));
        used.amounts.insert(name.clone(), sums.fold(Amount::ZERO, Amount::plus));
    }
    used
}

fn pods_by_usage<'a>(pods: &'a [Arc<Pod>], now: Timestamp, recheck: &mut Option<Duration>) -> PodsByUsage<'a> {
    let mut pods_by_usage = PodsByUsage::new();
    for pod in pods {
        let Some(usage) = &pod.usage else { continue };
        let grace = if pod.meta.is_deleting() { usage.unpack().grace } else { 0 };
        let (in_use, ended) = pods_by_usage.entry(usage).or_default();
        if amounts::is_in_use(pod, grace, now) {
            *in_use += 1;
            if pod.meta.is_deleting() {
                let end = pod.meta.deletion.0.saturating_add(grace).saturating_add(1);
                let left = u64::try_from(end.saturating_sub(now.as_second())).unwrap_or(1);
                let wait = Duration::from_secs(left).min(MAX_DELAY);
                *recheck = Some(recheck.map_or(wait, |earliest| earliest.min(wait)));
            }
        } else {
            *ended += 1;
        }
    }
    pods_by_usage
}

fn sum(
    family: Family,
    name: &str,
    scopes: &[Scope],
    content: &Content,
    pods_by_usage: &PodsByUsage<'_>,
    now: Timestamp,
) -> Amount {
    let total = |amounts: &mut dyn Iterator<Item = Amount>| amounts.fold(Amount::ZERO, Amount::plus);
    match family {
        Family::Pods => total(&mut pods_by_usage.iter().map(|(packed, (in_use, ended))| {
            let usage = packed.unpack();
            if !scopes.iter().all(|scope| amounts::is_pod_in_scope(scope, &usage)) {
                return Amount::ZERO;
            }
            let each = |in_use| amounts::of_pod(name, &usage, in_use);
            each(true).times(*in_use).plus(each(false).times(*ended))
        })),
        Family::VolumeClaims => {
            let claims = content.volume_claims.iter().filter_map(|claim| claim.storage.as_deref());
            let in_scope =
                claims.filter(|claim| scopes.iter().all(|scope| amounts::is_volume_claim_in_scope(scope, claim)));
            total(&mut in_scope.map(|claim| amounts::of_volume_claim(name, claim)))
        }
        Family::Services | Family::DeviceClaims if !scopes.is_empty() => Amount::ZERO,
        Family::Services => total(&mut content.services.iter().map(|service| amounts::of_service(name, service))),
        Family::DeviceClaims => total(&mut content.device_claims.iter().map(|(claim, pod)| {
            let usage = pod.as_ref().and_then(|pod| {
                let usage = pod.usage.as_ref()?.unpack();
                amounts::is_in_use(pod, usage.grace, now).then_some(usage)
            });
            amounts::of_device_claim(name, claim, &content.classes, usage.as_ref())
        })),
    }
}

/// Returns `used` of the new status, or `None` if nothing has to be written.
///
/// Resources that could not be counted keep their old amount. The old text of an amount is kept if it means the same
/// amount, or if the new amount is lower and `mode` does not allow that. Upstream: pkg/controller/resourcequota,
/// syncResourceQuota.
pub fn quantities_to_write(quota: &ResourceQuota, used: &NamespaceUsage, mode: CountMode) -> Option<Quantities> {
    let keeps_text = |counted: &Amount, written: &str| {
        let written = Amount::parse(written);
        written == Some(*counted) || mode == CountMode::RaiseOnly && written.is_some_and(|written| written > *counted)
    };
    let before: HashMap<&Str, &Str> = quota.status_used.iter().map(|(name, text)| (name, text)).collect();
    let mut texts = Quantities::new();
    for (name, _) in &quota.hard {
        let text = match (used.amounts.get(name), before.get(name).copied()) {
            (Some(amount), Some(text)) if keeps_text(amount, text) => text.clone(),
            (Some(amount), _) => amount.to_string().into(),
            (None, Some(text)) => text.clone(),
            (None, None) => continue,
        };
        texts.push((name.clone(), text));
    }
    (!equal_quantities(&quota.hard, &quota.status_hard) || !equal_quantities(&texts, &quota.status_used))
        .then_some(texts)
}

/// Returns true if the status has a larger amount of a resource than was counted.
///
/// There are two causes. An object that admission has counted may not be stored yet. Or an object was deleted before
/// the cache contained the status that admission had increased for it: the count after the deletion then found nothing
/// to correct.
pub fn status_exceeds(quota: &ResourceQuota, used: &NamespaceUsage) -> bool {
    // Only resources that the quota limits are counted.
    quota.status_used.iter().any(|(name, text)| {
        let counted = used.amounts.get(name);
        counted.is_some_and(|counted| Amount::parse(text).is_some_and(|written| written > *counted))
    })
}

/// Returns true if both lists have the same resources in the same amounts.
pub fn equal_quantities(a: &Quantities, b: &Quantities) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && quantity::equal(&a.1, &b.1))
}

#[cfg(test)]
mod tests {
    use kinds::schema::{object_meta, resource_quota};
    use kinds::wire::Put;
    use kinds::{Decode, Kind, Sections};
    use runtime::testing::CpuTime;

    use super::*;

    #[test]
    fn quota_with_many_resources_is_written_in_time() {
        let mut object = Vec::new();
        object.put_message(resource_quota::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "many");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let mut quota = ResourceQuota::decode(&context, &object).expect("well-formed");
        let names: Vec<Str> = (0..40_000).map(|number| format!("count/r{number:05}").as_str().into()).collect();
        quota.hard = names.iter().map(|name| (name.clone(), "5".into())).collect();
        quota.status_hard = quota.hard.clone();
        quota.status_used = quota.hard.clone();
        let amounts = names.into_iter().map(|name| (name, Amount::count(1).times(5))).collect();
        let used = NamespaceUsage { amounts, ..NamespaceUsage::default() };
        let started = CpuTime::now();
        assert_eq!(quantities_to_write(&quota, &used, CountMode::Full), None);
        assert!(!status_exceeds(&quota, &used));
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
}
