//! Reloads credentials that change while the process runs, in files or by an exec plugin.

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::bearer::bearer;
use super::connect_error::ConnectError;
use super::pool::Connections;
use crate::lock::{read, write};
use crate::metrics::{CaReload, RestClient};

/// A bearer token kept in a file, as the header that contains it.
pub(super) struct TokenFile {
    file: PathBuf,
    header: RwLock<HeaderValue>,
}

impl TokenFile {
    /// Reads the token. Blocks the thread.
    pub(super) fn new(file: &Path) -> Result<Self, ConnectError> {
        Ok(Self { file: file.to_owned(), header: RwLock::new(read_token(file)?) })
    }

    pub(super) fn header(&self) -> HeaderValue {
        read(&self.header).clone()
    }

    /// Reads the token again. Blocks the thread. If that fails, the last valid token stays in use.
    fn reload(&self) -> Result<(), ConnectError> {
        let header = read_token(&self.file)?;
        *write(&self.header) = header;
        Ok(())
    }
}

fn read_token(file: &Path) -> Result<HeaderValue, ConnectError> {
    let token = std::fs::read_to_string(file).map_err(|source| ConnectError::ReadFile {
        field: "token",
        file: file.to_owned(),
        source,
    })?;
    let token = token.trim();
    bearer(token).filter(|_| !token.is_empty()).ok_or_else(|| ConnectError::BadToken { file: file.to_owned() })
}

/// The credentials that may change. The task that reloads them ends when no client uses them.
pub(super) struct Reloaded {
    pub(super) connections: Vec<Weak<Connections>>,
    pub(super) token: Weak<TokenFile>,
    /// Notified when the exec plugin has returned new credentials.
    pub(super) renewed: Arc<Notify>,
    pub(super) metrics: RestClient,
}

impl Reloaded {
    /// Checks the credentials every `interval`, and after each renewal, until the clients are dropped.
    pub(super) async fn run(self, interval: Duration) {
        loop {
            // The credentials are checked after the interval, and immediately after a renewal by the plugin.
            let _ = timeout(interval, self.renewed.notified()).await;
            let connections: Vec<_> = self.connections.iter().filter_map(Weak::upgrade).collect();
            let token = self.token.upgrade();
            if connections.is_empty() && token.is_none() {
                self.metrics.rotation_ended();
                return;
            }
            let metrics = self.metrics.clone();
            let reloaded = tokio::task::spawn_blocking(move || reload(&connections, token, &metrics));
            if reloaded.await.is_err() {
                tracing::error!("reloading the credentials panicked; retrying after the interval");
            }
        }
    }
}

fn reload(connections: &[Arc<Connections>], token: Option<Arc<TokenFile>>, metrics: &RestClient) {
    for set in connections.iter().filter(|set| set.reloads()) {
        let result = set.reload();
        match &result {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("certificates changed: new connections use them");
                metrics.transport_created();
                metrics.transport_replaced();
            }
            Err(error) => tracing::warn!(%error, "certificates not reloaded; keeping the old ones"),
        }
        metrics.certificates_checked(match result {
            Ok(false) => CaReload::Unchanged,
            Ok(true) => CaReload::Updated,
            Err(ConnectError::ReadFile { .. }) => CaReload::ReadError,
            Err(_) => CaReload::ParseError,
        });
    }
    if let Some(Err(error)) = token.map(|token| token.reload()) {
        tracing::warn!(%error, "token file not reloaded; keeping the old token");
    }
}
