//! Commands without a cgroup in the loop: starting them below a keeper, receiving their end, and killing what a killed
//! keeper has left.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use guest_proto::LeafKind;
use libc::pid_t;

use super::Reactor;
use super::operation::Refused;
use super::shells::Owner;
use crate::keeper::{self, Begun, Keeper};
use crate::plan::{NotStarted, Plan};
use crate::poll::{Id, Interest, Token};
use crate::sys::{self, Exit};
use crate::tree::{self, Leaf, Tree};

/// The pause between two kills of processes that a killed keeper has left.
const STRAYS_PAUSE: Duration = Duration::from_millis(5);

impl Reactor {
    /// The leaf of a new command, and the files for entering it.
    pub(super) fn leaf(
        &mut self,
        kind: LeafKind,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Leaf, Vec<OwnedFd>), Refused> {
        if let (LeafKind::None, Some(own)) = (kind, &mut self.own_leaves) {
            let made = own.leaf().map_err(|error| {
                Refused::because(format!("cannot make a control group for the command: {error}"))
            });
            return made.map(|(leaf, enter)| (Leaf::Own(leaf), vec![enter]));
        }
        Leaf::from_descriptors(kind, descriptors)
            .ok_or_else(|| Refused::because("too few descriptors came for the command's leaf"))
    }

    /// Starts a command in its leaf, or below a keeper.
    pub(super) fn launch(&mut self, plan: Plan, leaf: &Leaf) -> Result<pid_t, NotStarted> {
        let Leaf::Kept(kept) = leaf else {
            self.has_leaves = true;
            return self.spawner.spawn(plan, leaf);
        };
        let Begun { pid, line, command } = keeper::keep(&mut self.spawner, plan)?;
        let watched = self.poll.add(&line, token(pid), Interest::Read);
        let leader = *command.as_ref().unwrap_or(&0);
        self.keepers.insert(pid, Keeper::new(kept, pid, leader, Some(line)));
        let command = command.and_then(|leader| match watched {
            Ok(()) => Ok(leader),
            Err(error) => Err(NotStarted::cannot(format!("cannot watch the command: {error}"))),
        });
        if command.is_err() {
            // It exits when it has no children.
            let _ = leaf.kill();
        }
        command
    }

    /// A message of a keeper: its command has ended, or it is gone itself.
    pub(super) fn hear_keeper(&mut self, Id(id): Id) {
        let keeper = pid_t::try_from(id).ok().and_then(|pid| self.keepers.get_mut(&pid));
        if let Some((leader, exit)) = keeper.and_then(Keeper::hear) {
            self.first_exited(leader, exit);
        }
    }

    /// The first process of an exec or a shell has ended.
    pub(super) fn first_exited(&mut self, pid: pid_t, exit: Exit) {
        if self.reaped_shell(pid, exit) == Owner::Found {
            return;
        }
        let owner = self.execs.iter_mut().find(|(_, exec)| exec.pid == pid && exec.owns_pid());
        if let Some((&id, exec)) = owner {
            exec.exited(exit, Instant::now());
            self.touched_execs.push(id);
        }
    }

    /// A child has been reaped.
    pub(super) fn reaped(&mut self, pid: pid_t, exit: Exit) {
        let Some(mut keeper) = self.keepers.remove(&pid) else {
            return self.first_exited(pid, exit);
        };
        keeper.gone(pid);
        if let Some((leader, exit)) = keeper.hear() {
            self.first_exited(leader, exit);
        }
        // A keeper exits by itself when it has no children. If commands have leaves, orphans are legitimately ours.
        if exit != Exit::Code(0) && !self.has_leaves {
            self.strays = Some(Instant::now());
        }
    }

    /// A child was stopped. If it is a command, that is ignored.
    pub(super) fn stopped(&self, pid: pid_t) {
        if self.keepers.contains_key(&pid) {
            let _ = sys::kill(pid, libc::SIGCONT);
        }
    }

    pub(super) fn tick_strays(&mut self, now: Instant) {
        if self.strays.is_some_and(|at| now >= at) {
            let keepers: Vec<pid_t> = self.keepers.keys().copied().collect();
            let left = tree::kill_strays(&keepers);
            self.strays = (left == Tree::Alive).then(|| now + STRAYS_PAUSE);
        }
    }
}

fn token(keeper: pid_t) -> Token {
    Token::Keeper(Id(u64::from(keeper.unsigned_abs())))
}
