//! What came of a run, readable by people.

use std::fmt;

/// What came of one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider does what the controllers rely on.
    Passed,
    /// The provider or its fixture lacks what the case needs: what it says.
    Skipped(String),
    /// It does not: what was expected, and what happened.
    Failed(String),
}

/// A case and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseResult {
    /// The case.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Outcome,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(f, "passed   {}", self.name),
            Outcome::Skipped(why) => write!(f, "skipped  {}: {why}", self.name),
            Outcome::Failed(why) => write!(f, "FAILED   {}: {why}", self.name),
        }
    }
}

/// What came of all cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order in which they ran.
    pub results: Vec<CaseResult>,
}

impl Report {
    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|result| matches!(result.outcome, Outcome::Failed(_)))
    }

    /// The cases that were skipped.
    pub fn skipped(&self) -> impl Iterator<Item = &CaseResult> {
        self.results.iter().filter(|result| matches!(result.outcome, Outcome::Skipped(_)))
    }

    /// Something was tried, and none of it failed.
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
    fn a_report_conforms_if_something_passed_and_nothing_failed() {
        let report = |outcomes: Vec<Outcome>| Report {
            results: outcomes.into_iter().map(|outcome| CaseResult { name: "case", outcome }).collect(),
        };
        let skipped = || Outcome::Skipped("no routes".into());
        assert!(!report(vec![]).conforms());
        assert!(!report(vec![skipped()]).conforms(), "nothing was tried");
        assert!(report(vec![skipped(), Outcome::Passed]).conforms());
        let bad = report(vec![skipped(), Outcome::Passed, Outcome::Failed("two balancers".into())]);
        assert!(!bad.conforms());
        assert_eq!(
            bad.to_string(),
            "skipped  case: no routes\npassed   case\nFAILED   case: two balancers\n1 passed, 1 skipped, 1 failed"
        );
    }
}
