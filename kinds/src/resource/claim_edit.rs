//! ResourceClaims rewritten for a PUT of their status: reservations added and removed, allocations cleared.

use crate::intern::Interner;
use crate::resource::claim_state::Consumer;
use crate::wire::schema::{resource_claim as claim, resource_claim_status as status};
use crate::wire::splice::with_part;
use crate::wire::{WireError, copy_fields, fields};

/// Returns a copy of `object` that is reserved for one more consumer.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_consumer(object: &[u8], consumer: &Consumer) -> Result<Vec<u8>, WireError> {
    with_part(object, claim::STATUS, |status| {
        let mut copy = status.to_vec();
        consumer.put(&mut copy, status::RESERVED_FOR);
        Ok(copy)
    })
}

/// Returns a copy of `object` that is reserved only for the consumers for which `keeps` returns true. `deallocates`
/// also removes its allocation. Unknown fields of the remaining consumers are kept.
///
/// # Errors
/// When `object` is not well-formed.
pub fn released(object: &[u8], keeps: impl Fn(&Consumer) -> bool, deallocates: bool) -> Result<Vec<u8>, WireError> {
    with_part(object, claim::STATUS, |status| {
        let interner = Interner::default();
        let mut copy = Vec::with_capacity(status.len());
        let mut kept = Vec::new();
        for field in fields(status) {
            let field = field?;
            if field.number == status::RESERVED_FOR {
                kept.push(keeps(&Consumer::read(&interner, field.value.bytes())?));
            }
        }
        let mut kept = kept.into_iter();
        copy_fields(status, &mut copy, |field| match field.number {
            status::RESERVED_FOR => kept.next().unwrap_or(true),
            status::ALLOCATION => !deallocates,
            _ => true,
        })?;
        Ok(copy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Uid;
    use crate::wire::schema::claim_consumer;
    use crate::wire::{Put, find};

    fn consumer(name: &str) -> Consumer {
        Consumer { group: "".into(), resource: "pods".into(), name: name.into(), uid: Uid::parse(name) }
    }

    fn consumers(object: &[u8]) -> Vec<String> {
        let status = find(object, claim::STATUS);
        let reserved = fields(status).flatten().filter(|field| field.number == status::RESERVED_FOR);
        reserved
            .map(|field| Consumer::read(&Interner::default(), field.value.bytes()).expect("ok").name.to_string())
            .collect()
    }

    #[test]
    fn released_claim_keeps_other_consumers_and_unknown_fields() {
        let mut object = Vec::new();
        object.put_str(77, "unknown");
        object.put_message(claim::STATUS, |status| {
            status.put_message(status::ALLOCATION, |allocation| allocation.put_str(9, "devices"));
            status.put_message(status::RESERVED_FOR, |message| {
                message.put_str(claim_consumer::RESOURCE, "pods");
                message.put_str(claim_consumer::NAME, "a");
                message.put_str(98, "unknown");
            });
            status.put_str(99, "unknown");
        });
        let reserved = with_consumer(&object, &consumer("b")).expect("well-formed");
        assert_eq!(consumers(&reserved), ["a", "b"]);
        let less = released(&reserved, |one| &*one.name != "b", false).expect("well-formed");
        assert_eq!(consumers(&less), ["a"]);
        let status = find(&less, claim::STATUS);
        assert_eq!(find(find(status, status::RESERVED_FOR), 98), b"unknown");
        assert_eq!((find(status, 99), find(&less, 77)), (&b"unknown"[..], &b"unknown"[..]));
        assert!(!find(status, status::ALLOCATION).is_empty());
        let free = released(&reserved, |_| false, true).expect("well-formed");
        let status = find(&free, claim::STATUS);
        assert!(consumers(&free).is_empty() && find(status, status::ALLOCATION).is_empty());
        assert_eq!(find(status, 99), b"unknown");
    }
}
