//! `--cloud-config`: the meaning of each variable, and its checks. Upstream: cloud-provider-aws, CloudConfig.

use std::collections::{BTreeMap, BTreeSet};

use crate::ini::{self, Variable};
use providers::{BuildContext, ConfigError};

/// The contents of the file, with upstream's defaults for missing variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// The region; empty: `AWS_REGION`, or else the region in the instance's metadata.
    pub region: String,
    /// The VPC. If it is set, and also `cluster_id`, and `subnet_id` or `role_arn`, the process need not run in AWS.
    pub vpc: String,
    /// A subnet of the cluster, for a process that does not run in AWS.
    pub subnet_id: String,
    /// The only route table to manage; empty: all with the cluster's tag.
    pub route_table_id: String,
    /// The role to assume; empty: none, the credentials are used directly.
    pub role_arn: String,
    /// The source of the request for the role, as protection against the confused deputy problem.
    pub source_arn: String,
    /// The cluster's id in tags; empty: the id in the tags of this process's instance.
    pub cluster_id: String,
    /// The cluster's id is in the legacy tag `KubernetesCluster`.
    pub legacy_tag: bool,
    /// No rules are added to the nodes' security groups.
    pub no_node_rules: bool,
    /// The address families of nodes, in the order in which the addresses are listed in the Node.
    pub node_ip_families: Vec<Family>,
    /// Health checks of Services with the external traffic policy Cluster use kube-proxy's port.
    pub shared_probe: Option<Probe>,
    /// Instance types whose topology must be known, by regular expression; empty: upstream's default. The setting has
    /// no effect.
    pub topology_types: String,
    /// The mode of security groups is `Managed`. The setting has no effect: new load balancers always have a security
    /// group.
    pub managed_security_group: bool,
    /// Endpoints that replace AWS's own.
    pub overrides: Vec<Override>,
    /// The namespaces whose Services may share a load balancer, by the name of the group.
    pub groups: BTreeMap<String, BTreeSet<String>>,
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// 32 bits.
    V4,
    /// 128 bits.
    V6,
}

/// The health check of kube-proxy, which reports whether a node takes traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The port on each node.
    pub port: u16,
    /// The path.
    pub path: String,
}

impl Default for Probe {
    fn default() -> Self {
        Self { port: PROXY_PORT, path: PROXY_PATH.into() }
    }
}

/// A service's endpoint that replaces AWS's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Override {
    /// The SDK's id of the service, such as `EC2` or `Elastic Load Balancing v2`, in any case.
    pub service: String,
    /// The region that the endpoint is for.
    pub region: String,
    /// The endpoint.
    pub url: String,
    /// The region to sign for.
    pub signing_region: String,
    /// The service's name to sign for; empty: the SDK's.
    pub signing_name: String,
}

/// Services whose endpoint can be overridden.
const SERVICES: [&str; 6] = ["ACM", "EC2", "Elastic Load Balancing", "Elastic Load Balancing v2", "STS", "ec2imds"];

/// Variables of `[Global]`.
const GLOBAL: [&str; 18] = [
    "Zone",
    "Region",
    "VPC",
    "SubnetID",
    "RouteTableID",
    "RoleARN",
    "SourceARN",
    "KubernetesClusterTag",
    "KubernetesClusterID",
    "DisableSecurityGroupIngress",
    "ElbSecurityGroup",
    "NodeIPFamilies",
    "ClusterServiceLoadBalancerHealthProbeMode",
    "ClusterServiceSharedLoadBalancerHealthProbePort",
    "ClusterServiceSharedLoadBalancerHealthProbePath",
    "SupportedTopologyInstanceTypePattern",
    "NLBSecurityGroupMode",
    "DisableStrictZoneCheck",
];

/// Variables of `[ServiceOverride]`.
const OVERRIDE: [&str; 6] = ["Service", "Region", "URL", "SigningRegion", "SigningMethod", "SigningName"];

/// kube-proxy's health check, if the file names no other.
const PROXY_PORT: u16 = 10256;
const PROXY_PATH: &str = "/healthz";

impl Config {
    /// Reads the file. Also returns warnings about unknown sections and variables, endpoints of services that are not
    /// called, and known variables that are not used.
    ///
    /// # Errors
    /// `Unreadable` if the file is not UTF-8, or with the line that is not INI; `Invalid` with section, variable, value
    /// and fix.
    pub fn read(context: &BuildContext) -> Result<(Self, Vec<String>), ConfigError> {
        let file = context.config_name();
        let unreadable = |message: String| ConfigError::Unreadable { file: file.clone(), message };
        let text = std::str::from_utf8(&context.config).map_err(|error| unreadable(error.to_string()))?;
        let variables = ini::parse(text).map_err(|error| unreadable(error.to_string()))?;
        let mut reading = Reading { file: &file, config: Self::default(), warnings: Vec::new(), tags: (None, None) };
        let mut zone = String::new();
        let mut probe = (false, Probe::default());
        let mut overrides: Vec<(String, Override)> = Vec::new();
        for variable in &variables {
            if variable.section.eq_ignore_ascii_case("Global") {
                reading.set_global(variable, &mut zone, &mut probe)?;
            } else if variable.section.eq_ignore_ascii_case("ServiceOverride") {
                let name = variable.subsection.clone().unwrap_or_default();
                if overrides.last().is_none_or(|(last, _)| *last != name) {
                    overrides.push((name, Override::default()));
                }
                if let Some((_, change)) = overrides.last_mut() {
                    reading.set_override(variable, change);
                }
            } else if variable.section.eq_ignore_ascii_case("LoadBalancerGroup") {
                reading.group(variable);
            } else {
                reading.warn(variable, &variable.section, ["Global", "ServiceOverride", "LoadBalancerGroup"]);
            }
        }
        if !zone.is_empty() {
            reading.config.region = region_of(&zone).ok_or_else(|| {
                invalid(&file, "[Global] Zone", &zone, "write a zone as us-east-1a, or set Region instead")
            })?;
        }
        if reading.config.node_ip_families.is_empty() {
            reading.config.node_ip_families.push(Family::V4);
        }
        reading.config.shared_probe = probe.0.then_some(probe.1);
        reading.set_cluster_id()?;
        for (name, change) in overrides {
            reading.add_override(&name, change)?;
        }
        Ok((reading.config, reading.warnings))
    }

    /// Returns the endpoint of a service in a region, if the file overrides it.
    pub fn endpoint(&self, service: &str, region: &str) -> Option<&Override> {
        self.overrides.iter().find(|o| o.service.eq_ignore_ascii_case(service) && o.region == region)
    }

    /// Returns true if the process need not run in AWS. Upstream: cloud-provider-aws, newAWSCloud.
    pub fn can_run_outside_aws(&self) -> bool {
        !self.vpc.is_empty() && (!self.subnet_id.is_empty() || !self.role_arn.is_empty()) && !self.cluster_id.is_empty()
    }
}

struct Reading<'a> {
    file: &'a str,
    config: Config,
    warnings: Vec<String>,
    /// The values of `KubernetesClusterTag` and `KubernetesClusterID`.
    tags: (Option<String>, Option<String>),
}

impl Reading<'_> {
    fn set_global(
        &mut self,
        variable: &Variable,
        zone: &mut String,
        (shared, probe): &mut (bool, Probe),
    ) -> Result<(), ConfigError> {
        let Variable { name, value, .. } = variable;
        let Some(known) = GLOBAL.into_iter().find(|known| known.eq_ignore_ascii_case(name)) else {
            self.warn(variable, name, GLOBAL);
            return Ok(());
        };
        let field = format!("[Global] {known}");
        let refuse = |fix: &str| Err(invalid(self.file, &field, value, fix));
        let config = &mut self.config;
        match known {
            "Zone" => zone.clone_from(value),
            "Region" => config.region.clone_from(value),
            "VPC" => config.vpc.clone_from(value),
            "SubnetID" => config.subnet_id.clone_from(value),
            "RouteTableID" => config.route_table_id.clone_from(value),
            "RoleARN" => config.role_arn.clone_from(value),
            "SourceARN" if !value.is_empty() && !is_arn_with_account(value) => {
                return refuse("use the ARN of a resource with the number of its account, or leave it out");
            }
            "SourceARN" => config.source_arn.clone_from(value),
            "KubernetesClusterTag" => self.tags.0 = Some(value.clone()).filter(|id| !id.is_empty()),
            "KubernetesClusterID" => self.tags.1 = Some(value.clone()).filter(|id| !id.is_empty()),
            "DisableSecurityGroupIngress" => match boolean(value) {
                Some(on) => config.no_node_rules = on,
                None => return refuse("use true or false"),
            },
            "NodeIPFamilies" => match value.as_str() {
                "ipv4" => config.node_ip_families.push(Family::V4),
                "ipv6" => config.node_ip_families.push(Family::V6),
                _ => return refuse("use ipv4 or ipv6, on a line of its own each"),
            },
            "ClusterServiceLoadBalancerHealthProbeMode" => match value.as_str() {
                "" | "ServiceNodePort" => *shared = false,
                "Shared" => *shared = true,
                _ => return refuse("use ServiceNodePort or Shared"),
            },
            "ClusterServiceSharedLoadBalancerHealthProbePort" => match value.parse() {
                Ok(0) | Err(_) => return refuse("use a port from 1 to 65535"),
                Ok(port) => probe.port = port,
            },
            "ClusterServiceSharedLoadBalancerHealthProbePath" if !value.starts_with('/') => {
                return refuse("begin the path with a slash");
            }
            "ClusterServiceSharedLoadBalancerHealthProbePath" => probe.path.clone_from(value),
            "SupportedTopologyInstanceTypePattern" => config.topology_types.clone_from(value),
            "NLBSecurityGroupMode" => match value.as_str() {
                "" => config.managed_security_group = false,
                "Managed" => config.managed_security_group = true,
                _ => return refuse("use Managed, or leave it out"),
            },
            // The other known variables concern Classic Load Balancers or older releases.
            other => self.warnings.push(format!("{}: [Global] {other} has no effect here", self.file)),
        }
        Ok(())
    }

    fn set_override(&mut self, variable: &Variable, change: &mut Override) {
        let Variable { name, value, .. } = variable;
        match OVERRIDE.into_iter().find(|known| known.eq_ignore_ascii_case(name)) {
            Some("Service") => change.service.clone_from(value),
            Some("Region") => change.region.clone_from(value),
            Some("URL") => change.url.clone_from(value),
            Some("SigningRegion") => change.signing_region.clone_from(value),
            Some("SigningName") => change.signing_name.clone_from(value),
            // `SigningMethod`: the SDK has only signature version 4.
            Some(_) => {}
            None => self.warn(variable, name, OVERRIDE),
        }
    }

    fn group(&mut self, variable: &Variable) {
        let namespaces = self.config.groups.entry(variable.subsection.clone().unwrap_or_default()).or_default();
        if variable.name.eq_ignore_ascii_case("Namespace") {
            namespaces.insert(variable.value.clone());
        } else {
            self.warn(variable, &variable.name, ["Namespace"]);
        }
    }

    fn warn<const N: usize>(&mut self, variable: &Variable, word: &str, known: [&str; N]) {
        let near = nearest(word, &known).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        let what = if word == variable.section { format!("section [{word}]") } else { format!("variable {word}") };
        self.warnings
            .push(format!("{}: line {}: the {what} is not known and has no effect{near}", self.file, variable.line));
    }

    fn set_cluster_id(&mut self) -> Result<(), ConfigError> {
        match self.tags.clone() {
            (Some(legacy), Some(id)) if legacy != id => {
                let fix = format!("write {id:?} as in KubernetesClusterID, or leave one of them out");
                return Err(invalid(self.file, "[Global] KubernetesClusterTag", &legacy, &fix));
            }
            (legacy, Some(id)) => (self.config.cluster_id, self.config.legacy_tag) = (id, legacy.is_some()),
            (Some(legacy), None) => (self.config.cluster_id, self.config.legacy_tag) = (legacy, true),
            (None, None) => {}
        }
        Ok(())
    }

    fn add_override(&mut self, name: &str, mut change: Override) -> Result<(), ConfigError> {
        let section = format!("[ServiceOverride {name:?}]");
        let missing = |field: &str, fix: &str| Err(invalid(self.file, &format!("{section} {field}"), "", fix));
        if change.service.is_empty() {
            return missing("Service", "name a service of the SDK, such as EC2");
        }
        if change.region.is_empty() {
            return missing("Region", "name the region that the endpoint is for");
        }
        if change.url.is_empty() {
            return missing("URL", "write the endpoint, such as https://ec2.example.com");
        }
        if change.signing_region.is_empty() {
            return missing("SigningRegion", "name the region to sign for, most often that of Region");
        }
        // Upstream accepts any service, such as KMS, although it calls only some. Upstream: cloud-provider-aws,
        // ValidateOverrides.
        let Some(known) = SERVICES.into_iter().find(|known| known.eq_ignore_ascii_case(&change.service)) else {
            let near = nearest(&change.service, &SERVICES).map(|near| format!("; did you mean {near}?"));
            self.warnings.push(format!(
                "{}: {section} has no effect: no service {} is called, only {}{}",
                self.file,
                change.service,
                SERVICES.join(", "),
                near.unwrap_or_default()
            ));
            return Ok(());
        };
        known.clone_into(&mut change.service);
        if self.config.endpoint(&change.service, &change.region).is_some() {
            let fix =
                format!("{} has an endpoint for {} already: leave one of them out", change.service, change.region);
            return Err(invalid(self.file, &format!("{section} Service"), &change.service, &fix));
        }
        self.config.overrides.push(change);
        Ok(())
    }
}

fn invalid(file: &str, field: &str, value: &str, fix: &str) -> ConfigError {
    ConfigError::Invalid { file: file.into(), field: field.into(), value: value.into(), fix: fix.into() }
}

/// Parses a boolean like Go's `strconv.ParseBool`, and the additional words of gcfg.
fn boolean(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "yes" | "on" => Some(true),
        "0" | "f" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Returns the region of a zone: `us-east-1a` is in `us-east-1`, `us-west-2-lax-1a` in `us-west-2`.
fn region_of(zone: &str) -> Option<String> {
    let parts: Vec<&str> = zone.split('-').collect();
    let at = parts.iter().position(|part| part.starts_with(|c: char| c.is_ascii_digit())).filter(|at| *at >= 2)?;
    let number: String = parts[at].chars().take_while(char::is_ascii_digit).collect();
    Some(format!("{}-{number}", parts[..at].join("-")))
}

/// Returns the known word with the most similar spelling, if any is similar.
fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |known: &str| strsim::jaro_winkler(&word.to_ascii_lowercase(), &known.to_ascii_lowercase());
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) > 0.8).then_some(best)
}

/// Returns true if a text is the ARN of a resource with an account, without blanks and control characters: it becomes a
/// header of requests.
fn is_arn_with_account(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    text.bytes().all(|byte| byte.is_ascii_graphic())
        && matches!(parts[..], ["arn", _, _, _, account, resource]
            if account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit()) && !resource.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Config, Vec<String>), String> {
        let context = BuildContext { config: text.into(), config_path: Some("aws.conf".into()), ..Default::default() };
        Config::read(&context).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_file_has_upstreams_defaults() {
        let (config, warnings) = read("").unwrap();
        assert_eq!(config, Config { node_ip_families: vec![Family::V4], ..Config::default() });
        assert!(warnings.is_empty() && !config.can_run_outside_aws());
    }

    #[test]
    fn complete_file_sets_every_field() {
        let (config, warnings) = read(
            "[global]\nzone = eu-central-1b\nvpc=vpc-1\nsubnetid = subnet-1\nKubernetesClusterID = c\n\
             NodeIPFamilies = ipv6\nNodeIPFamilies = ipv4\nDisableSecurityGroupIngress\n\
             ClusterServiceLoadBalancerHealthProbeMode = Shared\nNLBSecurityGroupMode = Managed\n\
             [ServiceOverride \"1\"]\nService = ec2\nRegion = eu-central-1\nURL = http://localhost:1\n\
             SigningRegion = eu-central-1\nSigningMethod = v4\n\
             [LoadBalancerGroup \"public\"]\nNamespace = shop\nNamespace = api\n",
        )
        .unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(config.region, "eu-central-1");
        assert_eq!(config.node_ip_families, [Family::V6, Family::V4]);
        assert_eq!(config.shared_probe, Some(Probe { port: 10256, path: "/healthz".into() }));
        assert!(
            config.no_node_rules && config.managed_security_group && config.can_run_outside_aws() && !config.legacy_tag
        );
        assert_eq!(config.endpoint("EC2", "eu-central-1").map(|o| o.url.as_str()), Some("http://localhost:1"));
        assert_eq!(config.endpoint("EC2", "eu-west-1"), None);
        assert_eq!(config.groups, [("public".to_owned(), ["api".to_owned(), "shop".to_owned()].into())].into());
    }

    #[test]
    fn variables_without_effect_are_warned_about() {
        for (text, expected) in [
            (
                "[Global]\nRegin = x",
                "aws.conf: line 2: the variable Regin is not known and has no effect; did you mean Region?",
            ),
            (
                "[Globl]\na = x",
                "aws.conf: line 2: the section [Globl] is not known and has no effect; did you mean Global?",
            ),
            ("[Global]\nqqq = x", "aws.conf: line 2: the variable qqq is not known and has no effect"),
            ("[Global]\nElbSecurityGroup = sg-1", "aws.conf: [Global] ElbSecurityGroup has no effect here"),
        ] {
            assert_eq!(read(text).unwrap().1, [expected], "{text}");
        }
    }

    #[test]
    fn endpoint_of_a_service_that_is_not_called_has_no_effect() {
        for (service, hint) in [("KMS", ""), ("s3", ""), ("EC3", "; did you mean EC2?")] {
            let text = format!("[ServiceOverride \"1\"]\nService = {service}\nRegion = r\nURL = u\nSigningRegion = r");
            let (config, warnings) = read(&text).expect("as upstream");
            assert_eq!(config.overrides, []);
            let expected = format!(
                "aws.conf: [ServiceOverride \"1\"] has no effect: no service {service} is called, only ACM, EC2, Elastic Load \
                 Balancing, Elastic Load Balancing v2, STS, ec2imds{hint}"
            );
            assert_eq!(warnings, [expected]);
        }
    }

    #[test]
    fn invalid_values_are_refused_with_a_fix() {
        let whole = "Service = EC2\nRegion = r\nURL = u\nSigningRegion = r\n";
        for (text, expected) in [
            ("[Global]\nZone = x", "aws.conf: [Global] Zone is \"x\": write a zone as us-east-1a, or set Region instead".to_owned()),
            ("[Global]\nNodeIPFamilies = ipv5", "aws.conf: [Global] NodeIPFamilies is \"ipv5\": use ipv4 or ipv6, on a line of its own each".into()),
            ("[Global]\nDisableSecurityGroupIngress = perhaps", "aws.conf: [Global] DisableSecurityGroupIngress is \"perhaps\": use true or false".into()),
            ("[Global]\nNLBSecurityGroupMode = x", "aws.conf: [Global] NLBSecurityGroupMode is \"x\": use Managed, or leave it out".into()),
            (
                "[Global]\nKubernetesClusterTag = a\nKubernetesClusterID = b",
                "aws.conf: [Global] KubernetesClusterTag is \"a\": write \"b\" as in KubernetesClusterID, or leave one of them out".into(),
            ),
            (
                "[ServiceOverride \"1\"]\nService = EC2\nRegion = r\nSigningRegion = r",
                "aws.conf: [ServiceOverride \"1\"] URL is \"\": write the endpoint, such as https://ec2.example.com".into(),
            ),
            (
                &format!("[ServiceOverride \"1\"]\n{whole}[ServiceOverride \"2\"]\n{whole}"),
                "aws.conf: [ServiceOverride \"2\"] Service is \"EC2\": EC2 has an endpoint for r already: leave one of them out".into(),
            ),
            ("x = 1", "aws.conf: line 1: \"x = 1\" is before the first section: put it under [Global]".into()),
        ] {
            assert_eq!(read(text).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn region_is_derived_from_the_zone() {
        for (zone, region) in [
            ("us-east-1a", Some("us-east-1")),
            ("us-gov-west-1b", Some("us-gov-west-1")),
            ("us-west-2-lax-1a", Some("us-west-2")),
            ("us-east-1-wl1-bos-wlz-1", Some("us-east-1")),
            ("east", None),
            ("1a", None),
        ] {
            assert_eq!(region_of(zone).as_deref(), region, "{zone}");
        }
    }

    #[test]
    fn source_needs_an_account() {
        for (arn, valid) in [
            ("arn:aws:eks:eu-west-1:123456789012:cluster/prod", true),
            ("arn:aws:s3:::bucket", false),
            ("123456789012", false),
            ("arn:aws:eks:eu-west-1:123456789012:", false),
            ("arn:aws:eks:eu-west-1:123456789012:cluster/a\nb", false),
        ] {
            assert_eq!(is_arn_with_account(arn), valid, "{arn:?}");
        }
    }
}
