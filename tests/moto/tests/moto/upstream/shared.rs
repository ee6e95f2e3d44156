//! A control plane and an AWS account that ccm shares with another controller, which runs as a process.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{DEADLINE, during, eventually};
use control_plane::Identity;
use control_plane::assets::{aws_load_balancer_controller, upstream_aws_manager};
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use moto::{Instance, Proxy, REGION, Service};
use providers::{BuildContext, CloudProvider};
use serde_json::{Value, json};

use super::account::Account;
use crate::balancers::PREFIX;
use crate::bed::{AwsBed, CLUSTER, provider_in};

/// Time without a change of the account after which all controllers have finished.
const QUIET_TIME: Duration = Duration::from_millis(1500);

/// The class of the AWS Load Balancer Controller.
pub const CONTROLLER_CLASS: &str = "service.k8s.aws/nlb";

const CRDS: &str = include_str!("crds.yaml");

/// A controller that also serves Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherController {
    CloudProvider,
    Controller,
}

impl OtherController {
    fn name(self) -> &'static str {
        match self {
            Self::CloudProvider => "cloud-provider-aws",
            Self::Controller => "aws-load-balancer-controller",
        }
    }

    fn program(self) -> Result<PathBuf> {
        match self {
            Self::CloudProvider => upstream_aws_manager(),
            Self::Controller => aws_load_balancer_controller(),
        }
    }
}

/// The environment of one test.
pub struct SharedBed {
    /// The control plane, and the account with ccm's endpoint.
    pub aws: AwsBed,
    /// The other controller's endpoint.
    pub other_proxy: Proxy,
    pub services: Api<KubeService>,
    /// Lines that are added to `[Global]` in the configuration of cloud-provider-aws and of ccm.
    pub settings: &'static str,
    other: OtherController,
}

impl SharedBed {
    /// Starts everything except the controllers, with two nodes.
    pub async fn start(other: OtherController) -> Result<Self> {
        // The first build blocks for minutes.
        let building = tokio::task::spawn_blocking(move || other.program());
        let (aws, program) = futures::future::join(AwsBed::start(), building).await;
        let aws = aws?;
        program??;
        let other_proxy = aws.moto.proxy.for_another_client().await?;
        // cloud-provider-aws sleeps for ten seconds while a security group is in use, and checks the format of DNS
        // names.
        other_proxy.keep_interfaces(0);
        for endpoint in [&aws.moto.proxy, &other_proxy] {
            endpoint.name_network_balancers();
        }
        let services = Api::namespaced(aws.cloud.bed.client.clone(), "default");
        let shared = Self { aws, other_proxy, services, settings: "", other };
        if other == OtherController::Controller {
            shared.kubectl(&["apply", "--filename=-"], CRDS).await?;
            shared.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=180s"], "").await?;
        }
        shared.join(2).await?;
        Ok(shared)
    }

    pub async fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let (cluster, input) = (self.aws.cloud.bed.clone(), input.to_owned());
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let run = move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            cluster.cluster.kubectl_with_input(&arguments, &input)
        };
        tokio::task::spawn_blocking(run).await?
    }

    /// Starts instances whose Nodes are initialized and Ready.
    pub async fn join(&self, count: usize) -> Result<Vec<Instance>> {
        let instances = self.aws.moto.run(count).await?;
        for instance in &instances {
            let zone = json!({"topology.kubernetes.io/zone": instance.zone});
            let node = json!({
                "metadata": {"labels": zone},
                "spec": {"providerID": instance.provider_id(), "taints": []},
            });
            self.aws.register(instance, node).await?;
            self.aws.cloud.set_ready_condition(&instance.name, "True").await?;
        }
        Ok(instances)
    }

    /// Starts the other controller.
    pub async fn run_neighbour(&self, more: &[&str]) -> Result<()> {
        let cluster = &self.aws.cloud.bed.cluster;
        let admin = Identity::User { name: self.other.name().into(), groups: vec!["system:masters".into()] };
        let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig(admin)?.display());
        let environment = ["AWS_ACCESS_KEY_ID=any", "AWS_SECRET_ACCESS_KEY=any", "AWS_EC2_METADATA_DISABLED=true"];
        let mut arguments: Vec<String> = environment.map(String::from).into();
        arguments.extend([self.other.program()?.display().to_string(), kubeconfig]);
        arguments.extend(match self.other {
            OtherController::CloudProvider => self.flags_of_cloud_provider()?,
            OtherController::Controller => self.flags_of_controller()?,
        });
        arguments.extend(more.iter().map(|flag| (*flag).to_owned()));
        cluster.run(self.other.name(), "env".as_ref(), &arguments)?;
        Ok(())
    }

    /// Returns the configuration of ccm.
    pub fn cloud_config(&self) -> String {
        self.aws.moto.cloud_config().replacen("[Global]\n", &format!("[Global]\n{}", self.settings), 1)
    }

    fn flags_of_cloud_provider(&self) -> Result<Vec<String>> {
        let config = self.aws.cloud.bed.cluster.folder().join("cloud-provider-aws.conf");
        fs::write(&config, self.cloud_config().replace(&self.aws.moto.proxy.url(), &self.other_proxy.url()))?;
        let config = format!("--cloud-config={}", config.display());
        let flags = [
            "--cloud-provider=aws",
            "--controllers=service-lb-controller",
            "--configure-cloud-routes=false",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--v=2",
            &config,
            &format!("--cluster-name={CLUSTER}"),
        ];
        Ok(flags.map(String::from).into())
    }

    fn flags_of_controller(&self) -> Result<Vec<String>> {
        let folder = self.aws.cloud.bed.cluster.folder().join("webhook");
        fs::create_dir_all(&folder)?;
        let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        fs::write(folder.join("tls.crt"), certificate.cert.pem())?;
        fs::write(folder.join("tls.key"), certificate.signing_key.serialize_pem())?;
        // No webhook is registered, so the API server never calls this port.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let url = self.other_proxy.url();
        let endpoints: Vec<String> =
            ["EC2", "Elastic Load Balancing v2", "ACM"].map(|service| format!("{service}={url}")).into();
        let vpc = &self.aws.moto.network.vpc;
        Ok(vec![
            format!("--cluster-name={CLUSTER}"),
            format!("--aws-region={REGION}"),
            format!("--aws-vpc-id={vpc}"),
            format!("--aws-api-endpoints={}", endpoints.join(",")),
            format!("--webhook-cert-dir={}", folder.display()),
            format!("--webhook-bind-port={port}"),
            "--enable-leader-election=false".into(),
            "--metrics-bind-addr=0".into(),
            "--health-probe-bind-addr=0".into(),
            "--enable-shield=false".into(),
            "--enable-waf=false".into(),
            "--enable-wafv2=false".into(),
        ])
    }

    /// Prepares the move back to cloud-provider-aws: without the cluster's tag, it does not delete the security group
    /// that the load balancers of ccm share, and does not wait until no other load balancer uses it. Returns the group.
    pub async fn release_shared_group(&self) -> Result<String> {
        let aws = &self.aws.moto.aws;
        let filter = [("Filter.1.Name", "tag-key"), ("Filter.1.Value.1", "kubernetes.io/load-balancer-backend")];
        let group = aws.ec2("DescribeSecurityGroups", &filter, "groupId").await?;
        let group = group.into_iter().next().context("no shared group")?;
        let tag = format!("kubernetes.io/cluster/{CLUSTER}");
        aws.ec2("DeleteTags", &[("ResourceId.1", &*group), ("Tag.1.Key", &*tag)], "return").await?;
        Ok(group)
    }

    /// Completes the move back to cloud-provider-aws: deletes the security group that the load balancers of ccm shared,
    /// and the rules of nodes' groups that reference it.
    pub async fn delete_shared_group(&self, group: &str) -> Result<()> {
        let aws = &self.aws.moto.aws;
        for rule in aws.list(Service::Ec2, "DescribeSecurityGroupRules", &[], "securityGroupRuleSet").await? {
            if rule.text("referencedGroupInfo/groupId") == group {
                let id = rule.text("securityGroupRuleId");
                let revoked = [("GroupId", rule.text("groupId")), ("SecurityGroupRuleId.1", id)];
                aws.call(Service::Ec2, "RevokeSecurityGroupIngress", &revoked).await?;
            }
        }
        aws.call(Service::Ec2, "DeleteSecurityGroup", &[("GroupId", group)]).await.map(drop)?;
        Ok(())
    }

    /// Ends the other controller without any cleanup.
    pub fn stop_neighbour(&self) -> Result<()> {
        self.aws.cloud.bed.cluster.kill(self.other.name())
    }

    /// Adds the last lines of the other controller's log to an error.
    pub fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let log = self.aws.cloud.bed.cluster.log(self.other.name());
            let text = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(25)..].join("\n");
            error.context(format!("the log of {} ends with\n{last}", self.other.name()))
        })
    }

    pub async fn create(&self, service: Value) -> Result<KubeService> {
        Ok(self.services.create(&PostParams::default(), &serde_json::from_value(service)?).await?)
    }

    pub async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.services.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Waits until Services have host names; returns them.
    pub async fn host_names(&self, services: &[&str]) -> Result<Vec<String>> {
        eventually(format!("{services:?} have host names"), || async {
            let mut names = Vec::new();
            for service in services {
                let status = self.services.get(service).await?.status.and_then(|status| status.load_balancer);
                let ingress = status.and_then(|status| status.ingress).unwrap_or_default();
                let name = ingress.first().and_then(|one| one.hostname.clone());
                names.push(name.with_context(|| format!("{service} has no host name"))?);
            }
            Ok(names)
        })
        .await
    }

    /// Deletes Services, and waits until they no longer exist.
    pub async fn delete(&self, services: &[&str]) -> Result<()> {
        for service in services {
            self.services.delete(service, &DeleteParams::default()).await?;
        }
        eventually(format!("{services:?} are deleted"), || async {
            let remaining = self.services.list(&ListParams::default()).await?.items;
            let remaining: Vec<_> = remaining.iter().filter(|one| services.contains(&&*one.name_any())).collect();
            ensure!(remaining.is_empty(), "{:?}", remaining.iter().map(|one| one.finalizers()).collect::<Vec<_>>());
            Ok(())
        })
        .await
    }

    /// Waits until the account meets a condition, and no controller has changed it for a while; returns it.
    pub async fn until(&self, what: &str, done: impl Fn(&Account) -> Result<()>) -> Result<Account> {
        let last = Instant::now() + 2 * DEADLINE;
        loop {
            let account = eventually(what, || async {
                let account = Account::read(&self.aws.moto).await?;
                done(&account).map(|()| account)
            })
            .await?;
            let before = self.changes();
            let quiet = during(QUIET_TIME, "no controller changes the account", || async {
                ensure!(self.changes() == before, "{:?} {:?}", self.aws.moto.proxy.calls(), self.other_proxy.calls());
                Ok(())
            });
            let quiet = quiet.await;
            if quiet.is_ok() && Account::read(&self.aws.moto).await? == account {
                return Ok(account);
            }
            if Instant::now() > last {
                return quiet.map(|()| account).context("the account changes all the time");
            }
        }
    }

    fn changes(&self) -> [u64; 2] {
        [self.aws.moto.proxy.changes(), self.other_proxy.changes()]
    }
}

/// Returns the provider that the binary builds for these flags: they select the classes of its Services.
pub fn provider_for(config: String, flags: &[&str]) -> Result<Arc<dyn CloudProvider>> {
    let classes = flags.iter().filter_map(|flag| flag.strip_prefix("--load-balancer-class="));
    provider_in(&BuildContext {
        cluster_name: CLUSTER.into(),
        config: config.into(),
        load_balancer_classes: classes.map(str::to_owned).collect(),
        only_classes: flags.contains(&"--load-balancers-without-class=false"),
        ..BuildContext::default()
    })
}

/// Returns a Service of type LoadBalancer with a port.
pub fn service(name: &str, class: Option<&str>, annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), json!(value))).collect();
    json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": class,
            "selector": {"app": name},
            "ports": [{"name": "p80", "port": 80, "targetPort": 8080}],
        },
    })
}

/// Returns a patch that adds a second port to a Service.
pub fn second_port() -> Value {
    let port = |number: u16| json!({"name": format!("p{number}"), "port": number, "targetPort": 8080});
    json!({"spec": {"ports": [port(80), port(81)]}})
}
