//! The availability of a pod: its readiness for a minimum time.

use jiff::Timestamp;
use kinds::Pod;

/// Returns true if a pod has been ready for long enough. Upstream: pkg/api/v1/pod, IsPodAvailable.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    let since_ready = now.as_second() - pod.ready_since.0;
    pod.ready && (min_ready_seconds == 0 || !pod.ready_since.is_zero() && since_ready >= i64::from(min_ready_seconds))
}

#[cfg(test)]
mod tests {
    use kinds::schema::{object_meta, pod as fields};
    use kinds::wire::Put;
    use kinds::{Kind, Sections, Time};

    use super::*;
    use crate::protection::decode_once;

    #[test]
    fn pod_is_available_after_min_ready_seconds() {
        const NOW: i64 = 1_000_000;
        let mut object = Vec::new();
        object.put_message(fields::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "pod");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        let mut pod = Pod::decode(&decode_once(Sections::default()), &object).expect("well-formed");
        let now = Timestamp::from_second(NOW).expect("in range");
        for (ready, since, min, expected) in [
            (true, NOW, 0, true),
            (true, 0, 0, true),
            (true, NOW, 1, false),
            (true, NOW - 1, 1, true),
            (true, NOW - 9, 10, false),
            (true, 0, 10, false),
            (false, NOW - 100, 10, false),
        ] {
            pod.ready = ready;
            pod.ready_since = Time(since);
            assert_eq!(is_available(&pod, min, now), expected, "{ready} {since} {min}");
        }
    }
}
