//! The limit of a tree, which is what was asked for, but for clones of full ones: ZFS refuses a limit below what is there,
//! and a fork has to be given an identity and be started. They get a little more, until they hold less.

use std::collections::BTreeSet;
use std::io;
use std::sync::{MutexGuard, PoisonError};

use super::command::{Reach, Row};
use super::{BASE, MEASURED, TREE, Zfs, number, value};
use crate::limits;
use crate::sandbox::SandboxId;

const REFQUOTA: &str = "refquota";
/// A property of our own, of a tree: the limit that was asked for.
const ASKED: &str = "sandkeep:limit";
/// What has to be read of a tree to know it.
pub(super) const PROPERTIES: &str = "refquota,sandkeep:limit";
/// What a tree without room may write.
const HEADROOM_BYTES: u64 = limits::MIB;

/// The limit of a tree that was asked for; `None` without one, which is told as 0.
pub(super) fn asked(rows: &[Row], tree: &str) -> io::Result<Option<u64>> {
    let limit = match value(rows, tree, ASKED) {
        Some(_) => number(rows, tree, ASKED)?,
        None => number(rows, tree, REFQUOTA)?,
    };
    Ok((limit != 0).then_some(limit))
}

impl Zfs {
    /// The properties of a tree of this volume that begins with so many bytes, of which those of `base` are in layers.
    pub(super) fn limits(
        &self,
        id: &SandboxId,
        base: u64,
        asked: Option<u64>,
        held: u64,
    ) -> Vec<(&'static str, u64)> {
        let mut properties = vec![(BASE, base)];
        if let Some(asked) = asked {
            let limit = asked.max(held.saturating_add(HEADROOM_BYTES));
            properties.extend([(REFQUOTA, limit), (ASKED, asked)]);
            if limit > asked {
                self.lenient().insert(id.clone());
            }
        }
        properties
    }

    /// The volumes whose limit may be more than was asked for.
    pub(super) fn lenient(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.lenient.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a tree that holds no more than it may the limit that was asked for.
    pub(super) fn tend_volume(&self, id: &SandboxId) -> io::Result<()> {
        if !self.lenient().contains(id) {
            return Ok(());
        }
        let _changing = self.changing();
        if self.tighten(id)? {
            self.lenient().remove(id);
        }
        Ok(())
    }

    /// Whether its limit is now what was asked for.
    fn tighten(&self, id: &SandboxId) -> io::Result<bool> {
        let volume = self.names.volume(id);
        match self.tool.run(&["set", &format!("{MEASURED}=1"), &volume]) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            measured => drop(measured?),
        }
        let wanted = format!("{PROPERTIES},{TREE}");
        let rows = self.tool.get(&volume, &wanted, Reach::Children)?;
        let Some(tree) = value(&rows, &volume, TREE) else { return Ok(true) };
        let tree = format!("{volume}/{tree}");
        match asked(&rows, &tree)? {
            Some(asked) if number(&rows, &tree, REFQUOTA)? > asked => {
                match self.tool.run(&["set", &format!("{REFQUOTA}={asked}"), &tree]) {
                    Ok(_) => Ok(true),
                    // It holds too much still.
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull
                        ) =>
                    {
                        Ok(false)
                    }
                    Err(error) => Err(error),
                }
            }
            Some(_) | None => Ok(true),
        }
    }
}
