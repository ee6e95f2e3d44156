//! Pods from a raw template with a few changed fields: names, labels, annotations, finalizers, hostname, environment.
//!
//! Only the edited fields are changed; the rest of the template is copied unchanged.

use std::collections::HashSet;

use crate::meta::{ObjectKey, OwnerRef};
use crate::template::Template;
use crate::wire::schema::{
    claim_volume_source, container, env_var, env_var_source, object_field_selector, object_meta, pod,
    pod_scheduling_group, pod_spec, volume, volume_source,
};
use crate::wire::{self, Field, Put, WireError, fields, find, map_entry};

/// An environment variable with the value of a field of the pod.
#[derive(Debug, Clone, Copy)]
pub struct FieldEnv<'a> {
    /// Its name; a container that already has a variable with this name keeps it.
    pub name: &'a str,
    /// Path of the pod's field.
    pub path: &'a str,
}

/// The differences between a pod and its template.
#[derive(Debug, Clone, Default)]
pub struct PodEdits<'a> {
    /// Its name, unless it is generated.
    pub name: Option<String>,
    /// Prefix of its generated name.
    pub generate_name: String,
    /// A finalizer, added unless the template has it.
    pub finalizer: Option<&'a str>,
    /// Labels to set.
    pub labels: Vec<(&'a str, String)>,
    /// Annotations to set.
    pub annotations: Vec<(&'a str, String)>,
    /// Its hostname.
    pub hostname: Option<String>,
    /// Its subdomain; an empty one removes the template's.
    pub subdomain: Option<&'a str>,
    /// Volumes and the claims behind them; they replace volumes with the same names.
    pub claims: Vec<(String, String)>,
    /// A variable of all containers and init containers.
    pub env: Option<FieldEnv<'a>>,
    /// Name of its PodGroup; must be `None` if the template names one, which is not checked.
    pub group: Option<&'a str>,
}

/// Returns a `Pod` message made from a template: its labels, annotations and finalizers, one owner, its spec, and the
/// edits.
pub fn pod_from(template: &Template, owner: &ObjectKey, controller: &OwnerRef, edits: &PodEdits<'_>) -> Vec<u8> {
    let mut message = Vec::with_capacity(template.meta.len() + template.spec.len() + 512);
    message.put_message(pod::METADATA, |meta| {
        if let Some(name) = &edits.name {
            meta.put_str(object_meta::NAME, name);
        }
        meta.put_str(object_meta::GENERATE_NAME, &edits.generate_name);
        meta.put_str(object_meta::NAMESPACE, &owner.namespace);
        copy(&template.meta, meta, |field| match field.number {
            object_meta::LABELS => !sets(&edits.labels, field),
            object_meta::ANNOTATIONS => !sets(&edits.annotations, field),
            object_meta::FINALIZERS => Some(field.value.str()) != edits.finalizer,
            _ => false,
        });
        edits.labels.iter().for_each(|(key, value)| meta.put_entry(object_meta::LABELS, key, value));
        edits.annotations.iter().for_each(|(key, value)| meta.put_entry(object_meta::ANNOTATIONS, key, value));
        if let Some(finalizer) = edits.finalizer {
            meta.put_str(object_meta::FINALIZERS, finalizer);
        }
        controller.put(meta, object_meta::OWNER_REFERENCES);
    });
    message.put_message(pod::SPEC, |spec| put_spec(spec, &template.spec, edits));
    message
}

fn put_spec(spec: &mut Vec<u8>, template: &[u8], edits: &PodEdits<'_>) {
    let replaced = volume_names(&edits.claims);
    // Volumes of claims precede the template's own volumes, as in upstream.
    edits.claims.iter().for_each(|(name, claim)| put_claim(spec, name, claim));
    for field in fields(template).flatten() {
        match (field.number, edits.env) {
            (pod_spec::HOSTNAME, _) if edits.hostname.is_some() => {}
            (pod_spec::SUBDOMAIN, _) if edits.subdomain.is_some() => {}
            (pod_spec::VOLUMES, _) if is_among(&replaced, field.value.bytes()) => {}
            (pod_spec::CONTAINERS | pod_spec::INIT_CONTAINERS, Some(env))
                if !has_env(field.value.bytes(), env.name) =>
            {
                spec.put_message(field.number, |container| {
                    container.extend_from_slice(field.value.bytes());
                    put_env(container, env);
                });
            }
            _ => spec.extend_from_slice(field.raw),
        }
    }
    if let Some(hostname) = &edits.hostname {
        spec.put_str(pod_spec::HOSTNAME, hostname);
    }
    if let Some(subdomain) = edits.subdomain.filter(|subdomain| !subdomain.is_empty()) {
        spec.put_str(pod_spec::SUBDOMAIN, subdomain);
    }
    if let Some(group) = edits.group {
        spec.put_message(pod_spec::SCHEDULING_GROUP, |message| {
            message.put_str(pod_scheduling_group::POD_GROUP_NAME, group);
        });
    }
}

/// Returns the names of the volumes of claims, for a search by name: a template may have tens of thousands of volumes.
fn volume_names(claims: &[(String, String)]) -> HashSet<&[u8]> {
    claims.iter().map(|(volume, _)| volume.as_bytes()).collect()
}

fn is_among(names: &HashSet<&[u8]>, message: &[u8]) -> bool {
    names.contains(find(message, volume::NAME))
}

fn put_claim(spec: &mut Vec<u8>, name: &str, claim: &str) {
    spec.put_message(pod_spec::VOLUMES, |message| {
        message.put_str(volume::NAME, name);
        message.put_message(volume::VOLUME_SOURCE, |source| {
            source.put_message(volume_source::PERSISTENT_VOLUME_CLAIM, |source| {
                source.put_str(claim_volume_source::CLAIM_NAME, claim);
            });
        });
    });
}

/// Returns a whole pod (the content of the envelope) with these labels and these volumes of claims, for a PUT.
///
/// # Errors
/// When the pod is not well-formed: a PUT of only the fields before the malformed one would delete the others.
pub fn repaired(object: &[u8], labels: &[(&str, String)], claims: &[(String, String)]) -> Result<Vec<u8>, WireError> {
    let mut repaired = Vec::with_capacity(object.len() + 256);
    for field in fields(object) {
        let field = field?;
        let inner = field.value.bytes();
        let mut edited = Vec::with_capacity(inner.len() + 128);
        match field.number {
            pod::METADATA => {
                wire::copy_fields(inner, &mut edited, |field| match field.number {
                    object_meta::LABELS => !sets(labels, field),
                    object_meta::MANAGED_FIELDS => false,
                    _ => true,
                })?;
                labels.iter().for_each(|(key, value)| edited.put_entry(object_meta::LABELS, key, value));
            }
            pod::SPEC => {
                let replaced = volume_names(claims);
                claims.iter().for_each(|(name, claim)| put_claim(&mut edited, name, claim));
                wire::copy_fields(inner, &mut edited, |field| {
                    field.number != pod_spec::VOLUMES || !is_among(&replaced, field.value.bytes())
                })?;
            }
            _ => {
                repaired.extend_from_slice(field.raw);
                continue;
            }
        }
        repaired.put_bytes(field.number, &edited);
    }
    Ok(repaired)
}

fn has_env(message: &[u8], name: &str) -> bool {
    fields(message)
        .flatten()
        .filter(|field| field.number == container::ENV)
        .any(|field| find(field.value.bytes(), env_var::NAME) == name.as_bytes())
}

fn put_env(container: &mut Vec<u8>, env: FieldEnv<'_>) {
    container.put_message(container::ENV, |variable| {
        variable.put_str(env_var::NAME, env.name);
        variable.put_message(env_var::VALUE_FROM, |source| {
            source.put_message(env_var_source::FIELD_REF, |field| {
                field.put_str(object_field_selector::FIELD_PATH, env.path);
            });
        });
    });
}

fn sets(edited: &[(&str, String)], entry: &Field<'_>) -> bool {
    map_entry(entry.value.bytes()).is_ok_and(|(key, _)| edited.iter().any(|(name, _)| *name == key))
}

fn copy(message: &[u8], out: &mut Vec<u8>, keep: impl FnMut(&Field<'_>) -> bool) {
    // The template was decoded before, so it is well-formed.
    let copied = wire::copy_fields(message, out, keep);
    debug_assert!(copied.is_ok());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::{Decode, Sections};
    use crate::intern::Interner;
    use crate::meta::Uid;
    use crate::wire::schema::pod_template_spec;

    fn template() -> Template {
        let mut message = Vec::new();
        message.put_message(pod_template_spec::METADATA, |meta| {
            meta.put_entry(object_meta::LABELS, "app", "pi");
            meta.put_entry(object_meta::LABELS, "index", "old");
            meta.put_str(object_meta::FINALIZERS, "tracking");
            meta.put_str(object_meta::FINALIZERS, "other");
        });
        message.put_message(pod_template_spec::SPEC, |spec| {
            spec.put_message(pod_spec::CONTAINERS, |container| {
                container.put_str(container::NAME, "with");
                container.put_message(container::ENV, |env| env.put_str(env_var::NAME, "INDEX"));
            });
            spec.put_message(pod_spec::CONTAINERS, |container| container.put_str(container::NAME, "without"));
            spec.put_message(pod_spec::INIT_CONTAINERS, |container| container.put_str(container::NAME, "init"));
            spec.put_str(pod_spec::HOSTNAME, "old");
            spec.put_str(pod_spec::RESTART_POLICY, "Never");
            spec.put_message(pod_spec::VOLUMES, |message| message.put_str(volume::NAME, "tmp"));
        });
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        Template::decode(&context, &message).expect("well-formed")
    }

    fn texts(message: &[u8], number: u32) -> Vec<String> {
        let field = |field: Field<'_>| String::from_utf8_lossy(field.value.bytes()).into_owned();
        fields(message).flatten().filter(|field| field.number == number).map(field).collect()
    }

    fn made(edits: &PodEdits<'_>) -> Vec<u8> {
        let owner = OwnerRef {
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            name: "pi".into(),
            uid: Uid::parse("u"),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        pod_from(&template(), &ObjectKey::new("default", "pi"), &owner, edits)
    }

    #[test]
    fn pod_edits_change_only_their_fields() {
        let env = FieldEnv { name: "INDEX", path: "metadata.labels['index']" };
        let message = made(&PodEdits {
            generate_name: "pi-3-".to_owned(),
            finalizer: Some("tracking"),
            labels: vec![("index", "3".to_owned())],
            annotations: vec![("index", "3".to_owned())],
            hostname: Some("pi-3".to_owned()),
            env: Some(env),
            ..PodEdits::default()
        });
        let meta = find(&message, pod::METADATA);
        assert_eq!(texts(meta, object_meta::GENERATE_NAME), ["pi-3-"]);
        assert_eq!(texts(meta, object_meta::FINALIZERS), ["other", "tracking"]);
        let labels: Vec<_> = fields(meta)
            .flatten()
            .filter(|field| field.number == object_meta::LABELS)
            .map(|f| map_entry(f.value.bytes()))
            .collect();
        assert_eq!(labels, [Ok(("app", "pi")), Ok(("index", "3"))]);
        let spec = find(&message, pod::SPEC);
        assert_eq!(texts(spec, pod_spec::HOSTNAME), ["pi-3"]);
        assert_eq!(texts(spec, pod_spec::RESTART_POLICY), ["Never"]);
        let variables: Vec<usize> = fields(spec)
            .flatten()
            .filter(|field| matches!(field.number, pod_spec::CONTAINERS | pod_spec::INIT_CONTAINERS))
            .map(|field| texts(field.value.bytes(), container::ENV).len())
            .collect();
        assert_eq!(variables, [1, 1, 1]);
        let own = find(find(spec, pod_spec::CONTAINERS), container::ENV);
        let path =
            find(find(find(own, env_var::VALUE_FROM), env_var_source::FIELD_REF), object_field_selector::FIELD_PATH);
        assert_eq!(path, env.path.as_bytes());
    }

    #[test]
    fn volumes_of_claims_replace_volumes_with_the_same_names() {
        let pod = |volumes: &[&str]| {
            let mut message = Vec::new();
            message.put_message(pod::METADATA, |meta| meta.put_entry(object_meta::LABELS, "index", "old"));
            message.put_message(pod::SPEC, |spec| {
                for name in volumes {
                    spec.put_message(pod_spec::VOLUMES, |message| message.put_str(volume::NAME, name));
                }
                spec.put_str(pod_spec::HOSTNAME, "kept");
            });
            message
        };
        let repaired =
            repaired(&pod(&["tmp", "data"]), &[("index", "3".to_owned())], &[("data".to_owned(), "data-3".to_owned())])
                .expect("well-formed");
        assert_eq!(map_entry(find(find(&repaired, pod::METADATA), object_meta::LABELS)), Ok(("index", "3")));
        let spec = find(&repaired, pod::SPEC);
        let volumes: Vec<_> = fields(spec).flatten().filter(|field| field.number == pod_spec::VOLUMES).collect();
        let names: Vec<_> = volumes.iter().map(|field| find(field.value.bytes(), volume::NAME)).collect();
        assert_eq!(names, [&b"data"[..], b"tmp"], "claims come first");
        let source = find(volumes[0].value.bytes(), volume::VOLUME_SOURCE);
        let source = find(source, volume_source::PERSISTENT_VOLUME_CLAIM);
        assert_eq!(find(source, claim_volume_source::CLAIM_NAME), b"data-3");
        assert_eq!(texts(spec, pod_spec::HOSTNAME), ["kept"]);
    }

    #[test]
    fn named_pod_has_its_name_subdomain_and_claims() {
        let message = made(&PodEdits {
            name: Some("pi-3".to_owned()),
            generate_name: "pi-".to_owned(),
            subdomain: Some("names"),
            claims: vec![("data".to_owned(), "data-pi-3".to_owned())],
            ..PodEdits::default()
        });
        assert_eq!(texts(find(&message, pod::METADATA), object_meta::NAME), ["pi-3"]);
        let spec = find(&message, pod::SPEC);
        assert_eq!(texts(spec, pod_spec::SUBDOMAIN), ["names"]);
        let volumes = fields(spec).flatten().filter(|field| field.number == pod_spec::VOLUMES);
        let names: Vec<_> = volumes.map(|field| find(field.value.bytes(), volume::NAME)).collect();
        assert_eq!(names, [&b"data"[..], b"tmp"], "claims come first");
    }

    #[test]
    fn spec_equals_the_templates_without_edits() {
        let message = made(&PodEdits { generate_name: "pi-".to_owned(), ..PodEdits::default() });
        assert_eq!(find(&message, pod::SPEC), &*template().spec);
    }
}
