//! Tables of decisions and keys.

use std::sync::Arc;

use kinds::meta::{ObjectKey, Uid};
use kinds::schema::{object_meta, secret as f};
use kinds::secret::{ACCOUNT_NAME, ACCOUNT_TOKEN, ACCOUNT_UID};
use kinds::splice::put_data;
use kinds::wire::Put;
use kinds::{Decode, Kind, Secret, Sections, ServiceAccount};
use runtime::store::Change;
use serde_json::json;

use super::decide::{MissingFields, claims, is_named, is_token_of, missing_fields};
use super::keys::{Key, of_account, of_secret};

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
}
