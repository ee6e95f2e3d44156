//! One reconcile of an account or a secret: read, decide, write.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{ObjectKey, Uid};
use kinds::secret::{ACCOUNT_NAME, ACCOUNT_UID, AccountToken};
use kinds::{Decode, Interner, Kind, Secret, ServiceAccount};
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::{debug, info};
use zeroize::Zeroizing;

use super::decide::{claims, is_named, is_token_of, missing_fields};
use super::keys::{BY_ACCOUNT, Key, tokens_of};
use crate::credentials::SigningKey;

/// The controller's state.
pub struct Tokens {
    pub accounts: Arc<Store<ServiceAccount>>,
    pub secrets: Arc<Store<Secret>>,
    pub writer: Writer,
    pub key: Arc<SigningKey>,
    pub root_ca: Arc<[u8]>,
}

impl Reconcile for Tokens {
    type Key = Key;

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            match key {
                Key::Account { account, uid } => self.sync_account(account, uid).await,
                Key::Secret { secret, uid, account, account_uid } => {
                    let account = ObjectKey { namespace: secret.namespace.clone(), name: account.clone() };
                    self.sync_secret(secret, uid, &account, account_uid.as_ref()).await
                }
            }
        }
        .boxed()
    }
}

impl Tokens {
    /// Deletes the tokens of a deleted account.
    ///
    /// Differs from upstream: a token whose reference has no UID is kept if another account with that name exists,
    /// because the token may belong to that account.
    async fn sync_account(&self, account: &ObjectKey, uid: &Uid) -> Result<Outcome, ReconcileError> {
        if self.cached_account(account, Some(uid)).is_some() {
            return Ok(Outcome::Done);
        }
        let references_account = |token: &AccountToken| token.account == account.name && is_token_of(token, uid);
        let mut secrets = self.secrets.by_index(&BY_ACCOUNT, tokens_of(&account.namespace, &account.name));
        secrets.retain(|secret| {
            *secret.meta.namespace == *account.namespace && secret.account_token().is_some_and(references_account)
        });
        let has_uid = |secret: &Secret| secret.account_token().is_some_and(|token| token.account_uid.is_some());
        if !secrets.iter().all(|secret| has_uid(secret)) && self.find_account(account, None).await?.is_some() {
            secrets.retain(|secret| has_uid(secret));
        }
        let mut outcome = Outcome::Done;
        let mut failed = None;
        for secret in secrets {
            match self.delete(&secret).await {
                Ok(Outcome::Done) => {}
                Ok(requeue) => outcome = requeue,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(outcome), |error| Err(error.into()))
    }

    async fn sync_secret(
        &self,
        key: &ObjectKey,
        uid: &Uid,
        account: &ObjectKey,
        account_uid: Option<&Uid>,
    ) -> Result<Outcome, ReconcileError> {
        let secret = self.secrets.get_with_uid(&key.namespace, &key.name, uid);
        let Some((secret, token)) = secret.as_ref().and_then(|secret| Some((secret, secret.account_token()?))) else {
            return self.remove_from_account(key, account, account_uid).await;
        };
        match self.find_account(account, account_uid).await? {
            Some(account) => self.complete_secret(secret, token, &account).await,
            None => {
                info!(secret = %key, %account, "deleting a token secret: its service account does not exist");
                Ok(self.delete(secret).await?)
            }
        }
    }

    /// Removes a deleted secret from its account's list.
    ///
    /// The account is read from the API server, because the cache may lack the addition of the secret.
    async fn remove_from_account(
        &self,
        secret: &ObjectKey,
        account: &ObjectKey,
        account_uid: Option<&Uid>,
    ) -> Result<Outcome, ReconcileError> {
        if self.cached_account(account, account_uid).is_none() {
            return Ok(Outcome::Done);
        }
        let lists = |account: &ServiceAccount| account.secrets.binary_search(&secret.name).is_ok();
        let live = self.read_account(account).await?.filter(|live| is_named(&live.meta, account_uid) && lists(live));
        let Some(live) = live else { return Ok(Outcome::Done) };
        let object = put_body(live.without_secret(&secret.name))?;
        match self.writer.replace(&ServiceAccount::RESOURCE, account, None, &object).await {
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Outcome::Done),
        }
    }

    /// Adds the missing fields to a token secret, and corrects `ca.crt`.
    async fn complete_secret(
        &self,
        known: &Secret,
        token: &AccountToken,
        account: &ServiceAccount,
    ) -> Result<Outcome, ReconcileError> {
        if !missing_fields(token, &self.root_ca).any() {
            return Ok(Outcome::Done);
        }
        let key = known.meta.key();
        let live = match self.writer.get(&Secret::RESOURCE, &key).await {
            Ok(response) => response.decode::<Secret>(&decoding_of(Secret::WHOLE)).map_err(WriteError::from)?,
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            Err(error) => return Err(error.into()),
        };
        if live.meta.version != known.meta.version {
            debug!(secret = %key, "token secret has changed; its change requeues the key");
            return Ok(Outcome::Done);
        }
        let Some(token) = live.account_token() else { return Ok(Outcome::Done) };
        let missing = missing_fields(token, &self.root_ca);
        let signed;
        let mut data: Vec<(&str, &[u8])> = Vec::new();
        if missing.ca {
            data.push(("ca.crt", &self.root_ca));
        }
        if missing.namespace {
            data.push(("namespace", key.namespace.as_bytes()));
        }
        if missing.token {
            let token = self.key.token(&claims(&account.meta, &key.name));
            signed = Zeroizing::new(token.map_err(|error| ReconcileError::new(error.to_string()))?);
            data.push(("token", signed.as_bytes()));
        }
        let uid = account.meta.uid.to_string();
        let annotations = [(ACCOUNT_NAME, &*account.meta.name), (ACCOUNT_UID, &uid)];
        let object = put_body(live.update(&annotations, &data))?;
        match self.writer.replace(&Secret::RESOURCE, &key, None, &object).await {
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Outcome::Done),
        }
    }

    /// Returns the cached account, if it is the referenced one.
    fn cached_account(&self, account: &ObjectKey, uid: Option<&Uid>) -> Option<Arc<ServiceAccount>> {
        self.accounts.get(account).filter(|known| is_named(&known.meta, uid))
    }

    /// Returns the referenced account. If the cache does not contain it, an uncached read decides.
    async fn find_account(
        &self,
        account: &ObjectKey,
        uid: Option<&Uid>,
    ) -> Result<Option<Arc<ServiceAccount>>, WriteError> {
        match self.cached_account(account, uid) {
            Some(known) => Ok(Some(known)),
            None => Ok(self.read_account(account).await?.filter(|live| is_named(&live.meta, uid)).map(Arc::new)),
        }
    }

    /// Reads an account from the API server; `None` if it does not exist.
    async fn read_account(&self, account: &ObjectKey) -> Result<Option<ServiceAccount>, WriteError> {
        match self.writer.get(&ServiceAccount::RESOURCE, account).await {
            Ok(response) => Ok(Some(response.decode(&decoding_of(ServiceAccount::WHOLE))?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, secret: &Secret) -> Result<Outcome, WriteError> {
        match self.writer.delete(&Secret::RESOURCE, &secret.meta.key(), &secret.meta.uid).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) => Err(error),
        }
    }
}

/// Returns the decoding of a single object with these sections.
fn decoding_of(sections: kinds::Sections) -> Decode {
    Decode { interner: Arc::new(Interner::default()), sections }
}

/// Returns the body of a PUT, which is zeroized when it is dropped: it may contain a token.
fn put_body(object: Option<Result<Vec<u8>, kinds::wire::WireError>>) -> Result<Zeroizing<Vec<u8>>, ReconcileError> {
    match object {
        Some(Ok(object)) => Ok(Zeroizing::new(object)),
        Some(Err(error)) => Err(ReconcileError::new(error.to_string())),
        None => Err(ReconcileError::new("the object was decoded without the sections that a PUT needs")),
    }
}
