//! Translates volumes of in-tree plugins into volumes of the CSI drivers to which the plugins are migrated.
//!
//! Upstream: k8s.io/csi-translation-lib, plugins.

use std::collections::BTreeSet;

use kinds::PersistentVolume;
use kinds::intern::label;
use kinds::persistent_volume::{AZURE_FILE_RESOURCE_GROUP, Source};
use kinds::schema::{
    aws_elastic_block_store, azure_disk, azure_file_persistent_volume_source as azure_file,
    cinder_persistent_volume_source as cinder, gce_persistent_disk, persistent_volume_source as source,
    portworx_volume, vsphere_volume,
};
use kinds::wire::{fields, find_str};
use runtime::text::percent_decode;

use super::migration;

/// Placeholder for a project or zone that a volume does not name.
const UNSPECIFIED: &str = "UNSPECIFIED";
const ZONE_LABELS: [&str; 2] = ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"];
/// Separator of the zones of a regional disk in a label.
const ZONE_SEPARATOR: &str = "__";

/// Reason why a volume cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TranslationError(String);

fn failed<T>(message: impl Into<String>) -> Result<T, TranslationError> {
    Err(TranslationError(message.into()))
}

/// Returns the CSI driver of a migrated volume and the volume's handle in that driver; `None` if the volume's plugin
/// was not migrated.
pub fn handle_of(volume: &PersistentVolume) -> Option<Result<(&'static str, String), TranslationError>> {
    let driver = migration::of_source(&volume.source)?.driver;
    let Source::Other { field, raw } = &volume.source else { return None };
    let handle = match *field {
        source::AWS_ELASTIC_BLOCK_STORE => ebs(text(raw, aws_elastic_block_store::VOLUME_ID)),
        source::GCE_PERSISTENT_DISK => gce(text(raw, gce_persistent_disk::PD_NAME), zones(volume)),
        source::CINDER => Ok(text(raw, cinder::VOLUME_ID).to_owned()),
        source::AZURE_DISK => azure_disk(raw),
        source::AZURE_FILE => azure_file(volume, raw),
        source::VSPHERE_VOLUME => Ok(text(raw, vsphere_volume::VOLUME_PATH).to_owned()),
        source::PORTWORX_VOLUME => Ok(text(raw, portworx_volume::VOLUME_ID).to_owned()),
        _ => return None,
    };
    Some(handle.map(|handle| (driver, handle)))
}

/// Returns the text of a field; empty if it is absent.
pub fn text(message: &[u8], number: u32) -> &str {
    find_str(message, number)
}

/// Returns the driver's handle of an EBS volume.
///
/// # Errors
/// When the id is a URL that does not contain the id of a volume.
pub fn ebs(id: &str) -> Result<String, TranslationError> {
    let Some(rest) = id.strip_prefix("aws://") else { return Ok(id.to_owned()) };
    let path = url_path(rest).unwrap_or_default();
    let path = path.trim_matches('/');
    match path.strip_prefix("vol-") {
        Some(number) if !number.contains('/') => Ok(path.to_owned()),
        _ => failed(format!("Invalid format for AWS volume ({id})")),
    }
}

/// Returns the decoded path of a URL without its scheme; `None` if the URL is invalid. The kubelet parses the id as a
/// URL, and must find the volume under the same name.
fn url_path(url: &str) -> Option<String> {
    let url = url.split_once('#').map_or(url, |(url, _)| url);
    let url = url.split_once('?').map_or(url, |(url, _)| url);
    let (authority, path) = url.split_at(url.find('/')?);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let after_address = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    let port = after_address.rsplit_once(':').map_or("", |(_, port)| port);
    let has_invalid_port = !port.bytes().all(|c| c.is_ascii_digit());
    let is_invalid = url.contains(|c: char| c.is_ascii_control()) || host.contains([' ', '%']) || has_invalid_port;
    if is_invalid { None } else { percent_decode(path) }
}

fn zones(volume: &PersistentVolume) -> &str {
    let mut zones = ZONE_LABELS.iter().filter_map(|key| label(&volume.meta.labels, key));
    zones.find(|zones| !zones.is_empty()).unwrap_or_default()
}

/// Returns the driver's handle of a GCE disk whose project and zone are unknown.
pub fn gce_without_zone(disk: &str) -> String {
    format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{disk}")
}

fn gce(disk: &str, zones: &str) -> Result<String, TranslationError> {
    let zones: Vec<&str> = zones.split(ZONE_SEPARATOR).collect();
    match zones[..] {
        [""] => Ok(gce_without_zone(disk)),
        [zone] => Ok(format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{disk}")),
        _ => Ok(format!("projects/{UNSPECIFIED}/regions/{}/disks/{disk}", region(&zones)?)),
    }
}

fn region(zones: &[&str]) -> Result<String, TranslationError> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        match zone.split('-').collect::<Vec<_>>()[..] {
            [locale, region, _] => regions.insert(format!("{locale}-{region}")),
            _ => return failed(format!("zone in unexpected format: {zone}")),
        };
    }
    match regions.pop_first() {
        Some(region) if regions.is_empty() => Ok(region),
        _ => failed("the zones of a disk are in several regions"),
    }
}

/// Returns the driver's handle of an Azure disk.
///
/// # Errors
/// When the disk is not a managed one.
pub fn azure_disk(raw: &[u8]) -> Result<String, TranslationError> {
    let kind = text(raw, azure_disk::KIND);
    if !kind.is_empty() && !kind.eq_ignore_ascii_case("Managed") {
        return failed(format!("kind({kind}) is not supported in csi migration"));
    }
    Ok(text(raw, azure_disk::DISK_URI).to_owned())
}

fn azure_file(volume: &PersistentVolume, raw: &[u8]) -> Result<String, TranslationError> {
    let has_namespace = fields(raw).flatten().any(|field| field.number == azure_file::SECRET_NAMESPACE);
    let namespace = match (has_namespace, &volume.claim) {
        (true, _) => text(raw, azure_file::SECRET_NAMESPACE),
        (false, Some(claim)) => &claim.namespace,
        (false, None) => "",
    };
    if namespace.is_empty() {
        return failed("could not find a secret namespace in PersistentVolumeSource or ClaimRef");
    }
    let group = volume.annotation(AZURE_FILE_RESOURCE_GROUP).unwrap_or_default();
    let account = storage_account(text(raw, azure_file::SECRET_NAME));
    let share = text(raw, azure_file::SHARE_NAME);
    Ok(format!("{group}#{account}#{share}#{}#{namespace}", volume.meta.name))
}

/// Returns the storage account in a secret's name `azure-storage-account-<account>-secret`; the whole name if it has
/// another form.
pub fn storage_account(secret: &str) -> &str {
    const PREFIX: &str = "azure-storage-account-";
    let account = secret.find(PREFIX).map(|at| &secret[at + PREFIX.len()..]);
    // As in upstream's pattern, the name is not matched across a line break.
    let line = account.and_then(|rest| rest.split('\n').next());
    let account = line.and_then(|line| line.rfind("-secret").map(|end| &line[..end]));
    account.filter(|account| !account.is_empty()).unwrap_or(secret)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kinds::persistent_volume::ClaimRef;
    use kinds::wire::Put;

    use super::*;
    use crate::storage::testing::volume;

    fn with(field: u32, texts: &[(u32, &str)]) -> PersistentVolume {
        let mut raw = Vec::new();
        texts.iter().for_each(|(number, text)| raw.put_str(*number, text));
        let mut volume = volume("pv");
        volume.source = Source::Other { field, raw: raw.into() };
        volume
    }

    fn handle(volume: &PersistentVolume) -> Option<Result<String, TranslationError>> {
        handle_of(volume).map(|result| result.map(|(_, handle)| handle))
    }

    #[test]
    fn handle_is_translated_for_each_migrated_plugin() {
        for (name, field, texts, expected) in [
            ("EBS", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "vol-1")][..], Some("vol-1")),
            ("EBS with zone", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://us-east-1a/vol-1")], Some("vol-1")),
            ("EBS without zone", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws:///vol-1")], Some("vol-1")),
            ("EBS that is invalid", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a/b/vol-1")], None),
            ("EBS without path", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://vol-1")], None),
            ("EBS with query", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a/vol-1?x=/y")], Some("vol-1")),
            ("EBS with fragment", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a/vol-1#x")], Some("vol-1")),
            ("EBS, encoded", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a/vol-%41")], Some("vol-A")),
            ("EBS, badly encoded", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a/vol-%zz")], None),
            ("EBS with a bad zone", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a b/vol-1")], None),
            ("EBS with a user", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://u:p@a:1/vol-1")], Some("vol-1")),
            ("EBS with an address", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://[::1]/vol-1")], Some("vol-1")),
            ("EBS with a bad port", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a:b/vol-1")], None),
            ("EBS with a control character", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a/vol-1\n")], None),
            (
                "GCE without zone",
                source::GCE_PERSISTENT_DISK,
                &[(1, "disk")],
                Some("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"),
            ),
            ("Cinder", source::CINDER, &[(1, "id")], Some("id")),
            ("Azure disk", source::AZURE_DISK, &[(1, "name"), (2, "uri"), (6, "managed")], Some("uri")),
            ("Azure disk that is dedicated", source::AZURE_DISK, &[(2, "uri"), (6, "Dedicated")], None),
            (
                "Azure file",
                source::AZURE_FILE,
                &[(1, "azure-storage-account-acc-secret"), (2, "share"), (4, "ns")],
                Some("#acc#share#pv#ns"),
            ),
            (
                "Azure file, secret of two lines",
                source::AZURE_FILE,
                &[(1, "azure-storage-account-a\n-secret"), (2, "share"), (4, "ns")],
                Some("#azure-storage-account-a\n-secret#share#pv#ns"),
            ),
            ("Azure file without namespace", source::AZURE_FILE, &[(1, "secret"), (2, "share")], None),
            ("vSphere", source::VSPHERE_VOLUME, &[(1, "[ds] path")], Some("[ds] path")),
            ("Portworx", source::PORTWORX_VOLUME, &[(1, "id")], Some("id")),
        ] {
            let found = handle(&with(field, texts)).expect("it is migrated").ok();
            assert_eq!(found.as_deref(), expected, "{name}");
        }
        assert_eq!(handle_of(&with(source::FC, &[])), None);
    }

    #[test]
    fn zones_of_a_disk_are_part_of_its_handle() {
        for (labels, expected) in [
            (&[(ZONE_LABELS[1], "us-east1-b")][..], Some("projects/UNSPECIFIED/zones/us-east1-b/disks/disk")),
            (&[(ZONE_LABELS[0], "a"), (ZONE_LABELS[1], "b")], Some("projects/UNSPECIFIED/zones/a/disks/disk")),
            (&[(ZONE_LABELS[1], "us-east1-b__us-east1-c")], Some("projects/UNSPECIFIED/regions/us-east1/disks/disk")),
            (&[(ZONE_LABELS[1], "us-east1-b__us-west1-c")], None),
            (&[(ZONE_LABELS[1], "b__c")], None),
        ] {
            let mut volume = with(source::GCE_PERSISTENT_DISK, &[(1, "disk")]);
            volume.meta.labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            assert_eq!(handle(&volume).expect("migrated").ok().as_deref(), expected, "{labels:?}");
        }
    }

    #[test]
    fn azure_file_takes_namespace_and_group_from_the_volume() {
        let mut volume = with(source::AZURE_FILE, &[(1, "secret"), (2, "share")]);
        volume.claim = Some(Box::new(ClaimRef { namespace: "shop".into(), name: "data".into(), uid: None }));
        volume.annotations = Arc::new([(AZURE_FILE_RESOURCE_GROUP.into(), "rg".into())]);
        assert_eq!(handle(&volume).expect("migrated").ok().as_deref(), Some("rg#secret#share#pv#shop"));
    }
}
