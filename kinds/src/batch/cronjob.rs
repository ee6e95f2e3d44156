//! CronJob: schedule, template of its Jobs, and running Jobs.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError};
use crate::intern::{Interner, Str};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, OwnerRef, Parts, Uid};
use crate::template::raw_object::Raw;
use crate::value::condition::splice;
use crate::value::time::Time;
use crate::wire::schema::{
    cron_job as object, cron_job_spec as spec, cron_job_status as status, job, job_template_spec, object_meta,
    object_reference as reference,
};
use crate::wire::{self, Put, WireError, fields, find, map_entry, push};

/// Annotation of a Job: the time for which it was scheduled.
pub const SCHEDULED_TIMESTAMP: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The handling of a run that is due while an earlier one still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrency {
    /// Both runs are executed.
    #[default]
    Allow,
    /// The new run is skipped.
    Forbid,
    /// The old run is deleted.
    Replace,
}

/// A CronJob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronJob {
    /// Metadata.
    pub meta: Meta,
    /// The schedule.
    pub schedule: Str,
    /// The time zone of the schedule; `None`: the time zone of this process.
    pub time_zone: Option<Str>,
    /// Seconds by which a run may be late; `None`: any number.
    pub starting_deadline: Option<i64>,
    /// The handling of overlapping runs.
    pub concurrency: Concurrency,
    /// True while no Jobs are to be created.
    pub suspend: bool,
    /// Successful Jobs to keep; `None`: all.
    pub successful_limit: Option<i32>,
    /// Failed Jobs to keep; `None`: all.
    pub failed_limit: Option<i32>,
    /// Raw `spec.jobTemplate`.
    job_template: Arc<[u8]>,
    /// `status`, as last read.
    pub status: CronJobStatus,
    raw: Raw,
}

/// A Job that runs, as the status refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveJob {
    /// Name of the Job.
    pub name: Str,
    /// Uid of the Job.
    pub uid: Uid,
    /// The whole reference in its encoded form.
    raw: Arc<[u8]>,
}

/// `status` of a CronJob.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CronJobStatus {
    /// Running Jobs.
    pub active: Vec<ActiveJob>,
    /// The scheduled time of the last created Job; zero if there was none.
    pub last_schedule: Time,
    /// Time of the last success of a Job; zero if there was none.
    pub last_successful: Time,
}

impl ActiveJob {
    /// Returns a reference to a Job. Upstream: client-go, tools/reference, GetReference.
    pub fn of(job: &Meta) -> Self {
        let mut raw = Vec::new();
        raw.put_str(reference::KIND, "Job");
        raw.put_str(reference::NAMESPACE, &job.namespace);
        raw.put_str(reference::NAME, &job.name);
        raw.put_str(reference::UID, &job.uid.to_string());
        raw.put_str(reference::API_VERSION, "batch/v1");
        raw.put_str(reference::RESOURCE_VERSION, &job.version.to_string());
        Self { name: job.name.clone(), uid: job.uid.clone(), raw: raw.into() }
    }

    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let (mut name, mut uid) = ("", "");
        for field in fields(message) {
            let field = field?;
            match field.number {
                reference::NAME => name = field.value.str(),
                reference::UID => uid = field.value.str(),
                _ => {}
            }
        }
        Ok(Self { name: name.into(), uid: Uid::parse(uid), raw: message.into() })
    }
}

impl CronJobStatus {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::ACTIVE => {
                    push(&mut status.active, ActiveJob::decode(field.value.bytes())?, message)?;
                }
                status::LAST_SCHEDULE_TIME => status.last_schedule = Time::decode(field.value.bytes())?,
                status::LAST_SUCCESSFUL_TIME => status.last_successful = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(status)
    }
}

impl CronJob {
    /// Returns the object for a PUT of this status.
    pub fn status_update(&self, status: &CronJobStatus) -> Vec<u8> {
        let written_fields = [status::ACTIVE, status::LAST_SCHEDULE_TIME, status::LAST_SUCCESSFUL_TIME];
        let status = splice(self.raw.status(), &written_fields, |out| {
            status.active.iter().for_each(|job| out.put_bytes(status::ACTIVE, &job.raw));
            for (number, time) in [
                (status::LAST_SCHEDULE_TIME, status.last_schedule),
                (status::LAST_SUCCESSFUL_TIME, status.last_successful),
            ] {
                if !time.is_zero() {
                    time.put(out, number);
                }
            }
        });
        self.raw.status_update(&Vec::new(), &status)
    }

    /// Returns a `Job` message with this name and with `controller` as its only owner: labels, annotations and spec of
    /// the template, and `scheduled` (RFC 3339) as an annotation. Upstream: pkg/controller/cronjob,
    /// getJobFromTemplate2.
    pub fn job(&self, name: &str, scheduled: &str, controller: &OwnerRef) -> Vec<u8> {
        let mut message = Vec::with_capacity(self.job_template.len() + 256);
        message.put_message(job::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, &self.meta.namespace);
            let copied = wire::copy_fields(find(&self.job_template, job_template_spec::METADATA), meta, |field| {
                match field.number {
                    object_meta::LABELS => true,
                    object_meta::ANNOTATIONS => {
                        map_entry(field.value.bytes()).is_ok_and(|(key, _)| key != SCHEDULED_TIMESTAMP)
                    }
                    _ => false,
                }
            });
            // The template was decoded before, so it is well-formed.
            debug_assert!(copied.is_ok());
            meta.put_entry(object_meta::ANNOTATIONS, SCHEDULED_TIMESTAMP, scheduled);
            controller.put(meta, object_meta::OWNER_REFERENCES);
        });
        message.put_bytes(job::SPEC, find(&self.job_template, job_template_spec::SPEC));
        message
    }

    fn read_spec(&mut self, interner: &Interner, spec: &[u8]) -> Result<(), WireError> {
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::SCHEDULE => self.schedule = interner.str(field.value.str()),
                spec::TIME_ZONE => self.time_zone = Some(interner.str(field.value.str())),
                spec::STARTING_DEADLINE_SECONDS => self.starting_deadline = Some(field.value.i64()),
                spec::CONCURRENCY_POLICY => {
                    self.concurrency = match field.value.str() {
                        "Forbid" => Concurrency::Forbid,
                        "Replace" => Concurrency::Replace,
                        _ => Concurrency::Allow,
                    }
                }
                spec::SUSPEND => self.suspend = field.value.bool(),
                spec::SUCCESSFUL_JOBS_HISTORY_LIMIT => self.successful_limit = Some(field.value.i32()),
                spec::FAILED_JOBS_HISTORY_LIMIT => self.failed_limit = Some(field.value.i32()),
                spec::JOB_TEMPLATE => {
                    let template = field.value.bytes();
                    for part in fields(template) {
                        fields(part?.value.bytes()).try_for_each(|field| field.map(drop))?;
                    }
                    self.job_template = interner.blob(template);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Kind for CronJob {
    const RESOURCE: Resource =
        Resource { group: "batch", version: "v1", kind: "CronJob", plural: "cronjobs", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        // The server ignores the spec in a PUT of the status.
        let mut without_spec = Vec::with_capacity(meta.len() + status.len() + 16);
        wire::copy_fields(object, &mut without_spec, |field| field.number != object::SPEC)?;
        let interner = &context.interner;
        let mut cron_job = Self {
            meta: Meta::decode(interner, meta, |_, _| {})?,
            schedule: interner.str(""),
            time_zone: None,
            starting_deadline: None,
            concurrency: Concurrency::default(),
            suspend: false,
            successful_limit: None,
            failed_limit: None,
            job_template: interner.blob(&[]),
            status: CronJobStatus::decode(status)?,
            raw: Raw::keep(&without_spec)?,
        };
        cron_job.read_spec(interner, spec)?;
        Ok(cron_job)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Sections;

    fn cron_job() -> CronJob {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "nightly");
            meta.put_str(object_meta::NAMESPACE, "default");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_str(spec::SCHEDULE, "0 3 * * *");
            spec.put_str(spec::CONCURRENCY_POLICY, "Forbid");
            spec.put_message(spec::JOB_TEMPLATE, |template| {
                template.put_message(job_template_spec::METADATA, |meta| {
                    meta.put_entry(object_meta::LABELS, "app", "nightly");
                    meta.put_entry(object_meta::ANNOTATIONS, "note", "x");
                    meta.put_entry(object_meta::ANNOTATIONS, SCHEDULED_TIMESTAMP, "old");
                });
                template.put_message(job_template_spec::SPEC, |spec| spec.put_int(1, 4));
            });
        });
        object.put_message(object::STATUS, |status| {
            status.put_message(status::ACTIVE, |job| {
                job.put_str(reference::NAME, "nightly-1");
                job.put_str(reference::UID, "a");
            });
        });
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        CronJob::decode(&context, &object).expect("well-formed")
    }

    #[test]
    fn cron_job_is_decoded_and_its_status_encoded() {
        let cron_job = cron_job();
        assert_eq!((&*cron_job.schedule, cron_job.concurrency), ("0 3 * * *", Concurrency::Forbid));
        assert_eq!(cron_job.status.active[0].uid, Uid::parse("a"));
        let mut status = cron_job.status.clone();
        status.active.push(ActiveJob::of(&cron_job.meta));
        status.last_schedule = Time(60);
        let update = cron_job.status_update(&status);
        assert_eq!(CronJobStatus::decode(find(&update, object::STATUS)), Ok(status));
        assert!(find(&update, object::SPEC).is_empty());
    }

    #[test]
    fn created_job_has_template_scheduled_time_and_owner() {
        let owner = OwnerRef {
            api_version: "batch/v1".into(),
            kind: "CronJob".into(),
            name: "nightly".into(),
            uid: Uid::parse("u"),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let message = cron_job().job("nightly-29", "2024-01-01T03:00:00Z", &owner);
        let mut annotations = Vec::new();
        let meta = find(&message, job::METADATA);
        for field in fields(meta).flatten().filter(|field| field.number == object_meta::ANNOTATIONS) {
            annotations.push(map_entry(field.value.bytes()).expect("an entry"));
        }
        assert_eq!(annotations, [("note", "x"), (SCHEDULED_TIMESTAMP, "2024-01-01T03:00:00Z")]);
        assert_eq!(map_entry(find(meta, object_meta::LABELS)), Ok(("app", "nightly")));
        assert_eq!(find(meta, object_meta::NAME), b"nightly-29");
        assert_eq!(find(&message, job::SPEC), [8, 4]);
    }
}
