//! The secrets that a pod references, read from the whole pod on demand; records do not contain them.

use crate::wire::schema::{
    azure_file_volume_source, ceph_fs_volume_source, cinder_volume_source, container, csi_volume_source,
    env_from_source, env_var, env_var_source, ephemeral_container, flex_volume_source, iscsi_volume_source,
    local_object_reference, pod, pod_spec, projected_volume_source, rbd_volume_source, scale_io_volume_source,
    secret_env_source, secret_key_selector, secret_projection, secret_volume_source, storageos_volume_source, volume,
    volume_projection, volume_source,
};
use crate::wire::{Field, WireError, fields, find};

const NAME: u32 = local_object_reference::NAME;

/// Paths to secrets in the sources of volumes: field numbers, beginning with that of the source.
const SOURCES: &[&[u32]] = &[
    &[volume_source::SECRET, secret_volume_source::SECRET_NAME],
    &[volume_source::AZURE_FILE, azure_file_volume_source::SECRET_NAME],
    &[volume_source::CEPHFS, ceph_fs_volume_source::SECRET_REF, NAME],
    &[volume_source::CINDER, cinder_volume_source::SECRET_REF, NAME],
    &[volume_source::FLEX_VOLUME, flex_volume_source::SECRET_REF, NAME],
    &[volume_source::RBD, rbd_volume_source::SECRET_REF, NAME],
    &[volume_source::SCALE_IO, scale_io_volume_source::SECRET_REF, NAME],
    &[volume_source::ISCSI, iscsi_volume_source::SECRET_REF, NAME],
    &[volume_source::STORAGEOS, storageos_volume_source::SECRET_REF, NAME],
    &[volume_source::CSI, csi_volume_source::NODE_PUBLISH_SECRET_REF, NAME],
    &[
        volume_source::PROJECTED,
        projected_volume_source::SOURCES,
        volume_projection::SECRET,
        secret_projection::LOCAL_OBJECT_REFERENCE,
        NAME,
    ],
];

/// Calls `found` with the name of each secret that a pod references. `pod` is its message without the envelope.
/// Upstream: pkg/api/v1/pod, VisitPodSecretNames.
///
/// # Errors
/// When the pod is not well-formed.
pub fn visit_secret_names<'a>(pod: &'a [u8], mut found: impl FnMut(&'a str)) -> Result<(), WireError> {
    let mut found_name = |name: &'a [u8]| {
        if let Some(name) = std::str::from_utf8(name).ok().filter(|name| !name.is_empty()) {
            found(name);
        }
    };
    for field in fields(find(pod, pod::SPEC)) {
        let field = field?;
        let inner = field.value.bytes();
        match field.number {
            pod_spec::IMAGE_PULL_SECRETS => found_name(find(inner, NAME)),
            pod_spec::VOLUMES => {
                let source = find(inner, volume::VOLUME_SOURCE);
                SOURCES.iter().try_for_each(|path| visit_path(source, path, &mut found_name))?;
            }
            pod_spec::CONTAINERS | pod_spec::INIT_CONTAINERS => visit_container(inner, &mut found_name)?,
            pod_spec::EPHEMERAL_CONTAINERS => {
                visit_container(find(inner, ephemeral_container::COMMON), &mut found_name)?
            }
            _ => {}
        }
    }
    Ok(())
}

fn visit_container<'a>(message: &'a [u8], found: &mut impl FnMut(&'a [u8])) -> Result<(), WireError> {
    use container::{ENV, ENV_FROM};
    visit_path(
        message,
        &[ENV_FROM, env_from_source::SECRET_REF, secret_env_source::LOCAL_OBJECT_REFERENCE, NAME],
        &mut *found,
    )?;
    let path =
        [ENV, env_var::VALUE_FROM, env_var_source::SECRET_KEY_REF, secret_key_selector::LOCAL_OBJECT_REFERENCE, NAME];
    visit_path(message, &path, found)
}

/// Calls `found` with the values at the end of a path of fields, each of which may be repeated.
fn visit_path<'a>(message: &'a [u8], path: &[u32], found: &mut impl FnMut(&'a [u8])) -> Result<(), WireError> {
    let Some((first, rest)) = path.split_first() else {
        found(message);
        return Ok(());
    };
    for field in fields(message) {
        let Field { number, value, .. } = field?;
        if number == *first {
            visit_path(value.bytes(), rest, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    /// Returns a message with `value` at the end of a path of fields.
    fn nested(path: &[u32], value: &str) -> Vec<u8> {
        path.iter().rev().fold(value.as_bytes().to_vec(), |inner, number| {
            let mut outer = Vec::new();
            outer.put_bytes(*number, &inner);
            outer
        })
    }

    #[test]
    fn every_kind_of_secret_reference_is_found() {
        let spec = |path: &[u32]| [&[pod::SPEC][..], path].concat();
        let container =
            [container::ENV_FROM, env_from_source::SECRET_REF, secret_env_source::LOCAL_OBJECT_REFERENCE, NAME];
        let env = [
            container::ENV,
            env_var::VALUE_FROM,
            env_var_source::SECRET_KEY_REF,
            secret_key_selector::LOCAL_OBJECT_REFERENCE,
            NAME,
        ];
        let mut paths = vec![spec(&[pod_spec::IMAGE_PULL_SECRETS, NAME])];
        for from in [container.to_vec(), env.to_vec()] {
            paths.push(spec(&[&[pod_spec::CONTAINERS][..], &from].concat()));
            paths.push(spec(&[&[pod_spec::INIT_CONTAINERS][..], &from].concat()));
            paths.push(spec(&[&[pod_spec::EPHEMERAL_CONTAINERS, ephemeral_container::COMMON][..], &from].concat()));
        }
        paths
            .extend(SOURCES.iter().map(|path| spec(&[&[pod_spec::VOLUMES, volume::VOLUME_SOURCE][..], path].concat())));
        for path in paths {
            let pod = nested(&path, "wanted");
            let mut seen = Vec::new();
            visit_secret_names(&pod, |name| seen.push(name)).expect("well-formed");
            assert_eq!(seen, ["wanted"], "{path:?}");
        }
        let empty_dir = spec(&[pod_spec::VOLUMES, volume::VOLUME_SOURCE, volume_source::EMPTY_DIR, 1]);
        visit_secret_names(&nested(&empty_dir, "not this"), |name| panic!("{name}")).expect("well-formed");
    }
}
