//! Several nodes concurrently create and destroy sandboxes with slots, keys and a quota, by the rules of the broker.
//! Between any two steps they stall, lose answers, or die and restart, controlled by a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use serde_json::{Map, Value};

use super::weather::{Dice, Weather};
use super::{Factory, slot};
use crate::policy::quota::{QuotaStanding, standing};
use crate::policy::{Quota, Quotas};
use crate::records::directory::{
    Directory, DirectoryError, FoundRow, NewRow, Phase, RequestPhase, RequestRecord, Share,
    request_name,
};
use sandkeep_core::promises::{Failure, Verdict, ensure};
use sandkeep_core::{Owner, Principal, SandboxId, SlotName};
use sandkeep_store::{Key, MemoryStore, Prefix, Revision, StateStore, StoreError};

const SEEDS: u64 = 300;
const NODES: usize = 3;
const ROUNDS: usize = 6;
const QUOTA: u64 = 3;

pub async fn nodes_that_stall_and_crash_keep_slots_keys_and_quotas(factory: Factory) -> Verdict {
    for seed in 0..SEEDS {
        let world = World::new(&factory, seed);
        let named = |Failure(detail)| Failure(format!("seed {seed}: {detail}"));
        world.run().await.map_err(named)?;
    }
    Ok(())
}

/// A request.
#[derive(Default)]
struct Asked {
    slot: Option<SlotName>,
    key: Option<Key>,
}

struct World {
    factory: Factory,
    entries: Arc<MemoryStore>,
    dice: Dice,
    /// Acknowledged sandboxes for which no destroy was requested.
    made: Mutex<BTreeSet<SandboxId>>,
    broken: Mutex<Option<String>>,
}

/// A node from one crash to the next.
struct Process {
    directory: Arc<dyn Directory>,
    weather: Arc<Weather>,
}

impl Process {
    /// A write whose answer was lost is repeated as long as the process lives.
    async fn repeat<T, F: Future<Output = Result<T, DirectoryError>>>(
        &self,
        work: impl Fn() -> F,
    ) -> Result<T, DirectoryError> {
        loop {
            match work().await {
                Err(DirectoryError::Store(StoreError::Unavailable(_)))
                    if self.weather.steps.load(Ordering::SeqCst) > 0 => {}
                answer => return answer,
            }
        }
    }

    async fn put(
        &self,
        id: &SandboxId,
        asked: &Asked,
        phase: Phase,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError> {
        let share = Share { sandboxes: 1, ..Share::default() };
        let (owner, slot) = (&Owner::local(), asked.slot.as_ref());
        let key = asked.key.as_ref().map(|key| ("key".to_owned(), format!("{key:?}").into()));
        let record: Map<String, Value> = key.into_iter().collect();
        let row =
            || NewRow { owner, id, phase, slot, names: Vec::new(), share, record: record.clone() };
        self.repeat(|| self.directory.put_row(row(), known)).await
    }

    /// Destroys what a row names, as far as it exists.
    async fn remove(
        &self,
        id: &SandboxId,
        asked: &Asked,
        row: Revision,
    ) -> Result<(), DirectoryError> {
        let (owner, directory) = (&Owner::local(), &self.directory);
        if let Some(slot) = &asked.slot {
            self.repeat(|| directory.free_slot(owner, slot, id)).await?;
        }
        self.repeat(|| directory.remove_row(owner, id, Some(row))).await
    }

    /// Whether it is within the quota.
    async fn ranks(&self, row: Revision) -> Result<bool, DirectoryError> {
        let (owner, share) = (Owner::local(), Share { sandboxes: 1, ..Share::default() });
        let user = Quota { sandboxes: Some(QUOTA), ..Quota::default() };
        let (quotas, organization) = (Quotas { user, ..Quotas::default() }, &owner.organization);
        loop {
            let listed = self.repeat(|| self.directory.rows(Some(organization))).await?;
            match standing(&quotas, &listed.rows, &owner, share, row) {
                QuotaStanding::Within => return Ok(true),
                QuotaStanding::Over(_) => return Ok(false),
                QuotaStanding::Undecided(_) => {
                    let after = listed.revision;
                    self.repeat(|| self.directory.row_changes(organization, after)).await?;
                }
            }
        }
    }

    /// Takes the key; `None`: it refers to another sandbox.
    async fn take_key(
        &self,
        name: &Key,
        record: &RequestRecord,
    ) -> Result<Option<Revision>, DirectoryError> {
        let (owner, directory) = (&Owner::local(), &self.directory);
        let found = self.repeat(|| directory.request(name)).await?;
        if let Some(kept) = found.as_ref().and_then(|found| found.record.as_ref()) {
            let row = self.repeat(|| directory.row(owner, &kept.sandbox)).await?;
            if kept.phase == RequestPhase::Made || row.is_some() {
                return Ok(None);
            }
        }
        let known = found.map(|found| found.revision);
        match self.repeat(|| directory.put_request(name, record, known)).await {
            Ok(revision) => Ok(Some(revision)),
            Err(DirectoryError::Fenced { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl World {
    fn new(factory: &Factory, seed: u64) -> Self {
        Self {
            factory: Arc::clone(factory),
            entries: Arc::new(MemoryStore::new()),
            dice: Dice::new(seed),
            made: Mutex::default(),
            broken: Mutex::default(),
        }
    }

    async fn run(&self) -> Verdict {
        join_all((0..NODES).map(|node| self.live(node))).await;
        if let Some(detail) = self.broken.lock().expect("nobody panics with it").take() {
            return Err(Failure(detail));
        }
        let rows: BTreeSet<SandboxId> = self.rows().await.into_iter().map(|row| row.id).collect();
        let made = self.made.lock().expect("nobody panics with it").clone();
        ensure!(made.is_subset(&rows), "lost: {:?}", made.difference(&rows));
        for node in 0..NODES {
            let process = self.process(node, usize::MAX);
            for (id, (row, asked)) in self.recover(node, &process).await? {
                process.remove(&id, &asked, row).await?;
            }
            process.repeat(|| process.directory.sweep_claims()).await?;
        }
        for kind in ["sandboxes", "slots"] {
            let left = self.entries.list(&Prefix::new([kind])).await?.entries;
            ensure!(left.is_empty(), "left over: {left:?}");
        }
        Ok(())
    }

    fn process(&self, node: usize, steps: usize) -> Process {
        let (entries, dice) = (Arc::clone(&self.entries), self.dice.clone());
        let weather = Arc::new(Weather { entries, dice, steps: AtomicUsize::new(steps) });
        let directory = (self.factory)(Arc::clone(&weather) as _, &format!("node{node}"));
        Process { directory, weather }
    }

    /// The life of a node: one process after the other, each until it dies.
    async fn live(&self, node: usize) {
        for _ in 0..ROUNDS {
            let steps = 5 + self.dice.roll(60) as usize;
            let process = self.process(node, steps);
            match self.work(node, &process).await {
                Ok(()) | Err(DirectoryError::Store(StoreError::Unavailable(_))) => {}
                Err(error) => {
                    let detail = format!("node {node} was told {error}");
                    *self.broken.lock().expect("nobody panics with it") = Some(detail);
                }
            }
        }
        // Nothing waits for what a dead process left.
        let process = self.process(node, usize::MAX);
        let _ = self.recover(node, &process).await;
    }

    /// Finishes what an earlier process left, and reports what exists.
    async fn recover(
        &self,
        node: usize,
        process: &Process,
    ) -> Result<BTreeMap<SandboxId, (Revision, Asked)>, DirectoryError> {
        let mut kept = BTreeMap::new();
        let listed = process.repeat(|| process.directory.rows(None)).await?;
        for row in listed.rows {
            let Some(placement) = row.placement else { continue };
            if placement.at.node != format!("node{node}") {
                continue;
            }
            // A slot may be left behind without its row: then it is free, and is swept.
            let forgotten = placement.phase == Phase::Placing && self.dice.roll(2) == 0;
            let slot = placement.slot.filter(|_| !forgotten);
            let asked = Asked { slot, key: None };
            match placement.phase {
                Phase::Placed => drop(kept.insert(row.id, (row.revision, asked))),
                Phase::Placing | Phase::Destroying => {
                    process.remove(&row.id, &asked, row.revision).await?;
                }
            }
        }
        Ok(kept)
    }

    async fn work(&self, node: usize, process: &Process) -> Result<(), DirectoryError> {
        let mut here = self.recover(node, process).await?;
        process.repeat(|| process.directory.sweep_claims()).await?;
        loop {
            if self.dice.roll(3) == 0
                && let Some((id, (row, asked))) = here.pop_first()
            {
                self.made.lock().expect("nobody panics with it").remove(&id);
                let row = process.put(&id, &asked, Phase::Destroying, Some(row)).await?;
                process.remove(&id, &asked, row).await?;
                continue;
            }
            let id = self.dice.id();
            let asked = self.ask();
            if let Some(row) = self.create(process, &id, &asked).await? {
                here.insert(id, (row, asked));
            }
        }
    }

    fn ask(&self) -> Asked {
        let slot = ["a", "b"].get(self.dice.roll(3) as usize).map(|name| slot(name));
        let name = |text: &&str| request_name(&text.parse().expect("a key"), &Principal::local());
        let key = ["k", "l", "m", "n"].get(self.dice.roll(8) as usize).map(name);
        Asked { slot, key }
    }

    /// `None`: another request has what was asked for.
    async fn create(
        &self,
        process: &Process,
        id: &SandboxId,
        asked: &Asked,
    ) -> Result<Option<Revision>, DirectoryError> {
        let (owner, directory) = (&Owner::local(), &process.directory);
        let row = process.put(id, asked, Phase::Placing, None).await?;
        if !process.ranks(row).await? {
            process.remove(id, &Asked::default(), row).await?;
            return Ok(None);
        }
        let (fingerprint, others) = ("f".to_owned(), Vec::new());
        let (phase, at) = (RequestPhase::Pending, jiff::Timestamp::UNIX_EPOCH);
        let sandbox = id.clone();
        let mut record = RequestRecord { fingerprint, sandbox, others, phase, at, node: None };
        let mut taken = None;
        if let Some(name) = &asked.key {
            taken = process.take_key(name, &record).await?.map(|revision| (name, revision));
            if taken.is_none() {
                process.remove(id, &Asked::default(), row).await?;
                return Ok(None);
            }
        }
        if let Some(slot) = &asked.slot
            && process.repeat(|| directory.claim_slot(owner, slot, id)).await?.is_some()
        {
            if let Some((name, revision)) = taken {
                process.repeat(|| directory.remove_request(name, revision)).await?;
            }
            process.remove(id, &Asked::default(), row).await?;
            return Ok(None);
        }
        let row = process.put(id, asked, Phase::Placed, Some(row)).await?;
        self.look().await;
        if let Some((name, revision)) = taken {
            record.phase = RequestPhase::Made;
            process.repeat(|| directory.put_request(name, &record, Some(revision))).await?;
        }
        self.made.lock().expect("nobody panics with it").insert(id.clone());
        Ok(Some(row))
    }

    /// All rows, read without injected faults.
    async fn rows(&self) -> Vec<FoundRow> {
        self.observer().rows(None).await.expect("the store in memory answers").rows
    }

    fn observer(&self) -> Arc<dyn Directory> {
        (self.factory)(Arc::clone(&self.entries) as _, "observer")
    }

    /// Checks the invariants.
    async fn look(&self) {
        let rows = self.rows().await;
        let placements = rows.iter().filter_map(|row| Some((row, row.placement.as_ref()?)));
        let placed: Vec<_> = placements.filter(|(_, at)| at.phase == Phase::Placed).collect();
        let (mut names, mut slotless) = (Vec::new(), Vec::new());
        for (row, placement) in &placed {
            let record: Value = serde_json::from_slice(&row.value).expect("JSON");
            names.extend(record["key"].as_str().map(str::to_owned));
            let Some(slot) = &placement.slot else { continue };
            names.push(slot.to_string());
            let holder = self.observer().slot_holder(&Owner::local(), slot).await;
            if holder.expect("the store in memory answers").as_ref() != Some(&row.id) {
                slotless.push(slot);
            }
        }
        let different: BTreeSet<_> = names.iter().collect();
        let problem = match () {
            () if placed.len() as u64 > QUOTA => format!("{} of {QUOTA} are placed", placed.len()),
            () if different.len() < names.len() => format!("one name leads to two: {names:?}"),
            () if !slotless.is_empty() => format!("their holders have not got {slotless:?}"),
            () => return,
        };
        *self.broken.lock().expect("nobody panics with it") = Some(problem);
    }
}
