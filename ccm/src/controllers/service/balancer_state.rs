//! What this process knows of one Service's balancer: what it may have made, what it has done last, and what failed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kinds::Uid;
use kinds::meta::ObjectKey;
use kinds::service::Ingress;
use providers::{LoadBalancerId, LoadBalancerSpec, Targeting, Targets};
use tokio::time::Instant;

use crate::cloud::retry::Told;

/// One Service's course.
#[derive(Debug, Clone, Default)]
pub struct Course {
    /// The Service that this is about.
    pub uid: Uid,
    /// Whose balancer there may be; set before the first call that could make a part of it.
    pub made: Option<LoadBalancerId>,
    /// Since this process leads, the server itself has confirmed that the Service is held.
    pub confirmed: bool,
    /// Whose targets its balancer wants; set before they are gathered, so that their changes are not missed.
    pub targeting: Option<Targeting>,
    /// The other Services that its balancer sends traffic to as well; set before they are looked at, for the same
    /// reason.
    pub others: BTreeSet<ObjectKey>,
    /// The balancer as it was when all was as asked; nothing is known of it from a call's begin until that went well.
    pub settled: Option<Settled>,
    /// The targets that the cloud was last given; those that a failed call left behind are brought up to date while its
    /// retry waits.
    pub aimed: Option<Targets>,
    /// What the status should say, once known.
    pub ingress: Option<Vec<Ingress>>,
    /// Conditions that pods may wait for because of it, as last asked.
    pub gates: BTreeSet<String>,
    /// What was announced by an event and not finished yet.
    pub announced: Option<Announced>,
    /// Calls that failed in a row.
    pub failures: u32,
    /// No call before this is over.
    pub pause: Option<Pause>,
    /// What was last said about a failure.
    pub told: Told,
    /// The provider's warnings as last said.
    pub warnings: Vec<String>,
}

/// A balancer that is as asked.
#[derive(Debug, Clone)]
pub struct Settled {
    /// What was asked for.
    pub spec: Arc<LoadBalancerSpec>,
    /// Where it sends traffic.
    pub targets: Targets,
    /// When it was last looked at as a whole.
    pub at: Instant,
}

/// What an event said is being done.
#[derive(Debug, Clone, PartialEq)]
pub enum Announced {
    /// A balancer is made what this asks for.
    Ensuring(Arc<LoadBalancerSpec>),
    /// It is deleted.
    Deleting,
}

/// After a failure.
#[derive(Debug, Clone)]
pub struct Pause {
    /// Until then; `None`: until something else is asked for.
    pub until: Option<Instant>,
    /// What had been asked for; `None`: that it be gone.
    pub asked: Option<Arc<LoadBalancerSpec>>,
    /// It lasts whatever is asked for: the cloud wants to be left alone.
    pub firm: bool,
}

impl Course {
    /// Forgets failures.
    pub fn went_well(&mut self) {
        (self.failures, self.pause, self.told) = (0, None, Told::default());
    }

    /// How long no call may be made for what is asked now: `Some(None)` is until something else is asked for.
    pub fn held_back(&self, asked: Option<&LoadBalancerSpec>, now: Instant) -> Option<Option<Duration>> {
        let pause = self.pause.as_ref().filter(|pause| pause.firm || pause.asked.as_deref() == asked)?;
        match pause.until {
            None => Some(None),
            Some(until) => Some(Some(until.checked_duration_since(now).filter(|left| !left.is_zero())?)),
        }
    }

    /// Returns whether the cloud asked for fewer calls, of whatever kind.
    pub fn is_throttled(&self) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.firm)
    }

    /// There is nothing to remember.
    fn is_blank(&self) -> bool {
        self.made.is_none()
            && self.targeting.is_none()
            && self.others.is_empty()
            && self.pause.is_none()
            && self.told.is_blank()
    }
}

/// All courses.
#[derive(Debug, Default)]
pub struct Courses(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    courses: HashMap<ObjectKey, Course>,
    /// By a Service, those that have it among their `others`.
    referring: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl All {
    /// Replaces the others that a Service refers to.
    fn refer(&mut self, key: &ObjectKey, others: &BTreeSet<ObjectKey>) {
        let before = self.courses.get(key).map(|course| course.others.clone()).unwrap_or_default();
        for dropped in before.difference(others) {
            if let Some(referring) = self.referring.get_mut(dropped) {
                referring.remove(key);
            }
            if self.referring.get(dropped).is_some_and(BTreeSet::is_empty) {
                self.referring.remove(dropped);
            }
        }
        for other in others.difference(&before) {
            self.referring.entry(other.clone()).or_default().insert(key.clone());
        }
    }
}

impl Courses {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Service's course.
    pub fn get(&self, key: &ObjectKey) -> Course {
        self.lock().courses.get(key).cloned().unwrap_or_default()
    }

    /// Remembers a Service's course.
    pub fn put(&self, key: &ObjectKey, course: Course) {
        let mut all = self.lock();
        all.refer(key, &course.others);
        if course.is_blank() {
            all.courses.remove(key);
        } else {
            all.courses.insert(key.clone(), course);
        }
    }

    /// The Services of whose balancers a Service's endpoints are targets: itself, and those that refer to it.
    pub fn with_endpoints_of(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        let all = self.lock();
        let wants = |key: &&ObjectKey| {
            all.courses.get(*key).is_some_and(|course| course.targeting == Some(Targeting::Endpoints))
        };
        let referring = all.referring.get(key).into_iter().flatten().filter(|one| *one != key);
        std::iter::once(key).chain(referring).filter(wants).cloned().collect()
    }

    /// The Services whose balancers send traffic to this one as well, or would if it were there.
    pub fn referring(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        self.lock().referring.get(key).into_iter().flatten().cloned().collect()
    }

    /// Whether there is any such Service.
    pub fn refer_to_any(&self) -> bool {
        !self.lock().referring.is_empty()
    }

    /// The Services whose balancers send traffic to nodes.
    pub fn with_nodes(&self) -> Vec<ObjectKey> {
        let all = self.lock();
        let with = all.courses.iter().filter(|(_, course)| course.targeting == Some(Targeting::Nodes));
        with.map(|(key, _)| key.clone()).collect()
    }

    /// Whether there may be a balancer of this id.
    pub fn knows(&self, id: &LoadBalancerId) -> bool {
        let key = ObjectKey::new(id.namespace.as_str(), id.name.as_str());
        self.lock().courses.get(&key).is_some_and(|course| course.made.as_ref() == Some(id))
    }

    /// How many Services are remembered.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().courses.len()
    }
}
