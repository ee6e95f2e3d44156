//! Tests of decoding an autoscaler, and of writing its status.

use super::*;
use crate::decode::Sections;
use crate::value::time::Time;
use crate::wire::schema::{
    container_resource_metric_source, horizontal_pod_autoscaler_behavior, horizontal_pod_autoscaler_status as status,
    hpa_scaling_policy, hpa_scaling_rules, label_selector, metric_identifier, metric_spec, metric_target, object_meta,
    object_metric_source, quantity, resource_metric_source,
};

fn put_quantity(out: &mut Vec<u8>, number: u32, text: &str) {
    out.put_message(number, |message| message.put_str(quantity::STRING, text));
}

fn object() -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(object::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        meta.put_str(object_meta::MANAGED_FIELDS, "large");
    });
    object.put_message(object::SPEC, |spec| {
        spec.put_message(spec::SCALE_TARGET_REF, |target| {
            target.put_str(cross_version_object_reference::KIND, "Deployment")
        });
        spec.put_int(spec::MIN_REPLICAS, 2);
        spec.put_int(spec::MAX_REPLICAS, 9);
        spec.put_message(spec::METRICS, |metric| {
            metric.put_str(metric_spec::TYPE, "ContainerResource");
            metric.put_message(metric_spec::CONTAINER_RESOURCE, |source| {
                source.put_str(container_resource_metric_source::NAME, "memory");
                source.put_str(container_resource_metric_source::CONTAINER, "main");
                source.put_message(resource_metric_source::TARGET, |target| {
                    target.put_int(metric_target::AVERAGE_UTILIZATION, 60);
                });
            });
        });
        spec.put_message(spec::METRICS, |metric| {
            metric.put_str(metric_spec::TYPE, "Object");
            metric.put_message(metric_spec::OBJECT, |source| {
                source.put_message(object_metric_source::DESCRIBED_OBJECT, |object| {
                    object.put_str(cross_version_object_reference::NAME, "main")
                });
                source.put_message(object_metric_source::METRIC, |metric| {
                    metric.put_str(metric_identifier::NAME, "hits");
                    metric.put_message(metric_identifier::SELECTOR, |selector| {
                        selector.put_entry(label_selector::MATCH_LABELS, "verb", "get");
                    });
                });
                source.put_message(object_metric_source::TARGET, |target| {
                    put_quantity(target, metric_target::VALUE, "1500m");
                });
            });
        });
        spec.put_message(spec::BEHAVIOR, |behavior| {
            behavior.put_message(horizontal_pod_autoscaler_behavior::SCALE_UP, |rules| {
                rules.put_str(hpa_scaling_rules::SELECT_POLICY, "Min");
                put_quantity(rules, hpa_scaling_rules::TOLERANCE, "50m");
                rules.put_message(hpa_scaling_rules::POLICIES, |policy| {
                    policy.put_str(hpa_scaling_policy::TYPE, "Percent");
                    policy.put_int(hpa_scaling_policy::VALUE, 10);
                    policy.put_int(hpa_scaling_policy::PERIOD_SECONDS, 60);
                });
            });
        });
    });
    object.put_message(object::STATUS, |status| {
        status.put_int(status::CURRENT_REPLICAS, 3);
        status.put_str(99, "unknown");
    });
    object
}

fn decode(object: &[u8]) -> HorizontalPodAutoscaler {
    let context = Decode { interner: Arc::default(), sections: Sections::default() };
    HorizontalPodAutoscaler::decode(&context, object).expect("well-formed")
}

#[test]
fn spec_is_decoded() {
    let read = decode(&object());
    assert_eq!((&*read.target.kind, read.min_replicas, read.max_replicas), ("Deployment", Some(2), 9));
    let [memory, hits] = &*read.metrics else { panic!("{:?}", read.metrics) };
    assert_eq!(memory.source, Source::ContainerResource { name: "memory".into(), container: "main".into() });
    assert_eq!(memory.target.average_utilization, Some(60));
    let Source::Object { described, metric } = &hits.source else { panic!("{hits:?}") };
    assert_eq!((&*described.name, &*metric.name, hits.target.value), ("main", "hits", Some(1500)));
    assert_eq!(
        metric.selector_text(),
        "&LabelSelector{MatchLabels:map[string]string{verb: get,},MatchExpressions:[]LabelSelectorRequirement{},}"
    );
    let behavior = read.behavior.expect("it is present");
    assert_eq!((behavior.up.select, behavior.up.tolerance, behavior.up.window), (Select::Min, Some(0.05), Some(0)));
    assert_eq!(*behavior.up.policies, [Policy { percent: true, value: 10, period: 60 }]);
    assert_eq!(behavior.down, Behavior::default().down);
}

#[test]
fn status_round_trips() {
    let read = decode(&object());
    let mut status = read.status.clone();
    status.observed_generation = Some(4);
    status.last_scale = Some(Time(9));
    status.desired_replicas = 5;
    status.current_metrics = read
        .metrics
        .iter()
        .map(|metric| MetricStatus {
            source: metric.source.clone(),
            current: Current { value: Some(7), average_value: Some(2_048_000), average_utilization: Some(70) },
        })
        .chain([MetricStatus::unknown()])
        .collect();
    status.conditions.push(AutoscalerCondition {
        kind: "AbleToScale".into(),
        status: "True".into(),
        reason: "ReadyForNewScale".into(),
        message: "m".into(),
        last_transition: Time(3),
        observed_generation: None,
    });
    let written = read.status_update(&status);
    assert_eq!(decode(&written).status, status);
    assert_eq!(find(find(&written, object::STATUS), 99), b"unknown");
    assert!(find(find(&written, object::METADATA), object_meta::MANAGED_FIELDS).is_empty());
    let contains = |text: &[u8]| written.windows(text.len()).any(|bytes| bytes == text);
    assert!(contains(b"2Ki") && contains(b"2048"), "memory in powers of 1024, other amounts in powers of 1000");
}
