//! New pods of a Job: from the template, and in an Indexed Job with a name prefix, a hostname, a label, annotations and
//! an environment variable for the index.

use kinds::job::{COMPLETION_INDEX, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT, TRACKING_FINALIZER};
use kinds::meta::ObjectKey;
use kinds::pod_edit::{FieldEnv, PodEdits, pod_from};
use kinds::template::Template;
use kinds::{Job, Kind};

use super::manage::NewPod;

/// The environment variable with the index of a container's pod.
const INDEX_VARIABLE: FieldEnv<'_> =
    FieldEnv { name: "JOB_COMPLETION_INDEX", path: "metadata.labels['batch.kubernetes.io/job-completion-index']" };

/// Maximum length of the prefix of a generated name, in bytes. Upstream: apiserver/pkg/storage/names,
/// MaxGeneratedNameLength.
const MAX_PREFIX_BYTES: usize = 58;

/// Returns a new pod, encoded as the protobuf message `Pod`. The pod belongs to the PodGroup `group` if there is one.
/// Upstream: pkg/controller/job, manageJob.
pub fn new_pod(job: &Job, key: &ObjectKey, template: &Template, new: NewPod, group: Option<&str>) -> Vec<u8> {
    let mut edits = PodEdits {
        generate_name: format!("{}-", key.name),
        finalizer: Some(TRACKING_FINALIZER),
        group,
        ..PodEdits::default()
    };
    if let Some(index) = new.index {
        edits.generate_name = prefix(&key.name, index);
        edits.hostname = Some(format!("{}-{index}", key.name));
        edits.env = Some(INDEX_VARIABLE);
        edits.labels.push((COMPLETION_INDEX, index.to_string()));
        edits.annotations.push((COMPLETION_INDEX, index.to_string()));
        if let Some((counted, ignored)) = new.failures {
            edits.annotations.push((INDEX_FAILURE_COUNT, counted.to_string()));
            if ignored > 0 {
                edits.annotations.push((INDEX_IGNORED_FAILURE_COUNT, ignored.to_string()));
            }
        }
    }
    pod_from(template, key, &job.controller_ref(), &edits)
}

/// Returns the prefix of the generated name. The Job's name is truncated, so that the prefix contains the whole index.
/// Upstream: pkg/controller/job, podGenerateNameWithIndex.
fn prefix(job: &str, index: i32) -> String {
    let suffix = format!("-{index}-");
    let room = MAX_PREFIX_BYTES - suffix.len();
    format!("{}{suffix}", job.get(..room).unwrap_or(job))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_truncated_before_the_index() {
        for (job, index, expected) in
            [("pi", 3, "pi-3-".to_owned()), (&*"x".repeat(63), 12, format!("{}-12-", "x".repeat(54)))]
        {
            assert_eq!(prefix(job, index), expected);
        }
    }
}
