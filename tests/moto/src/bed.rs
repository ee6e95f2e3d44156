//! A cluster's resources in AWS: an account with a network, and instances for fake nodes.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use crate::aws::{Aws, Service};
use crate::proxy::Proxy;
use crate::server::Server;
use crate::{REGION, reach, xml};

/// The zones, with a subnet each.
const ZONES: [&str; 3] = ["eu-west-1a", "eu-west-1b", "eu-west-1c"];

/// The resources that a cluster's administrator creates first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The VPC, `10.0.0.0/16` and a range of IPv6.
    pub vpc: String,
    /// A public subnet in each zone, tagged for the cluster.
    pub subnets: Vec<String>,
    /// The route table of all subnets, tagged for the cluster.
    pub table: String,
    /// The internet gateway, the destination of the default route.
    pub gateway: String,
    /// The nodes' security group, tagged for the cluster.
    pub group: String,
}

/// An EC2 instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The instance's id.
    pub id: String,
    /// The instance's zone.
    pub zone: String,
    /// The instance's private DNS name, which is its Node's name.
    pub name: String,
    /// The instance's private address.
    pub address: String,
}

impl Instance {
    /// Returns the `spec.providerID` of its Node.
    pub fn provider_id(&self) -> String {
        format!("aws:///{}/{}", self.zone, self.id)
    }
}

/// An account in moto with a cluster's network, behind a proxy.
pub struct Moto {
    /// The cluster's id in tags.
    pub cluster: String,
    /// The endpoint for the code under test; it counts calls and injects faults.
    pub proxy: Proxy,
    /// The same account without the proxy.
    pub aws: Aws,
    /// The network.
    pub network: Network,
    _server: Arc<Server>,
}

impl Moto {
    /// Creates an account, with a network for this cluster.
    ///
    /// # Errors
    /// If moto cannot be started or refuses to create the network.
    pub async fn start(cluster: &str) -> Result<Self> {
        Self::on(Server::shared().await?, cluster).await
    }

    /// Creates an account on a given server.
    ///
    /// # Errors
    /// If moto refuses to create the network.
    pub async fn on(server: Arc<Server>, cluster: &str) -> Result<Self> {
        let account = format!("{:012}", rand::random_range(100_000_000_000_u64..1_000_000_000_000));
        let aws = Aws::new(server.address(), account.clone());
        let network = network(&aws, cluster).await.context("make a network in moto")?;
        let proxy = Proxy::start(server.address(), account, aws.clone()).await?;
        reach::add_account(proxy.reachability(), proxy.denials(), server.clone());
        Ok(Self { cluster: cluster.to_owned(), proxy, aws, network, _server: server })
    }

    /// Returns the `--cloud-config` for a process outside AWS.
    pub fn cloud_config(&self) -> String {
        let Network { vpc, subnets, .. } = &self.network;
        let global = format!("VPC = {vpc}\nSubnetID = {}\nKubernetesClusterID = {}\n", subnets[0], self.cluster);
        self.config(&global, &["ACM", "EC2", "Elastic Load Balancing", "Elastic Load Balancing v2"])
    }

    /// Returns the `--cloud-config` for a process on an instance of the cluster, which reads the network and the
    /// cluster's id from the metadata service.
    pub fn cloud_config_in_aws(&self, instance: &Instance) -> String {
        self.proxy.serve_metadata_of(&instance.id);
        self.config("", &["ACM", "EC2", "Elastic Load Balancing", "Elastic Load Balancing v2", "ec2imds"])
    }

    fn config(&self, global: &str, services: &[&str]) -> String {
        let url = self.proxy.url();
        let overrides = (1..).zip(services).map(|(number, name)| {
            format!(
                "[ServiceOverride \"{number}\"]\nService = {name}\nRegion = {REGION}\nURL = {url}\n\
                 SigningRegion = {REGION}\n"
            )
        });
        format!("[Global]\nRegion = {REGION}\n{global}{}", overrides.collect::<String>())
    }

    /// Starts instances, evenly over the zones.
    ///
    /// # Errors
    /// If moto refuses.
    pub async fn run(&self, count: usize) -> Result<Vec<Instance>> {
        let mut instances = Vec::with_capacity(count);
        let (zones, tag) = (ZONES.len(), format!("kubernetes.io/cluster/{}", self.cluster));
        for (zone_index, subnet) in self.network.subnets.iter().enumerate() {
            let in_zone = (count + zones - 1 - zone_index) / zones;
            if in_zone == 0 {
                continue;
            }
            let number = in_zone.to_string();
            let parameters = [
                ("ImageId", "ami-12345678"),
                ("InstanceType", "m5.large"),
                ("MinCount", &*number),
                ("MaxCount", &number),
                ("SubnetId", subnet),
                ("SecurityGroupId.1", &self.network.group),
                ("TagSpecification.1.ResourceType", "instance"),
                ("TagSpecification.1.Tag.1.Key", &tag),
                ("TagSpecification.1.Tag.1.Value", "owned"),
            ];
            let ids = self.aws.ec2("RunInstances", &parameters, "instanceId").await?;
            instances.extend(self.instances(&ids, ZONES[zone_index]).await?);
        }
        ensure!(instances.len() == count, "{count} instances were requested, moto started {instances:?}");
        Ok(instances)
    }

    async fn instances(&self, ids: &[String], zone: &str) -> Result<Vec<Instance>> {
        let mut unique: Vec<&String> = ids.iter().collect();
        unique.sort_unstable();
        unique.dedup();
        let mut instances = Vec::with_capacity(unique.len());
        for ids in unique.chunks(100) {
            let names: Vec<String> = (1..=ids.len()).map(|number| format!("InstanceId.{number}")).collect();
            let parameters: Vec<(&str, &str)> = names.iter().zip(ids).map(|(name, id)| (&**name, &***id)).collect();
            let xml = self.aws.call(Service::Ec2, "DescribeInstances", &parameters).await?;
            for id in ids {
                let marker = format!("<instanceId>{id}</instanceId>");
                let (_, rest) =
                    xml.split_once(&marker).with_context(|| format!("DescribeInstances returned no {id}"))?;
                let first = |tag: &str| xml::texts(rest, tag).into_iter().next().unwrap_or_default();
                instances.push(Instance {
                    id: (*id).clone(),
                    zone: zone.to_owned(),
                    name: first("privateDnsName"),
                    address: first("privateIpAddress"),
                });
            }
        }
        Ok(instances)
    }

    /// Stops an instance; it may be started again.
    ///
    /// # Errors
    /// If moto refuses.
    pub async fn stop(&self, id: &str) -> Result<()> {
        self.aws.ec2("StopInstances", &[("InstanceId.1", id)], "instanceId").await.map(drop)
    }

    /// Starts a stopped instance.
    ///
    /// # Errors
    /// If moto refuses.
    pub async fn resume(&self, id: &str) -> Result<()> {
        self.aws.ec2("StartInstances", &[("InstanceId.1", id)], "instanceId").await.map(drop)
    }

    /// Terminates an instance; routes to it become blackholes.
    ///
    /// # Errors
    /// If moto refuses.
    pub async fn terminate(&self, id: &str) -> Result<()> {
        self.proxy.blackhole(id);
        self.aws.ec2("TerminateInstances", &[("InstanceId.1", id)], "instanceId").await.map(drop)
    }

    /// Returns the routes of a table that lead to instances, as destination and instance, in order.
    ///
    /// # Errors
    /// If moto refuses.
    pub async fn routes(&self, table: &str) -> Result<Vec<(String, String)>> {
        let xml = self.aws.call(Service::Ec2, "DescribeRouteTables", &[("RouteTableId.1", table)]).await?;
        let first = |item: &str, tag: &str| xml::texts(item, tag).into_iter().next();
        let route = |item: &str| {
            let destination = first(item, "destinationCidrBlock").or_else(|| first(item, "destinationIpv6CidrBlock"));
            Some((destination?, first(item, "instanceId")?))
        };
        let mut routes: Vec<_> = xml.split("<item>").filter_map(route).collect();
        routes.sort();
        Ok(routes)
    }

    /// Creates another route table of the network, tagged for the cluster.
    ///
    /// # Errors
    /// If moto refuses.
    pub async fn add_table(&self) -> Result<String> {
        table(&self.aws, &self.network.vpc, &self.cluster).await
    }
}

/// Makes a call; returns the text of the first element with this name in the response.
async fn only_text(aws: &Aws, action: &str, parameters: &[(&str, &str)], element: &str) -> Result<String> {
    let texts = aws.ec2(action, parameters, element).await?;
    texts.into_iter().next().with_context(|| format!("the response to {action} has no {element}"))
}

async fn table(aws: &Aws, vpc: &str, cluster: &str) -> Result<String> {
    let table = only_text(aws, "CreateRouteTable", &[("VpcId", vpc)], "routeTableId").await?;
    tag_resource(aws, &table, &[(&format!("kubernetes.io/cluster/{cluster}"), "owned")]).await?;
    Ok(table)
}

async fn tag_resource(aws: &Aws, resource: &str, tags: &[(&str, &str)]) -> Result<()> {
    let mut parameters = vec![("ResourceId.1".to_owned(), resource.to_owned())];
    for (number, (key, value)) in (1..).zip(tags) {
        parameters.push((format!("Tag.{number}.Key"), (*key).to_owned()));
        parameters.push((format!("Tag.{number}.Value"), (*value).to_owned()));
    }
    let parameters: Vec<(&str, &str)> = parameters.iter().map(|(name, value)| (&**name, &**value)).collect();
    aws.call(Service::Ec2, "CreateTags", &parameters).await.map(drop)
}

async fn network(aws: &Aws, cluster: &str) -> Result<Network> {
    let tag = format!("kubernetes.io/cluster/{cluster}");
    let ranges = [("CidrBlock", "10.0.0.0/16"), ("AmazonProvidedIpv6CidrBlock", "true")];
    let created = aws.call(Service::Ec2, "CreateVpc", &ranges).await?;
    let first = |tag: &str| xml::texts(&created, tag).into_iter().next().context("incomplete CreateVpc response");
    let (vpc, ipv6_prefix) = (first("vpcId")?, first("ipv6CidrBlock")?);
    // AWS assigns a /56; its address ends in two zeros, which the subnets replace by their numbers.
    let ipv6_prefix = ipv6_prefix.strip_suffix("00::/56").with_context(|| format!("{ipv6_prefix} is not a /56"))?;
    let gateway = only_text(aws, "CreateInternetGateway", &[], "internetGatewayId").await?;
    aws.call(Service::Ec2, "AttachInternetGateway", &[("InternetGatewayId", &gateway), ("VpcId", &vpc)]).await?;
    let table = table(aws, &vpc, cluster).await?;
    let default_route = [("RouteTableId", &*table), ("DestinationCidrBlock", "0.0.0.0/0"), ("GatewayId", &gateway)];
    aws.call(Service::Ec2, "CreateRoute", &default_route).await?;
    let mut subnets = Vec::new();
    for (third, zone) in (1..).zip(ZONES) {
        let (range, ipv6_range) = (format!("10.0.{}.0/20", third * 16), format!("{ipv6_prefix}{third:02x}::/64"));
        let parameters =
            [("VpcId", &*vpc), ("CidrBlock", &range), ("Ipv6CidrBlock", &ipv6_range), ("AvailabilityZone", zone)];
        let subnet = only_text(aws, "CreateSubnet", &parameters, "subnetId").await?;
        let roles = [(&*tag, "shared"), ("kubernetes.io/role/elb", "1"), ("kubernetes.io/role/internal-elb", "1")];
        tag_resource(aws, &subnet, &roles).await?;
        aws.call(Service::Ec2, "AssociateRouteTable", &[("RouteTableId", &table), ("SubnetId", &subnet)]).await?;
        subnets.push(subnet);
    }
    let name = format!("nodes.{cluster}");
    let parameters = [("GroupName", &*name), ("GroupDescription", "nodes"), ("VpcId", &vpc)];
    let group = only_text(aws, "CreateSecurityGroup", &parameters, "groupId").await?;
    tag_resource(aws, &group, &[(&tag, "owned")]).await?;
    Ok(Network { vpc, subnets, table, gateway, group })
}
