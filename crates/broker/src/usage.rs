//! What the sandboxes of each owner use: processor time, memory, disk space and network, for `GET /usage`.
//!
//! ```text
//!   runtime, gateway ──▶ counts since the last look ──▶ pending, per owner and hour ──▶ rows, per owner and day
//!      every minute, and before processes are ended                every minute, and at the end
//! ```
//!
//! Counters of a sandbox only grow while it runs, so a difference is what it used. Which values were counted last is
//! written down before the sums are: a daemon that is killed in between forgets what was used since, and never counts
//! anything twice. Sums outlive their sandboxes.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::Broker;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::network::NetworkRoom;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::api::{OwnerUsage, Usage};
use sandkeep_core::{Owner, Principal, SandboxId, State, limits};
use sandkeep_runtime::Runtime;
use sandkeep_store::{Key, Prefix, StateStore as _};

const ROWS: &str = "usage";
const COUNTED: &str = "usage-counted";
const HOUR_SECS: i64 = 3600;

/// A sum of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sum {
    cpu_micros: u64,
    /// MiB, times seconds.
    memory_mb_secs: f64,
    disk_mb_secs: f64,
    network_bytes: u64,
}

/// What of a sandbox was counted already.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Counted {
    cpu_micros: u64,
    network_bytes: u64,
    /// When, in time since boot, and how much disk it used then. Another daemon begins anew.
    #[serde(skip)]
    at: Option<Duration>,
    #[serde(skip)]
    disk_bytes: u64,
}

/// A look at a sandbox.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    cpu_micros: Option<u64>,
    memory_bytes: u64,
    disk_bytes: Option<u64>,
    network_bytes: Option<u64>,
}

/// The sums of an owner's day by hour: the value of a row.
type Hours = BTreeMap<i8, Sum>;

#[derive(Debug, Default)]
struct Meter {
    counted: BTreeMap<SandboxId, Counted>,
    /// By owner, and the hours since the epoch.
    pending: BTreeMap<(Owner, i64), Sum>,
}

/// The counters of this node.
#[derive(Debug, Default)]
pub(crate) struct UsageMeter(Mutex<Meter>);

impl Sum {
    fn add(&mut self, other: &Self) {
        self.cpu_micros = self.cpu_micros.saturating_add(other.cpu_micros);
        self.memory_mb_secs += other.memory_mb_secs;
        self.disk_mb_secs += other.disk_mb_secs;
        self.network_bytes = self.network_bytes.saturating_add(other.network_bytes);
    }

    fn of(self, owner: Owner) -> OwnerUsage {
        let hours = |mb_secs: f64| mb_secs / limits::USAGE_HOUR.as_secs_f64();
        OwnerUsage {
            owner,
            cpu_secs: Duration::from_micros(self.cpu_micros).as_secs_f64(),
            memory_mb_hours: hours(self.memory_mb_secs),
            disk_mb_hours: hours(self.disk_mb_secs),
            network_bytes: self.network_bytes,
        }
    }
}

impl Counted {
    /// What was used since the last look. A counter that is smaller than before began anew.
    fn advance(&mut self, look: &Look, now: Duration) -> Sum {
        let since = |last: &mut u64, count: Option<u64>| {
            let Some(count) = count else { return 0 };
            let used = count.checked_sub(*last).unwrap_or(count);
            *last = count;
            used
        };
        let elapsed = now.saturating_sub(self.at.unwrap_or(now)).as_secs_f64();
        let mb = |bytes: u64| Duration::from_secs(bytes).as_secs_f64() / 1_048_576.0;
        let disk = look.disk_bytes.unwrap_or(self.disk_bytes);
        (self.at, self.disk_bytes) = (Some(now), disk);
        Sum {
            cpu_micros: since(&mut self.cpu_micros, look.cpu_micros),
            memory_mb_secs: mb(look.memory_bytes) * elapsed,
            disk_mb_secs: mb(disk) * elapsed,
            network_bytes: since(&mut self.network_bytes, look.network_bytes),
        }
    }
}

impl UsageMeter {
    fn state(&self) -> MutexGuard<'_, Meter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New processes of a sandbox begin with no processor time.
    pub fn starts(&self, id: &SandboxId, now: Duration) {
        let mut state = self.state();
        let counted = state.counted.entry(id.clone()).or_default();
        counted.cpu_micros = 0;
        counted.at.get_or_insert(now);
    }

    fn count(&self, id: &SandboxId, owner: &Owner, look: &Look, hour: i64, now: Duration) {
        let mut state = self.state();
        let used = state.counted.entry(id.clone()).or_default().advance(look, now);
        if used != Sum::default() {
            state.pending.entry((owner.clone(), hour)).or_default().add(&used);
        }
    }
}

impl Shared {
    /// Counts what a sandbox has used since the last time.
    pub async fn count_use(
        &self,
        (id, owner): (&SandboxId, &Owner),
        runtime: &dyn Runtime,
        network: &NetworkRoom,
        disk_bytes: Option<u64>,
    ) {
        // A sandbox that has ended uses nothing but its disk.
        let stats = runtime.stats(id).await.ok();
        let carried = network.attachment().map(|open| open.usage());
        let look = Look {
            cpu_micros: stats.map(|stats| stats.cpu_micros),
            memory_bytes: stats.map_or(0, |stats| stats.memory_bytes),
            disk_bytes,
            network_bytes: carried.map(|used| used.bytes_up.saturating_add(used.bytes_down)),
        };
        let hour = self.clock.wall().as_second().div_euclid(HOUR_SECS);
        self.usage.count(id, owner, &look, hour, self.clock.uptime());
    }

    async fn count_handle(&self, handle: &Handle) {
        let meta = handle.meta();
        let state = handle.published.borrow().status.state();
        // A sandbox that is made or removed is counted by its supervisor.
        if matches!(state, State::Creating | State::Destroying) {
            return;
        }
        let Ok(runtime) = self.runtime(meta.spec.runtime()) else { return };
        let (who, disk) = ((&handle.id, &meta.owner), handle.space.bytes());
        self.count_use(who, runtime.as_ref(), &handle.network, disk).await;
    }

    /// Writes down what was counted.
    pub async fn write_usage(&self) -> Result<(), Error> {
        let here: HashSet<SandboxId> =
            self.handles().into_iter().map(|handle| handle.id.clone()).collect();
        let (counted, pending) = {
            let mut state = self.usage.state();
            state.counted.retain(|id, _| here.contains(id));
            (state.counted.clone(), std::mem::take(&mut state.pending))
        };
        let mut left = pending.clone();
        let written = self.write_sums(&counted, &pending, &mut left).await;
        let mut state = self.usage.state();
        for (whose, sum) in left {
            state.pending.entry(whose).or_default().add(&sum);
        }
        written
    }

    async fn write_sums(
        &self,
        counted: &BTreeMap<SandboxId, Counted>,
        pending: &BTreeMap<(Owner, i64), Sum>,
        left: &mut BTreeMap<(Owner, i64), Sum>,
    ) -> Result<(), Error> {
        let store = self.store.as_ref();
        let node = self.node().unwrap_or_default();
        let value = serde_json::to_vec(counted).expect("it holds numbers");
        rows::replace(store, &Key::new([COUNTED, &node]), value).await?;
        for ((owner, hour), sum) in pending {
            let at = Timestamp::from_second(hour * HOUR_SECS).unwrap_or(Timestamp::UNIX_EPOCH);
            let at = at.to_zoned(TimeZone::UTC);
            let Owner { organization, user, project } = owner;
            let key = [ROWS, &at.date().to_string(), organization, user, project, &node];
            let key = Key::new(key);
            let row = store.get(&key).await?;
            let mut hours: Hours = row.as_ref().map_or_else(Hours::default, |row| read(&row.value));
            hours.entry(at.hour()).or_default().add(sum);
            let value = serde_json::to_vec(&hours).expect("it holds numbers");
            rows::put(store, &key, value, row.map(|row| row.revision)).await?;
            left.remove(&(owner.clone(), *hour));
        }
        Ok(())
    }

    /// Removes the rows of days that are too long ago.
    async fn sweep_usage(&self) -> Result<(), Error> {
        let first = self.clock.wall().to_zoned(TimeZone::UTC).date();
        let first = first.saturating_sub(limits::USAGE_KEPT_DAYS.days()).to_string();
        for entry in self.store.list(&Prefix::new([ROWS])).await?.entries {
            if entry.key.segments().get(1).is_some_and(|day| *day < first) {
                rows::remove_as_read(self.store.as_ref(), &entry.key, entry.revision).await?;
            }
        }
        Ok(())
    }
}

impl Broker {
    /// What each owner that the principal may see used in a period, in whole hours.
    pub async fn usage(
        &self,
        who: &Principal,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) -> Result<Usage, Error> {
        let shared = &self.shared;
        for handle in shared.handles() {
            if who.may_see(&handle.meta().owner) {
                shared.count_handle(&handle).await;
            }
        }
        let invalid =
            |field, problem: &str| Error::InvalidField { field, problem: problem.to_owned() };
        let hour = |at: Timestamp| at.as_second().div_euclid(HOUR_SECS);
        let end = to.unwrap_or_else(|| shared.clock.wall());
        let days = (limits::USAGE_DEFAULT_DAYS * 24).hours();
        let begin = from.map_or_else(|| end.checked_sub(days), Ok);
        let begin = begin.map_err(|_| invalid("to", "it is too long ago"))?;
        if begin > end {
            return Err(invalid("from", "it is after the end of the period"));
        }
        // The hour that begins when the period ends is no part of it.
        let is_whole = end.as_second().rem_euclid(HOUR_SECS) == 0 && end.subsec_nanosecond() == 0;
        let first = hour(begin);
        let last = if is_whole { first.max(hour(end) - 1) } else { hour(end) };
        let mut sums: BTreeMap<Owner, Sum> = BTreeMap::new();
        for entry in shared.store.list(&Prefix::new([ROWS])).await?.entries {
            let Some((owner, day)) = owner_and_day(&entry.key) else { continue };
            if !who.may_see(&owner) {
                continue;
            }
            for (of_day, sum) in read(&entry.value) {
                if (first..=last).contains(&(day * 24 + i64::from(of_day))) {
                    sums.entry(owner.clone()).or_default().add(&sum);
                }
            }
        }
        for ((owner, at), sum) in &shared.usage.state().pending {
            if who.may_see(owner) && (first..=last).contains(at) {
                sums.entry(owner.clone()).or_default().add(sum);
            }
        }
        let whole = |hour: i64| Timestamp::from_second(hour * HOUR_SECS).unwrap_or(end);
        let items = sums.into_iter().map(|(owner, sum)| sum.of(owner));
        let items = items.take(limits::USAGE_OWNERS_MAX).collect();
        Ok(Usage { from: whole(first), to: whole(last + 1), items })
    }
}

/// Of a row, and the days since the epoch.
fn owner_and_day(key: &Key) -> Option<(Owner, i64)> {
    let [_, day, organization, user, project, _] = <[String; 6]>::try_from(key.segments()).ok()?;
    let day: jiff::civil::Date = day.parse().ok()?;
    let at = day.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    Some((Owner { organization, user, project }, at.div_euclid(24 * HOUR_SECS)))
}

fn read(value: &[u8]) -> Hours {
    serde_json::from_slice(value).unwrap_or_else(|error| {
        warn!(%error, "a row of usage cannot be read");
        Hours::default()
    })
}

/// Remembers what was counted before this daemon.
pub(crate) async fn begin(shared: &Arc<Shared>) -> Result<(), Error> {
    let node = shared.node().unwrap_or_default();
    if let Some(entry) = shared.store.get(&Key::new([COUNTED, &node])).await? {
        match serde_json::from_slice(&entry.value) {
            Ok(counted) => shared.usage.state().counted = counted,
            Err(error) => warn!(%error, "what was counted of usage cannot be read"),
        }
    }
    Ok(())
}

/// Counts until the broker closes.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut swept = None;
    loop {
        let today = shared.clock.wall().to_zoned(TimeZone::UTC).date();
        if swept != Some(today) {
            match shared.sweep_usage().await {
                Ok(()) => swept = Some(today),
                Err(error) => warn!(%error, "cannot remove old usage"),
            }
        }
        tokio::select! {
            () = shared.closing.cancelled() => break,
            () = shared.clock.pass(limits::USAGE_EVERY) => {}
        }
        for handle in shared.handles() {
            shared.count_handle(&handle).await;
        }
        if let Err(error) = shared.write_usage().await {
            warn!(%error, "cannot write down usage; it is tried again");
        }
    }
    for handle in shared.handles() {
        shared.count_handle(&handle).await;
    }
    if let Err(error) = shared.write_usage().await {
        warn!(%error, "cannot write down usage");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn look(cpu: u64, memory_mb: u64) -> Look {
        let memory_bytes = memory_mb * limits::MIB;
        Look { cpu_micros: Some(cpu), memory_bytes, disk_bytes: None, network_bytes: Some(cpu) }
    }

    #[test]
    fn what_was_counted_is_not_counted_again() {
        let (meter, owner, id) = (UsageMeter::default(), Owner::local(), SandboxId::random());
        meter.starts(&id, at(10));
        meter.count(&id, &owner, &look(500, 2), 7, at(20));
        meter.count(&id, &owner, &look(500, 2), 7, at(20));
        meter.count(&id, &owner, &look(800, 4), 7, at(30));
        let sum = meter.state().pending[&(owner.clone(), 7)];
        assert_eq!((sum.cpu_micros, sum.network_bytes), (800, 800));
        assert!((sum.memory_mb_secs - 60.0).abs() < 1e-6, "{sum:?}");
        // A counter that began anew, although it is larger than before.
        meter.starts(&id, at(40));
        meter.count(&id, &owner, &look(900, 0), 8, at(40));
        let sum = meter.state().pending[&(owner, 8)];
        assert_eq!((sum.cpu_micros, sum.network_bytes), (900, 100));
    }

    #[test]
    fn a_daemon_goes_on_where_the_last_one_was() {
        let mut counted = Counted::default();
        counted.advance(&look(500, 1), at(5));
        let written = serde_json::to_vec(&counted).expect("numbers");
        let mut later: Counted = serde_json::from_slice(&written).expect("what was written");
        let sum = later.advance(&look(600, 1), at(1000));
        assert_eq!(sum.cpu_micros, 100);
        assert!(sum.memory_mb_secs.abs() < 1e-9, "nobody knows what was used meanwhile");
    }
}
