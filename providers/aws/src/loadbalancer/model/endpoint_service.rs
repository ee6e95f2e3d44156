//! The steps from the observed endpoint services of a Service to the desired one.
//!
//! AWS refuses to delete a load balancer that an endpoint service uses. Such a load balancer has a tag, which is set
//! before the endpoint service is created and removed after it was deleted. Endpoint services are read only if the tag
//! is set, or the Service requests one.

use std::collections::BTreeSet;

use crate::loadbalancer::spec::endpoint_service::EndpointServiceSettings;

/// An endpoint service as read from EC2.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedEndpointService {
    pub id: String,
    /// ARNs of the load balancers that it uses.
    pub balancers: BTreeSet<String>,
    pub acceptance: bool,
    pub principals: BTreeSet<String>,
    pub private_name: Option<String>,
}

/// One call that changes an endpoint service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Changes the settings of the endpoint service with this id.
    Modify(String, Modification),
    /// Changes the principals that may connect.
    SetPrincipals { id: String, add: BTreeSet<String>, remove: BTreeSet<String> },
    /// Deletes the endpoint services with these ids.
    Delete(BTreeSet<String>),
}

/// The changed settings of an endpoint service; `None` or empty: unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Modification {
    /// ARNs of load balancers to add.
    pub add: BTreeSet<String>,
    /// ARNs of load balancers to remove.
    pub remove: BTreeSet<String>,
    pub acceptance: Option<bool>,
    /// The new name; an empty one removes the name.
    pub private_name: Option<String>,
}

/// Returns the steps to the wanted settings for the load balancer with this ARN, or the deletion of all endpoint
/// services if none is wanted. There are no steps without an endpoint service: it has to be created first.
///
/// Another process may have created a second endpoint service before the first one was visible. The endpoint service
/// that uses the load balancer stays, because consumers may be connected to it.
pub(crate) fn steps(
    wanted: Option<(&EndpointServiceSettings, &str)>,
    observed: &[ObservedEndpointService],
) -> Vec<Step> {
    let Some((settings, balancer)) = wanted else { return delete(observed.iter()) };
    let kept = observed.iter().min_by_key(|one| (!one.balancers.contains(balancer), &one.id));
    let Some(kept) = kept else { return Vec::new() };
    let wanted = BTreeSet::from([balancer.to_owned()]);
    let change = Modification {
        add: wanted.difference(&kept.balancers).cloned().collect(),
        remove: kept.balancers.difference(&wanted).cloned().collect(),
        acceptance: Some(settings.acceptance).filter(|wanted| *wanted != kept.acceptance),
        private_name: if settings.private_name == kept.private_name {
            None
        } else {
            Some(settings.private_name.clone().unwrap_or_default())
        },
    };
    let mut steps = Vec::new();
    if change != Modification::default() {
        steps.push(Step::Modify(kept.id.clone(), change));
    }
    let add: BTreeSet<String> = settings.principals.difference(&kept.principals).cloned().collect();
    let remove: BTreeSet<String> = kept.principals.difference(&settings.principals).cloned().collect();
    if !add.is_empty() || !remove.is_empty() {
        steps.push(Step::SetPrincipals { id: kept.id.clone(), add, remove });
    }
    steps.extend(delete(observed.iter().filter(|one| one.id != kept.id)));
    steps
}

fn delete<'a>(observed: impl Iterator<Item = &'a ObservedEndpointService>) -> Vec<Step> {
    let ids: BTreeSet<String> = observed.map(|one| one.id.clone()).collect();
    if ids.is_empty() { Vec::new() } else { vec![Step::Delete(ids)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn observed(id: &str, balancers: &[&str]) -> ObservedEndpointService {
        ObservedEndpointService { id: id.into(), balancers: set(balancers), acceptance: true, ..Default::default() }
    }

    fn plain() -> EndpointServiceSettings {
        EndpointServiceSettings { acceptance: true, principals: BTreeSet::new(), private_name: None }
    }

    #[test]
    fn endpoint_service_follows_settings_and_load_balancer() {
        let modified = |change: Modification| vec![Step::Modify("vpce-svc-1".into(), change)];
        let open = EndpointServiceSettings { acceptance: false, private_name: Some("a.example".into()), ..plain() };
        let named =
            ObservedEndpointService { private_name: Some("a.example".into()), ..observed("vpce-svc-1", &["lb"]) };
        for (what, settings, found, expected) in [
            ("none yet", plain(), vec![], vec![]),
            ("as wanted", plain(), vec![observed("vpce-svc-1", &["lb"])], vec![]),
            (
                "another load balancer",
                plain(),
                vec![observed("vpce-svc-1", &["old"])],
                modified(Modification { add: set(&["lb"]), remove: set(&["old"]), ..Modification::default() }),
            ),
            (
                "other settings",
                open,
                vec![observed("vpce-svc-1", &["lb"])],
                modified(Modification {
                    acceptance: Some(false),
                    private_name: Some("a.example".into()),
                    ..Modification::default()
                }),
            ),
            (
                "without a name",
                plain(),
                vec![named],
                modified(Modification { private_name: Some(String::new()), ..Modification::default() }),
            ),
            (
                "two",
                plain(),
                vec![observed("vpce-svc-1", &[]), observed("vpce-svc-2", &["lb"]), observed("vpce-svc-3", &["lb"])],
                vec![Step::Delete(set(&["vpce-svc-1", "vpce-svc-3"]))],
            ),
        ] {
            assert_eq!(steps(Some((&settings, "lb")), &found), expected, "{what}");
        }
        assert_eq!(steps(None, &[observed("vpce-svc-1", &["lb"])]), [Step::Delete(set(&["vpce-svc-1"]))]);
        assert_eq!(steps(None, &[]), []);
    }

    #[test]
    fn principals_are_added_and_removed() {
        let settings = EndpointServiceSettings { principals: set(&["arn:a", "arn:b"]), ..plain() };
        let found = ObservedEndpointService { principals: set(&["arn:b", "arn:c"]), ..observed("vpce-svc-1", &["lb"]) };
        let expected = Step::SetPrincipals { id: "vpce-svc-1".into(), add: set(&["arn:a"]), remove: set(&["arn:c"]) };
        assert_eq!(steps(Some((&settings, "lb")), &[found]), [expected]);
    }
}
