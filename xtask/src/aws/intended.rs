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
}

/// All of them, as they are in `docs/differences.md`.
pub const INTENDED: [Intended; 1] = [Intended {
    ours: &["*: tag kubernetes.io/service-uid=*"],
    upstreams: &[],
    upstream: "what is made for a Service has its name in a tag",
    here: "and its uid",
    why: "what an earlier Service of that name left behind is not taken for this one's",
}];

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

/// Whether a text is as a pattern says, in which `*` stands for any text.
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
            Intended { ours: &["x *"], upstreams: &["y"], upstream: "", here: "", why: "" },
            Intended { ours: &["z"], upstreams: &[], upstream: "", here: "", why: "" },
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
