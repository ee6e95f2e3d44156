//! Settings of an endpoint service (AWS PrivateLink) for a Service's load balancer.

use std::collections::BTreeSet;

use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};

/// Annotation: the Service has an endpoint service if it is `true`.
const WANTED: &str = "endpoint-service";
const ACCEPTANCE: &str = "endpoint-service-acceptance-required";
const PRINCIPALS: &str = "endpoint-service-allowed-principals";
const PRIVATE_NAME: &str = "endpoint-service-private-dns-name";

/// A desired endpoint service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointServiceSettings {
    /// Connections of consumers wait until an operator accepts them.
    pub acceptance: bool,
    /// ARNs of principals that may connect, or `*`; if there are none, only the load balancer's account may connect.
    pub principals: BTreeSet<String>,
    /// The name by which consumers may reach the endpoint service in their networks.
    pub private_name: Option<String>,
}

/// Reads the annotations. All options are checked, also those without any effect.
pub(super) fn read(reading: &mut Reading<'_>) -> Option<EndpointServiceSettings> {
    let wanted = reading.boolean(WANTED).unwrap_or(false);
    // The default of AWS, too: no consumer connects by mistake.
    let acceptance = reading.boolean(ACCEPTANCE).unwrap_or(true);
    let principals: BTreeSet<String> = reading.owned(PRINCIPALS).into_iter().collect();
    for principal in principals.iter().filter(|one| *one != "*" && !one.starts_with("arn:")) {
        let fix = "use ARNs of accounts, users or roles with commas between them, or * for all of AWS";
        reading.refuse(PRINCIPALS, principal, fix);
    }
    let private_name = reading.text(PRIVATE_NAME).map(str::to_ascii_lowercase);
    if let Some(name) = private_name.as_deref().filter(|name| !is_dns_name(name)) {
        reading.refuse(PRIVATE_NAME, name, "use a DNS name of a domain that is yours, such as api.example.com");
    }
    if !wanted {
        for option in [ACCEPTANCE, PRINCIPALS, PRIVATE_NAME] {
            if reading.text(option).is_some() {
                let warning = format!("annotation {PREFIX}{option} has no effect without {PREFIX}{WANTED}: \"true\"");
                reading.warnings.push(warning);
            }
        }
        return None;
    }
    Some(EndpointServiceSettings { acceptance, principals, private_name })
}

/// Returns true if a text is a DNS name with several labels; the first one may be `*`.
fn is_dns_name(name: &str) -> bool {
    let label = |label: &str| {
        let fits = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && label.len() <= 63 && fits && !label.starts_with('-') && !label.ends_with('-')
    };
    let rest = name.strip_prefix("*.").unwrap_or(name);
    name.len() <= 253 && rest.contains('.') && rest.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;

    fn settings(annotations: &[(&str, &str)]) -> (Option<EndpointServiceSettings>, Result<(), String>, usize) {
        let spec = samples::spec(annotations);
        let mut reading = Reading::new(&spec);
        let settings = read(&mut reading);
        let result = reading.finish().map_err(|error| error.message);
        (settings, result, reading.warnings.len())
    }

    #[test]
    fn options_are_read_and_checked() {
        let principals = "arn:aws:iam::111122223333:root, *";
        let all =
            [(WANTED, "true"), (ACCEPTANCE, "false"), (PRINCIPALS, principals), (PRIVATE_NAME, "API.example.com")];
        let expected = EndpointServiceSettings {
            acceptance: false,
            principals: ["arn:aws:iam::111122223333:root".to_owned(), "*".to_owned()].into(),
            private_name: Some("api.example.com".into()),
        };
        assert_eq!(settings(&all), (Some(expected), Ok(()), 0));
        let plain = EndpointServiceSettings { acceptance: true, principals: BTreeSet::new(), private_name: None };
        assert_eq!(settings(&[(WANTED, "true")]), (Some(plain), Ok(()), 0));
        assert_eq!(settings(&[]), (None, Ok(()), 0));
        assert_eq!(settings(&all[1..]), (None, Ok(()), 3), "options without an endpoint service");
        for (annotation, value) in [(WANTED, "yes"), (PRINCIPALS, "111122223333"), (PRIVATE_NAME, "api")] {
            let (_, result, _) = settings(&[(WANTED, "true"), (annotation, value)]);
            assert!(result.is_err_and(|error| error.contains(annotation) && error.contains(value)), "{annotation}");
        }
    }

    #[test]
    fn private_names_are_dns_names() {
        for (name, expected) in [
            ("api.example.com", true),
            ("*.api.example.com", true),
            ("localhost", false),
            ("api..com", false),
            ("-api.example.com", false),
            ("a.*.com", false),
            ("", false),
        ] {
            assert_eq!(is_dns_name(name), expected, "{name}");
        }
        assert!(!is_dns_name(&format!("{}.com", "a".repeat(64))));
    }
}
