//! Runs the same scenarios with upstream's manager and with ours, and compares the final states field by field.
//!
//! A [`Scenario`] is data: actions of users, and the states that they wait for. For another controller, add scenarios
//! to [`SCENARIOS`], its kinds to [`cluster_tests::traces`], and intended differences to [`INTENDED`].

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::objects::{deployment, replica_set, with};
use cluster_tests::traces::{Trace, difference, read_trace};
use cluster_tests::{Bed, Faults, Manager, Space, eventually};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::upstream::manager::{ROLLOUTS, UPSTREAM, start_upstream};

/// An action of a user, or a state to wait for.
enum Step {
    /// Creates a Deployment.
    Deployment(Value),
    /// Creates a ReplicaSet.
    ReplicaSet(Value),
    /// Runs kubectl with these arguments, separated by blanks.
    Kubectl(&'static str),
    /// Waits until these fields of an object (`resource/name`, JSON pointers) have these values.
    Until(&'static str, Vec<(&'static str, Value)>),
}

struct Scenario {
    name: &'static str,
    steps: fn() -> Vec<Step>,
}

/// Intended differences: a scenario, or `*`; a part of the difference's text; and the reason, which is printed.
const INTENDED: &[(&str, &str, &str)] = &[
    (
        "recreate",
        r#""ReplicaSet \"web-<hash 1>\" has successfully progressed.": 1 times under upstream, 0 under ours"#,
        CONFLICT,
    ),
    (
        "recreate",
        r#""ReplicaSet \"web-<hash 2>\" has successfully progressed.": 0 times under upstream, 1 under ours"#,
        CONFLICT,
    ),
];

/// The reason for a rare difference, which follows from upstream's code. The opposite difference fails the test.
const CONFLICT: &str = "after a conflict upstream does not record again that it created a ReplicaSet, and a complete \
                        Deployment keeps the message about the previous one";

/// Returns the step that waits for the end of a rollout with this many pods.
fn finished(generation: i64, replicas: i32) -> Step {
    Step::Until(
        "deployment/web",
        vec![
            ("/status/observedGeneration", generation.into()),
            ("/status/replicas", replicas.into()),
            ("/status/updatedReplicas", replicas.into()),
            ("/status/availableReplicas", replicas.into()),
            ("/status/terminatingReplicas", 0.into()),
        ],
    )
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "create", steps: || vec![Step::Deployment(deployment("web", 3)), finished(1, 3)] },
    Scenario {
        name: "rollout",
        steps: || {
            vec![
                Step::Deployment(deployment("web", 2)),
                finished(1, 2),
                Step::Kubectl("set image deployment/web main=example.com/image:2"),
                finished(2, 2),
            ]
        },
    },
    Scenario {
        name: "undo",
        steps: || {
            vec![
                Step::Deployment(deployment("web", 2)),
                finished(1, 2),
                Step::Kubectl("set image deployment/web main=example.com/image:2"),
                finished(2, 2),
                Step::Kubectl("rollout undo deployment/web"),
                finished(3, 2),
            ]
        },
    },
    Scenario {
        name: "pause",
        steps: || {
            vec![
                Step::Deployment(deployment("web", 2)),
                finished(1, 2),
                Step::Kubectl("rollout pause deployment/web"),
                Step::Kubectl("set image deployment/web main=example.com/image:2"),
                Step::Until("deployment/web", vec![("/status/observedGeneration", 3.into())]),
            ]
        },
    },
    Scenario {
        name: "resume",
        steps: || {
            vec![
                Step::Deployment(with(deployment("web", 2), json!({"spec": {"paused": true}}))),
                Step::Until("deployment/web", vec![("/status/observedGeneration", 1.into())]),
                Step::Kubectl("rollout resume deployment/web"),
                finished(2, 2),
            ]
        },
    },
    Scenario {
        name: "scale",
        steps: || {
            vec![
                Step::Deployment(deployment("web", 1)),
                finished(1, 1),
                Step::Kubectl("scale deployment/web --replicas=4"),
                finished(2, 4),
                Step::Kubectl("scale deployment/web --replicas=2"),
                finished(3, 2),
            ]
        },
    },
    Scenario {
        name: "recreate",
        steps: || {
            let recreate = json!({"spec": {"strategy": {"type": "Recreate"}}});
            vec![
                Step::Deployment(with(deployment("web", 2), recreate)),
                finished(1, 2),
                Step::Kubectl("set image deployment/web main=example.com/image:2"),
                finished(2, 2),
            ]
        },
    },
    Scenario {
        name: "history",
        steps: || {
            vec![
                Step::Deployment(with(deployment("web", 1), json!({"spec": {"revisionHistoryLimit": 0}}))),
                finished(1, 1),
                Step::Kubectl("set image deployment/web main=example.com/image:2"),
                finished(2, 1),
                Step::Until("replicasets", vec![("/items/1", Value::Null)]),
            ]
        },
    },
    Scenario {
        name: "failure",
        steps: || {
            let unschedulable = json!({"spec": {
                "progressDeadlineSeconds": 2,
                "template": {"spec": {"nodeSelector": {"no": "such-node"}}},
            }});
            vec![
                Step::Deployment(with(deployment("web", 2), unschedulable)),
                Step::Until("deployment/web", vec![("/status/conditions/1/reason", "ProgressDeadlineExceeded".into())]),
            ]
        },
    },
    Scenario {
        name: "quota",
        steps: || {
            vec![
                Step::Kubectl("create quota none --hard=pods=0"),
                // resourcequota-controller does not run: the test writes the status.
                Step::Kubectl(
                    r#"patch quota none --subresource=status --type=merge -p {"status":{"hard":{"pods":"0"},"used":{"pods":"0"}}}"#,
                ),
                Step::ReplicaSet(replica_set("alone", 1)),
                Step::Until("replicaset/alone", vec![("/status/conditions/0/reason", "FailedCreate".into())]),
            ]
        },
    },
    Scenario {
        name: "replica set",
        steps: || {
            vec![
                Step::ReplicaSet(replica_set("alone", 3)),
                Step::Until("replicaset/alone", vec![("/status/availableReplicas", 3.into())]),
                Step::Kubectl("scale replicaset/alone --replicas=1"),
                Step::Until(
                    "replicaset/alone",
                    vec![("/status/replicas", 1.into()), ("/status/terminatingReplicas", 0.into())],
                ),
            ]
        },
    },
];

async fn run_scenario(space: &Space, scenario: &Scenario) -> Result<Trace> {
    for step in (scenario.steps)() {
        match step {
            Step::Deployment(object) => drop(space.create::<k8s_openapi::api::apps::v1::Deployment>(object).await?),
            Step::ReplicaSet(object) => drop(space.create::<k8s_openapi::api::apps::v1::ReplicaSet>(object).await?),
            Step::Kubectl(arguments) => {
                let arguments: Vec<&str> = arguments.split_whitespace().collect();
                space.kubectl(&arguments).await?;
            }
            Step::Until(object, wanted) => {
                eventually(format!("{object}: {wanted:?}"), || async {
                    let text = space.kubectl(&["get", object, "--output=json"]).await?;
                    let found: Value = serde_json::from_str(&text)?;
                    for (pointer, value) in &wanted {
                        let is = found.pointer(pointer).unwrap_or(&Value::Null);
                        ensure!(is == value, "{pointer} is {is}");
                    }
                    Ok(())
                })
                .await?;
            }
        }
    }
    settled(space).await
}

/// Waits until the trace no longer changes, and returns it. Events are written last, and with delay.
async fn settled(space: &Space) -> Result<Trace> {
    let mut last = read_trace(space).await?;
    for _ in 0..20 {
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        let now = read_trace(space).await?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
    bail!("the state does not become stable")
}

/// Runs all scenarios in parallel, each in a separate namespace.
async fn play_all(bed: &std::sync::Arc<Bed>, ours: bool) -> Result<BTreeMap<&'static str, Trace>> {
    let played = SCENARIOS.iter().map(|scenario| async move {
        let space = bed.space(&scenario.name.replace(' ', "-")).await?;
        let faults = Faults::default();
        let _manager = if ours { Some(Manager::start(&space, &faults).await?) } else { None };
        let trace = run_scenario(&space, scenario).await.with_context(|| format!("scenario {}", scenario.name))?;
        anyhow::Ok((scenario.name, trace))
    });
    Ok(try_join_all(played).await?.into_iter().collect())
}

/// Upstream's manager watches all namespaces, so this needs a separate control plane.
pub async fn final_state_equals_that_of_upstream(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    start_upstream(&bed.cluster, ROLLOUTS, &[])?;
    let upstream = play_all(&bed, false).await.context("upstream")?;
    bed.cluster.kill(UPSTREAM)?;
    let ours = play_all(&bed, true).await.context("ours")?;
    let (mut wrong, mut seen) = (Vec::new(), vec![0; INTENDED.len()]);
    for (name, trace) in &upstream {
        for text in difference(trace, ours.get(name).context("a scenario was not run")?) {
            let known = INTENDED.iter().position(|(of, part, _)| (*of == "*" || of == name) && text.contains(part));
            match known {
                Some(at) => seen[at] += 1,
                None => wrong.push(format!("{name}: {text}")),
            }
        }
    }
    for ((of, part, why), times) in INTENDED.iter().zip(seen) {
        println!("intended, found {times} times, scenario {of}: {part} ({why})");
    }
    println!("{} scenarios, {} unintended differences", upstream.len(), wrong.len());
    ensure!(wrong.is_empty(), "{} unintended differences:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
