//! The control plane's certificates and keys, laid out in a folder with
//! kubeadm's file names.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use crate::identity::{Identity, kubeconfig};

/// The object identifier of a certificate subject's organization, from which Kubernetes reads groups.
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];

/// The common name of the API server's proxy client.
pub(crate) const FRONT_PROXY_CLIENT: &str = "front-proxy-client";

/// The common name of the client certificate with which the API server calls kubelets.
const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// A certificate authority and the folder with its certificates.
pub(crate) struct Pki {
    folder: PathBuf,
    authority: Authority,
}

struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    /// Creates the authorities, the API server's serving certificate, its client certificate for kubelets, the service
    /// account keys and the front proxy's client certificate in `folder`, which must exist. The serving certificate is
    /// valid for the loopback address and for `address`.
    pub(crate) fn create(folder: PathBuf, address: Option<Ipv4Addr>) -> Result<Self> {
        let authority = Authority::create(&folder, "ca", "kubernetes")?;
        let front_proxy = Authority::create(&folder, "front-proxy-ca", "front-proxy-ca")?;

        let (certificate, key) =
            authority.sign(serving_names(address), "kube-apiserver", &[], ExtendedKeyUsagePurpose::ServerAuth)?;
        write(&folder, "apiserver.crt", &certificate)?;
        write(&folder, "apiserver.key", &key)?;

        let (certificate, key) =
            authority.sign(Vec::new(), KUBELET_CLIENT, &["system:masters"], ExtendedKeyUsagePurpose::ClientAuth)?;
        write(&folder, "apiserver-kubelet-client.crt", &certificate)?;
        write(&folder, "apiserver-kubelet-client.key", &key)?;

        let (certificate, key) =
            front_proxy.sign(Vec::new(), FRONT_PROXY_CLIENT, &[], ExtendedKeyUsagePurpose::ClientAuth)?;
        write(&folder, "front-proxy-client.crt", &certificate)?;
        write(&folder, "front-proxy-client.key", &key)?;

        let service_accounts = KeyPair::generate().context("generate the service account key")?;
        write(&folder, "sa.key", &service_accounts.serialize_pem())?;
        write(&folder, "sa.pub", &service_accounts.public_key_pem())?;
        Ok(Self { folder, authority })
    }

    /// Returns the path of one of the folder's files, by kubeadm's name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the text of a kubeconfig with a fresh client certificate.
    pub(crate) fn kubeconfig(&self, server: &str, identity: &Identity) -> Result<String> {
        let (certificate, key) = self
            .authority
            .sign(Vec::new(), identity.user(), &identity.groups(), ExtendedKeyUsagePurpose::ClientAuth)
            .with_context(|| format!("make a client certificate for {:?}", identity.user()))?;
        Ok(kubeconfig(
            server,
            identity.user(),
            &BASE64.encode(&self.authority.certificate),
            &BASE64.encode(certificate),
            &BASE64.encode(key),
        ))
    }
}

impl Authority {
    fn create(folder: &Path, file: &str, name: &str) -> Result<Self> {
        let key = KeyPair::generate().with_context(|| format!("generate {file}.key"))?;
        let mut params = params(Vec::new(), name, Duration::days(3650))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).with_context(|| format!("sign {file}.crt"))?.pem();
        write(folder, &format!("{file}.crt"), &certificate)?;
        write(folder, &format!("{file}.key"), &key.serialize_pem())?;
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// Signs a new key; returns certificate and key as PEM.
    fn sign(
        &self,
        names: Vec<String>,
        common_name: &str,
        organizations: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<(String, String)> {
        let mut params = params(names, common_name, Duration::days(365))?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        // rcgen has only one value for each kind of name. The organization by its object identifier
        // counts as a second kind.
        let name_kinds = [DnType::OrganizationName, DnType::CustomDnType(ORGANIZATION.to_vec())];
        if organizations.len() > name_kinds.len() {
            bail!(
                "{} groups given for {common_name:?}, but a certificate of a test has at most {}: use fewer",
                organizations.len(),
                name_kinds.len()
            );
        }
        for (kind, organization) in name_kinds.into_iter().zip(organizations) {
            params.distinguished_name.push(kind, *organization);
        }
        let key = KeyPair::generate().context("generate a key")?;
        let certificate = params.signed_by(&key, &self.issuer).context("sign a certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

fn params(names: Vec<String>, common_name: &str, validity: Duration) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names).context("read the names of a certificate")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(1);
    params.not_after = now + validity;
    Ok(params)
}

fn serving_names(address: Option<Ipv4Addr>) -> Vec<String> {
    let names = [
        "127.0.0.1",
        crate::options::SERVICE_ADDRESS,
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    .map(String::from);
    names.into_iter().chain(address.map(|address| address.to_string())).collect()
}

/// Writes a file that only its owner may read.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_groups_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::create(folder.path().to_owned(), None).unwrap();
        let with = |groups: &[&str]| Identity::User {
            name: "ann".into(),
            groups: groups.iter().map(ToString::to_string).collect(),
        };
        assert!(pki.kubeconfig("https://localhost", &with(&["a", "b"])).is_ok());
        let error = pki.kubeconfig("https://localhost", &with(&["a", "b", "c"])).unwrap_err();
        assert!(format!("{error:#}").contains("3 groups given for \"ann\""), "{error:#}");
    }
}
