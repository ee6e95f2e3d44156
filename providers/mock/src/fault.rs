//! Faults, and the calls that they affect: by operation, subject, number of the call, and probability with a seed.

use std::time::Duration;

use providers::{CloudError, ErrorKind};
use serde::{Deserialize, Serialize};

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $changes:literal,)*) => {
        /// The calls of the mock cloud, as named in metrics, counts and errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Operation {
            $($(#[$doc])* $name,)*
        }

        impl Operation {
            /// All operations.
            pub const ALL: &'static [Operation] = &[$(Operation::$name),*];

            /// Returns the operation's name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Returns true if the operation changes something in the cloud.
            pub fn changes(self) -> bool {
                match self {
                    $(Self::$name => $changes,)*
                }
            }
        }
    };
}

operations! {
    /// Describes one batch of instances.
    DescribeInstances = false,
    /// Describes one instance in a batch; not a separate call. Its subject is the Node's name.
    DescribeInstance = false,
    /// Describes one load balancer with its addresses; the subject of this operation and of the following operations on
    /// load balancers is `namespace/name`.
    DescribeBalancer = false,
    /// Lists all load balancers of the cluster.
    ListBalancers = false,
    /// Allocates an address for a load balancer.
    AllocateAddress = true,
    /// Creates a load balancer without listeners.
    CreateBalancer = true,
    /// Sets the allowed source ranges.
    SetFirewall = true,
    /// Sets session affinity and health checks.
    SetAttributes = true,
    /// Sets the listeners.
    SetListeners = true,
    /// Sets the targets.
    SetTargets = true,
    /// Starts the deletion of a load balancer.
    DeleteBalancer = true,
    /// Releases a load balancer's addresses: all of them once it is deleted, before that those of families that are no
    /// longer requested.
    ReleaseAddresses = true,
    /// Lists all routes.
    ListRoutes = false,
    /// Creates or replaces a route; the subject of this and the next operation is the destination.
    SetRoute = true,
    /// Removes a route.
    RemoveRoute = true,
}

/// The operations that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// `*`: any call, so not `DescribeInstance`.
    Any,
    /// `changes`: all changing operations.
    Changes,
    /// `reads`: all read-only calls, so not `DescribeInstance`.
    Reads,
    /// The operation with that name.
    One(Operation),
}

impl Pattern {
    fn matches(self, operation: Operation) -> bool {
        match self {
            // An instance within a batch is not a call.
            Self::Any => operation != Operation::DescribeInstance,
            Self::Changes => operation.changes(),
            Self::Reads => !operation.changes() && operation != Operation::DescribeInstance,
            Self::One(one) => one == operation,
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = FaultError;

    fn try_from(word: String) -> Result<Self, FaultError> {
        match word.as_str() {
            "*" => Ok(Self::Any),
            "changes" => Ok(Self::Changes),
            "reads" => Ok(Self::Reads),
            name => match Operation::ALL.iter().find(|operation| operation.as_str() == name) {
                Some(operation) => Ok(Self::One(*operation)),
                None => Err(FaultError::UnknownOperation(word)),
            },
        }
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        match pattern {
            Pattern::Any => "*".into(),
            Pattern::Changes => "changes".into(),
            Pattern::Reads => "reads".into(),
            Pattern::One(operation) => operation.as_str().into(),
        }
    }
}

/// The effect on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The call is executed after this delay; not at all if the caller gives up before.
    Latency {
        /// The delay.
        millis: u64,
    },
    /// Refused: too many calls.
    Throttle {
        /// The delay that the cloud requests, if any.
        #[serde(default)]
        after_millis: Option<u64>,
    },
    /// Refused: a limit is reached.
    Quota,
    /// Refused: not allowed.
    Denied,
    /// Refused: another change is in progress.
    Conflict,
    /// Refused: temporarily unavailable.
    Transient,
    /// Executed, but the connection fails before the response.
    ResponseLost,
    /// Executed, but there is no response: for processes that a test kills during a call.
    Unanswered,
    /// The created resource is not returned by reads for this time. Only for `AllocateAddress` and `CreateBalancer`.
    Invisible {
        /// The time.
        millis: u64,
    },
    /// The deletion takes this time instead of the configured one. Only for `DeleteBalancer`.
    Pending {
        /// The time.
        millis: u64,
    },
}

/// An injected fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The affected calls.
    pub operation: Pattern,
    /// Limits the fault to calls about this subject: a Node's name, a Service's `namespace/name`, or a route's
    /// destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The first affected call, counted from 1 among the calls that match since the fault was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// Maximum number of affected calls. By default 1 if `nth` is given, and otherwise unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// The probability that a call with matching operation, subject and number is affected, from 0 to 1; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// The effect.
    pub effect: Effect,
}

impl Fault {
    /// Returns a fault that affects every call of `operation`.
    pub fn always(operation: Pattern, effect: Effect) -> Self {
        Self { operation, subject: None, nth: None, times: None, probability: None, effect }
    }

    /// Returns a fault that affects only the `nth` call of `operation` from now, counted from 1.
    pub fn at(operation: Pattern, nth: u64, effect: Effect) -> Self {
        Self { nth: Some(nth), ..Self::always(operation, effect) }
    }

    /// Limits the fault to calls about `subject`.
    #[must_use]
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }

    fn check(&self) -> Result<(), FaultError> {
        if let Some(value) = self.probability
            && !(0.0..=1.0).contains(&value)
        {
            return Err(FaultError::Probability(value));
        }
        if self.nth == Some(0) {
            return Err(FaultError::NthZero);
        }
        let is_possible = match self.effect {
            Effect::Invisible { .. } => {
                matches!(self.operation, Pattern::One(Operation::AllocateAddress | Operation::CreateBalancer))
            }
            Effect::Pending { .. } => self.operation == Pattern::One(Operation::DeleteBalancer),
            Effect::ResponseLost | Effect::Unanswered => match self.operation {
                Pattern::Changes => true,
                Pattern::One(operation) => operation.changes(),
                Pattern::Any | Pattern::Reads => false,
            },
            _ => true,
        };
        if is_possible { Ok(()) } else { Err(FaultError::NoEffect(String::from(self.operation))) }
    }
}

/// The reason why a fault was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// No such operation.
    #[error("operation is {0:?}: use *, changes, reads, or one of {known}", known = names())]
    UnknownOperation(String),
    /// Not a probability.
    #[error("probability is {0}: use a number from 0 to 1")]
    Probability(f64),
    /// Calls are counted from 1.
    #[error("nth is 0: calls are counted from 1")]
    NthZero,
    /// The fault could never have an effect.
    #[error(
        "operation is {0:?}, to which this effect does not apply: use changes or a changing operation for \
         response_lost and unanswered, AllocateAddress or CreateBalancer for invisible, DeleteBalancer for pending"
    )]
    NoEffect(String),
}

fn names() -> String {
    Operation::ALL.iter().map(|operation| operation.as_str()).collect::<Vec<_>>().join(", ")
}

/// The effect of all faults on one call.
#[derive(Debug, Clone, Default)]
pub(crate) struct CombinedEffect {
    /// The delay before the call is executed.
    pub latency: Duration,
    /// The call is refused without being executed.
    pub refusal: Option<(ErrorKind, &'static str)>,
    /// The call is executed and its response is lost.
    pub response_lost: bool,
    /// The call is executed and never gets a response.
    pub without_response: bool,
    /// The time for which the created resource is invisible.
    pub invisible: Duration,
    /// The duration of the deletion.
    pub pending: Option<Duration>,
}

impl CombinedEffect {
    fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Latency { millis } => self.latency += Duration::from_millis(millis),
            Effect::Throttle { after_millis } => {
                let after = after_millis.map(Duration::from_millis);
                self.refusal = Some((ErrorKind::Throttled { after }, "too many calls; slow down"));
            }
            Effect::Quota => self.refusal = Some((ErrorKind::Quota, "the account's limit is reached")),
            Effect::Denied => self.refusal = Some((ErrorKind::Denied, "the credentials do not allow it")),
            Effect::Conflict => self.refusal = Some((ErrorKind::Conflict, "another change is under way")),
            Effect::Transient => self.refusal = Some((ErrorKind::Transient, "the service is temporarily unavailable")),
            Effect::ResponseLost => self.response_lost = true,
            Effect::Unanswered => self.without_response = true,
            Effect::Invisible { millis } => self.invisible = Duration::from_millis(millis),
            Effect::Pending { millis } => self.pending = Some(Duration::from_millis(millis)),
        }
    }

    /// Returns the error of a lost response.
    pub fn lost_error(operation: Operation) -> CloudError {
        CloudError::new(ErrorKind::Transient, operation.as_str(), "the connection failed before the response")
    }
}

/// A fault with the numbers of calls that matched and that it affected.
#[derive(Debug, Clone)]
struct ArmedFault {
    id: u64,
    fault: Fault,
    seen: u64,
    fired: u64,
}

/// An armed fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultView {
    /// The id for its removal.
    pub id: u64,
    /// The fault.
    pub fault: Fault,
    /// Number of calls whose operation and subject matched.
    pub seen: u64,
    /// Number of calls that it affected.
    pub fired: u64,
}

/// The armed faults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    seed: u64,
    last_id: u64,
    armed: Vec<ArmedFault>,
}

impl Faults {
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Arms a fault; returns the id for its removal.
    pub fn add(&mut self, fault: Fault) -> Result<u64, FaultError> {
        fault.check()?;
        self.last_id += 1;
        self.armed.push(ArmedFault { id: self.last_id, fault, seen: 0, fired: 0 });
        Ok(self.last_id)
    }

    pub fn remove(&mut self, id: u64) -> bool {
        let before = self.armed.len();
        self.armed.retain(|armed| armed.id != id);
        self.armed.len() < before
    }

    pub fn clear(&mut self) {
        self.armed.clear();
    }

    pub fn views(&self) -> Vec<FaultView> {
        self.armed
            .iter()
            .map(|armed| FaultView { id: armed.id, fault: armed.fault.clone(), seen: armed.seen, fired: armed.fired })
            .collect()
    }

    /// Counts the call and returns the effect of all faults on it. The calls that a fault affects by its probability
    /// depend only on the seed, the fault's id and the call's number among those with its operation and subject.
    pub fn decide(&mut self, operation: Operation, subject: &str) -> CombinedEffect {
        let mut effect = CombinedEffect::default();
        for armed in &mut self.armed {
            let fault = &armed.fault;
            if !fault.operation.matches(operation) || fault.subject.as_deref().is_some_and(|only| only != subject) {
                continue;
            }
            armed.seen += 1;
            let limit = fault.times.unwrap_or(if fault.nth.is_some() { 1 } else { u64::MAX });
            let has_started = armed.seen >= fault.nth.unwrap_or(1);
            let is_drawn = fault.probability.is_none_or(|p| pseudorandom(self.seed, armed.id, armed.seen) < p);
            if has_started && armed.fired < limit && is_drawn {
                armed.fired += 1;
                effect.add(fault.effect);
            }
        }
        effect
    }
}

/// Returns a pseudorandom number in [0, 1) (splitmix64's finalizer).
fn pseudorandom(seed: u64, fault: u64, call: u64) -> f64 {
    let mut z = seed
        .wrapping_add(fault.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(call.wrapping_mul(0xd1b5_4a32_d192_ed03));
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affected_calls(faults: &mut Faults, calls: u64) -> Vec<u64> {
        (1..=calls).filter(|_| faults.decide(Operation::SetRoute, "10.0.0.0/24").refusal.is_some()).collect()
    }

    #[test]
    fn fault_affects_only_calls_that_match_it() {
        let always = Fault::always(Pattern::Changes, Effect::Quota);
        for (fault, expected) in [
            (always.clone(), vec![1, 2, 3, 4]),
            (Fault { nth: Some(3), ..always.clone() }, vec![3]),
            (Fault { nth: Some(2), times: Some(2), ..always.clone() }, vec![2, 3]),
            (Fault { times: Some(1), ..always.clone() }, vec![1]),
            (Fault { probability: Some(0.0), ..always.clone() }, vec![]),
            (always.clone().about("10.0.0.0/24"), vec![1, 2, 3, 4]),
            (always.clone().about("10.0.1.0/24"), vec![]),
            (Fault { operation: Pattern::Reads, ..always.clone() }, vec![]),
            (Fault { operation: Pattern::One(Operation::RemoveRoute), ..always.clone() }, vec![]),
        ] {
            let mut faults = Faults::new(0);
            faults.add(fault.clone()).unwrap();
            assert_eq!(affected_calls(&mut faults, 4), expected, "{fault:?}");
        }
    }

    #[test]
    fn probability_is_deterministic_for_a_seed() {
        let run = |seed| {
            let mut faults = Faults::new(seed);
            faults.add(Fault { probability: Some(0.5), ..Fault::always(Pattern::Any, Effect::Denied) }).unwrap();
            affected_calls(&mut faults, 200)
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert!((60..140).contains(&run(1).len()), "about half: {}", run(1).len());
    }

    #[test]
    fn faults_that_could_never_happen_are_refused() {
        let mut faults = Faults::new(0);
        let add = |faults: &mut Faults, fault| faults.add(fault).unwrap_err().to_string();
        let response_lost = Fault::always(Pattern::Reads, Effect::ResponseLost);
        assert!(add(&mut faults, response_lost).starts_with("operation is \"reads\""));
        let pending = Fault::always(Pattern::Changes, Effect::Pending { millis: 1 });
        assert!(add(&mut faults, pending).contains("DeleteBalancer"));
        let unlikely = Fault { probability: Some(1.5), ..Fault::always(Pattern::Any, Effect::Quota) };
        assert_eq!(add(&mut faults, unlikely), "probability is 1.5: use a number from 0 to 1");
        assert_eq!(add(&mut faults, Fault::at(Pattern::Any, 0, Effect::Quota)), FaultError::NthZero.to_string());
        let unknown = serde_json::from_str::<Fault>(r#"{"operation": "CreateThing", "effect": "quota"}"#);
        assert!(unknown.unwrap_err().to_string().contains("CreateThing"));
    }

    #[test]
    fn removed_fault_has_no_effect() {
        let mut faults = Faults::new(0);
        let id = faults.add(Fault::always(Pattern::Any, Effect::Quota)).unwrap();
        assert!(faults.remove(id));
        assert!(!faults.remove(id));
        assert!(affected_calls(&mut faults, 1).is_empty());
    }

    #[test]
    fn fault_is_unchanged_by_a_round_trip_through_json() {
        for text in [
            r#"{"operation":"*","effect":{"latency":{"millis":5}}}"#,
            r#"{"operation":"DeleteBalancer","subject":"a/b","nth":2,"times":3,"effect":{"pending":{"millis":9}}}"#,
            r#"{"operation":"changes","probability":0.25,"effect":{"throttle":{"after_millis":7}}}"#,
        ] {
            let fault: Fault = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&fault).unwrap(), text);
        }
    }
}
