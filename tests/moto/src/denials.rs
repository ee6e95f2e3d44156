//! Accesses that the policy denied during a test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};

/// The denied accesses of one account, shared by its endpoint and the check at the end of the test.
#[derive(Clone, Default)]
pub(crate) struct Denials(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The actions and the resources, in order.
    denied: Vec<(String, String)>,
    /// The reason for which denials are no failure of the test, if there is one.
    expected: Option<String>,
}

impl Denials {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, action: String, resource: String) {
        self.state().denied.push((action, resource));
    }

    pub(crate) fn all(&self) -> Vec<(String, String)> {
        self.state().denied.clone()
    }

    pub(crate) fn expect(&self, reason: &str) {
        self.state().expected = Some(reason.to_owned());
    }

    /// # Errors
    /// If an access was denied that the test does not expect to be.
    pub(crate) fn check(&self) -> Result<()> {
        let state = self.state();
        ensure!(state.expected.is_some() || state.denied.is_empty(), "the policy denies {:?}", state.denied);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_denial_is_an_error() {
        let denials = Denials::default();
        assert!(denials.check().is_ok());
        denials.add("ec2:CreateRoute".into(), "*".into());
        assert!(denials.check().is_err_and(|error| error.to_string().contains("ec2:CreateRoute")));
        denials.expect("the table lacks the tag");
        assert!(denials.check().is_ok());
    }
}
