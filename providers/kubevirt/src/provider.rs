//! The provider, and the factory of `--cloud-provider=kubevirt`.

use std::sync::Arc;

use kinds::names::is_label_value;
use providers::{
    BuildContext, ClassFilter, CloudError, CloudProvider, ConfigError, ErrorKind, Factory, Instances, LoadBalancers,
    async_trait,
};
use runtime::client::ConnectOptions;
use tracing::{info, warn};

use crate::config::{Config, SettingError};
use crate::desired;
use crate::infra::Infra;
use crate::instances::KubeVirtInstances;
use crate::load_balancers::KubeVirtLoadBalancers;

struct Provider {
    infra: Arc<Infra>,
    instances: Option<Arc<KubeVirtInstances>>,
    load_balancers: Option<Arc<KubeVirtLoadBalancers>>,
}

#[async_trait]
impl CloudProvider for Provider {
    fn name(&self) -> &'static str {
        "kubevirt"
    }

    async fn initialize(&self) -> Result<(), CloudError> {
        let namespace = self.infra.namespace().await?;
        match self.infra.read_namespace().await {
            Ok(Some(_)) => info!(namespace, "connected to the infrastructure cluster"),
            Ok(None) => {
                let message = format!(
                    "namespace is {namespace:?}, which does not exist in the infrastructure cluster: create it, or \
                     correct namespace in --cloud-config"
                );
                return Err(CloudError::new(ErrorKind::Transient, "GetNamespace", message));
            }
            // Upstream's role does not allow this read, and most work does not need it.
            Err(error) if error.kind == ErrorKind::Denied => {
                warn!(namespace, %error, "namespace of the infrastructure cluster cannot be read");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn instances(&self) -> Option<Arc<dyn Instances>> {
        self.instances.clone().map(|instances| instances as Arc<dyn Instances>)
    }

    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        self.load_balancers.clone().map(|balancers| balancers as Arc<dyn LoadBalancers>)
    }
}

/// Builds the provider of a cluster. The connection's kubeconfig is the infrastructure cluster's; nothing is read and
/// no call is made before the first use.
pub fn build(
    config: &Config,
    cluster: &str,
    classes: ClassFilter,
    connection: ConnectOptions,
) -> Arc<dyn CloudProvider> {
    let infra = Arc::new(Infra::new(connection, config.namespace.clone()));
    let instances = config.instances.then(|| Arc::new(KubeVirtInstances { infra: infra.clone(), zones: config.zones }));
    let load_balancers = config.load_balancer.clone().map(|settings| {
        let features = desired::features(&settings, &classes);
        Arc::new(KubeVirtLoadBalancers {
            infra: infra.clone(),
            config: settings,
            infra_labels: config.infra_labels.clone(),
            cluster: cluster.to_owned(),
            features,
        })
    });
    Arc::new(Provider { infra, instances, load_balancers })
}

/// Returns the factory of `--cloud-provider=kubevirt`. `--cloud-config` is a [`Config`] as YAML, or absent.
pub fn factory() -> Factory {
    Factory { name: "kubevirt", build: build_from }
}

fn build_from(context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    let invalid = |error: SettingError| error.in_file(context.config_name());
    let config = Config::parse(&context.config).map_err(invalid)?;
    if let Some(kubeconfig) = &config.kubeconfig
        && let Err(error) = std::fs::File::open(kubeconfig)
    {
        let fix = format!("it cannot be read ({error}); use a kubeconfig of the infrastructure cluster");
        let value = kubeconfig.display().to_string();
        return Err(invalid(SettingError { field: "kubeconfig".into(), value, fix }));
    }
    if context.cluster_name.is_empty() || !is_label_value(&context.cluster_name) {
        return Err(ConfigError::Invalid {
            file: "flags".into(),
            field: "--cluster-name".into(),
            value: context.cluster_name.clone(),
            fix: "use the value of the virtual machines' label cluster.x-k8s.io/cluster-name".into(),
        });
    }
    let classes = ClassFilter { unset: !context.only_classes, named: context.load_balancer_classes.clone() };
    let connection = ConnectOptions {
        kubeconfig: config.kubeconfig.clone(),
        kubeconfig_setting: "the field kubeconfig of --cloud-config",
        user_agent: concat!("cloud-controller-manager/", env!("CARGO_PKG_VERSION")).into(),
        ..ConnectOptions::default()
    };
    Ok(build(&config, &context.cluster_name, classes, connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(context: &BuildContext) -> String {
        build_from(context).err().expect("it cannot be built").to_string()
    }

    #[test]
    fn factory_reports_field_value_and_fix() {
        let mut context = BuildContext { cluster_name: "tenant".into(), ..BuildContext::default() };
        context.config_path = Some("/etc/cloud.yaml".into());
        context.config = b"kubeconfig: /does/not/exist".to_vec();
        let message = refused(&context);
        assert!(
            message.starts_with("/etc/cloud.yaml: kubeconfig is \"/does/not/exist\": it cannot be read"),
            "{message}"
        );
        context.config = b"kubeconfg: a".to_vec();
        let message = refused(&context);
        assert!(message.starts_with("/etc/cloud.yaml: ") && message.contains("kubeconfg"), "{message}");
        context.config.clear();
        context.cluster_name = "a b".into();
        assert!(refused(&context).starts_with("flags: --cluster-name is \"a b\": use the value"));
    }

    #[test]
    fn disabled_capabilities_are_absent() {
        let context = BuildContext {
            cluster_name: "tenant".into(),
            config: b"loadBalancer: {enabled: false}".to_vec(),
            ..BuildContext::default()
        };
        let provider = build_from(&context).expect("a provider");
        assert!(provider.load_balancers().is_none() && provider.instances().is_some());
    }
}
