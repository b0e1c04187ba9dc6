//! The third table: every storage with every tree.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::quantile_ms;
use crate::trees::Tree;
use sandkeep_storage::StorageChoice;

/// What is timed of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// `cp -a` of the tree: the yardstick.
    Copy,
    Import,
    FirstCreate,
    Create,
    /// A create with the tree as its workspace.
    Workspace,
    Snapshot,
    /// With the same amount of unwritten data in addition.
    SnapshotDirty,
    Diff,
    Fork,
    Rollback,
    /// These three with the same amount of unwritten data in addition.
    DiffDirty,
    ForkDirty,
    RollbackDirty,
    ForkMany,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Copy => "cp -a",
            Self::Import => "import",
            Self::FirstCreate => "first create",
            Self::Create => "create",
            Self::Workspace => "workspace",
            Self::Snapshot => "snapshot",
            Self::SnapshotDirty => "snapshot dirty",
            Self::Diff => "diff",
            Self::Fork => "fork",
            Self::Rollback => "rollback",
            Self::DiffDirty => "diff dirty",
            Self::ForkDirty => "fork dirty",
            Self::RollbackDirty => "rollback dirty",
            Self::ForkMany => "fork x100",
        }
    }
}

/// All samples of one storage with one tree.
#[derive(Clone, Debug)]
pub struct StorageSamples {
    storage: String,
    tree: Tree,
    taken: Vec<(Operation, Vec<Duration>)>,
    /// Those of the smallest tree, measured alternately with these.
    smallest: Option<Box<StorageSamples>>,
    lacks: Option<String>,
}

impl StorageSamples {
    pub fn new(storage: &StorageChoice, tree: Tree) -> Self {
        let storage = storage.to_string();
        Self { storage, tree, taken: Vec::new(), smallest: None, lacks: None }
    }

    pub fn beside(self, smallest: Self) -> Self {
        Self { smallest: Some(Box::new(smallest)), ..self }
    }

    pub fn took(&mut self, operation: Operation, time: Duration) {
        match self.taken.iter_mut().find(|(known, _)| *known == operation) {
            Some((_, taken)) => taken.push(time),
            None => self.taken.push((operation, vec![time])),
        }
    }

    /// An operation is not supported, so nothing after it was measured.
    pub fn lacks(&mut self, what: &str, why: &str) {
        self.lacks = Some(format!("{what}: {why}"));
    }

    fn median_ms(&self, operation: Operation) -> Option<f64> {
        let (_, taken) = self.taken.iter().find(|(known, _)| *known == operation)?;
        quantile_ms(taken, 0.5)
    }
}

#[derive(Debug, Serialize)]
pub struct StorageFigures {
    storage: String,
    tree: String,
    operations: Vec<OperationFigures>,
    /// What was not measured, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
}

#[derive(Debug, Serialize)]
struct OperationFigures {
    operation: Operation,
    n: usize,
    p50_ms: f64,
    /// The ratio to the smallest tree.
    times_smallest: Option<f64>,
    /// The ratio to `cp -a` of this tree.
    times_copy: Option<f64>,
}

impl StorageFigures {
    pub fn all(samples: &[StorageSamples]) -> Vec<Self> {
        samples.iter().map(Self::of).collect()
    }

    /// The smallest tree is compared with itself.
    fn of(samples: &StorageSamples) -> Self {
        let smallest = samples.smallest.as_deref().unwrap_or(samples);
        let copy = samples.median_ms(Operation::Copy);
        let figures = |(operation, taken): &(Operation, Vec<Duration>)| {
            let p50_ms = quantile_ms(taken, 0.5)?;
            let base = smallest.median_ms(*operation);
            Some(OperationFigures {
                operation: *operation,
                n: taken.len(),
                p50_ms,
                times_smallest: base.map(|base| p50_ms / base),
                times_copy: copy.map(|copy| p50_ms / copy),
            })
        };
        Self {
            storage: samples.storage.clone(),
            tree: samples.tree.to_string(),
            operations: samples.taken.iter().filter_map(figures).collect(),
            left_out: samples.lacks.clone(),
        }
    }

    pub fn head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<12} {:<12} {:<15} {:>4} {:>10} {:>11} {:>8}",
            "storage", "tree", "", "n", "p50 ms", "x smallest", "x cp -a"
        )
    }
}

impl fmt::Display for StorageFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |t: Option<f64>| t.map_or_else(|| "-".to_owned(), |t| format!("{t:.2}"));
        for figures in &self.operations {
            writeln!(
                f,
                "{:<12} {:<12} {:<15} {:>4} {:>10.3} {:>11} {:>8}",
                self.storage,
                self.tree,
                figures.operation.name(),
                figures.n,
                figures.p50_ms,
                times(figures.times_smallest),
                times(figures.times_copy),
            )?;
        }
        match &self.left_out {
            Some(why) => {
                writeln!(
                    f,
                    "{:<12} {:<12} the rest was not measured: {why}",
                    self.storage, self.tree
                )
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_held_against_the_smallest_tree_and_against_a_copy() {
        let millis = Duration::from_millis;
        let mut small = StorageSamples::new(&StorageChoice::Local, Tree::Mebibytes(1));
        let mut large = StorageSamples::new(&StorageChoice::Local, Tree::Mebibytes(100));
        for (samples, copy, create) in [(&mut small, 10, 5), (&mut large, 1_000, 6)] {
            samples.took(Operation::Copy, millis(copy));
            samples.took(Operation::Create, millis(create));
        }
        let figures = StorageFigures::all(&[large.beside(small)]);
        let create = &figures[0].operations[1];
        assert!(create.times_smallest.is_some_and(|times| (times - 1.2).abs() < 1e-9));
        assert!(create.times_copy.is_some_and(|times| (times - 0.006).abs() < 1e-9));
    }
}
