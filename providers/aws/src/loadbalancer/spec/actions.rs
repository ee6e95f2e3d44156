//! Forward actions: a listener's traffic spread by weight over the Service's own target group, target groups of other
//! Services, and existing ones. Upstream: AWS Load Balancer Controller, buildActionConfigViaAnnotation.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::loadbalancer::types::Spread;

/// Maximum number of target groups of one listener, including its own.
pub(crate) const MAX_TARGET_GROUPS: usize = 5;
/// The greatest weight.
const MAX_WEIGHT: i64 = 999;

/// A destination of a part of the traffic, as an annotation names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// An existing target group, by ARN.
    Arn(String),
    /// Another Service in the same namespace.
    Service(ServicePort),
}

/// A port of another Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServicePort {
    pub service: String,
    /// The port's name or number.
    pub port: String,
    /// TLS traffic is decrypted and forwarded as TCP.
    pub decrypt: bool,
}

/// Parses an annotation's value.
///
/// # Errors
/// The fix for the mistake.
pub(crate) fn parse(text: &str) -> Result<Spread<Destination>, String> {
    let action: Value = serde_json::from_str(text).map_err(|error| format!("use JSON: {error}"))?;
    if action["type"] != "forward" {
        return Err("use type forward, the only one that a Network Load Balancer has".into());
    }
    let config = &action["forwardConfig"];
    let groups = config["targetGroups"].as_array().map(Vec::as_slice).unwrap_or_default();
    if groups.len() >= MAX_TARGET_GROUPS {
        return Err(format!("use at most {} target groups besides the Service's own", MAX_TARGET_GROUPS - 1));
    }
    let mut others: Vec<(Destination, i32)> = Vec::new();
    for group in groups {
        let destination = destination(group)?;
        if others.iter().any(|(other, _)| *other == destination) {
            return Err("name each of targetGroups once".into());
        }
        others.push((destination, weight(&group["weight"], groups.len() == 1)?));
    }
    let own = weight(&config["baseServiceWeight"], true)?;
    if own + others.iter().map(|(_, weight)| weight).sum::<i32>() == 0 {
        return Err("give one of the target groups a weight above 0".into());
    }
    let sticky = config["targetGroupStickinessConfig"]["enabled"] == true;
    Ok(Spread { own, others, sticky })
}

/// Returns the Services that an annotation's value names, even if the value has other mistakes.
pub(crate) fn services(text: &str) -> BTreeSet<String> {
    let action: Value = serde_json::from_str(text).unwrap_or_default();
    let groups = action["forwardConfig"]["targetGroups"].as_array().map(Vec::as_slice).unwrap_or_default();
    groups.iter().filter_map(|group| group["serviceName"].as_str()).map(str::to_owned).collect()
}

fn destination(group: &Value) -> Result<Destination, String> {
    match (&group["targetGroupARN"], &group["serviceName"]) {
        (Value::String(arn), Value::Null) if arn.starts_with("arn:") => Ok(Destination::Arn(arn.clone())),
        (Value::Null, Value::String(service)) if !service.is_empty() => {
            let port = match &group["servicePort"] {
                Value::Number(number) => number.as_u64().map(|number| number.to_string()),
                Value::String(name) => Some(name.clone()).filter(|name| !name.is_empty()),
                _ => None,
            };
            let port = port.ok_or_else(|| format!("name a port of {service} as servicePort, by name or number"))?;
            Ok(Destination::Service(ServicePort { service: service.clone(), port, decrypt: group["decrypt"] == true }))
        }
        _ => Err("name each of targetGroups by its targetGroupARN, or else by serviceName and servicePort".into()),
    }
}

/// Parses a weight. If `optional`, a missing weight is 1, as in AWS.
fn weight(value: &Value, optional: bool) -> Result<i32, String> {
    let number = match value {
        Value::Null if optional => Some(1),
        value => value.as_i64().filter(|number| (0..=MAX_WEIGHT).contains(number)),
    };
    let number = number.and_then(|number| i32::try_from(number).ok());
    number.ok_or_else(|| format!("use weights from 0 to {MAX_WEIGHT}, one for each of several targetGroups"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_as_upstream_reads_them() {
        let spread = |own, others: &[(&str, i32)], sticky| Spread {
            own,
            others: others.iter().map(|(arn, weight)| (Destination::Arn((*arn).to_owned()), *weight)).collect(),
            sticky,
        };
        let service =
            |port: &str, decrypt| Destination::Service(ServicePort { service: "b".into(), port: port.into(), decrypt });
        for (text, expected) in [
            (r#"{"type": "forward"}"#, spread(1, &[], false)),
            (
                r#"{"type": "forward", "forwardConfig": {"baseServiceWeight": 9, "targetGroups":
                    [{"targetGroupARN": "arn:a", "weight": 1}], "targetGroupStickinessConfig": {"enabled": true}}}"#,
                spread(9, &[("arn:a", 1)], true),
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups": [{"targetGroupARN": "arn:a"}]}}"#,
                spread(1, &[("arn:a", 1)], false),
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups": [{"serviceName": "b", "servicePort": 80}]}}"#,
                Spread { own: 1, others: vec![(service("80", false), 1)], sticky: false },
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"baseServiceWeight": 0, "targetGroups":
                    [{"serviceName": "b", "servicePort": "web", "decrypt": true, "weight": 7},
                     {"serviceName": "b", "servicePort": "80", "weight": 0}]}}"#,
                Spread { own: 0, others: vec![(service("web", true), 7), (service("80", false), 0)], sticky: false },
            ),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_actions_are_refused_with_the_fix() {
        for (text, fix) in [
            ("{", "use JSON"),
            (r#"{"type": "redirect"}"#, "use type forward"),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups": [{"serviceName": "b"}]}}"#,
                "name a port of b as servicePort",
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups": [{"weight": 1}]}}"#,
                "name each of targetGroups by its targetGroupARN, or else by serviceName",
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups":
                    [{"serviceName": "b", "servicePort": 80, "targetGroupARN": "arn:a"}]}}"#,
                "name each of targetGroups by its targetGroupARN, or else by serviceName",
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups":
                    [{"targetGroupARN": "arn:a", "weight": 1}, {"targetGroupARN": "arn:a", "weight": 2}]}}"#,
                "name each of targetGroups once",
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups":
                    [{"targetGroupARN": "arn:a"}, {"targetGroupARN": "arn:b"}]}}"#,
                "use weights from 0 to 999",
            ),
            (r#"{"type": "forward", "forwardConfig": {"baseServiceWeight": 1000}}"#, "use weights from 0 to 999"),
            (
                r#"{"type": "forward", "forwardConfig": {"baseServiceWeight": 0, "targetGroups":
                    [{"targetGroupARN": "arn:a", "weight": 0}]}}"#,
                "give one of the target groups a weight above 0",
            ),
        ] {
            let found = parse(text).expect_err(text);
            assert!(found.starts_with(fix), "{text}: {found}");
        }
    }

    #[test]
    fn services_are_found_even_where_something_else_is_wrong() {
        let text = r#"{"type": "redirect", "forwardConfig": {"targetGroups":
            [{"serviceName": "b"}, {"targetGroupARN": "arn:a"}, {"serviceName": "c"}, {"serviceName": 1}]}}"#;
        assert_eq!(services(text), ["b".to_owned(), "c".to_owned()].into());
        assert_eq!(services("{"), BTreeSet::new());
    }
}
