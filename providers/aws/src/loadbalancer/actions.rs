//! Forward actions: a listener's traffic spread by weight over the Service's own target group and others that are there
//! already (Load Balancer Controller: `buildActionConfigViaAnnotation`).

use serde_json::Value;

/// Target groups of one listener at most, the own one included.
const MOST: usize = 5;
/// The greatest weight.
const HEAVIEST: i64 = 999;

/// How a listener's traffic is spread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spread {
    /// The weight of the own target group.
    pub own: i32,
    /// Other target groups by ARN, with their weights.
    pub others: Vec<(String, i32)>,
    /// A client stays with its target group.
    pub sticky: bool,
}

/// Reads an annotation's value.
///
/// # Errors
/// What is wrong, as what to write instead.
pub(crate) fn parse(text: &str) -> Result<Spread, String> {
    let action: Value = serde_json::from_str(text).map_err(|error| format!("use JSON: {error}"))?;
    if action["type"] != "forward" {
        return Err("use type forward, the only one that a Network Load Balancer has".into());
    }
    let config = &action["forwardConfig"];
    let groups = config["targetGroups"].as_array().map(Vec::as_slice).unwrap_or_default();
    if groups.len() >= MOST {
        return Err(format!("use at most {} target groups beside the Service's own", MOST - 1));
    }
    let mut others = Vec::new();
    for group in groups {
        let arn = group["targetGroupARN"].as_str().filter(|arn| arn.starts_with("arn:"));
        let Some(arn) = arn.filter(|_| group["serviceName"].is_null()) else {
            return Err("name each of targetGroups by targetGroupARN: target groups for other Services by \
                        serviceName are not made here"
                .into());
        };
        others.push((arn.to_owned(), weight(&group["weight"], groups.len() == 1)?));
    }
    let own = weight(&config["baseServiceWeight"], true)?;
    if own + others.iter().map(|(_, weight)| weight).sum::<i32>() == 0 {
        return Err("give one of the target groups a weight above 0".into());
    }
    let sticky = config["targetGroupStickinessConfig"]["enabled"] == true;
    Ok(Spread { own, others, sticky })
}

/// A weight; 1 where it may be left out, as AWS takes it.
fn weight(value: &Value, optional: bool) -> Result<i32, String> {
    let number = match value {
        Value::Null if optional => Some(1),
        value => value.as_i64().filter(|number| (0..=HEAVIEST).contains(number)),
    };
    let number = number.and_then(|number| i32::try_from(number).ok());
    number.ok_or_else(|| format!("use weights from 0 to {HEAVIEST}, one for each of several targetGroups"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_read_as_upstream_reads_them() {
        let spread = |own, others: &[(&str, i32)], sticky| Spread {
            own,
            others: others.iter().map(|(arn, weight)| ((*arn).to_owned(), *weight)).collect(),
            sticky,
        };
        for (text, expected) in [
            (r#"{"type": "forward"}"#, Ok(spread(1, &[], false))),
            (
                r#"{"type": "forward", "forwardConfig": {"baseServiceWeight": 9, "targetGroups":
                    [{"targetGroupARN": "arn:a", "weight": 1}], "targetGroupStickinessConfig": {"enabled": true}}}"#,
                Ok(spread(9, &[("arn:a", 1)], true)),
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups": [{"targetGroupARN": "arn:a"}]}}"#,
                Ok(spread(1, &[("arn:a", 1)], false)),
            ),
            ("{", Err("use JSON")),
            (r#"{"type": "redirect"}"#, Err("use type forward")),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups": [{"serviceName": "b", "servicePort": 80}]}}"#,
                Err("name each of targetGroups by targetGroupARN"),
            ),
            (
                r#"{"type": "forward", "forwardConfig": {"targetGroups":
                    [{"targetGroupARN": "arn:a"}, {"targetGroupARN": "arn:b"}]}}"#,
                Err("use weights from 0 to 999"),
            ),
            (r#"{"type": "forward", "forwardConfig": {"baseServiceWeight": 1000}}"#, Err("use weights from 0 to 999")),
            (
                r#"{"type": "forward", "forwardConfig": {"baseServiceWeight": 0, "targetGroups":
                    [{"targetGroupARN": "arn:a", "weight": 0}]}}"#,
                Err("give one of the target groups a weight above 0"),
            ),
        ] {
            match (parse(text), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{text}: {found}"),
                (found, expected) => panic!("{text} gives {found:?}, not {expected:?}"),
            }
        }
    }
}
