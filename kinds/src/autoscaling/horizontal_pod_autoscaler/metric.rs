//! Metrics of an autoscaler: sources, targets and measured values.

use super::ObjectRef;
use crate::intern::{Interner, Str};
use crate::value::quantity;
use crate::value::selector::{Selector, format_like_go};
use crate::wire::schema::{
    container_resource_metric_source, metric_identifier, metric_spec, metric_target, metric_value_status,
    object_metric_source, object_metric_status, quantity as quantity_message, resource_metric_source,
};
use crate::wire::{Put, WireError, fields, find, find_str};

/// The field number of the target in a spec, and of the measured value in a status: the same for all types of metrics.
const VALUE: u32 = resource_metric_source::TARGET;
/// The field number of a metric's identifier: the same for all types of metrics except those of objects.
const METRIC: u32 = 1;

/// A metric and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// The metric.
    pub source: Source,
    /// The target.
    pub target: Target,
}

/// A metric and its measured value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricStatus {
    /// The metric.
    pub source: Source,
    /// The measured value.
    pub current: Current,
}

/// The source of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A resource that pods use.
    Resource {
        /// The resource.
        name: Str,
    },
    /// A resource that one container of each pod uses.
    ContainerResource {
        /// The resource.
        name: Str,
        /// The container.
        container: Str,
    },
    /// A metric of the pods.
    Pods(MetricId),
    /// A metric of one object.
    Object {
        /// The object.
        described: ObjectRef,
        /// The metric.
        metric: MetricId,
    },
    /// A metric that belongs to no object of the cluster.
    External(MetricId),
    /// An unknown type; empty in the status of a metric that could not be read.
    Unknown(Str),
}

/// Name and selector of a metric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricId {
    /// Name of the metric.
    pub name: Str,
    /// Selector among the metrics with that name; [`Selector::Nothing`] if it is not given.
    pub selector: Selector,
    /// The selector as the server sent it.
    raw: Option<Box<[u8]>>,
}

impl MetricId {
    /// Returns the selector as text, formatted as in upstream's messages.
    pub fn selector_text(&self) -> String {
        self.raw.as_ref().map_or_else(|| "nil".to_owned(), |raw| format_like_go(raw))
    }

    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                metric_identifier::NAME => read.name = interner.str(field.value.str()),
                metric_identifier::SELECTOR => {
                    read.selector = Selector::decode(interner, field.value.bytes())?;
                    read.raw = Some(field.value.bytes().into());
                }
                _ => {}
            }
        }
        Ok(read)
    }

    fn put(&self, out: &mut Vec<u8>, number: u32) {
        out.put_message(number, |message| {
            message.put_str(metric_identifier::NAME, &self.name);
            if let Some(raw) = &self.raw {
                message.put_bytes(metric_identifier::SELECTOR, raw);
            }
        });
    }
}

/// The target of a metric; amounts in thousandths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    /// The target's type: `Value`, `AverageValue` or `Utilization`.
    pub kind: Str,
    /// Target of the total value.
    pub value: Option<i64>,
    /// Target of the value per pod.
    pub average_value: Option<i64>,
    /// Target utilization, in percent of the pods' requests.
    pub average_utilization: Option<i32>,
}

/// The measured value of a metric; amounts in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Current {
    /// The total value.
    pub value: Option<i64>,
    /// The value per pod.
    pub average_value: Option<i64>,
    /// The utilization, in percent of the pods' requests.
    pub average_utilization: Option<i32>,
}

/// The types of metrics, each with the field number of its message in a `MetricSpec` and `MetricStatus`.
const TYPES: [(&str, u32); 5] = [
    ("Object", metric_spec::OBJECT),
    ("Pods", metric_spec::PODS),
    ("Resource", metric_spec::RESOURCE),
    ("ContainerResource", metric_spec::CONTAINER_RESOURCE),
    ("External", metric_spec::EXTERNAL),
];

/// Returns the type of a `MetricSpec` or `MetricStatus`, and the message for that type.
fn type_and_message(message: &[u8]) -> (&str, &[u8]) {
    let kind = find_str(message, metric_spec::TYPE);
    let known = TYPES.iter().find(|(name, _)| *name == kind);
    (kind, known.map_or(&[], |(_, number)| find(message, *number)))
}

impl Source {
    /// Returns the metric's type, as in `type:`.
    pub fn kind(&self) -> &str {
        match self {
            Self::Resource { .. } => "Resource",
            Self::ContainerResource { .. } => "ContainerResource",
            Self::Pods(_) => "Pods",
            Self::Object { .. } => "Object",
            Self::External(_) => "External",
            Self::Unknown(kind) => kind,
        }
    }

    /// Decodes the source from the message of its type. `described_field` and `metric_field` are field numbers in the
    /// message of an object metric, which differ between spec and status.
    fn decode(
        interner: &Interner,
        (kind, message): (&str, &[u8]),
        (described_field, metric_field): (u32, u32),
    ) -> Result<Self, WireError> {
        let text = |number| interner.str(find_str(message, number));
        Ok(match kind {
            "Resource" => Self::Resource { name: text(resource_metric_source::NAME) },
            "ContainerResource" => Self::ContainerResource {
                name: text(container_resource_metric_source::NAME),
                container: text(container_resource_metric_source::CONTAINER),
            },
            "Pods" => Self::Pods(MetricId::decode(interner, find(message, METRIC))?),
            "Object" => Self::Object {
                described: ObjectRef::decode(interner, find(message, described_field))?,
                metric: MetricId::decode(interner, find(message, metric_field))?,
            },
            "External" => Self::External(MetricId::decode(interner, find(message, METRIC))?),
            _ => Self::Unknown(interner.str(kind)),
        })
    }

    /// Returns true if the resource is formatted in powers of 1024, as memory is.
    fn is_binary(&self) -> bool {
        let (Self::Resource { name } | Self::ContainerResource { name, .. }) = self else { return false };
        &**name == "memory"
    }
}

/// Returns a quantity in thousandths.
fn amount(message: &[u8]) -> Option<i64> {
    quantity::thousandths(find_str(message, quantity_message::STRING))
}

impl Metric {
    pub(super) fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let (kind, message) = type_and_message(message);
        let mut target = Target::default();
        for field in fields(find(message, VALUE)) {
            let field = field?;
            match field.number {
                metric_target::TYPE => target.kind = interner.str(field.value.str()),
                metric_target::VALUE => target.value = amount(field.value.bytes()),
                metric_target::AVERAGE_VALUE => target.average_value = amount(field.value.bytes()),
                metric_target::AVERAGE_UTILIZATION => target.average_utilization = Some(field.value.i32()),
                _ => {}
            }
        }
        Ok(Self {
            source: Source::decode(
                interner,
                (kind, message),
                (object_metric_source::DESCRIBED_OBJECT, object_metric_source::METRIC),
            )?,
            target,
        })
    }
}

impl MetricStatus {
    /// Returns the status of a metric that could not be read.
    pub fn unknown() -> Self {
        Self { source: Source::Unknown("".into()), current: Current::default() }
    }

    pub(super) fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let (kind, message) = type_and_message(message);
        let mut current = Current::default();
        for field in fields(find(message, VALUE)) {
            let field = field?;
            match field.number {
                metric_value_status::VALUE => current.value = amount(field.value.bytes()),
                metric_value_status::AVERAGE_VALUE => current.average_value = amount(field.value.bytes()),
                metric_value_status::AVERAGE_UTILIZATION => current.average_utilization = Some(field.value.i32()),
                _ => {}
            }
        }
        let source = Source::decode(
            interner,
            (kind, message),
            (object_metric_status::DESCRIBED_OBJECT, object_metric_status::METRIC),
        )?;
        Ok(Self { source, current })
    }

    pub(super) fn put(&self, out: &mut Vec<u8>, number: u32) {
        let kind = self.source.kind();
        out.put_message(number, |status| {
            status.put_str(metric_spec::TYPE, kind);
            let Some((_, details)) = TYPES.iter().find(|(name, _)| *name == kind) else { return };
            status.put_message(*details, |message| self.put_details(message));
        });
    }

    fn put_details(&self, message: &mut Vec<u8>) {
        match &self.source {
            Source::Resource { name } => message.put_str(resource_metric_source::NAME, name),
            Source::ContainerResource { name, container } => {
                message.put_str(container_resource_metric_source::NAME, name);
                message.put_str(container_resource_metric_source::CONTAINER, container);
            }
            Source::Pods(metric) | Source::External(metric) => metric.put(message, METRIC),
            Source::Object { described, metric } => {
                metric.put(message, object_metric_status::METRIC);
                described.put(message, object_metric_status::DESCRIBED_OBJECT);
            }
            Source::Unknown(_) => {}
        }
        let binary = self.source.is_binary();
        message.put_message(VALUE, |current| {
            for (number, amount) in [
                (metric_value_status::VALUE, self.current.value),
                (metric_value_status::AVERAGE_VALUE, self.current.average_value),
            ] {
                if let Some(amount) = amount {
                    current.put_message(number, |message| {
                        message.put_str(quantity_message::STRING, &quantity::format_thousandths(amount, binary));
                    });
                }
            }
            if let Some(percent) = self.current.average_utilization {
                current.put_int(metric_value_status::AVERAGE_UTILIZATION, percent.into());
            }
        });
    }
}
