//! Service accounts, tokens and roles.

pub mod bootstrap_signer;
pub mod bootstrap_token;
pub mod clusterrole_aggregation;
pub mod legacy_serviceaccount_token_cleaner;
pub mod serviceaccount;
pub mod serviceaccount_token;
pub mod token_cleaner;
