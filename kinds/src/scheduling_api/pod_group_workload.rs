//! Workload, which contains templates of PodGroups: only the reference to the object that it belongs to.

use crate::wire::find;
use crate::wire::schema::{typed_local_object_reference as reference, workload, workload_spec};

/// The reference to the object that a Workload belongs to, in its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerRef {
    /// API group; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
}

/// Returns `spec.controllerRef` of a Workload, if it is set.
pub fn controller_ref(object: &[u8]) -> Option<ControllerRef> {
    let message = find(find(object, workload::SPEC), workload_spec::CONTROLLER_REF);
    let text = |field| String::from_utf8_lossy(find(message, field)).into_owned();
    let found =
        ControllerRef { group: text(reference::API_GROUP), kind: text(reference::KIND), name: text(reference::NAME) };
    (!message.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    #[test]
    fn reference_of_a_workload_is_optional() {
        let mut object = Vec::new();
        object.put_message(workload::SPEC, |spec| {
            spec.put_message(workload_spec::CONTROLLER_REF, |message| {
                message.put_str(reference::KIND, "Pod");
                message.put_str(reference::NAME, "p");
            });
        });
        let expected = ControllerRef { group: String::new(), kind: "Pod".to_owned(), name: "p".to_owned() };
        assert_eq!(controller_ref(&object), Some(expected));
        assert_eq!(controller_ref(&[]), None);
    }
}
