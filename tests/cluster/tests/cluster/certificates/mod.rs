//! Certificate signing requests.

pub mod requests;
