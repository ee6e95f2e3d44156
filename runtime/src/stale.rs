//! Stale records that a reconcile has read: the newest states of their objects cannot be decoded, so the cache has
//! only older ones.
//!
//! Nothing may be deleted because of a state that is known to be outdated. But it is not known which reads of a
//! reconcile a deletion depends on. So the Writer refuses deletions of a reconcile that has read a stale record, and
//! the key is requeued with backoff. A tenant can make objects that cannot be decoded: a stale record of one namespace
//! does not prevent deletions in another one, even in a reconcile that reads both.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// The first stale record that was read in each namespace, as text. The namespace of cluster-scoped objects is empty.
type Records = BTreeMap<String, String>;

tokio::task_local! {
    static READ: RefCell<Records>;
}

/// Records that the reconcile in this task has read a stale record of a namespace. Does nothing outside of a reconcile.
pub(crate) fn note(namespace: &str, object: impl FnOnce() -> String) {
    // An error means that no reconcile runs in this task.
    let _ = READ.try_with(|read| {
        let mut read = read.borrow_mut();
        if !read.contains_key(namespace) {
            read.insert(namespace.to_owned(), object());
        }
    });
}

/// Returns a stale record that the reconcile in this task has read and because of which it must not delete anything in
/// a namespace: the first one of that namespace, else the first one of a cluster-scoped object. For the deletion of a
/// cluster-scoped object, whose namespace is empty, any record counts.
pub(crate) fn obstacle(namespace: &str) -> Option<String> {
    let find = |read: &Records| match namespace {
        "" => read.values().next().cloned(),
        _ => read.get(namespace).or_else(|| read.get("")).cloned(),
    };
    READ.try_with(|read| find(&read.borrow())).ok().flatten()
}

/// Runs a reconcile, and records the stale records that it reads.
pub(crate) fn noting<F: Future>(reconcile: F) -> impl Future<Output = F::Output> {
    READ.scope(RefCell::default(), reconcile)
}

/// Runs the part of a reconcile that handles one of many objects. Stale records that the rest of the reconcile reads do
/// not prevent the deletions of this part, and those that it reads prevent no deletions of the rest. The part must
/// itself read all records on which its deletions depend.
pub fn separately<F: Future>(part: F) -> impl Future<Output = F::Output> {
    noting(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stale_record_prevents_deletions_in_its_namespace_and_of_cluster_scoped_objects() {
        let obstacles = |notes: &'static [(&str, &str)]| {
            noting(async move {
                notes.iter().for_each(|(namespace, object)| note(namespace, || (*object).to_owned()));
                ["a", "b", ""].map(obstacle)
            })
        };
        let pod = || Some("Pod a/web".to_owned());
        let node = || Some("Node n".to_owned());
        assert_eq!(obstacles(&[]).await, [None, None, None]);
        assert_eq!(obstacles(&[("a", "Pod a/web"), ("a", "Pod a/later")]).await, [pod(), None, pod()]);
        assert_eq!(obstacles(&[("", "Node n")]).await, [node(), node(), node()]);
        assert_eq!(obstacles(&[("a", "Pod a/web"), ("", "Node n")]).await, [pod(), node(), node()]);
        note("a", || unreachable!("no reconcile runs"));
        assert_eq!(obstacle(""), None);
    }

    #[tokio::test]
    async fn separate_part_of_a_reconcile_depends_only_on_records_that_it_reads() {
        noting(async {
            note("", || "Node a".to_owned());
            let of_part = async |object: Option<&str>| {
                separately(async {
                    object.into_iter().for_each(|object| note("", || object.to_owned()));
                    obstacle("ns")
                })
                .await
            };
            assert_eq!(of_part(None).await, None);
            assert_eq!(of_part(Some("Node b")).await.as_deref(), Some("Node b"));
            assert_eq!(obstacle("ns").as_deref(), Some("Node a"));
        })
        .await;
    }
}
