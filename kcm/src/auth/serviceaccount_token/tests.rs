//! Tables of decisions and keys.

use std::sync::{Arc, Mutex};

use kinds::envelope;
use kinds::meta::{ObjectKey, Uid};
use kinds::schema::{object_meta, secret as f};
use kinds::secret::{ACCOUNT_NAME, ACCOUNT_TOKEN, ACCOUNT_UID};
use kinds::splice::put_data;
use kinds::wire::Put;
use kinds::{Decode, Kind, Secret, Sections, ServiceAccount};
use runtime::store::Change;
use runtime::testing::{filled_store, writer};
use runtime::worker::Reconcile as _;
use serde_json::json;

use super::decide::{MissingFields, claims, is_named, is_token_of, missing_fields};
use super::keys::{BY_ACCOUNT, Key, of_account, of_secret};
use super::sync::Tokens;
use crate::credentials::SigningKey;

fn decode<K: Kind>(object: &[u8]) -> Arc<K> {
    Arc::new(K::decode(&Decode { interner: Arc::default(), sections: Sections::default() }, object).expect("an object"))
}

fn object(name: &str, uid: &str, annotations: &[(&str, &str)]) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "a");
        meta.put_str(object_meta::UID, uid);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        annotations.iter().for_each(|(key, value)| meta.put_entry(object_meta::ANNOTATIONS, key, value));
    });
    object
}

fn account(uid: &str) -> Arc<ServiceAccount> {
    decode(&object("robot", uid, &[]))
}

fn secret(kind: &str, uid: &str, account_uid: &str, data: &[(&str, &str)]) -> Arc<Secret> {
    let mut object = object("robot-token", uid, &[(ACCOUNT_NAME, "robot"), (ACCOUNT_UID, account_uid)]);
    data.iter().for_each(|(key, value)| put_data(&mut object, f::DATA, key, value.as_bytes()));
    object.put_str(f::TYPE, kind);
    decode(&object)
}

#[test]
fn missing_fields_of_a_token_secret_are_found() {
    let full = [("ca.crt", "CA"), ("namespace", "other"), ("token", "t")];
    let without = |name: &str| -> Vec<(&str, &str)> { full.into_iter().filter(|(key, _)| *key != name).collect() };
    let none = MissingFields { ca: false, namespace: false, token: false };
    for (data, root_ca, expected) in [
        (full.to_vec(), "CA", none),
        (full.to_vec(), "new CA", MissingFields { ca: true, ..none }),
        (full.to_vec(), "", none),
        (without("ca.crt"), "CA", MissingFields { ca: true, ..none }),
        (without("ca.crt"), "", none),
        (without("namespace"), "CA", MissingFields { namespace: true, ..none }),
        (without("token"), "CA", MissingFields { token: true, ..none }),
        (vec![], "CA", MissingFields { ca: true, namespace: true, token: true }),
    ] {
        let secret = secret(ACCOUNT_TOKEN, "s1", "", &data);
        let found = missing_fields(secret.account_token().expect("a token"), root_ca.as_bytes());
        assert_eq!(found, expected, "{data:?} {root_ca:?}");
        assert_eq!(found.any(), expected != none);
    }
}

#[test]
fn uid_of_a_reference_has_to_match_if_given() {
    for (named, is, expected) in [("", "1", true), ("1", "1", true), ("2", "1", false)] {
        let secret = secret(ACCOUNT_TOKEN, "s1", named, &[]);
        let token = secret.account_token().expect("a token");
        assert_eq!(is_token_of(token, &Uid::parse(is)), expected);
        assert_eq!(is_named(&account(is).meta, token.account_uid.as_ref()), expected);
    }
}

#[test]
fn token_claims_identify_the_account() {
    let expected = json!({
        "iss": "kubernetes/serviceaccount",
        "sub": "system:serviceaccount:a:robot",
        "kubernetes.io/serviceaccount/namespace": "a",
        "kubernetes.io/serviceaccount/secret.name": "robot-token",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": "1",
    });
    assert_eq!(claims(&account("1").meta, "robot-token"), expected);
}

#[test]
fn changes_are_mapped_to_accounts_and_secrets() {
    let (first, second) = (account("1"), account("2"));
    let deleted = |uid| Some(Key::Account { account: ObjectKey::new("a", "robot"), uid: Uid::parse(uid) });
    assert_eq!(of_account(&Change { old: None, new: Some(&first) }), None);
    assert_eq!(of_account(&Change { old: Some(&first), new: Some(&first) }), None);
    assert_eq!(of_account(&Change { old: Some(&first), new: None }), deleted("1"));
    assert_eq!(of_account(&Change { old: Some(&first), new: Some(&second) }), deleted("1"), "another one has its name");

    let key = |uid, account_uid: &str| Key::Secret {
        secret: ObjectKey::new("a", "robot-token"),
        uid: Uid::parse(uid),
        account: "robot".into(),
        account_uid: (!account_uid.is_empty()).then(|| Uid::parse(account_uid)),
    };
    let (old, new) = (secret(ACCOUNT_TOKEN, "s1", "1", &[]), secret(ACCOUNT_TOKEN, "s2", "", &[]));
    assert_eq!(of_secret(&Change { old: None, new: Some(&new) }), [key("s2", "")]);
    assert_eq!(of_secret(&Change { old: Some(&old), new: Some(&old) }), [key("s1", "1")]);
    assert_eq!(of_secret(&Change { old: Some(&old), new: None }), [key("s1", "1")]);
    assert_eq!(of_secret(&Change { old: Some(&old), new: Some(&new) }), [key("s1", "1"), key("s2", "")]);
    let other = secret("Opaque", "s1", "1", &[]);
    assert_eq!(of_secret(&Change { old: Some(&other), new: None }), []);
    let mut of_no_account = object("robot-token", "s1", &[(ACCOUNT_UID, "1")]);
    of_no_account.put_str(f::TYPE, ACCOUNT_TOKEN);
    let of_no_account = decode(&of_no_account);
    assert_eq!(of_secret(&Change { old: None, new: Some(&of_no_account) }), [], "no account was deleted");
}

fn signing_key() -> Arc<SigningKey> {
    let pem = include_bytes!("../../credentials/testdata/p256-pkcs8.pem");
    Arc::new(SigningKey::from_pem(pem).expect("a key"))
}

/// Deletes the tokens of a deleted account with the UID `old`. Returns the names of the deleted secrets.
///
/// The secrets are one with that UID, one without a UID, and one with the UID of the account's successor. The successor
/// is in the cache if `is_cached`, and on the API server if `is_on_server`.
async fn deleted_tokens(is_cached: bool, is_on_server: bool) -> Vec<String> {
    let deleted = Arc::<Mutex<Vec<String>>>::default();
    let deletions = deleted.clone();
    let writer = writer(move |method, path| {
        let name = path.rsplit('/').next().unwrap_or_default().split('?').next().unwrap_or_default().to_owned();
        match method.as_str() {
            "DELETE" => {
                deletions.lock().expect("the deletions").push(name);
                (200, b"{}".to_vec())
            }
            _ if is_on_server => (200, envelope::wrap(&ServiceAccount::RESOURCE, &object("robot", "new", &[]))),
            _ => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"}).to_string().into_bytes()),
        }
    });
    let context = || Decode { interner: Arc::default(), sections: Sections::default() };
    let named = |name: &str, account_uid: &str| {
        let mut secret = object(name, name, &[(ACCOUNT_NAME, "robot"), (ACCOUNT_UID, account_uid)]);
        secret.put_str(f::TYPE, ACCOUNT_TOKEN);
        Secret::decode(&context(), &secret).expect("a secret")
    };
    let secrets = [named("of-old", "old"), named("of-either", ""), named("of-new", "new")];
    let accounts =
        is_cached.then(|| ServiceAccount::decode(&context(), &object("robot", "new", &[])).expect("an account"));
    let tokens = Tokens {
        accounts: Arc::new(filled_store(context(), vec![], accounts)),
        secrets: Arc::new(filled_store(context(), vec![BY_ACCOUNT], secrets)),
        writer: writer.await,
        key: signing_key(),
        root_ca: Arc::from([]),
    };
    let account = Key::Account { account: ObjectKey::new("a", "robot"), uid: Uid::parse("old") };
    tokens.reconcile(&account).await.expect("no error");
    let mut deleted = deleted.lock().expect("the deletions").clone();
    deleted.sort_unstable();
    deleted
}

#[tokio::test]
async fn token_without_uid_is_kept_for_another_account_with_the_same_name() {
    assert_eq!(deleted_tokens(false, false).await, ["of-either", "of-old"]);
    assert_eq!(deleted_tokens(true, true).await, ["of-old"]);
    assert_eq!(deleted_tokens(false, true).await, ["of-old"], "the cache may not contain it yet");
}

/// The secret was added to the account's list and deleted before the watch of accounts delivered the addition.
#[tokio::test]
async fn deleted_secret_is_removed_from_the_account_even_if_the_cached_account_does_not_list_it() {
    const REFERENCE_NAME: u32 = 3;
    const SECRETS: u32 = 2;
    let written = Arc::<Mutex<Vec<String>>>::default();
    let requests = written.clone();
    let writer = writer(move |method, path| {
        requests.lock().expect("the requests").push(format!("{method} {path}"));
        let mut live = object("robot", "1", &[]);
        live.put_message(SECRETS, |reference| reference.put_str(REFERENCE_NAME, "gone"));
        (200, envelope::wrap(&ServiceAccount::RESOURCE, &live))
    });
    let context = || Decode { interner: Arc::default(), sections: Sections::default() };
    let cached = ServiceAccount::decode(&context(), &object("robot", "1", &[])).expect("an account");
    let tokens = Tokens {
        accounts: Arc::new(filled_store(context(), vec![], [cached])),
        secrets: Arc::new(filled_store(context(), vec![BY_ACCOUNT], [])),
        writer: writer.await,
        key: signing_key(),
        root_ca: Arc::from([]),
    };
    let deleted = Key::Secret {
        secret: ObjectKey::new("a", "gone"),
        uid: Uid::parse("2"),
        account: "robot".into(),
        account_uid: None,
    };
    tokens.reconcile(&deleted).await.expect("no error");
    let path = "/api/v1/namespaces/a/serviceaccounts/robot";
    assert_eq!(*written.lock().expect("the requests"), [format!("GET {path}"), format!("PUT {path}")]);
}
