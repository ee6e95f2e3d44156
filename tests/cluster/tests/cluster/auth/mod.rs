//! Service accounts and their tokens.

pub mod serviceaccount;
