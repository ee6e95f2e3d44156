//! A vendor's cloud controller manager: the controllers of `ccm` with another provider.

use std::process::ExitCode;
use std::sync::Arc;

use providers::{
    BuildContext, CloudProvider, ConfigError, Factory, InstanceRef, InstanceState, Instances, async_trait,
};

/// A cloud with instances only.
struct Acme;

#[async_trait]
impl Instances for Acme {
    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState> {
        instances.iter().map(|_| InstanceState::Stopped).collect()
    }
}

#[async_trait]
impl CloudProvider for Acme {
    fn name(&self) -> &'static str {
        "acme"
    }

    fn instances(&self) -> Option<Arc<dyn Instances>> {
        Some(Arc::new(Acme))
    }
}

fn build(_: &BuildContext) -> Result<Arc<dyn CloudProvider>, ConfigError> {
    Ok(Arc::new(Acme))
}

fn main() -> ExitCode {
    ccm::run(&[Factory { name: "acme", build }])
}
