//! Termination of a pod, for its Job: index, exit codes, conditions, time.

use crate::batch::job::{COMPLETION_INDEX, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT};
use crate::intern::{Interner, Str};
use crate::value::time::Time;
use crate::wire::schema::{
    container_state, container_state_terminated, container_status, object_meta, pod_condition, pod_status,
};
use crate::wire::{WireError, fields, find, find_str, map_entry};

/// The parts of a pod that the Job controller reads in addition to its phase.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ending {
    /// Completion index, if it has a valid one.
    pub index: Option<i32>,
    /// Number of earlier pods of its index whose failures counted.
    pub failures: i32,
    /// Number of earlier pods of its index whose failures were ignored.
    pub ignored_failures: i32,
    /// Names and nonzero exit codes of terminated containers; init containers come last.
    pub exit_codes: Vec<(Str, i32)>,
    /// Types and statuses of its conditions.
    pub conditions: Vec<(Str, Str)>,
    /// Restarts of all its containers and init containers.
    pub restarts: i32,
    /// Time at which its last container or sidecar terminated, if all have. If all sidecars have terminated, but not
    /// all containers, the time of the last sidecar, as in upstream. Otherwise the time since which the pod is not
    /// ready; zero if its status has none of these times.
    pub finished: Time,
    /// Grace period of its deletion in seconds.
    pub grace: i64,
}

impl Ending {
    /// Applies an annotation.
    fn read_annotation(&mut self, key: &str, value: &str) {
        match key {
            COMPLETION_INDEX => self.index = number(value),
            INDEX_FAILURE_COUNT => self.failures = number(value).unwrap_or(0),
            INDEX_IGNORED_FAILURE_COUNT => self.ignored_failures = number(value).unwrap_or(0),
            _ => {}
        }
    }

    /// Reads annotations, the grace period and the status; `sidecars` are the names of the restartable init containers,
    /// sorted.
    pub(super) fn read(
        &mut self,
        interner: &Interner,
        meta: &[u8],
        status: &[u8],
        sidecars: &[&str],
    ) -> Result<(), WireError> {
        for field in fields(meta) {
            let field = field?;
            match field.number {
                object_meta::DELETION_GRACE_PERIOD_SECONDS => self.grace = field.value.i64(),
                object_meta::ANNOTATIONS => {
                    let (key, value) = map_entry(field.value.bytes())?;
                    self.read_annotation(key, value);
                }
                _ => {}
            }
        }
        let (mut regular, mut init, mut unready) = (Vec::new(), Vec::new(), Time::default());
        for field in fields(status) {
            let field = field?;
            match field.number {
                pod_status::CONTAINER_STATUSES => regular.push(Container::read(field.value.bytes())?),
                pod_status::INIT_CONTAINER_STATUSES => init.push(Container::read(field.value.bytes())?),
                pod_status::CONDITIONS => {
                    let message = field.value.bytes();
                    let text = |number| find_str(message, number);
                    let (kind, status) = (text(pod_condition::TYPE), text(pod_condition::STATUS));
                    if (kind, status) == ("Ready", "False") {
                        unready = Time::decode(find(message, pod_condition::LAST_TRANSITION_TIME))?;
                    }
                    self.conditions.push((interner.str(kind), interner.str(status)));
                }
                _ => {}
            }
        }
        let all = || regular.iter().chain(&init);
        self.restarts = all().map(|container| container.restarts).fold(0, i32::saturating_add);
        self.exit_codes = all()
            .filter_map(|container| Some((container.name, container.ended?.0)))
            .filter(|(_, code)| *code != 0)
            .map(|(name, code)| (interner.str(name), code))
            .collect();
        let sidecars = init.iter().filter(|container| sidecars.binary_search(&container.name).is_ok());
        let finished = latest(latest(None, regular.iter()), sidecars);
        self.finished = finished.unwrap_or(unready);
        Ok(())
    }
}

/// Parses a count or index: a non-negative whole number that fits into an `i32`. Upstream: pkg/controller/job,
/// parseInt32.
fn number(text: &str) -> Option<i32> {
    text.parse().ok().filter(|number| *number >= 0)
}

struct Container<'a> {
    name: &'a str,
    restarts: i32,
    /// Exit code and time, once it has terminated.
    ended: Option<(i32, Time)>,
}

impl<'a> Container<'a> {
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut container = Self { name: "", restarts: 0, ended: None };
        for field in fields(message) {
            let field = field?;
            match field.number {
                container_status::NAME => container.name = field.value.str(),
                container_status::RESTART_COUNT => container.restarts = field.value.i32(),
                container_status::STATE => {
                    for state in fields(field.value.bytes()) {
                        let state = state?;
                        if state.number == container_state::TERMINATED {
                            container.ended = Some(terminated(state.value.bytes())?);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(container)
    }
}

fn terminated(message: &[u8]) -> Result<(i32, Time), WireError> {
    let mut code = 0;
    let mut at = Time::default();
    for field in fields(message) {
        let field = field?;
        match field.number {
            container_state_terminated::EXIT_CODE => code = field.value.i32(),
            container_state_terminated::FINISHED_AT => at = Time::decode(field.value.bytes())?,
            _ => {}
        }
    }
    Ok((code, at))
}

/// Returns the latest termination time of these containers, not before `known`; `None` unless all have terminated.
/// Upstream: pkg/controller/job, latestFinishTime.
fn latest<'a>(known: Option<Time>, mut containers: impl Iterator<Item = &'a Container<'a>>) -> Option<Time> {
    containers.try_fold(known, |latest, container| {
        let (_, at) = container.ended.filter(|(_, at)| !at.is_zero())?;
        Some(latest.max(Some(at)))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    struct ContainerEnding {
        name: &'static str,
        restarts: i64,
        ended: Option<(i64, i64)>,
    }

    fn put(status: &mut Vec<u8>, number: u32, given: &ContainerEnding) {
        status.put_message(number, |message| {
            message.put_str(container_status::NAME, given.name);
            message.put_int(container_status::RESTART_COUNT, given.restarts);
            message.put_message(container_status::STATE, |state| {
                if let Some((code, at)) = given.ended {
                    state.put_message(container_state::TERMINATED, |ended| {
                        ended.put_int(container_state_terminated::EXIT_CODE, code);
                        Time(at).put(ended, container_state_terminated::FINISHED_AT);
                    });
                }
            });
        });
    }

    fn read(regular: &[ContainerEnding], init: &[ContainerEnding], unready: Option<i64>) -> Ending {
        let mut status = Vec::new();
        regular.iter().for_each(|given| put(&mut status, pod_status::CONTAINER_STATUSES, given));
        init.iter().for_each(|given| put(&mut status, pod_status::INIT_CONTAINER_STATUSES, given));
        if let Some(at) = unready {
            status.put_message(pod_status::CONDITIONS, |condition| {
                condition.put_str(pod_condition::TYPE, "Ready");
                condition.put_str(pod_condition::STATUS, "False");
                Time(at).put(condition, pod_condition::LAST_TRANSITION_TIME);
            });
        }
        let mut ending = Ending::default();
        ending.read(&Interner::default(), &[], &status, &["sidecar"]).expect("well-formed");
        ending
    }

    #[test]
    fn finish_time_is_the_end_of_the_last_container_or_of_readiness() {
        let main = |ended| ContainerEnding { name: "main", restarts: 1, ended };
        let side = |ended| ContainerEnding { name: "sidecar", restarts: 2, ended };
        for (regular, init, unready, expected) in [
            (vec![main(Some((0, 10))), main(Some((1, 12)))], vec![], Some(5), 12),
            (vec![main(Some((0, 10)))], vec![side(Some((0, 20)))], None, 20),
            (vec![main(Some((0, 10)))], vec![side(None)], Some(7), 7),
            (vec![main(None)], vec![], Some(7), 7),
            (vec![main(None)], vec![side(Some((0, 9)))], Some(7), 9),
            (vec![], vec![], None, 0),
        ] {
            assert_eq!(read(&regular, &init, unready).finished, Time(expected));
        }
    }

    #[test]
    fn exit_codes_and_restarts_are_collected() {
        let regular = [ContainerEnding { name: "main", restarts: 2, ended: Some((3, 1)) }];
        let init = [
            ContainerEnding { name: "init", restarts: 1, ended: Some((9, 1)) },
            ContainerEnding { name: "fine", restarts: 0, ended: Some((0, 1)) },
        ];
        let ending = read(&regular, &init, None);
        assert_eq!(ending.restarts, 3);
        assert_eq!(ending.exit_codes, [("main".into(), 3), ("init".into(), 9)]);
    }

    #[test]
    fn annotations_must_be_plain_numbers() {
        for (text, index) in [("3", Some(3)), ("-1", None), ("x", None), ("", None), ("9999999999", None)] {
            let mut ending = Ending::default();
            ending.read_annotation(COMPLETION_INDEX, text);
            ending.read_annotation(INDEX_FAILURE_COUNT, text);
            assert_eq!((ending.index, ending.failures), (index, index.unwrap_or(0)), "{text:?}");
        }
    }
}
