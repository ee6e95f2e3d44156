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
use kinds::validating_admission_policy::PolicySpec;
use kinds::{Kind, ValidatingAdmissionPolicy};
use runtime::discovery::Discovery;
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tracing::{debug, info};

use super::decide::{self, ExpressionWarning};
use super::rules::{self, MatchedKinds};
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
        let spec = Arc::new(spec);
        let kinds = self.matched_kinds(&spec).await?;
        if kinds.is_empty() || spec.validations.is_empty() {
            return Ok(Vec::new());
        }
        let index = self.schemas.index().await.map_err(|error| failed(&error))?;
        let mut matched = Vec::new();
        for kind in kinds {
            match self.schemas.type_of(&index, &kind).await.map_err(|error| failed(&error))? {
                Some(object) => matched.push(MatchedKind { kind, object }),
                None => debug!(policy = &*key.name, %kind, "skipping kind: its schema is missing or unreadable"),
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

    /// Returns the kinds that the policy's rules match. If a rule names an unknown resource, discovery is read again,
    /// once.
    async fn matched_kinds(&self, spec: &Arc<PolicySpec>) -> Result<BTreeSet<GroupVersionKind>, ReconcileError> {
        let known = self.kinds_since(KNOWN_MAX_AGE, spec).await?;
        if !known.has_unknown {
            return Ok(known.kinds);
        }
        Ok(self.kinds_since(Duration::ZERO, spec).await?.kinds)
    }

    async fn kinds_since(&self, age: Duration, spec: &Arc<PolicySpec>) -> Result<MatchedKinds, ReconcileError> {
        let failed = |error: &dyn std::error::Error| ReconcileError::new(error.to_string());
        let served = self.discovery.no_older_than(age).await.map_err(|error| failed(&error))?;
        let spec = spec.clone();
        // A policy may have a megabyte of rules, and a cluster thousands of kinds.
        let matched = tokio::task::spawn_blocking(move || rules::matched_kinds(&spec.rules, served.kinds())).await;
        matched.map_err(|error| failed(&error))
    }
}
