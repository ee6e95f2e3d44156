//! Groups of small programs that are built with Go from the modules in `go/`, and cached outside the checkout.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control_plane::assets::cache_root;
use control_plane::assets::go::{self, Recipe};

/// A program of a group: its name, its module in `go/`, and its package.
pub(crate) type Part = (&'static str, &'static str, &'static str);

/// A group of programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// All inputs of the builds; their hash is the version in the cache.
    pub(crate) sources: &'static [&'static str],
    pub(crate) parts: &'static [Part],
}

impl Parts {
    /// Builds programs that do not exist. Blocks, for minutes the first time.
    ///
    /// # Errors
    /// When Go is missing or fails, or the disk is full.
    pub(crate) fn build(&self) -> Result<()> {
        let cache = self.cache()?;
        for (name, module, package) in self.parts {
            if cache.join(name).is_file() {
                continue;
            }
            let output = go::folder(&cache).join(name).display().to_string();
            let arguments = ["build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", &output, package];
            let recipe = Recipe {
                title: name,
                binary: name,
                links: &[],
                module: Path::new(env!("CARGO_MANIFEST_DIR")).join("go").join(module),
                arguments: arguments.map(str::to_owned).into(),
                cgo: false,
                space: go::SMALL_BUILD_BYTES,
            };
            go::build(&recipe, &cache).with_context(|| format!("get {name}"))?;
        }
        Ok(())
    }

    /// Returns true if all programs exist.
    ///
    /// # Errors
    /// When the environment names no place for them.
    pub(crate) fn are_built(&self) -> Result<bool> {
        let cache = self.cache()?;
        Ok(self.parts.iter().all(|(name, ..)| cache.join(name).is_file()))
    }

    /// Returns the path of a program, which exists once it is built.
    ///
    /// # Errors
    /// As [`Parts::are_built`].
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        Ok(self.cache()?.join(name))
    }

    /// Returns the folder with this version of the programs.
    fn cache(&self) -> Result<PathBuf> {
        Ok(cache_root()?.join(go::version(self.sources)))
    }
}
