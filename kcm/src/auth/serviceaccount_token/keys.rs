//! Maps changes of accounts and secrets to keys. Keys contain UIDs, because an object that is created again under the
//! same name is a different one.

use std::fmt;
use std::sync::Arc;

use kinds::meta::{ObjectKey, Uid};
use kinds::{Kind, Secret, ServiceAccount, Str};
use runtime::queue::{Queue, QueueKey};
use runtime::store::{Change, Index, Store, index_key};

/// Token secrets by namespace and account.
pub const BY_ACCOUNT: Index<Secret> = Index {
    name: "account",
    keys: |secret, emit| {
        if let Some(token) = secret.account_token() {
            emit(tokens_of(&secret.meta.namespace, &token.account));
        }
    },
};

/// Returns the index key of an account's tokens.
pub fn tokens_of(namespace: &str, account: &str) -> u64 {
    index_key((namespace, account))
}

/// A key of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// An account that was deleted.
    Account {
        /// Its namespace and name.
        account: ObjectKey,
        /// Its uid.
        uid: Uid,
    },
    /// A token secret that exists or was deleted.
    Secret {
        /// Its namespace and name.
        secret: ObjectKey,
        /// Its uid.
        uid: Uid,
        /// The account that it references.
        account: Str,
        /// The UID in that reference, if there is one.
        account_uid: Option<Uid>,
    },
}

impl QueueKey for Key {
    fn namespace(&self) -> &str {
        match self {
            Self::Account { account: key, .. } | Self::Secret { secret: key, .. } => &key.namespace,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account { account, .. } => write!(f, "account {account}"),
            Self::Secret { secret, .. } => write!(f, "secret {secret}"),
        }
    }
}

/// Enqueues the keys of changed objects.
pub fn subscribe(accounts: &Arc<Store<ServiceAccount>>, secrets: &Arc<Store<Secret>>, queue: &Arc<Queue<Key>>) {
    let (of_accounts, of_secrets) = (queue.clone(), queue.clone());
    accounts.subscribe(move |change| {
        if let Some(key) = of_account(change) {
            of_accounts.add(key);
        }
    });
    secrets.subscribe(move |change| of_secret(change).into_iter().for_each(|key| of_secrets.add(key)));
}

/// Returns true if the previous object no longer exists, even if another one has its name.
fn was_deleted_or_replaced<K: Kind>(change: &Change<'_, K>) -> bool {
    change.old.is_some_and(|old| change.new.is_none_or(|new| new.meta().uid != old.meta().uid))
}

/// Returns the key of a deleted account; an existing account is not enqueued.
pub fn of_account(change: &Change<'_, ServiceAccount>) -> Option<Key> {
    let old = change.old.filter(|_| was_deleted_or_replaced(change))?;
    Some(Key::Account { account: old.meta.key(), uid: old.meta.uid.clone() })
}

/// Returns the keys of the current token secret, and of the previous one if it was replaced or deleted.
pub fn of_secret(change: &Change<'_, Secret>) -> Vec<Key> {
    let deleted = change.old.filter(|_| was_deleted_or_replaced(change));
    deleted.into_iter().chain(change.new).filter_map(|secret| key(secret)).collect()
}

/// Returns the key of a token secret. A secret that names no account is ignored. It exists only if an API server
/// without that validation has stored it.
fn key(secret: &Secret) -> Option<Key> {
    let token = secret.account_token().filter(|token| !token.account.is_empty())?;
    Some(Key::Secret {
        secret: secret.meta.key(),
        uid: secret.meta.uid.clone(),
        account: token.account.clone(),
        account_uid: token.account_uid.clone(),
    })
}
