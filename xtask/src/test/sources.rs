//! Checks deny.toml's rules about licences, bans and sources if cargo-deny is not installed.
//!
//! The check reads `cargo metadata`, and works without a network. cargo-deny also checks the licences' texts and
//! advisories; if it is installed, it is used instead.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

/// The two lists of deny.toml.
#[derive(Debug, PartialEq, Eq)]
pub struct Rules {
    licences: BTreeSet<String>,
    bans: BTreeSet<String>,
}

impl Rules {
    /// Reads deny.toml. Fails unless both lists are there.
    pub fn read(text: &str) -> Result<Self> {
        let licences = text.split_once("\nallow = [").and_then(|(_, rest)| rest.split_once(']'));
        let licences = quoted(licences.context("deny.toml has no list of licences (allow = [...])")?.0);
        let bans: BTreeSet<String> =
            text.lines().filter_map(|line| line.trim().strip_prefix("{ crate = ")).flat_map(quoted_first).collect();
        anyhow::ensure!(!bans.is_empty(), "deny.toml bans no crate ({{ crate = \"...\", ... }})");
        Ok(Self { licences, bans })
    }

    /// Returns the problems of the packages of `cargo metadata`, one sentence each.
    pub fn violations(&self, metadata: &Value) -> Result<Vec<String>> {
        let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
        let mut violations = Vec::new();
        for package in packages {
            let (name, version) = (text(&package["name"]), text(&package["version"]));
            if self.bans.contains(name) {
                violations.push(format!("{name} {version} is banned"));
            }
            // Our own packages have no source.
            let Some(source) = package["source"].as_str() else { continue };
            if !source.starts_with("registry+") {
                violations.push(format!("{name} {version} comes from {source}, which is not a registry"));
            }
            let licence = text(&package["license"]);
            if !self.allows(licence) {
                violations
                    .push(format!("{name} {version} has the licence {licence:?}, which deny.toml does not allow"));
            }
        }
        Ok(violations)
    }

    /// Returns true if an SPDX expression is satisfied by the licences on the list.
    fn allows(&self, expression: &str) -> bool {
        // Before SPDX, a slash meant "or".
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut place = 0;
        self.any(&words, &mut place) && place == words.len()
    }

    fn any(&self, words: &[&str], place: &mut usize) -> bool {
        let mut allowed = self.all(words, place);
        while words.get(*place) == Some(&"OR") {
            *place += 1;
            allowed |= self.all(words, place);
        }
        allowed
    }

    fn all(&self, words: &[&str], place: &mut usize) -> bool {
        let mut allowed = self.one(words, place);
        while words.get(*place) == Some(&"AND") {
            *place += 1;
            allowed &= self.one(words, place);
        }
        allowed
    }

    fn one(&self, words: &[&str], place: &mut usize) -> bool {
        let Some(word) = words.get(*place) else { return false };
        *place += 1;
        if *word == "(" {
            let allowed = self.any(words, place);
            let closed = words.get(*place) == Some(&")");
            *place += usize::from(closed);
            return allowed && closed;
        }
        match (words.get(*place), words.get(*place + 1)) {
            (Some(&"WITH"), Some(exception)) => {
                *place += 2;
                self.licences.contains(*word) || self.licences.contains(&format!("{word} WITH {exception}"))
            }
            _ => self.licences.contains(*word),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the texts in double quotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn quoted_first(text: &str) -> Option<String> {
    text.split('"').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules() -> Rules {
        Rules::read(&std::fs::read_to_string(crate::cargo::workspace().join("deny.toml")).unwrap()).unwrap()
    }

    #[test]
    fn own_rules_are_parsed() {
        let rules = rules();
        assert!(rules.licences.contains("Apache-2.0 WITH LLVM-exception") && rules.licences.contains("MIT"));
        assert!(rules.bans.contains("openssl") && rules.bans.contains("aws-lc-sys"));
        assert!(Rules::read("allow").is_err());
    }

    #[test]
    fn licence_expressions_are_evaluated() {
        for (expression, allowed) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("MIT/Apache-2.0", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND GPL-3.0 OR ISC", true),
            ("(MIT OR GPL-3.0) AND ISC", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
            ("", false),
            ("(MIT", false),
            ("MIT ISC", false),
        ] {
            assert_eq!(rules().allows(expression), allowed, "{expression}");
        }
    }

    #[test]
    fn each_kind_of_violation_is_reported() {
        let registry = "registry+https://example.com";
        let package = |name: &str, licence: &str, source: Option<&str>| json!({"name": name, "version": "1.0.0", "license": licence, "source": source});
        let metadata = json!({"packages": [
            package("fine", "MIT", Some(registry)),
            package("ours", "Apache-2.0", None),
            package("openssl", "Apache-2.0", Some(registry)),
            package("strict", "GPL-3.0", Some(registry)),
            package("elsewhere", "MIT", Some("git+https://example.com/x")),
        ]});
        let violations = rules().violations(&metadata).unwrap();
        assert_eq!(
            violations,
            [
                "openssl 1.0.0 is banned",
                "strict 1.0.0 has the licence \"GPL-3.0\", which deny.toml does not allow",
                "elsewhere 1.0.0 comes from git+https://example.com/x, which is not a registry",
            ]
        );
    }
}
