//! Typed reads of annotations; each mistake becomes a sentence with the annotation and its fix.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use providers::{CloudError, ErrorKind, LoadBalancerSpec};

use crate::loadbalancer::spec::actions::{self, Destination};
use crate::loadbalancer::types::Spread;

/// The prefix of all annotations that this provider reads, except [`ACTIONS`].
pub(crate) const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// Maximum number of warnings about one Service.
pub(crate) const MAX_WARNINGS: usize = 32;

/// Maximum product of the bytes of a Service's annotations and its ports: annotations are read for each port. With 50
/// ports, the usual maximum of AWS, annotations may have about 160 KiB.
const MAX_SIZE: usize = 8 << 20;

/// Replaces the annotations of a Service that has too many of them.
static NONE: BTreeMap<String, String> = BTreeMap::new();

/// Forward actions of the Load Balancer Controller, followed by protocol and port.
pub(crate) const ACTIONS: &str = "service.beta.kubernetes.io/actions.";

/// Known annotations, without [`PREFIX`]; one that ends in a dot is followed by a port.
pub(crate) const KNOWN: [&str; 63] = [
    "type",
    "internal",
    "proxy-protocol",
    "access-log-enabled",
    "access-log-emit-interval",
    "access-log-s3-bucket-name",
    "access-log-s3-bucket-prefix",
    "connection-draining-enabled",
    "connection-draining-timeout",
    "connection-idle-timeout",
    "cross-zone-load-balancing-enabled",
    "extra-security-groups",
    "security-groups",
    "ssl-cert",
    "ssl-domains",
    "ssl-ports",
    "ssl-negotiation-policy",
    "backend-protocol",
    "additional-resource-tags",
    "healthcheck-protocol",
    "healthcheck-port",
    "healthcheck-path",
    "healthcheck-interval",
    "healthcheck-timeout",
    "healthcheck-healthy-threshold",
    "healthcheck-unhealthy-threshold",
    "healthcheck-success-codes",
    "target-group-attributes",
    "target-group-attributes.",
    "target-group-arn.",
    "eip-allocations",
    "private-ipv4-addresses",
    "ipv6-addresses",
    "subnets",
    "target-node-labels",
    "nlb-target-type",
    "name",
    "scheme",
    "ip-address-type",
    "enable-prefix-for-ipv6-source-nat",
    "source-nat-ipv6-prefixes",
    "manage-backend-security-group-rules",
    "disable-nlb-sg",
    "security-group-prefix-lists",
    "inbound-sg-rules-on-private-link-traffic",
    "enable-icmp-for-path-mtu-discovery",
    "alpn-policy",
    "proxy-protocol-per-target-group",
    "attributes",
    "listener-attributes.",
    "enable-tcp-udp-listener",
    "quic-enabled-ports",
    "quic-enabled-containers",
    "multi-cluster-target-group",
    "minimum-load-balancer-capacity",
    "replace-classic",
    "application-load-balancer",
    "arn",
    "group",
    "endpoint-service",
    "endpoint-service-acceptance-required",
    "endpoint-service-allowed-principals",
    "endpoint-service-private-dns-name",
];

/// Returns the other Services that forward actions name.
pub(crate) fn forwarded_services(spec: &LoadBalancerSpec) -> BTreeSet<String> {
    let actions = spec.annotations.iter().filter(|(key, _)| key.starts_with(ACTIONS));
    actions.flat_map(|(_, value)| actions::services(value)).collect()
}

/// A Service's annotations and the mistakes found in them.
pub(crate) struct Reading<'a> {
    annotations: &'a BTreeMap<String, String>,
    errors: Vec<String>,
    /// Values that are mistakes unless a Classic Load Balancer serves the Service.
    classic_only: Vec<String>,
    /// Warnings about annotations, fields and values that have no effect, or an unexpected one.
    pub warnings: Vec<String>,
}

impl<'a> Reading<'a> {
    /// Creates a reading with warnings about unknown annotations, at most [`MAX_WARNINGS`]: most of them are
    /// misspelled.
    pub(crate) fn new(spec: &'a LoadBalancerSpec) -> Self {
        let mut reading =
            Self { annotations: &spec.annotations, errors: Vec::new(), classic_only: Vec::new(), warnings: Vec::new() };
        for key in spec.annotations.keys() {
            let Some(suffix) = key.strip_prefix(PREFIX) else { continue };
            let known = |known: &str| known == suffix || (known.ends_with('.') && suffix.starts_with(known));
            if !KNOWN.iter().any(|one| known(one)) {
                if reading.warnings.len() == MAX_WARNINGS {
                    break;
                }
                let similarity = |known: &str| strsim::jaro_winkler(suffix, known);
                let closest = KNOWN.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
                let closest = closest.filter(|closest| similarity(closest) > 0.9);
                let hint = closest.map(|closest| format!("; did you mean {PREFIX}{closest}?")).unwrap_or_default();
                reading.warnings.push(format!("annotation {key} is not known and has no effect{hint}"));
            }
        }
        reading
    }

    /// Refuses annotations that would take too much memory and time for a Service with this number of ports, and
    /// ignores them: one Service must not stop the work for all others.
    pub(crate) fn check_size(&mut self, ports: usize) {
        let own = self.annotations.iter().filter(|(key, _)| key.starts_with(PREFIX) || key.starts_with(ACTIONS));
        let bytes: usize = own.map(|(key, value)| key.len() + value.len()).sum();
        if bytes.saturating_mul(ports) > MAX_SIZE {
            let value = format!("{bytes} bytes for {ports} ports");
            self.refuse_field("metadata.annotations", value, "use fewer ports, or shorter annotations");
            self.annotations = &NONE;
        }
    }

    /// Returns the warnings, at most [`MAX_WARNINGS`] of them: each becomes an event, and a Service can have thousands
    /// of annotations.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.truncate(MAX_WARNINGS);
        warnings
    }

    /// Records a wrong value: its annotation, the value, and the fix.
    pub(crate) fn refuse(&mut self, suffix: &str, value: &str, fix: &str) {
        self.refuse_key(&format!("{PREFIX}{suffix}"), value, fix);
    }

    fn refuse_key(&mut self, key: &str, value: &str, fix: &str) {
        self.errors.push(CloudError::invalid_annotation(key, value, fix).message);
    }

    /// Records a value that only a Classic Load Balancer can have.
    pub(crate) fn refuse_network(&mut self, suffix: &str, value: &str, fix: &str) {
        let error = CloudError::invalid_annotation(&format!("{PREFIX}{suffix}"), value, fix);
        self.classic_only.push(error.message);
    }

    /// Returns the values that only a Classic Load Balancer can have, in one error.
    pub(crate) fn classic_only(&mut self) -> Option<CloudError> {
        let reported = std::mem::take(&mut self.classic_only);
        (!reported.is_empty()).then(|| CloudError::new(ErrorKind::Invalid, "ReadAnnotations", reported.join("; ")))
    }

    /// Returns the spread of a listener's traffic over several target groups, if an annotation sets one.
    pub(crate) fn spread(&mut self, protocol: &str, port: u16) -> Option<Spread<Destination>> {
        let key = format!("{ACTIONS}{protocol}-{port}");
        let value = self.annotations.get(&key)?;
        match actions::parse(value) {
            Ok(spread) => Some(spread),
            Err(fix) => {
                self.refuse_key(&key, value, &fix);
                None
            }
        }
    }

    /// Records a mistake in a listener's forward action: the part, and the fix.
    pub(crate) fn refuse_action(&mut self, protocol: &str, port: u16, what: &str, fix: &str) {
        self.refuse_key(&format!("{ACTIONS}{protocol}-{port}"), what, fix);
    }

    /// Warns about forward actions of listeners that do not exist, which upstream ignores.
    pub(crate) fn warn_of_other_actions(&mut self, listeners: &[String]) {
        for key in self.annotations.keys() {
            let Some(named) = key.strip_prefix(ACTIONS).filter(|named| !listeners.iter().any(|one| one == named))
            else {
                continue;
            };
            let fix = format!("name one of the listeners {} instead of {named}", listeners.join(", "));
            self.warnings.push(format!("annotation {key} has no effect: {fix}"));
        }
    }

    /// Records a wrong value of a field of the Service.
    pub(crate) fn refuse_field(&mut self, field: &str, value: impl std::fmt::Display, fix: &str) {
        self.errors.push(CloudError::invalid_field(field, value, fix).message);
    }

    /// Warns about a value without an effect, and names the fix. It is no error, because upstream ignores such a value.
    pub(crate) fn warn_of_value(&mut self, suffix: &str, value: &str, fix: &str) {
        self.warnings.push(format!("annotation {PREFIX}{suffix} has no effect with the value {value:?}: {fix}"));
    }

    /// Warns about an annotation that has no effect on a Network Load Balancer.
    pub(crate) fn warn_without_effect(&mut self, suffix: &str, instead: &str) {
        if self.text(suffix).is_some() {
            self.warnings
                .push(format!("annotation {PREFIX}{suffix} has no effect on a Network Load Balancer{instead}"));
        }
    }

    /// Returns all mistakes in one error, or `Ok` if there are none.
    pub(crate) fn finish(&mut self) -> Result<(), CloudError> {
        // Settings that several target groups share are read for each of them.
        let mut reported = BTreeSet::new();
        let mut errors = std::mem::take(&mut self.errors);
        errors.retain(|error| reported.insert(error.clone()));
        if errors.is_empty() {
            Ok(())
        } else {
            Err(CloudError::new(ErrorKind::Invalid, "ReadAnnotations", errors.join("; ")))
        }
    }

    /// Returns a value without surrounding blanks; an empty one counts as missing.
    pub(crate) fn text(&self, suffix: &str) -> Option<&'a str> {
        let value = self.annotations.get(&format!("{PREFIX}{suffix}"))?.trim();
        Some(value).filter(|value| !value.is_empty())
    }

    /// Returns a boolean, in any spelling of Go's `strconv.ParseBool`.
    pub(crate) fn boolean(&mut self, suffix: &str) -> Option<bool> {
        let value = self.text(suffix)?;
        match value {
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Some(true),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Some(false),
            _ => {
                self.refuse(suffix, value, "use true or false");
                None
            }
        }
    }

    /// Returns the boolean of `on` or `off`.
    pub(crate) fn switch(&mut self, suffix: &str) -> Option<bool> {
        let value = self.text(suffix)?;
        match value {
            "on" => Some(true),
            "off" => Some(false),
            _ => {
                self.refuse(suffix, value, "use on or off");
                None
            }
        }
    }

    /// Returns a number from `min` to `max`.
    pub(crate) fn number(&mut self, suffix: &str, min: u32, max: u32) -> Option<u32> {
        let value = self.text(suffix)?;
        match value.parse::<u32>() {
            Ok(number) if (min..=max).contains(&number) => Some(number),
            _ => {
                self.refuse(suffix, value, &format!("use a number from {min} to {max}"));
                None
            }
        }
    }

    /// Returns the meaning of a value that must be one of `words`.
    pub(crate) fn choice<T: Copy>(&mut self, suffix: &str, words: &[(&str, T)]) -> Option<T> {
        let value = self.text(suffix)?;
        let found = words.iter().find(|(choice, _)| *choice == value).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let words: Vec<_> = words.iter().map(|(choice, _)| *choice).collect();
            self.refuse(suffix, value, &format!("use {}", words.join(" or ")));
        }
        found
    }

    /// Returns the values of a comma-separated list, without blanks and empty values.
    pub(crate) fn list(&self, suffix: &str) -> Vec<&'a str> {
        let values = self.text(suffix).unwrap_or_default().split(',').map(str::trim);
        values.filter(|value| !value.is_empty()).collect()
    }

    /// Returns the values of a comma-separated list as strings.
    pub(crate) fn owned(&self, suffix: &str) -> Vec<String> {
        self.list(suffix).into_iter().map(str::to_owned).collect()
    }

    /// Returns the values of a comma-separated list, all parsed to one type.
    pub(crate) fn parsed<T: FromStr>(&mut self, suffix: &str, fix: &str) -> Vec<T> {
        let mut parsed = Vec::new();
        for value in self.list(suffix) {
            match value.parse() {
                Ok(value) => parsed.push(value),
                Err(_) => self.refuse(suffix, value, fix),
            }
        }
        parsed
    }

    /// Returns the pairs of a comma-separated list of `key=value`. A comma within a value is escaped as `\,`. If
    /// `allows_missing_values`, a key without a value is allowed, and its value is empty.
    pub(crate) fn pairs(&mut self, suffix: &str, allows_missing_values: bool) -> BTreeMap<String, String> {
        let Some(text) = self.text(suffix) else { return BTreeMap::new() };
        let mut pairs = BTreeMap::new();
        for part in split_pairs(text) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), value.trim()),
                None if allows_missing_values => (part.trim(), ""),
                None => ("", ""),
            };
            if key.is_empty() && !(allows_missing_values && part.trim().is_empty()) {
                self.refuse(suffix, text, "use key=value pairs with commas between them");
                return BTreeMap::new();
            }
            if !key.is_empty() {
                pairs.insert(key.to_owned(), value.to_owned());
            }
        }
        pairs
    }

    /// Returns the remainders of the annotation keys that start with [`PREFIX`] and this suffix.
    pub(crate) fn continued(&self, suffix: &str) -> Vec<&'a str> {
        let start = format!("{PREFIX}{suffix}");
        self.annotations.keys().filter_map(|key| key.strip_prefix(&start)).collect()
    }
}

/// Splits a text at commas that are not escaped by a backslash.
fn split_pairs(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => part.extend(chars.next()),
            ',' => parts.push(std::mem::take(&mut part)),
            c => part.push(c),
        }
    }
    parts.push(part);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;

    #[test]
    fn pairs_are_read_with_escapes() {
        for (text, allows_missing_values, expected) in [
            ("a=b, c = d", false, Some(vec![("a", "b"), ("c", "d")])),
            ("a=b=c", false, Some(vec![("a", "b=c")])),
            (r"a=1\,2,b=3", false, Some(vec![("a", "1,2"), ("b", "3")])),
            ("a,b=c,", true, Some(vec![("a", ""), ("b", "c")])),
            ("a,b=c", false, None),
            ("=x", true, None),
        ] {
            let spec = samples::spec(&[("attributes", text)]);
            let mut reading = Reading::new(&spec);
            let pairs = reading.pairs("attributes", allows_missing_values);
            let result = reading.finish().map(|()| pairs);
            let expected =
                expected.map(|pairs| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
            assert_eq!(result.ok(), expected, "{text}");
        }
    }

    #[test]
    fn every_mistake_is_in_the_error_and_names_its_fix() {
        let spec = samples::spec(&[("scheme", "outside"), ("healthcheck-interval", "x"), ("internal", "perhaps")]);
        let mut reading = Reading::new(&spec);
        assert_eq!(reading.choice("scheme", &[("internal", 1), ("internet-facing", 2)]), None);
        assert_eq!(reading.number("healthcheck-interval", 5, 300), None);
        assert_eq!(reading.boolean("internal"), None);
        let error = reading.finish().unwrap_err();
        assert!(error.is_invalid());
        for part in ["scheme is \"outside\": use internal or internet-facing", "from 5 to 300", "use true or false"] {
            assert!(error.message.contains(part), "{} lacks {part}", error.message);
        }
    }

    #[test]
    fn unknown_annotations_are_warned_about() {
        let spec = samples::spec(&[("healthcheck-intervall", "5"), ("target-group-attributes.80", "a=b")]);
        let reading = Reading::new(&spec);
        assert_eq!(
            reading.warnings,
            [format!(
                "annotation {PREFIX}healthcheck-intervall is not known and has no effect; \
                 did you mean {PREFIX}healthcheck-interval?"
            )]
        );
    }
}
