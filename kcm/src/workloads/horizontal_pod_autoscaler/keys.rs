//! Maps changes of autoscalers to their keys.

use std::sync::Arc;

use kinds::HorizontalPodAutoscaler;
use kinds::meta::ObjectKey;
use runtime::queue::Queue;
use runtime::store::{Change, Store};

/// Enqueues the autoscalers with a relevant change (see [`relevant_key`]). `generation` is the gate HPAGeneration.
pub fn subscribe(autoscalers: &Arc<Store<HorizontalPodAutoscaler>>, queue: &Arc<Queue<ObjectKey>>, generation: bool) {
    let queue = queue.clone();
    autoscalers.subscribe(move |change| {
        if let Some(key) = relevant_key(change, generation) {
            queue.add(key);
        }
    });
}

/// Returns the key of an autoscaler that was created, deleted or replaced or, with `generation`, has another spec. Any
/// other change waits for the next periodic sync.
pub fn relevant_key(change: &Change<'_, HorizontalPodAutoscaler>, generation: bool) -> Option<ObjectKey> {
    let object = change.new.or(change.old)?;
    let is_immediate = match (change.old, change.new) {
        (Some(old), Some(new)) => {
            let edited = generation && old.meta.generation != new.meta.generation;
            edited || old.meta.uid != new.meta.uid
        }
        _ => true,
    };
    is_immediate.then(|| object.meta.key())
}
