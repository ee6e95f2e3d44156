//! A fault at each write of the binder, each for an object of its own, all with one manager: afterwards, claims and
//! volumes are as without faults.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use cluster_tests::{
    Call, Effect, Faults, Manager, Rule, Space, Verb, eventually, restart_after_crashes, write_failures,
};
use control_plane::behaviour::SUCCEED;
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::json;

use super::binder::{BINDER, FLAGS, Storage, recycler_template, volume_phase};
use super::host_path::{ENABLED, HOST_PATH, directory_of, volume_of};
use super::objects::alone;

/// A write: its verb, its resource, and its number among those to the same object, counted from one after the rule was
/// added.
type Write = (Verb, &'static str, usize);

const VOLUME: &str = "persistentvolumes";
const VOLUME_STATUS: &str = "persistentvolumes/status";
const CLAIM: &str = "persistentvolumeclaims";
const CLAIM_STATUS: &str = "persistentvolumeclaims/status";

/// The writes that bind a claim to a volume of an administrator.
const BINDING: [Write; 4] = [
    (Verb::Update, VOLUME, 1),
    (Verb::Update, VOLUME_STATUS, 1),
    (Verb::Update, CLAIM, 1),
    (Verb::Update, CLAIM_STATUS, 1),
];
/// The request for a host-path volume. The creation of the volume, which names no object, has rules of its own.
const PROVISIONING: [Write; 1] = [(Verb::Update, CLAIM, 1)];
/// The release of a volume, by its phase.
const RELEASE: [Write; 1] = [(Verb::Update, VOLUME_STATUS, 1)];
/// The deletion of a host-path volume: its finalizer, and the volume itself.
const DELETION: [Write; 2] = [(Verb::Update, VOLUME, 1), (Verb::Delete, VOLUME, 1)];
/// The recycling of a volume, from the deletion of the pod that wiped it: its reference to the claim, and its phase,
/// which was Released before. The creation of the pod has rules of its own.
const RECYCLING: [Write; 3] = [(Verb::Delete, "pods", 1), (Verb::Update, VOLUME, 1), (Verb::Update, VOLUME_STATUS, 2)];

fn on((verb, resource, nth): Write, names: &[String], effect: &Effect) -> Rule {
    let names = names.to_vec();
    let matches = move |call: &Call| call.verb == verb && call.resource == resource && names.contains(&call.name);
    Rule::new(matches, effect.clone()).nth(nth)
}

/// What happens to a volume after its claim was deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Released,
    Deleted,
    Recycled,
}

/// A claim with its volume and the faults of their writes.
struct Pair {
    name: String,
    effect: Effect,
    /// The write of the binding or of the request that fails, if one does.
    begin: Option<Write>,
    /// The write after the deletion of the claim that fails.
    end: Write,
    ending: Ending,
}

impl Pair {
    fn new(kind: &str, at: usize, (how, effect): &(&str, Effect), begin: Option<Write>, end: Write) -> Self {
        let name = format!("{kind}-{at}-{}", how.replace(' ', "-"));
        let ending = match kind {
            "static" => Ending::Released,
            "path" => Ending::Deleted,
            _ => Ending::Recycled,
        };
        Self { name, effect: effect.clone(), begin, end, ending }
    }
}

/// Returns a pair for each write and each of the effects.
fn pairs(effects: &[(&str, Effect)]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for effect in effects {
        let bound = BINDING.into_iter().enumerate();
        pairs.extend(bound.map(|(at, begin)| Pair::new("static", at, effect, Some(begin), RELEASE[0])));
        let deleted = DELETION.into_iter().enumerate();
        pairs.extend(deleted.map(|(at, end)| Pair::new("path", at, effect, PROVISIONING.get(at).copied(), end)));
        let recycled = RECYCLING.into_iter().enumerate();
        pairs.extend(recycled.map(|(at, end)| Pair::new("wiped", at, effect, None, end)));
    }
    pairs
}

struct Test {
    storage: Storage,
    faults: Faults,
    pairs: Vec<Pair>,
    effects: Vec<Effect>,
}

impl Test {
    fn class(&self, pair: &Pair) -> String {
        if pair.ending == Ending::Deleted { self.storage.class.clone() } else { self.storage.name(&pair.name) }
    }

    /// Creates volumes and claims, and waits until they are bound to each other.
    async fn bind(&self) -> Result<()> {
        let storage = &self.storage;
        storage.create_class(HOST_PATH, "Immediate", "Delete").await?;
        for pair in self.pairs.iter().filter(|pair| pair.ending != Ending::Deleted) {
            let policy = if pair.ending == Ending::Recycled { "Recycle" } else { "Retain" };
            let fields =
                json!({"spec": {"storageClassName": self.class(pair), "persistentVolumeReclaimPolicy": policy}});
            storage.create_volume(&pair.name, fields).await?;
        }
        for pair in self.pairs.iter().filter(|pair| pair.ending != Ending::Deleted) {
            storage.until_volume_phase(&pair.name, "Available").await?;
        }
        for pair in &self.pairs {
            if let Some(write) = pair.begin {
                self.faults.add(on(write, &[storage.name(&pair.name), pair.name.clone()], &pair.effect));
            }
        }
        for effect in &self.effects {
            self.faults.add(Rule::on(Verb::Create, VOLUME, effect.clone()));
        }
        for pair in &self.pairs {
            storage.create_claim(&pair.name, json!({"spec": {"storageClassName": self.class(pair)}})).await?;
        }
        for pair in &self.pairs {
            self.until_bound(pair).await.context(pair.name.clone())?;
        }
        ensure!(self.faults.unmet() == 0, "{} faults of bindings did not occur", self.faults.unmet());
        Ok(())
    }

    async fn until_bound(&self, pair: &Pair) -> Result<()> {
        if pair.ending != Ending::Deleted {
            self.storage.until_bound(&pair.name, &pair.name).await?;
            return Ok(());
        }
        let claim = self.storage.until_claim_phase(&pair.name, "Bound").await?;
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        ensure!(named == Some(volume_of(&claim)?), "{named:?}");
        ensure!(Path::new(&directory_of(&claim)?).is_dir(), "the volume has no directory");
        Ok(())
    }

    /// Deletes the claims, and waits until their volumes are released, deleted or wiped.
    async fn end(&self) -> Result<()> {
        for effect in &self.effects {
            self.faults.add(Rule::on(Verb::Create, "pods", effect.clone()));
        }
        let mut ends = Vec::new();
        for pair in &self.pairs {
            let claim = self.storage.claim(&pair.name).await?;
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).context("no volume")?;
            self.faults.add(on(pair.end, &[volume.clone(), format!("recycler-for-{volume}")], &pair.effect));
            ends.push((pair, volume, directory_of(&claim)?));
        }
        for pair in &self.pairs {
            self.storage.delete_claim(&pair.name).await?;
        }
        for (pair, volume, directory) in ends {
            eventually(format!("{} ends", pair.name), || self.has_ended(pair.ending, &volume, &directory)).await?;
        }
        ensure!(self.faults.unmet() == 0, "{} faults of endings did not occur", self.faults.unmet());
        Ok(())
    }

    async fn has_ended(&self, ending: Ending, volume: &str, directory: &str) -> Result<()> {
        let found = self.storage.volumes.get_opt(volume).await?;
        if ending == Ending::Deleted {
            ensure!(!Path::new(directory).exists(), "{directory} exists");
            // The protection controller, which removes the last finalizer, does not run.
            let is_deleted = found.as_ref().is_none_or(|found| found.metadata.deletion_timestamp.is_some());
            ensure!(is_deleted, "{:?}", found.map(|found| found.metadata));
            return Ok(());
        }
        let found = found.context("the volume was deleted")?;
        let is_free = found.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none());
        let phase = if ending == Ending::Recycled { "Available" } else { "Released" };
        ensure!(volume_phase(&found) == phase && is_free == (ending == Ending::Recycled), "{:?}", found.status);
        Ok(())
    }
}

async fn run(space: Space, effects: &[(&str, Effect)]) -> Result<()> {
    let (space, _alone) = alone(&space).await?;
    let (template, recycler) = recycler_template(&space, SUCCEED)?;
    let controllers = format!("--controllers=serviceaccount-controller,{BINDER}");
    let flags = [controllers.as_str(), FLAGS[1], ENABLED, &recycler];
    let faults = Faults::default();
    let test = Test {
        storage: Storage::new(&space),
        faults: faults.clone(),
        pairs: pairs(effects),
        effects: effects.iter().map(|(_, effect)| effect.clone()).collect(),
    };
    let lives = async {
        eventually("pods can be created", || space.get::<ServiceAccount>("default")).await?;
        test.bind().await?;
        test.end().await
    };
    tokio::select! {
        done = lives => done?,
        ended = restart_after_crashes(&faults, || Manager::start_with(&space, &faults, &flags)) => ended?,
    }
    std::fs::remove_file(template)?;
    Ok(())
}

pub async fn volumes_end_as_without_faults_when_any_write_fails(space: Space) -> Result<()> {
    run(space, &write_failures()).await
}

pub async fn volumes_end_as_without_faults_when_the_manager_crashes_at_any_write(space: Space) -> Result<()> {
    run(space, &[("crash", Effect::CrashBeforeResponse)]).await
}
