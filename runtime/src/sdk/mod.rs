//! The runtime for authors of operators: typed controllers over the same watches, queues, writes and leadership.
//!
//! A [`Controller`] is built for a kind of whole typed objects, with the kinds of its children and one async reconcile
//! function. An [`Operator`] runs controllers: one watch per kind, one Lease, one set of metrics.
//!
//! ```no_run
//! use std::collections::BTreeMap;
//!
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use runtime::sdk::{Context, Controller, Error, ObjectMeta, Operator, Outcome, Settings, terminated};
//! use serde::{Deserialize, Serialize};
//!
//! /// Desired state.
//! #[derive(Debug, Clone, Serialize, Deserialize)]
//! pub struct GreetingSpec {
//!     name: String,
//! }
//!
//! /// Observed state.
//! #[derive(Debug, Clone, Serialize, Deserialize)]
//! pub struct GreetingStatus {
//!     text: String,
//! }
//!
//! runtime::custom_resource! {
//!     /// A greeting, stored in a ConfigMap with the same name.
//!     pub Greeting { spec: GreetingSpec, status: GreetingStatus }
//!     namespaced "greetings" in "example.com/v1"
//! }
//!
//! async fn greet(ctx: Context<Greeting>) -> Result<Outcome, Error> {
//!     let text = format!("Hello {}!", ctx.object.spec.name);
//!     ctx.apply(&ConfigMap {
//!         metadata: ObjectMeta { name: Some(ctx.name().to_owned()), ..ObjectMeta::default() },
//!         data: Some(BTreeMap::from([("text".to_owned(), text.clone())])),
//!         ..ConfigMap::default()
//!     })
//!     .await?;
//!     ctx.set_status(&GreetingStatus { text }).await?;
//!     Ok(Outcome::Done)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let greetings = Controller::for_::<Greeting>("greetings").owns::<ConfigMap>().reconcile(greet);
//!     Operator::new("greeting-operator").with(greetings).run(Settings::default(), terminated()).await?;
//!     Ok(())
//! }
//! ```

mod applied;
mod condition;
mod context;
mod controller;
mod error;
mod object;
mod operator;
mod process;
mod record;
#[cfg(test)]
mod tests;
mod work;

#[doc(hidden)]
pub use ::{k8s_openapi, serde};

pub use self::condition::set_condition;
pub use self::context::Context;
pub use self::controller::{Controller, For, Prepared};
pub use self::error::Error;
pub use self::object::{ApiScope, Object};
#[doc(hidden)]
pub use self::object::{Parts, split_api_version};
pub use self::operator::Operator;
pub use self::process::{RunError, Settings, served_content, terminated};
pub use self::record::{Owned, Typed};
pub use crate::events::EventType;
pub use crate::manager::{ExitReason, Manager};
pub use crate::worker::Outcome;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
pub use kinds::meta::{Meta, ObjectKey};
