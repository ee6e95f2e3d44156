//! The claims behind a pod's volumes, for its StatefulSet.

use crate::intern::{Interner, Str};
use crate::wire::schema::{claim_volume_source, pod_spec, volume, volume_source};
use crate::wire::{WireError, fields, find};

/// The claims behind a pod's volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Names of the volumes with the source `persistentVolumeClaim`, each with the name of its claim.
    pub volumes: Box<[(Str, Str)]>,
}

/// Reads the claims of a `PodSpec` message, if it has any.
pub(super) fn read(interner: &Interner, spec: &[u8]) -> Result<Option<Box<Claims>>, WireError> {
    let mut claims = Vec::new();
    for field in fields(spec) {
        let field = field?;
        if field.number == pod_spec::VOLUMES {
            let message = field.value.bytes();
            let source = find(find(message, volume::VOLUME_SOURCE), volume_source::PERSISTENT_VOLUME_CLAIM);
            let text = |bytes| std::str::from_utf8(bytes).unwrap_or_default();
            let claim = text(find(source, claim_volume_source::CLAIM_NAME));
            if !claim.is_empty() {
                claims.push((interner.str(text(find(message, volume::NAME))), interner.str(claim)));
            }
        }
    }
    Ok((!claims.is_empty()).then(|| Box::new(Claims { volumes: claims.into() })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    #[test]
    fn only_volumes_of_claims_are_decoded() {
        let mut spec = Vec::new();
        for (name, claim) in [("data", Some("data-web-0")), ("tmp", None)] {
            spec.put_message(pod_spec::VOLUMES, |message| {
                message.put_str(volume::NAME, name);
                message.put_message(volume::VOLUME_SOURCE, |source| {
                    if let Some(claim) = claim {
                        source.put_message(volume_source::PERSISTENT_VOLUME_CLAIM, |source| {
                            source.put_str(claim_volume_source::CLAIM_NAME, claim);
                        });
                    }
                });
            });
        }
        let claims = read(&Interner::default(), &spec).expect("well-formed").expect("one");
        assert_eq!(*claims.volumes, [(Str::from("data"), Str::from("data-web-0"))]);
        assert_eq!(read(&Interner::default(), &[]), Ok(None));
    }
}
