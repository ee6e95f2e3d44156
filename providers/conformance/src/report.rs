//! The results of a run as human-readable text.

use std::fmt;

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider fulfils the contract.
    Passed,
    /// The provider or its fixture lacks something that the case needs; the text names it.
    Skipped(String),
    /// The contract is violated; the text contains the expected and the actual state.
    Failed(String),
}

/// A case and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseResult {
    /// The case.
    pub name: &'static str,
    /// The result of the case.
    pub outcome: Outcome,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(f, "passed   {}", self.name),
            Outcome::Skipped(reason) => write!(f, "skipped  {}: {reason}", self.name),
            Outcome::Failed(reason) => write!(f, "FAILED   {}: {reason}", self.name),
        }
    }
}

/// The results of all cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order in which they ran.
    pub results: Vec<CaseResult>,
}

impl Report {
    /// Returns the failed cases.
    pub fn failed(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|result| matches!(result.outcome, Outcome::Failed(_)))
    }

    /// Returns the skipped cases.
    pub fn skipped(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|result| matches!(result.outcome, Outcome::Skipped(_)))
    }

    /// Returns true if some case passed and none failed.
    pub fn conforms(&self) -> bool {
        self.failed().next().is_none() && self.skipped().count() < self.results.len()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for result in &self.results {
            writeln!(f, "{result}")?;
        }
        let (failed, skipped) = (self.failed().count(), self.skipped().count());
        write!(f, "{} passed, {skipped} skipped, {failed} failed", self.results.len() - failed - skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_conforms_when_a_case_passed_and_none_failed() {
        let report = |outcomes: Vec<Outcome>| Report {
            results: outcomes.into_iter().map(|outcome| CaseResult { name: "case", outcome }).collect(),
        };
        let skipped = || Outcome::Skipped("no routes".into());
        assert!(!report(vec![]).conforms());
        assert!(!report(vec![skipped()]).conforms(), "no case was run");
        assert!(report(vec![skipped(), Outcome::Passed]).conforms());
        let bad = report(vec![skipped(), Outcome::Passed, Outcome::Failed("two balancers".into())]);
        assert!(!bad.conforms());
        assert_eq!(
            bad.to_string(),
            "skipped  case: no routes\npassed   case\nFAILED   case: two balancers\n1 passed, 1 skipped, 1 failed"
        );
    }
}
