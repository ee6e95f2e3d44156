//! Authorization of requests.
//!
//! Some paths are open to all users, and `system:masters` may do everything. All other requests are checked by a
//! SubjectAccessReview of the API server, with the path as a non-resource URL (`nonResourceURLs` in a role).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};

use super::cache::Cache;
use super::options::{AuthorizationOptions, ServeError};
use super::review::Reviewer;
use super::user::User;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const MASTERS: &str = "system:masters";
/// Maximum number of cached results. Upstream: apiserver, authorizer/webhook.
const MAX_CACHED_RESULTS: usize = 8192;
/// Results for longer paths and verbs are not cached. Upstream: apiserver, authorizer/webhook, shouldCache.
const MAX_CACHED_KEY_BYTES: usize = 10_000;

/// The reason why a request is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Denied {
    /// The user lacks the permission; with the API server's reason, or an empty one.
    Forbidden(String),
    /// The permission could not be checked.
    Failed(String),
}

/// The SHA-256 of a review: clients determine the length of the review itself.
type ReviewDigest = [u8; 32];

fn digest(spec: &SubjectAccessReviewSpec) -> serde_json::Result<ReviewDigest> {
    let mut digest = ReviewDigest::default();
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, &serde_json::to_vec(spec)?).as_ref());
    Ok(digest)
}

/// Allows or denies requests.
pub(super) struct Authorizer {
    open: OpenPaths,
    reviewer: Option<Arc<Reviewer>>,
    results: Cache<ReviewDigest, Result<SubjectAccessReviewStatus, String>>,
    allowed_ttl: Duration,
    denied_ttl: Duration,
}

impl Authorizer {
    /// Creates an authorizer. Without a reviewer, only `system:masters` and the always allowed paths are allowed.
    ///
    /// # Errors
    /// When an always allowed path is invalid.
    pub(super) fn new(options: &AuthorizationOptions, reviewer: Option<Arc<Reviewer>>) -> Result<Self, ServeError> {
        Ok(Self {
            open: OpenPaths::parse(&options.always_allow_paths)?,
            reviewer,
            results: Cache::new(MAX_CACHED_RESULTS),
            allowed_ttl: options.authorized_ttl,
            denied_ttl: options.unauthorized_ttl,
        })
    }

    /// Checks that `user` may perform `verb` (a method in lower case) on the decoded `path`.
    pub(super) async fn check(&self, user: &User, verb: &str, path: &str) -> Result<(), Denied> {
        if user.is_in(MASTERS) || self.open.contains(path) {
            return Ok(());
        }
        let Some(reviewer) = &self.reviewer else { return Err(Denied::Forbidden(String::new())) };
        let spec = review_spec(user, verb, path);
        let key = digest(&spec).map_err(|error| Denied::Failed(error.to_string()))?;
        let is_cacheable = verb.len() + path.len() <= MAX_CACHED_KEY_BYTES;
        let fetch = async {
            let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
            let response = reviewer.review(REVIEWS, &review).await;
            let response =
                response.map(|response| response.status.unwrap_or_default()).map_err(|error| error.to_string());
            let ttl = match &response {
                Ok(status) if status.allowed && is_cacheable => self.allowed_ttl,
                Ok(_) if is_cacheable => self.denied_ttl,
                _ => Duration::ZERO,
            };
            (response, ttl)
        };
        let status = self.results.get_or(&key, fetch).await.map_err(Denied::Failed)?;
        decision_of(status)
    }
}

/// Converts the result of a review.
fn decision_of(status: SubjectAccessReviewStatus) -> Result<(), Denied> {
    match (status.allowed, status.denied.unwrap_or_default()) {
        (true, false) => Ok(()),
        (true, true) => Err(Denied::Failed("the API server returned both allowed and denied".into())),
        (false, _) => Err(Denied::Forbidden(status.reason.unwrap_or_default())),
    }
}

/// Returns the spec of the review of a request.
fn review_spec(user: &User, verb: &str, path: &str) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        non_resource_attributes: Some(NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some(verb.to_owned()),
        }),
        resource_attributes: None,
    }
}

/// Paths that need no authorization. Upstream: apiserver, authorization/path.
#[derive(Debug, Default, PartialEq, Eq)]
struct OpenPaths {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl OpenPaths {
    fn parse(paths: &[String]) -> Result<Self, ServeError> {
        let mut open = Self::default();
        for given in paths {
            let path = given.strip_prefix('/').unwrap_or(given);
            let prefix = path.strip_suffix('*');
            if prefix.unwrap_or(path).contains('*') {
                return Err(ServeError::OpenPath { value: given.clone() });
            }
            match prefix {
                Some(prefix) => open.prefixes.push(prefix.to_owned()),
                None => open.exact.push(path.to_owned()),
            }
        }
        Ok(open)
    }

    fn contains(&self, path: &str) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        self.exact.iter().any(|exact| exact == path) || self.prefixes.iter().any(|prefix| path.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(paths: &[&str]) -> Result<OpenPaths, ServeError> {
        OpenPaths::parse(&paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn open_paths_match_exactly_or_by_prefix() {
        let some = open(&["/healthz", "readyz", "/debug/*"]).expect("valid");
        for (path, wanted) in [
            ("/healthz", true),
            ("healthz", true),
            ("/healthz/ping", false),
            ("/healthzz", false),
            ("/readyz", true),
            ("/debug/flags/v", true),
            ("/debug/", true),
            ("/debug", false),
            ("/", false),
            ("//healthz", false),
        ] {
            assert_eq!(some.contains(path), wanted, "{path}");
        }
        assert!(open(&["/"]).expect("valid").contains("/"));
        assert!(open(&["*"]).expect("valid").contains("/anything"));
        assert!(!open(&[]).expect("valid").contains("/healthz"));
        for bad in ["/a*b", "/**", "*/a"] {
            assert!(matches!(open(&[bad]), Err(ServeError::OpenPath { .. })), "{bad}");
        }
    }

    #[test]
    fn review_allows_only_when_allowed_and_not_denied() {
        let status = |allowed, denied, reason: &str| SubjectAccessReviewStatus {
            allowed,
            denied,
            reason: Some(reason.into()),
            evaluation_error: None,
        };
        assert_eq!(decision_of(status(true, None, "")), Ok(()));
        assert_eq!(decision_of(status(false, None, "no")), Err(Denied::Forbidden("no".into())));
        assert_eq!(decision_of(status(false, Some(true), "no")), Err(Denied::Forbidden("no".into())));
        assert!(matches!(decision_of(status(true, Some(true), "")), Err(Denied::Failed(_))));
    }

    #[tokio::test]
    async fn without_a_reviewer_only_masters_and_open_paths_are_allowed() {
        let authorizer = Authorizer::new(&AuthorizationOptions::default(), None).expect("valid paths");
        let anonymous = User::anonymous();
        let master = User { name: "root".into(), groups: vec![MASTERS.into()], ..User::default() };
        for path in ["/healthz", "/readyz", "/livez"] {
            assert_eq!(authorizer.check(&anonymous, "get", path).await, Ok(()));
        }
        for path in ["/metrics", "/healthz/ping", "/configz", "/"] {
            assert!(matches!(authorizer.check(&anonymous, "get", path).await, Err(Denied::Forbidden(_))), "{path}");
            assert_eq!(authorizer.check(&master, "put", path).await, Ok(()));
        }
    }
}
