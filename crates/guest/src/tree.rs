//! All processes of an exec, and killing them: the cgroup leaf the host gave for it.
//!
//! A v1 leaf is frozen first, so that nothing forks away between the look at its tasks and the
//! signals; frozen tasks do not die, so it is thawed after. Nothing here waits: what is still there
//! is killed again on the next tick of the loop.
//!
//! Without a leaf the tree is what /proc shows of it: descendants of the first process and members
//! of its session. A daemon that has left both is not found; that is why runtimes give leaves.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use guest_proto::LeafKind;
use libc::pid_t;

use crate::sys;

/// How often to look whether the freezer has caught every task before killing what is there.
const FREEZE_LOOKS: usize = 50;

/// How often to look for more descendants before killing those found.
const SCANS: usize = 8;

pub enum Leaf {
    None,
    V1 { tasks: OwnedFd, state: OwnedFd },
    V2 { kill: OwnedFd, procs: OwnedFd },
}

/// Whether anything of the tree was still alive when last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    Empty,
    Alive,
}

impl Leaf {
    /// Takes the descriptors that came with an exec: the leaf, and the files its child enters
    /// before it executes. `None` if too few came.
    pub fn from_descriptors(kind: LeafKind, fds: Vec<OwnedFd>) -> Option<(Self, Vec<OwnedFd>)> {
        let mut fds = fds.into_iter();
        match kind {
            LeafKind::None => Some((Self::None, Vec::new())),
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

    /// All processes that are there. `leader` is the first of them.
    pub fn members(&self, leader: pid_t) -> Vec<pid_t> {
        match self {
            Self::None => family(leader, &processes()),
            Self::V1 { tasks: members, .. } | Self::V2 { procs: members, .. } => {
                read_tasks(members.as_fd()).unwrap_or_default()
            }
        }
    }

    /// Whether any process is there.
    pub fn look(&self, leader: pid_t) -> Tree {
        match self {
            Self::None if family(leader, &processes()).is_empty() => Tree::Empty,
            Self::None => Tree::Alive,
            Self::V1 { tasks: members, .. } | Self::V2 { procs: members, .. } => look(members),
        }
    }

    /// Sends a signal to every process that is there.
    pub fn signal(&self, leader: pid_t, signal: i32) {
        match self {
            Self::None | Self::V2 { .. } => signal_each(&self.members(leader), signal),
            Self::V1 { tasks, state } => signal_frozen(tasks, state, signal),
        }
    }

    /// Sends SIGKILL to all that is there. `leader` is the first process of the exec.
    pub fn kill(&self, leader: pid_t) -> Tree {
        match self {
            Self::None => kill_descendants(leader),
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

/// Tasks are threads: a process of many is sent as many signals, and gets one, because it takes none
/// before it thaws.
fn signal_frozen(tasks: &OwnedFd, state: &OwnedFd, signal: i32) {
    let _ = sys::write(state.as_fd(), b"FROZEN");
    let mut word = [0u8; 16];
    for _ in 0..FREEZE_LOOKS {
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

/// Reads the list through a descriptor of its own: the kernel shows an open `tasks` file the list it
/// made for the first read, for as long as somebody keeps looking. Where there is no /proc to open
/// it again, an old list is better than none.
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

/// Stops everybody first, until a look finds nobody new, and kills then: who dies before the others
/// are found would leave its children to PID 1, where nothing tells whose they were.
fn kill_descendants(leader: pid_t) -> Tree {
    let mut known: Vec<pid_t> = Vec::new();
    for _ in 0..SCANS {
        let alive = family(leader, &processes());
        let new: Vec<pid_t> = alive.into_iter().filter(|pid| !known.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        for &pid in &new {
            let _ = sys::kill(pid, libc::SIGSTOP);
        }
        known.extend(new);
    }
    for &pid in &known {
        let _ = sys::kill(pid, libc::SIGKILL);
    }
    if known.is_empty() { Tree::Empty } else { Tree::Alive }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: pid_t,
    parent: pid_t,
    session: pid_t,
}

/// All living processes that /proc shows.
fn processes() -> Vec<Process> {
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

/// Reads a line of /proc/<pid>/stat; `None` for the dead. The name in it is the process's own choice
/// and may hold anything, so fields are counted from its last parenthesis.
fn parse_stat(pid: pid_t, stat: &[u8]) -> Option<Process> {
    let stat = String::from_utf8_lossy(stat);
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(Process { pid, parent, session })
}

/// Every living process below `ancestor`.
pub fn descendants(ancestor: pid_t) -> Vec<pid_t> {
    let processes = processes();
    let mut members = vec![ancestor];
    add_descendants(&mut members, &processes);
    members.split_off(1)
}

/// Who belongs to the leader: itself, its session, and all descendants of these.
fn family(leader: pid_t, processes: &[Process]) -> Vec<pid_t> {
    let mut members: Vec<pid_t> = processes
        .iter()
        .filter(|process| process.pid == leader || process.session == leader)
        .map(|process| process.pid)
        .collect();
    add_descendants(&mut members, processes);
    members
}

fn add_descendants(members: &mut Vec<pid_t>, processes: &[Process]) {
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

    #[test]
    fn a_name_full_of_parentheses_does_not_mislead() {
        let process = parse_stat(7, b"7 (a) Z 1 1 1) S 3 4 5 0 -1");
        assert_eq!(process, Some(Process { pid: 7, parent: 3, session: 5 }));
    }

    #[test]
    fn the_dead_and_the_unreadable_do_not_count() {
        assert_eq!(parse_stat(7, b"7 (x) Z 3 4 5 0"), None);
        assert_eq!(parse_stat(7, b""), None);
        assert_eq!(parse_stat(7, b"7 (x) S one"), None);
    }

    #[test]
    fn a_family_is_the_session_and_everybody_below() {
        let process = |pid, parent, session| Process { pid, parent, session };
        let all = [
            process(1, 0, 1),
            process(12, 11, 12),
            process(10, 1, 10),
            process(11, 10, 11),
            process(20, 1, 10),
            process(30, 1, 30),
        ];
        let mut found = family(10, &all);
        found.sort_unstable();
        assert_eq!(found, [10, 11, 12, 20]);
    }
}
