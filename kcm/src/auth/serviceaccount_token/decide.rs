//! Policy: the secrets of an account, the missing fields of a token secret, and the claims of a token.

use kinds::meta::{Meta, Uid};
use kinds::secret::AccountToken;
use serde_json::{Value, json};

/// The issuer of tokens that are stored in Secrets. Upstream: pkg/serviceaccount, LegacyIssuer.
const ISSUER: &str = "kubernetes/serviceaccount";

/// The fields of a token secret that are missing or outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingFields {
    /// `ca.crt` is missing or differs from the root CA.
    pub ca: bool,
    /// `namespace` is empty.
    pub namespace: bool,
    /// `token` is empty.
    pub token: bool,
}

impl MissingFields {
    /// Returns true if any field is missing or outdated.
    pub fn any(self) -> bool {
        self.ca || self.namespace || self.token
    }
}

/// Returns the fields of a token secret that are missing or outdated. Without a root CA, an existing `ca.crt` stays.
/// Upstream: pkg/controller/serviceaccount, secretUpdateNeeded.
pub fn missing_fields(token: &AccountToken, root_ca: &[u8]) -> MissingFields {
    MissingFields {
        ca: !root_ca.is_empty() && *token.ca != *root_ca,
        namespace: !token.has_namespace,
        token: !token.has_token,
    }
}

/// Returns true if an account has the UID of a reference. A reference without a UID matches every account with the
/// name.
pub fn is_named(account: &Meta, uid: Option<&Uid>) -> bool {
    uid.is_none_or(|uid| *uid == account.uid)
}

/// Returns true if a token belongs to the account with this UID. The caller has compared the names. Upstream:
/// apiserver/pkg/authentication/serviceaccount, IsServiceAccountToken.
pub fn is_token_of(token: &AccountToken, uid: &Uid) -> bool {
    token.account_uid.as_ref().is_none_or(|named| named == uid)
}

/// Returns the claims of an account's token that is stored in a secret. Upstream: pkg/serviceaccount, LegacyClaims.
pub fn claims(account: &Meta, secret: &str) -> Value {
    let (namespace, name) = (&*account.namespace, &*account.name);
    json!({
        "iss": ISSUER,
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret,
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": account.uid.to_string(),
    })
}
