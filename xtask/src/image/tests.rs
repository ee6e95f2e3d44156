//! Images have the form that registries and container runtimes require, and run in an empty root.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::oci::Platform;
use super::*;

/// Returns a complete static program for x86_64: its headers, and code that exits with `status`.
fn tiny(status: u8) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let code = [0xb8, 60, 0, 0, 0, 0xbf, status, 0, 0, 0, 0x0f, 0x05];
    let end = HEADERS + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    for (number, bytes) in [(2, 2), (62, 2), (1, 4), (BASE + HEADERS, 8), (64, 8), (0, 8), (0, 4)] {
        push(&mut file, number, bytes);
    }
    [64, 56, 1, 64, 0, 0].into_iter().for_each(|number| push(&mut file, number, 2));
    for (number, bytes) in [(1, 4), (5, 4), (0, 8), (BASE, 8), (BASE, 8), (end, 8), (end, 8), (0x1000, 8)] {
        push(&mut file, number, bytes);
    }
    file.extend(code);
    file
}

fn push(file: &mut Vec<u8>, number: u64, bytes: usize) {
    file.extend(&number.to_le_bytes()[..bytes]);
}

fn written(folder: &Path, binary: Vec<u8>, architectures: &[&'static str]) -> Result<Vec<oci::Image>> {
    let platforms: Vec<Platform> = architectures
        .iter()
        .map(|architecture| Platform {
            architecture,
            contents: Program::Kcm.contents(binary.clone(), None),
            entrypoint: Program::Kcm.entrypoint(),
            labels: BTreeMap::new(),
        })
        .collect();
    oci::write(folder, "localhost/kcm:v1", &platforms)?;
    oci::read(folder)
}

fn paths(image: &oci::Image) -> Vec<String> {
    let mut archive = tar::Archive::new(&*image.layer);
    archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
}

#[test]
fn image_has_the_program_by_both_names_and_an_unprivileged_user() {
    let folder = tempfile::tempdir().unwrap();
    let images = written(folder.path(), tiny(0), &["amd64"]).unwrap();
    let [image] = images.as_slice() else { panic!("{} images", images.len()) };
    let folders = ["usr/", "usr/local/", "usr/local/bin/"];
    let programs = ["usr/local/bin/kube-controller-manager", "usr/local/bin/kcm"];
    assert_eq!(paths(image), [folders.as_slice(), &programs].concat());
    let config = &image.config["config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"][0], "/usr/local/bin/kube-controller-manager");
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("index.json")).unwrap()).unwrap();
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "localhost/kcm:v1");
    assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "v1");
}

#[test]
fn equal_content_has_equal_digests() {
    let index = |status| {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), tiny(status), &["amd64", "arm64"]).unwrap();
        fs::read_to_string(folder.path().join("index.json")).unwrap()
    };
    assert_eq!(index(0), index(0));
    assert_ne!(index(0), index(1));
}

#[test]
fn architectures_share_one_image_name() {
    let folder = tempfile::tempdir().unwrap();
    let images = written(folder.path(), tiny(0), &["amd64", "arm64"]).unwrap();
    let mut architectures: Vec<&str> = images.iter().map(|image| image.architecture.as_str()).collect();
    architectures.sort_unstable();
    assert_eq!(architectures, ["amd64", "arm64"]);
}

#[test]
fn changed_blob_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), tiny(0), &["amd64"]).unwrap();
    for blob in fs::read_dir(folder.path().join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, [&bytes[..], b" "].concat()).unwrap();
        let error = format!("{:#}", oci::read(folder.path()).unwrap_err());
        assert!(error.contains("has another digest"), "{error}");
        fs::write(&path, bytes).unwrap();
    }
    oci::read(folder.path()).unwrap();
}

#[test]
fn tar_file_contains_the_layout() {
    let folder = tempfile::tempdir().unwrap();
    let (layout, packed, unpacked) =
        (folder.path().join("kcm"), folder.path().join("kcm.tar"), folder.path().join("again"));
    written(&layout, tiny(0), &["amd64"]).unwrap();
    oci::pack(&layout, &packed).unwrap();
    tar::Archive::new(fs::File::open(&packed).unwrap()).unpack(&unpacked).unwrap();
    assert_eq!(oci::read(&unpacked).unwrap().len(), 1);
    assert_eq!(fs::read_to_string(unpacked.join("oci-layout")).unwrap(), r#"{"imageLayoutVersion":"1.0.0"}"#);
}

#[test]
fn dynamically_linked_program_is_refused() {
    elf::read(&tiny(0)).unwrap().must_be_static(62).unwrap();
    let other = elf::read(&tiny(0)).unwrap().must_be_static(183).unwrap_err();
    assert_eq!(other.to_string(), "it is for the machine 62, not 183");
    // This test's own program is linked dynamically.
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    let error = elf::read(&own).unwrap().must_be_static(if cfg!(target_arch = "x86_64") { 62 } else { 183 });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("interpreter") && error.contains("ld-"), "{error}");
    for length in [0, 3, 20, 100] {
        assert!(elf::read(&tiny(0)[..length]).is_err());
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn static_program_runs_in_an_empty_root_by_its_name() {
    let run = |status, command: &str| {
        let folder = tempfile::tempdir().unwrap();
        let images = written(folder.path(), tiny(status), &["amd64"]).unwrap();
        empty_root::run(&images[0], &[command]).unwrap()
    };
    match run(0, "kube-controller-manager") {
        RunResult::Unsupported(why) => eprintln!("no program can be run in an empty root here: {why}"),
        result => {
            assert_eq!(result, RunResult::Succeeded(String::new()));
            assert_eq!(run(0, "kcm"), RunResult::Succeeded(String::new()));
            assert!(matches!(run(3, "kcm"), RunResult::Failed(words) if words.contains("exit status: 3")));
            assert!(matches!(run(0, "sh"), RunResult::Failed(words) if words.contains("sh")));
        }
    }
}
