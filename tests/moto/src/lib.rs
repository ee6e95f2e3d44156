//! A mock of AWS for tests: moto, which serves EC2, Elastic Load Balancing, ACM and IAM, and a proxy in front that
//! injects the failures of AWS.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use moto::{Effect, Fault, Moto};
//!
//! let moto = Moto::start("my-cluster").await?;
//! let instances = moto.run(3).await?;
//! moto.proxy.arm(Fault::first("DescribeInstances", Effect::Throttle { retry_after: Some(1) }));
//! println!("--cloud-config holds\n{}", moto.cloud_config());
//! # drop(instances);
//! # Ok(())
//! # }
//! ```
//!
//! moto is a Python program: it is installed once into an environment in the user's cache (`$MOTO_TEST_ENVIRONMENT`
//! names another folder), with the versions of `requirements.txt`. One server serves a whole test process; each
//! [`Moto`] is an account of its own in it, with a network of its own.

mod aws;
mod bed;
mod call;
mod denials;
mod fault;
mod form;
mod iam;
mod model;
mod proxy;
mod python;
mod reach;
mod server;
mod xml;

pub use aws::{Aws, AwsError, Service};
pub use bed::{Instance, Moto, Network};
pub use fault::{Effect, Fault, Hold};
pub use iam::Policy;
pub use model::Quota;
pub use proxy::Proxy;
pub use reach::checked;
pub use server::Server;
pub use xml::Element;

/// The region of all resources.
pub const REGION: &str = "eu-west-1";
