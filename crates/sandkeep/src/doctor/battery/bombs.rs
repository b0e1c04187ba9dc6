//! Bombs: a small sandbox takes as much as it can get, and is observed from outside meanwhile. None takes more than a
//! few times its limit, so that the host is in no danger even if no limit holds.

use std::process::Stdio;

use probe::Attempt;
use tokio::process::Command;

use super::subject::TestSandbox;
use super::{BatteryError, TestBroker};
use sandkeep_broker::{Running, RuntimeView, StatsView, error::Error};
use sandkeep_core::{
    Privilege, ResourcesDraft,
    limits::{
        BATTERY_DESCRIPTORS_MAX, BATTERY_DISK_MB, BATTERY_INODES_MAX, BATTERY_MEMORY_MB,
        BATTERY_PIDS, MIB,
    },
};
use sandkeep_guestlink::{ExecEvent, Outcome, OutputStream};
use sandkeep_home::Verdict;

/// A bomb may take this multiple of its limit.
const TIMES: u64 = 4;
/// Processes beyond the limit that do not count: the guest and its runtime.
const SLACK_PIDS: u64 = 64;

/// The limits of the small sandbox; `None` if this runtime or storage cannot enforce a limit.
pub struct Small {
    memory_mb: Option<u64>,
    pids: Option<u64>,
    disk_mb: Option<u64>,
    /// inotify instances that its users must not take from others. A sandbox without an id range of its own shares them
    /// with other users of the same ids.
    watchers: Option<u64>,
}

impl Small {
    pub fn for_runtime(runtime: &RuntimeView) -> Self {
        let can = &runtime.abilities;
        Self {
            memory_mb: can.runtime.memory_limit.then_some(BATTERY_MEMORY_MB),
            pids: can.runtime.pids_limit.then_some(BATTERY_PIDS),
            disk_mb: can.disk_quota.then_some(BATTERY_DISK_MB),
            watchers: can.runtime.own_id_range.then_some(BATTERY_DESCRIPTORS_MAX),
        }
    }

    fn resources(&self) -> ResourcesDraft {
        ResourcesDraft {
            memory_mb: self.memory_mb,
            pids: self.pids,
            disk_mb: self.disk_mb,
            ..ResourcesDraft::default()
        }
    }

    /// The maximum that a bomb may take, in its own unit. Without a limit to hold it, it is not set off.
    fn charge(&self, bomb: Bomb) -> Option<u64> {
        match bomb {
            Bomb::Fork => self.pids.map(|pids| pids * TIMES),
            Bomb::Inotify => self.watchers,
            Bomb::Memory | Bomb::Tcp => self.memory_mb.map(|mb| mb * TIMES),
            Bomb::Disk => self.disk_mb.map(|mb| mb * TIMES),
            Bomb::Inode => self.disk_mb.map(|_| BATTERY_INODES_MAX),
            Bomb::Descriptor => Some(BATTERY_DESCRIPTORS_MAX),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bomb {
    Fork,
    Descriptor,
    Disk,
    Inode,
    Inotify,
    Tcp,
    Memory,
}

impl Bomb {
    /// The one that may kill the sandbox comes last.
    const ALL: [Self; 7] = [
        Self::Fork,
        Self::Descriptor,
        Self::Inotify,
        Self::Inode,
        Self::Disk,
        Self::Tcp,
        Self::Memory,
    ];

    fn attempt(self) -> Attempt {
        match self {
            Self::Fork => Attempt::ForkBomb,
            Self::Descriptor => Attempt::DescriptorBomb,
            Self::Disk => Attempt::DiskBomb,
            Self::Inode => Attempt::InodeBomb,
            Self::Inotify => Attempt::InotifyBomb,
            Self::Tcp => Attempt::TcpBomb,
            Self::Memory => Attempt::MemoryBomb,
        }
    }
}

/// The observations of a bomb.
#[derive(Debug)]
struct Blast {
    /// How far it got by its own report, and why no further.
    reached: Option<(u64, String)>,
    /// The sandbox's usage while the bomb held its resources.
    used: Option<Used>,
    /// Whether the host could start a process meanwhile.
    host: Result<(), std::io::ErrorKind>,
    outcome: Outcome,
}

/// Measured from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    pids: u64,
    memory_bytes: u64,
    disk_bytes: u64,
}

/// Sets off every bomb for which there is a limit.
pub async fn detonate(
    ward: &TestBroker,
    runtime: &str,
    small: &Small,
) -> Result<Vec<(Attempt, Verdict, String)>, BatteryError> {
    let mut found = Vec::new();
    let mut place: Option<TestSandbox<'_>> = None;
    let mut failure = None;
    for bomb in Bomb::ALL {
        let judged = match small.charge(bomb) {
            None => Ok((Verdict::NotApplicable, "there is no such limit here".to_owned())),
            Some(max) => set_off(ward, runtime, small, &mut place, bomb, max).await,
        };
        match judged {
            Ok((verdict, detail)) => found.push((bomb.attempt(), verdict, detail)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(subject) = place {
        subject.destroy().await?;
    }
    failure.map_or(Ok(found), Err)
}

async fn set_off<'a>(
    ward: &'a TestBroker,
    runtime: &str,
    small: &Small,
    place: &mut Option<TestSandbox<'a>>,
    bomb: Bomb,
    max: u64,
) -> Result<(Verdict, String), BatteryError> {
    let subject = match place.take() {
        Some(subject) => subject,
        None => {
            let resources = Some(small.resources());
            let subject =
                TestSandbox::create(ward, runtime, Privilege::None, resources, None).await?;
            match subject.bring_probe().await {
                Ok(_) => subject,
                Err(error) => {
                    subject.destroy().await?;
                    return Err(error);
                }
            }
        }
    };
    let blast = async { watch(&subject, subject.bomb(bomb.attempt().name(), max).await?).await };
    let judged = blast.await.map(|blast| judge(bomb, small, &blast));
    // A bomb may kill its sandbox, and two that fill the disk do not fit in one; then the next bomb gets a new sandbox.
    if judged.is_ok() && bomb != Bomb::Inode && subject.is_well().await {
        *place = Some(subject)
    } else {
        subject.destroy().await?
    }
    Ok(judged?)
}

/// Waits for a bomb's report, measures, and lets it end.
async fn watch(subject: &TestSandbox<'_>, mut running: Running) -> Result<Blast, Error> {
    let (mut said, mut used, mut host) = (String::new(), None, Ok(()));
    while let Some(event) = running.next().await {
        match event {
            ExecEvent::Output { stream: OutputStream::Stdout, data, .. } => {
                said += &String::from_utf8_lossy(&data);
                if said.ends_with('\n') {
                    host = start_something().await.map_err(|error| error.kind());
                    used = subject.stats().await.ok().map(|stats| Used::of(&stats));
                    // It may have ended by itself.
                    let _ = running.input.close().await;
                }
            }
            ExecEvent::Started | ExecEvent::Output { .. } | ExecEvent::Gap { .. } => {}
            ExecEvent::Ended(end) => {
                return Ok(Blast { reached: reached(&said), used, host, outcome: end.outcome });
            }
        }
    }
    Err(Error::ShuttingDown)
}

/// `reached N REASON`
fn reached(said: &str) -> Option<(u64, String)> {
    let mut words = said.lines().next()?.split(' ');
    match (words.next()?, words.next()?.parse(), words.next()?) {
        ("reached", Ok(count), reason) => Some((count, reason.to_owned())),
        _ => None,
    }
}

/// Needs a process, memory, open files and an inotify instance of the host.
async fn start_something() -> std::io::Result<()> {
    rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC)?;
    let mut command = Command::new("sh");
    command.args(["-c", ":"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().await.map(drop)
}

impl Used {
    fn of(stats: &StatsView) -> Self {
        Self {
            pids: stats.pids.as_ref().map_or(0, |pids| pids.current),
            memory_bytes: stats.memory.as_ref().map_or(0, |memory| memory.used_bytes),
            disk_bytes: stats.disk.as_ref().map_or(0, |disk| disk.used_bytes),
        }
    }
}

fn judge(bomb: Bomb, small: &Small, blast: &Blast) -> (Verdict, String) {
    if let Err(kind) = blast.host {
        let detail =
            format!("the host could not start a process or watch a file meanwhile: {kind}");
        return (Verdict::Leaked, detail);
    }
    if let Some(excess) = blast.used.and_then(|used| excess(bomb, small, used)) {
        return (Verdict::Leaked, excess);
    }
    match (&blast.reached, &blast.outcome) {
        (Some((count, reason)), _) if reason == "bound" => {
            (Verdict::Leaked, format!("nothing stopped it at {count}"))
        }
        // The host's own file table was full.
        (Some((count, reason)), _) if reason == "ENFILE" => {
            (Verdict::Leaked, format!("{count} open files exhausted the host"))
        }
        (Some((count, reason)), _) => (Verdict::Held, format!("stopped at {count}: {reason}")),
        (None, Outcome::OomKilled) => (Verdict::Held, "killed: out of memory".to_owned()),
        (None, Outcome::Signaled(libc::SIGKILL)) => (Verdict::Held, "killed".to_owned()),
        (None, Outcome::Lost) => (Verdict::Held, "the whole sandbox ended".to_owned()),
        (None, outcome) => (Verdict::Leaked, format!("not judged: it ended as {outcome:?}")),
    }
}

/// What the sandbox used beyond its limits, independent of its own report.
fn excess(bomb: Bomb, small: &Small, used: Used) -> Option<String> {
    let more = |what: &str, used: u64, limit: Option<u64>| {
        let limit = limit?;
        (used > limit).then(|| format!("{used} {what} with a limit of {limit}"))
    };
    match bomb {
        Bomb::Fork => more("processes", used.pids, small.pids.map(|pids| pids + SLACK_PIDS)),
        Bomb::Memory | Bomb::Descriptor | Bomb::Inotify | Bomb::Tcp => {
            more("bytes of memory", used.memory_bytes, small.memory_mb.map(with_slack))
        }
        Bomb::Disk | Bomb::Inode => {
            more("bytes on disk", used.disk_bytes, small.disk_mb.map(with_slack))
        }
    }
}

/// A quarter more, in bytes: a limit is met in steps, and what is measured includes some that is nobody's.
fn with_slack(mb: u64) -> u64 {
    mb * MIB / 4 * 5
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Small =
        Small { memory_mb: Some(100), pids: Some(100), disk_mb: Some(10), watchers: Some(1000) };

    fn blast(reached: Option<(u64, &str)>, outcome: Outcome) -> Blast {
        let reached = reached.map(|(count, reason)| (count, reason.to_owned()));
        Blast { reached, used: Some(Used::default()), host: Ok(()), outcome }
    }

    fn verdict(bomb: Bomb, blast: &Blast) -> Verdict {
        judge(bomb, &SMALL, blast).0
    }

    #[test]
    fn a_bomb_that_was_stopped_has_held() {
        let exited = Outcome::Exited(0);
        let stopped = blast(Some((60, "EAGAIN")), exited);
        assert_eq!(verdict(Bomb::Fork, &stopped), Verdict::Held);
        let full = blast(Some((9, "EDQUOT")), exited);
        assert_eq!(verdict(Bomb::Disk, &full), Verdict::Held);
        let own_limit = blast(Some((1000, "EMFILE")), exited);
        assert_eq!(verdict(Bomb::Descriptor, &own_limit), Verdict::Held);
        for outcome in [Outcome::OomKilled, Outcome::Signaled(9), Outcome::Lost] {
            assert_eq!(verdict(Bomb::Memory, &blast(None, outcome)), Verdict::Held);
        }
    }

    #[test]
    fn a_bomb_that_nothing_stopped_is_a_leak() {
        for bomb in Bomb::ALL {
            let free = blast(Some((400, "bound")), Outcome::Exited(0));
            assert_eq!(verdict(bomb, &free), Verdict::Leaked);
            // A bomb that reports nothing, or never ran, has proved nothing.
            for outcome in [Outcome::Exited(0), Outcome::Exited(127), Outcome::TimedOut] {
                assert_eq!(verdict(bomb, &blast(None, outcome)), Verdict::Leaked);
            }
        }
    }

    #[test]
    fn a_little_over_the_limit_is_no_leak_however_small_the_limit_is() {
        let small = Small { disk_mb: Some(3), ..SMALL };
        let used = |disk_bytes| Used { disk_bytes, ..Used::default() };
        assert_eq!(excess(Bomb::Disk, &small, used(3 * MIB + 50_000)), None);
        assert!(excess(Bomb::Disk, &small, used(4 * MIB)).is_some());
    }

    #[test]
    fn what_is_seen_from_outside_counts_more_than_what_a_bomb_says() {
        let mut stopped = blast(Some((60, "EAGAIN")), Outcome::Exited(0));
        stopped.used = Some(Used { pids: 400, ..Used::default() });
        assert_eq!(verdict(Bomb::Fork, &stopped), Verdict::Leaked);
        stopped.used = Some(Used { disk_bytes: 40 * MIB, ..Used::default() });
        assert_eq!(verdict(Bomb::Inode, &stopped), Verdict::Leaked);
        stopped.used = Some(Used { memory_bytes: 400 * MIB, ..Used::default() });
        assert_eq!(verdict(Bomb::Memory, &stopped), Verdict::Leaked);
        let mut harmed = blast(Some((60, "EAGAIN")), Outcome::Exited(0));
        harmed.host = Err(std::io::ErrorKind::WouldBlock);
        assert_eq!(verdict(Bomb::Fork, &harmed), Verdict::Leaked);
        let no_more = blast(Some((60, "ENFILE")), Outcome::Exited(0));
        assert_eq!(verdict(Bomb::Descriptor, &no_more), Verdict::Leaked);
    }

    #[test]
    fn without_a_limit_no_bomb_is_set_off_but_the_one_that_needs_none() {
        let none = Small { memory_mb: None, pids: None, disk_mb: None, watchers: None };
        let set_off: Vec<Bomb> =
            Bomb::ALL.into_iter().filter(|bomb| none.charge(*bomb).is_some()).collect();
        assert_eq!(set_off, [Bomb::Descriptor]);
    }

    /// Without limits, every bomb is reported.
    #[test]
    fn a_bomb_without_a_limit_is_reported() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("probe");
        std::fs::write(&path, sandkeep_embedded::PROBE).expect("a writable directory");
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, executable).expect("it is ours");
        for bomb in Bomb::ALL {
            let mut command = std::process::Command::new(&path);
            command.args(["bomb", bomb.attempt().name(), "3"]).env("TMPDIR", dir.path());
            let output = command.stdin(Stdio::null()).output().expect("it runs");
            let reached = reached(&String::from_utf8_lossy(&output.stdout));
            assert_eq!(reached, Some((3, "bound".to_owned())), "{bomb:?} {output:?}");
            let free = Blast { reached, ..blast(None, Outcome::Exited(0)) };
            assert_eq!(verdict(bomb, &free), Verdict::Leaked, "{bomb:?}");
        }
    }

    #[test]
    fn only_the_bombs_own_words_are_understood() {
        assert_eq!(reached("reached 12 EAGAIN\n"), Some((12, "EAGAIN".to_owned())));
        for said in ["", "reached", "reached x EAGAIN", "reached 12", "12 EAGAIN x"] {
            assert_eq!(reached(said), None, "{said:?}");
        }
    }
}
