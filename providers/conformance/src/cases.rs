//! The list of cases, once: from it come the suite's table and the vendors' tests.

use std::sync::Arc;

use futures::future::BoxFuture;
use providers::CloudProvider;

use crate::context::{Context, Stop};
use crate::fixture::Fixture;
use crate::report::{CaseResult, Outcome};
use crate::{balancers_change, balancers_end, balancers_make, instances, routes};

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
            instances::describe_takes_no_instances_at_all,
            instances::describe_answers_in_the_order_asked,
            instances::describe_tells_all_of_a_running_instance,
            instances::describe_finds_the_same_instance_by_name_and_by_id,
            instances::describe_tells_a_stopped_instance_from_a_gone_one,
            instances::describe_calls_what_was_never_there_gone,
            instances::describe_does_not_call_another_clouds_instance_gone,
            instances::describe_keeps_a_bad_id_from_spoiling_500,
            balancers_make::features_agree_with_each_other,
            balancers_make::what_was_never_made_is_absent_and_gone,
            balancers_make::ensure_makes_what_observe_then_shows,
            balancers_make::ensure_twice_is_ensure_once,
            balancers_make::ensure_at_the_same_time_makes_one,
            balancers_make::ensure_after_a_lost_answer_makes_no_second,
            balancers_make::ensure_recovers_from_a_failure_at_any_change,
            balancers_make::an_invalid_annotation_is_named_and_nothing_made,
            balancers_make::what_the_features_lack_is_invalid,
            balancers_make::protocols_may_be_mixed,
            balancers_make::both_families_get_an_address,
            balancers_change::ports_are_changed,
            balancers_change::source_ranges_are_changed,
            balancers_change::a_variant_is_changed_into_another,
            balancers_change::targets_shrink_and_grow,
            balancers_change::targets_of_an_absent_balancer_are_not_found,
            balancers_change::endpoints_are_targets,
            balancers_end::delete_twice_is_delete_once,
            balancers_end::delete_that_takes_time_is_in_progress,
            balancers_end::delete_recovers_from_a_failure_at_any_change,
            balancers_end::a_half_made_balancer_is_listed_and_deleted,
            balancers_end::a_namesake_is_another_balancer,
            balancers_end::what_is_owned_is_listed_until_it_is_gone,
            balancers_end::what_is_left_is_collected_and_a_namesake_stays,
            routes::a_route_is_set_listed_and_removed,
            routes::a_route_is_set_anew_to_another_instance,
            routes::one_bad_change_stops_no_other,
            routes::a_route_that_changed_is_not_removed,
            routes::a_foreign_route_is_left_alone,
            routes::a_route_outlives_its_instance_in_the_list,
        }
    };
}

macro_rules! table {
    ($argument:expr, $($module:ident::$case:ident,)*) => {
        /// All cases, in the order in which they build on each other.
        pub(crate) const CASES: &[Case] = &[$(Case {
            name: stringify!($case),
            run: |context| Box::pin($module::$case(context)),
        }),*];
    };
}

__cases!(table, ());

/// The names of all cases, in the order in which they run.
pub fn case_names() -> impl Iterator<Item = &'static str> {
    CASES.iter().map(|case| case.name)
}

/// Runs one case and cleans up after it. What can't be cleaned up fails it, since it would be left in a user's cloud.
pub(crate) async fn run_one(case: &Case, provider: &Arc<dyn CloudProvider>, fixture: &dyn Fixture) -> CaseResult {
    let context = Context::new(provider, fixture);
    let ran = (case.run)(&context).await;
    let cleaned = context.clean_up().await;
    let outcome = match (ran, cleaned) {
        (Err(Stop::Fail(message)), _) | (Ok(()), Err(Stop::Fail(message))) => Outcome::Failed(message),
        (Err(Stop::Skip(_)), Err(Stop::Fail(message))) => Outcome::Failed(message),
        (Err(Stop::Skip(why)), _) => Outcome::Skipped(why),
        (Ok(()), _) => Outcome::Passed,
    };
    CaseResult { name: case.name, outcome }
}
