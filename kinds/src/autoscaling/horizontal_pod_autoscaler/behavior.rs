//! Scaling rules of an autoscaler. Upstream: pkg/apis/autoscaling/v2, GenerateHPAScaleUpRules and
//! GenerateHPAScaleDownRules.

use crate::value::quantity;
use crate::wire::schema::{
    horizontal_pod_autoscaler_behavior, hpa_scaling_policy, hpa_scaling_rules, quantity as quantity_message,
};
use crate::wire::{WireError, fields, find_str};

/// Rules for both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct Behavior {
    /// For scaling up.
    pub up: Rules,
    /// For scaling down.
    pub down: Rules,
}

/// Rules for one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Stabilization window in seconds; `None`: the default of the controller.
    pub window: Option<i32>,
    /// Selection among several policies.
    pub select: Select,
    /// Limits of changes over time.
    pub policies: Box<[Policy]>,
    /// Relative difference between metric and target that does not cause scaling, such as 0.1 for 10 %. `None`: the
    /// default of the controller.
    pub tolerance: Option<f64>,
}

/// Selection among several policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// The policy that allows the largest change.
    Max,
    /// The policy that allows the smallest change.
    Min,
    /// No policy: the target is not scaled in this direction.
    Disabled,
}

/// A limit of changes over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The value is a percentage, not a number of pods.
    pub percent: bool,
    /// Pods, or percent of those at the period's start.
    pub value: i32,
    /// The period in seconds.
    pub period: i32,
}

const PODS: Policy = Policy { percent: false, value: 4, period: 15 };
const DOUBLE: Policy = Policy { percent: true, value: 100, period: 15 };

impl Default for Behavior {
    /// Returns the defaults of the API server.
    fn default() -> Self {
        let rules = |window, policies: &[Policy]| Rules {
            window,
            select: Select::Max,
            policies: policies.into(),
            tolerance: None,
        };
        Self { up: rules(Some(0), &[PODS, DOUBLE]), down: rules(None, &[DOUBLE]) }
    }
}

impl Behavior {
    pub(super) fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                horizontal_pod_autoscaler_behavior::SCALE_UP => read.up.read(field.value.bytes())?,
                horizontal_pod_autoscaler_behavior::SCALE_DOWN => read.down.read(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(read)
    }
}

impl Rules {
    /// Overrides these rules with those in an `HPAScalingRules` message.
    fn read(&mut self, message: &[u8]) -> Result<(), WireError> {
        let mut policies = Vec::new();
        for field in fields(message) {
            let field = field?;
            match field.number {
                hpa_scaling_rules::STABILIZATION_WINDOW_SECONDS => self.window = Some(field.value.i32()),
                hpa_scaling_rules::SELECT_POLICY => {
                    self.select = match field.value.str() {
                        "Min" => Select::Min,
                        "Disabled" => Select::Disabled,
                        _ => Select::Max,
                    }
                }
                hpa_scaling_rules::POLICIES => policies.push(policy(field.value.bytes())?),
                hpa_scaling_rules::TOLERANCE => {
                    let text = find_str(field.value.bytes(), quantity_message::STRING);
                    self.tolerance = quantity::nanos(text).map(|nanos| nanos as f64 / 1e9);
                }
                _ => {}
            }
        }
        if !policies.is_empty() {
            self.policies = policies.into();
        }
        Ok(())
    }
}

fn policy(message: &[u8]) -> Result<Policy, WireError> {
    let mut read = Policy { percent: false, value: 0, period: 0 };
    for field in fields(message) {
        let field = field?;
        match field.number {
            hpa_scaling_policy::TYPE => read.percent = field.value.str() == "Percent",
            hpa_scaling_policy::VALUE => read.value = field.value.i32(),
            hpa_scaling_policy::PERIOD_SECONDS => read.period = field.value.i32(),
            _ => {}
        }
    }
    Ok(read)
}
