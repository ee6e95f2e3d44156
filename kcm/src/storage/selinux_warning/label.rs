//! Comparison of SELinux labels without the defaults of a node's operating system.

/// Returns user, role, type and level. The level keeps its colons.
fn parts(label: &str) -> [&str; 4] {
    let mut parts = label.splitn(4, ':');
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Returns true if two pods with these labels cannot use a volume on the same node.
///
/// The operating system of a node fills in a missing user, role or type, possibly with the value of the other label.
/// It does not fill in a missing level. Upstream: pkg/controller/volume/selinuxwarning/translator, Conflicts.
pub fn conflict(one: &str, other: &str) -> bool {
    let ([rest @ .., level], [other_rest @ .., other_level]) = (&parts(one), &parts(other));
    let differ = |(one, other): (&&str, &&str)| one != other && !one.is_empty() && !other.is_empty();
    level != other_level || rest.iter().zip(other_rest).any(differ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_that_a_node_does_not_fill_in_conflict() {
        for (one, other, expected) in [
            ("", "", false),
            ("", "u:r:t", false),
            ("", "u:r:t:s0:c1", true),
            (":::", "u:r:t", false),
            ("u:r:t:", "u:r", false),
            ("u:r:t:s0", "u:r:t:s0", false),
            ("u:r:t:s0:c1,c2", ":::s0:c1,c2", false),
            ("u:r:t:s0:c1,c2", ":::s0:c98,c99", true),
            ("u:r:t:s0", "v:r:t:s0", true),
            ("u:r:t:s0", "u:q:t:s0", true),
            ("u:r:t:s0", "u:r:s:s0", true),
            ("::a", "::b", true),
            ("u::t", ":r::", false),
            (":::s0:c1", "", true),
            (":::s0:c1", ":::s0:c1:more", true),
        ] {
            assert_eq!(conflict(one, other), expected, "{one:?} and {other:?}");
            assert_eq!(conflict(other, one), expected, "{other:?} and {one:?}");
        }
    }
}
