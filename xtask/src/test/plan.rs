//! The stages for a request: data, and one pure function.

use anyhow::{Result, bail};

/// The package whose tests run controllers on a real control plane.
const CLUSTER_TESTS: &str = "cluster-tests";

/// Packages whose tests start control planes, or share their dependencies: the AWS SDK takes minutes to build, and
/// cargo rebuilds it for another selection of packages.
const ON_A_CLUSTER: [&str; 5] = ["control-plane", CLUSTER_TESTS, "echo-operator", "moto", "kubewright-provider-aws"];

/// Returns cargo's arguments for one test program (`--test`). The packages are those of the cluster stage, so that
/// cargo does not rebuild their dependencies.
pub fn one_program(program: &'static str) -> Vec<&'static str> {
    let packages = ON_A_CLUSTER.iter().flat_map(|package| ["--package", package]);
    ["test"].into_iter().chain(packages).chain(["--test", program, "--"]).collect()
}

/// The program of the cluster tests.
const CLUSTER_TESTS_PROGRAM: &str = "cluster";

/// The module of the cluster tests with crashes and other faults.
const FAULTS: &str = "faults::";

/// A group of stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Selector {
    /// Formatting, clippy, licences and bans, documentation
    Lints,
    /// Unit, table and property tests; they need no control plane
    Unit,
    /// Tests on a real control plane
    Cluster,
    /// Crashes and faults on a real control plane
    Faults,
    /// A real cluster with real kubelets; skipped on machines that cannot run one, unless selected
    Real,
}

/// The requested tests.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The groups; all if there are none.
    pub selectors: Vec<Selector>,
    /// Parts of the tests' names; any test if there are none.
    pub names: Vec<String>,
    /// True to check for security advisories.
    pub advisories: bool,
    /// True to run only the tests on a control plane, with every alpha and beta feature gate on.
    pub all_gates: bool,
    /// The packages of the workspace.
    pub packages: Vec<String>,
}

/// The work of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// cargo with these arguments; warnings of rustdoc are errors.
    Cargo(Vec<String>),
    /// Like [`Work::Cargo`]; without cargo-deny, the checks that are possible without it.
    CargoDeny(Vec<String>),
    /// cargo with these arguments, whose tests are counted. Environment variables contain the folders of upstream's
    /// downloaded `generated.proto` files.
    Tests(Vec<String>),
    /// Like [`Work::Tests`], with every alpha and beta feature gate on.
    TestsWithAllGates(Vec<String>),
    /// Builds the programs that tests start by default: the control plane, the renderer of charts, upstream's manager,
    /// and the CSI driver with its sidecars.
    Programs,
    /// The smoke test of a real cluster.
    RealCluster {
        /// The command line selects the smoke test: a machine that cannot run it is a failure.
        is_selected: bool,
    },
}

/// One line of the closing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its name in headers and in the table.
    pub name: &'static str,
    /// Its work.
    pub work: Work,
}

/// Returns the stages, in order. Fails if a requested group's package does not exist.
pub fn plan(request: &Request) -> Result<Vec<Stage>> {
    if request.all_gates {
        return plan_with_all_gates(request);
    }
    let has = |package: &str| request.packages.iter().any(|known| known == package);
    let is_named = |selector| request.selectors.contains(&selector);
    let is_selected = |selector| request.selectors.is_empty() || is_named(selector);
    if is_named(Selector::Faults) && !has(CLUSTER_TESTS) {
        bail!("the selector faults needs the package {CLUSTER_TESTS}, which this workspace does not have");
    }
    let mut stages = Vec::new();
    if is_named(Selector::Lints) || is_selected(Selector::Lints) && request.names.is_empty() {
        stages.extend(lints(request.advisories));
    }
    if is_selected(Selector::Unit) {
        let packages = ON_A_CLUSTER.iter().filter(|package| has(package));
        let others = packages.flat_map(|package| ["--exclude".to_owned(), (*package).to_owned()]);
        // Without default features: only ccm's binary needs the cloud SDKs, and no unit test runs it.
        let arguments =
            words("test --no-fail-fast --no-default-features --workspace").into_iter().chain(others).collect();
        stages.push(Stage { name: "unit", work: tests(arguments, &[], &request.names) });
    }
    let (cluster, faults) = (is_selected(Selector::Cluster), is_selected(Selector::Faults) && has(CLUSTER_TESTS));
    if cluster || faults {
        stages.push(Stage { name: "programs", work: Work::Programs });
    }
    // A test program cannot select faults that also match a name: with names, one stage has both groups.
    let together = cluster && faults && !request.names.is_empty();
    let on_a_cluster = || -> Vec<String> {
        let packages = ON_A_CLUSTER.iter().filter(|package| has(package));
        let packages = packages.flat_map(|package| ["--package".to_owned(), (*package).to_owned()]);
        words("test --no-fail-fast").into_iter().chain(packages).collect()
    };
    if cluster {
        let harness: &[&str] = if together { &[] } else { &["--skip", FAULTS] };
        stages.push(Stage { name: "cluster", work: tests(on_a_cluster(), harness, &request.names) });
    }
    if faults && !together {
        let names = if request.names.is_empty() {
            vec![FAULTS.to_owned()]
        } else {
            request.names.iter().map(|name| in_faults(name)).collect()
        };
        stages.push(Stage { name: "faults", work: tests(on_a_cluster(), &[], &names) });
    }
    if is_named(Selector::Real) || is_selected(Selector::Real) && request.names.is_empty() {
        if !cluster && !faults {
            stages.push(Stage { name: "programs", work: Work::Programs });
        }
        let is_selected = is_named(Selector::Real);
        stages.push(Stage { name: "real", work: Work::RealCluster { is_selected } });
    }
    Ok(stages)
}

/// Returns the stages of the cluster tests with every alpha and beta feature gate on.
fn plan_with_all_gates(request: &Request) -> Result<Vec<Stage>> {
    let is_on_a_cluster = |selector: &Selector| matches!(selector, Selector::Cluster | Selector::Faults);
    if request.advisories || !request.selectors.iter().all(is_on_a_cluster) {
        bail!("--all-gates is for the selectors cluster and faults only");
    }
    let is_selected = |selector| request.selectors.is_empty() || request.selectors.contains(&selector);
    let stage = |name, skipped: &[&str], names: &[String]| {
        let arguments = one_program(CLUSTER_TESTS_PROGRAM).into_iter().chain(skipped.iter().copied());
        let arguments = arguments.map(str::to_owned).chain(names.iter().cloned());
        Stage { name, work: Work::TestsWithAllGates(arguments.collect()) }
    };
    let mut stages = vec![Stage { name: "programs", work: Work::Programs }];
    // With names, one stage has both groups, as without all gates.
    let together = is_selected(Selector::Cluster) && is_selected(Selector::Faults) && !request.names.is_empty();
    if is_selected(Selector::Cluster) {
        stages.push(stage("cluster", if together { &[] } else { &["--skip", FAULTS] }, &request.names));
    }
    if is_selected(Selector::Faults) && !together {
        let names = if request.names.is_empty() {
            vec![FAULTS.to_owned()]
        } else {
            request.names.iter().map(|name| in_faults(name)).collect()
        };
        stages.push(stage("faults", &[], &names));
    }
    Ok(stages)
}

/// Returns the name with the prefix of the module of faults, unless it has that prefix.
fn in_faults(name: &str) -> String {
    if name.starts_with(FAULTS) { name.to_owned() } else { format!("{FAULTS}{name}") }
}

fn lints(advisories: bool) -> Vec<Stage> {
    let deny = words("deny check licenses bans sources").into_iter().chain(advisories.then(|| "advisories".to_owned()));
    let stage = |name, work| Stage { name, work };
    vec![
        stage("fmt", Work::Cargo(words("fmt --check"))),
        stage("clippy", Work::Cargo(words("clippy --workspace --all-targets -- -D warnings"))),
        stage("deny", Work::CargoDeny(deny.collect())),
        stage("doc", Work::Cargo(words("doc --workspace --no-deps"))),
    ]
}

/// Returns the work of a stage of tests, from cargo's arguments, those of the test programs, and parts of names.
fn tests(mut arguments: Vec<String>, harness: &[&str], names: &[String]) -> Work {
    arguments.push("--".into());
    arguments.extend(harness.iter().map(ToString::to_string));
    arguments.extend(names.iter().cloned());
    Work::Tests(arguments)
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stage: &Stage) -> String {
        match &stage.work {
            Work::Cargo(arguments)
            | Work::CargoDeny(arguments)
            | Work::Tests(arguments)
            | Work::TestsWithAllGates(arguments) => arguments.join(" "),
            Work::Programs | Work::RealCluster { .. } => String::new(),
        }
    }

    fn planned(selectors: &[Selector], names: &[&str], packages: &[&str]) -> Result<Vec<(&'static str, String)>> {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let request = Request {
            selectors: selectors.to_vec(),
            names: texts(names),
            packages: texts(packages),
            ..Request::default()
        };
        Ok(plan(&request)?.iter().map(|stage| (stage.name, line(stage))).collect())
    }

    fn names(selectors: &[Selector], filter: &[&str]) -> Vec<&'static str> {
        let stages = planned(selectors, filter, &["kinds", "control-plane", "cluster-tests"]).unwrap();
        stages.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn selectors_choose_stages() {
        let all = ["fmt", "clippy", "deny", "doc", "unit", "programs", "cluster", "faults", "real"];
        assert_eq!(names(&[], &[]), all);
        assert_eq!(names(&[Selector::Faults, Selector::Unit, Selector::Lints, Selector::Cluster], &[]), all[..8]);
        assert_eq!(names(&[Selector::Real], &[]), ["programs", "real"]);
        assert_eq!(names(&[Selector::Lints], &[]), ["fmt", "clippy", "deny", "doc"]);
        assert_eq!(names(&[Selector::Unit], &[]), ["unit"]);
        assert_eq!(names(&[Selector::Cluster], &[]), ["programs", "cluster"]);
        assert_eq!(names(&[Selector::Faults], &[]), ["programs", "faults"]);
        assert_eq!(names(&[], &["rollout"]), ["unit", "programs", "cluster"]);
        assert_eq!(names(&[Selector::Faults], &["rollout"]), ["programs", "faults"]);
        assert_eq!(names(&[Selector::Lints, Selector::Unit], &["rollout"]), ["fmt", "clippy", "deny", "doc", "unit"]);
    }

    #[test]
    fn real_cluster_is_required_when_it_is_selected() {
        let last = |selectors: &[Selector]| {
            let request = Request { selectors: selectors.to_vec(), ..Request::default() };
            plan(&request).unwrap().pop().unwrap().work
        };
        assert_eq!(last(&[]), Work::RealCluster { is_selected: false });
        assert_eq!(last(&[Selector::Real]), Work::RealCluster { is_selected: true });
    }

    #[test]
    fn every_test_is_in_one_stage() {
        let stages = planned(&[], &[], &["kinds", "control-plane", "cluster-tests"]).unwrap();
        let lines: Vec<_> = stages.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            lines[4],
            "test --no-fail-fast --no-default-features --workspace --exclude control-plane --exclude cluster-tests --"
        );
        assert_eq!(lines[6], "test --no-fail-fast --package control-plane --package cluster-tests -- --skip faults::");
        assert_eq!(lines[7], "test --no-fail-fast --package control-plane --package cluster-tests -- faults::");
    }

    #[test]
    fn filter_is_passed_to_every_test_program() {
        let endings = |selectors: &[Selector]| -> Vec<String> {
            let packages = ["control-plane", "cluster-tests"];
            let stages = planned(selectors, &["rollout", "faults::crash"], &packages).unwrap();
            stages.iter().filter_map(|(_, line)| Some(line.split_once(" -- ")?.1.to_owned())).collect()
        };
        assert_eq!(endings(&[]), ["rollout faults::crash", "rollout faults::crash"]);
        assert_eq!(endings(&[Selector::Cluster]), ["--skip faults:: rollout faults::crash"]);
        assert_eq!(endings(&[Selector::Faults]), ["faults::rollout faults::crash"]);
    }

    #[test]
    fn all_gates_are_on_in_the_stages_on_a_control_plane_only() {
        let planned = |selectors: &[Selector], names: &[&str]| {
            let names = names.iter().map(ToString::to_string).collect();
            let request = Request { selectors: selectors.to_vec(), names, all_gates: true, ..Request::default() };
            plan(&request).map(|stages| {
                assert!(stages[1..].iter().all(|stage| matches!(stage.work, Work::TestsWithAllGates(_))));
                let ending =
                    |stage: &Stage| line(stage).split_once(" --test cluster -- ").map(|(_, end)| end.to_owned());
                stages.iter().map(|stage| (stage.name, ending(stage).unwrap_or_default())).collect::<Vec<_>>()
            })
        };
        let stages = |stages: &[(&'static str, &str)]| {
            let programs = std::iter::once(&("programs", ""));
            programs.chain(stages).map(|(name, end)| (*name, (*end).to_owned())).collect::<Vec<_>>()
        };
        let all = stages(&[("cluster", "--skip faults::"), ("faults", "faults::")]);
        assert_eq!(planned(&[], &[]).unwrap(), all);
        assert_eq!(planned(&[Selector::Faults], &[]).unwrap(), stages(&[("faults", "faults::")]));
        assert_eq!(planned(&[], &["rollout"]).unwrap(), stages(&[("cluster", "rollout")]));
        assert_eq!(planned(&[Selector::Faults], &["job"]).unwrap(), stages(&[("faults", "faults::job")]));
        for selector in [Selector::Lints, Selector::Unit, Selector::Real] {
            assert!(planned(&[Selector::Cluster, selector], &[]).is_err(), "{selector:?}");
        }
    }

    #[test]
    fn missing_package_is_skipped_or_an_error() {
        let packages = ["kinds", "control-plane"];
        let stages = planned(&[], &[], &packages).unwrap();
        assert_eq!(stages[stages.len() - 2].1, "test --no-fail-fast --package control-plane -- --skip faults::");
        assert!(planned(&[Selector::Faults], &[], &packages).is_err());
    }
}
