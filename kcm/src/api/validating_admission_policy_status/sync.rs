//! One check of one policy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cel_check::admission::{MatchedKind, Params};
use cel_check::schema::GroupVersionKind;
use cel_check::types::Type;
use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::validating_admission_policy::{PolicySpec, ResourceRule};
use kinds::{Kind, ValidatingAdmissionPolicy};
use runtime::discovery::{Discovery, DiscoveryError, Snapshot};
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tracing::{debug, info};

use super::decide::{self, ExpressionWarning, MatchedKinds};
use super::schemas::Schemas;

/// Maximum age of the cached discovery for known resources.
const KNOWN_MAX_AGE: Duration = Duration::from_secs(30);

/// Checks policies and writes their statuses.
pub struct TypeChecker {
    /// The policies, without their expressions.
    pub policies: Arc<Store<ValidatingAdmissionPolicy>>,
    /// The controller's Writer.
    pub writer: Writer,
    /// The resources that the API server serves.
    pub discovery: Arc<Discovery>,
    /// The schemas of kinds.
    pub schemas: Schemas,
}

impl Reconcile for TypeChecker {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl TypeChecker {
    /// Reads the policy from the API server: its expressions are not in the cache, and its generation in the cache may
    /// be outdated.
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let response = match self.writer.get(&ValidatingAdmissionPolicy::RESOURCE, key).await {
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            response => response?,
        };
        let malformed = |error: &dyn std::error::Error| ReconcileError::new(error.to_string());
        let policy: ValidatingAdmissionPolicy =
            response.decode(self.policies.decoding()).map_err(|error| malformed(&error))?;
        if policy.meta.generation <= policy.observed_generation {
            return Ok(Outcome::Done);
        }
        let object = response.object().map_err(|error| malformed(&error))?;
        let spec = PolicySpec::decode(object).map_err(|error| malformed(&error))?;
        let warnings = self.check(key, spec).await?;
        let status = decide::applied_status(&policy.meta, &warnings);
        let manager = decide::FIELD_MANAGER;
        match self.writer.apply(&ValidatingAdmissionPolicy::RESOURCE, key, Some("status"), manager, &status).await {
            // The policy may have been replaced by another one of the same name: it is read again.
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
            Ok(_) => {
                info!(policy = &*key.name, warnings = warnings.len(), "checked the types of ValidatingAdmissionPolicy");
                Ok(Outcome::Done)
            }
        }
    }

    async fn check(&self, key: &ObjectKey, spec: PolicySpec) -> Result<Vec<ExpressionWarning>, ReconcileError> {
        let failed = |error: &dyn std::error::Error| ReconcileError::new(error.to_string());
        let kinds = self.matched_kinds(&spec.rules).await.map_err(|error| failed(&error))?;
        if kinds.is_empty() || spec.validations.is_empty() {
            return Ok(Vec::new());
        }
        let index = self.schemas.index().await.map_err(|error| failed(&error))?;
        let mut matched = Vec::new();
        for kind in kinds {
            match self.schemas.type_of(&index, &kind).await.map_err(|error| failed(&error))? {
                Some(object) => matched.push(MatchedKind { kind, object }),
                None => debug!(policy = &*key.name, %kind, "skipping kind: it has no schema"),
            }
        }
        let params = match decide::params_kind(spec.param_kind.as_ref()) {
            None => Params::None,
            Some(kind) => {
                let params = self.schemas.type_of(&index, &kind).await.map_err(|error| failed(&error))?;
                Params::Typed(params.unwrap_or(Type::DYN))
            }
        };
        // A check may take a while, and must not delay other tasks.
        let checked = tokio::task::spawn_blocking(move || decide::warnings(&spec, matched, &params)).await;
        let (warnings, unchecked) = checked.map_err(|error| failed(&error))?;
        if let Some(reason) = unchecked.first() {
            info!(policy = &*key.name, %reason, count = unchecked.len(), "expressions were not type-checked");
        }
        Ok(warnings)
    }

    /// Returns the kinds of the resources. If one is not known, discovery is read again, once.
    async fn matched_kinds(&self, rules: &[ResourceRule]) -> Result<BTreeSet<GroupVersionKind>, DiscoveryError> {
        let known = kinds_in(&*self.discovery.no_older_than(KNOWN_MAX_AGE).await?, rules);
        if !known.has_unknown {
            return Ok(known.kinds);
        }
        Ok(kinds_in(&*self.discovery.no_older_than(Duration::ZERO).await?, rules).kinds)
    }
}

fn kinds_in(snapshot: &Snapshot, rules: &[ResourceRule]) -> MatchedKinds {
    decide::matched_kinds(rules, |group, version, resource| {
        let kinds = snapshot.kinds_of(group, version, resource).into_iter().map(|found| GroupVersionKind {
            group: found.group.to_owned(),
            version: found.version.to_owned(),
            kind: found.kind.to_owned(),
        });
        kinds.collect()
    })
}
