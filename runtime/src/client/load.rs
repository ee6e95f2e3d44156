//! The configuration of the clients: everything that is read before the first request.

use std::sync::Arc;

use kube::client::ConfigExt as _;
use tokio::sync::Notify;

use super::authorized::Credentials;
use super::connect_error::ConnectError;
use super::kubeconfig;
use super::layer::Pool;
use super::options::ConnectOptions;
use super::plugin_credentials::PluginCredentials;
use super::pool::{Connections, Runtimes};
use super::reload::TokenFile;

/// Everything that is read before the first request.
pub(super) struct Loaded {
    pub(super) config: kube::Config,
    /// The connections of [`Pool::Own`].
    pub(super) own: Arc<Connections>,
    /// The connections of [`Pool::Bearer`].
    pub(super) bearer: Arc<Connections>,
    /// The token file of the process's own identity, if it has one.
    pub(super) token: Option<Arc<TokenFile>>,
    /// The credentials of the process's own identity, unless they are a token file.
    pub(super) credentials: Option<Credentials>,
    /// Notified when the exec plugin, if there is one, has returned new credentials.
    pub(super) renewed: Arc<Notify>,
}

/// Reads files and runs the exec plugin. Blocks the thread.
pub(super) fn load(options: &ConnectOptions, runtimes: &Runtimes) -> Result<Loaded, ConnectError> {
    let source = kubeconfig::load(options)?;
    let control = &runtimes.control;
    let plugin = source.plugin.clone().map(|plugin| PluginCredentials::issue(plugin, control.clone())).transpose();
    let plugin = plugin.map_err(ConnectError::Credentials)?;
    let credentials = match &plugin {
        Some(plugin) => Some(Credentials::Plugin(plugin.clone())),
        None => {
            let layer = source.config.auth_layer().map_err(|error| ConnectError::Credentials(error.to_string()))?;
            layer.map(|layer| Credentials::Fixed(Arc::new(layer)))
        }
    };
    Ok(Loaded {
        renewed: plugin.as_ref().map(|plugin| plugin.renewed()).unwrap_or_default(),
        own: Arc::new(Connections::new(Pool::Own, &source, plugin, runtimes.clone())?),
        bearer: Arc::new(Connections::new(Pool::Bearer, &source, None, runtimes.clone())?),
        token: (source.token_file.as_deref()).map(TokenFile::new).transpose()?.map(Arc::new),
        credentials: credentials.filter(|_| source.token_file.is_none()),
        config: source.config,
    })
}
