//! Which secrets are an account's, what a token secret lacks, and what a token says: all policy, no IO.

use kinds::meta::{Meta, Uid};
use kinds::secret::AccountToken;
use serde_json::{Value, json};

/// The issuer of tokens that live in Secrets (pkg/serviceaccount, LegacyIssuer).
const ISSUER: &str = "kubernetes/serviceaccount";

/// What a token secret lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingFields {
    /// `ca.crt` differs from the root CA.
    pub ca: bool,
    /// `namespace` is empty.
    pub namespace: bool,
    /// `token` is empty.
    pub token: bool,
}

impl MissingFields {
    /// Returns true if something is to be filled in.
    pub fn any(self) -> bool {
        self.ca || self.namespace || self.token
    }
}

/// Compares a token secret with what it should hold (secretUpdateNeeded). Without a root CA those that are there stay.
pub fn lacks(token: &AccountToken, root_ca: &[u8]) -> MissingFields {
    MissingFields {
        ca: !root_ca.is_empty() && *token.ca != *root_ca,
        namespace: !token.has_namespace,
        token: !token.has_token,
    }
}

/// Reports whether an account is the one that was named; without a uid the name is enough.
pub fn is_named(account: &Meta, uid: Option<&Uid>) -> bool {
    uid.is_none_or(|uid| *uid == account.uid)
}

/// Reports whether a token is one of an account with this uid (apiserver, IsServiceAccountToken); their names are the
/// same.
pub fn is_token_of(token: &AccountToken, uid: &Uid) -> bool {
    token.account_uid.as_ref().is_none_or(|named| named == uid)
}

/// Returns the claims of a token for an account, kept in a secret (pkg/serviceaccount, LegacyClaims).
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
