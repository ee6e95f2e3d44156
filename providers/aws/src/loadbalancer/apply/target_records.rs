//! Records for target groups in which other clusters register targets, too: only targets on record are deregistered.
//!
//! The record is kept in the cluster. It is written before targets are registered, and again after other targets were
//! deregistered. Therefore, after a crash between two calls, no target of this cluster counts as another cluster's.
//! Upstream: AWS Load Balancer Controller, multiClusterManagerImpl.

use std::collections::{BTreeMap, BTreeSet};

use providers::{CloudError, LoadBalancerId, Records};

use crate::loadbalancer::types::Target;

/// The prefix of the name of the record of a target group that this provider made; the name of the target group
/// follows.
const NAME: &str = "aws-lbc-targets-";
/// The prefix of the name of the record of a user's target group; the Service's name and the end of the target group's
/// ARN follow. Several Services can register targets in one target group of a user.
const USER_NAME: &str = "aws-targets-";
/// The entry with the targets.
const TARGETS: &str = "targets";

fn text(targets: &BTreeSet<Target>) -> String {
    let texts: Vec<String> = targets.iter().map(|target| format!("{}:{}", target.id, target.port)).collect();
    texts.join(",")
}

/// Returns the name of the record for a target group that this provider made.
pub(crate) fn name(group: &str) -> String {
    format!("{NAME}{group}")
}

/// Returns the name of a Service's record for a target group that a user made.
///
/// The name of such a group may have capital letters, which names of records cannot have; the end of its ARN has none.
pub(crate) fn user_record_name(id: &LoadBalancerId, arn: &str) -> String {
    let end = arn.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    format!("{USER_NAME}{}-{end}", id.name)
}

/// Parses the targets of a record. Entries that cannot be parsed are skipped.
fn targets(text: &str) -> BTreeSet<Target> {
    let target = |text: &str| {
        let (id, port) = text.rsplit_once(':')?;
        Some(Target { id: id.to_owned(), port: port.parse().ok()? })
    };
    text.split(',').filter_map(|text| target(text.trim())).collect()
}

fn of_record(record: &BTreeMap<String, String>) -> BTreeSet<Target> {
    record.get(TARGETS).map(|text| targets(text)).unwrap_or_default()
}

/// Reads a record of this cluster's targets in a target group.
pub(crate) async fn read(
    records: &dyn Records,
    id: &LoadBalancerId,
    name: &str,
) -> Result<Option<BTreeSet<Target>>, CloudError> {
    let record = records.read(id, name).await?;
    Ok(record.map(|record| of_record(&record)))
}

/// Reads a Service's record of its targets in a target group that a user made. A record of another Service, such as a
/// copy from another cluster, does not count.
pub(crate) async fn read_of_user_group(
    records: &dyn Records,
    id: &LoadBalancerId,
    arn: &str,
) -> Result<Option<BTreeSet<Target>>, CloudError> {
    Ok(records.read_own(id, &user_record_name(id, arn)).await?.map(|record| of_record(&record)))
}

/// Records the targets that this cluster has in a target group, or is about to register there.
pub(crate) async fn write(
    records: &dyn Records,
    id: &LoadBalancerId,
    name: &str,
    targets: &BTreeSet<Target>,
) -> Result<(), CloudError> {
    let record = BTreeMap::from([(TARGETS.to_owned(), text(targets))]);
    records.write(id, name, &record).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_as_upstream_reads_them() {
        let all: BTreeSet<Target> = [("10.0.0.1", 8080), ("fd00::1", 443), ("i-1", 30_080)]
            .map(|(id, port)| Target { id: id.into(), port })
            .into();
        assert_eq!(text(&all), "10.0.0.1:8080,fd00::1:443,i-1:30080");
        assert_eq!(targets(&text(&all)), all);
        assert_eq!(targets(""), BTreeSet::new());
        assert_eq!(targets("i-1:x, i-2:80"), [Target { id: "i-2".into(), port: 80 }].into());
    }
}
