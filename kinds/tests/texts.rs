//! Texts and messages that tenants control: any content is accepted or refused, in bounded time, without a panic.

use std::time::{Duration, Instant};

use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::template::Template;
use kinds::{
    Decode, Interner, OwnerRef, Sections, Uid, int_or_string, ip, pod_edit, quantity, raw_object, resource_list, splice,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Texts similar to valid ones: quantities, selectors, addresses, and anything else.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-+]?[0-9]{0,45}(\\.[0-9]{0,45})?(n|u|m|k|Ki|M|Mi|E|Ei|[eE][-+]?[0-9]{1,12})?",
        "[a-z/.]{0,6} ?(=|==|!=|in|notin|>|<|!)? ?[(]?[a-z0-9,() ]{0,12}[)]?",
        "[0-9a-fA-F.:%/]{0,46}",
        "[-0-9]{0,12}%?",
        any::<String>(),
    ]
}

/// Bytes that often parse as nested messages.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![text().prop_map(String::into_bytes), vec(any::<u8>(), 0..16)];
    leaf.prop_recursive(6, 64, 5, |inner| {
        vec((1_u8..16, inner), 0..5).prop_map(|fields| {
            let mut message = Vec::new();
            for (number, bytes) in fields {
                let length = u8::try_from(bytes.len().min(127)).expect("at most 127");
                message.extend([number << 3 | 2, length]);
                message.extend(&bytes[..usize::from(length)]);
            }
            message
        })
    })
}

fn template(message: &[u8]) -> Option<Template> {
    let context = Decode { interner: std::sync::Arc::new(Interner::default()), sections: Sections::default() };
    Template::decode(&context, message).ok()
}

fn owner() -> OwnerRef {
    OwnerRef {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: "a".into(),
        uid: Uid::parse("u"),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

proptest! {
    #[test]
    fn any_quantity_is_parsed_or_refused(text in text(), other in text()) {
        let _ = (quantity::nanos(&text), quantity::thousandths(&text));
        prop_assert!(quantity::equal(&text, &text));
        prop_assert_eq!(quantity::equal(&text, &other), quantity::equal(&other, &text));
        if let Some(amount) = resource_list::Amount::parse(&text) {
            let _ = (amount.plus(amount), amount.minus(amount), amount.times(usize::MAX), amount.rounded_up(), amount.to_string());
        }
    }

    #[test]
    fn any_thousandths_round_trip(thousandths: i64, binary: bool) {
        let written = quantity::format_thousandths(thousandths, binary);
        prop_assert_eq!(quantity::thousandths(&written), Some(thousandths), "{}", written);
    }

    #[test]
    fn any_selector_text_is_parsed_or_refused(text in text()) {
        let interner = Interner::default();
        if let Ok(selector) = Selector::parse(&interner, &text) {
            selector.matches(&[("a".into(), "b".into())]);
            if let Some(query) = selector.query() {
                prop_assert!(Selector::parse(&interner, &query).is_ok(), "{} became {}", text, query);
            }
        }
    }

    #[test]
    fn any_selector_message_is_decoded_or_refused(message in message()) {
        let interner = Interner::default();
        if let Ok(selector) = Selector::decode(&interner, &message) {
            selector.matches(&[("a".into(), "b".into())]);
            let _ = (selector.query(), selector.is_everything());
        }
        let _ = kinds::selector::format_like_go(&message);
    }

    #[test]
    fn any_address_and_count_is_parsed(text in text(), message in message(), total: i32, up: bool) {
        let address = ip::Ip::parse(&text);
        let _ = (address.canonical(), address.family());
        if let Ok(count) = int_or_string::IntOrString::decode(&message) {
            count.scaled(total, up);
        }
    }

    #[test]
    fn any_object_is_edited_or_refused(object in message(), key in text(), value in text()) {
        let _ = splice::edited(&object, &[(&key, &value)], |_| true, |_| {});
        let _ = splice::data_entry(&object);
        if let Ok(kept) = raw_object::Raw::keep(&object) {
            let _ = (kept.spec().len(), kept.status().len());
        }
        let _ = raw_object::annotated_meta(&Interner::default(), &object);
        let _ = pod_edit::repaired(&object, &[(&key, value.clone())], &[(key.clone(), value)]);
    }

    #[test]
    fn pods_are_created_from_any_template(message in message(), key in text(), name in text()) {
        let Some(template) = template(&message) else { return Ok(()) };
        let at = ObjectKey::new("ns", &*name);
        template.pod(&at, &owner());
        let _ = (template.hash(Some(1)), template.with_label(&key, Some(&name)).encode());
        let edits = pod_edit::PodEdits {
            finalizer: Some(&key),
            labels: vec![(&key, name.clone())],
            env: Some(pod_edit::FieldEnv { name: &key, path: "metadata.name" }),
            claims: vec![(key.clone(), name.clone())],
            ..pod_edit::PodEdits::default()
        };
        pod_edit::pod_from(&template, &at, &owner(), &edits);
    }
}

/// Inputs as large as an object may be take time proportional to their length.
#[test]
fn any_large_text_is_parsed_in_linear_time() {
    const SIZE: usize = 1_500_000;
    let limit = Duration::from_secs(20);
    let start = Instant::now();
    let interner = Interner::default();
    for unit in ["a", "9", "a=b,", "a in (b,c),", "!", "(", ",", " ", "\u{8a9e}", "."] {
        let text = unit.repeat(SIZE / unit.len());
        let _ = (quantity::nanos(&text), quantity::equal(&text, "1"), ip::Ip::parse(&text).canonical());
        let _ = Selector::parse(&interner, &text).map(|selector| selector.query());
        let _ = (resource_list::Amount::parse(&text), Uid::parse(&text));
    }
    // Nested messages, integer fields, and empty fields, repeated.
    for unit in [&[0x0a, 0x7f][..], &[0x08, 0x00], &[0x0a, 0x00], &[0x12, 0x02, 0x0a, 0x00]] {
        let bytes = unit.repeat(SIZE / unit.len());
        let _ = splice::edited(&bytes, &[("a", "b")], |_| true, |_| {});
        let _ = pod_edit::repaired(&bytes, &[], &[]);
        let _ = kinds::selector::format_like_go(&bytes);
        if let Some(template) = template(&bytes) {
            let other = template.with_label("a", Some("b"));
            let _ = (template.equal_ignoring_hash(&other), template.may_equal_ignoring_hash(&other));
        }
    }
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
}
