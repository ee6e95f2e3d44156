//! Intended differences from upstream's AWS manager, with reasons; and the classification of differences.

/// The manager with a fact that the other one lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// ccm.
    Ours,
    /// Upstream's manager.
    Upstream,
}

/// An intended difference.
#[derive(Debug, Clone, Copy)]
pub struct IntendedDifference {
    /// Facts that only our manager has: `*` matches any text.
    ours: &'static [&'static str],
    /// Facts that only upstream's manager has.
    upstreams: &'static [&'static str],
    /// Upstream's behaviour.
    pub upstream: &'static str,
    /// Our behaviour.
    pub here: &'static str,
    /// The reason.
    pub why: &'static str,
    /// The difference occurs in every run.
    pub always: bool,
}

/// All intended differences, as in `docs/differences.md`.
pub const INTENDED: [IntendedDifference; 17] = [
    IntendedDifference {
        ours: &["*: tag kubernetes.io/service-uid=*"],
        upstreams: &[],
        upstream: "resources of a Service have its name in a tag",
        here: "resources have the name and the uid of their Service in tags",
        why: "resources of an earlier Service with the same name are not attributed to this one",
        always: true,
    },
    IntendedDifference {
        ours: &[
            "Service both-protocols: *",
            "* of both-protocols: *",
            "security group nodes.try: allows * 30253-30253 *",
        ],
        upstreams: &["Service both-protocols: event service-controller Warning SyncLoadBalancerFailed"],
        upstream: "TCP and UDP in one Service are refused",
        here: "TCP and UDP share a listener, or get one each",
        why: "Kubernetes allows both since 1.26",
        always: true,
    },
    IntendedDifference {
        ours: &[
            "load balancer of with-groups: security group *",
            "security group k8s-*",
            "security group nodes.try: allows tcp 30000-32767 *",
        ],
        upstreams: &["security group nodes.try: allows tcp 30880-30880 *"],
        upstream: "load balancers have no security groups by default, and nodes' groups a rule per port and range",
        here: "load balancers have two unless `disable-nlb-sg` is set, and nodes' groups one rule for all Services",
        why: "a security group holds sixty rules",
        always: true,
    },
    IntendedDifference {
        ours: &[
            "load balancer of internal: scheme internet-facing",
            "load balancer of internal: name k8s-*",
            "Service internal: address k8s-*",
        ],
        upstreams: &[
            "load balancer of internal: scheme internal",
            "load balancer of internal: name *",
            "Service internal: address *",
        ],
        upstream: "a change between internal and internet-facing has no effect",
        here: "another load balancer is created, and the old one serves until it works",
        why: "the request is applied",
        always: true,
    },
    IntendedDifference {
        ours: &["target group UDP:* of udp: health*", "security group nodes.try: allows tcp 10256-10256 *"],
        upstreams: &[
            "target group UDP:* of udp: health*",
            "security group nodes.try: allows tcp 30053-30053 *",
            "security group nodes.try: allows tcp 30054-30054 *",
        ],
        upstream: "UDP target groups are probed by TCP at the same port",
        here: "nodes are probed at kube-proxy (10256, `/healthz`), unless an annotation overrides that; `ip` targets are probed as in upstream, with a warning",
        why: "no process listens there with TCP: all targets are unhealthy, and traffic also goes to dead nodes",
        always: true,
    },
    IntendedDifference {
        ours: &["load balancer of *: scheme internet-facing"],
        upstreams: &[],
        upstream: "internet-facing load balancers are requested by omitting the scheme",
        here: "internet-facing load balancers are requested by naming the scheme",
        why: "moto returns the request as given",
        always: true,
    },
    IntendedDifference {
        ours: &[],
        upstreams: &["load balancer of *: attribute access_logs.s3.enabled=false"],
        upstream: "attributes are set that new load balancers have by default",
        here: "such attributes are not set",
        why: "a call less; moto returns the request as given",
        always: true,
    },
    IntendedDifference {
        ours: &["* of tags: tag team=red", "* of tags: tag more=1"],
        upstreams: &["* of tags: tag team=blue"],
        upstream: "`additional-resource-tags` apply when a load balancer is created",
        here: "changes of the annotation are applied later, too",
        why: "the request is applied",
        always: true,
    },
    IntendedDifference {
        ours: &["load balancer of two-subnets: subnet *"],
        upstreams: &[],
        upstream: "`subnets` apply when a load balancer is created",
        here: "changes of the annotation are applied later, too",
        why: "cloud-provider-aws#206",
        always: true,
    },
    IntendedDifference {
        ours: &["target group TCP:31040 of probe-tcp: health timeout 5"],
        upstreams: &["target group TCP:31040 of probe-tcp: health timeout 10"],
        upstream: "`healthcheck-timeout` has no effect",
        here: "`healthcheck-timeout` is applied",
        why: "the request is applied",
        always: true,
    },
    IntendedDifference {
        ours: &["target group TCP:30580 of local: health*"],
        upstreams: &["target group TCP:30580 of local: health*"],
        upstream: "another health check protocol leads to another target group",
        here: "the target group is changed in place; moto keeps the path",
        why: "traffic continues",
        always: false,
    },
    IntendedDifference {
        ours: &[],
        upstreams: &["security group nodes.try: allows tcp 32100-32100 *"],
        upstream: "rules for former health checks remain",
        here: "such rules are removed",
        why: "they are unused; a security group holds sixty rules",
        always: true,
    },
    IntendedDifference {
        ours: &["target group TCP:31070 of proxy-protocol: attribute *"],
        upstreams: &[],
        upstream: "attributes of target groups are set if AWS lists them",
        here: "attributes of target groups are always set",
        why: "moto lists fewer than AWS",
        always: true,
    },
    IntendedDifference {
        ours: &["security group nodes.try: allows tcp 31070-31070 *"],
        upstreams: &["security group nodes.try: allows tcp 31070-31070 *"],
        upstream: "nodes allow clients' addresses, although packets only come from the load balancer's",
        here: "nodes allow the load balancer's subnets",
        why: "no other source needs access",
        always: true,
    },
    IntendedDifference {
        ours: &["listener TLS:443 of *: ALPN None"],
        upstreams: &[],
        upstream: "TLS listeners have no ALPN policy",
        here: "TLS listeners have the ALPN policy `None`",
        why: "a removed policy is reset; the same for clients",
        always: true,
    },
    IntendedDifference {
        ours: &[],
        upstreams: &["Service sticky: *"],
        upstream: "impossible requests are detected after the finalizer was added",
        here: "impossible requests are detected before the finalizer is added",
        why: "an invalid Service can be deleted immediately",
        always: true,
    },
    IntendedDifference {
        ours: &["Node *: event route_controller Warning FailedToCreateRoute"],
        upstreams: &["Node *: event route_controller Warning FailedToCreateRoute"],
        upstream: "passes over routes are ten seconds apart",
        here: "a pass also follows a change within a second; both managers may find that a Node's instance was deleted before the Node",
        why: "new nodes work sooner",
        always: false,
    },
];

/// The result of classifying differences.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Descriptions of unintended differences.
    pub unexpected: Vec<String>,
    /// For each intended difference, in order: true if it occurred.
    pub occurred: Vec<bool>,
}

/// Classifies differences: the manager that has the fact, the step, and the fact.
pub fn classify(found: &[(Side, String, String)]) -> Verdict {
    classify_by(&INTENDED, found)
}

fn classify_by(table: &[IntendedDifference], found: &[(Side, String, String)]) -> Verdict {
    let mut verdict = Verdict { unexpected: Vec::new(), occurred: vec![false; table.len()] };
    for (side, step, fact) in found {
        let patterns = |intended: &IntendedDifference| match side {
            Side::Ours => intended.ours,
            Side::Upstream => intended.upstreams,
        };
        let position =
            table.iter().position(|intended| patterns(intended).iter().any(|pattern| matches(pattern, fact)));
        match position {
            Some(position) => verdict.occurred[position] = true,
            None => verdict.unexpected.push(format!("{step}: only {side:?} has {fact:?}")),
        }
    }
    verdict
}

/// Returns true if a text matches a pattern, in which `*` matches any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("*b", "abc", false),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn unlisted_difference_is_unexpected() {
        let table = [
            IntendedDifference { ours: &["x *"], upstreams: &["y"], upstream: "", here: "", why: "", always: true },
            IntendedDifference { ours: &["z"], upstreams: &[], upstream: "", here: "", why: "", always: true },
        ];
        let fact = |side, fact: &str| (side, "s".to_owned(), fact.to_owned());
        let found = [fact(Side::Ours, "x 1"), fact(Side::Upstream, "x 1"), fact(Side::Upstream, "y")];
        let verdict = classify_by(&table, &found);
        assert_eq!(verdict.unexpected, ["s: only Upstream has \"x 1\""]);
        assert_eq!(verdict.occurred, [true, false]);
    }

    #[test]
    fn documentation_contains_the_table() {
        let page = include_str!("../../../docs/differences.md");
        for IntendedDifference { upstream, here, why, .. } in INTENDED {
            let row = format!("| {upstream} | {here} | {why} |");
            assert!(page.contains(&row), "docs/differences.md lacks the row\n{row}");
        }
    }
}
