//! kube-controller-manager: its controllers, its command line, and the binary's inside.

pub mod app;
pub mod bootstrap_signer;
pub mod bootstrap_tokens;
pub mod clusterrole_aggregation;
pub mod controllers;
pub mod credentials;
pub mod deployment;
pub mod flags;
pub mod garbagecollector;
pub mod job;
pub mod legacy_token_cleaner;
pub mod names;
pub mod reference;
pub mod replicaset;
pub mod root_ca_publisher;
pub mod serviceaccount;
pub mod serviceaccount_token;
pub mod surface;
pub mod token_cleaner;
pub mod trust_bundle_publisher;
pub mod ttl;
