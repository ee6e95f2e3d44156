//! ccm on AWS: moto behind a proxy that injects faults, the real SDK, and a real API server.
//!
//! Each test ends with the check that every registered target is reachable and was never cut off. A test with targets
//! that are intentionally unreachable gives the reason: `ignore_reachability`. So does a test of accesses that the policy
//! denies: `expect_denials`.
//!
//! `cargo test -p moto --test moto` runs them.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

mod alb;
mod balancers;
mod bed;
mod certificates;
mod claims;
mod classic;
mod classic_groups;
mod conformance;
mod crashes;
mod creations;
mod eks;
mod endpoint_services;
mod following;
mod forwards;
mod gates;
mod groups;
mod histories;
mod leaks;
mod neighbours;
mod nodes;
mod pods;
mod races;
mod reach;
mod refusals;
mod routes;
mod sharing;
mod tagging;
mod time;
mod upstream;
mod user_balancers;
mod user_groups;

use std::sync::Arc;

use cluster_tests::{Case, cases, run};

// Intentionally longer than 60 lines: the list of all tests.
fn main() -> std::process::ExitCode {
    let usual = cases![Usual:
        alb::{application_load_balancer_is_the_target_of_a_service},
        balancers::{
            another_process_finishes_after_a_failed_call, another_process_finishes_after_a_lost_response,
            failed_creation_leaves_nothing_when_its_service_is_deleted, calls_do_not_grow_with_nodes_and_services,
            load_balancer_of_cloud_provider_aws_is_adopted, changes_by_other_clients_are_reverted_and_reported, refused_target_does_not_affect_the_others,
            service_gets_a_load_balancer_until_it_is_deleted, missing_permission_is_reported_with_the_fix,
        },
        certificates::{
            listener_has_the_certificate_of_its_host_name, certificate_without_consent_is_refused_with_the_fix,
        },
        claims::{
            target_stays_while_another_service_claims_it,
            target_stays_after_a_restart_while_another_service_claims_it, forged_record_has_no_effect_without_consent,
            targets_are_deregistered_although_the_consent_was_withdrawn, record_of_another_cluster_does_not_count,
        },
        classic::{
            classic_load_balancer_follows_nodes_and_is_deleted_with_its_service,
            refused_instance_of_a_classic_load_balancer_is_reported_and_registered_later,
            classic_load_balancer_follows_nodes_while_its_service_fails,
            classic_load_balancers_are_listed_while_another_is_deleted,
            classic_load_balancer_is_kept_when_it_is_visible_late,
            classic_load_balancer_is_deleted_when_it_is_visible_late,
            classic_load_balancer_of_another_cluster_is_left_alone,
            classic_load_balancer_of_a_deleted_service_is_a_leak,
            service_moves_to_a_network_load_balancer_without_a_gap,
            cancelled_move_keeps_the_address_until_the_network_load_balancer_serves,
            classic_load_balancer_follows_nodes_until_the_target_group_of_a_user_serves,
        },
        classic_groups::{
            rules_for_the_users_security_group_are_revoked_with_the_last_load_balancer,
            nodes_are_opened_to_the_security_group_that_cloud_provider_aws_chooses,
            cancelled_move_keeps_the_load_balancer_with_the_users_security_group,
        },
        eks::{installation_on_eks_serves_only_its_class},
        endpoint_services::{
            endpoint_service_follows_its_service, endpoint_service_survives_crashes,
            deletion_waits_for_consumers_of_an_endpoint_service,
        },
        following::{
            targets_follow_an_invalid_request_after_a_restart, targets_of_another_service_follow_an_invalid_request,
            targets_follow_while_a_change_of_their_kind_is_refused, targets_follow_while_their_load_balancer_is_replaced,
            targets_follow_while_their_service_moves_to_a_target_group_of_a_user_and_back,
            elastic_addresses_fit_the_scheme_of_the_existing_load_balancer,
        },
        forwards::{
            weighted_groups_change_despite_crashes, part_of_the_traffic_is_sent_to_another_service,
            part_of_the_traffic_is_sent_to_pods_of_another_service,
        },
        groups::{
            services_of_a_namespace_share_a_load_balancer_until_the_last_is_deleted,
            group_of_several_namespaces_needs_the_operators_consent,
            service_moves_to_the_load_balancer_of_a_group_and_back, crashes_leave_nothing_of_a_group,
            load_balancer_of_a_group_stays_while_a_new_listener_is_invisible,
            load_balancer_of_a_group_stays_while_a_listener_of_an_earlier_process_is_invisible,
            leaked_members_of_a_group_are_deleted_with_its_load_balancer,
            load_balancer_of_a_group_is_deleted_when_it_is_visible_late,
        },
        gates::{pods_become_ready_when_their_targets_are_healthy},
        histories::{sample_of_histories_leaks_nothing},
        leaks::{leaked_resources_are_reported_and_deleted, deletion_of_a_leak_keeps_the_listing},
        neighbours::{
            stack_of_the_controller_survives_the_cleanup_of_its_service,
            node_rules_have_no_tags_or_descriptions_of_the_aws_load_balancer_controller,
            security_group_of_cloud_provider_aws_is_deleted_with_its_load_balancer,
            load_balancer_of_the_same_name_stays_with_its_service,
            firewall_follows_targets, targets_follow_while_another_change_is_refused, published_policy_is_enough,
            untagged_security_group_of_nodes_is_only_a_warning,
        },
        creations::{creations_share_their_reads, change_during_a_creation_is_reverted_by_the_next_check},
        crashes::{
            deletion_finds_what_an_earlier_process_created_last, deletion_finds_what_was_created_without_a_response,
            creation_of_an_earlier_process_gets_the_current_settings,
            deletion_finds_what_a_changed_service_no_longer_needs,
            resource_of_an_earlier_process_is_deleted_once_it_is_visible,
            deletion_finds_what_was_created_without_a_response_before_a_change,
            shared_group_stays_while_a_load_balancer_of_an_earlier_process_is_invisible,
        },
        conformance::{provider_passes_the_conformance_suite, configuration_is_completed_from_instance_metadata},
        nodes::{
            nodes_get_the_data_of_their_instances, bad_ids_do_not_split_the_batch_into_single_calls, nodes_are_initialized_despite_faults,
            node_waits_for_an_instance_that_is_not_visible_yet, nodes_follow_stopped_started_and_terminated_instances, three_hundred_nodes_are_initialized,
        },
        pods::{
            pods_with_custom_networking_are_reached, pods_behind_prefixes_of_addresses_are_reached,
            pod_with_several_security_groups_is_reached_by_the_tagged_one,
            later_pod_with_the_same_address_is_reached, pods_on_fargate_are_reached,
            pod_is_reached_soon_after_its_interface_is_visible,
        },
        races::{
            shared_group_is_deleted_when_deletions_overlap, shared_rule_is_revoked_when_deletions_overlap,
            load_balancer_of_a_group_is_deleted_when_deletions_overlap,
        },
        reach::{
            every_target_is_reached_without_a_gap, targets_without_the_shared_group_are_reached_without_a_gap,
            new_nodes_are_reached_while_their_service_is_invalid_or_refused,
            new_nodes_are_reached_until_the_load_balancer_of_the_user_serves,
            new_nodes_are_reached_by_both_load_balancers_during_a_replacement,
            refused_opening_is_repeated_while_the_service_is_invalid,
            rules_in_groups_without_the_tag_are_revoked, rules_of_a_load_balancer_of_the_same_name_stay,
            rules_of_a_chosen_name_are_revoked_next_to_a_copy_of_the_cluster,
            rule_of_two_load_balancers_stays_while_one_needs_it, pod_with_its_own_security_group_is_reached,
            target_behind_a_closed_group_is_unhealthy, classic_load_balancer_reaches_a_node_with_another_group,
        },
        refusals::{
            refused_update_of_targets_is_retried, security_groups_of_nodes_are_read_again_after_one_was_deleted,
            full_security_group_of_nodes_is_reported_and_opened_once_it_has_room,
            refused_opening_for_a_new_node_is_reported_by_the_next_ensure,
            targets_are_registered_while_their_security_groups_cannot_be_read,
            refused_opening_is_repeated_while_another_change_is_refused,
            nodes_of_closed_groups_are_registered_while_another_change_is_refused,
            node_is_registered_although_the_rules_for_it_cannot_be_changed,
            refused_target_is_reported_and_registered_later,
            old_state_serves_while_a_quota_has_no_room_for_a_change,
            refused_targets_are_left_out_of_later_changes,
            refused_target_of_an_invalid_service_is_registered_later,
            address_outside_of_the_network_is_named_with_all_zones,
            refused_targets_are_left_out_while_their_group_replaces_another,
            targets_that_fit_are_registered_although_others_exceed_a_quota,
            error_of_one_target_group_does_not_affect_the_others,
        },
        routes::{routes_are_added_and_removed_with_nodes, every_table_gets_its_routes, routes_are_created_despite_faults},
        sharing::{cluster_deregisters_only_its_own_targets, record_is_a_config_map},
        tagging::{instances_have_tags_while_they_have_nodes},
        time::{
            load_balancer_is_created_once_when_it_is_visible_late,
            another_process_continues_with_resources_that_are_visible_late,
            deletion_waits_for_tags_that_are_visible_late, named_load_balancer_is_deleted_when_its_tags_are_visible_late,
            failed_load_balancer_is_created_again, deletion_that_another_client_prevents_is_reported, security_groups_are_deleted_after_network_interfaces,
            quota_is_reported_and_affects_nothing_else, full_target_group_follows_its_pods,
            every_page_is_read,
        },
        user_balancers::{
            services_share_a_load_balancer_of_a_user, load_balancer_of_a_user_needs_the_clusters_tag,
            service_moves_to_a_load_balancer_of_a_user_and_back,
        },
        user_groups::{
            targets_follow_in_a_target_group_of_a_user, deletion_waits_for_the_records_of_target_groups_of_users,
            target_group_of_a_user_is_used_only_with_consent_and_if_it_fits,
            service_moves_to_target_groups_of_a_user_and_back,
            listener_stays_until_the_target_group_of_a_user_serves,
        },
    ];
    let long = cases![Ignored:
        balancers::{another_process_finishes_after_any_call},
        forwards::{weighted_groups_change_despite_a_crash_at_any_call},
        groups::{crash_at_any_call_leaves_nothing_of_a_group},
        histories::{thousand_histories_leak_nothing},
    ];
    let cases = usual.into_iter().chain(long).chain(with_other_controllers());
    run(cases.map(checked).collect())
}

/// Returns the tests with the real cloud-provider-aws and the real AWS Load Balancer Controller: `--ignored upstream`
/// runs them, and builds both programs once, which takes many minutes.
fn with_other_controllers() -> Vec<Case> {
    let cases = cases![Ignored:
        upstream::coexistence::{
            cloud_provider_and_ccm_leave_each_others_resources_alone,
            load_balancer_controller_and_ccm_leave_each_others_resources_alone,
        },
        upstream::takeover::{
            managed_security_groups_move_with_their_load_balancers,
            services_move_from_cloud_provider_to_ccm_and_back,
            services_move_from_load_balancer_controller_to_ccm_and_back,
        },
    ];
    cases.into()
}

/// Returns a test that fails if load balancers do not reach their targets.
fn checked(mut case: Case) -> Case {
    let test = case.run.clone();
    case.run = Arc::new(move |space| Box::pin(moto::checked(test(space))));
    case
}
