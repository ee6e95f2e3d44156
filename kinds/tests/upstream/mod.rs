//! Upstream's `generated.proto` files.
//!
//! They are part of upstream's Go modules. `KINDS_PROTO_API` and `KINDS_PROTO_APIMACHINERY` are the folders of
//! `k8s.io/api` and `k8s.io/apimachinery`; without them, `go list` finds the modules.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first part of a path in `ListedMessage::file`, the variable with that module's folder, and the module.
const MODULES: [(&str, &str, &str); 2] =
    [("api", "KINDS_PROTO_API", "k8s.io/api"), ("apimachinery", "KINDS_PROTO_APIMACHINERY", "k8s.io/apimachinery")];

/// The Go module that requires upstream's modules.
const GO_MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/control-plane");

/// Returns name and number of a field declared in a line such as `optional ObjectMeta metadata = 1;`.
pub fn field(line: &str) -> Option<(&str, u32)> {
    let (left, right) = line.strip_suffix(';')?.split_once(" = ")?;
    Some((left.rsplit(' ').next()?, right.parse().ok()?))
}

/// Returns the folder of each module in [`MODULES`], by the first part of a path in `ListedMessage::file`, or the
/// reason why a folder is unknown.
pub fn folders() -> Result<BTreeMap<&'static str, PathBuf>, String> {
    MODULES
        .iter()
        .map(|(name, variable, module)| {
            let folder = env::var_os(variable).map(PathBuf::from).map_or_else(|| go_module_folder(module), Ok)?;
            Ok((*name, folder))
        })
        .collect()
}

fn go_module_folder(module: &str) -> Result<PathBuf, String> {
    let output = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", module])
        .current_dir(GO_MODULE)
        .output()
        .map_err(|error| format!("go cannot be run: {error}"))?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match folder.as_str() {
        "" => Err(format!("go has not downloaded {module}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        _ => Ok(folder.into()),
    }
}

/// Returns the text of the proto file in the folder `file`, a path such as `api/core/v1`.
pub fn read(folders: &BTreeMap<&str, PathBuf>, file: &str) -> String {
    let (module, rest) = file.split_once('/').unwrap_or((file, ""));
    let folder = folders.get(module).unwrap_or_else(|| panic!("{file}: module {module} is not in MODULES"));
    let path = Path::new(folder).join(rest).join("generated.proto");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
