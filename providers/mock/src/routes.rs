//! Routes over the mock's calls.

use futures::StreamExt;
use providers::{CloudError, Route, RouteChange, Routes, async_trait};

use crate::cloud::MockCloud;
use crate::fault::Operation;

/// Maximum number of concurrent changes.
const IN_FLIGHT: usize = 16;

pub(crate) struct MockRoutes(pub MockCloud);

impl MockRoutes {
    pub(crate) async fn change(&self, change: &RouteChange) -> Result<(), CloudError> {
        let subject = change.destination().trunc().to_string();
        match change {
            RouteChange::Set(spec) => {
                let call = self.0.call(Operation::SetRoute, &subject, |state, _, now| {
                    state.set_route(spec.destination, &spec.instance, now)
                });
                call.await
            }
            RouteChange::Remove(route) => {
                let call = self.0.call(Operation::RemoveRoute, &subject, |state, _, _| {
                    state.remove_route(route.destination, &route.target)
                });
                call.await
            }
        }
    }
}

#[async_trait]
impl Routes for MockRoutes {
    async fn list(&self) -> Result<Vec<Route>, CloudError> {
        let views = self.0.call(Operation::ListRoutes, "", |state, _, _| Ok(state.route_views())).await?;
        let route = |destination, target| Route { name: String::new(), destination, target, addresses: None };
        Ok(views.into_iter().filter_map(|view| Some(route(view.destination, view.target?))).collect())
    }

    async fn apply(&self, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let calls: Vec<_> = changes.iter().map(|change| self.change(change)).collect();
        futures::stream::iter(calls).buffered(IN_FLIGHT).collect().await
    }
}
