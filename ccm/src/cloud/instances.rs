//! Requests for instances, made one by one and sent to the cloud in batches.
//!
//! Each worker requests the instance of one node. Requests that arrive within `BATCH_WINDOW`, or during a call for at
//! most `PREVIOUS_CALL_WAIT` more, become one call to the provider, which makes as few requests to its cloud as
//! possible.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kinds::{Node, Sections};
use providers::{Address, AddressKind, CloudError, CloudProvider, ErrorKind, InstanceRef, InstanceState, Instances};
use runtime::lock::lock;
use tokio::sync::oneshot;
use tracing::error;

/// Time that the first request waits for others.
const BATCH_WINDOW: Duration = Duration::from_millis(50);
/// Maximum time that the first request then waits for the response of the previous call. The slower the cloud, the more
/// requests share a call; a call that hangs does not delay others for longer.
const PREVIOUS_CALL_WAIT: Duration = Duration::from_secs(1);

/// Returns the sections of nodes that requests for a provider's instances need.
pub fn node_sections(provider: &dyn CloudProvider) -> Sections {
    let reads_annotations =
        provider.instances().is_some_and(|instances| !instances.instance_features().annotations.is_empty());
    if reads_annotations { Node::CLOUD | Node::ANNOTATIONS } else { Node::CLOUD }
}

/// Returns the cloud identity of a node's instance, with the annotations whose keys begin with one of `prefixes`.
pub fn instance_ref(node: &Node, prefixes: &[String]) -> InstanceRef {
    let given = |text: &str| Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
    let is_read = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix.as_str()));
    let annotations = node.annotations.iter().filter(|(key, _)| is_read(key));
    let labels = node.meta.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    InstanceRef {
        node: node.meta.name.to_string(),
        provider_id: node.cloud.as_ref().and_then(|cloud| given(&cloud.provider_id)),
        system_uuid: node.cloud.as_ref().and_then(|cloud| given(&cloud.system_uuid)),
        labels: labels.collect::<BTreeMap<_, _>>(),
        addresses: addresses(node),
        annotations: annotations.map(|(key, value)| (key.to_string(), value.to_string())).collect(),
    }
}

/// Returns the addresses of a node, without those of unknown types.
pub fn addresses(node: &Node) -> Vec<Address> {
    let address = |address: &kinds::node_cloud::NodeAddress| {
        Some(Address { kind: AddressKind::parse(&address.kind)?, address: address.address.to_string() })
    };
    node.cloud.as_deref().map(|cloud| cloud.addresses.iter().filter_map(address).collect()).unwrap_or_default()
}

/// Returns the states of these instances, always as many as requested, regardless of what the provider returns.
pub async fn describe_all(instances: &dyn Instances, requested: &[InstanceRef]) -> Vec<InstanceState> {
    if requested.is_empty() {
        return Vec::new();
    }
    let states = instances.describe(requested).await;
    if states.len() == requested.len() {
        return states;
    }
    let message = format!("the provider returned {} states for {} requests", states.len(), requested.len());
    error!(problem = message, "defect of the cloud provider: its results cannot be assigned and are discarded");
    let unknown = || InstanceState::Unknown(CloudError::new(ErrorKind::Transient, "Describe", message.clone()));
    requested.iter().map(|_| unknown()).collect()
}

type PendingRequest = (InstanceRef, oneshot::Sender<InstanceState>);

/// Combines requests for instances into batches; cheap to clone.
#[derive(Clone)]
pub struct Describer {
    instances: Arc<dyn Instances>,
    waiting: Arc<Mutex<Vec<PendingRequest>>>,
    /// Locked during a call to the cloud, unless the previous call hangs.
    calling: Arc<tokio::sync::Mutex<()>>,
}

impl Describer {
    /// Creates a describer that calls `instances`.
    pub fn new(instances: Arc<dyn Instances>) -> Self {
        Self { instances, waiting: Arc::default(), calling: Arc::default() }
    }

    /// Returns the state of one instance.
    pub async fn describe(&self, instance: InstanceRef) -> InstanceState {
        let (sender, response) = oneshot::channel();
        let first = {
            let mut waiting = lock(&self.waiting);
            waiting.push((instance, sender));
            waiting.len() == 1
        };
        if first {
            let all = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(BATCH_WINDOW).await;
                let _calling = tokio::time::timeout(PREVIOUS_CALL_WAIT, all.calling.lock()).await;
                all.send_batch().await;
            });
        }
        // Dropped without a response: the provider panicked.
        response.await.unwrap_or_else(|_| {
            InstanceState::Unknown(CloudError::new(ErrorKind::Transient, "Describe", "the provider returned no state"))
        })
    }

    /// Sends all waiting requests in one call.
    async fn send_batch(&self) {
        let requests = std::mem::take(&mut *lock(&self.waiting));
        let (requested, senders): (Vec<InstanceRef>, Vec<_>) = requests.into_iter().unzip();
        let states = describe_all(&*self.instances, &requested).await;
        for (sender, state) in senders.into_iter().zip(states) {
            // The receiver is dropped if the worker was stopped.
            let _ = sender.send(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use providers::{Instance, MockInstances};

    use super::*;

    fn running(requested: &InstanceRef) -> InstanceState {
        InstanceState::Running(Box::new(Instance {
            provider_id: format!("x://{}", requested.node),
            ..Instance::default()
        }))
    }

    #[test]
    fn request_has_the_annotations_that_the_provider_reads() {
        let node = Node {
            annotations: [("acme.com/id", "7"), ("other", "1")].map(|(key, value)| (key.into(), value.into())).into(),
            ..crate::controllers::node::tests::node(&[], None)
        };
        for (prefixes, expected) in [(&[][..], &[][..]), (&["acme.com/".to_owned()], &[("acme.com/id", "7")])] {
            let requested = instance_ref(&node, prefixes).annotations;
            let requested: Vec<_> = requested.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            assert_eq!(requested, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_become_one_call_with_separate_results() {
        let mut instances = MockInstances::new();
        instances.expect_describe().times(1).returning(|requested| requested.iter().map(running).collect());
        let describer = Describer::new(Arc::new(instances));
        let names: Vec<InstanceRef> = (0..100).map(|number| InstanceRef::named(format!("n{number}"))).collect();
        let states = futures::future::join_all(names.iter().map(|name| describer.describe(name.clone()))).await;
        assert!(states.iter().zip(&names).all(|(state, name)| *state == running(name)));
    }

    #[tokio::test(start_paused = true)]
    async fn later_request_is_a_separate_call() {
        let mut instances = MockInstances::new();
        instances.expect_describe().times(2).returning(|requested| requested.iter().map(running).collect());
        let describer = Describer::new(Arc::new(instances));
        for _ in 0..2 {
            describer.describe(InstanceRef::named("n")).await;
        }
    }

    /// A cloud that responds after this time, and counts the requested instances per call.
    struct Slow(Duration, Mutex<Vec<usize>>);

    #[providers::async_trait]
    impl Instances for Slow {
        async fn describe(&self, requested: &[InstanceRef]) -> Vec<InstanceState> {
            self.1.lock().expect("no panic").push(requested.len());
            tokio::time::sleep(self.0).await;
            requested.iter().map(running).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_batched_during_a_call_for_a_limited_time() {
        // Ten requests, one every tenth of a second.
        for (seconds, calls) in [(0.0, vec![1; 10]), (0.9, vec![1, 9]), (60.0, vec![1, 9])] {
            let cloud = Arc::new(Slow(Duration::from_secs_f64(seconds), Mutex::default()));
            let describer = Describer::new(cloud.clone());
            let begun = tokio::time::Instant::now();
            let ask = |number: u32| {
                let describer = describer.clone();
                async move {
                    tokio::time::sleep(Duration::from_millis(100) * number).await;
                    describer.describe(InstanceRef::named(format!("n{number}"))).await
                }
            };
            futures::future::join_all((0..10).map(ask)).await;
            assert_eq!(*cloud.1.lock().expect("no panic"), calls, "{seconds} s");
            assert!(begun.elapsed() < Duration::from_secs_f64(2.0 * seconds + 1.2).min(Duration::from_secs(62)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_number_of_results_is_discarded() {
        let mut instances = MockInstances::new();
        instances.expect_describe().returning(|_| vec![InstanceState::Gone]);
        let requested = [InstanceRef::named("a"), InstanceRef::named("b")];
        let states = describe_all(&instances, &requested).await;
        assert!(matches!(states[..], [InstanceState::Unknown(_), InstanceState::Unknown(_)]), "{states:?}");
        assert!(describe_all(&instances, &[]).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn panic_of_the_provider_makes_the_state_unknown() {
        let mut instances = MockInstances::new();
        instances.expect_describe().returning(|_| panic!("as scripted"));
        let state = Describer::new(Arc::new(instances)).describe(InstanceRef::named("a")).await;
        assert!(matches!(state, InstanceState::Unknown(_)), "{state:?}");
    }
}
