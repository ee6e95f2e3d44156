//! Events on a Deployment.

/// An event on the Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// True for `Warning`, false for `Normal`.
    pub warning: bool,
    /// Reason of the event.
    pub reason: &'static str,
    /// Message of the event.
    pub message: String,
}

impl Notice {
    /// Returns the notice about a selector that matches everything.
    pub fn selecting_all() -> Self {
        Self {
            warning: true,
            reason: "SelectingAll",
            message: "This deployment is selecting all pods. A non-empty selector is required.".to_owned(),
        }
    }
}
