//! The load balancers of an account in a form that can be compared, to find out which client changed whose resources.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use moto::{Element, Moto, Service};

/// Ids of resources: ARNs, names of Classic Load Balancers, ids of security groups and of their rules.
pub type Ids = BTreeSet<String>;

/// The facts about each resource: its fields, attributes, tags and targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account(BTreeMap<String, BTreeSet<String>>);

/// Fields that are read separately, or that change by themselves.
const FOREIGN_FIELDS: [&str; 5] = ["ipPermissions", "ipPermissionsEgress", "State", "Instances", "tagSet"];

impl Account {
    pub async fn read(moto: &Moto) -> Result<Self> {
        let mut account = Self::default();
        account.read_load_balancers(moto).await?;
        account.read_target_groups(moto).await?;
        account.read_classic(moto).await?;
        account.read_security_groups(moto).await?;
        Ok(account)
    }

    async fn read_load_balancers(&mut self, moto: &Moto) -> Result<()> {
        for balancer in moto.aws.list(Service::Elb, "DescribeLoadBalancers", &[], "LoadBalancers").await? {
            let arn = balancer.text("LoadBalancerArn");
            self.add(arn, &balancer);
            let of = [("LoadBalancerArn", arn)];
            self.add_list(moto, arn, ("DescribeLoadBalancerAttributes", "Attributes"), &of).await?;
            self.add_tags(moto, arn).await?;
            for listener in moto.aws.list(Service::Elb, "DescribeListeners", &of, "Listeners").await? {
                let arn = listener.text("ListenerArn");
                self.add(arn, &listener);
                self.add_tags(moto, arn).await?;
            }
        }
        Ok(())
    }

    async fn read_target_groups(&mut self, moto: &Moto) -> Result<()> {
        for group in moto.aws.list(Service::Elb, "DescribeTargetGroups", &[], "TargetGroups").await? {
            let arn = group.text("TargetGroupArn");
            self.add(arn, &group);
            let of = [("TargetGroupArn", arn)];
            self.add_list(moto, arn, ("DescribeTargetGroupAttributes", "Attributes"), &of).await?;
            self.add_tags(moto, arn).await?;
            for health in moto.aws.list(Service::Elb, "DescribeTargetHealth", &of, "TargetHealthDescriptions").await? {
                self.fact(arn, format!("{TARGET}{}:{}", health.text("Target/Id"), health.text("Target/Port")));
            }
        }
        Ok(())
    }

    async fn read_classic(&mut self, moto: &Moto) -> Result<()> {
        const LIST: &str = "LoadBalancerDescriptions";
        for balancer in moto.aws.list(Service::Classic, "DescribeLoadBalancers", &[], LIST).await? {
            let name = balancer.text("LoadBalancerName");
            self.add(name, &balancer);
            for instance in balancer.texts("Instances/member/InstanceId") {
                self.fact(name, format!("{TARGET}{instance}"));
            }
            let of = [("LoadBalancerNames.member.1", name)];
            for tags in moto.aws.list(Service::Classic, "DescribeTags", &of, "TagDescriptions").await? {
                self.add(name, &tags);
            }
        }
        Ok(())
    }

    async fn read_security_groups(&mut self, moto: &Moto) -> Result<()> {
        for group in moto.aws.list(Service::Ec2, "DescribeSecurityGroups", &[], "securityGroupInfo").await? {
            let id = group.text("groupId");
            self.add(id, &group);
            for tag in group.all("tagSet/item") {
                self.fact(id, format!("tag {}={}", tag.text("key"), tag.text("value")));
            }
        }
        for rule in moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &[], "securityGroupRuleSet").await? {
            if rule.text("isEgress") == "false" {
                self.add(rule.text("securityGroupRuleId"), &rule);
            }
        }
        Ok(())
    }

    async fn add_list(
        &mut self,
        moto: &Moto,
        id: &str,
        (action, list): (&str, &str),
        of: &[(&str, &str)],
    ) -> Result<()> {
        for attribute in moto.aws.list(Service::Elb, action, of, list).await? {
            self.fact(id, format!("{}={}", attribute.text("Key"), attribute.text("Value")));
        }
        Ok(())
    }

    async fn add_tags(&mut self, moto: &Moto, arn: &str) -> Result<()> {
        let of = [("ResourceArns.member.1", arn)];
        for tag in moto.aws.list(Service::Elb, "DescribeTags", &of, "TagDescriptions/member/Tags").await? {
            self.fact(arn, format!("tag {}={}", tag.text("Key"), tag.text("Value")));
        }
        Ok(())
    }

    fn fact(&mut self, id: &str, fact: String) {
        self.0.entry(id.to_owned()).or_default().insert(fact);
    }

    /// Adds the fields of a resource.
    fn add(&mut self, id: &str, element: &Element) {
        self.0.entry(id.to_owned()).or_default().extend(fields(element, ""));
    }

    /// Returns the resources that did not exist before.
    pub fn new_since(&self, before: &Self) -> Ids {
        self.0.keys().filter(|id| !before.0.contains_key(*id)).cloned().collect()
    }

    /// Returns the ids of all resources.
    pub fn ids(&self) -> Ids {
        self.0.keys().cloned().collect()
    }

    /// Returns the load balancers, target groups and listeners.
    pub fn parts_of_load_balancers(&self) -> Ids {
        self.0.keys().filter(|id| !id.starts_with("sg-") && !id.starts_with("sgr-")).cloned().collect()
    }

    /// Fails if one of these resources is not as in `before`.
    pub fn ensure_same(&self, before: &Self, ids: &Ids) -> Result<()> {
        for id in ids {
            let (had, has) = (before.0.get(id), self.0.get(id));
            let only = |one: Option<&BTreeSet<String>>, other: Option<&BTreeSet<String>>| -> Vec<String> {
                let other = other.cloned().unwrap_or_default();
                one.into_iter().flatten().filter(|fact| !other.contains(*fact)).cloned().collect()
            };
            ensure!(had == has, "{id} was changed: it had {:?}, and has {:?}", only(had, has), only(has, had));
        }
        Ok(())
    }

    /// Returns the number of targets of each target group and each Classic Load Balancer among these resources.
    pub fn target_counts(&self, ids: &Ids) -> BTreeMap<String, usize> {
        let has_targets = |id: &String| id.contains(":targetgroup/") || !id.contains(['-', ':']);
        let count = |facts: &BTreeSet<String>| facts.iter().filter(|fact| fact.starts_with(TARGET)).count();
        let chosen = self.0.iter().filter(|(id, _)| ids.contains(*id) && has_targets(id));
        chosen.map(|(id, facts)| (id.clone(), count(facts))).collect()
    }

    /// Returns the number of listeners among these resources.
    pub fn listener_count(&self, ids: &Ids) -> usize {
        let classic = |facts: &BTreeSet<String>| {
            facts
                .iter()
                .filter(|fact| fact.starts_with("ListenerDescriptions/") && fact.contains("/LoadBalancerPort="))
                .count()
        };
        let chosen = self.0.iter().filter(|(id, _)| ids.contains(*id));
        chosen.map(|(id, facts)| usize::from(id.contains(":listener/")) + classic(facts)).sum()
    }

    /// Returns the resources with this fact.
    pub fn with(&self, fact: &str) -> Ids {
        self.0.iter().filter(|(_, facts)| facts.contains(fact)).map(|(id, _)| id.clone()).collect()
    }

    /// Returns the facts about these resources, for messages.
    pub fn describe(&self, ids: &Ids) -> String {
        let chosen = self.0.iter().filter(|(id, _)| ids.contains(*id));
        chosen.map(|(id, facts)| format!("{id}: {facts:?}\n")).collect()
    }
}

/// The beginning of a fact about a registered target.
const TARGET: &str = "target ";

/// Returns the texts in an element, with their paths.
fn fields(element: &Element, path: &str) -> Vec<String> {
    let children = element.children.iter().filter(|child| !FOREIGN_FIELDS.contains(&&*child.name));
    let mut found: Vec<String> = children
        .enumerate()
        .flat_map(|(number, child)| match child.name.as_str() {
            // Fields of one member stay together.
            "member" | "item" => fields(child, &format!("{path}{number}/")),
            name => fields(child, &format!("{path}{name}/")),
        })
        .collect();
    if element.children.is_empty() && !element.text.is_empty() {
        found.push(format!("{}={}", path.trim_end_matches('/'), element.text));
    }
    found
}
