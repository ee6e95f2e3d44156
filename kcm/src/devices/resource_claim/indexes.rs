//! Indexes of pods and PodGroups by the claims and templates that they name.

use kinds::claim_entry::ClaimEntry;
use kinds::{Pod, PodGroup, Str};
use runtime::store::{Index, index_key};

/// Returns the key of all pods, or PodGroups, that name a claim.
pub fn naming_claim(namespace: &str, claim: &str) -> u64 {
    index_key(("claim", namespace, claim))
}

/// Returns the key of all pods, or PodGroups, that name a template.
pub fn naming_template(namespace: &str, template: &str) -> u64 {
    index_key(("template", namespace, template))
}

/// Returns the key of all pods of a PodGroup.
pub fn in_group(namespace: &str, group: &str) -> u64 {
    index_key(("group", namespace, group))
}

/// Emits the key of each name once.
fn emit_each<'a>(names: impl Iterator<Item = &'a Str>, key: impl Fn(&str) -> u64, emit: &mut dyn FnMut(u64)) {
    let mut keys: Vec<u64> = names.map(|name| key(name)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().for_each(emit);
}

fn claims(entries: &[ClaimEntry]) -> impl Iterator<Item = &Str> {
    entries.iter().filter_map(|entry| match entry.resolve() {
        kinds::claim_entry::ResolvedClaim::Shared(name) | kinds::claim_entry::ResolvedClaim::Generated(name) => {
            Some(name)
        }
        _ => None,
    })
}

fn templates(entries: &[ClaimEntry]) -> impl Iterator<Item = &Str> {
    entries.iter().filter_map(|entry| entry.template.as_ref())
}

/// Pods by the claims that their entries resolve to. Look up by [`naming_claim`].
pub const fn pods_by_claim() -> Index<Pod> {
    Index {
        name: "resource-claim",
        keys: |pod, emit| {
            if let Some(devices) = &pod.devices {
                emit_each(claims(&devices.entries), |name| naming_claim(&pod.meta.namespace, name), emit);
            }
        },
    }
}

/// Pods by the templates of their entries. Look up by [`naming_template`].
pub const fn pods_by_template() -> Index<Pod> {
    Index {
        name: "resource-claim-template",
        keys: |pod, emit| {
            if let Some(devices) = &pod.devices {
                emit_each(templates(&devices.entries), |name| naming_template(&pod.meta.namespace, name), emit);
            }
        },
    }
}

/// Pods with claims by their PodGroup. Look up by [`in_group`].
pub const fn pods_by_group() -> Index<Pod> {
    Index {
        name: "resource-claim-group",
        keys: |pod, emit| {
            if let Some(group) = pod.devices.as_ref().and_then(|devices| devices.group.as_ref()) {
                emit(in_group(&pod.meta.namespace, group));
            }
        },
    }
}

/// PodGroups by the claims that their entries resolve to. Look up by [`naming_claim`].
pub const fn groups_by_claim() -> Index<PodGroup> {
    Index {
        name: "resource-claim",
        keys: |group, emit| emit_each(claims(&group.claims), |name| naming_claim(&group.meta.namespace, name), emit),
    }
}

/// PodGroups by the templates of their entries. Look up by [`naming_template`].
pub const fn groups_by_template() -> Index<PodGroup> {
    Index {
        name: "resource-claim-template",
        keys: |group, emit| {
            emit_each(templates(&group.claims), |name| naming_template(&group.meta.namespace, name), emit);
        },
    }
}
