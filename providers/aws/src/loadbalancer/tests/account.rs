//! A model of AWS for plans: the effects of steps on resources, and the steps that AWS would refuse.

use providers::{CloudError, LoadBalancerSpec, Targets};

use crate::loadbalancer::model::build::{self, StackInputs, desired};
use crate::loadbalancer::model::diff;
use crate::loadbalancer::observed::stack::{CreatedResource, ObservedStack, State};
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::plan::{Plan, Step};
use crate::loadbalancer::samples;
use crate::loadbalancer::spec::annotations::read;
use crate::loadbalancer::spec::settings::{Policy, Settings};
use crate::loadbalancer::types::{Desired, TargetGroup, TargetHealth};
use crate::tags::ClusterTags;

/// The resources of one Service.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    pub observed: ObservedStack,
    pub steps: Vec<Step>,
}

/// Returns the settings of a Service.
pub(crate) fn settings(spec: &LoadBalancerSpec) -> Settings {
    let policy = Policy { controller_services: true, ..Policy::default() };
    read(spec, &policy).unwrap_or_else(|error| panic!("{error}")).1.expect("this provider serves the Service")
}

impl Account {
    /// Returns the whole desired stack of a Service, given the existing resources.
    pub(crate) fn desired(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Desired {
        self.in_network(spec, targets, &samples::network())
    }

    pub(crate) fn in_network(&self, spec: &LoadBalancerSpec, targets: &Targets, network: &Network) -> Desired {
        self.try_in_network(spec, targets, network).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the whole desired stack, or the reason for which it cannot be made.
    pub(crate) fn try_desired(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Desired, CloudError> {
        self.try_in_network(spec, targets, &samples::network())
    }

    fn try_in_network(
        &self,
        spec: &LoadBalancerSpec,
        targets: &Targets,
        network: &Network,
    ) -> Result<Desired, CloudError> {
        let settings = settings(spec);
        let cluster = ClusterTags::new("c", false);
        let existing = build::existing(&settings, &spec.id, &self.observed);
        let inputs = StackInputs {
            id: &spec.id,
            cluster: &cluster,
            network,
            observed: &self.observed,
            backend: build::wants_backend(&settings, existing, &self.observed).then_some("sg-backend"),
            named_groups: &[],
            targets,
        };
        desired(&settings, &inputs).map(|(desired, _)| desired)
    }

    /// Makes one step, and checks that AWS allows it.
    pub(crate) fn make(&mut self, step: &Step) {
        self.check_allowed(step);
        let number = self.steps.len();
        let id = match step {
            Step::CreateSecurityGroup(group) => format!("sg-{}-{number}", group.name),
            Step::CreateBalancer(balancer) => format!("arn:loadbalancer/{}/{number}", balancer.name),
            Step::CreateTargetGroup(group) => format!("arn:targetgroup/{}/{number}", group.name),
            Step::CreateListener { listener, .. } => format!("arn:listener/{}/{number}", listener.port),
            _ => String::new(),
        };
        let rules = (0..100).map(|rule| format!("sgr-{number}-{rule}")).collect();
        let dns = format!("{number}.elb.example.com");
        self.observed.apply_step(step, &CreatedResource { id, dns, rules });
        self.steps.push(step.clone());
    }

    fn check_allowed(&self, step: &Step) {
        let observed = &self.observed;
        let balancer =
            |name: &str| observed.balancer(name).unwrap_or_else(|| panic!("no load balancer {name}: {step:?}"));
        let group = |name: &str| observed.target_group(name).unwrap_or_else(|| panic!("no group {name}: {step:?}"));
        let own = |forwards: &[(String, i32)]| {
            let names: Vec<String> = forwards.iter().map(|(name, _)| name.clone()).collect();
            names.into_iter().filter(|name| !name.starts_with("arn:"))
        };
        match step {
            Step::CreateSecurityGroup(group) => assert!(observed.security_group(&group.name).is_none(), "{step:?}"),
            Step::CreateBalancer(wanted) => {
                assert!(observed.balancer(&wanted.name).is_none(), "{step:?}");
                assert!(!wanted.subnets.is_empty() && !wanted.name.is_empty() && !wanted.tags.is_empty());
            }
            Step::CreateTargetGroup(wanted) => {
                assert!(observed.target_group(&wanted.name).is_none(), "{step:?}");
                assert!(!wanted.tags.is_empty());
            }
            Step::CreateListener { balancer: name, listener, forwards } => {
                let taken = balancer(name).listeners.iter().any(|one| one.port == listener.port);
                assert!(!taken, "AWS allows only one listener for a port: {step:?}");
                own(forwards).for_each(|name| assert!(!group(&name).arn.is_empty()));
            }
            Step::ModifyListener { forwards, .. } => {
                own(forwards).for_each(|name| assert!(!group(&name).arn.is_empty()));
                assert!(forwards.iter().any(|(_, weight)| *weight > 0), "nothing gets traffic: {step:?}");
            }
            Step::DeleteTargetGroup { arn } => assert!(!observed.is_used(arn), "{step:?} is in use"),
            Step::DeleteSecurityGroup { id } => {
                let carried = observed.balancers.iter().any(|one| one.security_groups.contains(id));
                assert!(!carried, "{step:?} is in use");
            }
            Step::SetSubnets { balancer: name, subnets, .. } => {
                let have = &balancer(name).subnets;
                for one in subnets {
                    let other = have.iter().find(|old| old.zone == one.zone && old.subnet != one.subnet);
                    assert!(other.is_none(), "AWS cannot replace a zone's subnet in one step: {step:?}");
                }
            }
            Step::SetSecurityGroups { balancer: name, groups, .. } => {
                let had = !balancer(name).security_groups.is_empty();
                assert!(
                    had && !groups.is_empty(),
                    "AWS neither adds a first security group nor removes the last: {step:?}"
                );
            }
            _ => {}
        }
    }

    /// Simulates time in AWS: load balancers become active, targets in use become healthy.
    pub(crate) fn time_passes(&mut self) {
        for balancer in &mut self.observed.balancers {
            balancer.state = State::Active;
        }
        let used: Vec<String> = self
            .observed
            .target_groups
            .iter()
            .filter(|one| self.observed.is_used(&one.arn))
            .map(|one| one.arn.clone())
            .collect();
        for group in &mut self.observed.target_groups {
            let health = if used.contains(&group.arn) { TargetHealth::Healthy } else { TargetHealth::Unused };
            group.targets.values_mut().for_each(|one| *one = health);
        }
    }

    /// Runs one `ensure` that may make this number of steps before it crashes. Returns its plan, or `None` after a
    /// crash.
    pub(crate) fn ensure(&mut self, spec: &LoadBalancerSpec, targets: &Targets, mut max_steps: usize) -> Option<Plan> {
        let desired = self.desired(spec, targets);
        for _ in 0..8 {
            let plan = diff::ensure(&desired, &self.observed);
            if plan.steps.is_empty() {
                return Some(plan);
            }
            for step in &plan.steps {
                max_steps = max_steps.checked_sub(1)?;
                self.make(step);
            }
        }
        panic!("plans do not end: {:?}", diff::ensure(&desired, &self.observed));
    }

    /// Calls `ensure` until the desired state is reached.
    pub(crate) fn settle(&mut self, spec: &LoadBalancerSpec, targets: &Targets) {
        for _ in 0..10 {
            let plan = self.ensure(spec, targets, usize::MAX).expect("a plan was interrupted");
            if plan.again.is_none() {
                return self.check(spec, targets);
            }
            self.time_passes();
        }
        panic!("it does not settle: {:?}", diff::ensure(&self.desired(spec, targets), &self.observed));
    }

    /// Checks that the desired state is reached, and that nothing else exists.
    pub(crate) fn check(&self, spec: &LoadBalancerSpec, targets: &Targets) {
        let desired = self.desired(spec, targets);
        let [balancer] = &self.observed.balancers[..] else {
            panic!("not exactly one load balancer: {:?}", self.observed.balancers)
        };
        assert_eq!(balancer.name, desired.balancer.name);
        assert_eq!(balancer.scheme, desired.balancer.scheme);
        let mut ports: Vec<(u16, _)> = balancer.listeners.iter().map(|one| (one.port, one.protocol)).collect();
        ports.sort_unstable();
        let requested: Vec<_> = desired.listeners.values().map(|one| (one.port, one.protocol)).collect();
        assert_eq!(ports, requested);
        assert_eq!(self.observed.target_groups.len(), desired.groups().count(), "{:?}", self.observed.target_groups);
        for listener in &balancer.listeners {
            let wanted = &desired.listeners[&listener.port];
            let (own, others) = listener.forwards.split_first().expect("traffic goes somewhere");
            self.check_group(&own.0, &wanted.group);
            match &wanted.spread {
                None => assert!(others.is_empty() && own.1 > 0, "{listener:?}"),
                Some(spread) => {
                    assert_eq!((own.1, others.len()), (spread.own, spread.others.len()), "{listener:?}");
                    for ((arn, weight), (name, requested)) in others.iter().zip(&spread.others) {
                        assert_eq!(weight, requested, "{listener:?}");
                        self.check_group(arn, &desired.backends[name]);
                    }
                }
            }
        }
        assert_eq!(self.observed.security_groups.len(), usize::from(desired.security_group.is_some()));
        for (observed, wanted) in self.observed.security_groups.iter().zip(&desired.security_group) {
            let rules: std::collections::BTreeSet<_> = observed.rules.iter().map(|rule| rule.rule.clone()).collect();
            assert_eq!(rules, wanted.rules);
        }
    }

    fn check_group(&self, arn: &str, wanted: &TargetGroup) {
        let group = self.observed.target_group_by_arn(arn).expect("a listener uses a target group that does not exist");
        assert!(group.targets.keys().eq(wanted.targets.iter()), "{group:?} is not {wanted:?}");
        assert!(wanted.health.is_met_by(&group.health), "{:?} is not {:?}", group.health, wanted.health);
        assert_eq!((group.protocol, group.target_type), (wanted.protocol, wanted.target_type));
    }

    /// Returns the names of the last steps, for tables.
    pub(crate) fn names(&self) -> Vec<String> {
        self.steps.iter().map(name).collect()
    }
}

/// Returns a step's name.
pub(crate) fn name(step: &Step) -> String {
    let text = format!("{step:?}");
    text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
