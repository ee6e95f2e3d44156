//! Routes: independent changes, and no change of foreign routes.

use ipnet::IpNet;
use providers::{CloudError, ErrorKind, InstanceRef, Route, RouteChange, RouteSpec, RouteTarget};

use crate::context::{Context, Stop, ensure};

fn set(destination: IpNet, instance: &InstanceRef) -> RouteChange {
    RouteChange::Set(RouteSpec {
        destination,
        instance: instance.clone(),
        addresses: Vec::new(),
        name_hint: "0f0e0d0c-0000-4000-8000-000000000000".into(),
    })
}

fn leads_to(route: &Route, instance: &InstanceRef) -> bool {
    match &route.target {
        RouteTarget::Instance(id) => Some(id) == instance.provider_id.as_ref(),
        RouteTarget::Node(name) => *name == instance.node,
        RouteTarget::Blackhole => false,
    }
}

async fn listed(context: &Context<'_>, destination: IpNet) -> Result<Vec<Route>, Stop> {
    let routes = context.routes()?.list().await?;
    Ok(routes.into_iter().filter(|route| route.destination == destination).collect())
}

async fn listed_once(context: &Context<'_>, destination: IpNet) -> Result<Route, Stop> {
    let mut routes = listed(context, destination).await?;
    ensure!(routes.len() == 1, "{destination} should have one route and has {routes:?}");
    Ok(routes.remove(0))
}

async fn apply(context: &Context<'_>, changes: &[RouteChange]) -> Result<Vec<Result<(), CloudError>>, Stop> {
    let results = context.routes()?.apply(changes).await;
    ensure!(results.len() == changes.len(), "{} changes have {} results", changes.len(), results.len());
    Ok(results)
}

async fn apply_one(context: &Context<'_>, change: RouteChange) -> Result<Result<(), CloudError>, Stop> {
    Ok(apply(context, &[change]).await?.remove(0))
}

fn destinations(context: &Context<'_>, count: usize) -> Result<Vec<IpNet>, Stop> {
    let destinations = context.fixture.destinations();
    if destinations.len() < count {
        return Err(Stop::Skip(format!("the fixture has {} destinations, not {count}", destinations.len())));
    }
    Ok(destinations)
}

pub(crate) async fn route_is_set_listed_and_removed(context: &Context<'_>) -> Result<(), Stop> {
    context.routes()?;
    let instance = context.instance("node").await?;
    ensure!(apply(context, &[]).await?.is_empty(), "an empty list of changes has a result");
    for destination in destinations(context, 1)? {
        for _ in 0..2 {
            apply_one(context, set(destination, &instance)).await??;
            let route = listed_once(context, destination).await?;
            ensure!(leads_to(&route, &instance), "{route:?} should lead to {instance:?}");
        }
        let route = listed_once(context, destination).await?;
        for _ in 0..2 {
            apply_one(context, RouteChange::Remove(route.clone())).await??;
            let remaining = listed(context, destination).await?;
            ensure!(remaining.is_empty(), "a removed route is listed: {remaining:?}");
        }
    }
    Ok(())
}

pub(crate) async fn route_is_replaced_for_another_instance(context: &Context<'_>) -> Result<(), Stop> {
    context.routes()?;
    let (one, two) = (context.instance("one").await?, context.instance("two").await?);
    let destination = destinations(context, 1)?[0];
    apply_one(context, set(destination, &one)).await??;
    apply_one(context, set(destination, &two)).await??;
    let route = listed_once(context, destination).await?;
    ensure!(leads_to(&route, &two), "{route:?} should lead to {two:?}");
    Ok(())
}

pub(crate) async fn invalid_route_change_does_not_stop_the_others(context: &Context<'_>) -> Result<(), Stop> {
    context.routes()?;
    let instance = context.instance("node").await?;
    let unknown = InstanceRef::named(context.unique_name("unknown"));
    let destinations = destinations(context, 3)?;
    let changes = [set(destinations[0], &instance), set(destinations[1], &unknown), set(destinations[2], &instance)];
    let results = apply(context, &changes).await?;
    ensure!(results[0].is_ok() && results[2].is_ok(), "an invalid change affected others: {results:?}");
    let kind = results[1].as_ref().err().map(|error| error.kind);
    ensure!(kind == Some(ErrorKind::NotFound), "a route to an unknown instance is {:?}, not NotFound", results[1]);
    let route = listed_once(context, destinations[2]).await?;
    ensure!(leads_to(&route, &instance), "{route:?} should lead to {instance:?}");
    let none = listed(context, destinations[1]).await?;
    ensure!(none.is_empty(), "a route to an unknown instance is listed: {none:?}");
    Ok(())
}

pub(crate) async fn changed_route_is_not_removed(context: &Context<'_>) -> Result<(), Stop> {
    context.routes()?;
    let (one, two) = (context.instance("one").await?, context.instance("two").await?);
    let destination = destinations(context, 1)?[0];
    apply_one(context, set(destination, &one)).await??;
    let stale = listed_once(context, destination).await?;
    apply_one(context, set(destination, &two)).await??;
    let result = apply_one(context, RouteChange::Remove(stale)).await?;
    let kind = result.as_ref().err().map(|error| error.kind);
    ensure!(kind == Some(ErrorKind::Conflict), "removing a route whose target has changed is {result:?}, not Conflict");
    let route = listed_once(context, destination).await?;
    ensure!(leads_to(&route, &two), "{route:?} should still lead to {two:?}");
    Ok(())
}

pub(crate) async fn foreign_route_is_not_changed(context: &Context<'_>) -> Result<(), Stop> {
    context.routes()?;
    let foreign = IpNet::new_assert([10, 99, 0, 0].into(), 24);
    context.fixture.create_foreign_route(foreign).await?;
    let checked = foreign_is_not_changed(context, foreign).await;
    context.fixture.delete_foreign_route(foreign).await?;
    checked
}

async fn foreign_is_not_changed(context: &Context<'_>, foreign: IpNet) -> Result<(), Stop> {
    let instance = context.instance("node").await?;
    let own = destinations(context, 1)?[0];
    apply_one(context, set(own, &instance)).await??;
    let result = apply_one(context, set(foreign, &instance)).await?;
    let kind = result.as_ref().err().map(|error| error.kind);
    ensure!(kind == Some(ErrorKind::Conflict), "replacing a foreign route is {result:?}, not Conflict");
    ensure!(context.fixture.has_foreign_route(foreign).await?, "the foreign route {foreign} was changed");
    let listed = listed(context, foreign).await?;
    ensure!(listed.is_empty(), "a foreign route is listed as the cluster's: {listed:?}");
    Ok(())
}

pub(crate) async fn route_of_a_deleted_instance_can_be_replaced(context: &Context<'_>) -> Result<(), Stop> {
    context.routes()?;
    let instance = context.instance("node").await?;
    let destination = destinations(context, 1)?[0];
    apply_one(context, set(destination, &instance)).await??;
    context.fixture.delete_instance(&instance).await?;
    let routes = listed(context, destination).await?;
    ensure!(routes.len() <= 1, "{destination} has {routes:?}");
    if let Some(route) = routes.into_iter().next() {
        let is_plausible = route.target == RouteTarget::Blackhole || leads_to(&route, &instance);
        ensure!(is_plausible, "the route of a deleted instance leads to {:?}", route.target);
        apply_one(context, RouteChange::Remove(route)).await??;
    }
    let successor = context.instance("successor").await?;
    apply_one(context, set(destination, &successor)).await??;
    let route = listed_once(context, destination).await?;
    ensure!(leads_to(&route, &successor), "{route:?} should lead to {successor:?}");
    Ok(())
}
