//! Errors of changes that do not depend on each other: an error of one target group must not keep the targets of others
//! from being changed.

use providers::{CloudError, ErrorKind};

/// The first error of several changes.
#[derive(Debug, Default)]
pub(crate) struct Failures(Option<CloudError>);

impl Failures {
    /// Adds an error.
    ///
    /// # Errors
    /// The first error, if further calls would probably fail, too: calls are throttled, or there is an outage.
    pub(crate) fn add(&mut self, error: CloudError) -> Result<(), CloudError> {
        let is_general = matches!(error.kind, ErrorKind::Throttled { .. } | ErrorKind::Transient);
        let first = self.0.get_or_insert(error);
        if is_general { Err(first.clone()) } else { Ok(()) }
    }

    /// Returns the first error, if there is one.
    pub(crate) fn into_result(self) -> Result<(), CloudError> {
        self.0.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_continue_after_an_error_about_one_target_group() {
        for (kind, continues) in [
            (ErrorKind::NotFound, true),
            (ErrorKind::Denied, true),
            (ErrorKind::Quota, true),
            (ErrorKind::Conflict, true),
            (ErrorKind::Invalid, true),
            (ErrorKind::Throttled { after: None }, false),
            (ErrorKind::Transient, false),
        ] {
            let mut failures = Failures::default();
            let first = CloudError::new(kind, "RegisterTargets", "first");
            assert_eq!(failures.add(first.clone()).is_ok(), continues, "{kind:?}");
            assert_eq!(failures.into_result(), Err(first));
        }
        assert_eq!(Failures::default().into_result(), Ok(()));
    }
}
