//! Reconciles of Services without slices of their own.

use std::sync::Arc;
use std::time::Duration;

use kinds::ip::Family;
use kinds::service::ServiceType;
use kinds::{Decode, Interner, Kind, Sections, Service};
use runtime::events::Recorder;
use runtime::lock::lock;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store};
use runtime::testing::{NoEvents, filled_store, writer};
use runtime::worker::Reconcile as _;

use super::super::sync::EndpointSlices;
use super::builders::service;
use crate::network::service_endpoints::slice_keys::by_service;
use crate::network::service_endpoints::slice_writes::SliceWrites;
use crate::pods::creation_gate::CreationGate;

fn filled<K: Kind>(indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Arc<Store<K>> {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    Arc::new(filled_store(decode, indexes, records))
}

async fn controller(service: Service) -> EndpointSlices {
    EndpointSlices {
        services: filled(Vec::new(), [service]),
        pods: filled(Vec::new(), []),
        nodes: filled(Vec::new(), []),
        writes: SliceWrites {
            slices: filled(vec![by_service()], []),
            writer: writer(|method, path| panic!("{method} {path} is sent")).await,
            consistency: Arc::default(),
            own: Arc::default(),
            queue: Queue::new(QueueOptions::named("test")),
            manager: "test",
            delay: Duration::ZERO,
            gate: CreationGate::new(filled(Vec::new(), [])),
            refusals: Default::default(),
            pace: Default::default(),
        },
        recorder: Recorder::new("endpointslice-controller", Arc::new(NoEvents)).0,
        triggers: Default::default(),
        topology: Arc::default(),
        debouncer: Default::default(),
        metrics: Arc::default(),
        max_endpoints: 100,
        stranded: Arc::default(),
        compared: Default::default(),
        former: Default::default(),
    }
}

#[tokio::test]
async fn service_without_own_slices_is_not_requeued_by_changes_of_nodes() {
    let external = Service { kind: ServiceType::ExternalName, ..service() };
    let unselected = Service { selector: Interner::default().labels(Vec::new()), ..service() };
    for (name, service) in [("ExternalName", external), ("no selector", unselected)] {
        let key = service.meta.key();
        let controller = controller(service).await;
        controller.topology.set(&key, [(Family::V4, [("a".into(), 1)].into())].into());
        lock(&controller.stranded).insert(key.clone());
        controller.reconcile(&key).await.expect(name);
        assert!(!controller.topology.is_allocated(&key), "{name}");
        assert!(lock(&controller.stranded).is_empty(), "{name}");
    }
}
