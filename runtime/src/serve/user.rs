//! Who asks: the user that a request is found to come from, and what the API server is told about it.

use std::collections::BTreeMap;

/// The group of everybody who proved who they are.
const AUTHENTICATED: &str = "system:authenticated";
/// The group of everybody who did not try to.
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of who did not try to.
const ANONYMOUS: &str = "system:anonymous";

/// A user as the API server describes one (apiserver, authentication/user, DefaultInfo).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// The name that roles are bound to.
    pub name: String,
    /// An identifier that is never given to another user; empty when there is none.
    pub uid: String,
    /// The groups that roles are bound to.
    pub groups: Vec<String>,
    /// Whatever else authentication found out.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Who shows no credentials at all.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Whether it is [`User::anonymous`], or somebody whom another server took for that.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.is_in(UNAUTHENTICATED)
    }

    /// Whether the user is in a group.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The user with the group of the authenticated, unless it is known as anonymous or has it already
    /// (apiserver, authentication/group, AuthenticatedGroupAdder).
    #[must_use]
    pub(super) fn authenticated(mut self) -> Self {
        if !self.is_anonymous() && !self.is_in(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_known_joins_the_authenticated() {
        let named = |name: &str, groups: &[&str]| User {
            name: name.into(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..User::default()
        };
        assert_eq!(named("ann", &["dev"]).authenticated().groups, ["dev", AUTHENTICATED]);
        assert_eq!(named("ann", &[AUTHENTICATED]).authenticated().groups, [AUTHENTICATED]);
        assert_eq!(User::anonymous().authenticated(), User::anonymous());
        assert_eq!(named("ann", &[UNAUTHENTICATED]).authenticated().groups, [UNAUTHENTICATED]);
    }
}
