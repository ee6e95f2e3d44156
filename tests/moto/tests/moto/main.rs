//! ccm over AWS: moto behind a proxy that makes it fail, the real SDK, and a real API server.
//!
//! Each test ends with the check that every registered target is reachable and was so without a gap. A test whose targets
//! are unreachable on purpose says why: `ignore_reachability`.
//!
//! `cargo test -p moto --test moto` runs them.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

mod balancers;
mod bed;
mod classic;
mod conformance;
mod forwards;
mod gates;
mod histories;
mod leaks;
mod neighbours;
mod nodes;
mod reach;
mod routes;
mod sharing;
mod tagging;
mod time;

use std::sync::Arc;

use cluster_tests::{Case, cases, run};

fn main() -> std::process::ExitCode {
    let usual = cases![Usual:
        balancers::{
            a_call_fails_last_and_another_process_ends_it, an_answer_is_lost_last_and_another_process_ends_it,
            what_cannot_be_made_is_gone_with_its_service, calls_do_not_grow_with_nodes_and_services,
            a_balancer_of_cloud_provider_aws_is_taken_over, changes_by_hand_are_undone_and_told, one_bad_target_costs_the_others_nothing,
            a_service_gets_a_balancer_and_loses_it, what_is_not_allowed_is_told_with_what_to_do,
        },
        classic::{
            classic_load_balancer_follows_nodes_and_ends_with_its_service,
            classic_load_balancer_of_another_cluster_is_left_alone,
            classic_load_balancer_of_a_deleted_service_is_a_leak,
            service_moves_to_a_network_load_balancer_without_a_gap,
        },
        forwards::{
            parts_come_and_go_though_a_call_is_the_last, a_part_of_the_traffic_goes_to_another_service,
            pods_of_another_service_get_their_part,
        },
        gates::{pods_wait_until_their_balancer_finds_them_healthy},
        histories::{a_sample_of_histories_leaves_nothing},
        leaks::{what_services_left_is_told_and_deleted},
        neighbours::{
            stack_of_the_controller_survives_the_cleanup_of_its_service,
            rules_of_nodes_carry_nothing_that_the_controller_revokes, load_balancer_of_the_same_name_stays_with_its_service,
            firewall_follows_targets, targets_follow_while_another_change_is_refused, published_policy_is_enough,
            untagged_group_of_nodes_costs_a_warning_only,
        },
        conformance::{the_suite_passes, in_aws_the_machine_tells_the_rest},
        nodes::{
            nodes_get_what_their_machines_have, one_bad_id_costs_no_call_for_each, whatever_breaks_nodes_are_initialised,
            a_machine_that_is_not_shown_yet_is_waited_for, machines_stop_start_and_go, three_hundred_nodes,
        },
        reach::{every_target_is_reached_without_a_gap, target_behind_a_closed_group_is_unhealthy},
        routes::{routes_come_and_go, every_table_gets_its_routes, whatever_breaks_routes_are_made},
        sharing::{only_what_a_cluster_put_in_does_it_take_out, the_record_is_a_config_map},
        tagging::{machines_carry_tags_while_they_have_nodes},
        time::{
            load_balancer_is_created_once_when_it_is_visible_late, another_process_finishes_what_is_visible_late,
            deletion_waits_for_tags_that_are_visible_late, named_load_balancer_is_deleted_when_its_tags_are_visible_late,
            failed_load_balancer_is_created_again, security_groups_are_deleted_after_network_interfaces,
            limit_of_the_account_is_reported_and_costs_nothing_else, full_target_group_follows_its_pods,
            every_page_is_read,
        },
    ];
    let long = cases![Ignored:
        balancers::{whatever_call_is_the_last_another_process_ends_it},
        forwards::{parts_come_and_go_whatever_call_is_the_last},
        histories::{a_thousand_histories_leave_nothing},
    ];
    run(usual.into_iter().chain(long).map(checked).collect())
}

/// A test that fails if load balancers do not reach their targets.
fn checked(mut case: Case) -> Case {
    let test = case.run.clone();
    case.run = Arc::new(move |space| Box::pin(moto::checked(test(space))));
    case
}
