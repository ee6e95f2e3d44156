//! The mock as a provider, and the factory of `--cloud-provider=mock`.

use std::sync::{Arc, Mutex, PoisonError};

use providers::{
    BuildContext, CloudError, CloudProvider, ConfigError, ErrorKind, Factory, Instances, LoadBalancers, Routes,
    SecretData, SecretName, async_trait, parse_config,
};
use tokio::net::TcpListener;
use tracing::info;

use crate::balancers::MockLoadBalancers;
use crate::cloud::MockCloud;
use crate::config::MockConfig;
use crate::instances::MockInstances;
use crate::remote::RemoteProvider;
use crate::routes::MockRoutes;

impl MockCloud {
    /// Returns a provider over this cloud for a cluster. Each call creates another one, as a restarted process would.
    pub fn provider(&self, cluster_name: &str) -> Arc<dyn CloudProvider> {
        Arc::new(Provider::new(self.without_token(), cluster_name, false))
    }
}

struct Provider {
    cloud: MockCloud,
    cluster: String,
    server: Mutex<Option<tokio::task::JoinHandle<()>>>,
    /// This provider serves the cloud at `listen`. Providers of tests do not: their cloud may have several providers.
    serves: bool,
}

impl Provider {
    pub fn new(cloud: MockCloud, cluster: &str, serves: bool) -> Self {
        Self { cloud, cluster: cluster.into(), server: Mutex::new(None), serves }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        if let Some(server) = self.server.get_mut().unwrap_or_else(PoisonError::into_inner) {
            server.abort();
        }
    }
}

#[async_trait]
impl CloudProvider for Provider {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn has_cluster_id(&self) -> bool {
        !self.cluster.is_empty()
    }

    fn secrets(&self) -> Vec<SecretName> {
        self.cloud.config().secret.as_deref().and_then(secret_name).into_iter().collect()
    }

    fn receive_secret(&self, name: &SecretName, data: Option<SecretData>) -> Result<(), CloudError> {
        let token = data.as_ref().and_then(|data| data.get(TOKEN));
        let token = token.and_then(|token| std::str::from_utf8(token).ok()).filter(|token| !token.is_empty());
        let Some(token) = token else {
            let message = match data {
                Some(_) => format!("the Secret {name} has no key {TOKEN} with a non-empty UTF-8 value: add one"),
                None => format!("the Secret {name} does not exist: create it, with the key {TOKEN}"),
            };
            return Err(CloudError::new(ErrorKind::Invalid, "ReadCredentials", message));
        };
        self.cloud.use_token(token.to_owned());
        Ok(())
    }

    async fn initialize(&self) -> Result<(), CloudError> {
        let serving = self.server.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let Some(address) = self.cloud.config().listen.filter(|_| self.serves && !serving) else { return Ok(()) };
        let failed = |error| {
            CloudError::new(ErrorKind::Transient, "Listen", format!("listen is {address}: {error}; use a free address"))
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        info!(%address, "serving the mock cloud's state over HTTP");
        let server = tokio::spawn(self.cloud.clone().serve(listener));
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(())
    }

    fn instances(&self) -> Option<Arc<dyn Instances>> {
        Some(Arc::new(MockInstances(self.cloud.clone())))
    }

    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        Some(Arc::new(MockLoadBalancers { cloud: self.cloud.clone(), cluster: self.cluster.clone() }))
    }

    fn routes(&self) -> Option<Arc<dyn Routes>> {
        Some(Arc::new(MockRoutes(self.cloud.clone())))
    }
}

/// The key of the credentials in the Secret.
const TOKEN: &str = "token";

/// Reads a name with its namespace.
fn secret_name(text: &str) -> Option<SecretName> {
    let (namespace, name) = text.split_once('/')?;
    let is_word = |word: &str| !word.is_empty() && !word.contains('/');
    (is_word(namespace) && is_word(name)).then(|| SecretName { namespace: namespace.into(), name: name.into() })
}

/// Returns the factory of `--cloud-provider=mock`. `--cloud-config` is a [`MockConfig`] as JSON, or absent.
pub fn factory() -> Factory {
    Factory { name: "mock", build }
}

fn build(context: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    let config: MockConfig = parse_config(context, |bytes| serde_json::from_slice(bytes))?;
    if let Some(url) = &config.url {
        let invalid = |fix: String| ConfigError::Invalid {
            file: context.config_name(),
            field: "url".into(),
            value: url.clone(),
            fix,
        };
        if config != (MockConfig { url: config.url.clone(), ..MockConfig::default() }) {
            return Err(invalid("remove all other fields: they belong to the process that serves the cloud".into()));
        }
        return Ok(Arc::new(RemoteProvider::new(url, &context.cluster_name).map_err(invalid)?));
    }
    if let Some(secret) = config.secret.as_ref().filter(|secret| secret_name(secret).is_none()) {
        return Err(ConfigError::Invalid {
            file: context.config_name(),
            field: "secret".into(),
            value: secret.clone(),
            fix: "use namespace/name".into(),
        });
    }
    let unreadable = |error: crate::fault::FaultError| ConfigError::Unreadable {
        file: context.config_name(),
        message: format!("faults: {error}"),
    };
    let cloud = MockCloud::new(config).map_err(unreadable)?;
    Ok(Arc::new(Provider::new(cloud, &context.cluster_name, true)))
}
