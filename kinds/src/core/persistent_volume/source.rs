//! The storage behind a volume.

use crate::intern::{Interner, Str};
use crate::wire::schema::{
    csi_persistent_volume_source as csi, host_path_volume_source as host_path, nfs_volume_source as nfs,
    persistent_volume_source,
};
use crate::wire::{WireError, fields, find_str};

/// The storage behind a volume: the one field that is set in `PersistentVolumeSource`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Source {
    /// No source.
    #[default]
    None,
    /// A CSI driver's volume.
    Csi {
        /// Name of the driver.
        driver: Str,
        /// The driver's own name of the volume.
        handle: Str,
    },
    /// A folder of the host.
    HostPath {
        /// The folder.
        path: Str,
    },
    /// A folder of an NFS server.
    Nfs {
        /// Name or address of the server.
        server: Str,
        /// The exported folder.
        path: Str,
    },
    /// Any other source, even of an unknown type, in its encoded form. These sources are rare, so their fields are not
    /// decoded.
    Other {
        /// Its field number in `PersistentVolumeSource`.
        field: u32,
        /// Its message.
        raw: Box<[u8]>,
    },
}

impl Source {
    /// Reads a `PersistentVolumeSource` message. If several sources are set, which the API refuses, the last one
    /// applies.
    ///
    /// # Errors
    /// When `message` is not well-formed.
    pub fn read(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut source = Self::None;
        for field in fields(message) {
            let field = field?;
            let inner = field.value.bytes();
            source = match field.number {
                persistent_volume_source::CSI => Self::Csi {
                    driver: interner.str(find_str(inner, csi::DRIVER)),
                    handle: find_str(inner, csi::VOLUME_HANDLE).into(),
                },
                persistent_volume_source::HOST_PATH => Self::HostPath { path: find_str(inner, host_path::PATH).into() },
                persistent_volume_source::NFS => Self::Nfs {
                    server: interner.str(find_str(inner, nfs::SERVER)),
                    path: find_str(inner, nfs::PATH).into(),
                },
                number => Self::Other { field: number, raw: inner.into() },
            };
        }
        Ok(source)
    }

    /// Returns the CSI driver and the driver's name of the volume, if this is a CSI volume.
    pub fn csi(&self) -> Option<(&str, &str)> {
        match self {
            Self::Csi { driver, handle } => Some((driver, handle)),
            _ => None,
        }
    }

    /// Returns the field number of the source in `PersistentVolumeSource`; 0 without a source.
    pub fn field(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Csi { .. } => persistent_volume_source::CSI,
            Self::HostPath { .. } => persistent_volume_source::HOST_PATH,
            Self::Nfs { .. } => persistent_volume_source::NFS,
            Self::Other { field, .. } => *field,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    #[test]
    fn source_is_the_field_that_is_set() {
        let message = |number, fill: fn(&mut Vec<u8>)| {
            let mut message = Vec::new();
            message.put_message(number, fill);
            message
        };
        let csi = message(persistent_volume_source::CSI, |out| {
            out.put_str(csi::DRIVER, "disk.example.com");
            out.put_str(csi::VOLUME_HANDLE, "vol-1");
        });
        let host = message(persistent_volume_source::HOST_PATH, |out| out.put_str(host_path::PATH, "/tmp/data"));
        let share = message(persistent_volume_source::NFS, |out| {
            out.put_str(nfs::SERVER, "nas");
            out.put_str(nfs::PATH, "/export");
        });
        let cinder = message(persistent_volume_source::CINDER, |out| out.put_str(1, "vol-2"));
        for (message, expected, field) in [
            (
                &csi,
                Source::Csi { driver: "disk.example.com".into(), handle: "vol-1".into() },
                persistent_volume_source::CSI,
            ),
            (&host, Source::HostPath { path: "/tmp/data".into() }, persistent_volume_source::HOST_PATH),
            (&share, Source::Nfs { server: "nas".into(), path: "/export".into() }, persistent_volume_source::NFS),
            (
                &cinder,
                Source::Other { field: persistent_volume_source::CINDER, raw: b"\x0a\x05vol-2"[..].into() },
                persistent_volume_source::CINDER,
            ),
            (&Vec::new(), Source::None, 0),
        ] {
            let read = Source::read(&Interner::default(), message).expect("well-formed");
            assert_eq!((read.field(), &read), (field, &expected));
        }
        let read = Source::read(&Interner::default(), &csi).expect("well-formed");
        assert_eq!(read.csi(), Some(("disk.example.com", "vol-1")));
    }
}
