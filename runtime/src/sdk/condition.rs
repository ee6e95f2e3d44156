//! Conditions of a status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Sets a condition. If the condition of this type has the same status already, its transition time is kept, so that a
/// reconcile that changes nothing writes nothing. Upstream: apimachinery, api/meta, SetStatusCondition.
pub fn set_condition(conditions: &mut Vec<Condition>, mut condition: Condition) {
    match conditions.iter_mut().find(|known| known.type_ == condition.type_) {
        Some(known) => {
            if known.status == condition.status {
                condition.last_transition_time = known.last_transition_time.clone();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}
