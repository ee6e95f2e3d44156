//! Bootstrap tokens of joining nodes: validity and expiration. Shared by the signer and the cleaner.
//!
//! Upstream: k8s.io/cluster-bootstrap/util/secrets.

use std::time::Duration;

use jiff::civil::{Date, Time};
use jiff::{SignedDuration, Timestamp};
use kinds::Secret;
use kinds::secret::BootstrapToken;
use runtime::store::{Index, index_key};

/// The namespace of the tokens.
pub const NAMESPACE: &str = "kube-system";

/// Index of the bootstrap tokens. Look up by [`all_tokens`].
pub const TOKENS: Index<Secret> = Index {
    name: "bootstrap-token",
    keys: |secret, emit| {
        if token(secret).is_some() {
            emit(all_tokens());
        }
    },
};

/// Returns the index value of all tokens.
pub fn all_tokens() -> u64 {
    index_key(())
}

/// Returns the token in a secret, if it is a bootstrap token.
pub fn token(secret: &Secret) -> Option<&BootstrapToken> {
    secret.bootstrap_token().filter(|_| &*secret.meta.namespace == NAMESPACE)
}

/// The expiration of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiration {
    /// The token has no expiration.
    Never,
    /// The token has expired, or its expiration cannot be parsed.
    Expired,
    /// The token expires after this time.
    In(Duration),
}

/// Returns the expiration of a token. Upstream: k8s.io/cluster-bootstrap/util/secrets, GetExpiration.
pub fn expiration(token: &BootstrapToken, now: Timestamp) -> Expiration {
    if token.expiration.is_empty() {
        return Expiration::Never;
    }
    let left = since_epoch(&token.expiration).and_then(|end| Duration::try_from(end - now.as_duration()).ok());
    match left.filter(|left| !left.is_zero()) {
        Some(left) => Expiration::In(left),
        None => Expiration::Expired,
    }
}

/// Parses a time as Go's `time.Parse` does with the layout `time.RFC3339`, and returns the time since 1970.
///
/// A token whose time does not parse is deleted as expired, so the rules must be exactly Go's: an hour may have one
/// digit, the fraction may follow a comma and have any length, and an offset may be 24:60. [`Timestamp`] cannot
/// represent the end of the year 9999, which is the expiration of some tokens that are meant to last forever.
fn since_epoch(text: &str) -> Option<SignedDuration> {
    let (date, time) = text.split_once('T')?;
    let date: Date = has_form(date, "0000-00-00").then(|| date.parse().ok()).flatten()?;
    let (hour, time) = time.split_once(':').filter(|(hour, _)| has_form(hour, "0") || has_form(hour, "00"))?;
    let (minute, time) = time.split_once(':').filter(|(minute, _)| has_form(minute, "00"))?;
    let (second, time) = time.split_at_checked(2).filter(|(second, _)| has_form(second, "00"))?;
    let (nanoseconds, zone) = match time.strip_prefix(['.', ',']) {
        Some(fraction) => nanoseconds(fraction)?,
        None => (0, time),
    };
    let time = Time::new(hour.parse().ok()?, minute.parse().ok()?, second.parse().ok()?, nanoseconds).ok()?;
    let local = date.to_datetime(time).duration_since(Date::constant(1970, 1, 1).at(0, 0, 0, 0));
    Some(local - offset(zone)?)
}

/// Splits the digits of a fraction of a second from the text after them. More than nine digits are truncated.
fn nanoseconds(fraction: &str) -> Option<(i32, &str)> {
    let zone = fraction.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let digits = &fraction[..fraction.len() - zone.len()];
    let digits = (!digits.is_empty()).then(|| format!("{:0<9}", &digits[..digits.len().min(9)]))?;
    Some((digits.parse().ok()?, zone))
}

/// Parses the offset from UTC.
fn offset(zone: &str) -> Option<SignedDuration> {
    if zone == "Z" {
        return Some(SignedDuration::ZERO);
    }
    let sign = match zone.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = zone[1..].split_once(':').filter(|_| has_form(&zone[1..], "00:00"))?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours <= 24 && minutes <= 60).then(|| SignedDuration::from_mins(sign * (hours * 60 + minutes)))
}

/// Returns true if a text equals a form in which each `0` stands for one digit.
fn has_form(text: &str, form: &str) -> bool {
    let fits = |(byte, model): (u8, u8)| if model == b'0' { byte.is_ascii_digit() } else { byte == model };
    text.len() == form.len() && text.bytes().zip(form.bytes()).all(fits)
}

/// Returns the id and secret of a token that may sign. Upstream: pkg/controller/bootstrap, validateSecretForSigning.
pub fn signing_credentials(secret: &Secret, now: Timestamp) -> Option<(&str, &[u8])> {
    let token = token(secret)?;
    let id_in_name = secret.meta.name.strip_prefix("bootstrap-token-").filter(|id| is_id(id))?;
    let is_valid = *id_in_name == *token.id
        && !token.secret.expose().is_empty()
        && token.signs
        && expiration(token, now) != Expiration::Expired;
    is_valid.then(|| (&*token.id, token.secret.expose()))
}

fn is_id(text: &str) -> bool {
    text.len() == 6 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use kinds::schema::{object_meta, secret as f};
    use kinds::splice::put_data;
    use kinds::wire::Put;
    use kinds::{Decode, Kind, Sections};

    use super::*;

    /// Returns a bootstrap token's secret in `kube-system`.
    pub fn secret(name: &str, data: &[(&str, &str)]) -> Arc<Secret> {
        in_namespace(NAMESPACE, name, data)
    }

    fn in_namespace(namespace: &str, name: &str, data: &[(&str, &str)]) -> Arc<Secret> {
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, namespace);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        data.iter().for_each(|(key, value)| put_data(&mut object, f::DATA, key, value.as_bytes()));
        object.put_str(f::TYPE, kinds::secret::BOOTSTRAP_TOKEN);
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        Arc::new(Secret::decode(&context, &object).expect("a secret"))
    }

    /// Returns the data of a valid token, with other values for some keys.
    pub fn data<'a>(id: &'a str, other: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut data = vec![("token-id", id), ("token-secret", "s3cr3t"), ("usage-bootstrap-signing", "true")];
        data.retain(|(key, _)| other.iter().all(|(set, _)| set != key));
        data.extend(other);
        data
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    proptest::proptest! {
        #[test]
        fn any_token_is_accepted_or_refused(
            name in "(bootstrap-token-)?[a-z0-9.]{1,8}",
            id in "[a-z0-9]{0,8}|\\PC{0,4}",
            end in "\\PC{0,30}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{0,12})?(Z|[+-][0-9]{2}:[0-9]{2})",
        ) {
            let secret = secret(&name, &data(&id, &[("expiration", &end)]));
            let left = token(&secret).map(|token| expiration(token, now()));
            let signs = signing_credentials(&secret, now()).is_some();
            proptest::prop_assert!(!signs || left != Some(Expiration::Expired));
        }
    }

    #[test]
    fn expiration_is_parsed_as_go_does() {
        let seconds = |seconds| Expiration::In(Duration::from_secs(seconds));
        for (text, expected) in [
            ("", Expiration::Never),
            ("2026-01-01T00:00:03Z", seconds(3)),
            ("2026-01-01T00:00:03.5Z", Expiration::In(Duration::from_millis(3500))),
            ("2026-01-01T01:00:03+01:00", seconds(3)),
            ("2026-01-01T00:00:00Z", Expiration::Expired),
            ("2025-12-31T23:59:59Z", Expiration::Expired),
            ("2027-01-01 00:00:00Z", Expiration::Expired),
            ("2027-01-01T00:00Z", Expiration::Expired),
            ("2027-01-01T00:00:00", Expiration::Expired),
            ("2027-01-01T00:00:60Z", Expiration::Expired),
            ("2027-01-01T00:00:00.Z", Expiration::Expired),
            ("2027-13-01T00:00:00Z", Expiration::Expired),
            ("2027-01-01T00:00:00Z[UTC]", Expiration::Expired),
            ("soon", Expiration::Expired),
            // All of these were parsed with Go 1.26.
            ("2026-01-01T0:00:03Z", seconds(3)),
            ("2026-01-01T5:00:03,123Z", Expiration::In(Duration::from_millis(18_003_123))),
            ("2026-01-01T00:00:03.1234567890123456789Z", Expiration::In(Duration::new(3, 123_456_789))),
            ("2026-01-01T00:00:00.0000000005Z", Expiration::Expired),
            ("2026-01-02T00:00:03+12:60", seconds(11 * 3600 + 3)),
            ("2026-01-02T00:00:03+12:61", Expiration::Expired),
            ("2026-01-02T00:00:03-24:00", seconds(48 * 3600 + 3)),
            ("2026-01-02T00:00:03-25:00", Expiration::Expired),
            ("2026-01-01T24:00:00Z", Expiration::Expired),
            ("2027-1-1T00:00:03Z", Expiration::Expired),
            ("2027-01-01t00:00:03z", Expiration::Expired),
            ("2027-01-01T00:00:03+0100", Expiration::Expired),
            ("2027-02-29T00:00:00Z", Expiration::Expired),
            ("2027-01-01T00:00:03Z ", Expiration::Expired),
            ("2027-01-01T00:00:03é", Expiration::Expired),
            ("0000-01-01T00:00:00Z", Expiration::Expired),
            // The expiration of tokens that are meant to last forever: no offset from UTC moves it beyond the last
            // valid time.
            ("9999-12-31T23:59:59Z", seconds(251_635_075_199)),
            ("9999-12-31T23:59:59-23:59", seconds(251_635_075_199 + 23 * 3600 + 59 * 60)),
        ] {
            let secret = secret("bootstrap-token-abcdef", &[("expiration", text)]);
            assert_eq!(expiration(token(&secret).expect("a token"), now()), expected, "{text:?}");
        }
    }

    #[test]
    fn only_valid_tokens_sign() {
        for (name, data, signs) in [
            ("bootstrap-token-abcdef", data("abcdef", &[]), true),
            ("bootstrap-token-abcdef", data("abcdef", &[("expiration", "2026-01-01T00:00:01Z")]), true),
            ("bootstrap-token-abcdef", data("abcdef", &[("expiration", "2026-01-01T00:00:00Z")]), false),
            ("bootstrap-token-abcdef", data("fedcba", &[]), false),
            ("bootstrap-token-abcdef", data("", &[]), false),
            ("bootstrap-token-abcdef", data("abcdef", &[("token-secret", "")]), false),
            ("bootstrap-token-abcdef", data("abcdef", &[("usage-bootstrap-signing", "True")]), false),
            ("bootstrap-token-ABCDEF", data("ABCDEF", &[]), false),
            ("bootstrap-token-abcdefg", data("abcdefg", &[]), false),
            ("token-abcdef", data("abcdef", &[]), false),
        ] {
            assert_eq!(signing_credentials(&secret(name, &data), now()).is_some(), signs, "{name} {data:?}");
        }
        let elsewhere = in_namespace("default", "bootstrap-token-abcdef", &data("abcdef", &[]));
        assert!(signing_credentials(&elsewhere, now()).is_none());
    }
}
