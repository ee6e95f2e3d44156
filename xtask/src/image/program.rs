//! Programs with images, and the contents of the images: data.

use std::collections::BTreeMap;

use super::oci::{Content, Data};

/// The folder of programs in upstream's images, which is on the path in the image's config.
const PLACE: &str = "usr/local/bin";

/// A program with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Program {
    /// kube-controller-manager
    Kcm,
    /// cloud-controller-manager
    Ccm,
}

impl Program {
    /// All programs.
    pub const ALL: [Program; 2] = [Program::Kcm, Program::Ccm];

    /// Returns the package and its binary.
    pub fn package(self) -> &'static str {
        match self {
            Program::Kcm => "kcm",
            Program::Ccm => "ccm",
        }
    }

    /// Returns the features of the binary in addition to the default ones: all that its charts have values for.
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Program::Kcm => &[],
            Program::Ccm => &["aws"],
        }
    }

    /// Returns the program's name in upstream's manifests.
    pub fn command(self) -> &'static str {
        match self {
            Program::Kcm => "kube-controller-manager",
            Program::Ccm => "cloud-controller-manager",
        }
    }

    /// Returns the default command of the image.
    pub fn entrypoint(self) -> String {
        format!("/{PLACE}/{}", self.command())
    }

    /// Returns the maximum size of the static binary, in bytes, which detects unintended growth: ten per cent above the
    /// release build of the same code for the host, on 28 November: 17.3 MB and 21.8 MB. The static binary also
    /// contains the C library, some hundred kilobytes.
    pub fn limit(self) -> u64 {
        match self {
            Program::Kcm => 19_000_000,
            Program::Ccm => 24_000_000,
        }
    }

    /// Returns true if the program uses TLS with servers other than the API server, whose authority is in its
    /// kubeconfig.
    pub fn calls_a_cloud(self) -> bool {
        self == Program::Ccm
    }

    /// Returns the files of the image: the binary by upstream's name, its own name as a link, and certificates.
    pub fn contents(self, binary: Vec<u8>, certificates: Option<Vec<u8>>) -> Vec<Content> {
        let folder = |path: &str| Content { path: path.to_owned(), data: Data::Folder };
        let mut contents = vec![
            folder("usr"),
            folder("usr/local"),
            folder(PLACE),
            Content { path: format!("{PLACE}/{}", self.command()), data: Data::Program(binary) },
            Content { path: format!("{PLACE}/{}", self.package()), data: Data::Link(self.command().to_owned()) },
        ];
        if let Some(certificates) = certificates {
            contents.extend(["etc", "etc/ssl", "etc/ssl/certs"].map(folder));
            let path = "etc/ssl/certs/ca-certificates.crt".to_owned();
            contents.push(Content { path, data: Data::File(certificates) });
        }
        contents
    }

    /// Returns the image's labels.
    pub fn labels(self, tag: &str) -> BTreeMap<String, String> {
        [("title", self.package()), ("version", tag), ("licenses", "Apache-2.0")]
            .map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.to_owned()))
            .into()
    }
}
