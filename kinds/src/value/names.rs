//! The syntax of names and labels, as the API server checks it (apimachinery, pkg/util/validation).

/// Maximum length of a DNS label, of a label's value, and of its key without the domain.
const MAX_LABEL_LENGTH: usize = 63;

/// Maximum length of a DNS subdomain, the syntax of most names of objects and of the domains in label keys. The parts
/// of a subdomain have no limit of their own.
const MAX_SUBDOMAIN_LENGTH: usize = 253;

/// Returns true if a text is a DNS label, such as the name of a namespace.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL_LENGTH && is_domain_part(text)
}

/// Returns true if a text is a DNS subdomain, such as the name of a pod.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN_LENGTH && text.split('.').all(is_domain_part)
}

/// Returns true if a text can be the key of a label or a taint: a name, after an optional domain and a slash.
pub fn is_label_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    !name.is_empty() && is_label_value(name) && domain.is_none_or(is_dns_subdomain)
}

/// Returns true if a text can be a label's value: letters, digits, dashes, dots and underscores, with a letter or digit
/// at both ends, or nothing.
pub fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    text.len() <= MAX_LABEL_LENGTH
        && ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte))
}

/// Returns true if a text consists of lower-case letters, digits and dashes, with a letter or digit at both ends.
fn is_domain_part(text: &str) -> bool {
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(is_end)
        && bytes.last().is_some_and(is_end)
        && bytes.iter().all(|byte| is_end(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_api_server() {
        let (long, longer) = ("x".repeat(63), "x".repeat(64));
        // (text, DNS label, DNS subdomain)
        for (text, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b", false, true),
            (&long, true, true),
            (&longer, false, true),
            (&format!("{longer}.b"), false, true),
            (&"x".repeat(253), false, true),
            (&"x".repeat(254), false, false),
            ("", false, false),
            ("a..b", false, false),
            (".a", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("ä", false, false),
            ("a_b", false, false),
        ] {
            assert_eq!((is_dns_label(text), is_dns_subdomain(text)), (label, subdomain), "{text:?}");
        }
    }

    #[test]
    fn labels_follow_the_rules_of_the_api_server() {
        let (long, longer) = ("x".repeat(63), "x".repeat(64));
        // (text, key, value)
        for (text, key, value) in [
            ("team", true, true),
            ("E1.a_b-c", true, true),
            (&long, true, true),
            (&longer, false, false),
            ("", false, true),
            ("-a", false, false),
            ("a.", false, false),
            ("te am", false, false),
            ("a\n", false, false),
            ("ä", false, false),
            ("acme.com/a_b.c-d", true, false),
            (&format!("{longer}.com/{long}"), true, false),
            (&format!("a/{longer}"), false, false),
            ("/a", false, false),
            ("acme.com/", false, false),
            ("acme.com/a/b", false, false),
            ("Acme.com/a", false, false),
            ("acme..com/a", false, false),
        ] {
            assert_eq!((is_label_key(text), is_label_value(text)), (key, value), "{text:?}");
        }
    }
}
