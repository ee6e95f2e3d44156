//! The layers of each crate: a module imports only modules of lower layers, and imports between files have no cycle.
//!
//! The layers are data (`order.rs`). The test fails with the file, the line, the import and the violated rule, and if
//! a module of a crate is in no layer.

mod cycles;
mod imports;
mod order;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use imports::{Import, Source};
use order::{CRATES, Layers, WITHOUT_LAYERS};

/// Returns the source files of a crate, without those of tests.
fn sources(folder: &Path) -> Vec<(PathBuf, Source)> {
    let mut found = Vec::new();
    visit(folder, &[], &mut found);
    let tests: Vec<Vec<String>> = found.iter().flat_map(|(_, source)| source.tests.clone()).collect();
    found.retain(|(_, source)| !tests.iter().any(|test| source.module.starts_with(test)));
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

fn visit(folder: &Path, module: &[String], found: &mut Vec<(PathBuf, Source)>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").map(|entry| entry.expect("an entry")) {
        let path = entry.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            let inner: Vec<String> = module.iter().cloned().chain([name]).collect();
            visit(&path, &inner, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let own = module.iter().cloned().chain((!is_head(&path)).then_some(name)).collect();
            let text = std::fs::read_to_string(&path).expect("a source file");
            found.push((path, Source::read(own, &text)));
        }
    }
}

/// Returns true if a file is the root of a crate or the head of a folder.
fn is_head(path: &Path) -> bool {
    path.file_stem().is_some_and(|name| ["mod", "lib", "main"].iter().any(|head| name == *head))
}

/// Returns the entry that a module path belongs to, with the number of its layer. The longest entry applies.
fn place(layers: &Layers, path: &[String]) -> Option<(usize, &'static str)> {
    let entries =
        layers.order.iter().enumerate().flat_map(|(layer, names)| names.iter().map(move |name| (layer, *name)));
    let fits = entries.filter(|(_, name)| {
        let parts: Vec<&str> = name.split("::").collect();
        path.len() >= parts.len() && parts.iter().zip(path).all(|(part, own)| part == own)
    });
    fits.max_by_key(|(_, name)| name.len())
}

/// Returns the rule that an import violates, or `None`.
fn broken(layers: &Layers, from: (usize, &str), import: &Import) -> Option<String> {
    let path = import.path.join("::");
    let Some((layer, name)) = place(layers, &import.path) else {
        return Some(format!(
            "crate::{path} is an item of the crate root or a module in no layer: move it into a module below '{}'",
            from.1
        ));
    };
    let rule = match layer.cmp(&from.0) {
        std::cmp::Ordering::Less => return None,
        std::cmp::Ordering::Equal if name == from.1 => return None,
        std::cmp::Ordering::Equal => "a module must not import another module of its layer",
        std::cmp::Ordering::Greater => "a module must not import a module of a higher layer",
    };
    Some(format!("crate::{path}: '{}' (layer {}) imports '{name}' (layer {layer}); {rule}", from.1, from.0))
}

/// Returns all violations in a crate, one per line. The crate root is above all layers.
fn violations(root: &Path, layers: &Layers) -> String {
    let mut text = String::new();
    let sources = sources(&root.join(layers.folder));
    for (path, source) in sources.iter().filter(|(_, source)| !source.module.is_empty()) {
        let path = path.strip_prefix(root).unwrap_or(path).display();
        match place(layers, &source.module) {
            Some(from) => {
                for import in &source.imports {
                    if let Some(rule) = broken(layers, from, import) {
                        let _ = writeln!(text, "{path}:{}: {rule}", import.line);
                    }
                }
            }
            None => {
                let _ = writeln!(text, "{path}:1: the module is in no layer; add it to xtask/src/test/layers/order.rs");
            }
        }
    }
    for name in layers.order.iter().copied().flatten() {
        let parts: Vec<String> = name.split("::").map(str::to_owned).collect();
        if !sources.iter().any(|(_, source)| source.module.starts_with(&parts)) {
            let _ = writeln!(text, "{}: no module '{name}'; remove it from its layer", layers.folder);
        }
    }
    text
}

#[test]
fn imports_point_down_in_every_crate() {
    let text: String = CRATES.iter().map(|layers| violations(crate::cargo::workspace(), layers)).collect();
    assert!(text.is_empty(), "\n{text}");
}

#[test]
fn imports_between_files_have_no_cycle() {
    let mut text = String::new();
    for folder in CRATES.iter().map(|layers| layers.folder).chain(WITHOUT_LAYERS.iter().copied()) {
        let (heads, files): (Vec<_>, Vec<_>) =
            sources(&crate::cargo::workspace().join(folder)).into_iter().partition(|(path, _)| is_head(path));
        let read = |sources: Vec<(PathBuf, Source)>| sources.into_iter().map(|(_, source)| source).collect::<Vec<_>>();
        for cycle in cycles::cycles(&read(files), &read(heads)) {
            let _ = writeln!(
                text,
                "{folder}: cycle of imports between {}: move the shared items to a module that all of them import",
                cycle.join(", ")
            );
        }
    }
    assert!(text.is_empty(), "\n{text}");
}

#[test]
fn every_crate_of_the_workspace_has_layers() {
    let manifest = std::fs::read_to_string(crate::cargo::workspace().join("Cargo.toml")).expect("a manifest");
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).expect("members").0;
    let members = members.split('"').skip(1).step_by(2);
    for member in members {
        let folder = format!("{member}/src");
        assert!(
            WITHOUT_LAYERS.contains(&&*folder) || CRATES.iter().any(|layers| layers.folder == folder),
            "{member} has no layers"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: Layers = Layers { folder: "src", order: &[&["ground", "stones"], &["house"], &["house::roof"]] };

    fn violations(module: &[&str], text: &str) -> Vec<String> {
        let source = Source::read(module.iter().map(ToString::to_string).collect(), text);
        let from = place(&LAYERS, &source.module).expect("a layer");
        source.imports.iter().filter_map(|import| broken(&LAYERS, from, import)).collect()
    }

    #[test]
    fn imports_of_lower_layers_and_of_the_same_module_are_allowed() {
        assert!(violations(&["house"], "use crate::{ground::Soil, house::door::Door};").is_empty());
        assert!(violations(&["house", "door"], "use super::Wall; use super::super::ground::Soil;").is_empty());
        assert!(violations(&["house", "roof"], "use crate::house::Wall;").is_empty());
    }

    #[test]
    fn imports_of_higher_or_equal_layers_are_violations() {
        let up = violations(&["ground"], "fn f() { crate::house::build() }");
        assert_eq!(
            up,
            [
                "crate::house::build: 'ground' (layer 0) imports 'house' (layer 1); a module must not import a module of a higher layer"
            ]
        );
        assert!(violations(&["ground"], "use crate::stones::Stone;")[0].contains("another module of its layer"));
        assert!(violations(&["ground"], "use super::house::{self, Door};").len() == 2);
        assert!(violations(&["house", "door"], "use super::roof::Tile;")[0].contains("of a higher layer"));
        assert!(violations(&["house"], "use crate::Root;")[0].contains("crate root"));
    }
}
