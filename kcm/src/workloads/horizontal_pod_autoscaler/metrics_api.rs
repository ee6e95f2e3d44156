//! The metrics APIs: paths of metrics, and values in responses. Upstream: k8s.io/metrics.

use std::time::Duration;

use kinds::selector::Selector;
use kinds::{Time, quantity};
use runtime::write::ReadPath;
use serde_json::Value;

use super::replicas::{Sample, Samples};

/// API group of custom metrics.
pub const CUSTOM: &str = "custom.metrics.k8s.io";

/// The measurement window of a custom metric whose response has none. Upstream: pkg/controller/podautoscaler/metrics.
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);

/// A request for a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricRequest {
    /// Path and query.
    pub path: ReadPath,
    /// The requested resource in error messages: with its group, and with the object's name if there is one.
    pub what: String,
}

/// Returns the path of a metric in a namespace. Selectors that are empty are left out of the query.
fn path(
    (group, version): (&str, &str),
    namespace: &str,
    place: &[&str],
    selectors: &[(&str, &Selector)],
) -> Result<ReadPath, String> {
    let segments = [&["apis", group, version, "namespaces", namespace], place].concat();
    let path = ReadPath::new(&segments).map_err(|error| error.to_string())?;
    let selectors = selectors.iter().filter_map(|(name, selector)| Some((name, selector.query()?)));
    let selectors = selectors.filter(|(_, text)| !text.is_empty());
    Ok(selectors.fold(path, |path, (name, text)| path.with_parameter(name, &text)))
}

/// All functions fail if a name in the autoscaler cannot be part of a path, such as `..`.
impl MetricRequest {
    /// Returns the request for the resource usage of pods.
    pub fn resources(namespace: &str, pods: &Selector) -> Result<Self, String> {
        let path = path(("metrics.k8s.io", "v1beta1"), namespace, &["pods"], &[("labelSelector", pods)])?;
        Ok(Self { path, what: "pods.metrics.k8s.io".to_owned() })
    }

    /// Returns the request for a metric of pods.
    pub fn pods(version: &str, namespace: &str, pods: &Selector, metric: &str, of: &Selector) -> Result<Self, String> {
        let selectors = [("labelSelector", pods), ("metricLabelSelector", of)];
        let path = path((CUSTOM, version), namespace, &["pods", "*", metric], &selectors)?;
        Ok(Self { path, what: format!("pods.{CUSTOM} *") })
    }

    /// Returns the request for a metric of an object, or of the namespace itself if `object` is `None`.
    pub fn object(
        version: &str,
        namespace: &str,
        object: Option<(&str, &str)>,
        metric: &str,
        of: &Selector,
    ) -> Result<Self, String> {
        let request = |place: &[&str], what| {
            let path = path((CUSTOM, version), namespace, place, &[("metricLabelSelector", of)])?;
            Ok(Self { path, what })
        };
        match object {
            Some((resource, name)) => request(&[resource, name, metric], format!("{resource}.{CUSTOM} {name}")),
            None => request(&["metrics", metric], format!("metrics.{CUSTOM} {metric}")),
        }
    }

    /// Returns the request for an external metric.
    pub fn external(namespace: &str, metric: &str, of: &Selector) -> Result<Self, String> {
        let api = ("external.metrics.k8s.io", "v1beta1");
        let path = path(api, namespace, &[metric], &[("labelSelector", of)])?;
        Ok(Self { path, what: format!("{metric}.external.metrics.k8s.io") })
    }
}

/// Returns the version of the custom metrics API to use: the first registered one that is known. `registered` begins
/// with the preferred one. Upstream: k8s.io/metrics/pkg/client/custom_metrics, PreferredVersion.
///
/// # Errors
/// When no known version is registered.
pub fn custom_version(registered: &[String]) -> Result<&str, String> {
    if registered.is_empty() {
        return Err(format!("no custom metrics API ({CUSTOM}) registered"));
    }
    let known = registered.iter().find(|version| matches!(version.as_str(), "v1beta1" | "v1beta2"));
    known.map(String::as_str).ok_or_else(|| "no known available metric versions found".to_owned())
}

fn items(response: &Value) -> &[Value] {
    response["items"].as_array().map_or(&[], Vec::as_slice)
}

fn amount(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => quantity::thousandths(text),
        Value::Number(number) => quantity::thousandths(&number.to_string()),
        _ => None,
    }
}

fn time(item: &Value) -> Time {
    let read = item["timestamp"].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    read.map_or(Time::default(), |time| Time(time.as_second()))
}

/// Returns the usage of a resource by pods, or by one container of each. A pod with a missing value is left out.
///
/// # Errors
/// When the response has no items.
pub fn resource_samples(response: &Value, resource: &str, container: &str) -> Result<Samples, String> {
    if items(response).is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    let sample = |item: &Value| {
        let containers = item["containers"].as_array().map_or(&[][..], Vec::as_slice);
        let used = |of: &Value| amount(&of["usage"][resource]);
        let value = if container.is_empty() {
            let each: Option<Vec<i64>> = containers.iter().map(used).collect();
            each.filter(|each| !each.is_empty())?.into_iter().fold(0i64, i64::saturating_add)
        } else {
            used(containers.iter().find(|of| of["name"] == container)?)?
        };
        let window = item["window"].as_str().and_then(component::flags::value::parse_duration);
        let window = Duration::from_nanos(window.and_then(|nanos| u64::try_from(nanos).ok()).unwrap_or(0));
        Some((item["metadata"]["name"].as_str()?.to_owned(), Sample { value, time: time(item), window }))
    };
    Ok(items(response).iter().filter_map(sample).collect())
}

/// Returns the samples of a metric of pods. A pod without a valid value is left out.
///
/// # Errors
/// When the response has no items.
pub fn pod_samples(response: &Value) -> Result<Samples, String> {
    if items(response).is_empty() {
        return Err("no metrics returned from custom metrics API".to_owned());
    }
    let sample = |item: &Value| {
        let window = item["windowSeconds"].as_u64().or(item["window"].as_u64());
        let window = window.map_or(DEFAULT_WINDOW, Duration::from_secs);
        let value = amount(&item["value"])?;
        Some((item["describedObject"]["name"].as_str()?.to_owned(), Sample { value, time: time(item), window }))
    };
    Ok(items(response).iter().filter_map(sample).collect())
}

/// Returns the value of a metric of one object, in thousandths.
///
/// # Errors
/// When the response does not have exactly one item, or its value is not a quantity.
pub fn object_value(response: &Value) -> Result<i64, String> {
    match items(response) {
        [item] => amount(&item["value"]).ok_or_else(|| format!("value {} is not a quantity", item["value"])),
        items => {
            Err(format!("the custom metrics API server returned {} results when we asked for exactly one", items.len()))
        }
    }
}

/// Returns the values of an external metric, in thousandths.
///
/// # Errors
/// When the response has no items, or a value is not a quantity.
pub fn external_values(response: &Value) -> Result<Vec<i64>, String> {
    if items(response).is_empty() {
        return Err("no metrics returned from external metrics API".to_owned());
    }
    let value =
        |item: &Value| amount(&item["value"]).ok_or_else(|| format!("value {} is not a quantity", item["value"]));
    items(response).iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use kinds::Interner;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn selector(text: &str) -> Selector {
        Selector::parse(&Interner::default(), text).expect("well-formed")
    }

    /// Adapters parse the selectors again: KEDA accepts equalities only, and prometheus-adapter matches a set as a
    /// regular expression.
    #[test]
    fn metric_request_has_upstreams_query() {
        let labels = Selector::of_labels(&Interner::default(), [("scaledobject.keda.sh/name", "x")]);
        let (pods, of) = (selector("tier in (a),app=web"), selector("version=1.2"));
        let rows = [
            (
                MetricRequest::resources("ns", &pods),
                "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=app%3Dweb%2Ctier%20in%20%28a%29",
            ),
            (
                MetricRequest::pods("v1beta2", "ns", &pods, "rate", &of),
                "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/pods/*/rate\
                 ?labelSelector=app%3Dweb%2Ctier%20in%20%28a%29&metricLabelSelector=version%3D1.2",
            ),
            (
                MetricRequest::object("v1beta2", "ns", Some(("ingresses.networking.k8s.io", "main")), "rate", &of),
                "/apis/custom.metrics.k8s.io/v1beta2/namespaces/ns/ingresses.networking.k8s.io/main/rate\
                 ?metricLabelSelector=version%3D1.2",
            ),
            (
                MetricRequest::external("ns", "s0-queue", &labels),
                "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/s0-queue\
                 ?labelSelector=scaledobject.keda.sh%2Fname%3Dx",
            ),
        ];
        for (request, path) in rows {
            assert_eq!(request.expect(path).path.as_str(), path);
        }
    }

    #[test]
    fn metric_request_stays_in_its_namespace() {
        let all = selector("");
        for name in ["", ".", "..", "../../../../secrets", "a/b"] {
            assert!(MetricRequest::pods("v1beta2", "ns", &all, name, &all).is_err(), "{name:?}");
            assert!(MetricRequest::object("v1beta2", "ns", Some(("pods", name)), "rate", &all).is_err(), "{name:?}");
            assert!(MetricRequest::object("v1beta2", "ns", None, name, &all).is_err(), "{name:?}");
            assert!(MetricRequest::external("ns", name, &all).is_err(), "{name:?}");
        }
        let odd = MetricRequest::external("ns", "a?watch=true", &all).expect("it is escaped");
        assert!(odd.path.as_str().ends_with("/a%3Fwatch%3Dtrue"), "{:?}", odd.path);
    }

    /// Parts of responses: quantities, times and windows that are valid, almost valid, or of another type.
    fn part() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            "[-+]?[0-9]{0,20}(\\.[0-9]{0,20})?(n|m|k|Ki|E|e[0-9]{1,6})?",
            "[0-9]{4}-[0-9]{2}-[0-9]{2}T00:00:00Z",
            "[0-9]{1,20}(h|m|s|ms)",
            any::<String>(),
        ];
        prop_oneof![
            4 => text.prop_map(Value::from),
            1 => any::<u64>().prop_map(Value::from),
            1 => any::<f64>().prop_map(Value::from),
            1 => Just(Value::Null),
            1 => Just(json!([{"name": "c", "usage": {"cpu": "1"}}])),
        ]
    }

    proptest! {
        #[test]
        fn any_response_of_a_metrics_api_is_read_or_refused(
            parts in proptest::collection::vec((part(), part(), part(), part()), 0..4),
        ) {
            let items: Vec<Value> = parts
                .into_iter()
                .map(|(value, timestamp, window, name)| {
                    json!({
                        "metadata": {"name": name}, "describedObject": {"name": name}, "value": value,
                        "timestamp": timestamp, "window": window, "windowSeconds": window,
                        "containers": [{"name": "c", "usage": {"cpu": value}}, {"usage": {"cpu": window}}],
                    })
                })
                .collect();
            let response = json!({ "items": items });
            for container in ["", "c"] {
                let _ = resource_samples(&response, "cpu", container);
            }
            let _ = (pod_samples(&response), object_value(&response), external_values(&response));
        }
    }
}
