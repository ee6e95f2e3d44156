//! The cluster tests: what users see of kcm's controllers on a real API server, also when things go wrong.
//!
//! `cargo test -p cluster-tests --test cluster` runs them; `-- --ignored` those that need upstream's manager or try every
//! place to crash at.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

mod api;
mod auth;
mod certificates;
mod cloud;
mod devices;
mod network;
mod nodes;
mod process;
mod robustness;
mod storage;
mod upstream;
mod workloads;

use cluster_tests::{Case, cases, run};

fn main() -> std::process::ExitCode {
    if let Some(code) = cluster_tests::programs::as_called() {
        return code;
    }
    let mut cases: Vec<Case> = cases![Usual:
        workloads::replicaset::{
            pods_come_and_are_told_of, deleted_pods_come_back, scales_both_ways, a_quota_is_told_of_until_it_is_lifted,
            six_hundred_pods, long_names_leave_room_for_suffixes, a_set_being_deleted_is_left_alone,
            overlapping_sets_keep_their_own, status_follows_labels_of_the_template,
        },
        workloads::replicaset_pods::{
            orphans_are_adopted_and_strangers_released, scaling_down_takes_the_least_useful_first,
            availability_takes_its_time, terminating_pods_are_counted_and_replaced,
            flapping_pods_are_kept_and_seldom_told_of, failed_and_evicted_pods_are_replaced_and_stay,
        },
        workloads::refused_creations::{
            deleted_namespace_costs_others_no_time, refused_creations_back_off_while_pods_change,
            status_follows_pods_while_creations_are_refused,
        },
        workloads::released_pods::{relabelled_pod_is_replaced_after_a_lost_answer},
        workloads::replicationcontroller::{
            pods_come_go_and_are_told_of, orphans_are_adopted_and_strangers_released,
            a_quota_is_told_of_until_the_scale_fits,
        },
        storage::protection::{
            claim_stays_while_a_pod_on_a_node_uses_it, pod_that_no_cache_shows_keeps_its_claim,
            finalizers_come_and_go_however_writes_fail, unused_condition_follows_the_pods_of_a_bound_claim,
            volume_stays_while_it_is_bound, attributes_class_stays_while_a_claim_or_volume_refers_to_it,
        },
        storage::ephemeral_volume::{
            pod_gets_the_claim_of_its_template_and_gets_it_back, claim_of_another_owner_is_reported_and_left_alone,
            lost_answer_costs_neither_a_second_claim_nor_an_event,
        },
        storage::csi::{
            volume_lives_from_its_claim_to_its_end_in_the_driver, second_attachment_of_a_single_node_volume_is_detected,
            first_consumer_gets_its_ephemeral_volume_and_runs,
        },
        storage::expander::{expansion_is_left_to_external_resizers},
        storage::attach_detach::{
            volume_follows_its_pods_and_is_deleted_with_its_claim, volume_leaves_a_dead_node_once_it_is_out_of_service,
            failures_of_the_driver_are_reported_and_retried, volumes_of_a_statefulset_follow_through_a_rolling_update,
            volume_moves_once_wherever_the_manager_crashes, volume_moves_once_whichever_answer_is_lost,
            old_caches_and_a_second_leader_attach_nothing_twice,
        },
        workloads::pod_garbage_collector::{
            too_many_finished_pods_go_the_evicted_first, pods_of_a_node_that_is_gone_go_after_a_while,
            a_pod_that_was_never_bound_goes_also_after_a_crash,
        },
        api::resourcequota::{
            use_follows_what_is_there, a_scoped_quota_counts_its_pods_only, objects_of_a_kind_that_comes_later_count,
            a_wrong_number_is_mended_also_after_a_crash, what_went_is_free_within_a_second,
            only_kinds_that_are_counted_are_watched, object_that_admission_missed_is_counted_within_seconds,
            number_that_arrives_after_its_object_was_deleted_is_lowered,
        },
        workloads::disruption::{
            evictions_and_drains_respect_the_budget, what_cannot_be_counted_is_told_and_nothing_may_go,
            custom_resources_with_a_scale_count, empty_announcements_are_taken_back,
        },
        robustness::faults::{
            a_frozen_watch_leads_to_no_more_pods,
            a_lost_answer_behind_a_frozen_watch_is_found, a_successor_with_an_old_view_looks_first,
            a_killed_leader_is_followed, a_paused_leader_is_followed,
        },
        robustness::hostile_names::{
            pods_of_jobs_with_hostile_names_are_released,
            secrets_of_accounts_with_hostile_names_are_deleted_or_kept_as_by_upstream,
        },
        robustness::hostile_tenant::{misbehaving_aggregated_apis_cost_others_nothing},
        robustness::invariants::{a_quiet_cluster_is_left_alone, one_watch_a_kind, declared_writes_are_allowed, writes_are_declared},
        auth::serviceaccount::{
            a_default_account_comes_and_comes_back, root_certificates_are_published_and_repaired,
            pods_of_a_deployment_carry_a_token, pods_wait_for_their_account, tokens_in_secrets_are_good,
            tokens_of_former_versions_are_marked_and_deleted,
        },
        certificates::requests::{kubelets_get_what_they_may_have},
        cloud::node::{
            new_nodes_are_initialised, whatever_breaks_nodes_are_initialised, five_hundred_nodes,
        },
        cloud::node_lifecycle::{machines_stop_start_and_go, nothing_but_absence_deletes_a_node},
        cloud::service::{a_balancer_comes_changes_and_goes, endpoints_are_targets, nodes_get_their_routes},
        process::connections::{
            a_pod_is_its_service_account_also_after_a_rotation, a_kubeconfigs_token_file_may_rotate,
            a_plugin_gives_tokens_and_is_asked_again_before_they_end, a_plugin_gives_a_certificate,
            who_has_the_name_of_another_is_told,
        },
        process::many_kinds::{leader_works_with_150_custom_kinds},
        process::odd_servers::{manager_starts_without_a_request_header_ca},
        api::cluster_scoped::{
            roles_are_gathered, cluster_info_is_signed_until_tokens_end, one_trust_bundle_is_published,
            nodes_are_told_how_long_to_keep, ranges_of_services_stay_while_they_are_needed,
        },
        workloads::deployment::{
            a_rollout_and_its_traces, history_undo_and_restart, history_has_a_limit,
            a_pause_holds_a_rollout_and_no_scaling, a_stuck_rollout_is_told_of, scaling_in_the_middle_is_proportional,
            a_taken_name_is_a_collision, orphans_are_adopted_with_their_pods,
        },
        devices::resource_claims::{
            claim_lives_from_its_template_to_the_end_of_its_pod, shared_claim_is_deallocated_after_its_last_pod,
            claim_being_deleted_is_freed_with_its_last_pod,
            claim_for_extended_resources_is_deleted_with_the_end_of_its_pod, claim_of_another_owner_is_never_used,
            missing_template_is_reported_until_it_exists, lost_answer_leads_to_no_second_claim,
            consumers_with_hostile_names_are_dropped, each_of_many_pods_gets_one_claim_from_two_managers,
            administrative_access_is_for_labelled_namespaces,
        },
        devices::group_claims::{claim_of_a_pod_group_is_shared_by_its_pods, pods_of_groups_need_the_gates},
        devices::taint_eviction::{
            a_taint_drives_away_who_does_not_bear_it, a_countdown_outlives_its_manager,
            a_rule_tells_what_it_would_do_and_what_it_does,
        },
        workloads::daemonset::{
            each_node_has_a_pod, taints_decide_who_stays, affinity_and_names_choose_nodes, kubectl_rolls_out_and_back,
            an_update_keeps_within_its_bounds, on_delete_waits_for_somebody, failed_pods_are_replaced_ever_slower,
            orphans_are_adopted_and_strangers_released, a_taken_name_is_a_collision, a_drained_node_keeps_its_daemon,
        },
        workloads::rollout::{
            a_lease_lost_in_the_middle_costs_no_pod, an_update_keeps_within_its_bounds, recreation_never_overlaps,
            a_frozen_watch_leads_to_no_second_set,
        },
        process::echo_operator::{an_operator_of_the_sdk_keeps_its_promises},
        process::serving::{strangers_get_in_nowhere, a_new_certificate_is_shown_without_a_restart, the_log_is_as_it_was_asked_for, ccm_is_a_process},
        process::diagnostics::{a_quota_and_a_finalizer_are_named},
        process::diagnostics_page::{page_leads_to_the_violated_quota},
        network::endpoints::{
            slices_and_endpoints_follow_pods, a_headless_service_publishes_all, endpoints_of_people_are_mirrored,
            what_others_do_to_slices_is_repaired, a_frozen_watch_leads_to_no_second_slice,
            crash_after_a_sample_of_writes, each_write_fails_each_way,
        },
        network::endpoint_lag::{
            changes_that_arrive_one_by_one_are_not_delayed, changes_during_a_write_share_the_next_one,
        },
        api::garbage_collector::{
            a_deployment_goes_with_all_that_it_owns, a_recreated_owner_holds_nothing, custom_resources_own_and_are_owned,
            owners_that_went_unseen_are_found, references_into_another_namespace_are_told_of,
            solid_owners_hold_and_dangling_references_go, one_request_a_deletion, no_kind_is_watched_twice,
        },
        process::manifests::{charts_are_taken_by_helm_and_by_the_server, patches_change_what_they_mean_to},
        process::monitoring::{alerts_and_panels_ask_for_what_is_served, metrics_are_those_of_upstreams_list},
        api::namespace::{
            twenty_kinds_go_with_their_namespace, what_the_watches_show_is_not_asked_for,
            a_watch_that_stands_still_is_no_proof, the_last_pod_to_go_wakes_the_controller,
            a_crowded_namespace_is_emptied_while_others_may_still_fill_it, what_was_emptied_early_is_looked_at_again,
            what_holds_a_namespace_up_is_told, pods_go_first,
            a_broken_group_is_named_and_holds_up_nothing_else,
        },
        robustness::cluster_crashes::{crash_after_every_write},
        api::storage_versions::{entries_of_stopped_api_servers_are_removed},
        api::policy_types::{warnings_are_those_of_upstream, each_failed_write_is_repeated},
        api::storage_migrations::{
            stored_version_of_a_custom_resource_is_migrated_across_a_crash,
            secrets_are_encrypted_with_a_new_key_across_a_crash, migration_that_cannot_succeed_fails_with_its_reason,
        },
        devices::resource_pools::{request_is_answered_once_all_slices_are_published},
        workloads::podgroup_protection::{group_stays_until_its_pods_have_finished},
        workloads::job_scheduling::{pods_of_a_job_are_created_in_its_group},
        process::all_gates::{manager_works_with_every_gate_on},
        process::coordinated_election::{candidate_with_the_oldest_emulation_version_leads},
        network::node_ipam::{nodes_get_ranges_of_both_families, a_failed_answer_costs_no_range},
        nodes::lifecycle::{
            a_dead_node_is_left_and_comes_back, one_zone_dies_and_then_all, a_frozen_watch_convicts_nobody,
            countdowns_end_and_are_cancelled,
        },
        upstream::operations::{kubeadms_command_line_runs_as_it_is},
        api::owners::{pairs_deleted_in_the_foreground_together_all_go, hostile_owner_names_lead_to_no_other_object},
        workloads::horizontal_pod_autoscaler::{
            kubectl_autoscale_scales_up_and_down, what_cannot_be_measured_is_told, any_kind_goes_to_zero_and_comes_back,
        },
        workloads::cronjob::{
            a_run_that_is_due_is_made_once, a_year_of_missed_runs_is_made_up_for_once, a_crash_makes_no_second_run, overlapping_runs_are_forbidden_or_replaced,
            suspended_late_and_bad_ones_start_nothing, ended_jobs_go_after_their_time,
        },
        workloads::job::{
            a_job_completes, failures_end_a_job, a_deadline_ends_a_job, indexes_are_completed, an_elastic_job_shrinks,
            an_index_fails_alone, a_success_policy_ends_a_job_early, a_failure_policy_decides, an_evicted_pod_is_forgiven, suspended_and_resumed,
            replaced_only_once_failed, somebody_elses_job_is_left_alone, pods_of_a_lost_job_may_go,
            pods_are_adopted_and_counted,
        },
        robustness::secrecy::{nothing_secret_is_logged_or_served},
        workloads::statefulset::{
            pods_come_in_order_to_their_places, it_scales_with_kubectl, an_update_its_history_undo_and_restart,
            a_partition_holds_pods_back, deleting_pods_updates_them, claims_come_and_stay, failed_pods_are_replaced,
            orphans_are_adopted_by_name, a_taken_name_of_a_revision_is_a_collision, a_stuck_update_names_the_way_out,
            ordinals_begin_where_they_are_told_to, an_update_keeps_within_its_bounds,
        },
        storage::selinux_warning::{pods_with_different_labels_on_one_volume_are_warned},
        storage::binder::{
            static_volume_is_bound_with_four_writes, reservations_from_either_side_are_kept,
            claim_waits_for_its_pod_and_gets_a_volume_of_the_node, binding_is_completed_after_a_crash_at_each_write,
            retained_volume_is_released_and_freed_by_its_administrator, host_path_volume_is_deleted_with_its_directory,
            claim_is_lost_with_its_volume_and_recovers, external_provisioner_is_asked_and_its_volume_is_bound,
            stateful_pods_with_claims_start, recycled_volume_is_wiped_by_a_pod_and_free_again,
            csi_volumes_live_from_claim_to_deletion_through_a_crash,
        },
    ]
    .into();
    cases.extend(cases![Ignored:
        robustness::hostile_tenant::{
            hostile_objects_cost_other_namespaces_nothing, hostile_rates_cost_other_namespaces_nothing,
        },
        cloud::takeover::{nodes_and_services_stay_under_the_other},
        upstream::attach_takeover::{attachments_go_on_under_the_other},
        upstream::cluster_handover::{a_cluster_goes_on_under_the_other},
        devices::resource_claims::{claims_live_on_under_the_other}, devices::taint_eviction::{evictions_go_on_under_the_other}, upstream::differential::{the_same_is_left_behind}, nodes::failure::{
            failing_nodes_are_treated_alike, lost_nodes_come_back_under_the_other, crash_after_a_sample_of_writes,
        }, network::endpoints::{upstreams_slices_are_taken_over},
        upstream::handover::{work_goes_on_under_the_other},
        process::many_kinds::{leader_works_with_500_custom_kinds},
        process::monitoring::{alerts_fire_when_they_are_to, upstreams_list_is_current},
        upstream::operations::{the_takeover_page_is_followed_there_and_back},
        api::owners::{hostile_owner_names_are_decided_on_as_by_upstream},
        upstream::statefulset_takeover::{updates_go_on_under_the_other, it_writes_less_than_upstream},
        upstream::takeover::{
            rollouts_go_on_under_the_other, daemons_stay_under_the_other, revisions_are_the_same_byte_for_byte,
        },
        upstream::volume_takeover::{
            binding_continues_under_the_other, volumes_of_a_driver_live_on_under_the_other,
        },
    ]);
    cases.extend(robustness::crashes::cases());
    cases.extend(cloud::crashes::cases());
    run(cases)
}
