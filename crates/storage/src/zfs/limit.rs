//! The limit of a tree. It is the requested one, except for clones of full trees: ZFS refuses a limit below the current
//! size, and a fork must be given an identity and started. They get a little more, until they hold less.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{MutexGuard, PoisonError};

use super::command::{Reach, Row};
use super::{BASE, Zfs, number, value};
use sandkeep_core::{SandboxId, limits::FULL_TREE_HEADROOM_BYTES};

const REFQUOTA: &str = "refquota";
/// Our own property of a tree: the requested limit.
const ASKED: &str = "sandkeep:limit";
/// The properties needed to compute it.
pub(super) const PROPERTIES: &str = "refquota,sandkeep:limit";

/// The requested limit of a tree; `None` without one, which is reported as 0.
pub(super) fn asked(rows: &[Row], tree: &str) -> io::Result<Option<u64>> {
    let limit = match value(rows, tree, ASKED) {
        Some(_) => number(rows, tree, ASKED)?,
        None => number(rows, tree, REFQUOTA)?,
    };
    Ok((limit != 0).then_some(limit))
}

impl Zfs {
    /// The properties of a tree that starts with this many bytes, of which `base` are in layers.
    pub(super) fn limits(
        &self,
        id: &SandboxId,
        base: u64,
        asked: Option<u64>,
        held: u64,
    ) -> Vec<(&'static str, u64)> {
        let mut properties = vec![(BASE, base)];
        if let Some(asked) = asked {
            let limit = asked.max(held.saturating_add(FULL_TREE_HEADROOM_BYTES));
            properties.extend([(REFQUOTA, limit), (ASKED, asked)]);
            if limit > asked {
                self.lenient().insert(id.clone());
            }
        }
        properties
    }

    /// The volumes whose limit may be above the requested one.
    pub(super) fn lenient(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.lenient.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the requested limit on a tree that holds no more than it.
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

    /// Whether its limit is now the requested one.
    fn tighten(&self, id: &SandboxId) -> io::Result<bool> {
        let volume = match self.volume(id) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            volume => volume?,
        };
        let tree = &volume.tree()?.name;
        let rows = self.tool.get(tree, PROPERTIES, Reach::Itself)?;
        let Some(asked) = asked(&rows, tree)? else { return Ok(true) };
        if number(&rows, tree, REFQUOTA)? <= asked {
            return Ok(true);
        }
        let set = self.tool.run(&["set", &format!("{REFQUOTA}={asked}"), tree]);
        match set.as_ref().map_err(io::Error::kind) {
            // It still holds too much.
            Err(io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull) => Ok(false),
            Ok(_) | Err(_) => set.map(|_| true),
        }
    }

    /// Finds the volumes that an earlier daemon left with a higher limit.
    pub(super) fn find_lenient(&self) -> io::Result<()> {
        let rows = self.tool.get(&self.names.volumes(), PROPERTIES, Reach::All)?;
        let told = |wanted: &'static str| {
            let rows = rows.iter().filter(move |row| row.property == wanted);
            rows.filter_map(|row| Some((row.name.as_str(), row.value.parse::<u64>().ok()?)))
        };
        // Snapshots have none.
        let limits: HashMap<&str, u64> = told(REFQUOTA).collect();
        let lenient = told(ASKED).filter(|(name, asked)| limits.get(name) > Some(asked));
        self.lenient().extend(lenient.filter_map(|(name, _)| self.names.sandbox(name)));
        Ok(())
    }
}
