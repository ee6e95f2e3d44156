//! Checks that the library crates can be published: they have metadata and a README with an example, and cargo packages
//! them.

use serde_json::Value;

use crate::cargo::{cargo, workspace};

/// The folders of the library crates.
const LIBRARIES: [&str; 9] = [
    "kinds",
    "cel-check",
    "runtime",
    "component",
    "providers",
    "providers/mock",
    "providers/conformance",
    "providers/aws",
    "providers/kubevirt",
];
/// Maximum number of keywords that a registry accepts.
const KEYWORDS: usize = 5;

/// Returns cargo's metadata of the library crates.
fn libraries() -> Vec<Value> {
    let output = cargo().args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).output();
    let output = output.expect("cargo metadata").stdout;
    let metadata: Value = serde_json::from_slice(&output).expect("the output of cargo metadata");
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let is_library = |package: &&Value| {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        LIBRARIES.iter().any(|folder| workspace().join(folder).join("Cargo.toml").as_os_str() == manifest)
    };
    packages.filter(is_library).cloned().collect()
}

#[test]
fn library_crates_have_metadata_and_a_readme() {
    let libraries = libraries();
    assert_eq!(libraries.len(), LIBRARIES.len());
    for package in libraries {
        let name = package["name"].as_str().expect("a name");
        assert!(package["publish"].is_null(), "{name} has `publish` set");
        for field in ["description", "documentation", "license", "readme", "rust_version"] {
            assert!(package[field].as_str().is_some_and(|text| !text.is_empty()), "{name} lacks {field}");
        }
        let count = |field: &str| package[field].as_array().map_or(0, Vec::len);
        assert!((1..=KEYWORDS).contains(&count("keywords")), "{name} has {} keywords", count("keywords"));
        assert!(count("categories") > 0, "{name} lacks categories");
    }
}

#[test]
fn examples_in_readmes_are_compiled() {
    for library in LIBRARIES {
        let read = |file: &str| std::fs::read_to_string(workspace().join(library).join(file)).expect("a text file");
        assert!(read("README.md").contains("```rust"), "{library}/README.md has no example");
        let is_compiled = read("src/lib.rs").contains("#[doc = include_str!(\"../README.md\")]");
        assert!(is_compiled, "{library}/src/lib.rs does not include README.md for doctests");
    }
}

#[test]
fn library_crates_can_be_packaged() {
    let target = tempfile::tempdir().expect("a folder");
    let mut command = cargo();
    command
        .args(["package", "--no-verify", "--offline", "--allow-dirty", "--quiet", "--target-dir"])
        .arg(target.path());
    for package in libraries() {
        command.args(["--package", package["name"].as_str().expect("a name")]);
    }
    let output = command.output().expect("cargo package");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packages = std::fs::read_dir(target.path().join("package")).expect("packages").map(|entry| entry.expect("one"));
    let archives = packages.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "crate"));
    assert_eq!(archives.count(), LIBRARIES.len());
}
