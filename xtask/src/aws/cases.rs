//! The Services of the comparison, as data.

use serde_json::{Value, json};

/// The prefix of all load balancer annotations of AWS.
const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
/// Annotation that requests a load balancer without security groups. Upstream ignores the annotation: by default its
/// load balancers have no security groups.
const WITHOUT_GROUPS: &str = "disable-nlb-sg";

/// A Service. Texts may contain placeholders: `$subnet1`, `$address1`, `$certificate1` and so on for IDs of the
/// account, and in changes `@` at the start of an annotation's name for the common prefix.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Protocols, ports and node ports.
    ports: &'static [(&'static str, u16, u16)],
    /// Annotations. A name gets the common prefix, unless it starts with `!`, which is removed.
    annotations: &'static [(&'static str, &'static str)],
    /// Additional fields of its spec, as JSON.
    spec: &'static str,
    /// A later change, merged as JSON.
    pub change: Option<&'static str>,
}

const PLAIN: Case = Case { name: "", ports: &[], annotations: &[], spec: "{}", change: None };

/// Services with different fields. The groups of cases run one after the other: upstream's rules for all of them
/// together exceed AWS's limit per security group.
pub const SHAPES: [Case; 10] = [
    Case {
        name: "one-port",
        ports: &[("TCP", 80, 30080)],
        change: Some(
            r#"{"spec": {"ports": [{"name": "p80", "port": 80, "nodePort": 30080, "protocol": "TCP"}, {"name": "more", "port": 8080, "nodePort": 30081, "protocol": "TCP"}]}}"#,
        ),
        ..PLAIN
    },
    Case {
        name: "two-ports",
        ports: &[("TCP", 80, 30180), ("TCP", 443, 30443)],
        change: Some(r#"{"spec": {"ports": [{"name": "p80", "port": 80, "nodePort": 30180, "protocol": "TCP"}]}}"#),
        ..PLAIN
    },
    Case {
        name: "udp",
        ports: &[("UDP", 53, 30053)],
        change: Some(r#"{"spec": {"ports": [{"name": "p53", "port": 53, "nodePort": 30054, "protocol": "UDP"}]}}"#),
        ..PLAIN
    },
    Case { name: "both-protocols", ports: &[("TCP", 53, 30253), ("UDP", 53, 30253)], ..PLAIN },
    Case {
        name: "internal",
        ports: &[("TCP", 80, 30380)],
        annotations: &[("internal", "true")],
        change: Some(r#"{"metadata": {"annotations": {"@internal": null}}}"#),
        ..PLAIN
    },
    Case {
        name: "ranges",
        ports: &[("TCP", 80, 30480)],
        spec: r#"{"loadBalancerSourceRanges": ["10.1.0.0/16", "192.168.0.0/24"]}"#,
        change: Some(r#"{"spec": {"loadBalancerSourceRanges": ["10.1.0.0/16", "172.16.0.0/12"]}}"#),
        ..PLAIN
    },
    Case {
        name: "local",
        ports: &[("TCP", 80, 30580)],
        spec: r#"{"externalTrafficPolicy": "Local", "healthCheckNodePort": 32100}"#,
        change: Some(r#"{"spec": {"externalTrafficPolicy": "Cluster", "healthCheckNodePort": null}}"#),
        ..PLAIN
    },
    Case {
        name: "another-class",
        ports: &[("TCP", 80, 30680)],
        spec: r#"{"loadBalancerClass": "example.com/another"}"#,
        ..PLAIN
    },
    Case {
        name: "becomes-internal",
        ports: &[("TCP", 80, 30780)],
        change: Some(
            r#"{"spec": {"type": "ClusterIP", "ports": [{"name": "p80", "port": 80, "protocol": "TCP", "nodePort": null}]}}"#,
        ),
        ..PLAIN
    },
    Case { name: "with-groups", ports: &[("TCP", 80, 30880)], annotations: &[(WITHOUT_GROUPS, "false")], ..PLAIN },
];

/// Services with one or more annotations, and one with session affinity.
pub const ANNOTATIONS: [Case; 14] = [
    Case {
        name: "tags",
        ports: &[("TCP", 80, 31000)],
        annotations: &[("additional-resource-tags", "team=blue,stage=")],
        change: Some(r#"{"metadata": {"annotations": {"@additional-resource-tags": "team=red,stage=,more=1"}}}"#),
        ..PLAIN
    },
    Case {
        name: "tls",
        ports: &[("TCP", 443, 31010), ("TCP", 80, 31011)],
        annotations: &[("ssl-cert", "$certificate1"), ("ssl-ports", "443")],
        change: Some(r#"{"metadata": {"annotations": {"@ssl-cert": "$certificate2"}}}"#),
        ..PLAIN
    },
    Case {
        name: "tls-all-the-way",
        ports: &[("TCP", 443, 31020)],
        annotations: &[
            ("ssl-cert", "$certificate1"),
            ("backend-protocol", "ssl"),
            ("ssl-negotiation-policy", "ELBSecurityPolicy-TLS13-1-2-2021-06"),
        ],
        ..PLAIN
    },
    Case {
        name: "probe-http",
        ports: &[("TCP", 80, 31030)],
        annotations: &[
            ("healthcheck-protocol", "http"),
            ("healthcheck-port", "8080"),
            ("healthcheck-path", "/ready"),
            ("healthcheck-interval", "10"),
            ("healthcheck-healthy-threshold", "4"),
            ("healthcheck-unhealthy-threshold", "4"),
        ],
        change: Some(r#"{"metadata": {"annotations": {"@healthcheck-path": "/alive"}}}"#),
        ..PLAIN
    },
    Case {
        name: "probe-tcp",
        ports: &[("TCP", 80, 31040)],
        annotations: &[("healthcheck-port", "9090"), ("healthcheck-timeout", "5")],
        change: Some(r#"{"metadata": {"annotations": {"@healthcheck-interval": "10"}}}"#),
        ..PLAIN
    },
    Case {
        name: "cross-zone",
        ports: &[("TCP", 80, 31050)],
        annotations: &[("cross-zone-load-balancing-enabled", "true")],
        change: Some(r#"{"metadata": {"annotations": {"@cross-zone-load-balancing-enabled": null}}}"#),
        ..PLAIN
    },
    Case {
        name: "access-log",
        ports: &[("TCP", 80, 31060)],
        annotations: &[
            ("access-log-enabled", "true"),
            ("access-log-s3-bucket-name", "logs"),
            ("access-log-s3-bucket-prefix", "web"),
        ],
        ..PLAIN
    },
    Case {
        name: "proxy-protocol",
        ports: &[("TCP", 80, 31070)],
        annotations: &[("target-group-attributes", "proxy_protocol_v2.enabled=true,preserve_client_ip.enabled=false")],
        change: Some(
            r#"{"metadata": {"annotations": {"@target-group-attributes": "proxy_protocol_v2.enabled=false,preserve_client_ip.enabled=true"}}}"#,
        ),
        ..PLAIN
    },
    Case {
        name: "two-subnets",
        ports: &[("TCP", 80, 31080)],
        annotations: &[("subnets", "$subnet1,$subnet2")],
        change: Some(r#"{"metadata": {"annotations": {"@subnets": "$subnet1,$subnet2,$subnet3"}}}"#),
        ..PLAIN
    },
    Case {
        name: "own-addresses",
        ports: &[("TCP", 80, 31090)],
        annotations: &[("eip-allocations", "$address1,$address2,$address3")],
        ..PLAIN
    },
    Case {
        name: "own-private",
        ports: &[("TCP", 80, 31100)],
        annotations: &[("internal", "true"), ("private-ipv4-addresses", "10.0.16.50,10.0.32.50,10.0.48.50")],
        ..PLAIN
    },
    Case {
        name: "blue-nodes",
        ports: &[("TCP", 80, 31110)],
        annotations: &[("target-node-labels", "pool=blue")],
        ..PLAIN
    },
    Case {
        name: "ranges-annotated",
        ports: &[("TCP", 80, 31120)],
        annotations: &[("!service.beta.kubernetes.io/load-balancer-source-ranges", "10.1.0.0/16")],
        ..PLAIN
    },
    Case { name: "sticky", ports: &[("TCP", 80, 31130)], spec: r#"{"sessionAffinity": "ClientIP"}"#, ..PLAIN },
];

/// Placeholders of an account's IDs, such as `$subnet1`, with the IDs.
pub type Ids = [(String, String)];

impl Case {
    /// Returns the Service as it is created.
    ///
    /// # Panics
    /// If its spec is not JSON, which a test excludes.
    pub fn service(&self, ids: &Ids) -> Value {
        let mut annotations: serde_json::Map<String, Value> = [("type", "nlb"), (WITHOUT_GROUPS, "true")]
            .iter()
            .chain(self.annotations)
            .map(|(name, value)| {
                let name = name.strip_prefix('!').map_or_else(|| format!("{PREFIX}{name}"), str::to_owned);
                (name, Value::from(filled(value, ids)))
            })
            .collect();
        if annotations.get(&format!("{PREFIX}{WITHOUT_GROUPS}")) == Some(&Value::from("false")) {
            annotations.remove(&format!("{PREFIX}{WITHOUT_GROUPS}"));
        }
        let port = |(protocol, port, node_port): &(&str, u16, u16)| {
            let name = if *protocol == "UDP" { format!("u{port}") } else { format!("p{port}") };
            json!({"name": name, "port": port, "nodePort": node_port, "protocol": protocol})
        };
        let mut spec: Value = serde_json::from_str(self.spec).expect("the table has JSON");
        spec["type"] = "LoadBalancer".into();
        spec["selector"] = json!({"app": self.name});
        spec["ports"] = self.ports.iter().map(port).collect();
        json!({"metadata": {"name": self.name, "annotations": annotations}, "spec": spec})
    }

    /// Returns the later change.
    ///
    /// # Panics
    /// If it is not JSON, which a test excludes.
    pub fn changed(&self, ids: &Ids) -> Option<Value> {
        let text = filled(self.change?, ids).replace("\"@", &format!("\"{PREFIX}"));
        Some(serde_json::from_str(&text).expect("the table has JSON"))
    }
}

fn filled(text: &str, ids: &Ids) -> String {
    ids.iter().fold(text.to_owned(), |text, (name, id)| text.replace(&**name, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_separate_service() {
        let ids = [("$subnet1".to_owned(), "subnet-0a".to_owned())];
        let (mut names, mut node_ports) = (Vec::new(), Vec::new());
        for case in SHAPES.iter().chain(&ANNOTATIONS) {
            let service: k8s_openapi::api::core::v1::Service = serde_json::from_value(case.service(&ids)).unwrap();
            names.push(case.name);
            node_ports.extend(case.ports.iter().map(|(protocol, _, node_port)| (*protocol, *node_port)));
            assert_eq!(service.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));
            case.changed(&ids);
        }
        let count = |list: &mut Vec<_>| {
            list.sort_unstable();
            list.dedup();
            list.len()
        };
        assert_eq!(count(&mut names), SHAPES.len() + ANNOTATIONS.len());
        let all = node_ports.len();
        node_ports.sort_unstable();
        node_ports.dedup();
        assert_eq!(node_ports.len(), all);
    }

    #[test]
    fn ids_and_prefixes_are_replaced() {
        let ids = [("$subnet1".to_owned(), "subnet-0a".to_owned())];
        let case = Case {
            annotations: &[("subnets", "$subnet1,x"), ("!a/b", "c")],
            change: Some(r#"{"metadata": {"annotations": {"@subnets": "$subnet1"}}}"#),
            ..PLAIN
        };
        let annotations = &case.service(&ids)["metadata"]["annotations"];
        assert_eq!(annotations[format!("{PREFIX}subnets")], "subnet-0a,x");
        assert_eq!((&annotations["a/b"], &annotations[format!("{PREFIX}type")]), (&json!("c"), &json!("nlb")));
        let changed = case.changed(&ids).unwrap();
        assert_eq!(changed["metadata"]["annotations"][format!("{PREFIX}subnets")], "subnet-0a");
    }
}
