//! legacy-serviceaccount-token-cleaner-controller: first invalidates, then deletes tokens that earlier versions of
//! Kubernetes generated and that were not used for a long time.
//!
//! It runs once a day. Upstream: pkg/controller/serviceaccount, LegacySATokenCleaner.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kinds::config_map::Body;
use kinds::intern::label;
use kinds::meta::{Meta, ObjectKey};
use kinds::pod::secrets::visit_secret_names;
use kinds::secret::AccountToken;
use kinds::{ConfigMap, Decode, Interner, Kind, Pod, Secret, Sections, ServiceAccount, Str};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};
use serde_json::{Value, json};
use tracing::{error, info};

use crate::context::{Clock, Context, Descriptor, QueueKeys, Start, Verb, Write};
use crate::flags::Values;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "legacy-serviceaccount-token-cleaner-controller",
    service_account: "legacy-service-account-token-cleaner",
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "secrets" },
        Write { verb: Verb::Delete, group: "", resource: "secrets" },
    ],
    queues: &[QueueKeys::of("legacy_service_account_token_cleaner", "Secret")],
    start,
    ..Descriptor::NONE
};

/// Label with the day of a token's last use, kept by the API server.
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Label with the day since which the API server refuses a token.
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The ConfigMap in which the API server records the day since which it keeps [`LAST_USED`].
const TRACKING: (&str, &str) = ("kube-system", "kube-apiserver-legacy-service-account-token-tracking");
const TRACKED_SINCE: &str = "since";
/// Interval between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// All token secrets of service accounts.
const TOKENS: Index<Secret> = Index {
    name: "account-token",
    keys: |secret, emit| {
        if secret.account_token().is_some() {
            emit(index_key(()));
        }
    },
};

const PERIOD: &str = "legacy-service-account-token-clean-up-period";

/// Refuses a period of zero or less: a token in use would count as unused on the day after its last use, and would be
/// invalidated, then deleted.
fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    check_period(&context.options.values)?;
    Ok(Start::Run)
}

fn check_period(values: &Values) -> anyhow::Result<()> {
    ensure!(
        values.nanos(PERIOD) > 0,
        "--{PERIOD} must be longer than zero; to keep all tokens use --controllers=*,-{}",
        DESCRIPTOR.name
    );
    Ok(())
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<ServiceAccount>(Sections::default(), &[]);
    builder.need::<Secret>(Sections::default(), &[TOKENS]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("legacy_service_account_token_cleaner"));
    queue.add(ObjectKey::new(TRACKING.0, TRACKING.1));
    let period = context.options.values.get_duration(PERIOD);
    let reconciler = Arc::new(Cleaner {
        accounts: manager.registry().store(),
        secrets: manager.registry().store(),
        writer: manager.writer(DESCRIPTOR.service_account),
        reader: manager.own_writer(),
        period: SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX),
        clock: context.clock.clone(),
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

/// Action on a token, unless a pod references it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    MarkInvalid,
    Delete,
}

/// Parses a day in the format of the labels; no other format is accepted.
fn day(text: &str) -> Option<Date> {
    text.parse::<Date>().ok().filter(|date| date.to_string() == text)
}

fn day_of(time: Timestamp) -> Date {
    time.to_zoned(TimeZone::UTC).date()
}

/// Returns true if the API server has recorded uses for at least `period`, so a token without a recorded use is
/// unused. `since` is the day on which the recording began; `None` if it is not a day.
fn is_tracked_for(since: &str, period: SignedDuration, now: Timestamp) -> Option<bool> {
    let first_full_day = day(since)?.tomorrow().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some(first_full_day.checked_add(period).is_ok_and(|end| now >= end))
}

/// Returns the action for a token, regardless of the pods that reference it.
fn decide(secret: &Secret, account: Option<&ServiceAccount>, period: SignedDuration, now: Timestamp) -> Verdict {
    let (Some(token), Ok(period_start)) = (secret.account_token(), now.checked_sub(period)) else {
        return Verdict::Keep;
    };
    let Ok(created) = Timestamp::from_second(secret.meta.created.0) else { return Verdict::Keep };
    let is_recent = |label: Date| label >= day_of(period_start);
    if created >= period_start || secret.meta.is_deleting() || !is_generated(secret, token, account) {
        return Verdict::Keep;
    }
    match label(&secret.meta.labels, LAST_USED).map(day) {
        // The label cannot be parsed: the time of the last use is not known.
        Some(None) => return Verdict::Keep,
        Some(Some(used)) if is_recent(used) => return Verdict::Keep,
        _ => {}
    }
    match label(&secret.meta.labels, INVALID_SINCE).and_then(day) {
        None => Verdict::MarkInvalid,
        Some(since) if is_recent(since) => Verdict::Keep,
        Some(_) => Verdict::Delete,
    }
}

/// Returns true if the cluster generated a token: the account lists generated tokens, but not those that users created.
fn is_generated(secret: &Secret, token: &AccountToken, account: Option<&ServiceAccount>) -> bool {
    account.is_some_and(|account| {
        token.account_uid.as_ref().is_none_or(|uid| *uid == account.meta.uid)
            && account.secrets.binary_search(&secret.meta.name).is_ok()
    })
}

/// Returns the patch that invalidates this version of a token. The patch fails if the token was used since, because the
/// API server has then changed its labels.
fn invalidation(secret: &Meta, now: Timestamp) -> Value {
    json!({
        "kind": "Secret", "apiVersion": "v1",
        "metadata": {
            "name": &*secret.name, "namespace": &*secret.namespace, "uid": secret.uid.to_string(),
            "resourceVersion": secret.version.to_string(), "labels": {INVALID_SINCE: day_of(now).to_string()},
        },
    })
}

struct Cleaner {
    accounts: Arc<Store<ServiceAccount>>,
    secrets: Arc<Store<Secret>>,
    writer: Writer,
    /// Client that may read pods; the controller's service account may not.
    reader: Writer,
    period: SignedDuration,
    clock: Clock,
}

impl Reconcile for Cleaner {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            if let Err(problem) = self.pass(key).await {
                error!(problem, "cannot check legacy tokens; retrying in 24 hours");
            }
            Ok(Outcome::RequeueAfter(PASS_INTERVAL))
        }
        .boxed()
    }
}

impl Cleaner {
    async fn pass(&self, tracking: &ObjectKey) -> Result<(), String> {
        let now = (self.clock)();
        let since = self.tracked_since(tracking).await?;
        let is_tracked = is_tracked_for(&since, self.period, now).ok_or_else(|| {
            format!("{TRACKED_SINCE} of ConfigMap {tracking} is {since:?}, not a date of the form YYYY-MM-DD")
        })?;
        if !is_tracked {
            return Ok(());
        }
        // `None`: the pods of the namespace cannot be listed.
        let mut used: HashMap<Str, Option<HashSet<Box<str>>>> = HashMap::new();
        for secret in self.secrets.by_index(&TOKENS, index_key(())) {
            let verdict = decide(&secret, self.account(&secret).as_deref(), self.period, now);
            if verdict == Verdict::Keep {
                continue;
            }
            let namespace = &secret.meta.namespace;
            if !used.contains_key(namespace) {
                let names = self.used_secrets(namespace).await.inspect_err(|error| {
                    error!(%error, %namespace, "pods cannot be listed; keeping the tokens of their namespace");
                });
                used.insert(namespace.clone(), names.ok());
            }
            if used[namespace].as_ref().is_none_or(|names| names.contains(&*secret.meta.name)) {
                continue;
            }
            match self.act(&secret, verdict, now).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => {
                    error!(%error, secret = %secret.meta.key(), "cannot invalidate or delete a legacy token");
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn act(&self, secret: &Secret, verdict: Verdict, now: Timestamp) -> Result<(), WriteError> {
        let key = secret.meta.key();
        if verdict == Verdict::Delete {
            info!(secret = %key, "deleting an unused legacy token");
            return self.writer.delete_unchanged(&Secret::RESOURCE, &key, &secret.meta).await;
        }
        info!(secret = %key, "invalidating an unused legacy token");
        self.writer.merge_patch(&Secret::RESOURCE, &key, &invalidation(&secret.meta, now)).await.map(drop)
    }

    fn account(&self, secret: &Secret) -> Option<Arc<ServiceAccount>> {
        let name = secret.account_token()?.account.clone();
        self.accounts.get(&ObjectKey { namespace: secret.meta.namespace.clone(), name })
    }

    async fn tracked_since(&self, tracking: &ObjectKey) -> Result<String, String> {
        let decode = Decode { interner: Arc::new(Interner::default()), sections: ConfigMap::WHOLE };
        let response = self.writer.get(&ConfigMap::RESOURCE, tracking).await;
        let map: ConfigMap = response
            .and_then(|response| Ok(response.decode(&decode)?))
            .map_err(|error| format!("ConfigMap {tracking}: {error}"))?;
        let since = |body: &Body| body.data().find_map(|(key, value)| (key == TRACKED_SINCE).then(|| value.to_owned()));
        map.body.as_ref().and_then(since).ok_or_else(|| format!("ConfigMap {tracking} has no {TRACKED_SINCE}"))
    }

    /// Returns the names of the secrets that the pods of a namespace reference. The pods are read from the API server:
    /// keeping these names in the cache would cost memory in every cluster, and few clusters have tokens of this age.
    async fn used_secrets(&self, namespace: &str) -> Result<HashSet<Box<str>>, WriteError> {
        let mut used = HashSet::new();
        let mut malformed = Ok(());
        self.reader
            .list_each(&Pod::RESOURCE, namespace, |pod| {
                let seen = visit_secret_names(pod, |name| {
                    used.insert(Box::from(name));
                });
                if let Err(error) = seen {
                    malformed = Err(WriteError::Unreadable(error.into()));
                }
            })
            .await?;
        malformed.map(|()| used)
    }
}

#[cfg(test)]
mod tests {
    use kinds::schema::{object_meta, object_reference, secret as f, service_account, time};
    use kinds::secret::{ACCOUNT_NAME, ACCOUNT_TOKEN, ACCOUNT_UID};
    use kinds::wire::Put;

    use super::*;
    use crate::flags::{Invocation, parse};

    const DAY: i64 = 86_400;

    fn period() -> SignedDuration {
        SignedDuration::from_secs(365 * DAY)
    }

    fn now() -> Timestamp {
        "2026-06-15T12:00:00Z".parse().expect("a time")
    }

    fn decode<K: Kind>(object: &[u8]) -> K {
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        K::decode(&decode, object).expect("an object")
    }

    #[test]
    fn period_must_be_longer_than_zero() {
        for (period, is_allowed) in [("8760h", true), ("1ns", true), ("0", false), ("0s", false), ("-1s", false)] {
            let arguments = [format!("--legacy-service-account-token-clean-up-period={period}")];
            let Ok(Invocation::Run(options)) = parse(arguments) else { panic!("{period} was refused by the parser") };
            let checked = check_period(&options.values).map_err(|error| error.to_string());
            assert_eq!(checked.is_ok(), is_allowed, "{period}: {checked:?}");
            let names_the_flag = |error: &String| error.starts_with("--legacy-service-account-token-clean-up-period");
            assert!(checked.as_ref().err().is_none_or(names_the_flag), "{checked:?}");
        }
    }

    #[test]
    fn invalidation_requires_the_version_of_the_decision() {
        let secret = unused_token().secret();
        let patch = invalidation(&secret.meta, now());
        let metadata = &patch["metadata"];
        assert_eq!(metadata["resourceVersion"], secret.meta.version.to_string());
        assert_eq!(metadata["uid"], secret.meta.uid.to_string());
        assert_eq!(metadata["labels"], json!({INVALID_SINCE: "2026-06-15"}));
    }

    struct TestToken {
        age_days: i64,
        deleting: bool,
        labels: Vec<(&'static str, &'static str)>,
        account_uid: &'static str,
        kind: &'static str,
    }

    /// Returns a token that was created two years ago and never used.
    fn unused_token() -> TestToken {
        TestToken { age_days: 730, deleting: false, labels: Vec::new(), account_uid: "u1", kind: ACCOUNT_TOKEN }
    }

    impl TestToken {
        fn secret(&self) -> Secret {
            let mut object = Vec::new();
            object.put_message(f::METADATA, |meta| {
                meta.put_str(object_meta::NAME, "robot-token");
                meta.put_str(object_meta::RESOURCE_VERSION, "1");
                let created = now().as_second() - self.age_days * DAY;
                meta.put_message(object_meta::CREATION_TIMESTAMP, |at| at.put_int(time::SECONDS, created));
                if self.deleting {
                    meta.put_message(object_meta::DELETION_TIMESTAMP, |at| at.put_int(time::SECONDS, created));
                }
                self.labels.iter().for_each(|(key, value)| meta.put_entry(object_meta::LABELS, key, value));
                meta.put_entry(object_meta::ANNOTATIONS, ACCOUNT_NAME, "robot");
                meta.put_entry(object_meta::ANNOTATIONS, ACCOUNT_UID, self.account_uid);
            });
            object.put_str(f::TYPE, self.kind);
            decode(&object)
        }
    }

    fn account(lists: &[&str]) -> ServiceAccount {
        let mut object = Vec::new();
        object.put_message(service_account::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "robot");
            meta.put_str(object_meta::UID, "u1");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        for name in lists {
            object.put_message(service_account::SECRETS, |secret| secret.put_str(object_reference::NAME, name));
        }
        decode(&object)
    }

    #[test]
    fn only_unused_generated_tokens_are_deleted_in_two_steps() {
        use Verdict::{Delete, Keep, MarkInvalid};
        let used = |day| vec![(LAST_USED, day)];
        let invalid = |day| vec![(INVALID_SINCE, day)];
        for (what, token, expected) in [
            ("never used", unused_token(), MarkInvalid),
            ("younger than the period", TestToken { age_days: 364, ..unused_token() }, Keep),
            ("exactly as old as the period", TestToken { age_days: 365, ..unused_token() }, Keep),
            ("being deleted", TestToken { deleting: true, ..unused_token() }, Keep),
            ("of another type", TestToken { kind: "Opaque", ..unused_token() }, Keep),
            ("refers to another UID", TestToken { account_uid: "u2", ..unused_token() }, Keep),
            ("refers to an account without a UID", TestToken { account_uid: "", ..unused_token() }, MarkInvalid),
            ("used recently", TestToken { labels: used("2026-01-01"), ..unused_token() }, Keep),
            ("used on the last day of the period", TestToken { labels: used("2025-06-15"), ..unused_token() }, Keep),
            ("used on the day before", TestToken { labels: used("2025-06-14"), ..unused_token() }, MarkInvalid),
            ("used on an invalid date", TestToken { labels: used("2025-6-1"), ..unused_token() }, Keep),
            ("invalid since recently", TestToken { labels: invalid("2026-06-14"), ..unused_token() }, Keep),
            (
                "invalid since the last day of the period",
                TestToken { labels: invalid("2025-06-15"), ..unused_token() },
                Keep,
            ),
            ("invalid for a long time", TestToken { labels: invalid("2025-06-14"), ..unused_token() }, Delete),
            (
                "invalid since an invalid date",
                TestToken { labels: invalid("yesterday"), ..unused_token() },
                MarkInvalid,
            ),
        ] {
            let verdict = decide(&token.secret(), Some(&account(&["x", "robot-token"])), period(), now());
            assert_eq!(verdict, expected, "{what}");
        }
        let secret = unused_token().secret();
        assert_eq!(decide(&secret, Some(&account(&["x"])), period(), now()), Keep, "a user created it");
        assert_eq!(decide(&secret, None, period(), now()), Keep);
    }

    #[test]
    fn uses_must_have_been_recorded_for_the_whole_period() {
        for (since, expected) in [
            ("2025-06-14", Some(true)),
            ("2025-06-15", Some(false)),
            ("2026-06-15", Some(false)),
            ("2020-01-01", Some(true)),
            ("", None),
            ("2020-1-1", None),
            ("2020-01-01T00:00:00", None),
        ] {
            assert_eq!(is_tracked_for(since, period(), now()), expected, "{since}");
        }
    }
}
