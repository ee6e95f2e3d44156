//! The certificate of ACM for each host name. No IO.

use std::cmp::Reverse;

use providers::LoadBalancerId;

use crate::loadbalancer::names::ALLOWED;
use crate::loadbalancer::observed::certificates::Certificate;
use crate::loadbalancer::ownership;
use crate::loadbalancer::types::Tags;
use crate::tags::ClusterTags;

/// Returns the ARNs of the certificates for host names, without duplicates, in the order of the names.
///
/// Among several certificates for a name, one that contains the name without a wildcard is preferred, then the one that
/// is valid the longest. So listeners switch to the successor of an old certificate.
///
/// # Errors
/// The name for which there is no certificate that the Service may use, and the fix.
pub(crate) fn choose(
    hosts: &[String],
    certificates: &[Certificate],
    id: &LoadBalancerId,
    cluster: &ClusterTags,
) -> Result<Vec<String>, (String, String)> {
    let mut chosen: Vec<String> = Vec::new();
    for host in hosts {
        let covering: Vec<&Certificate> = certificates.iter().filter(|one| one.covers(host)).collect();
        let usable = |one: &&&Certificate| one.tags.as_ref().is_some_and(|tags| refusal(tags, id, cluster).is_none());
        let best = covering.iter().filter(usable).min_by_key(|one| (!one.has(host), Reverse(one.not_after), &one.arn));
        let Some(best) = best else { return Err((host.clone(), fix(&covering, id, cluster))) };
        if !chosen.contains(&best.arn) {
            chosen.push(best.arn.clone());
        }
    }
    Ok(chosen)
}

/// Returns the fix if the owner of a certificate has not agreed to its use by a Service.
///
/// The ARN of a certificate is not known to users of the cluster, but its host name is: without consent, each user
/// could serve the certificate of another owner's site.
fn refusal(tags: &Tags, id: &LoadBalancerId, cluster: &ClusterTags) -> Option<String> {
    if !ownership::is_shared(tags, cluster) {
        return Some(format!("put the tag {}=shared on it", cluster.key()));
    }
    (ownership::names_service(tags, id) == Some(false))
        .then(|| format!("add {id} to its tag {ALLOWED}, which names the Services that may use it"))
}

fn fix(covering: &[&Certificate], id: &LoadBalancerId, cluster: &ClusterTags) -> String {
    let Some(first) = covering.first() else {
        return "use a name for which ACM has an issued certificate in this region, or name one by its ARN in the \
                annotation for ssl-cert"
            .into();
    };
    let tags = first.tags.clone().unwrap_or_default();
    let fix = refusal(&tags, id, cluster).unwrap_or_default();
    format!("ACM has the certificate {} for it: {fix}", first.arn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;

    const SHARED: (&str, &str) = ("kubernetes.io/cluster/c", "shared");

    fn certificate(arn: &str, names: &[&str], not_after: i64, tags: &[(&str, &str)]) -> Certificate {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Certificate { arn: arn.into(), names, not_after, tags: Some(samples::tags(tags)) }
    }

    #[test]
    fn most_exact_and_then_longest_valid_certificate_with_consent_is_chosen() {
        let all = [
            certificate("wild", &["*.example.com", "example.com"], 90, &[SHARED]),
            certificate("old", &["www.example.com"], 10, &[SHARED]),
            certificate("new", &["www.example.com", "api.example.com"], 20, &[SHARED]),
            certificate("foreign", &["www.example.com"], 99, &[]),
            certificate("others", &["www.example.com"], 99, &[SHARED, (ALLOWED, "shop/web")]),
            certificate("ours", &["own.example.net"], 1, &[SHARED, (ALLOWED, "shop default/web")]),
        ];
        for (hosts, expected) in [
            (&["www.example.com"][..], Ok(&["new"][..])),
            (&["www.example.com", "api.example.com"], Ok(&["new"])),
            (&["mail.example.com", "www.example.com", "example.com"], Ok(&["wild", "new"])),
            (&["own.example.net"], Ok(&["ours"])),
            (&["www.example.com", "missing.example.org"], Err("missing.example.org")),
        ] {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let found = choose(&hosts, &all, &samples::id(), &ClusterTags::new("c", false));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{hosts:?}"),
                (Err((host, _)), Err(expected)) => assert_eq!(host, expected),
                (found, expected) => panic!("{hosts:?}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn missing_consent_is_named() {
        let hosts = ["www.example.com".to_owned()];
        for (tags, expected) in [
            (&[][..], "put the tag kubernetes.io/cluster/c=shared on it"),
            (&[("kubernetes.io/cluster/c", "owned")], "=shared on it"),
            (&[("kubernetes.io/cluster/d", "shared")], "=shared on it"),
            (&[SHARED, (ALLOWED, "shop/web")], "add default/web to its tag kubernetes.io/allowed-services"),
        ] {
            let all = [certificate("arn:one", &["www.example.com"], 1, tags)];
            let cluster = ClusterTags::new("c", false);
            let (_, fix) = choose(&hosts, &all, &samples::id(), &cluster).expect_err(expected);
            assert!(fix.contains(expected) && fix.contains("arn:one"), "{fix}");
        }
    }
}
