//! Users of requests, as they are passed to the API server.

use std::collections::BTreeMap;

/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";
/// The group of all requests without credentials.
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user name of requests without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// A user as the API server describes it. Upstream: apiserver, authentication/user, DefaultInfo.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct User {
    /// The name that roles are bound to.
    pub name: String,
    /// An identifier that is never given to another user; empty if there is none.
    pub uid: String,
    /// The groups that roles are bound to.
    pub groups: Vec<String>,
    /// Additional attributes from authentication.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns the user of requests without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// Returns true if the user is unauthenticated: by its name, or by a group that another server has set.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.is_in(UNAUTHENTICATED)
    }

    /// Returns true if the user is in a group.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Adds the group of authenticated users, unless the user is anonymous or has the group already. Upstream:
    /// apiserver, authentication/group, AuthenticatedGroupAdder.
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
    fn only_authenticated_users_join_the_group() {
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
