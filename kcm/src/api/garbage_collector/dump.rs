//! The graph in the format of Graphviz, served at `/debug/controllers/garbage-collector-controller/graph`.
//!
//! Upstream: pkg/controller/garbagecollector, dump.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::{self, Write as _};

use kinds::Uid;

use super::graph::{Graph, GraphObject};

/// The media type of Graphviz text.
pub const GRAPHVIZ: &str = "text/vnd.graphviz";

/// A vertex of the drawing: an object, or an owner that is missing from the graph.
struct Vertex<'a> {
    api_version: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    missing: bool,
    deleting: bool,
    foreground: bool,
    is_virtual: bool,
}

/// Returns the objects with owners or dependents, and their references. If `uids` is not empty, only objects that are
/// connected with these UIDs are returned.
pub fn draw(graph: &Graph, uids: &[Uid]) -> String {
    let objects: Vec<GraphObject<'_>> =
        if uids.is_empty() { graph.objects().collect() } else { connected_objects(graph, uids) };
    let (mut vertices, mut edges) = (BTreeMap::new(), BTreeSet::new());
    for object in objects.iter().filter(|object| object.has_dependents || !object.owners.is_empty()) {
        let (identity, state) = (object.identity, object.state);
        let vertex = Vertex {
            api_version: &identity.api_version,
            kind: &identity.kind,
            namespace: &identity.namespace,
            name: &identity.name,
            missing: false,
            deleting: state.deleting,
            foreground: state.foreground,
            is_virtual: !state.observed,
        };
        vertices.insert(identity.uid.to_string(), vertex);
    }
    for object in &objects {
        for owner in object.owners {
            vertices.entry(owner.uid.to_string()).or_insert_with(|| Vertex {
                api_version: &owner.api_version,
                kind: &owner.kind,
                namespace: "",
                name: &owner.name,
                missing: true,
                deleting: false,
                foreground: false,
                is_virtual: false,
            });
            edges.insert((object.identity.uid.to_string(), owner.uid.to_string()));
        }
    }
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, &vertices, &edges);
    text
}

/// Returns the objects with these UIDs and all objects that are connected with them.
fn connected_objects<'a>(graph: &'a Graph, uids: &[Uid]) -> Vec<GraphObject<'a>> {
    let mut open = uids.to_vec();
    let mut visited = HashSet::new();
    let mut objects = Vec::new();
    while let Some(uid) = open.pop() {
        let Some(object) = graph.object(&uid).filter(|_| visited.insert(uid.clone())) else { continue };
        open.extend(object.owners.iter().map(|owner| owner.uid.clone()));
        open.extend(graph.dependents(&uid).into_iter().map(|dependent| dependent.uid));
        objects.push(object);
    }
    objects
}

fn write(
    text: &mut String,
    vertices: &BTreeMap<String, Vertex<'_>>,
    edges: &BTreeSet<(String, String)>,
) -> fmt::Result {
    text.push_str("strict digraph full {\n");
    if !vertices.is_empty() {
        text.push_str("  // Node definitions.\n");
    }
    for (uid, vertex) in vertices {
        writeln!(text, "  {} [", quoted(uid))?;
        for (key, value) in attributes(uid, vertex) {
            writeln!(text, "    {key}={}", quoted(&value))?;
        }
        text.push_str("  ];\n");
    }
    if !edges.is_empty() {
        text.push_str("  // Edge definitions.\n");
    }
    for (from, to) in edges {
        writeln!(text, "  {} -> {};", quoted(from), quoted(to))?;
    }
    text.push_str("}\n");
    Ok(())
}

fn attributes(uid: &str, vertex: &Vertex<'_>) -> [(&'static str, String); 11] {
    let Vertex { kind, namespace, name, missing, deleting, foreground, is_virtual, .. } = *vertex;
    let (group, version) = vertex.api_version.split_once('/').unwrap_or(("", vertex.api_version));
    let kind_of = if group.is_empty() { format!("{kind}.{version}") } else { format!("{kind}.{version}.{group}") };
    let mut label = format!("uid={uid}\nnamespace={namespace}\n{kind_of}/{name}\n");
    let states = [
        (deleting, "beingDeleted"),
        (foreground, "deletingDependents"),
        (is_virtual, "virtual"),
        (missing, "missingFromGraph"),
    ];
    let states: Vec<&str> = states.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
    if !states.is_empty() {
        label = format!("{label}{}\n", states.join(","));
    }
    [
        ("label", label),
        ("group", group.to_owned()),
        ("version", version.to_owned()),
        ("kind", kind.to_owned()),
        ("namespace", namespace.to_owned()),
        ("name", name.to_owned()),
        ("uid", uid.to_owned()),
        ("missing", missing.to_string()),
        ("beingDeleted", deleting.to_string()),
        ("deletingDependents", foreground.to_string()),
        ("virtual", is_virtual.to_string()),
    ]
}

/// Returns the text in double quotes, escaped as in both Go and JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use kinds::meta::{Meta, OwnerRef, Time};
    use kinds::{Kind, Pod, ReplicaSet};

    use super::*;

    fn meta(name: &str, owner: Option<&str>) -> Meta {
        let owner = owner.map(|owner| OwnerRef {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: owner.into(),
            uid: Uid::parse(owner),
            controller: Some(true),
            block_owner_deletion: Some(true),
        });
        Meta {
            namespace: "ns".into(),
            name: name.into(),
            uid: Uid::parse(name),
            version: 1,
            generation: 1,
            created: Time(1),
            deletion: Time(0),
            labels: Vec::new().into(),
            owners: owner.into_iter().collect(),
            finalizers: Vec::new().into(),
        }
    }

    #[test]
    fn owners_and_dependents_are_drawn() {
        let mut graph = Graph::default();
        graph.observe(&ReplicaSet::RESOURCE, &meta("set", None));
        graph.observe(&Pod::RESOURCE, &meta("pod", Some("set")));
        graph.observe(&Pod::RESOURCE, &meta("orphan", Some("lost")));
        graph.observe(&Pod::RESOURCE, &meta("alone", None));
        let all = draw(&graph, &[]);
        assert!(all.starts_with("strict digraph full {\n  // Node definitions.\n  \"lost\" [\n    label=\""), "{all}");
        for line in [
            "    label=\"uid=pod\\nnamespace=ns\\nPod.v1/pod\\n\"",
            "    label=\"uid=set\\nnamespace=ns\\nReplicaSet.v1.apps/set\\n\"",
            "    group=\"apps\"",
            "  // Edge definitions.",
            "  \"pod\" -> \"set\";",
            "  \"orphan\" -> \"lost\";",
            "}",
        ] {
            assert!(all.lines().any(|own| own == line), "{line} is not in\n{all}");
        }
        assert!(!all.contains("alone"), "the object has neither owners nor dependents");
        let some = draw(&graph, &[Uid::parse("pod")]);
        assert!(some.contains("\"pod\" -> \"set\"") && !some.contains("orphan"), "{some}");
        assert_eq!(draw(&Graph::default(), &[]), "strict digraph full {\n}\n");
    }
}
