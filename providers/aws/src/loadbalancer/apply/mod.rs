//! The calls that change AWS, for one Service at a time.

mod alb;
mod backend_group;
mod balancers;
mod calls;
mod certificates;
mod classic;
mod classic_leaks;
mod classic_rules;
mod contract;
mod endpoint_service;
mod ensure;
mod following;
mod group_locks;
mod groups;
mod leaks;
mod opening;
mod range_rules;
mod readiness_gates;
mod removal;
mod steps;
mod target_records;
mod targets;
mod user_balancers;
mod user_groups;
mod visibility;

pub(crate) use balancers::Balancers;
