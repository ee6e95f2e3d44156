//! Conditions of a status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Sets a condition. If one of its type has the same status already, that one's time of transition stays
/// (apimachinery, api/meta, SetStatusCondition), so that a status that says nothing new is equal to the old one.
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
