//! Faults: selections of calls with the effect on each. Only decisions, without IO; the proxy executes them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::Notify;

/// Time after which a call that a test waits for is considered missing.
const REACHED: Duration = Duration::from_secs(60);

/// A gate before the response to one call: a test does something else while that call waits.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    reached: Notify,
    released: Notify,
}

impl Hold {
    /// Waits until a call was executed and its response is held.
    ///
    /// # Errors
    /// After a minute without such a call.
    pub async fn reached(&self) -> Result<()> {
        tokio::time::timeout(REACHED, self.0.reached.notified())
            .await
            .context("no call reached the hold within a minute")
    }

    /// Sends the held response.
    pub fn release(&self) {
        self.0.released.notify_one();
    }

    /// Holds the response until the test releases it.
    pub(crate) async fn wait(&self) {
        self.0.reached.notify_one();
        self.0.released.notified().await;
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Hold {}

/// The effect of a fault on a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The call is not executed and returns this error.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// AWS's code.
        code: String,
        /// The message for users.
        message: String,
    },
    /// The call is not executed: too many calls.
    Throttle {
        /// Seconds in the header `Retry-After`, if there is one.
        retry_after: Option<u64>,
    },
    /// The call is not executed, and the error is an internal one, without a reason.
    Outage,
    /// The call is executed, and the connection breaks before the response.
    ResponseLost,
    /// The call is executed, and the response is delayed.
    Slow(Duration),
    /// The call is executed, and the response waits until the test releases it.
    Held(Hold),
    /// The call returns success and is executed later; for deletions.
    Pending(Duration),
}

impl Effect {
    /// Returns the error of AWS for a resource in use.
    pub fn in_use() -> Self {
        Self::refused("DependencyViolation", "resource has a dependent object")
    }

    /// Returns an error of AWS for a valid request.
    pub fn refused(code: &str, message: &str) -> Self {
        Self::Refuse { status: 400, code: code.into(), message: message.into() }
    }
}

/// A fault in some calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// An action of AWS, `reads`, `changes`, or `*`.
    pub action: String,
    /// The first call with the fault, counted from one since the fault was armed.
    pub nth: u64,
    /// The number of calls with the fault; `None`: all following ones.
    pub times: Option<u64>,
    /// The effect on these calls.
    pub effect: Effect,
}

impl Fault {
    /// Returns a fault in the next call of the action.
    pub fn first(action: &str, effect: Effect) -> Self {
        Self::nth(action, 1, effect)
    }

    /// Returns a fault in the `nth` call of the action.
    pub fn nth(action: &str, nth: u64, effect: Effect) -> Self {
        Self { action: action.into(), nth, times: Some(1), effect }
    }

    /// Returns a fault in all calls of the action.
    pub fn always(action: &str, effect: Effect) -> Self {
        Self { action: action.into(), nth: 1, times: None, effect }
    }

    fn matches(&self, action: &str) -> bool {
        match self.action.as_str() {
            "*" => true,
            "changes" => is_change(action),
            "reads" => !is_change(action),
            exact => exact == action,
        }
    }
}

/// Returns true if an action is a write.
pub(crate) fn is_change(action: &str) -> bool {
    !["Describe", "Get", "List"].iter().any(|prefix| action.starts_with(prefix))
}

/// Armed faults, each with the number of matching calls and of those that it was applied to.
#[derive(Debug, Default)]
pub(crate) struct ArmedFaults(Vec<(Fault, u64, u64)>);

impl ArmedFaults {
    pub(crate) fn arm(&mut self, fault: Fault) {
        self.0.push((fault, 0, 0));
    }

    pub(crate) fn disarm(&mut self) {
        self.0.clear();
    }

    /// Returns the number of calls to which an armed fault was applied.
    pub(crate) fn applied(&self) -> u64 {
        self.0.iter().map(|(_, _, applied)| applied).sum()
    }

    /// Counts a call; returns the effect of the first fault that applies.
    pub(crate) fn effect_on(&mut self, action: &str) -> Option<Effect> {
        let mut effect = None;
        for (fault, calls, applied) in self.0.iter_mut().filter(|(fault, ..)| fault.matches(action)) {
            *calls += 1;
            let last = fault.times.map_or(u64::MAX, |times| fault.nth.saturating_add(times).saturating_sub(1));
            if effect.is_none() && (fault.nth..=last).contains(calls) {
                *applied += 1;
                effect = Some(fault.effect.clone());
            }
        }
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(fault: Fault, actions: &[&str]) -> Vec<bool> {
        let mut armed = ArmedFaults::default();
        armed.arm(fault);
        actions.iter().map(|action| armed.effect_on(action).is_some()).collect()
    }

    #[test]
    fn fault_counts_only_matching_calls() {
        let actions = ["CreateRoute", "DescribeInstances", "CreateRoute", "DeleteRoute"];
        for (fault, expected) in [
            (Fault::first("CreateRoute", Effect::Outage), [true, false, false, false]),
            (Fault::nth("CreateRoute", 2, Effect::Outage), [false, false, true, false]),
            (Fault::nth("changes", 2, Effect::Outage), [false, false, true, false]),
            (Fault::first("reads", Effect::Outage), [false, true, false, false]),
            (Fault::always("*", Effect::Outage), [true; 4]),
            (Fault { times: Some(2), ..Fault::nth("*", 2, Effect::Outage) }, [false, true, true, false]),
        ] {
            let name = format!("{fault:?}");
            assert_eq!(applied(fault, &actions), expected, "{name}");
        }
    }

    #[test]
    fn first_of_two_faults_applies_and_both_count() {
        let mut armed = ArmedFaults::default();
        armed.arm(Fault::first("CreateRoute", Effect::Outage));
        armed.arm(Fault::nth("CreateRoute", 2, Effect::ResponseLost));
        assert_eq!(armed.effect_on("CreateRoute"), Some(Effect::Outage));
        assert_eq!(armed.effect_on("CreateRoute"), Some(Effect::ResponseLost));
        assert_eq!(armed.effect_on("CreateRoute"), None);
        assert_eq!(armed.applied(), 2);
        armed.disarm();
        assert_eq!((armed.effect_on("CreateRoute"), armed.applied()), (None, 0));
    }
}
