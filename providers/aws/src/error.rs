//! Errors of AWS as errors of the provider interface: the kind of each code, and the codes for throttling.

use std::time::Duration;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use providers::{CloudError, ErrorKind};

/// Codes for throttling, of EC2, ELB and STS. Upstream counts only the first of them as throttling.
const THROTTLING: [&str; 12] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "RequestThrottledException",
    "EC2ThrottledException",
    "TooManyRequestsException",
    "TooManyRequests",
    "SlowDown",
    "BandwidthLimitExceeded",
    "PriorRequestNotComplete",
];

const DENIED: [&str; 13] = [
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "ExpiredToken",
    "ExpiredTokenException",
    "SignatureDoesNotMatch",
    "MissingAuthenticationToken",
    "OptInRequired",
    "Blocked",
    "PendingVerification",
];

/// Codes for resources that are in use, changing, or owned by another client: a retry may succeed.
const CONFLICTS: [&str; 11] = [
    "DependencyViolation",
    "ResourceInUse",
    "OperationNotPermitted",
    "IncorrectState",
    "IncorrectInstanceState",
    "InvalidGroup.InUse",
    "RouteAlreadyExists",
    "AllocationIdInUse",
    "PriorityInUse",
    "OptimisticLockException",
    "ResourceAlreadyAssociated",
];

/// Codes for resources that do not exist, and that a user named in a Service.
const NAMED_BY_USER: [&str; 5] = [
    "SubnetNotFound",
    "CertificateNotFound",
    "SSLPolicyNotFound",
    "AllocationIdNotFound",
    "InvalidAllocationID.NotFound",
];

/// The code for a target that is registered too often. Others can be registered, so it is not a full target group.
const FULL_TARGET: &str = "TooManyRegistrationsForTargetId";

/// Returns the kind of a code. For throttling, the delay is missing: the caller reads it from a header of the response.
pub(crate) fn kind_of(code: &str) -> ErrorKind {
    let is_one_of = |codes: &[&str]| codes.contains(&code);
    if is_one_of(&THROTTLING) {
        ErrorKind::Throttled { after: None }
    } else if is_one_of(&DENIED) {
        ErrorKind::Denied
    } else if is_one_of(&NAMED_BY_USER) || code == FULL_TARGET {
        ErrorKind::Invalid
    } else if is_one_of(&CONFLICTS) || code.starts_with("Duplicate") || code.ends_with(".Duplicate") {
        ErrorKind::Conflict
    } else if ["LimitExceeded", "QuotaExceeded", "AssociationLimit"].iter().any(|end| code.ends_with(end))
        || code.starts_with("TooMany")
    {
        ErrorKind::Quota
    } else if code.ends_with("NotFound") || code == "ResourceNotFoundException" {
        ErrorKind::NotFound
    } else if code.starts_with("Invalid")
        || code.starts_with("Unsupported")
        || code.starts_with("Incompatible")
        || [
            "ValidationError",
            "ValidationException",
            "AvailabilityZoneNotSupported",
            "MissingParameter",
            "UnknownParameter",
        ]
        .contains(&code)
    {
        ErrorKind::Invalid
    } else {
        ErrorKind::Transient
    }
}

/// Converts an error of the SDK to an error of the provider interface.
pub(crate) fn cloud_error<E: ProvideErrorMetadata>(
    operation: &'static str,
    error: &SdkError<E, HttpResponse>,
) -> CloudError {
    let (meta, response) = match error {
        SdkError::ServiceError(service) => (Some(service.err().meta()), Some(service.raw())),
        SdkError::ResponseError(failed) => (None, Some(failed.raw())),
        _ => (None, None),
    };
    let code = meta.and_then(|meta| meta.code());
    let mut kind = code.map_or(ErrorKind::Transient, kind_of);
    let status = response.map(|response| response.status().as_u16());
    if kind == ErrorKind::Transient && status == Some(429) {
        kind = ErrorKind::Throttled { after: None };
    }
    if let ErrorKind::Throttled { after } = &mut kind {
        *after = response.and_then(|response| response.headers().get("retry-after")).and_then(seconds);
    }
    let message = match (code, meta.and_then(|meta| meta.message())) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => reason(error),
    };
    let converted = CloudError::new(kind, operation, message);
    let id = meta.and_then(|meta| meta.extra("aws_request_id"));
    let header = response.and_then(|response| response.headers().get("x-amzn-requestid"));
    match id.or(header) {
        Some(id) => converted.with_request_id(id),
        None => converted,
    }
}

/// Codes for a missing permission; other codes of denied calls are about the caller's identity or account.
const MISSING_PERMISSION: [&str; 3] = ["UnauthorizedOperation", "AccessDenied", "AccessDeniedException"];
/// The start of an encoded text at the end of a message. It differs for each call, so it is cut off.
const ENCODED_PREFIX: &str = "Encoded authorization failure message";

/// Codes for a creation with a name that another resource already has, each with the fix. A resource of the same owner
/// would have been found by its tags before the creation, so a retry does not help.
const TAKEN_NAMES: [(&str, &str); 3] = [
    (
        "InvalidGroup.Duplicate",
        "the existing security group lacks the tags of the one to create; unless it was just created, delete it",
    ),
    (
        "DuplicateLoadBalancerName",
        "the existing load balancer belongs to another owner, perhaps in another VPC: delete it, or choose another name \
         by the annotation aws-load-balancer-name",
    ),
    (
        "DuplicateTargetGroupName",
        "the existing target group belongs to another owner, perhaps in another VPC, or lost its tags: delete it",
    ),
];

/// Adds the fix for an operator to an error; `service` is the prefix of the service's actions in IAM.
pub(crate) fn with_fix(mut error: CloudError, service: &str) -> CloudError {
    let code = error.message.split(':').next().unwrap_or_default();
    match error.kind {
        ErrorKind::Denied if MISSING_PERMISSION.contains(&code) => {
            let text = error.message.split(ENCODED_PREFIX).next().unwrap_or_default().trim_end();
            error.message = format!(
                "{text}; allow this process the IAM action {service}:{}, or, where it is allowed for the cluster's own \
                 resources only, put the tag kubernetes.io/cluster/<cluster id> on the resources of the call",
                error.operation
            );
        }
        ErrorKind::Quota => error.message.push_str("; request a higher quota, or delete unused resources"),
        ErrorKind::Conflict => {
            if let Some((_, fix)) = TAKEN_NAMES.iter().find(|(taken, _)| *taken == code) {
                error.message = format!("{}; {fix}", error.message);
            }
        }
        _ => {}
    }
    error
}

fn seconds(header: &str) -> Option<Duration> {
    header.trim().parse::<u64>().ok().map(Duration::from_secs)
}

/// Returns the reason of an error without a code; if there was no connection, with the whole chain of causes.
fn reason<E>(error: &SdkError<E, HttpResponse>) -> String {
    let (summary, source): (_, Option<&(dyn std::error::Error + 'static)>) = match error {
        SdkError::TimeoutError(_) => return "timed out".into(),
        SdkError::DispatchFailure(failure) => ("no connection", failure.as_connector_error().map(|e| e as _)),
        SdkError::ConstructionFailure(_) => return "request not built: check credentials and region".into(),
        SdkError::ResponseError(_) => return "the response cannot be parsed".into(),
        _ => ("the response has no error code", None),
    };
    let causes = std::iter::successors(source, |error| error.source()).map(ToString::to_string);
    std::iter::once(summary.to_owned()).chain(causes).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_map_to_error_kinds() {
        let throttled = ErrorKind::Throttled { after: None };
        for (codes, kind) in [
            (&["RequestLimitExceeded", "Throttling", "TooManyRequestsException"][..], throttled),
            (&["UnauthorizedOperation", "AccessDenied", "ExpiredToken"], ErrorKind::Denied),
            (
                &[
                    "RulesPerSecurityGroupLimitExceeded",
                    "TooManyTargetGroups",
                    "RouteLimitExceeded",
                    "QuotaExceeded",
                    "TargetGroupAssociationLimit",
                    "TooManyTargets",
                ],
                ErrorKind::Quota,
            ),
            (
                &[
                    "InvalidInstanceID.NotFound",
                    "LoadBalancerNotFound",
                    "InvalidGroup.NotFound",
                    "InvalidRoute.NotFound",
                ],
                ErrorKind::NotFound,
            ),
            (
                &["DependencyViolation", "DuplicateTargetGroupName", "InvalidPermission.Duplicate", "ResourceInUse"],
                ErrorKind::Conflict,
            ),
            (
                &[
                    "InvalidParameterValue",
                    "ValidationError",
                    "SubnetNotFound",
                    "UnsupportedProtocol",
                    "InvalidSubnet",
                    "TooManyRegistrationsForTargetId",
                ],
                ErrorKind::Invalid,
            ),
            (&["InternalError", "ServiceUnavailable", "Unavailable", "", "SomethingNew"], ErrorKind::Transient),
        ] {
            for code in codes {
                assert_eq!(kind_of(code), kind, "{code}");
            }
        }
    }

    #[test]
    fn errors_contain_the_fix_for_an_operator() {
        let reported = |code: &str, detail: &str| {
            let error = CloudError::new(kind_of(code), "CreateRoute", format!("{code}: {detail}"));
            with_fix(error, "ec2").message
        };
        assert_eq!(
            reported("UnauthorizedOperation", "You may not. Encoded authorization failure message: 4GIOHlTkIaWHQD0Q"),
            "UnauthorizedOperation: You may not.; allow this process the IAM action ec2:CreateRoute, or, where it is \
             allowed for the cluster's own resources only, put the tag kubernetes.io/cluster/<cluster id> on the \
             resources of the call"
        );
        assert_eq!(reported("ExpiredToken", "too old"), "ExpiredToken: too old", "no permission is missing");
        assert!(
            reported("RouteLimitExceeded", "50").ends_with("50; request a higher quota, or delete unused resources")
        );
        assert_eq!(reported("InternalError", "x"), "InternalError: x");
        for (code, fix) in TAKEN_NAMES {
            assert_eq!(reported(code, "x"), format!("{code}: x; {fix}"));
        }
        assert_eq!(reported("DependencyViolation", "x"), "DependencyViolation: x", "no name is taken");
    }

    #[test]
    fn retry_after_must_be_whole_seconds() {
        assert_eq!(seconds(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(seconds("Wed, 21 Oct 2015 07:28:00 GMT"), None);
    }
}
