//! Certificate requests, and the certificates that clusters publish.

pub mod approving;
pub mod cleaner;
pub mod clustertrustbundle_publisher;
pub mod podcertificaterequest_cleaner;
pub(crate) mod publisher_metrics;
pub mod request;
pub(crate) mod requests;
pub mod root_ca_publisher;
pub mod signing;
