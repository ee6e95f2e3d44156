//! What goes wrong, as data, and when: pure decisions for the proxy.

use std::time::Duration;

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is done, and the answer is this error.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// AWS's code.
        code: String,
        /// For people.
        message: String,
    },
    /// Nothing is done: too many calls.
    Throttle {
        /// Seconds in the header `Retry-After`, if there is one.
        retry_after: Option<u64>,
    },
    /// Nothing is done, and the error gives no reason.
    Outage,
    /// It is done, and the connection breaks before the answer.
    AnswerLost,
    /// It is done, and the answer takes longer.
    Slow(Duration),
    /// It is said to be done, and is done so much later; for what deletes.
    Pending(Duration),
}

impl Effect {
    /// The error that AWS gives for what is in use.
    pub fn in_use() -> Self {
        Self::refused("DependencyViolation", "resource has a dependent object")
    }

    /// An error that AWS gives for a request that it understood.
    pub fn refused(code: &str, message: &str) -> Self {
        Self::Refuse { status: 400, code: code.into(), message: message.into() }
    }
}

/// Something that goes wrong with some calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// An action of AWS, `reads`, `changes`, or `*`.
    pub action: String,
    /// The first call that it strikes, counted from one from the time it is armed.
    pub nth: u64,
    /// How many calls it strikes from there on; `None`: all.
    pub times: Option<u64>,
    /// What becomes of them.
    pub effect: Effect,
}

impl Fault {
    /// The next such call.
    pub fn first(action: &str, effect: Effect) -> Self {
        Self::nth(action, 1, effect)
    }

    /// The `nth` such call from now.
    pub fn nth(action: &str, nth: u64, effect: Effect) -> Self {
        Self { action: action.into(), nth, times: Some(1), effect }
    }

    /// All such calls from now on.
    pub fn always(action: &str, effect: Effect) -> Self {
        Self { action: action.into(), nth: 1, times: None, effect }
    }

    fn is_about(&self, action: &str) -> bool {
        match self.action.as_str() {
            "*" => true,
            "changes" => is_change(action),
            "reads" => !is_change(action),
            one => one == action,
        }
    }
}

/// Whether an action changes something.
pub(crate) fn is_change(action: &str) -> bool {
    !["Describe", "Get", "List"].iter().any(|reading| action.starts_with(reading))
}

/// Faults that are armed, and what of them came true.
#[derive(Debug, Default)]
pub(crate) struct Armed(Vec<(Fault, u64, u64)>);

impl Armed {
    pub(crate) fn arm(&mut self, fault: Fault) {
        self.0.push((fault, 0, 0));
    }

    pub(crate) fn disarm(&mut self) {
        self.0.clear();
    }

    /// Calls that were struck by what is armed.
    pub(crate) fn struck(&self) -> u64 {
        self.0.iter().map(|(_, _, struck)| struck).sum()
    }

    /// Counts a call; what becomes of it, by the first fault that strikes it.
    pub(crate) fn strike(&mut self, action: &str) -> Option<Effect> {
        let mut effect = None;
        for (fault, seen, struck) in self.0.iter_mut().filter(|(fault, ..)| fault.is_about(action)) {
            *seen += 1;
            let last = fault.times.map_or(u64::MAX, |times| fault.nth.saturating_add(times).saturating_sub(1));
            if effect.is_none() && (fault.nth..=last).contains(seen) {
                *struck += 1;
                effect = Some(fault.effect.clone());
            }
        }
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(fault: Fault, actions: &[&str]) -> Vec<bool> {
        let mut armed = Armed::default();
        armed.arm(fault);
        actions.iter().map(|action| armed.strike(action).is_some()).collect()
    }

    #[test]
    fn calls_are_counted_by_what_a_fault_is_about() {
        let actions = ["CreateRoute", "DescribeInstances", "CreateRoute", "DeleteRoute"];
        for (fault, expected) in [
            (Fault::first("CreateRoute", Effect::Outage), [true, false, false, false]),
            (Fault::nth("CreateRoute", 2, Effect::Outage), [false, false, true, false]),
            (Fault::nth("changes", 2, Effect::Outage), [false, false, true, false]),
            (Fault::first("reads", Effect::Outage), [false, true, false, false]),
            (Fault::always("*", Effect::Outage), [true; 4]),
            (Fault { times: Some(2), ..Fault::nth("*", 2, Effect::Outage) }, [false, true, true, false]),
        ] {
            let told = format!("{fault:?}");
            assert_eq!(struck(fault, &actions), expected, "{told}");
        }
    }

    #[test]
    fn the_first_of_two_faults_strikes_and_both_count() {
        let mut armed = Armed::default();
        armed.arm(Fault::first("CreateRoute", Effect::Outage));
        armed.arm(Fault::nth("CreateRoute", 2, Effect::AnswerLost));
        assert_eq!(armed.strike("CreateRoute"), Some(Effect::Outage));
        assert_eq!(armed.strike("CreateRoute"), Some(Effect::AnswerLost));
        assert_eq!(armed.strike("CreateRoute"), None);
        assert_eq!(armed.struck(), 2);
        armed.disarm();
        assert_eq!((armed.strike("CreateRoute"), armed.struck()), (None, 0));
    }
}
