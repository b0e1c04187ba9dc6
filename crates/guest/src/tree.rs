//! Finds and kills all processes of an exec, by the cgroup leaf that the host gave it.
//!
//! A v1 leaf is frozen first, so that nothing forks between reading its tasks and sending the signals; frozen tasks do
//! not die, so it is thawed afterwards. Nothing here waits: remaining processes are killed again on the next tick of
//! the loop.
//!
//! Without a leaf an exec has a keeper instead (see `keeper`), below which all of its processes stay, and /proc shows
//! the tree below it. Its members are stopped before any is killed, until a scan finds no new ones. If they fork faster
//! than that, all processes in the sandbox are stopped at once, which leaves none to fork, and the others continue a
//! moment later. This does not depend on the killed processes: a member can leave its session, its parents and its user
//! behind, and is still below the keeper.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use guest_proto::LeafKind;
use libc::pid_t;

use crate::keeper::Kept;
use crate::own_leaves::OwnLeaf;
use crate::sys;

/// How often to check whether the freezer has caught every task before killing.
const FREEZE_LOOKS: usize = 50;

/// How often to scan for more members of a tree before all processes are stopped.
const SCANS: usize = 8;
/// How many members are stopped one by one.
const STOPPED_MAX: usize = 1024;

pub enum Leaf {
    /// Nothing of it is left, or it never existed.
    None,
    Kept(Rc<Kept>),
    /// A cgroup of the kernel inside.
    Own(OwnLeaf),
    V1 {
        tasks: OwnedFd,
        state: OwnedFd,
    },
    V2 {
        kill: OwnedFd,
        procs: OwnedFd,
    },
}

/// Whether any process of the tree was alive at the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    Empty,
    Alive,
}

impl Leaf {
    /// Takes the descriptors that came with an exec: the leaf, and the files that its child enters before it executes.
    /// `None` if there are too few.
    pub fn from_descriptors(kind: LeafKind, fds: Vec<OwnedFd>) -> Option<(Self, Vec<OwnedFd>)> {
        let mut fds = fds.into_iter();
        match kind {
            LeafKind::None => Some((Self::Kept(Rc::default()), Vec::new())),
            LeafKind::V1 => {
                let (tasks, state) = (fds.next()?, fds.next()?);
                let mut enter = vec![tasks.try_clone().ok()?];
                enter.extend(fds);
                Some((Self::V1 { tasks, state }, enter))
            }
            LeafKind::V2 => {
                let (kill, procs) = (fds.next()?, fds.next()?);
                let enter = vec![procs.try_clone().ok()?];
                Some((Self::V2 { kill, procs }, enter))
            }
        }
    }

    /// All its processes.
    pub fn members(&self) -> Vec<pid_t> {
        match self {
            Self::None => Vec::new(),
            Self::Kept(kept) => below(&kept.keepers(), &processes()),
            Self::Own(leaf) => leaf.members(),
            Self::V1 { tasks: members, .. } | Self::V2 { procs: members, .. } => {
                read_tasks(members.as_fd()).unwrap_or_default()
            }
        }
    }

    /// Whether it has any process.
    pub fn look(&self) -> Tree {
        match self {
            Self::None => Tree::Empty,
            Self::Kept(_) | Self::Own(_) => {
                if self.members().is_empty() {
                    Tree::Empty
                } else {
                    Tree::Alive
                }
            }
            Self::V1 { tasks: members, .. } | Self::V2 { procs: members, .. } => look(members),
        }
    }

    /// Sends a signal to all its processes.
    pub fn signal(&self, signal: i32) {
        match self {
            Self::None | Self::Kept(_) | Self::Own(_) | Self::V2 { .. } => {
                signal_each(&self.members(), signal);
            }
            Self::V1 { tasks, state } => signal_frozen(tasks, state, signal),
        }
    }

    /// Sends SIGKILL to all its processes.
    pub fn kill(&self) -> Tree {
        match self {
            Self::None => Tree::Empty,
            Self::Kept(_) | Self::Own(_) => kill_all(|| self.members()),
            Self::V1 { tasks, state } => kill_frozen(tasks, state),
            Self::V2 { kill, procs } => {
                if look(procs) == Tree::Empty {
                    return Tree::Empty;
                }
                let _ = sys::write(kill.as_fd(), b"1");
                look(procs)
            }
        }
    }
}

fn kill_frozen(tasks: &OwnedFd, state: &OwnedFd) -> Tree {
    if read_tasks(tasks.as_fd()).is_ok_and(|pids| pids.is_empty()) {
        return Tree::Empty;
    }
    signal_frozen(tasks, state, libc::SIGKILL);
    Tree::Alive
}

/// Tasks are threads: a process with many is sent as many signals, and receives one, because it handles none before it
/// is thawed. The freezer is triggered at every look, because a process entering vfork(2) can miss it.
fn signal_frozen(tasks: &OwnedFd, state: &OwnedFd, signal: i32) {
    let mut word = [0u8; 16];
    for _ in 0..FREEZE_LOOKS {
        let _ = sys::write(state.as_fd(), b"FROZEN");
        match sys::read_at(state.as_fd(), &mut word, 0) {
            Ok(len) if word[..len].starts_with(b"FROZEN") => break,
            Ok(_) => std::thread::yield_now(),
            Err(_) => break,
        }
    }
    signal_each(&read_tasks(tasks.as_fd()).unwrap_or_default(), signal);
    let _ = sys::write(state.as_fd(), b"THAWED");
}

fn signal_each(pids: &[pid_t], signal: i32) {
    // A process of another pid namespace, or a thread of one, reads as 0.
    for &pid in pids.iter().filter(|pid| **pid > 0) {
        let _ = sys::kill(pid, signal);
    }
}

/// Reads the list through a new descriptor: an open `tasks` file shows the list of its first read, for as long as it is
/// being read. Without /proc to open it again, an old list is better than none.
fn read_tasks(tasks: BorrowedFd<'_>) -> io::Result<Vec<pid_t>> {
    let fresh = sys::open_again(tasks).ok();
    let tasks = fresh.as_ref().map_or(tasks, AsFd::as_fd);
    let mut text = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        match sys::read_at(tasks, &mut buffer, text.len())? {
            0 => break,
            len => text.extend_from_slice(&buffer[..len]),
        }
    }
    Ok(String::from_utf8_lossy(&text).lines().filter_map(|line| line.parse().ok()).collect())
}

fn look(procs: &OwnedFd) -> Tree {
    match read_tasks(procs.as_fd()) {
        Ok(pids) if pids.is_empty() => Tree::Empty,
        Ok(_) | Err(_) => Tree::Alive,
    }
}

/// Kills the guest's children that are not keepers, and their descendants: the rest of execs whose keeper was killed.
pub fn kill_strays(keepers: &[pid_t]) -> Tree {
    kill_all(|| strays(sys::pid(), keepers, &processes()))
}

/// Kills everything that `members` finds. A process that dies before the others are found would leave its children to
/// another parent, so all are stopped first.
fn kill_all(members: impl Fn() -> Vec<pid_t>) -> Tree {
    let mut known: Vec<pid_t> = Vec::new();
    for _ in 0..SCANS {
        let mut new = members();
        new.retain(|pid| !known.contains(pid));
        if new.is_empty() {
            break;
        }
        signal_each(&new, libc::SIGSTOP);
        known.extend(new);
        if known.len() > STOPPED_MAX {
            break;
        }
    }
    if members().iter().all(|pid| known.contains(pid)) {
        signal_each(&known, libc::SIGKILL)
    } else {
        kill_while_all_stand_still(members)
    }
    if known.is_empty() { Tree::Empty } else { Tree::Alive }
}

/// Only PID 1 can stop all processes in one call, which no fork escapes: the kernel delivers the signal to the child as
/// well. Processes that were already stopped stay so.
fn kill_while_all_stand_still(members: impl Fn() -> Vec<pid_t>) {
    if sys::pid() != 1 {
        return signal_each(&members(), libc::SIGKILL);
    }
    let before = processes();
    let _ = sys::kill(-1, libc::SIGSTOP);
    let doomed = members();
    signal_each(&doomed, libc::SIGKILL);
    let stood_still = |pid| before.iter().any(|process| process.pid == pid && process.stopped);
    for process in processes() {
        if process.pid != 1 && !doomed.contains(&process.pid) && !stood_still(process.pid) {
            let _ = sys::kill(process.pid, libc::SIGCONT);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TreeProcess {
    pid: pid_t,
    parent: pid_t,
    stopped: bool,
}

/// All living processes in /proc.
fn processes() -> Vec<TreeProcess> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: pid_t| {
            let mut stat = [0u8; 512];
            let len = fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
            parse_stat(pid, &stat[..len])
        })
        .collect()
}

/// Parses /proc/<pid>/stat; `None` for dead processes. The name in it is chosen by the process and may contain
/// anything, so fields are counted from its last parenthesis. A process whose first thread has ended looks dead, except
/// for its number of threads.
fn parse_stat(pid: pid_t, stat: &[u8]) -> Option<TreeProcess> {
    let stat = String::from_utf8_lossy(stat);
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let state = *fields.first()?;
    let parent = fields.get(1)?.parse().ok()?;
    let threads: u32 = fields.get(17).and_then(|threads| threads.parse().ok()).unwrap_or(1);
    let dead = matches!(state, "Z" | "X") && threads <= 1;
    (!dead).then_some(TreeProcess { pid, parent, stopped: matches!(state, "T" | "t") })
}

/// Every living descendant of `ancestor`.
pub fn descendants(ancestor: pid_t) -> Vec<pid_t> {
    below(&[ancestor], &processes())
}

/// All descendants of these, without themselves.
fn below(ancestors: &[pid_t], processes: &[TreeProcess]) -> Vec<pid_t> {
    let mut members = ancestors.to_vec();
    add_descendants(&mut members, processes);
    members.split_off(ancestors.len())
}

/// Children of the guest that are not keepers, and their descendants.
fn strays(guest: pid_t, keepers: &[pid_t], processes: &[TreeProcess]) -> Vec<pid_t> {
    let is_stray =
        |process: &&TreeProcess| process.parent == guest && !keepers.contains(&process.pid);
    let mut members: Vec<pid_t> =
        processes.iter().filter(is_stray).map(|process| process.pid).collect();
    add_descendants(&mut members, processes);
    members
}

fn add_descendants(members: &mut Vec<pid_t>, processes: &[TreeProcess]) {
    loop {
        let before = members.len();
        for process in processes {
            if members.contains(&process.parent) && !members.contains(&process.pid) {
                members.push(process.pid);
            }
        }
        if members.len() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: pid_t, parent: pid_t) -> TreeProcess {
        TreeProcess { pid, parent, stopped: false }
    }

    #[test]
    fn a_name_full_of_parentheses_does_not_mislead() {
        let parsed = parse_stat(7, b"7 (a) Z 1 1 1) S 3 4 5 0 -1");
        assert_eq!(parsed, Some(process(7, 3)));
        let stopped = TreeProcess { pid: 7, parent: 3, stopped: true };
        assert_eq!(parse_stat(7, b"7 (x) T 3 4 5 0 -1"), Some(stopped));
    }

    #[test]
    fn the_dead_and_the_unreadable_do_not_count() {
        assert_eq!(parse_stat(7, b"7 (x) Z 3 4 5 0"), None);
        assert_eq!(parse_stat(7, b"7 (x) Z 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 9"), None);
        assert_eq!(parse_stat(7, b""), None);
        assert_eq!(parse_stat(7, b"7 (x) S one"), None);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_alive() {
        let stat = b"7 (x) Z 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 2 0 9";
        assert_eq!(parse_stat(7, stat), Some(process(7, 3)));
    }

    #[test]
    fn a_tree_is_everybody_below_its_keeper_and_not_the_keeper() {
        let all = [(1, 0), (12, 11), (10, 1), (11, 10), (20, 1), (30, 1), (31, 30)];
        let all = all.map(|(pid, parent)| process(pid, parent));
        let mut found = below(&[10, 30], &all);
        found.sort_unstable();
        assert_eq!(found, [11, 12, 31]);
        let mut found = strays(1, &[10, 20], &all);
        found.sort_unstable();
        assert_eq!(found, [30, 31]);
    }
}
