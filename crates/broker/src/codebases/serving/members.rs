//! How each running sandbox has its codebase, and what follows for the next one on the same codebase.
//!
//! | others on the codebase | rules that mounts keep | rules that a server keeps |
//! |---|---|---|
//! | none, or they only read | mounts | a server, zero-message |
//! | a server | a server like the next column's; without writing, mounts | a server, passthrough where possible |
//! | mounts with writing | mounts | a server with passthrough that trusts nothing it knows |
//!
//! Servers tell each other what they change. A sandbox that writes through a mount tells nobody, so it comes before the
//! servers or not at all.

use std::collections::HashMap;
use std::sync::Arc;

use sandkeep_core::api::ServedBy;
use sandkeep_core::{CodebaseId, CodebaseServing, SandboxId};
use sandkeep_rulefs::{Mode, Server, Writers};
use sandkeep_sys::board::Board;

/// What rules ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Mounts that are only read.
    Read,
    /// Mounts, of which some are written.
    Write,
    Server,
}

/// How one sandbox has its codebase.
#[derive(Clone, Debug)]
pub enum Way {
    /// By mounts, which only read or also write.
    Reads,
    Writes,
    /// By a server that is about to start.
    Starting(Arc<Board>),
    Served(Arc<Served>),
}

/// A running server.
#[derive(Debug)]
pub struct Served {
    pub server: Server,
    pub mode: Mode,
    pub board: Arc<Board>,
}

impl Served {
    pub fn by(&self) -> ServedBy {
        match self.mode {
            Mode::ZeroMessage => ServedBy::Fuse,
            Mode::Passthrough => ServedBy::Passthrough,
        }
    }
}

/// What is decided for a sandbox that is about to start.
#[derive(Debug)]
pub enum Decided {
    Mounts,
    Server(Serve),
}

/// How a server is started.
#[derive(Debug)]
pub struct Serve {
    /// The first that works here.
    pub modes: Vec<Mode>,
    pub writers: Writers,
    pub board: Arc<Board>,
    /// Who stands in the way if none does.
    pub holder: Option<SandboxId>,
}

/// Another sandbox writes to the codebase, and no server that is possible here would see it.
#[derive(Debug, PartialEq, Eq)]
pub struct Exclusive {
    pub holder: SandboxId,
}

struct Member {
    codebase: CodebaseId,
    way: Way,
}

/// All running sandboxes that have a codebase.
#[derive(Default)]
pub struct Members(HashMap<SandboxId, Member>);

impl Members {
    pub fn get(&self, id: &SandboxId) -> Option<&Way> {
        self.0.get(id).map(|member| &member.way)
    }

    pub fn set(&mut self, id: &SandboxId, codebase: &CodebaseId, way: Way) {
        self.0.insert(id.clone(), Member { codebase: codebase.clone(), way });
    }

    pub fn remove(&mut self, id: &SandboxId) -> Option<Way> {
        self.0.remove(id).map(|member| member.way)
    }

    /// The servers of a codebase.
    pub fn servers(&self, codebase: &CodebaseId) -> Vec<(SandboxId, Arc<Served>)> {
        let served = |(id, way): (&SandboxId, &Way)| match way {
            Way::Served(served) => Some((id.clone(), Arc::clone(served))),
            Way::Reads | Way::Writes | Way::Starting(_) => None,
        };
        self.on(codebase).filter_map(served).collect()
    }

    /// The board of a codebase's servers, if it has any.
    pub fn board(&self, codebase: &CodebaseId) -> Option<Arc<Board>> {
        self.on(codebase).find_map(|(_, way)| match way {
            Way::Starting(board) => Some(Arc::clone(board)),
            Way::Served(served) => Some(Arc::clone(&served.board)),
            Way::Reads | Way::Writes => None,
        })
    }

    fn on(&self, codebase: &CodebaseId) -> impl Iterator<Item = (&SandboxId, &Way)> {
        let on = self.0.iter().filter(move |(_, member)| member.codebase == *codebase);
        on.map(|(id, member)| (id, &member.way))
    }

    /// Decides for a sandbox that is about to start, which is one of the members from now on. `new` makes the board of
    /// a codebase's first server.
    pub fn decide(
        &mut self,
        id: &SandboxId,
        codebase: &CodebaseId,
        (asks, serving): (Asks, CodebaseServing),
        new: impl FnOnce() -> std::io::Result<Board>,
    ) -> Result<std::io::Result<Decided>, Exclusive> {
        self.remove(id);
        let known = self.board(codebase);
        let mounts = match asks {
            Asks::Read => Some(Way::Reads),
            Asks::Write if known.is_none() => Some(Way::Writes),
            Asks::Write | Asks::Server => None,
        };
        if let Some(way) = mounts {
            self.set(id, codebase, way);
            return Ok(Ok(Decided::Mounts));
        }
        let writes = |(id, way): (&SandboxId, &Way)| matches!(way, Way::Writes).then(|| id.clone());
        let holder = self.on(codebase).find_map(writes);
        let modes = modes(serving, known.is_some(), holder.as_ref())?;
        let writers = if holder.is_some() { Writers::Silent } else { Writers::Tell };
        let board = match known {
            Some(board) => {
                board.share();
                board
            }
            None => match new() {
                Ok(board) => Arc::new(board),
                Err(error) => return Ok(Err(error)),
            },
        };
        self.set(id, codebase, Way::Starting(Arc::clone(&board)));
        Ok(Ok(Decided::Server(Serve { modes, writers, board, holder })))
    }
}

/// The modes that are possible, the best first. Pages that a zero-message mount has are not looked at again, so beside
/// a sandbox that writes silently only the other mode shows what is there.
fn modes(
    serving: CodebaseServing,
    is_shared: bool,
    silent: Option<&SandboxId>,
) -> Result<Vec<Mode>, Exclusive> {
    match (silent, serving) {
        (Some(holder), CodebaseServing::Fuse) => Err(Exclusive { holder: holder.clone() }),
        (Some(_), _) => Ok(vec![Mode::Passthrough]),
        (None, CodebaseServing::Fuse) => Ok(vec![Mode::ZeroMessage]),
        (None, CodebaseServing::Passthrough) => Ok(vec![Mode::Passthrough]),
        (None, CodebaseServing::Auto) if is_shared => {
            Ok(vec![Mode::Passthrough, Mode::ZeroMessage])
        }
        (None, CodebaseServing::Auto) => Ok(vec![Mode::ZeroMessage]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Room {
        members: Members,
        codebase: CodebaseId,
    }

    impl Room {
        fn new() -> Self {
            Self { members: Members::default(), codebase: CodebaseId::random() }
        }

        fn start(&mut self, asks: Asks, serving: CodebaseServing) -> Result<Decided, Exclusive> {
            let id = SandboxId::random();
            let decided =
                self.members.decide(&id, &self.codebase, (asks, serving), Board::create)?;
            Ok(decided.expect("a board"))
        }

        fn served(&mut self, asks: Asks) -> Serve {
            match self.start(asks, CodebaseServing::Auto) {
                Ok(Decided::Server(serve)) => serve,
                other => panic!("{other:?}"),
            }
        }

        fn mounts(&mut self, asks: Asks) {
            assert!(matches!(self.start(asks, CodebaseServing::Auto), Ok(Decided::Mounts)));
        }
    }

    #[test]
    fn the_first_server_is_fast_and_those_that_follow_share_its_board() {
        let mut room = Room::new();
        let first = room.served(Asks::Server);
        assert_eq!((&first.modes[..], first.writers), (&[Mode::ZeroMessage][..], Writers::Tell));
        assert!(!first.board.is_shared());
        let second = room.served(Asks::Server);
        assert_eq!(second.modes, [Mode::Passthrough, Mode::ZeroMessage]);
        assert!(Arc::ptr_eq(&first.board, &second.board) && first.board.is_shared());
        // Mounts would be written unseen by those two.
        assert_eq!(room.served(Asks::Write).writers, Writers::Tell);
        room.mounts(Asks::Read);
    }

    #[test]
    fn beside_one_that_writes_through_a_mount_nothing_is_trusted() {
        let mut room = Room::new();
        room.mounts(Asks::Write);
        room.mounts(Asks::Write);
        let served = room.served(Asks::Server);
        assert_eq!(
            (&served.modes[..], served.writers),
            (&[Mode::Passthrough][..], Writers::Silent)
        );
        assert!(served.holder.is_some());
        assert!(room.start(Asks::Server, CodebaseServing::Fuse).is_err());
    }

    #[test]
    fn other_codebases_and_sandboxes_that_ended_do_not_matter() {
        let mut room = Room::new();
        let (id, asks) = (SandboxId::random(), (Asks::Write, CodebaseServing::Auto));
        let elsewhere = CodebaseId::random();
        room.members.decide(&id, &elsewhere, asks, Board::create).unwrap().unwrap();
        let ended = SandboxId::random();
        room.members.decide(&ended, &room.codebase, asks, Board::create).unwrap().unwrap();
        room.members.remove(&ended);
        assert_eq!(room.served(Asks::Server).modes, [Mode::ZeroMessage]);
    }
}
