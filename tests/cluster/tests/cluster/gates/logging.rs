//! Gates of the log's options.

use anyhow::{Context, Result, ensure};
use cluster_tests::Space;
use cluster_tests::programs::KCM;
use serde_json::Value;

use super::{flag, refusal};
use crate::process::serving::{ManagerProcess, bare_control_plane};

const CONTROLLER: &str = "--controllers=serviceaccount-controller";

/// An option without effect, of which the manager warns.
const WARNED_OF: &str = "--log-text-info-buffer-size=1Ki";

/// Returns the levels of JSON lines.
fn levels(lines: &str) -> Result<Vec<String>> {
    let level = |line: &str| {
        let line: Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        Ok(line["level"].as_str().unwrap_or_default().to_owned())
    };
    lines.lines().map(level).collect()
}

fn owned<const N: usize>(flags: [&str; N]) -> [String; N] {
    flags.map(str::to_owned)
}

pub async fn json_is_logged_with_its_gate(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let [on, off] = [true, false].map(|is_on| flag(&["LoggingBetaOptions"], is_on));
    let kcm = ManagerProcess::start(&cluster, KCM, &owned(["--logging-format=json", &on, CONTROLLER])).await?;
    let logged = levels(&kcm.log()?)?;
    ensure!(logged.iter().any(|level| level == "INFO"), "{logged:?}");
    kcm.terminate().await?;
    let refused = refusal(&cluster, &owned(["--logging-format=json", &off, CONTROLLER])).await?;
    ensure!(refused.contains("requires the feature gate LoggingBetaOptions"), "{refused}");
    // The stable format needs no gate.
    ManagerProcess::start(&cluster, KCM, &owned(["--logging-format=text", &off, CONTROLLER])).await?.terminate().await
}

pub async fn streams_are_split_with_their_gate(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let [on, off] = [true, false].map(|is_on| flag(&["LoggingAlphaOptions"], is_on));
    let text = owned(["--log-text-split-stream", WARNED_OF, &on, CONTROLLER]);
    let kcm = ManagerProcess::start(&cluster, KCM, &text).await?;
    let (severe, others) = (kcm.log()?, kcm.output()?);
    let is_split = severe.contains(" WARN ") && !severe.contains(" INFO ");
    ensure!(is_split && others.contains(" INFO ") && !others.contains(" WARN "), "{severe}\n---\n{others}");
    kcm.terminate().await?;

    let json = owned(["--logging-format=json", "--log-json-split-stream", WARNED_OF, &on, CONTROLLER]);
    let kcm = ManagerProcess::start(&cluster, KCM, &json).await?;
    let (severe, others) = (levels(&kcm.log()?)?, levels(&kcm.output()?)?);
    ensure!(severe.iter().all(|level| level == "ERROR"), "{severe:?}");
    ensure!(["INFO", "WARN"].iter().all(|level| others.iter().any(|other| other == level)), "{others:?}");
    kcm.terminate().await?;

    for option in ["--log-text-split-stream", "--log-json-split-stream", WARNED_OF] {
        let refused = refusal(&cluster, &owned([option, &off, CONTROLLER])).await?;
        ensure!(refused.contains("requires the feature gate LoggingAlphaOptions"), "{option}: {refused}");
    }
    Ok(())
}
