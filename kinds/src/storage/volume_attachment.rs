//! VolumeAttachment: the request to attach a volume to a node, and its progress.

use crate::core::persistent_volume::Source;
use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::wire::schema::{
    persistent_volume_spec, volume_attachment_source as source, volume_attachment_spec as spec,
    volume_attachment_status as status, volume_error,
};
use crate::wire::{fields, find};

/// A VolumeAttachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAttachment {
    /// Metadata.
    pub meta: Meta,
    /// Name of the CSI driver.
    pub attacher: Str,
    /// Name of the node.
    pub node: Str,
    /// Name of the volume; empty for one that a pod defines itself.
    pub volume: Str,
    /// The storage of a volume that a pod defines itself.
    pub inline: Option<Box<Source>>,
    /// The driver has attached the volume.
    pub attached: bool,
    /// Message of the last failed attempt to attach; `None` if there is no such error.
    pub attach_error: Option<Box<str>>,
    /// Message of the last failed attempt to detach; `None` if there is no such error.
    pub detach_error: Option<Box<str>>,
}

impl Kind for VolumeAttachment {
    const RESOURCE: Resource = Resource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttachment",
        plural: "volumeattachments",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let Parts { meta, spec, status } = Parts::read(object)?;
        let empty = interner.str("");
        let mut attachment = Self {
            meta: Meta::decode(interner, meta, |_, _| {})?,
            attacher: empty.clone(),
            node: empty.clone(),
            volume: empty,
            inline: None,
            attached: false,
            attach_error: None,
            detach_error: None,
        };
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::ATTACHER => attachment.attacher = interner.str(field.value.str()),
                spec::NODE_NAME => attachment.node = interner.str(field.value.str()),
                spec::SOURCE => {
                    for part in fields(field.value.bytes()) {
                        let part = part?;
                        match part.number {
                            source::PERSISTENT_VOLUME_NAME => attachment.volume = part.value.str().into(),
                            source::INLINE_VOLUME_SPEC => {
                                let inner = find(part.value.bytes(), persistent_volume_spec::SOURCE);
                                attachment.inline = Some(Box::new(Source::read(interner, inner)?));
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        for field in fields(status) {
            let field = field?;
            let message = || String::from_utf8_lossy(find(field.value.bytes(), volume_error::MESSAGE)).into();
            match field.number {
                status::ATTACHED => attachment.attached = field.value.bool(),
                status::ATTACH_ERROR => attachment.attach_error = Some(message()),
                status::DETACH_ERROR => attachment.detach_error = Some(message()),
                _ => {}
            }
        }
        Ok(attachment)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::Sections;
    use crate::wire::Put;
    use crate::wire::schema::{object_meta, persistent_volume_source, volume_attachment as object};

    #[test]
    fn attachment_is_read_with_its_volume_and_state() {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "csi-1");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_str(spec::ATTACHER, "disk.example.com");
            spec.put_str(spec::NODE_NAME, "node-1");
            spec.put_message(spec::SOURCE, |out| {
                out.put_str(source::PERSISTENT_VOLUME_NAME, "pv-1");
                out.put_message(source::INLINE_VOLUME_SPEC, |spec| {
                    spec.put_message(persistent_volume_spec::SOURCE, |out| {
                        out.put_message(persistent_volume_source::CSI, |csi| csi.put_str(2, "vol-1"));
                    });
                });
            });
        });
        object.put_message(object::STATUS, |status| {
            status.put_bool(status::ATTACHED, true);
            status.put_message(status::DETACH_ERROR, |error| error.put_str(volume_error::MESSAGE, "busy"));
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let read = VolumeAttachment::decode(&context, &object).expect("well-formed");
        assert_eq!((&*read.attacher, &*read.node, &*read.volume), ("disk.example.com", "node-1", "pv-1"));
        assert_eq!(read.inline.as_deref().and_then(Source::csi), Some(("", "vol-1")));
        assert_eq!((read.attached, read.attach_error, read.detach_error.as_deref()), (true, None, Some("busy")));
    }
}
