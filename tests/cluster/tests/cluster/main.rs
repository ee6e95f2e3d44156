//! The cluster tests: observable behaviour of kcm's controllers on a real API server, even after faults.
//!
//! `cargo test -p cluster-tests --test cluster` runs most of them; with `-- --ignored`, it runs those that take long or
//! need upstream's manager.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

mod api;
mod auth;
mod certificates;
mod cloud;
mod devices;
mod gates;
mod network;
mod nodes;
mod process;
mod robustness;
mod storage;
mod upstream;
mod workloads;

use cluster_tests::{Case, cases, run};

// Intentionally longer than 60 lines: the list of all tests.
fn main() -> std::process::ExitCode {
    if let Some(code) = cluster_tests::programs::as_called() {
        return code;
    }
    let mut cases: Vec<Case> = cases![Usual:
        workloads::replicaset::{
            pods_are_created_and_reported, deleted_pods_are_replaced, replicaset_scales_up_and_down,
            quota_is_reported_until_it_is_deleted, replicaset_of_six_hundred_pods_is_created_and_deleted,
            pods_of_a_set_with_the_longest_name_have_it_as_prefix, set_being_deleted_creates_and_adopts_nothing,
            overlapping_sets_keep_their_own_pods, status_follows_labels_of_the_template,
        },
        workloads::replicaset_pods::{
            orphans_are_adopted_and_unselected_pods_released, scaling_down_deletes_the_least_useful_pods_first,
            pod_is_available_after_min_ready_seconds, terminating_pods_are_counted_and_replaced,
            flapping_pods_are_kept_and_cause_few_status_writes, failed_and_evicted_pods_are_replaced_and_stay,
        },
        workloads::refused_creations::{
            deleted_namespace_does_not_delay_others, refused_creations_back_off_while_pods_change,
            status_follows_pods_while_creations_are_refused,
        },
        workloads::released_pods::{relabelled_pod_is_replaced_after_a_lost_response},
        workloads::replicationcontroller::{
            pods_are_created_deleted_and_reported, orphans_are_adopted_and_unselected_pods_released,
            quota_is_reported_until_the_scale_fits,
        },
        storage::protection::{
            claim_stays_while_a_pod_on_a_node_uses_it, pod_missing_in_the_cache_keeps_its_claim,
            finalizers_are_added_and_removed_when_writes_fail, unused_condition_follows_the_pods_of_a_bound_claim,
            bound_claim_has_no_unused_condition_without_the_gate,
            volume_stays_while_it_is_bound, attributes_class_stays_while_a_claim_or_volume_refers_to_it,
            volumes_and_classes_are_protected_when_writes_fail,
        },
        storage::ephemeral_volume::{
            deleted_claim_of_an_ephemeral_volume_is_created_again, claim_of_another_owner_is_reported_and_left_alone,
            lost_response_leads_to_no_second_claim_and_no_event,
        },
        storage::csi::{
            volume_is_provisioned_for_its_claim_and_deleted_in_the_driver,
            second_attachment_of_a_single_node_volume_is_detected, first_consumer_gets_its_ephemeral_volume_and_runs,
        },
        storage::expander::{expansion_is_left_to_external_resizers, resizer_is_named_once_when_any_write_fails},
        storage::attach_detach::{
            volume_follows_its_pods_and_is_deleted_with_its_claim, volume_leaves_a_dead_node_once_it_is_out_of_service,
            failures_of_the_driver_are_reported_and_retried, volumes_follow_the_pods_of_a_statefulset_in_an_update,
            volume_moves_once_when_the_manager_crashes_at_any_write, volume_moves_once_when_any_response_is_lost,
            stale_cache_or_second_leader_attaches_nothing_twice,
        },
        storage::topology::{first_consumer_decides_on_the_zone_of_its_volume},
        workloads::pod_garbage_collector::{
            evicted_pods_are_deleted_first_when_too_many_are_finished, pods_of_a_deleted_node_are_deleted_after_a_delay,
            unbound_pod_is_deleted_even_after_a_crash,
        },
        api::resourcequota::{
            usage_follows_existing_objects, scoped_quota_counts_only_its_pods,
            objects_of_a_kind_that_is_served_later_are_counted, wrong_usage_is_corrected_even_after_a_crash,
            usage_of_deleted_objects_is_free_within_a_second, only_kinds_that_are_counted_are_watched,
            object_that_admission_missed_is_counted_within_seconds,
            usage_that_arrives_after_the_deletion_of_its_object_is_lowered,
        },
        workloads::disruption::{
            evictions_and_drains_respect_the_budget, uncountable_pods_are_reported_and_cannot_be_evicted,
            custom_resources_with_a_scale_are_counted, outdated_disruption_target_is_removed,
        },
        robustness::faults::{
            frozen_watch_leads_to_no_surplus_pods, lost_response_behind_a_frozen_watch_is_resolved,
            new_leader_with_a_stale_cache_reads_pods_first, standby_continues_after_the_leader_is_killed,
            standby_continues_while_the_leader_is_paused,
        },
        robustness::hostile_names::{
            pods_of_jobs_with_hostile_names_are_released,
            secrets_of_accounts_with_hostile_names_are_deleted_or_kept_as_in_upstream,
        },
        robustness::hostile_tenant::{misbehaving_aggregated_apis_do_not_delay_others},
        robustness::refusing_admission::{
            creations_that_a_policy_refuses_are_repeated_with_backoff,
            creations_that_a_webhook_fails_are_repeated_with_backoff,
            creations_that_a_quota_refuses_are_repeated_with_backoff,
        },
        robustness::terminating_namespace::{each_owner_causes_at_most_one_refused_creation},
        robustness::invariants::{
            idle_cluster_gets_no_writes, each_kind_is_watched_once, declared_writes_are_allowed, writes_are_declared,
        },
        auth::serviceaccount::{
            default_account_is_created_and_recreated, root_certificates_are_published_and_repaired,
            pods_of_a_deployment_have_a_token, pods_wait_for_their_account, tokens_in_secrets_are_valid,
            tokens_of_former_versions_are_marked_and_deleted, token_secret_that_was_refused_eleven_times_gets_its_token,
        },
        certificates::requests::{kubelet_certificates_are_signed},
        cloud::node::{
            new_nodes_are_initialized, nodes_are_initialized_after_any_fault, five_hundred_nodes_are_initialized,
        },
        cloud::node_lifecycle::{
            stopped_instances_are_tainted_and_deleted_ones_lose_their_nodes,
            node_is_deleted_only_when_its_instance_does_not_exist,
        },
        cloud::credentials::{changed_secret_is_used_without_a_restart},
        cloud::node_updates::{labels_and_taints_follow_the_instance},
        cloud::failover::{standby_continues_over_the_same_cloud_after_the_leader_is_killed},
        cloud::kubevirt::{
            provider_with_listed_nodes_conforms, provider_with_a_selector_conforms,
            tenants_node_and_service_follow_the_infrastructure,
        },
        cloud::kubevirt_changes::{
            selection_of_targets_is_changed_without_a_gap, service_of_cloud_provider_kubevirt_is_taken_over,
            missing_namespace_deletes_no_node,
        },
        cloud::service::{
            load_balancer_is_created_changed_and_deleted, endpoints_are_targets, nodes_get_their_routes,
            annotations_of_the_provider_are_written_and_removed,
        },
        process::connections::{
            pod_authenticates_by_its_account_even_after_a_rotation, token_file_of_a_kubeconfig_may_rotate,
            credential_plugin_is_called_again_before_its_token_expires, credential_plugin_provides_a_certificate,
            conflict_of_uid_is_distinguished_from_other_conflicts,
        },
        process::many_kinds::{leader_works_with_150_custom_kinds},
        process::odd_servers::{
            manager_starts_without_a_request_header_ca, kind_that_cannot_be_listed_stops_only_controllers_that_read_it,
        },
        api::cluster_scoped::{
            cluster_roles_are_aggregated, cluster_info_is_signed_until_tokens_expire, one_trust_bundle_is_published,
            ttl_annotation_of_nodes_is_set, service_cidr_exists_while_it_is_needed,
        },
        workloads::deployment::{
            rollout_leaves_the_expected_status_and_events, kubectl_undoes_and_restarts_a_rollout, history_is_limited,
            last_terminating_pod_of_a_rollout_is_reported_without_delay,
            pause_stops_a_rollout_but_not_scaling, stuck_rollout_is_reported, scaling_during_a_rollout_is_proportional,
            taken_name_counts_as_a_collision, orphans_are_adopted_with_their_pods,
        },
        devices::resource_claims::{
            claim_is_created_from_its_template_and_deleted_with_its_pod, shared_claim_is_deallocated_after_its_last_pod,
            claim_being_deleted_is_released_with_its_last_pod,
            claim_for_extended_resources_is_deleted_when_its_pod_finishes, claim_of_another_owner_is_never_used,
            missing_template_is_reported_until_it_exists, lost_response_leads_to_no_second_claim,
            absent_pods_are_dropped_and_other_consumers_are_kept, each_of_many_pods_gets_one_claim_from_two_managers,
            administrative_access_needs_a_labelled_namespace,
        },
        devices::group_claims::{
            claim_of_a_pod_group_is_shared_by_its_pods, pods_of_groups_get_claims_only_with_the_gates,
            scheduler_allocates_the_claim_of_a_pod_group_whose_pods_are_evicted_together,
        },
        devices::taint_eviction::{
            pods_that_do_not_tolerate_a_device_taint_are_evicted, eviction_delay_continues_after_a_restart,
            taint_rule_reports_planned_and_executed_evictions,
        },
        workloads::daemonset::{
            each_node_gets_a_daemon_pod, taints_decide_which_daemon_pods_stay, affinity_and_node_names_select_nodes,
            daemonset_is_rolled_out_and_back_by_kubectl, update_stays_within_its_limits,
            on_delete_update_waits_for_manual_deletion, failed_pods_are_replaced_with_backoff,
            orphans_are_adopted_and_unselected_pods_released, taken_name_counts_as_a_collision,
            drained_node_keeps_its_daemon_pod,
        },
        workloads::rollout::{
            lease_loss_during_a_rollout_leads_to_no_lost_pod, update_stays_within_its_limits, recreation_never_overlaps,
            frozen_watch_leads_to_no_second_replicaset,
        },
        process::echo_operator::{echo_operator_works_with_its_own_permissions},
        process::serving::{
            clients_without_access_get_only_open_paths, new_serving_certificate_is_used_without_a_restart,
            log_follows_its_flags, ccm_process_serves_and_releases_its_lease,
        },
        process::diagnostics::{diagnostics_name_a_quota_and_a_finalizer},
        process::diagnostics_page::{page_leads_to_the_violated_quota},
        network::endpoints::{
            slices_and_endpoints_follow_pods, headless_service_publishes_all_pods,
            endpoints_created_by_users_are_mirrored, changes_of_slices_by_other_clients_are_repaired,
            frozen_watch_leads_to_no_second_slice, crash_after_a_sample_of_writes,
            slices_are_correct_after_each_failure_of_each_write,
        },
        network::ending_services::{
            external_names_and_services_without_selector_get_no_slices, service_that_is_being_deleted_gets_no_new_slice,
            slice_that_is_being_deleted_is_replaced,
        },
        network::endpoint_lag::{
            changes_that_arrive_one_by_one_are_not_delayed, changes_during_a_write_share_the_next_one,
        },
        api::garbage_collector::{
            dependents_are_deleted_with_their_deployment, recreated_owner_does_not_keep_old_dependents,
            custom_resources_can_be_owners_and_dependents, dependents_of_owners_deleted_without_a_manager_are_deleted,
            owner_references_to_another_namespace_are_reported,
            existing_owners_are_kept_and_dangling_references_removed, garbage_needs_one_request_per_deletion,
            no_kind_is_watched_twice,
        },
        api::listed_kinds::{kind_without_right_to_watch_is_collected_and_delays_no_others},
        process::manifests::{
            charts_are_accepted_by_helm_and_the_api_server, kubeadm_patches_change_only_what_they_should,
        },
        process::monitoring::{alerts_and_panels_query_served_metrics, metrics_equal_upstreams_list},
        api::namespace::{
            twenty_kinds_are_deleted_with_their_namespace, deletions_that_watches_deliver_need_no_list,
            stalled_watch_does_not_prove_a_deletion, deletion_of_the_last_pod_requeues_the_namespace,
            large_namespace_is_emptied_during_the_grace_period, kinds_emptied_during_the_grace_period_are_checked_again,
            reasons_for_a_terminating_namespace_are_reported, pods_are_deleted_before_other_kinds,
            missing_kind_does_not_delay_the_deletion,
            broken_api_group_is_reported_and_delays_no_other_group,
        },
        robustness::cluster_crashes::{crash_after_every_write},
        robustness::gated_crashes::{
            controllers_with_gates_finish_after_a_fault_at_any_write, migration_finishes_after_a_fault_at_any_write,
        },
        api::storage_versions::{entries_of_stopped_api_servers_are_removed},
        api::policy_types::{warnings_equal_those_of_upstream, each_failed_write_is_repeated},
        api::storage_migrations::{
            stored_version_of_a_custom_resource_is_migrated_across_a_crash,
            secrets_are_encrypted_with_a_new_key_across_a_crash, migration_that_cannot_succeed_fails_with_its_reason,
            migration_begins_when_its_resource_can_be_listed,
        },
        devices::resource_pools::{
            request_is_completed_once_all_slices_are_published, taint_rules_count_only_with_their_gate,
        },
        workloads::podgroup_protection::{group_stays_until_its_pods_have_finished},
        workloads::job_scheduling::{
            pods_of_a_job_are_created_in_its_group, group_of_a_delegated_job_follows_its_parents_template,
            jobs_have_no_pods_while_their_groups_are_refused,
        },
        process::all_gates::{manager_works_with_every_gate_on},
        gates::workloads::{
            pod_with_the_lowest_deletion_cost_is_deleted_first, terminating_pods_are_counted_in_statuses,
            suspended_job_loses_its_start_time, tolerations_compare_numbers,
        },
        gates::statefulset::{
            update_takes_as_many_pods_as_may_be_unavailable, recreation_updates_all_pods_together,
            revision_in_another_form_is_used,
        },
        gates::counting::{
            resources_of_a_pod_itself_are_counted_in_quotas, observed_generation_of_an_autoscaler_is_written, autoscalers_of_the_same_pods_are_named,
            autoscaler_scales_back_from_zero, missing_class_of_a_pod_follows_its_resources,
        },
        gates::clients::{uid_of_a_certificate_is_reviewed, uid_in_the_headers_of_a_front_proxy_is_reviewed},
        gates::all_off::{
            deployment_is_rolled_out_without_alpha_and_beta_gates,
            metric_reports_the_effect_of_all_gates_when_they_are_on,
        },
        gates::emulated::{
            claims_with_optional_fields_are_created_unless_an_older_version_is_emulated,
            tolerance_of_an_autoscaler_is_applied_unless_an_older_version_is_emulated,
            controllers_of_locked_gates_run_unless_an_older_version_is_emulated,
        },
        gates::logging::{json_is_logged_with_its_gate, streams_are_split_with_their_gate},
        gates::http2::{connection_of_an_unknown_client_is_closed},
        gates::native_histograms::{native_buckets_are_served_in_protobuf_with_their_gate},
        gates::controllers::{
            controllers_and_pages_exist_with_their_gates, device_taint_rules_are_read,
            objects_arrive_in_the_stream_of_the_watch, lease_is_read_before_its_node_is_marked,
        },
        process::metric_flags::{metrics_are_restricted_by_flags},
        process::coordinated_election::{candidate_with_the_oldest_emulation_version_leads},
        network::node_ipam::{nodes_get_ranges_of_both_families, lost_response_leaks_no_range},
        nodes::lifecycle::{
            pods_are_evicted_from_a_failed_node_until_it_recovers, evictions_follow_the_state_of_zones,
            frozen_lease_watch_marks_no_node_unresponsive, toleration_seconds_end_and_are_cancelled,
        },
        upstream::operations::{kubeadms_command_line_runs_unchanged},
        api::policy_corpus::{expressions_of_the_corpus_are_checked_as_in_upstream},
        api::owners::{
            pairs_deleted_in_the_foreground_together_are_all_deleted, hostile_owner_names_affect_no_other_object,
            owner_that_no_watch_delivers_is_deleted_with_its_own_owner,
        },
        workloads::horizontal_pod_autoscaler::{
            kubectl_autoscale_scales_up_and_down, unmeasurable_target_is_reported,
            target_of_any_kind_scales_to_zero_and_up_again, unusable_scales_are_reported_and_conflicts_retried,
        },
        workloads::cronjob::{
            due_run_is_created_once, year_of_missed_runs_leads_to_one_run, crash_leads_to_no_second_run,
            overlapping_runs_are_forbidden_or_replaced, suspended_and_late_cronjobs_start_nothing,
            invalid_cronjobs_are_reported_and_start_nothing,
            finished_jobs_are_deleted_after_their_ttl,
            job_of_another_owner_takes_the_name_of_a_run,
            job_with_the_name_of_a_deleted_run_is_not_replaced,
        },
        workloads::job::{
            job_completes, failures_end_job, deadline_ends_job, indexes_are_completed, elastic_job_shrinks,
            failed_index_does_not_end_the_other_indexes, success_policy_ends_job_early, failure_policy_decides,
            evicted_pod_is_not_a_failure_when_the_policy_ignores_it, job_is_suspended_and_resumed,
            pod_is_replaced_only_after_it_has_failed, job_of_another_controller_is_not_changed,
            pods_of_a_deleted_job_lose_their_finalizer, pods_are_adopted_and_counted,
        },
        robustness::secrecy::{nothing_secret_is_logged_or_served},
        workloads::statefulset::{
            pods_are_created_in_order_with_their_identities, statefulset_is_scaled_by_kubectl,
            update_history_undo_and_restart_work, partition_keeps_pods_at_the_old_revision,
            deleted_pods_are_updated_with_on_delete, claims_are_created_and_retained, failed_pods_are_replaced,
            orphans_are_adopted_by_name, taken_revision_name_counts_as_a_collision,
            stuck_update_is_reported_with_the_fix, ordinals_begin_at_the_configured_start,
            update_stays_within_its_limits,
        },
        storage::selinux_warning::{pods_with_different_labels_on_one_volume_are_reported},
        storage::waiting_claims::{free_volume_requeues_no_claim_that_names_another_one},
        storage::default_class::{waiting_claims_get_the_newest_default_class},
        storage::host_path::{
            directory_is_provisioned_for_a_claim_and_deleted_with_it,
            claim_that_cannot_be_provisioned_is_reported_and_may_leave_its_node,
            directory_of_a_refused_volume_is_deleted,
        },
        storage::binder_faults::{
            volumes_end_as_without_faults_when_any_write_fails,
            volumes_end_as_without_faults_when_the_manager_crashes_at_any_write,
        },
        storage::binder::{
            static_volume_is_bound_with_four_writes, reservations_from_either_side_are_kept,
            claim_waits_for_its_pod_and_gets_a_volume_of_the_node, binding_is_completed_after_a_crash_at_each_write,
            retained_volume_is_released_and_can_be_made_available_again, host_path_volume_is_deleted_with_its_directory,
            claim_is_lost_with_its_volume_and_recovers, external_provisioner_is_requested_and_its_volume_is_bound,
            stateful_pods_with_claims_start, recycled_volume_is_wiped_by_a_pod_and_available_again,
            volume_is_wiped_after_a_recycler_pod_has_failed,
            csi_volumes_are_provisioned_and_deleted_across_a_crash,
        },
    ]
    .into();
    cases.extend(cases![Ignored:
        workloads::refused_creations::{refused_namespace_does_not_delay_others},
        robustness::hostile_tenant::{
            hostile_objects_do_not_delay_other_namespaces, hostile_rates_do_not_delay_other_namespaces,
            hostile_objects_delay_rollouts_no_more_than_with_upstreams_manager,
        },
        cloud::takeover::{nodes_and_services_are_unchanged_by_a_takeover},
        upstream::attach_takeover::{attachments_continue_under_the_other_manager},
        upstream::cluster_handover::{cluster_continues_under_the_other_manager},
        devices::resource_claims::{claims_are_kept_by_the_other_manager},
        devices::taint_eviction::{evictions_continue_under_the_other_manager},
        upstream::differential::{final_state_equals_that_of_upstream},
        gates::native_histograms::{histograms_are_served_as_in_upstream},
        process::metric_flags::{metrics_are_restricted_as_in_upstream},
        nodes::failure::{
            failing_nodes_are_handled_as_in_upstream, lost_nodes_recover_under_the_other_manager,
            crash_after_a_sample_of_writes,
        },
        network::endpoints::{upstreams_slices_are_kept_after_a_takeover},
        upstream::handover::{work_continues_under_the_other_manager},
        process::many_kinds::{leader_works_with_500_custom_kinds},
        process::shutdown::{second_signal_ends_a_process_whose_work_hangs},
        workloads::refused_creations::{refused_creations_of_a_job_back_off_while_pods_change},
        workloads::cronjob::{refused_job_is_not_repeated_by_changes_of_its_cronjob},
        process::monitoring::{alerts_fire_when_they_should, upstreams_list_is_current},
        upstream::operations::{takeover_page_works_in_both_directions},
        api::owners::{dependents_of_hostile_owner_names_are_deleted_or_kept_as_in_upstream},
        upstream::small_controllers_takeover::{small_controllers_continue_under_the_other_manager},
        upstream::statefulset_takeover::{
            updates_continue_under_the_other_manager, statefulset_controller_writes_less_than_upstream,
        },
        upstream::takeover::{
            rollouts_continue_under_the_other_manager, daemon_pods_are_kept_by_the_other_manager,
            revisions_equal_upstreams_byte_for_byte,
        },
        upstream::volume_takeover::{
            binding_continues_under_the_other_manager, csi_volumes_are_provisioned_expanded_and_deleted_across_takeovers,
        },
    ]);
    cases.extend(robustness::crashes::cases());
    cases.extend(cloud::crashes::cases());
    run(cases)
}
