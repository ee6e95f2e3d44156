//! The list of cases, from which the suite's table and the vendors' tests are generated.

use std::sync::Arc;

use futures::future::BoxFuture;
use providers::CloudProvider;

use crate::context::{Context, Stop};
use crate::fixture::Fixture;
use crate::report::{CaseResult, Outcome};
use crate::{
    credentials, incomplete_reads, instances, load_balancer_changes, load_balancer_creation, load_balancer_deletion,
    routes,
};

type Run = for<'a> fn(&'a Context<'_>) -> BoxFuture<'a, Result<(), Stop>>;

pub(crate) struct Case {
    pub name: &'static str,
    run: Run,
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($callback:path, $argument:expr) => {
        $callback! {
            $argument,
            instances::instance_features_are_consistent,
            instances::describe_accepts_an_empty_request,
            instances::describe_returns_states_in_the_requested_order,
            instances::describe_returns_id_and_addresses_of_a_running_instance,
            instances::describe_finds_the_same_instance_by_name_and_id,
            instances::describe_distinguishes_stopped_from_deleted_instances,
            instances::describe_reports_unknown_instances_as_gone,
            instances::describe_does_not_report_another_clouds_instance_as_gone,
            instances::describe_isolates_an_invalid_id_in_a_batch_of_500,
            instances::describe_finds_an_instance_by_annotations,
            instances::labels_and_taints_follow_the_instance,
            load_balancer_creation::features_are_consistent,
            load_balancer_creation::unknown_load_balancer_is_absent_and_gone,
            load_balancer_creation::ensure_creates_the_load_balancer_that_observe_returns,
            load_balancer_creation::ensure_is_idempotent,
            load_balancer_creation::concurrent_ensures_create_one_load_balancer,
            load_balancer_creation::lost_response_creates_no_second_load_balancer,
            load_balancer_creation::ensure_recovers_from_a_failure_at_any_change,
            load_balancer_creation::invalid_annotation_is_reported_and_nothing_created,
            load_balancer_creation::unsupported_features_are_invalid,
            load_balancer_creation::written_annotations_have_the_prefix,
            load_balancer_creation::protocols_can_be_mixed,
            load_balancer_creation::dual_stack_gets_addresses_of_both_families,
            load_balancer_changes::ports_are_changed,
            load_balancer_changes::source_ranges_are_changed,
            load_balancer_changes::variant_is_changed_into_another,
            load_balancer_changes::targets_shrink_and_grow,
            load_balancer_changes::targets_of_an_absent_load_balancer_are_not_found,
            load_balancer_changes::endpoints_are_targets,
            load_balancer_changes::targets_follow_an_invalid_service,
            load_balancer_changes::firewall_follows_targets,
            load_balancer_deletion::delete_is_idempotent,
            load_balancer_deletion::delete_that_takes_time_is_in_progress,
            load_balancer_deletion::delete_recovers_from_a_failure_at_any_change,
            load_balancer_deletion::partial_load_balancer_is_listed_and_deleted,
            load_balancer_deletion::service_with_another_uid_has_another_load_balancer,
            load_balancer_deletion::owned_resources_are_listed_until_deleted,
            load_balancer_deletion::leaked_resources_are_collected_and_those_of_a_successor_kept,
            incomplete_reads::failed_read_does_not_report_an_instance_as_gone,
            incomplete_reads::failed_read_does_not_complete_a_deletion,
            incomplete_reads::lists_are_read_to_the_last_page,
            incomplete_reads::load_balancer_that_is_not_visible_yet_is_created_once,
            incomplete_reads::foreign_load_balancer_of_the_same_name_is_kept,
            credentials::changed_secret_replaces_the_credentials,
            routes::route_is_set_listed_and_removed,
            routes::route_is_replaced_for_another_instance,
            routes::invalid_route_change_does_not_stop_the_others,
            routes::changed_route_is_not_removed,
            routes::foreign_route_is_not_changed,
            routes::route_of_a_deleted_instance_can_be_replaced,
        }
    };
}

macro_rules! table {
    ($argument:expr, $($module:ident::$case:ident,)*) => {
        /// All cases, the basic ones first.
        pub(crate) const CASES: &[Case] = &[$(Case {
            name: stringify!($case),
            run: |context| Box::pin($module::$case(context)),
        }),*];
    };
}

__cases!(table, ());

/// Returns the names of all cases, in the order in which they run.
pub fn case_names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.name)
}

/// Runs one case and cleans up after it. A failed cleanup fails the case, because resources would be leaked in the
/// user's cloud.
pub(crate) async fn run_one(case: &Case, provider: &Arc<dyn CloudProvider>, fixture: &dyn Fixture) -> CaseResult {
    let context = Context::new(provider, fixture);
    let result = (case.run)(&context).await;
    let cleanup = context.clean_up().await;
    let outcome = match (result, cleanup) {
        (Err(Stop::Fail(message)), _) | (Ok(()), Err(Stop::Fail(message))) => Outcome::Failed(message),
        (Err(Stop::Skip(_)), Err(Stop::Fail(message))) => Outcome::Failed(message),
        (Err(Stop::Skip(reason)), _) => Outcome::Skipped(reason),
        (Ok(()), _) => Outcome::Passed,
    };
    CaseResult { name: case.name, outcome }
}
