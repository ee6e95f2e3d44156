//! What differs from upstream's AWS manager on purpose, with the reason: data, and how a difference is judged by it.

/// Who has a fact that the other one has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// ccm.
    Ours,
    /// Upstream's manager.
    Upstream,
}

/// A difference that is meant to be.
#[derive(Debug, Clone, Copy)]
pub struct Intended {
    /// Facts that only ours has: `*` stands for any text.
    ours: &'static [&'static str],
    /// Facts that only upstream's has.
    upstreams: &'static [&'static str],
    /// What upstream does.
    pub upstream: &'static str,
    /// What we do.
    pub here: &'static str,
    /// Why.
    pub why: &'static str,
    /// It shows each time, and not only as it happens.
    pub always: bool,
}

/// All of them, as they are in `docs/differences.md`.
pub const INTENDED: [Intended; 17] = [
    Intended {
        ours: &["*: tag kubernetes.io/service-uid=*"],
        upstreams: &[],
        upstream: "what is made for a Service has its name in a tag",
        here: "and its uid",
        why: "what an earlier Service of that name left behind is not taken for this one's",
        always: true,
    },
    Intended {
        ours: &[
            "Service both-protocols: *",
            "* of both-protocols: *",
            "security group nodes.try: lets in * 30253-30253 *",
        ],
        upstreams: &["Service both-protocols: event service-controller Warning SyncLoadBalancerFailed"],
        upstream: "TCP and UDP on one Service are refused",
        here: "they share a listener, or have one each",
        why: "kubernetes asks for both since 1.26",
        always: true,
    },
    Intended {
        ours: &[
            "balancer of with-groups: security group *",
            "security group k8s-*",
            "security group nodes.try: lets in tcp 30000-32767 *",
        ],
        upstreams: &["security group nodes.try: lets in tcp 30880-30880 *"],
        upstream: "balancers have no security groups by default, and nodes' groups a rule for each port and range",
        here: "balancers have two unless `disable-nlb-sg` says otherwise, and nodes' groups one rule for all Services",
        why: "a security group holds sixty rules",
        always: true,
    },
    Intended {
        ours: &[
            "balancer of internal: scheme internet-facing",
            "balancer of internal: name k8s-*",
            "Service internal: way in k8s-*",
        ],
        upstreams: &[
            "balancer of internal: scheme internal",
            "balancer of internal: name *",
            "Service internal: way in *",
        ],
        upstream: "a change between internal and internet-facing has no effect",
        here: "another balancer is made, and the old one serves until it works",
        why: "what is asked for is done",
        always: true,
    },
    Intended {
        ours: &["target group UDP:* of udp: health*", "security group nodes.try: lets in tcp 10256-10256 *"],
        upstreams: &[
            "target group UDP:* of udp: health*",
            "security group nodes.try: lets in tcp 30053-30053 *",
            "security group nodes.try: lets in tcp 30054-30054 *",
        ],
        upstream: "UDP target groups are probed by TCP at the same port",
        here: "on nodes at kube-proxy (10256, `/healthz`), unless an annotation says otherwise; with `ip` targets as upstream, with a warning",
        why: "nothing listens there by TCP: all targets are unhealthy, and traffic goes to dead nodes, too",
        always: true,
    },
    Intended {
        ours: &["balancer of *: scheme internet-facing"],
        upstreams: &[],
        upstream: "internet-facing balancers are asked for by asking for nothing",
        here: "by their name",
        why: "moto shows what was asked for",
        always: true,
    },
    Intended {
        ours: &[],
        upstreams: &["balancer of *: attribute access_logs.s3.enabled=false"],
        upstream: "attributes are set that new balancers have anyway",
        here: "they are not",
        why: "a call less; moto shows what was asked for",
        always: true,
    },
    Intended {
        ours: &["* of tags: tag team=red", "* of tags: tag more=1"],
        upstreams: &["* of tags: tag team=blue"],
        upstream: "`additional-resource-tags` count when a balancer is made",
        here: "later too",
        why: "what is asked for is done",
        always: true,
    },
    Intended {
        ours: &["balancer of two-subnets: subnet *"],
        upstreams: &[],
        upstream: "`subnets` count when a balancer is made",
        here: "later too",
        why: "cloud-provider-aws#206",
        always: true,
    },
    Intended {
        ours: &["target group TCP:31040 of probe-tcp: health timeout 5"],
        upstreams: &["target group TCP:31040 of probe-tcp: health timeout 10"],
        upstream: "`healthcheck-timeout` has no effect",
        here: "it has",
        why: "what is asked for is done",
        always: true,
    },
    Intended {
        ours: &["target group TCP:30580 of local: health*"],
        upstreams: &["target group TCP:30580 of local: health*"],
        upstream: "another protocol of health checks is another target group",
        here: "it is changed in place; moto keeps the path",
        why: "traffic goes on",
        always: false,
    },
    Intended {
        ours: &[],
        upstreams: &["security group nodes.try: lets in tcp 32100-32100 *"],
        upstream: "rules for health checks that are not made any more stay",
        here: "they go",
        why: "nobody needs them; a security group holds sixty rules",
        always: true,
    },
    Intended {
        ours: &["target group TCP:31070 of proxy-protocol: attribute *"],
        upstreams: &[],
        upstream: "attributes of target groups are set if AWS lists them",
        here: "whatever AWS lists",
        why: "moto does not list all that AWS does",
        always: true,
    },
    Intended {
        ours: &["security group nodes.try: lets in tcp 31070-31070 *"],
        upstreams: &["security group nodes.try: lets in tcp 31070-31070 *"],
        upstream: "nodes are opened to clients though they see the balancer's addresses only",
        here: "to the balancer's subnets",
        why: "nobody else has to reach them",
        always: true,
    },
    Intended {
        ours: &["listener TLS:443 of *: ALPN None"],
        upstreams: &[],
        upstream: "TLS listeners name no ALPN policy",
        here: "they name `None`",
        why: "a policy that was taken away goes; the same to clients",
        always: true,
    },
    Intended {
        ours: &[],
        upstreams: &["Service sticky: *"],
        upstream: "what AWS can't do is found out once the Service is held",
        here: "before",
        why: "a Service that can't work is deleted at once",
        always: true,
    },
    Intended {
        ours: &["Node *: event route_controller Warning FailedToCreateRoute"],
        upstreams: &["Node *: event route_controller Warning FailedToCreateRoute"],
        upstream: "passes over routes are ten seconds apart",
        here: "one also follows a change within a second; both may find that a Node's machine is gone before the Node",
        why: "new nodes work sooner",
        always: false,
    },
];

/// What is to be said of differences.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Those that nobody meant, in words.
    pub unexpected: Vec<String>,
    /// Of each one that is meant, whether it was found.
    pub needed: Vec<bool>,
}

/// Judges differences: whose fact it is, after which step, and the fact.
pub fn judge(found: &[(Side, String, String)]) -> Verdict {
    judge_by(&INTENDED, found)
}

fn judge_by(table: &[Intended], found: &[(Side, String, String)]) -> Verdict {
    let mut verdict = Verdict { unexpected: Vec::new(), needed: vec![false; table.len()] };
    for (side, step, fact) in found {
        let patterns = |intended: &Intended| match side {
            Side::Ours => intended.ours,
            Side::Upstream => intended.upstreams,
        };
        let meant = table.iter().position(|intended| patterns(intended).iter().any(|pattern| matches(pattern, fact)));
        match meant {
            Some(place) => verdict.needed[place] = true,
            None => verdict.unexpected.push(format!("{step}: only {side:?} has {fact:?}")),
        }
    }
    verdict
}

/// Reports whether a text is as a pattern says, in which `*` stands for any text.
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
    fn what_is_not_in_the_table_is_unexpected() {
        let table = [
            Intended { ours: &["x *"], upstreams: &["y"], upstream: "", here: "", why: "", always: true },
            Intended { ours: &["z"], upstreams: &[], upstream: "", here: "", why: "", always: true },
        ];
        let fact = |side, fact: &str| (side, "s".to_owned(), fact.to_owned());
        let found = [fact(Side::Ours, "x 1"), fact(Side::Upstream, "x 1"), fact(Side::Upstream, "y")];
        let verdict = judge_by(&table, &found);
        assert_eq!(verdict.unexpected, ["s: only Upstream has \"x 1\""]);
        assert_eq!(verdict.needed, [true, false]);
    }

    #[test]
    fn the_documentation_has_the_table() {
        let page = include_str!("../../../docs/differences.md");
        for Intended { upstream, here, why, .. } in INTENDED {
            let row = format!("| AWS | {upstream} | {here} | {why} |");
            assert!(page.contains(&row), "docs/differences.md lacks the row\n{row}");
        }
    }
}
