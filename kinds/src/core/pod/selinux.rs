//! The SELinux labels with which a pod's containers mount its volumes.

use std::collections::{HashMap, HashSet};

use crate::intern::{Interner, Str};
use crate::wire::schema::{
    container, ephemeral_container, pod_security_context, pod_spec, se_linux_options, security_context, volume_mount,
};
use crate::wire::{WireError, fields, find, find_str};

/// The SELinux labels with which a pod's containers mount its volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeLinux {
    /// `spec.securityContext.seLinuxChangePolicy` is `Recursive`: the files of a volume are relabeled one by one.
    pub is_recursive: bool,
    /// Volumes that a container mounts, sorted by name: all attachable ones, and those of the others that have several
    /// labels.
    pub mounts: Box<[SeLinuxMount]>,
}

/// A volume that a container mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeLinuxMount {
    /// Name of the volume.
    pub volume: Str,
    /// Labels of the containers that mount it, without duplicates, as `user:role:type:level`; empty for options without
    /// any value. A container without options has those of the pod; if the pod has none, the container is left out.
    pub labels: Box<[Str]>,
}

impl SeLinux {
    /// Returns the labels of an attachable volume; `None` if no container mounts it.
    pub fn labels(&self, volume: &str) -> Option<&[Str]> {
        let at = self.mounts.binary_search_by(|mount| (*mount.volume).cmp(volume)).ok()?;
        Some(&self.mounts[at].labels)
    }
}

/// Reads the labels of the volumes with these names, and of other volumes that have several labels. The cost is linear
/// in the size of the pod, in which neither volumes nor mounts are limited.
pub(super) fn read(interner: &Interner, spec: &[u8], names: &HashSet<&str>) -> Result<Option<Box<SeLinux>>, WireError> {
    let context = find(spec, pod_spec::SECURITY_CONTEXT);
    let pod_label = label(context, pod_security_context::SE_LINUX_OPTIONS)?;
    let is_recursive = find(context, pod_security_context::SE_LINUX_CHANGE_POLICY) == b"Recursive";
    let mut mounts = Mounts::default();
    for field in fields(spec) {
        let field = field?;
        let container = match field.number {
            pod_spec::CONTAINERS | pod_spec::INIT_CONTAINERS => field.value.bytes(),
            pod_spec::EPHEMERAL_CONTAINERS => find(field.value.bytes(), ephemeral_container::COMMON),
            _ => continue,
        };
        let own = label(find(container, container::SECURITY_CONTEXT), security_context::SE_LINUX_OPTIONS)?;
        let label = own.as_deref().or(pod_label.as_deref());
        for mount in fields(container) {
            let mount = mount?;
            if mount.number != container::VOLUME_MOUNTS {
                continue;
            }
            mounts.add(find_str(mount.value.bytes(), volume_mount::NAME), label);
        }
    }
    mounts.all.retain(|(volume, labels)| labels.len() > 1 || names.contains(volume));
    let mounts = mounts.interned(interner);
    Ok((!mounts.is_empty()).then(|| Box::new(SeLinux { is_recursive, mounts })))
}

/// The labels by volume, both in the order in which they were found.
#[derive(Default)]
struct Mounts<'a> {
    all: Vec<(&'a str, Vec<String>)>,
    positions: HashMap<&'a str, usize>,
    known: HashSet<(usize, String)>,
}

impl<'a> Mounts<'a> {
    fn add(&mut self, volume: &'a str, label: Option<&str>) {
        let at = *self.positions.entry(volume).or_insert_with(|| {
            self.all.push((volume, Vec::new()));
            self.all.len() - 1
        });
        if let Some(label) = label
            && self.known.insert((at, label.to_owned()))
        {
            self.all[at].1.push(label.to_owned());
        }
    }

    fn interned(self, interner: &Interner) -> Box<[SeLinuxMount]> {
        let labels = |labels: Vec<String>| labels.iter().map(|label| interner.str(label)).collect();
        let mounts = self.all.into_iter();
        let mounts = mounts.map(|(volume, all)| SeLinuxMount { volume: interner.str(volume), labels: labels(all) });
        let mut mounts: Box<[SeLinuxMount]> = mounts.collect();
        mounts.sort_unstable_by(|one, other| one.volume.cmp(&other.volume));
        mounts
    }
}

/// Reads the label of a security context; `None` without options.
fn label(context: &[u8], number: u32) -> Result<Option<String>, WireError> {
    let mut label = None;
    for field in fields(context) {
        let field = field?;
        if field.number != number {
            continue;
        }
        let mut parts = [""; 4];
        for part in fields(field.value.bytes()) {
            let part = part?;
            let at = match part.number {
                se_linux_options::USER => 0,
                se_linux_options::ROLE => 1,
                se_linux_options::TYPE => 2,
                se_linux_options::LEVEL => 3,
                _ => continue,
            };
            parts[at] = part.value.str();
        }
        let is_empty = parts.iter().all(|part| part.is_empty());
        label = Some(if is_empty { String::new() } else { parts.join(":") });
    }
    Ok(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    fn options(out: &mut Vec<u8>, number: u32, level: &str) {
        out.put_message(number, |out| {
            if !level.is_empty() {
                out.put_str(se_linux_options::LEVEL, level);
            }
        });
    }

    /// Writes a container that mounts these volumes, with SELinux options of this level if there is one.
    fn put_container(out: &mut Vec<u8>, volumes: &[&str], level: Option<&str>) {
        for volume in volumes {
            out.put_message(container::VOLUME_MOUNTS, |out| out.put_str(volume_mount::NAME, volume));
        }
        if let Some(level) = level {
            out.put_message(container::SECURITY_CONTEXT, |out| {
                options(out, security_context::SE_LINUX_OPTIONS, level);
            });
        }
    }

    fn read(spec: &[u8]) -> Option<Box<SeLinux>> {
        super::read(&Interner::default(), spec, &HashSet::from(["data", "logs"])).expect("well-formed")
    }

    #[test]
    fn labels_of_all_containers_are_collected_by_volume() {
        let mut spec = Vec::new();
        spec.put_message(pod_spec::SECURITY_CONTEXT, |out| {
            options(out, pod_security_context::SE_LINUX_OPTIONS, "s0:c1");
            out.put_str(pod_security_context::SE_LINUX_CHANGE_POLICY, "Recursive");
        });
        spec.put_message(pod_spec::INIT_CONTAINERS, |out| put_container(out, &["data", "tmp"], None));
        spec.put_message(pod_spec::CONTAINERS, |out| put_container(out, &["data", "logs"], Some("s0:c2")));
        spec.put_message(pod_spec::EPHEMERAL_CONTAINERS, |out| {
            out.put_message(ephemeral_container::COMMON, |out| put_container(out, &["logs"], Some("s0:c2")));
        });
        let selinux = read(&spec).expect("two volumes are mounted");
        assert!(selinux.is_recursive);
        let labels = |volume| selinux.labels(volume).map(|labels| labels.iter().map(|one| &**one).collect::<Vec<_>>());
        assert_eq!(labels("data"), Some(vec![":::s0:c1", ":::s0:c2"]));
        assert_eq!(labels("logs"), Some(vec![":::s0:c2"]));
        assert_eq!(labels("tmp"), None);
    }

    #[test]
    fn other_volumes_are_read_only_with_several_labels() {
        let mut spec = Vec::new();
        spec.put_message(pod_spec::CONTAINERS, |out| put_container(out, &["tmp", "cache"], Some("s0:c1")));
        assert_eq!(read(&spec), None);
        spec.put_message(pod_spec::CONTAINERS, |out| put_container(out, &["tmp", "data"], Some("s0:c2")));
        let selinux = read(&spec).expect("volumes are mounted");
        let volumes: Vec<&str> = selinux.mounts.iter().map(|mount| &*mount.volume).collect();
        assert_eq!((volumes, selinux.labels("tmp").map(<[Str]>::len)), (vec!["data", "tmp"], Some(2)));
    }

    #[test]
    fn cost_is_linear_in_the_number_of_mounts() {
        let names: Vec<String> = (0..20_000).map(|number| format!("volume-{number}")).collect();
        let volumes: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut spec = Vec::new();
        spec.put_message(pod_spec::CONTAINERS, |out| put_container(out, &volumes, Some("s0")));
        let started = std::time::Instant::now();
        let wanted = volumes.iter().copied().collect();
        let read = super::read(&Interner::default(), &spec, &wanted).expect("well-formed").expect("mounts");
        assert_eq!(read.mounts.len(), volumes.len());
        // A comparison of all pairs would take half a minute in a debug build.
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "took {:?}", started.elapsed());
    }

    /// Upstream's TestSELinuxOptionsToFileLabel.
    #[test]
    fn label_joins_user_role_type_and_level() {
        let all = [
            (se_linux_options::USER, "user_u"),
            (se_linux_options::ROLE, "role_r"),
            (se_linux_options::TYPE, "type_t"),
            (se_linux_options::LEVEL, "s0:c1,c2"),
        ];
        for (name, parts, expected) in [
            ("all", &all[..], "user_u:role_r:type_t:s0:c1,c2"),
            ("without a level", &all[..3], "user_u:role_r:type_t:"),
            ("only a level", &all[3..], ":::s0:c1,c2"),
            ("type and level", &all[2..], "::type_t:s0:c1,c2"),
            ("nothing", &[], ""),
        ] {
            let mut context = Vec::new();
            context.put_message(security_context::SE_LINUX_OPTIONS, |out| {
                parts.iter().for_each(|(number, text)| out.put_str(*number, text));
            });
            let label = super::label(&context, security_context::SE_LINUX_OPTIONS).expect("well-formed");
            assert_eq!(label.as_deref(), Some(expected), "{name}");
        }
    }

    #[test]
    fn empty_options_give_an_empty_label_and_missing_options_give_none() {
        let mut spec = Vec::new();
        spec.put_message(pod_spec::CONTAINERS, |out| put_container(out, &["data"], Some("")));
        spec.put_message(pod_spec::CONTAINERS, |out| put_container(out, &["logs"], None));
        let selinux = read(&spec).expect("two volumes are mounted");
        assert_eq!(selinux.labels("data"), Some(&["".into()][..]));
        assert_eq!(selinux.labels("logs"), Some(&[][..]));
        assert!(!selinux.is_recursive);
        assert_eq!(read(&[]), None);
    }
}
